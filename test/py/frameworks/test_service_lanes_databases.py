"""Windows of an adapted program's calls in a database: drift, faults, refusals, restarts."""

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install '.[tune]'")

from clocked import Clocked
from modules import two_plans
from suites import selector

from pyc_mlir import Device
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import (
    STABLE,
    Feedback,
    Graph,
    Implementation,
    Scope,
    State,
    StateStep,
)
from pyc_mlir.lab.lanes.observer import ServiceLanes
from pyc_mlir.measure.environment import current_place
from pyc_mlir.runtime.program import Program
from pyc_mlir.runtime.selection.selector import replay

SYNC = Device("local-sync")
X = np.ones((8, 64), np.float32)
SECONDS = {"balanced": 1.0, "memory_first": 0.6}


@pytest.fixture
def store(tmp_path):
    with EvidenceStore.open(f"sqlite:///{tmp_path}/pyc.db") as opened:
        yield opened


def fresh() -> Program:
    return Program(two_plans().artifact, SYNC)


def promoted(store: EvidenceStore) -> str:
    """The recipe of `memory_first` in use here, as tuning would have left it."""
    graph_id = two_plans().artifact.manifest.graph_id
    graph = Graph(graph_id, "program", "s1-structure", "text", 3)
    recipe = Implementation(graph_id, {"pyc-fuse": "keep"}, origin="tuner")
    store.add(graph, recipe)
    place = current_place()
    scope = Scope("s1-structure", "", place.hardware, place.toolchain)
    steps = [
        StateStep(s, "test")
        for s in (State.CANDIDATE, State.VERIFIED, State.MEASURED, State.PROMOTED)
    ]
    store.walk(recipe.id, scope, STABLE, steps, "test")
    return recipe.id


def adapted(store, seconds, recipes=None) -> tuple[Program, Clocked, ServiceLanes]:
    program = fresh()
    lanes = ServiceLanes(store, program, recipes)
    selector = Clocked(dict(seconds), observer=lanes)
    program.adapt(selector)
    return program, selector, lanes


def call(program: Program, count: int) -> None:
    for _ in range(count):
        program(X)


def test_drift_in_service_suspends_the_recipe(store, tmp_path):
    recipe = promoted(store)
    program, learning, lanes = adapted(store, SECONDS, {"memory_first": recipe})
    call(program, 2500)
    assert lanes.drain() and not lanes.problems
    rows = store.find(Feedback, impl_id=recipe)
    assert rows and all(r.count == 50 and 0.59 < r.low["p10"] < 0.62 for r in rows)
    assert [s.state for s in store.states(impl_id=recipe)] == [State.PROMOTED]
    learning.seconds["memory_first"] = 0.75
    call(program, 4000)
    assert lanes.drain() and not lanes.problems
    (state,) = store.states(impl_id=recipe)
    assert state.state == State.SUSPENDED and state.reason.startswith("drift: ")
    assert state.decided_by == "service"
    kinds = [e.kind for e in learning.events()]
    assert kinds[:2] == ["promoted", "drifted"] and "quarantined" in kinds
    before = program.stats().served["memory_first"]
    call(program, 500)
    assert program.stats().served["memory_first"] == before, "a suspended recipe is not tried"
    learning.export(tmp_path / "log.jsonl")
    assert replay(tmp_path / "log.jsonl") == learning.events()
    lanes.close()
    again, _, lanes = adapted(store, SECONDS, {"memory_first": recipe})
    call(again, 200)
    assert again.stats().served["memory_first"] == 0, "the next process knows of it"
    lanes.close()


def test_a_slower_machine_suspends_nothing(store):
    recipe = promoted(store)
    program, learning, lanes = adapted(store, {"balanced": 1.0}, {"balanced": recipe})
    program.adapt(None)
    program.adapt(selector2 := Clocked({"balanced": 1.0}, observer=lanes), modes=False)
    call(program, 3000)
    selector2.seconds["balanced"] = 2.0
    call(program, 4000)
    assert lanes.drain() and not lanes.problems
    assert [e.kind for e in selector2.events()] == ["rebased"]
    assert [s.state for s in store.states(impl_id=recipe)] == [State.PROMOTED]
    assert learning.events() == ()
    lanes.close()


def test_a_fault_quarantines_an_arm_without_a_recipe(store):
    program, learning, lanes = adapted(store, SECONDS)
    call(program, 100)
    (route,) = learning._routes.values()
    learning.remove(route, 1, "WRONG_RESULT: a compared call differs")
    assert lanes.drain() and not lanes.problems
    (state,) = store.states(state=State.QUARANTINED)
    assert "a compared call differs" in state.reason
    (row,) = [r for r in store.find(Feedback, impl_id=state.impl_id) if r.rejected]
    assert row.count == 0
    lanes.close()
    again, _, lanes = adapted(store, SECONDS)
    call(again, 300)
    assert again.stats().served == {"balanced": 300, "memory_first": 0}
    lanes.close()


def test_what_was_learned_is_kept_in_the_database(store):
    program, _, lanes = adapted(store, SECONDS)
    call(program, 400)
    lanes.close()
    again, learning, lanes = adapted(store, SECONDS)
    call(again, 40)
    assert again.stats().served["memory_first"] >= 36
    assert [e.kind for e in learning.events()] == []
    lanes.close()


def test_a_refused_row_stops_no_call(store):
    seconds = {"balanced": 1.0, "memory_first": 1.1}
    program, _, lanes = adapted(store, seconds, {"balanced": "gone"})
    call(program, 1600)
    assert lanes.drain() and "EVIDENCE_CONFLICT" in lanes.problems[0]
    assert program.stats().calls == 1600
    lanes.close()


def test_the_soak_compares_and_replays(tmp_path):
    found = {r["metric"]: r["value"] for r in selector._soak(2000, tmp_path)}
    assert found["wrong answers of all, two runs"] == 0
    assert found["whole logs replayed with the same events"] == 1
