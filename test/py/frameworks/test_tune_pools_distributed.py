"""Studies in processes and on a Dask cluster of this machine."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install '.[tune]'")

from simulated_studies import Costs, known_of, prepared, setting_of, studied, work
from suites.simulated import Simulated

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.tune.workers import drive, pool
from pyc_mlir.util.checksum import digest

WORKS = tuple(map(work, range(3)))


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    # Workers unpickle the costs, whose module they must find.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return f"sqlite:///{tmp_path / 'pyc.db'}"


@pytest.fixture(scope="module")
def in_one_thread(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thread")
    return studied(f"sqlite:///{folder / 'pyc.db'}", setting_of(WORKS), Costs())


def test_processes_find_the_same(url, in_one_thread):
    with pool("processes", 2) as executor:
        _, results = studied(url, setting_of(WORKS), Costs(), executor, workers=2)
    assert known_of(results) == known_of(in_one_thread[1])


def test_workers_that_die_are_replaced(url, in_one_thread, tmp_path):
    """Each process ends at its fifth cost, which breaks the pool: others go on.

    Each choice ends one process at most: a trial that ends too many is failed, as it should be.
    """
    with pool("processes", 1) as executor:
        _, results = studied(url, setting_of(WORKS), Mortal(5, tmp_path), executor)
    assert list(tmp_path.glob("*.died"))
    assert known_of(results) == known_of(in_one_thread[1])


def test_workers_that_only_die_end_the_study_and_lose_nothing(url):
    setting = setting_of(WORKS)
    with EvidenceStore.open(url) as store, pool("processes", 1) as executor:
        job = prepared(store, setting, Simulated(Mortal(1)), lease_seconds=1)
        with pytest.raises(PycError, match="pyc-tune resume") as caught:
            drive(store, job, setting.agenda(lambda stage: True), executor, 1)
        assert caught.value.code is ReasonCode.NATIVE_CRASH


class Mortal(Costs):
    """Costs that kill the process which asks for them for the `last` time, or later.

    once: a folder that remembers the choices that did so, for which no second process ends.
    """

    requested = 0

    def __init__(self, last: int, once: Path | None = None) -> None:
        super().__init__()
        self.last, self.once = last, once

    def __call__(self, subject, candidate):
        Mortal.requested += 1
        if Mortal.requested >= self.last and self._is_first(subject, candidate):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(subject, candidate)

    def _is_first(self, subject, candidate) -> bool:
        if self.once is None:
            return True
        key = digest([subject.graph.text, sorted(candidate.recipe.items())])
        try:
            (self.once / f"{key}.died").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def test_a_cluster_whose_worker_is_killed(url, in_one_thread):
    """Dask restarts the worker; the trial's lease expires and it is measured again."""
    distributed = pytest.importorskip(
        "distributed", reason="distributed is not installed: pip install '.[cluster]'"
    )
    with _cluster(distributed, workers=2) as cluster:
        first = next(iter(cluster.workers.values()))
        killer = threading.Thread(target=_kill_soon, args=(url, first.pid))
        killer.start()
        address = cluster.scheduler_address.removeprefix("tcp://")
        with pool(f"dask://{address}", 2) as executor:
            costs = Costs(0.05)
            _, results = studied(url, setting_of(WORKS), costs, executor, workers=2)
        killer.join()
    assert known_of(results) == known_of(in_one_thread[1])


def _cluster(distributed, workers):
    return distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        resources={"measure": 1},
        dashboard_address=None,
    )


def _kill_soon(url, process):
    """Kill a worker once the study has some results."""
    path = Path(url.removeprefix("sqlite:///"))
    while not path.exists():
        time.sleep(0.05)
    time.sleep(1.0)
    os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize("where", ("threads", "dask:", ""))
def test_other_executors_are_refused(where):
    with (
        pytest.raises(PycError, match="expected `processes` or `dask://HOST:PORT`"),
        pool(where, 1),
    ):
        pass


def test_a_cluster_that_is_away_is_told(monkeypatch):
    pytest.importorskip(
        "distributed", reason="distributed is not installed: pip install '.[cluster]'"
    )
    monkeypatch.setattr("pyc_mlir.lab.tune.workers._CONNECT_SECONDS", 0.5)
    with (
        pytest.raises(PycError, match="expected a Dask scheduler at localhost:1"),
        pool("dask://localhost:1", 1),
    ):
        pass


def test_without_distributed_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(PycError, match=r"\[cluster\]"), pool("dask://localhost:1", 1):
        pass
