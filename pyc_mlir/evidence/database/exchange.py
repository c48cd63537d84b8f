"""Between database and wisdom: what was measured out, candidates in.

Out go choices of single sites: implementations whose recipe names one pass, {pass: choice}, of a
work or a program. Of a program's, rows stand under its exact id and under its structure, so that a
retrained model has them. A row is the median over processes of their medians, on CPU time where
programs run in the caller's thread, else by the wall clock.

In come candidates: implementations with that origin and a transition to `candidate`, no numbers,
since no file proves that they were measured.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import sqlalchemy as sa

from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.evidence.database.store import Store
from pyc_mlir.evidence.database.tables import (
    ENVIRONMENTS,
    GRAPHS,
    IMPLEMENTATIONS,
    SESSIONS,
    TRACES,
)
from pyc_mlir.evidence.environment import Place
from pyc_mlir.evidence.rows import DISTURBED, OK, Graph, Implementation, SessionEnd
from pyc_mlir.evidence.states import CANDIDATE, EXPERIMENTAL, QUARANTINED, Scope
from pyc_mlir.pipelines.choices.wisdom import Subject, Wisdom, WisdomRow

CPU, WALL = "cpu", "wall"


@dataclass(frozen=True)
class Measured:
    """One trace of an implementation with one choice, and where it was taken. Times in seconds."""

    graph_id: str
    normalizer: int
    structure_id: str
    kind: str
    impl_id: str
    recipe: Mapping[str, str]
    hardware: str
    toolchain: str
    context: str
    session_id: str
    constants: str
    p50: float
    cpu_p50: float | None


def measured(
    store: Store,
    graph_ids: Sequence[str] = (),
    hardware: str = "",
    toolchain: str = "",
) -> list[Measured]:
    """Traces with numbers, of these graphs (none: all) and environments (empty: all)."""
    names = ("graph_id", "normalizer", "structure_id", "kind")
    query = (
        sa.select(
            *(GRAPHS.c[name] for name in names),
            TRACES.c.impl_id,
            IMPLEMENTATIONS.c.recipe,
            *(ENVIRONMENTS.c[name] for name in ("hardware", "toolchain", "context")),
            *(TRACES.c[name] for name in ("session_id", "constants", "p50", "cpu_p50")),
        )
        .join(IMPLEMENTATIONS, TRACES.c.impl_id == IMPLEMENTATIONS.c.id)
        .join(
            GRAPHS,
            sa.and_(
                IMPLEMENTATIONS.c.graph_id == GRAPHS.c.graph_id,
                IMPLEMENTATIONS.c.normalizer == GRAPHS.c.normalizer,
            ),
        )
        .join(SESSIONS, TRACES.c.session_id == SESSIONS.c.id)
        .join(ENVIRONMENTS, SESSIONS.c.env_id == ENVIRONMENTS.c.id)
        .where(TRACES.c.status == OK)
    )
    if graph_ids:
        query = query.where(IMPLEMENTATIONS.c.graph_id.in_(graph_ids))
    for name, wanted in (("hardware", hardware), ("toolchain", toolchain)):
        query = query.where(ENVIRONMENTS.c[name] == wanted) if wanted else query
    with store.reading() as connection:
        rows = connection.execute(query).mappings().all()
    return [Measured(**{**row, "recipe": parse_json(row["recipe"])}) for row in rows]


def export_wisdom(
    store: Store, hardware: str = "", toolchain: str = "", least_sessions: int = 1
) -> Wisdom:
    """What is known of choices of single sites.

    A quarantine that names a toolchain holds for rows of that toolchain. Sessions on a machine that
    was disturbed are left out.

    hardware, toolchain: hashes to keep to; empty takes all. least_sessions: of each row.
    """
    bad = {(state.impl_id, state.scope.toolchain) for state in store.states(state=QUARANTINED)}
    ends = store.find(SessionEnd)
    noisy = {end.session_id for end in ends if end.probe.get(DISTURBED)}
    groups: dict[tuple[str, ...], list[Measured]] = {}
    for one in measured(store, (), hardware, toolchain):
        is_bad = bad & {(one.impl_id, t) for t in ("", one.toolchain)}
        if len(one.recipe) == 1 and not is_bad and one.session_id not in noisy:
            key = (one.impl_id, one.hardware, one.toolchain, one.context, one.constants)
            groups.setdefault(key, []).append(one)
    callers = {p.context for p in store.places().values() if _runs_in_caller(p)}
    rows = [
        row
        for traces in groups.values()
        for row in _rows(traces, traces[0].context in callers)
        if row.sessions >= least_sessions
    ]
    return Wisdom.of(rows, _subjects(store, groups.values()))


def _runs_in_caller(place: Place) -> bool:
    facts = place.context_facts
    return facts.get("device") == "local-sync" and facts.get("threads", 1) in (0, 1)


def _rows(traces: Sequence[Measured], by_cpu: bool) -> Iterable[WisdomRow]:
    """One row of a work, two of a program: by its exact id and by its structure."""
    cpu = [t.cpu_p50 for t in traces if t.cpu_p50]
    clock, times = (CPU, cpu) if by_cpu and len(cpu) == len(traces) else (WALL, [])
    times = times or [t.p50 for t in traces]
    if min(times) <= 0:
        return
    one = traces[0]
    ((pass_name, choice),) = one.recipe.items()
    for subject in dict.fromkeys((one.graph_id, one.structure_id)):
        yield WisdomRow(
            subject,
            pass_name,
            choice,
            one.hardware,
            one.toolchain,
            one.context,
            one.constants,
            clock,
            float(np.median(times)),
            min(times),
            max(times),
            len({t.session_id for t in traces}),
            len(times),
        )


def _subjects(store: Store, groups: Iterable[Sequence[Measured]]) -> dict[str, Subject]:
    wanted = {(traces[0].graph_id, traces[0].normalizer) for traces in groups}
    return {
        graph.graph_id: Subject(
            graph.kind, graph.structure_id, graph.text, graph.ops, graph.normalizer
        )
        for graph in store.find(Graph)
        if (graph.graph_id, graph.normalizer) in wanted
    }


def import_wisdom(store: Store, wisdom: Wisdom) -> int:
    """Add the choices of wisdom as candidates; how many implementations were new.

    Rows whose subject has no text are left out: evidence is kept under texts, not under hashes.
    Raises PycError (EVIDENCE_CONFLICT) where a text contradicts the database's.
    """
    origin = f"wisdom {wisdom.hash[:16]}"
    graphs = {
        name: Graph(name, s.kind, s.structure_id, s.text, s.ops, s.normalizer)
        for name, s in wisdom.subjects.items()
    }
    made: dict[str, tuple[Implementation, Scope]] = {}
    for row in wisdom.rows:
        graph = graphs.get(row.subject)
        if graph is not None:
            recipe = {row.pass_name: row.choice}
            one = Implementation(
                graph.graph_id, recipe, row.choice, origin=origin, normalizer=graph.normalizer
            )
            made[one.id] = (one, Scope(structure=graph.structure_id))
    known = {i.id for i in store.find(Implementation)}
    new = {name: value for name, value in made.items() if name not in known}
    store.add(*graphs.values(), *(one for one, _ in new.values()))
    for one, scope in new.values():
        store.transition(one.id, scope, EXPERIMENTAL, CANDIDATE, "import", origin)
    return len(new)
