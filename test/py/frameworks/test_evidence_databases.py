"""The benchmark database: one suite for SQLite and PostgreSQL."""

import multiprocessing
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install '.[tune]'")

import sqlalchemy as sa
from databases import postgres_server

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database import engine, tables
from pyc_mlir.lab.evidence.database.engine import file_system
from pyc_mlir.lab.evidence.database.store import (
    DONE,
    FAILED,
    LEASED,
    MAX_ATTEMPTS,
    WAITING,
    EvidenceStore,
)
from pyc_mlir.lab.evidence.database.tables import METADATA, MUTABLE
from pyc_mlir.lab.evidence.rows import (
    COLD,
    EXPERIMENTAL,
    ROWS,
    STABLE,
    Baseline,
    Feedback,
    Graph,
    Implementation,
    Prediction,
    Scope,
    Session,
    SessionEnd,
    State,
    Status,
    Study,
    Trace,
    Verdict,
    Workload,
    samples,
)
from pyc_mlir.measure.environment import Environments

PLACE = Environments({"cpu": "A"}, {"source": "1"}, {"threads": 1}, "m")
GRAPH = Graph("w1-1", "work", "w1-1", "work 1\n", 1)
WORKLOAD = Workload(GRAPH.graph_id, {"n": 4}, ("f32",), {"seed": 0}, "small")
DEFAULT = Implementation(GRAPH.graph_id, {"pyc-select-kernels": "gemm:matmul"}, origin="heuristic")
TUNED = Implementation(GRAPH.graph_id, {"pyc-select-kernels": "iree"}, parent=DEFAULT.id)
SESSION = Session(PLACE.id, "1", 1, 30, 0, 5, "2026-01-01T00:00:00+00:00", {"a/a": 1.0})
STUDY = Study(GRAPH.graph_id, (WORKLOAD.id,), PLACE.id, "seconds", "s", "random", 0, {"seconds": 9})
TRACE = Trace(
    SESSION.id, DEFAULT.id, WORKLOAD.id, wall=samples([0.5, 0.25]), cpu=samples([0.25, 0.125])
)
BASE = (GRAPH, WORKLOAD, DEFAULT, TUNED, SESSION, STUDY)


@pytest.fixture(scope="module")
def server():
    with postgres_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """The URL of an empty database; PostgreSQL's server is shared, its database is not."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/pyc.db"
        return
    base = sa.make_url(request.getfixturevalue("server"))
    admin = sa.create_engine(base, isolation_level="AUTOCOMMIT")
    name = f"t{os.getpid()}_{abs(hash(str(tmp_path)))}"
    with admin.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    yield base.set(database=name).render_as_string(hide_password=False)
    with admin.connect() as connection:
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
    admin.dispose()


class Clock:
    """A clock that stands until it is set."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(url, clock):
    with EvidenceStore.open(url, clock) as opened:
        opened.add_place(PLACE)
        opened.add(*BASE)
        yield opened


def code_of(call) -> ReasonCode:
    with pytest.raises(PycError) as caught:
        call()
    return caught.value.code


VERDICT = Verdict(
    TUNED.id, DEFAULT.id, WORKLOAD.id, PLACE.hardware, PLACE.toolchain, (SESSION.id,),
    0.9, 0.85, 0.95, 0.01, "hodges-lehmann 1", "faster",
)  # fmt: skip
EACH = (
    *BASE,
    TRACE,
    replace(
        TRACE, process=1, constants=COLD, status=Status.CRASH, reason="SIGSEGV", wall=(), cpu=()
    ),
    SessionEnd(SESSION.id, "2026-01-01T00:01:00+00:00", {"a/a": 1.01}, 0.1, 2.5),
    Prediction("roofline 1", TUNED.id, WORKLOAD.id, PLACE.id, 1e-5, 0.5e-5, 2e-5, 4096),
    VERDICT,
    Baseline("v1", 1, DEFAULT.id, WORKLOAD.id, PLACE.id, {"p50": 0.1}, "2026-01-01"),
    Feedback(DEFAULT.id, "small", PLACE.id, "2026-01", 10, {"p10": 0.1}, 0.1, 1, b"\x00\xff"),
)


