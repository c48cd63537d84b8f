"""Rows of wisdom for tests: of the kernels that a log names, measured here or elsewhere."""

from collections.abc import Iterable
from typing import Any

from pyc_mlir.measure.environment import current_place
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.choices.wisdom import Wisdom, WisdomRow

KERNELS = "pyc-select-kernels"


def row(subject: str, choice: str, seconds: float, **changes: Any) -> WisdomRow:
    """A row of this machine: three sessions, nine processes, within 5 %."""
    here = current_place()
    values: dict[str, Any] = {
        "subject": subject,
        "pass_name": KERNELS,
        "choice": choice,
        "hardware": here.hardware,
        "toolchain": here.toolchain,
        "context": here.context,
        "constants": "warm",
        "clock": "cpu",
        "seconds": seconds,
        "lo": seconds * 0.95,
        "hi": seconds * 1.05,
        "sessions": 3,
        "processes": 9,
    }
    return WisdomRow(**{**values, **changes})


def reversed_wisdom(decisions: Iterable[Decision], **changes: Any) -> Wisdom:
    """Wisdom by which the alternative listed last is the fastest for every kernel of a log."""
    rows = [
        row(d.site.work, a.name, 1e-5 / place, **changes)
        for d in decisions
        if d.site.pass_name == KERNELS
        for place, a in enumerate(d.alternatives, start=1)
    ]
    return Wisdom.of(rows, {})
