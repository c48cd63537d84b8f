"""The facts of an artifact on each dispatch: its source ops, code, operations and bytes.

Comes in: an artifact (decisions, memory report). Goes out: a `KnownDispatch` for each dispatch of a
call in the order in which they run. Nothing is guessed: `assigned` leaves None if several
dispatches share a symbol and the order of a call is not the one that was recorded.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.memory import MemoryReport, TaskReport, from_bytes
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
    return [_known(task) for region in report.regions for task in region.in_order]


def _known(task: TaskReport) -> KnownDispatch:
    return KnownDispatch(task.name, task.seconds, task.flops, task.traffic_bytes, task.sources)


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
