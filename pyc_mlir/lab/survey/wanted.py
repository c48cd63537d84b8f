"""Which works of a program are worth measuring, and what the database lacks of them.

    works = wanted_works(source, inputs, options)           the most seconds first
    known_choices(store, work.graph, work.choices, place, "warm")

Comes in: a program as `compile` takes it. Goes out: `WantedWork`, one for each work of its kernel
groups, with the alternatives that the compile was offered there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import optimized
from pyc_mlir.compilation.options import Options
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.identity import works_of
from pyc_mlir.lab.evidence.rows import (
    DISTURBED,
    OK,
    TIMEOUT,
    Graph,
    Implementation,
    Session,
    SessionEnd,
    Trace,
)
from pyc_mlir.measure.environment import Environments
from pyc_mlir.pipelines.choices.policies import MIN_PROCESSES, MIN_SESSIONS

KERNELS = "pyc-select-kernels"


@dataclass(frozen=True)
class WantedWork:
    """A work of a program: its text, the choices at its sites, and what it is predicted to take.

    chosen: what the compile chose. seconds: of all sites of the program that have this work.
    """

    graph: Graph
    choices: tuple[str, ...]
    chosen: str
    seconds: float

    @property
    def ops(self) -> str:
        """Its ops and the type of its result, for people."""
        lines = [line.partition(") ")[2] for line in self.graph.text.splitlines()[1:]]
        made = [line for line in lines if not line.startswith(("input ", "constant ", "read by"))]
        names = "+".join(line.split("{")[0].split(" ")[0] for line in made)
        return f"{names} -> {made[-1].rpartition(' : ')[2] if made else '?'}"


def wanted_works(source: Any, inputs: Sequence[Any] | None, options: Options) -> list[WantedWork]:
    """Return the works of a program, by predicted seconds; none of a program that enters at IREE.

    Raises PycError as a compile does.
    """
    with optimized(Job.of(source, inputs, options)) as (made, context):
        if made.module is None:
            return []
        graphs = {found.graph.graph_id: found.graph for found in works_of(made.module)}
        decisions = [d for d in context.choices.log if d.site.pass_name == KERNELS]
    seconds: dict[str, float] = {}
    for d in decisions:
        costs = [a.cost.seconds for a in d.alternatives if a.name == d.chosen and a.cost]
        seconds[d.site.work] = seconds.get(d.site.work, 0.0) + sum(costs)
    first = {d.site.work: d for d in reversed(decisions)}
    works = [
        WantedWork(
            graphs[name],
            tuple(a.name for a in first[name].alternatives),
            first[name].chosen,
            seconds[name],
        )
        for name in dict.fromkeys(d.site.work for d in decisions)
        if name in graphs
    ]
    return sorted(works, key=lambda work: (-work.seconds, work.graph.graph_id))


@dataclass(frozen=True)
class Enough:
    """How much of a choice must be known until it is not measured again."""

    sessions: int = MIN_SESSIONS
    processes: int = MIN_PROCESSES


@dataclass(frozen=True)
class MeasuredVariant:
    """The database's facts on one way to compile a graph, in one place and state of constants.

    sessions, processes: on a machine that was not disturbed. failure: the status and reason of a
    candidate that will not do better by being tried again.
    """

    sessions: int = 0
    processes: int = 0
    disturbed: int = 0
    failure: str = ""

    def is_enough(self, enough: Enough) -> bool:
        """Return whether there is nothing to measure."""
        return bool(self.failure) or (
            self.sessions >= enough.sessions and self.processes >= enough.processes
        )


def known_of(
    store: EvidenceStore, made: Implementation, place: Environments, constants: str
) -> MeasuredVariant:
    """Return the measurements of an implementation in this place."""
    traces = [t for t in store.find(Trace, impl_id=made.id) if t.constants == constants]
    sessions: set[str] = set()
    noisy: set[str] = set()
    processes, failure = 0, ""
    for trace in traces:
        session = store.get(Session, trace.session_id)
        if session is None or session.env_id != place.id:
            continue
        if trace.status != OK:
            # A process that took too long may have been held up by others.
            failure = f"{trace.status}: {trace.reason}" if trace.status != TIMEOUT else failure
        elif _was_disturbed(store, session):
            noisy.add(session.id)
        else:
            sessions.add(session.id)
            processes += 1
    return MeasuredVariant(len(sessions), processes, len(noisy), failure)


def _was_disturbed(store: EvidenceStore, session: Session) -> bool:
    ends = store.find(SessionEnd, session_id=session.id)
    return any(end.probe.get(DISTURBED) for end in ends)


def choice_recipe(choice: str) -> dict[str, str]:
    """Return the recipe by which a work is compiled with one choice."""
    return {KERNELS: choice}


def known_choices(
    store: EvidenceStore, graph: Graph, choices: Sequence[str], place: Environments, constants: str
) -> dict[str, MeasuredVariant]:
    """Return by choice what the database has of a work in this place."""
    return {
        choice: known_of(
            store,
            Implementation(graph.graph_id, choice_recipe(choice), normalizer=graph.normalizer),
            place,
            constants,
        )
        for choice in choices
    }