def test_every_kind_of_row_comes_back_as_it_was(store):
    assert {type(row) for row in EACH} == set(ROWS)
    ids = store.add(*EACH)
    assert ids == [row.id for row in EACH]
    for row in EACH:
        found = store.get(type(row), row.id)
        if isinstance(row, Trace):
            np.testing.assert_array_equal(found.wall, row.wall)
            np.testing.assert_array_equal(found.cpu, row.cpu)
            assert found.figures == row.figures and found.reason == row.reason
        else:
            assert found == row
    assert store.places() == {PLACE.id: PLACE}
    assert store.get(Trace, "gone") is None
    assert len(store.find(Trace, session_id=SESSION.id, constants=COLD)) == 1
    assert store.find(Workload, dims={"n": 4}) == [WORKLOAD]


def test_adding_again_changes_nothing(store):
    store.add(*EACH)
    before = store.counts()
    store.add(*EACH, TRACE)
    store.add_place(PLACE)
    assert store.counts() == before
    # What a compile came to is noted once; another run of it is the same implementation.
    store.add(replace(DEFAULT, compile_seconds=2.0))
    assert store.get(Implementation, DEFAULT.id) == DEFAULT


def test_other_contents_under_a_known_id_are_refused(store):
    store.add(TRACE)
    conflict = ReasonCode.EVIDENCE_CONFLICT
    assert code_of(lambda: store.add(replace(TRACE, wall=[0.5, 0.26]))) is conflict
    # A hash that two texts have would give one the numbers of the other.
    assert code_of(lambda: store.add(replace(GRAPH, text="work 1\nother\n"))) is conflict
    # Texts of another normalizer are other graphs.
    store.add(replace(GRAPH, text="work 2\n", normalizer=2))
    assert len(store.find(Graph, graph_id=GRAPH.graph_id)) == 2


def test_rows_that_refer_to_none_are_refused_and_nothing_of_their_batch_stays(store):
    orphan = replace(TRACE, impl_id="gone")
    code = code_of(lambda: store.add(TRACE, orphan))
    assert code is ReasonCode.EVIDENCE_CONFLICT
    assert store.counts()["benchmark_traces"] == 0


@pytest.mark.parametrize("change", ["UPDATE {0} SET {1} = {1}", "DELETE FROM {0}"])
def test_facts_cannot_be_changed(store, change):
    store.add(*EACH)
    store.transition(DEFAULT.id, Scope(), STABLE, State.CANDIDATE, "test", "")
    for name in METADATA.tables.keys() - set(MUTABLE):
        column = next(iter(METADATA.tables[name].columns)).name

        def act(name: str = name, column: str = column) -> None:
            with store.writing() as connection:
                connection.exec_driver_sql(change.format(name, column))

        assert code_of(act) is ReasonCode.EVIDENCE_CONFLICT, name


def test_trials_are_leased_once_and_in_order(store):
    configs = [{"a": n} for n in range(3)]
    assert store.add_trials(STUDY.id, configs, [0.1, None, 0.3]) == 3
    assert store.add_trials(STUDY.id, [*configs, {"a": 3}]) == 1
    first, second = (store.claim(STUDY.id, f"w{n}", 60) for n in range(2))
    assert [first.config, second.config] == configs[:2] and first.predicted == 0.1
    store.finish(first, TRACE, seconds=2.0)
    store.fail(second, "wrong results")
    states = [(t.state, t.trace_id, t.reason) for t in store.trials(STUDY.id)]
    ended = [(DONE, TRACE.id, ""), (FAILED, None, "wrong results")]
    assert states[:3] == [*ended, (WAITING, None, "")]
    assert [store.claim(STUDY.id, "w", 60).number for _ in range(2)] == [2, 3]
    assert store.claim(STUDY.id, "w", 60) is None


