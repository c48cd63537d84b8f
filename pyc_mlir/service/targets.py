"""The targets of a program in service, and what is done where one is missed.

    Targets(p99_seconds=0.02, error_rate=0.001, actions=("mode:memory_first", "previous", "refuse"))

A figure is judged over the last `window` calls since the last change, never over fewer: a change
has a whole window to show its effect, so that one slow call turns nothing about.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.runtime.selection.engine import quantile

PREVIOUS, REFUSE, MODE = "previous", "refuse", "mode:"
MOST_WINDOW = 65536
_SHARES = {"p50_seconds": 0.50, "p95_seconds": 0.95, "p99_seconds": 0.99}
# How often a window is judged while it moves on by its own length.
JUDGED = 4


@dataclass(frozen=True)
class Targets:
    """Limits of latency and errors over a window of calls.

    p50_seconds, p95_seconds, p99_seconds: of whole calls, conversions included. error_rate: the
    share of calls, 0 to 1, that end by a fault of the program or the machine; a caller's mistake,
    which a guard refuses, is none. window: calls. actions: what a miss leads to, each taken once in
    this order where it is possible: ``mode:NAME`` (another plan of the program), ``previous`` (the
    build before the last swap), ``refuse`` (calls raise SERVICE_REFUSING for `refuse_seconds`, then
    a window of them is let through to try again).

    Raises PycError (BAD_ARGUMENT) for anything else.
    """

    p50_seconds: float | None = None
    p95_seconds: float | None = None
    p99_seconds: float | None = None
    error_rate: float | None = None
    window: int = 256
    actions: Sequence[str] = (PREVIOUS,)
    refuse_seconds: float = 5.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "actions", tuple(self.actions))
        for name in _SHARES:
            value = getattr(self, name)
            _require(value is None or _is_number(value, 0.0), name, "seconds above 0", value)
        rate = self.error_rate
        _require(
            rate is None or (_is_number(rate, -1.0) and 0 <= rate < 1),
            "error_rate",
            "a share of 0 or more, below 1",
            rate,
        )
        _require(
            type(self.window) is int and 1 <= self.window <= MOST_WINDOW,
            "window",
            f"1 to {MOST_WINDOW} calls",
            self.window,
        )
        _require(
            _is_number(self.refuse_seconds, 0.0),
            "refuse_seconds",
            "seconds above 0",
            self.refuse_seconds,
        )
        for action in self.actions:
            known = action in (PREVIOUS, REFUSE) or (action.startswith(MODE) and action != MODE)
            _require(
                known,
                "actions",
                f"`{PREVIOUS}`, `{REFUSE}` or `{MODE}NAME` of a planner mode",
                action,
            )

    def missed(self, seconds: Sequence[float], failures: int) -> str:
        """Return which target the calls of one window miss, with the numbers; "" for none.

        seconds: of the calls that answered. failures: the number of those that did not.
        """
        calls = len(seconds) + failures
        if self.error_rate is not None and calls and failures / calls > self.error_rate:
            return (
                f"error_rate: {failures} of {calls} calls failed, "
                f"at most {self.error_rate:g} of them may"
            )
        for name, share in _SHARES.items():
            limit = getattr(self, name)
            if limit is not None and seconds:
                found = quantile(seconds, share)
                if found > limit:
                    return f"{name}: {found:.4g} s over {calls} calls, at most {limit:g} s"
        return ""


def require_seconds(where: str, value: object) -> None:
    """Raise PycError (BAD_ARGUMENT) unless a value is a finite number of seconds above 0."""
    if not _is_number(value, 0.0):
        raise PycError(
            ReasonCode.BAD_ARGUMENT, where=where, expected="seconds above 0", got=repr(value)
        )


def _is_number(value: object, above: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value > above


def _require(holds: bool, name: str, expected: str, got: object) -> None:
    if not holds:
        raise PycError(
            ReasonCode.BAD_ARGUMENT, where=f"targets: {name}", expected=expected, got=repr(got)
        )
