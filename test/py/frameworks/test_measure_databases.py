"""Measurements in the database: recorded, surveyed, exported, and used by a compile; on SQLite."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import FULL

from pyc_mlir.pipelines.choices.evidence import MeasuredRow
from pyc_mlir.pipelines.choices.policies import MIN_SESSIONS
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT as KERNELS

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install '.[tune]'")

from suites.simulated import Failed, Simulated

from pyc_mlir import nn
from pyc_mlir.api import build
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.options import make_options
from pyc_mlir.lab.evidence.database.exchange import export_wisdom
from pyc_mlir.lab.evidence.database.store import EvidenceStore, problems
from pyc_mlir.lab.evidence.rows import (
    COLD,
    WARM,
    Graph,
    Prediction,
    Session,
    SessionEnd,
    Status,
    Trace,
    Workload,
)
from pyc_mlir.lab.sessions.processes import ALLOCATOR, SessionPlan
from pyc_mlir.lab.sessions.session import MeasuredChoice, MeasuredProgram, record
from pyc_mlir.lab.simulation.residuals import Width
from pyc_mlir.lab.simulation.simulator import Estimate
from pyc_mlir.lab.tune.search import kernel_works
from pyc_mlir.lab.tune.survey import Survey, Surveyed
from pyc_mlir.measure.environment import current_place
from pyc_mlir.tools import pyc_tune
from pyc_mlir.tools.tune import measuring

HERE = current_place(allocator=ALLOCATOR)
X = np.zeros((8, 32), np.float32)
SUBJECT = MeasuredProgram(Graph("p", "program", "s1-p", "graph", 1), Workload("p"))
PLAN = SessionPlan(rounds=4, processes=3)


def model(x):
    w = np.linspace(-1, 1, 1024, dtype=np.float32).reshape(32, 32)
    return nn.softmax(nn.relu(x @ w + w[0]) @ w)


def works_of_model():
    return kernel_works(Job.of(model, [X], make_options()))


PROGRAM = Surveyed("model", model, [X])


@pytest.fixture
def store(tmp_path):
    with EvidenceStore.open(f"sqlite:///{tmp_path}/pyc.db") as opened:
        yield opened


def slow_kernels(subject, candidate):
    """IREE's code takes half as long as any kernel."""
    return 1e-3 if "iree" in candidate.recipe.values() else 2e-3


def survey(store, cost=slow_kernels, **changes):
    return Survey(store, Simulated(cost, noise=0.01, place=HERE), PLAN, place=HERE, **changes)


def test_a_measurement_is_recorded_once(store):
    costs = {"a": 1e-3, "b": Failed("wrong", "off by 1"), "c": Failed("refused", "no")}

    def cost(subject, candidate):
        return costs[candidate.recipe["pass"]]

    names = [MeasuredChoice({"pass": name}) for name in "abc"]
    found = Simulated(cost).measure(SUBJECT, names, PLAN)
    ids = record(store, found)
    assert record(store, found) == ids and list(problems(store)) == []
    traces = store.find(Trace)
    assert sorted(t.status for t in traces) == [Status.OK] * 3 + [Status.REFUSED, Status.WRONG]
    assert {t.reason for t in traces if t.status != Status.OK} == {"off by 1", "no"}
    (session,), (end,) = store.find(Session), store.find(SessionEnd)
    assert end.session_id == session.id and session.processes == 3
    (state,) = store.states()
    assert (state.impl_id, state.state) == (ids[1], "quarantined") and "off by 1" in state.reason


def test_predictions_are_kept_beside_what_was_measured(store):
    def expected(seconds):
        width = Width()
        return Estimate(seconds, seconds / 2, seconds * 2, 64, True, "", width, 0, seconds, 0)

    candidates = [MeasuredChoice({"pass": name}) for name in "ab"]
    found = Simulated(lambda s, c: 1e-3).measure(SUBJECT, candidates, PLAN)
    first, second = found.results
    for seconds in (1e-3, 9e-3):
        results = (replace(first, predicted=expected(seconds)), second)
        (name, _) = record(store, replace(found, results=results))
    # The first one stands: another calibration may expect something else of the same recipe.
    (row,) = store.find(Prediction)
    assert (row.impl_id, row.workload_id, row.env_id) == (name, SUBJECT.workload.id, found.place.id)
    assert (row.seconds, row.lo, row.hi, row.bytes) == (1e-3, 5e-4, 2e-3, 64)
    assert list(problems(store)) == []