def test_leases_expire_and_are_renewed(store, clock):
    store.add_trials(STUDY.id, [{"a": 1}])
    slow = store.claim(STUDY.id, "slow", 60)
    clock.now += 50
    store.renew(slow, 60)
    clock.now += 50
    assert store.claim(STUDY.id, "other", 60) is None
    clock.now += 11
    # Late, but nobody else has it: the result counts.
    store.renew(slow, 1)
    clock.now += 2
    taken = store.claim(STUDY.id, "other", 60)
    assert taken.attempt == 2 and taken.config == {"a": 1}
    for late in (lambda: store.renew(slow, 60), lambda: store.finish(slow, TRACE)):
        assert code_of(late) is ReasonCode.LEASE_LOST
    assert store.counts()["benchmark_traces"] == 0, "a late result is dropped whole"
    store.finish(taken, TRACE)
    assert code_of(lambda: store.fail(taken, "again")) is ReasonCode.LEASE_LOST


def test_a_trial_that_ends_all_its_workers_fails(store, clock):
    store.add_trials(STUDY.id, [{"a": 1}])
    for _ in range(MAX_ATTEMPTS):
        assert store.claim(STUDY.id, "w", 60).state == LEASED
        clock.now += 61
    assert store.claim(STUDY.id, "w", 60) is None
    assert store.trials(STUDY.id)[0].state == FAILED


def test_states_are_the_last_transitions(store):
    store.add(VERDICT)
    there, elsewhere = Scope("s1-a", "small", "h", "t"), Scope("s1-b")
    store.transition(DEFAULT.id, there, STABLE, State.CANDIDATE, "tuner", "proposed")
    store.transition(DEFAULT.id, elsewhere, STABLE, State.CANDIDATE, "tuner", "proposed")
    store.transition(DEFAULT.id, there, EXPERIMENTAL, State.CANDIDATE, "tuner", "proposed")
    made = store.transition(DEFAULT.id, there, STABLE, State.VERIFIED, "tuner", "equal", VERDICT.id)
    assert store.states(lane=STABLE, structure="s1-a") == [made]
    assert sorted(s.state for s in store.states()) == ["candidate", "candidate", "verified"]
    assert store.rollback(DEFAULT.id, there, by="me").state == State.CANDIDATE
    mine = [s for s in store.history(DEFAULT.id) if s.scope == there and s.lane == STABLE]
    assert [s.state for s in mine] == ["candidate", "verified", "candidate"]


def test_states_follow_the_life_of_a_recipe(store):
    def move(state: str) -> object:
        return store.transition(DEFAULT.id, Scope(), STABLE, state, "test", "")

    bad = ReasonCode.BAD_ARGUMENT
    assert code_of(lambda: move(State.PROMOTED)) is bad
    move(State.CANDIDATE)
    assert code_of(lambda: move(State.PROMOTED)) is bad
    assert code_of(lambda: store.rollback(DEFAULT.id, Scope())) is bad
    move(State.QUARANTINED)
    for again in (State.CANDIDATE, State.QUARANTINED, State.VERIFIED):
        assert code_of(lambda again=again: move(again)) is bad
    assert code_of(lambda: store.rollback(DEFAULT.id, Scope())) is bad
    unknown = lambda: store.transition("gone", Scope(), STABLE, State.CANDIDATE, "test", "")  # noqa: E731
    assert code_of(unknown) is ReasonCode.EVIDENCE_CONFLICT


