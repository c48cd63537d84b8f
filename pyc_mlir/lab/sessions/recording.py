"""Measurements into the benchmark database.

    record(store, measurement)

First the rows that the others refer to, then one transaction for each candidate, last the end of
the session: what was returned for is kept, and a session that was cut off lacks its end only.
Adding a measurement again changes nothing.
"""

from collections.abc import Iterator
from dataclasses import replace

from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import (
    CRASH,
    DISTURBED,
    EXPERIMENTAL,
    OK,
    QUARANTINED,
    WRONG,
    Prediction,
    Scope,
    Session,
    SessionEnd,
    Trace,
)
from pyc_mlir.lab.sessions.session import PROTOCOL, ChoiceResult, SessionResult

# Who is named as having taken a recipe from one state to another.
_BY = "measuring"
# As the model of a prediction: the costs in a compile's log, summed by the simulator.
COST_MODEL = "cost model"
_FAILURES = (WRONG, CRASH)


def session_of(measurement: SessionResult) -> Session:
    """Return the row of the session."""
    plan = measurement.plan
    return Session(
        measurement.place.id,
        measurement.nonce,
        PROTOCOL,
        plan.rounds,
        plan.seed,
        plan.processes,
        measurement.started,
        dict(measurement.probe_before),
    )


def record(store: EvidenceStore, measurement: SessionResult) -> list[str]:
    """Add a measurement; return the ids of its implementations in the order of the candidates.

    Raises PycError as `EvidenceStore.add`.
    """
    subject, session = measurement.subject, session_of(measurement)
    store.add_place(measurement.place)
    store.add(subject.graph, subject.workload, session)
    names = []
    for result in measurement.results:
        made = result.candidate.implementation(
            subject.graph,
            compile_seconds=result.compile_seconds,
            arena_bytes=result.arena_bytes,
            constant_bytes=result.constant_bytes,
            artifact_key=result.artifact_key,
        )
        store.add(made, *_traces(measurement, session.id, made.id, result))
        names.append(made.id)
        _predict(store, measurement, made.id, result)
        _quarantine(store, measurement, made.id, result)
    probe = {**measurement.probe_after, DISTURBED: float(bool(measurement.disturbed))}
    ended = measurement.ended, probe, measurement.steal, measurement.load
    store.add(SessionEnd(session.id, *ended))
    return names


def _traces(
    measurement: SessionResult, session_id: str, impl_id: str, result: ChoiceResult
) -> Iterator[Trace]:
    """Yield one for each process; one without samples for a candidate that has no times."""
    load, constants = measurement.subject.workload.id, measurement.plan.constants
    if result.status != OK:
        yield Trace(session_id, impl_id, load, 0, constants, result.status, result.reason)
        return
    names = {"session_id": session_id, "impl_id": impl_id, "workload_id": load}
    yield from (replace(t, **names, constants=constants) for t in result.processes)


def _predict(
    store: EvidenceStore, measurement: SessionResult, impl_id: str, result: ChoiceResult
) -> None:
    """Record the compile's expectation beside what was measured; the first prediction stands."""
    found = result.predicted
    if found is None or not found.seconds:
        return
    load, place = measurement.subject.workload.id, measurement.place.id
    numbers = (found.seconds, found.lo, found.hi, found.bytes)
    row = Prediction(COST_MODEL, impl_id, load, place, *numbers)
    # Another calibration of the same machine may predict another number.
    if store.get(Prediction, row.id) is None:
        store.add(row)


def _quarantine(
    store: EvidenceStore, measurement: SessionResult, impl_id: str, result: ChoiceResult
) -> None:
    """Quarantine a candidate that computed something else, or ended its process."""
    if result.status not in _FAILURES:
        return
    place, structure = measurement.place, measurement.subject.graph.structure_id
    scope = Scope(structure, hardware=place.hardware, toolchain=place.toolchain)
    known = store.states(impl_id=impl_id, lane=EXPERIMENTAL)
    if any(state.state == QUARANTINED and state.scope == scope for state in known):
        return
    why = f"{result.status}: {result.reason}"
    store.transition(impl_id, scope, EXPERIMENTAL, QUARANTINED, _BY, why)
