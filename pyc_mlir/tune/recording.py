"""From a measurement to rows of the database."""

from collections.abc import Iterator

from pyc_mlir.evidence.database.store import Store
from pyc_mlir.evidence.rows import OK, Session, SessionEnd, Trace
from pyc_mlir.measure.sessions.session import PROTOCOL, Measurement, Result


def record(store: Store, measured: Measurement) -> list[Trace]:
    """Add a session and what it refers to; return its traces, which are not added yet.

    The traces stand in the order of the candidates, each candidate's processes one after the other;
    one that failed has one trace with its status.
    """
    graph, plan, workload = measured.subject.graph, measured.plan, measured.subject.workload
    session = Session(
        store.add_place(measured.place),
        measured.nonce,
        PROTOCOL,
        plan.rounds,
        plan.seed,
        plan.processes,
        measured.started,
        measured.probe_before,
    )
    end = SessionEnd(
        session.id, measured.ended, measured.probe_after, measured.steal, measured.load
    )
    made = [
        r.candidate.implementation(
            graph,
            artifact_key=r.artifact_key,
            compile_seconds=r.compile_seconds,
            arena_bytes=r.arena_bytes,
            constant_bytes=r.constant_bytes,
        )
        for r in measured.results
    ]
    store.add(graph, workload, session, end, *made)
    return [
        trace
        for one, result in zip(made, measured.results, strict=True)
        for trace in _traces(result, session.id, one.id, workload.id, plan.constants)
    ]


def _traces(
    result: Result, session: str, impl: str, workload: str, constants: str
) -> Iterator[Trace]:
    if not result.processes or not result.ok:
        yield Trace(session, impl, workload, 0, constants, result.status, result.reason)
        return
    for p in result.processes:
        if p.status == OK:
            yield Trace(
                session, impl, workload, p.process, constants, calls=p.calls, wall=p.wall,
                cpu=p.cpu, peak_bytes=p.peak_bytes,
            )  # fmt: skip
        else:
            yield Trace(session, impl, workload, p.process, constants, p.status, p.reason)