def test_a_disturbed_session_stands_but_decides_nothing(store):
    candidates = [MeasuredChoice({"pass": "a"})]
    record(store, Simulated(lambda s, c: 1e-3).measure(SUBJECT, candidates, PLAN))
    noisy = Simulated(lambda s, c: 1e-4, disturbed=("others used 50%",))
    record(store, noisy.measure(SUBJECT, candidates, SessionPlan(seed=1)))
    rows = {(row.seconds, row.sessions) for row in export_wisdom(store).rows}
    assert rows == {(1e-3, 1)} and len(store.find(Session)) == 2


def test_a_survey_measures_what_is_lacking_and_nothing_twice(store):
    works = works_of_model()
    assert any(len(w.names) > 1 for w in works)
    lines = list(survey(store).run([PROGRAM]))
    assert lines[0].startswith(f"model: {len(works)} works")
    assert lines[-1] == f"{2 * len(works)} sessions measured"
    for row in export_wisdom(store).rows:
        assert (row.sessions, row.processes) == (2, 6)
    assert list(survey(store).run([PROGRAM]))[-1] == "0 sessions measured"


def test_both_states_of_constants_and_whole_programs(store):
    list(survey(store, constants=(WARM, COLD), whole=True).run([PROGRAM]))
    assert {t.constants for t in store.find(Trace)} == {WARM, COLD}
    assert {g.kind for g in store.find(Graph)} == {"work", "program"}
    done = survey(store, constants=(WARM, COLD), whole=True)
    assert list(done.run([PROGRAM]))[-1] == "0 sessions measured"


def test_a_budget_ends_it_and_the_next_run_goes_on(store):
    ticks = iter(range(100))
    first = survey(store, clock=lambda: float(next(ticks)))
    lines = list(first.run([PROGRAM], budget_seconds=2))
    assert "the budget is spent" in lines[-1] and first.measured == 1
    rest = survey(store)
    list(rest.run([PROGRAM]))
    assert first.measured + rest.measured == 2 * len(works_of_model())


def test_failures_are_not_tried_again_and_programs_that_are_none_are_skipped(store):
    def cost(subject, candidate):
        return 1e-3 if "iree" in candidate.recipe.values() else Failed(Status.WRONG, "off by 1")

    lines = list(survey(store, cost).run([PROGRAM, Surveyed("none", "no such.onnx")]))
    assert any("off by 1" in line for line in lines)
    assert any(line.startswith("skipped none: ") for line in lines)
    assert any(line.startswith("skipped w1-") and line.endswith("off by 1") for line in lines)
    wrong = [t for t in store.find(Trace) if t.status == Status.WRONG]
    assert len(wrong) == len({t.impl_id for t in wrong})


def chosen(artifact) -> list[str]:
    return [d.chosen for d in artifact.decisions if d.site.pass_name == KERNELS]


def test_measured_choices_reach_the_compile(store):
    plain = build(model, [X], make_options())
    assert "iree" not in chosen(plain)
    list(survey(store).run([PROGRAM]))
    wisdom = export_wisdom(store, HERE.hardware, HERE.toolchain)
    made = build(model, [X], make_options(policy="fastest", wisdom=wisdom))
    assert set(chosen(made)) == {"iree"}
    for d in made.decisions:
        if d.site.pass_name == KERNELS:
            (line,) = [e for e in d.grounds if isinstance(e, MeasuredRow)]
            assert (line.sessions, line.processes) == (2, 6)
            assert (line.constants, line.wisdom) == ("warm", wisdom.label)


def test_measured_choices_confirm_the_compile(store):
    def cost(subject, candidate):
        return 3e-3 - slow_kernels(subject, candidate)

    list(survey(store, cost).run([PROGRAM]))
    wisdom = export_wisdom(store, HERE.hardware, HERE.toolchain)
    made = build(model, [X], make_options(policy="fastest", wisdom=wisdom))
    assert chosen(made) == chosen(build(model, [X], make_options()))


