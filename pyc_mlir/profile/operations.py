"""The rows of a profile, and the operations of a call: equal dispatches as one.

Comes in: the rows of a profile. Goes out: `Operation`s with their seconds, a title and the names of
the model's nodes, the longest first.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum

from pyc_mlir.profile.known import IREE

# As many operations of a fused group stand in its title, and as many nodes beside it.
MOST_TITLED, _NAMED = 3, 2


@dataclass(frozen=True)
class ProfileRow:
    """One dispatch of a call, or all that lies outside of dispatches (`dispatch` is empty).

    sources: canonical ids of the ops that it computes something of; empty where not known.
    ops: the same in words, a group of fused ops each. groups: the ids that decisions name.
    locations: the model's names for them, where the artifact or its log tells.
    code: a family of generated kernels with its `knobs`, or `IREE`.
    seconds: of a call, so that rows add up; median, p10 and p90 are those of the single calls.
    share: of the call. calls: how many were timed; 0 for a prediction.
    flops, traffic_bytes, roofline: None where not known. `roofline` is the share of the speed that
        `Profile.roof` allows.
    """

    dispatch: str
    seconds: float
    share: float
    sources: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    locations: tuple[str, ...] = ()
    code: str = ""
    knobs: str = ""
    median_seconds: float | None = None
    p10_seconds: float | None = None
    p90_seconds: float | None = None
    calls: int = 0
    flops: float | None = None
    traffic_bytes: int | None = None
    roofline: float | None = None

    @property
    def is_dispatch(self) -> bool:
        """False for what lies outside of dispatches."""
        return bool(self.dispatch)

    @property
    def is_kernel(self) -> bool:
        """True if its code is a generated kernel's."""
        return self.is_dispatch and self.code != IREE

    @property
    def computes(self) -> str:
        """Its ops in words; `unknown` where the artifact does not tell."""
        if not self.is_dispatch:
            return "outside of dispatches"
        return " and ".join(self.ops) or "unknown"


@dataclass(frozen=True)
class Operation:
    """Equal dispatches of a call: of the same operations, code, arithmetic and traffic."""

    rows: tuple[ProfileRow, ...]

    @property
    def seconds(self) -> float:
        """The seconds of all of them in one call."""
        return fsum(row.seconds for row in self.rows)

    @property
    def share(self) -> float:
        """The share of the call."""
        return fsum(row.share for row in self.rows)

    @property
    def is_kernel(self) -> bool:
        """True for the code of a generated kernel, False for IREE's."""
        return self.rows[0].is_kernel

    @property
    def code(self) -> str:
        """The family of the generated kernel, or `IREE`."""
        return self.rows[0].code

    @property
    def title(self) -> str:
        """Its operations, at most three of them; ``unknown`` where the artifact does not tell."""
        names = [name for group in self.rows[0].ops for name in group.split("+")]
        shown = " and ".join(self.rows[0].ops) or "unknown"
        return shown if len(names) <= MOST_TITLED else few(names, "+", MOST_TITLED)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The model's names for it, as far as they are known."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.locations))

    @property
    def named(self) -> str:
        """The first of its nodes."""
        return few(self.nodes, ", ", _NAMED)

    @property
    def roofline(self) -> float | None:
        """The share of the roof that they reach together; None where not known."""
        known = [row.roofline for row in self.rows]
        if None in known or not self.seconds:
            return None
        return fsum((row.roofline or 0.0) * row.seconds for row in self.rows) / self.seconds


def few(names: Sequence[str], between: str, most: int) -> str:
    """Join the first names, and count the others."""
    left = len(names) - most
    return between.join(names[:most]) + (f" and {left} more" if left > 0 else "")


def operations_of(rows: Iterable[ProfileRow]) -> list[Operation]:
    """Join the rows of equal dispatches, the longest first."""
    found: dict[tuple[object, ...], list[ProfileRow]] = {}
    for row in rows:
        if row.is_dispatch:
            found.setdefault((row.ops, row.code, row.flops, row.traffic_bytes), []).append(row)
    joined = (Operation(tuple(equal)) for equal in found.values())
    return sorted(joined, key=lambda operation: -operation.seconds)


def uncovered(operations: Iterable[Operation]) -> list[Operation]:
    """Keep those that no generated kernel covers."""
    return [operation for operation in operations if operation.code == IREE]
