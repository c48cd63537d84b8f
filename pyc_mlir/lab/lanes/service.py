"""Steps that a recipe in service takes: drift suspends it, faults quarantine it.

    step = next_step("promoted", baseline, windows)      # None, or the state and the reason

Comes in: windows of calls in service (`Feedback` rows of one recipe, cluster and environment), and
the recipe's own quantile when it was promoted. Goes out: the step to take, which a service carries
out with `Store.walk`; it takes the last good recipe into use again. Nothing here measures.

Promotion is no step of a service: it needs paired measurements (`promotion.py`). So in service a
recipe can only lose its place, and one window alone never decides that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyc_mlir.lab.evidence.rows import Feedback
from pyc_mlir.lab.evidence.states import PROMOTED, QUARANTINED, SHADOW, SUSPENDED, StateStep
from pyc_mlir.runtime.selection.engine import IN_A_ROW, LOW_QUANTILE, drifted

# Calls that a window needs to be judged, and the low quantile that it is judged by.
MIN_CALLS, QUANTILE = 50, f"p{round(100 * LOW_QUANTILE)}"


@dataclass(frozen=True)
class ServiceSpan:
    """Calls of a recipe within a span of time.

    count: of calls; low: their low quantile in seconds. slowed: how many times slower the machine
    itself was by its probe, 1 if nobody knows. faults: calls with wrong results or a crash.
    """

    count: int
    low: float
    slowed: float = 1.0
    faults: int = 0

    @staticmethod
    def of(row: Feedback, faults: int = 0, slowed: float = 1.0) -> "ServiceSpan":
        """Return a stored window; what it lacks a quantile for counts no calls."""
        low = row.low.get(QUANTILE)
        return ServiceSpan(row.count if low else 0, low or 0.0, slowed, faults)


def next_step(state: str, baseline: float, windows: Sequence[ServiceSpan]) -> StateStep | None:
    """Return the step that the last windows require in a state; None for no change.

    baseline: the recipe's own low quantile in seconds when it came into use. windows: oldest first,
    since then. Only recipes in use (`promoted`) or beside one (`shadow`) take steps.
    """
    if state not in (PROMOTED, SHADOW) or not windows:
        return None
    faults = sum(window.faults for window in windows)
    if faults:
        return StateStep(QUARANTINED, f"{faults} calls in service with wrong results or a crash")
    full_windows = [window for window in windows if window.count >= MIN_CALLS][-IN_A_ROW:]
    ratios = drifted([window.low / window.slowed for window in full_windows], baseline)
    if ratios:
        shares = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        return StateStep(
            SUSPENDED, f"drift: {shares} of its own baseline in {IN_A_ROW} windows in a row"
        )
    return None