def test_a_schema_is_upgraded_once_and_keeps_its_rows(store, url, monkeypatch):
    store.add(TRACE)
    done = []

    def second(connection: sa.Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE workloads ADD COLUMN note TEXT DEFAULT 'none'")
        done.append(1)

    monkeypatch.setattr(engine, "STEPS", [*tables.STEPS, second])
    openers = [threading.Thread(target=lambda: EvidenceStore.open(url).close()) for _ in range(4)]
    for opener in openers:
        opener.start()
    for opener in openers:
        opener.join()
    assert done == [1]
    with EvidenceStore.open(url) as upgraded:
        assert [trace.figures for trace in upgraded.find(Trace)] == [TRACE.figures]
        assert upgraded.counts()["schema_version"] == len(tables.STEPS) + 1
    monkeypatch.setattr(engine, "STEPS", tables.STEPS)
    assert code_of(lambda: EvidenceStore.open(url)) is ReasonCode.DATABASE_UNUSABLE


def test_a_failed_upgrade_leaves_the_schema_as_it_was(store, url, monkeypatch):
    def broken(connection: sa.Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE workloads ADD COLUMN note TEXT")
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(engine, "STEPS", [*tables.STEPS, broken])
    with pytest.raises(RuntimeError, match="a fault of ours"):
        EvidenceStore.open(url)
    monkeypatch.setattr(engine, "STEPS", tables.STEPS)
    with EvidenceStore.open(url) as same:
        assert same.counts()["schema_version"] == len(tables.STEPS)
        assert same.find(Workload) == [WORKLOAD]


def test_readers_do_not_wait_for_a_writer(store):
    with store.writing() as connection:
        connection.exec_driver_sql("INSERT INTO maintenance VALUES ('a long one')")
        assert store.counts()["workloads"] == 1
        raise_after = connection
    assert raise_after.closed


def _in_child(url: str, results) -> None:
    with EvidenceStore.open(url) as mine:
        results.put(mine.counts()["workloads"])


def test_a_store_is_usable_in_a_forked_child(store):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, b"1" if store.counts()["workloads"] == 1 else b"0")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"1"
    assert store.counts()["workloads"] == 1


def test_new_databases_are_made_once_by_many(url):
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    makers = [spawn.Process(target=_in_child, args=(url, results)) for _ in range(3)]
    for maker in makers:
        maker.start()
    assert [results.get(timeout=60) for _ in makers] == [0, 0, 0]
    for maker in makers:
        maker.join()


# What no engine takes


@pytest.mark.parametrize(
    "url",
    ["nonsense", "mysql://host/name", "sqlite://", "sqlite:///:memory:", "sqlite:////gone/pyc.db",
     "postgresql://nobody@127.0.0.1:1/gone"],
)  # fmt: skip
def test_databases_that_cannot_be_used(url):
    if url.startswith("postgresql"):
        pytest.importorskip("psycopg", reason="psycopg is not installed")
    assert code_of(lambda: EvidenceStore.open(url)) is ReasonCode.DATABASE_UNUSABLE


def test_passwords_are_not_told():
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    with pytest.raises(PycError) as caught:
        EvidenceStore.open("postgresql://pyc:secret@127.0.0.1:1/gone")
    assert "secret" not in str(caught.value)


MOUNTS = """/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/me/local ext4 rw 0 0
me@host: /mnt/with\\040space fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/tmp/a.db", "ext4"), ("/home/me/a.db", "nfs4"), ("/home/me/local/a.db", "ext4"),
     ("/homer/a.db", "ext4"), ("/mnt/with space/a.db", "fuse.sshfs")],
)  # fmt: skip
def test_files_on_network_file_systems_are_refused(path, kind, tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert file_system(Path(path), mounts) == kind
    if kind != "ext4":
        with pytest.raises(PycError, match=f"one on {kind}"):
            engine.connect(f"sqlite:///{path}", mounts)


def test_a_system_without_mounts(tmp_path):
    assert file_system(tmp_path / "a.db", tmp_path / "gone") == ""


@pytest.mark.parametrize(
    "changes",
    [{"wall": [-1.0]}, {"wall": [float("nan")]}, {"cpu": [1.0]}, {"status": "fine"},
     {"constants": "hot"}, {"wall": (), "cpu": ()}, {"calls": 0}],
)  # fmt: skip
def test_samples_that_are_none(changes):
    assert code_of(lambda: replace(TRACE, **changes)) is ReasonCode.BAD_ARGUMENT
