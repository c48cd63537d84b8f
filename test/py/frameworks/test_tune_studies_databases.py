"""Studies on simulated measurements: what they find, killed at any moment, in any process."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import FULL

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install '.[tune]'")

import simulated_studies
from simulated_studies import Costs, known_of, prepared, setting_of, studied, work
from suites.simulated import Simulated

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.lab.evidence.database.store import DONE, LEASED, WAITING, EvidenceStore, problems
from pyc_mlir.lab.evidence.rows import State, Study, Trace, Verdict
from pyc_mlir.lab.tune.study import StudyBudget, TrialStage, asked_of
from pyc_mlir.lab.tune.tuner import run_study
from pyc_mlir.lab.tune.workers import require_same_environment, work_once
from pyc_mlir.measure.environment import Environments

WORKS = tuple(map(work, range(3)))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'pyc.db'}"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return studied(f"sqlite:///{folder / 'pyc.db'}", setting_of(WORKS), Costs())


def test_a_study_finds_the_best_and_keeps_it(url):
    ledger, results = studied(url, setting_of(WORKS, 96), Costs())
    assert [r.best for r in results] == [
        "gemm:matmul[rows=1,columns=64,unroll=2]",
        "gemm:matmul[columns=64,unroll=2]",
        "gemm:matmul[rows=4,columns=64,unroll=2]",
    ]
    assert all(r.verdict is not None and r.verdict.processes >= 5 for r in results)
    with EvidenceStore.open(url) as store:
        states = {(s.state) for s in store.states()}
        measured = store.states(state=State.MEASURED)
        verdicts = store.find(Verdict)
        assert states <= {State.MEASURED, State.QUARANTINED}
        assert {s.impl_id for s in measured} == {v.candidate for v in verdicts}
        assert len(verdicts) == 3 and not list(problems(store))
        # Verdicts rest on two sessions that the search had no part in.
        searched = {o.session for o in ledger.outcomes if o.asked.stage is TrialStage.SEARCH}
        assert all(len(v.sessions) == 2 and not searched & {*v.sessions} for v in verdicts)


def test_a_finished_study_measures_nothing_again(url):
    def unasked(subject, candidate):
        raise AssertionError("nothing is left to measure")

    ledger, results = studied(url, setting_of(WORKS), Costs())
    again, same = studied(url, setting_of(WORKS), unasked)
    assert known_of(same) == known_of(results)
    assert len(again.trials) == len(ledger.trials)


def test_what_is_wrong_is_quarantined(url):
    works = (work(3),)
    _, (result,) = studied(url, setting_of(works, 96), Costs())
    assert result.wrong == ("gemm:matmul[rows=8,columns=64,unroll=4]",)
    with EvidenceStore.open(url) as store:
        (bad,) = store.states(state=State.QUARANTINED)
        assert "off by 1" in bad.reason


@pytest.mark.parametrize("workers", (1, 3))
def test_any_number_of_workers_finds_the_same(url, uninterrupted, workers):
    _, results = studied(url, setting_of(WORKS), Costs(), workers=workers)
    assert known_of(results) == known_of(uninterrupted[1])


def test_killed_at_random_moments(url, uninterrupted, tmp_path):
    """No acknowledged row is lost, and the end is that of a study that was not killed."""
    chance, reported = random.Random(0), tmp_path / "acknowledged"
    kills, env = 25 if FULL else 4, {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, simulated_studies.__file__, url, str(reported), "0.03"]
    for number in range(kills):
        before = len(reported.read_text().splitlines()) if reported.exists() else 0
        workers = 1 + number % 2
        running = subprocess.Popen([*command, str(workers)], env=env)
        # Each start gets further than what the last kill left open, so that no trial is killed
        # as often as gives it up.
        while (
            not reported.exists() or len(reported.read_text().splitlines()) < before + 2 * workers
        ):
            if running.poll() is not None:
                break
            time.sleep(0.01)
        time.sleep(chance.random() * 0.15)
        running.send_signal(signal.SIGKILL)
        running.wait()
    with EvidenceStore.open(url) as store:
        lines = [line.split() for line in reported.read_text().splitlines() if line.count(" ") == 1]
        (study,) = {t.study_id for t in _trials(store)}
        done = {t.config_hash for t in store.trials(study) if t.state == DONE}
        traces = {t.id for t in store.find(Trace)}
        assert {name for name, _ in lines} <= done
        assert {trace for _, trace in lines if len(trace) == 64} <= traces
    _, results = studied(url, setting_of(WORKS), Costs())
    assert known_of(results) == known_of(uninterrupted[1])


def _trials(store):
    return [trial for study in store.find(Study) for trial in store.trials(study.id)]


def test_an_interrupt_gives_the_trial_back(url):
    def interrupted(subject, candidate):
        raise KeyboardInterrupt

    setting = setting_of(WORKS)
    with EvidenceStore.open(url) as store:
        job = prepared(store, setting, Simulated(interrupted))
        store.add_trials(job.study_id, [_first()])
        with pytest.raises(KeyboardInterrupt):
            work_once(job)
        (trial,) = store.trials(job.study_id)
        assert trial.state == WAITING


def _first():
    return to_data(asked_of(WORKS[0], TrialStage.SEARCH, ("iree",)))


def test_a_measurer_that_refuses_ends_the_trial_with_its_reason(url):
    def refuses(subject, candidate):
        raise PycError(ReasonCode.BAD_ARGUMENT, "no such work")

    _, results = studied(url, setting_of(WORKS, 16), refuses)
    assert all(not r.changed and r.leader is None for r in results)
    with EvidenceStore.open(url) as store:
        assert all("BAD_ARGUMENT: no such work" in t.reason for t in _trials(store))


def test_a_lost_lease_drops_the_result(url):
    setting, clock = setting_of(WORKS), [0.0]

    def slow(subject, candidate):
        clock[0] += 10
        return 1e-3

    with EvidenceStore.open(url, clock=lambda: clock[0]) as store:
        job = prepared(store, setting, Simulated(slow), lease_seconds=5)
        store.add_trials(job.study_id, [_first()])
        trial = store.claim(job.study_id, "me", 5)
        clock[0] += 6
        other = store.claim(job.study_id, "other", 5)
        assert trial is not None and other is not None and other.attempt == 2
        with pytest.raises(PycError, match="expected the lease of"):
            store.finish(trial)
        assert store.trials(job.study_id)[0].state == LEASED


def test_a_machine_that_is_not_alike_measures_nothing():
    place = Environments({"cpu": "A"}, {"source": "1"}, {"threads": 1}, "m")
    for part in ("hardware_facts", "toolchain_facts", "context_facts"):
        other = replace(place, **{part: {"other": 1}})
        name = part.removesuffix("_facts")
        with pytest.raises(PycError, match=f"expected a machine with the study's {name}"):
            require_same_environment(place, other)
    require_same_environment(place, replace(place, machine="another of the kind"))


def test_a_time_limit_leaves_half_for_ranking_again(url):
    """The search stops at half of the time; what it found is ranked again and confirmed."""
    now = [0.0]

    def slow(subject, candidate):
        now[0] += 1.0
        return Costs()(subject, candidate)

    setting = replace(setting_of(WORKS), budget=StudyBudget(seconds=40.0))
    with EvidenceStore.open(url) as store, ThreadPoolExecutor(1) as executor:
        job = prepared(store, setting, Simulated(slow))
        ledger = run_study(store, setting, job, executor, 1, clock=lambda: now[0])
        results = setting.results(ledger)
    searched = [o for o in ledger.outcomes if o.asked.stage is TrialStage.SEARCH]
    # Two candidates a session take two seconds; one trial may be open when the time is over.
    assert 10 <= len(searched) <= 12
    assert any(r.changed for r in results)
    assert not ledger.open


def test_workers_of_other_processes_may_do_it_all(url, uninterrupted):
    """With no calls of its own a study waits for `pyc-tune worker`."""
    setting, ended = setting_of(WORKS), threading.Event()
    with EvidenceStore.open(url) as store, ThreadPoolExecutor(1) as executor:
        job = prepared(store, setting, Simulated(Costs()))

        def other():
            while not ended.is_set():
                if not work_once(job):
                    time.sleep(0.01)

        worker = threading.Thread(target=other)
        worker.start()
        try:
            ledger = run_study(store, setting, job, executor, 0)
        finally:
            ended.set()
            worker.join()
        assert known_of(setting.results(ledger)) == known_of(uninterrupted[1])


@pytest.mark.parametrize(("gain", "noise"), ((0.5, 0.02), (0.97, 0.03)))
def test_an_unclear_winner_gets_a_second_look(url, gain, noise):
    """Two confirming sessions at most; the verdict rests on all of them."""

    def costs(subject, candidate):
        (choice,) = candidate.recipe.values()
        return 1e-3 * (gain if "rows=4" in choice else 1.0)

    setting = setting_of((work(0),), 24)
    with EvidenceStore.open(url) as store, ThreadPoolExecutor(1) as executor:
        job = prepared(store, setting, Simulated(costs, noise=noise))
        ledger = run_study(store, setting, job, executor, 1)
        (result,) = setting.results(ledger)
    confirmed = [o for o in ledger.outcomes if o.asked.stage is TrialStage.CONFIRM]
    assert len(confirmed) <= 2
    if confirmed:
        assert result.verdict is not None and result.verdict.processes == 5 * len(confirmed)
        assert len(result.sessions) == 1 + len(confirmed)
        first = confirmed[0].verdict(1)
        assert first is not None
        assert len(confirmed) == 1 or first.intervals["cpu"].high > 1 - 0.2
    if gain == 0.5:
        assert result.changed and len(confirmed) == 1