def test_the_whole_way_with_real_times(store, tmp_path, capsys, monkeypatch):
    """One small work, measured by this machine: what the compile does, its log grounds on it."""
    path = tmp_path / "model.mlir"
    path.write_text(
        "func.func @main(%x: tensor<8x64xf32>) -> tensor<8x64xf32> {\n"
        '  %y = "pyc.softmax"(%x) : (tensor<8x64xf32>) -> tensor<8x64xf32>\n'
        "  return %y : tensor<8x64xf32>\n}\n"
    )
    monkeypatch.setattr("pyc_mlir.measure.machine.token_path", lambda: tmp_path / "token")
    monkeypatch.setattr("pyc_mlir.measure.machine.disturbances", lambda *a, **k: ())
    monkeypatch.setattr("pyc_mlir.lab.sessions.local.MOST_APART", 1e9)
    flags = ["--db", store.url, "profile", str(path), "--rounds", "2", "--processes", "3"]
    assert pyc_tune.main(flags) == 0
    out = capsys.readouterr().out
    assert "1 works, 1 with several choices" in out and "2 sessions measured" in out
    wisdom = export_wisdom(store, HERE.hardware, HERE.toolchain)
    assert {row.choice for row in wisdom.rows} >= {"iree", "rows:softmax"}
    assert all((row.sessions, row.processes) == (2, 6) for row in wisdom.rows)
    made = build(path, None, make_options(policy="fastest", wisdom=wisdom))
    (decision,) = [d for d in made.decisions if d.site.pass_name == KERNELS]
    assert any(f"[{wisdom.label}]" in str(fact) for fact in decision.grounds)
    assert any(isinstance(fact, MeasuredRow) for fact in decision.grounds)


KILLED = """
import sys, time
from test_measure_databases import HERE, PLAN, PROGRAM, slow_kernels
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from suites.simulated import Simulated
from pyc_mlir.lab.tune.survey import Survey

with EvidenceStore.open(sys.argv[1]) as store:
    survey = Survey(store, Simulated(slow_kernels, place=HERE), PLAN, place=HERE)
    for line in survey.run([PROGRAM]):
        print(line, flush=True)
        time.sleep(0.02)
"""


def test_a_survey_that_is_killed_goes_on_where_it_was(tmp_path):
    """Killed at random moments; every session that was told of is there, nothing is doubled."""
    url, chance = f"sqlite:///{tmp_path}/pyc.db", random.Random(0)
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    command, env = [sys.executable, "-c", KILLED, url], {**os.environ, "PYTHONPATH": path}
    reported = 0
    for _ in range(30 if FULL else 3):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as child:
            assert child.stdout is not None
            assert "works" in child.stdout.readline()
            time.sleep(chance.random() * 0.15)
            child.send_signal(signal.SIGKILL)
            reported += sum(": default " in line or " constants " in line for line in child.stdout)
    with EvidenceStore.open(url) as store:
        assert list(problems(store)) == [] and len(store.find(SessionEnd)) >= reported
        list(survey(store).run([PROGRAM]))
        assert list(survey(store).run([PROGRAM]))[-1] == "0 sessions measured"
        for row in export_wisdom(store).rows:
            assert row.sessions >= MIN_SESSIONS and row.processes == 3 * row.sessions
        keys = [(t.session_id, t.impl_id, t.process, t.constants) for t in store.find(Trace)]
        assert len(keys) == len(set(keys))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10min", 600), ("2h", 7200), ("1.5", 1.5), (None, None)]
)
def test_budgets(text, seconds):
    assert measuring.seconds_of(text) == seconds


@pytest.mark.parametrize("wrong", [["--budget", "soon"], ["--constants", "hot"], ["--rounds", "0"]])
def test_options_that_are_none(wrong, store, capsys):
    assert pyc_tune.main(["--db", store.url, "profile", "model.onnx", *wrong]) == 1
    assert "[BAD_ARGUMENT]" in capsys.readouterr().err
