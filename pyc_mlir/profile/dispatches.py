"""The dispatches of a call: what an artifact tells of each, and the operations that they compute.

    artifact (decisions, memory report) -> a `KnownDispatch` for each, in the order of the run
    rows of a profile                   -> `Operation`s: equal dispatches as one, the longest first

Nothing is guessed: `assigned` leaves None if several dispatches share a symbol and the order of a
call is not the one that was recorded.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from pathlib import PurePath

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.memory import MemoryReport, from_bytes
from pyc_mlir.dialects.names import kernel_family, op_name
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.choices.evidence import Computes
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT

# Whose code a dispatch is, if it is no kernel's.
IREE = "IREE"
# Commands of a call that are no dispatches: fills and copies.
_COMMAND = "stream."
# In a location a name stands alone, and a file with line and column.
_NAME = re.compile(r'"((?:[^"\\]|\\.)*)"(?::(\d+):\d+)?')


@dataclass(frozen=True)
class KnownGroup:
    """Ops that were to become one kernel: the id that decisions name, and those of the ops.

    locations: names of the model's nodes, or files with lines, as far as the decisions tell.
    """

    name: str
    members: tuple[str, ...]
    chosen: str = ""
    knobs: str = ""
    locations: tuple[str, ...] = ()

    @property
    def ops(self) -> str:
        """The names of its ops: ``conv2d+add+relu``."""
        return "+".join(map(op_name, self.members))


@dataclass(frozen=True)
class KnownDispatch:
    """A dispatch as it was compiled; `sources` are canonical ids, empty where not known."""

    symbol: str
    seconds: float = 0.0
    flops: float = 0.0
    traffic_bytes: int = 0
    sources: tuple[str, ...] = ()

    @property
    def is_command(self) -> bool:
        """True for a fill or a copy, which IREE does without a dispatch."""
        return self.symbol.startswith(_COMMAND)


def family_of(symbol: str) -> str:
    """Return the family of a kernel's dispatch; `IREE` for IREE's own code."""
    return kernel_family(symbol) or IREE


def report_of(artifact: Artifact) -> MemoryReport:
    """Return the memory report, which lists the dispatches; an empty one if there is none."""
    return from_bytes(artifact.memory) if artifact.memory else MemoryReport()


def recorded(report: MemoryReport) -> list[KnownDispatch]:
    """Return the dispatches and commands of a call, in the order of the plans that run."""
    return [
        KnownDispatch(task.name, task.seconds, task.flops, task.traffic_bytes, task.sources)
        for region in report.regions
        for task in region.in_order
    ]


def assigned(symbols: Sequence[str], known: Sequence[KnownDispatch]) -> list[KnownDispatch | None]:
    """Return the facts of each dispatch of a call, by the symbols in the order of the run.

    By position if the order is the recorded one; else by symbol if that identifies it; else None.
    """
    dispatches = [k for k in known if not k.is_command]
    if [k.symbol for k in dispatches] == list(symbols):
        return list(dispatches)
    named: dict[str, set[KnownDispatch]] = {}
    for k in dispatches:
        named.setdefault(k.symbol, set()).add(k)
    return [next(iter(s)) if len(s := named.get(n, set())) == 1 else None for n in symbols]


def groups_of(decisions: Iterable[Decision]) -> dict[str, KnownGroup]:
    """Return the group of each op id that kernels were chosen for: its own id and its members'."""
    found: dict[str, KnownGroup] = {}
    for decision in decisions:
        if decision.site.pass_name != SELECT:
            continue
        group = _group(decision)
        found.update(dict.fromkeys((*group.members, group.name), group))
    return found


def _group(decision: Decision) -> KnownGroup:
    name = decision.site.op_id
    listed = (e.ops for e in decision.evidence if isinstance(e, Computes))
    knobs = (a.reason for a in decision.alternatives if a.name == decision.chosen)
    members = next(listed, (name,))
    places = places_of(decision.site.location)
    return KnownGroup(name, members, decision.chosen, next(knobs, ""), places)


def places_of(location: str) -> tuple[str, ...]:
    """Return the readable parts of an MLIR location: names of nodes, else files with lines."""
    found = _NAME.findall(location)
    names = [name for name, line in found if not line]
    return tuple(dict.fromkeys(names or (f"{PurePath(name).name}:{line}" for name, line in found)))


def groups_behind(sources: Sequence[str], groups: Mapping[str, KnownGroup]) -> list[KnownGroup]:
    """Return the groups that a dispatch computes in part; an op without a decision is its own."""
    return list(dict.fromkeys(groups.get(s) or KnownGroup(s, (s,)) for s in sources))


def ops_behind(sources: Sequence[str], groups: Mapping[str, KnownGroup]) -> tuple[str, ...]:
    """Return a dispatch's computation in words: whole groups, or their ops that are sources."""
    names = []
    for group in groups_behind(sources, groups):
        whole = group.name in sources
        members = [m for m in group.members if whole or m in sources]
        names.append("+".join(map(op_name, members)))
    return tuple(names)


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
    helped_seconds, waited_seconds: with helpers, and those of them that the caller waited for them.
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
    helped_seconds: float | None = None
    waited_seconds: float | None = None

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
