"""Killed writers lose nothing that was acknowledged: one test for SQLite and PostgreSQL.

16 kills of 8 writers, 200 with PYC_FULL=1; in a process that has compiled nothing, since it forks.
"""

import multiprocessing

import pytest
from conftest import FULL

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install '.[tune]'")
pytest.importorskip("psycopg", reason="psycopg is not installed: pip install '.[postgres]'")

from databases import postgres_server
from suites.evidence_writers import Killed, claims_per_second, kill_writers

KILLS, TRIALS = (200, 1000) if FULL else (16, 80)


def _measure(url: str, results) -> None:
    results.put((kill_writers(url, KILLS), claims_per_second(url, TRIALS)))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/pyc.db"
        return
    with postgres_server() as server:
        yield server


def test_no_acknowledged_row_is_lost(url):
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    process = spawn.Process(target=_measure, args=(url, results))
    process.start()
    found, rate = results.get(timeout=600)
    process.join()
    assert isinstance(found, Killed)
    assert found.kills == KILLS and found.acknowledged >= found.kills
    assert (found.lost, found.damaged, found.twice) == (0, 0, 0)
    # All trials were done by 8 processes at once; how fast is told by `pyc-bench evidence`.
    assert rate > 0
