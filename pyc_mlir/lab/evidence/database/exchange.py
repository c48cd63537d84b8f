"""Between database and wisdom: what was measured out, candidates in.

Out go choices of single sites: implementations whose recipe names one pass, {pass: choice}, of a
work or a program; and whole programs, whose recipe names sites or is empty. Of a program, rows
stand under its exact id and under its structure, so that a retrained model has them: those of a
whole recipe only if it names works or passes too (`portable` in pipelines/choices/choices.py),
since sites are that program's own. A row is the median over processes of their medians, on CPU
time where programs run in the caller's thread, else by the wall clock.

In come candidates: implementations with that origin and a transition to `candidate`, no numbers,
since no file proves that they were measured.

Where verdicts compare choices of a graph, its rows are of those choices and of those sessions
alone: the quick sessions of a search direct the search and decide nothing. The interval of such a
choice is that of its ratio to the incumbent, on the incumbent's median: paired rounds tell apart
what medians of processes do not, also where other processes disturb the machine.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import sqlalchemy as sa

from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.database.tables import (
    ENVIRONMENTS,
    GRAPHS,
    IMPLEMENTATIONS,
    SESSIONS,
    TRACES,
)
from pyc_mlir.lab.evidence.rows import (
    CPU,
    DISTURBED,
    EXPERIMENTAL,
    PROGRAM,
    STABLE,
    WALL,
    Graph,
    Implementation,
    Scope,
    SessionEnd,
    State,
    Status,
    Verdict,
)
from pyc_mlir.pipelines.choices.wisdom import (
    WHOLE,
    Wisdom,
    WisdomRow,
    WisdomSubject,
    names_work,
    recipe_name,
)

# The states in which a recipe of a lane may decide.
_IN_USE = {STABLE: (State.PROMOTED,), EXPERIMENTAL: (State.MEASURED, State.SHADOW, State.PROMOTED)}
# Implementation, hardware, toolchain, context, constants.
_Key = tuple[str, str, str, str, str]


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
    store: EvidenceStore,
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
        .where(TRACES.c.status == Status.OK)
    )
    if graph_ids:
        query = query.where(IMPLEMENTATIONS.c.graph_id.in_(graph_ids))
    for name, wanted in (("hardware", hardware), ("toolchain", toolchain)):
        query = query.where(ENVIRONMENTS.c[name] == wanted) if wanted else query
    with store.reading() as connection:
        rows = connection.execute(query).mappings().all()
    return [Measured(**{**row, "recipe": parse_json(row["recipe"])}) for row in rows]


def export_wisdom(
    store: EvidenceStore,
    hardware: str = "",
    toolchain: str = "",
    least_sessions: int = 1,
    lane: str = "",
) -> Wisdom:
    """Return the known facts of choices and of whole recipes.

    Quarantined and retired implementations are left out (of a toolchain, where the state names
    one), and sessions on a machine that was disturbed, unless a verdict rests on them.

    hardware, toolchain: hashes to keep to; empty takes all. least_sessions: of each row. lane:
    ``stable`` keeps to recipes that are promoted there, ``experimental`` to those that are measured
    or further, each with the incumbent that it was compared with; empty takes all.
    """
    verdicts = store.find(Verdict)
    traces = measured(store, (), hardware, toolchain)
    if lane:
        traces = _of_lane(store, traces, verdicts, lane)
    groups: dict[_Key, list[Measured]] = {}
    for one in _usable(store, traces, verdicts):
        key = (one.impl_id, one.hardware, one.toolchain, one.context, one.constants)
        groups.setdefault(key, []).append(one)
    contexts = {p.context: p.context_facts for p in store.places().values()}
    # Programs that run in the caller's thread have CPU times.
    callers = {
        name
        for name, facts in contexts.items()
        if facts.get("device") == "local-sync" and facts.get("threads", 1) in (0, 1)
    }
    rows = {key: list(_rows(found, found[0].context in callers)) for key, found in groups.items()}
    kept = [r for found in _paired(rows, verdicts) for r in found if r.sessions >= least_sessions]
    recipes = [traces[0].recipe for traces in groups.values() if not _is_choice(traces[0].recipe)]
    return Wisdom.of(kept, _subjects(store, groups.values()), recipes)


def _is_choice(recipe: Mapping[str, str]) -> bool:
    """Return whether a recipe is the choice of one pass, not of sites."""
    return len(recipe) == 1 and not any(":" in key for key in recipe)


def _of_lane(
    store: EvidenceStore, traces: Sequence[Measured], verdicts: Sequence[Verdict], lane: str
) -> list[Measured]:
    """Traces of recipes in use in a lane, under the toolchain where they are, and of incumbents."""
    used = {
        (state.impl_id, state.scope.toolchain)
        for name in _IN_USE[lane]
        for state in store.states(lane=lane, state=name)
    }
    used |= {
        (v.incumbent, v.toolchain)
        for v in verdicts
        if used & {(v.candidate, ""), (v.candidate, v.toolchain)}
    }
    return [t for t in traces if used & {(t.impl_id, ""), (t.impl_id, t.toolchain)}]


def _usable(
    store: EvidenceStore, traces: Sequence[Measured], verdicts: Sequence[Verdict]
) -> list[Measured]:
    """Traces of single choices and of recipes of whole programs that may decide."""
    bad = {
        (s.impl_id, s.scope.toolchain)
        for state in (State.QUARANTINED, State.RETIRED)
        for s in store.states(state=state)
    }
    noisy = {e.session_id for e in store.find(SessionEnd) if e.probe.get(DISTURBED)}
    judged = {session for v in verdicts for session in v.sessions}
    compared = {impl for v in verdicts for impl in (v.candidate, v.incumbent)}
    graphs = {t.graph_id for t in traces if t.session_id in judged and t.impl_id in compared}

    def decides(trace: Measured) -> bool:
        is_known = _is_choice(trace.recipe) or trace.kind == PROGRAM
        if not is_known or bad & {(trace.impl_id, where) for where in ("", trace.toolchain)}:
            return False
        if trace.graph_id in graphs:
            return trace.session_id in judged and trace.impl_id in compared
        return trace.session_id not in noisy

    return [trace for trace in traces if decides(trace)]


def _paired(
    rows: Mapping[_Key, list[WisdomRow]], verdicts: Sequence[Verdict]
) -> Iterator[list[WisdomRow]]:
    """Yield rows with the intervals of verdicts on them, where there are any."""
    against = {(v.candidate, v.hardware, v.toolchain): v for v in verdicts}
    incumbents = {(v.incumbent, v.hardware, v.toolchain) for v in verdicts}
    for key, own in rows.items():
        verdict = against.get(key[:3])
        base = [] if verdict is None else rows.get((verdict.incumbent, *key[1:]), [])
        seconds = {row.subject: row.seconds for row in base}
        if verdict is not None and all(row.subject in seconds for row in own):
            # As its ratio to the incumbent, which takes so long.
            found = (verdict.ratio, verdict.lo, verdict.hi)
            times = ([seconds[row.subject] * ratio for ratio in found] for row in own)
            yield [
                replace(row, seconds=at, lo=low, hi=high)
                for row, (at, low, high) in zip(own, times, strict=True)
            ]
        elif key[:3] in incumbents:
            yield [replace(r, lo=r.seconds, hi=r.seconds) for r in own]
        else:
            yield own


def _rows(traces: Sequence[Measured], by_cpu: bool) -> Iterable[WisdomRow]:
    """Yield one row of a work, two of a program: by its exact id and by its structure."""
    cpu = [t.cpu_p50 for t in traces if t.cpu_p50]
    clock, times = (CPU, cpu) if by_cpu and len(cpu) == len(traces) else (WALL, [])
    times = times or [t.p50 for t in traces]
    if min(times) <= 0:
        return
    one = traces[0]
    pass_name, choice = WHOLE, recipe_name(one.recipe)
    subjects = [one.graph_id, one.structure_id]
    if _is_choice(one.recipe):
        ((pass_name, choice),) = one.recipe.items()
    elif one.recipe and not any(":" not in key or names_work(key) for key in one.recipe):
        subjects.pop()
    for subject in dict.fromkeys(subjects):
        where = (one.hardware, one.toolchain, one.context, one.constants, clock)
        seconds = (float(np.median(times)), min(times), max(times))
        counts = (len({t.session_id for t in traces}), len(times))
        yield WisdomRow(subject, pass_name, choice, *where, *seconds, *counts)


def _subjects(
    store: EvidenceStore, groups: Iterable[Sequence[Measured]]
) -> dict[str, WisdomSubject]:
    wanted = {(traces[0].graph_id, traces[0].normalizer) for traces in groups}
    return {
        graph.graph_id: WisdomSubject(
            graph.kind, graph.structure_id, graph.text, graph.ops, graph.normalizer
        )
        for graph in store.find(Graph)
        if (graph.graph_id, graph.normalizer) in wanted
    }


def import_wisdom(store: EvidenceStore, wisdom: Wisdom) -> int:
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
            if row.pass_name == WHOLE:
                recipe = wisdom.recipes.get(row.choice, {})
            one = Implementation(
                graph.graph_id, recipe, row.choice, origin=origin, normalizer=graph.normalizer
            )
            made[one.id] = (one, Scope(structure=graph.structure_id))
    known = {i.id for i in store.find(Implementation)}
    new = {name: value for name, value in made.items() if name not in known}
    store.add(*graphs.values(), *(one for one, _ in new.values()))
    for one, scope in new.values():
        store.transition(one.id, scope, EXPERIMENTAL, State.CANDIDATE, "import", origin)
    return len(new)
