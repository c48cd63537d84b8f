"""Gates on a database: what is promoted, what is refused and why, and what comes back."""

import pytest

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install '.[tune]'")

from lane_sessions import BETTER, DEFAULT, EQUAL, LARGE, OTHER, SMALL, Bench, place

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.exchange import export_wisdom
from pyc_mlir.lab.evidence.database.store import EvidenceStore, problems
from pyc_mlir.lab.evidence.rows import EXPERIMENTAL, STABLE, Scope, State, Status, Verdict
from pyc_mlir.lab.lanes.baselines import freeze, reports_of, rows_of
from pyc_mlir.lab.lanes.promotion import (
    Wanted,
    promote,
    promotion_status,
    state_of,
)
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Report, record
from pyc_mlir.pipelines.choices.wisdom import NO_RECIPE, Wisdom
from pyc_mlir.runtime.selection.verdict import ALPHA
from pyc_mlir.tools import pyc_bench, pyc_tune

HERE = place()
SCOPE = Scope("s1-structure", "", HERE.hardware, HERE.toolchain)
NOON = 1_767_268_800.0  # 2026-01-01 12:00 UTC
DAY = 86_400.0


class Clock:
    now = NOON

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, clock):
    with EvidenceStore.open(f"sqlite:///{tmp_path}/pyc.db", clock) as opened:
        yield opened


@pytest.fixture
def bench(store):
    return Bench(store).prepare()


def refused(store, candidate=BETTER, where=HERE, **wanted) -> str:
    with pytest.raises(PycError) as caught:
        promote(store, candidate, where, Wanted(**wanted), "test")
    assert caught.value.code is ReasonCode.NOT_PROMOTED
    return caught.value.message


def states(store, candidate=BETTER, lane=STABLE) -> list[str]:
    return [s.state for s in store.history(candidate.id) if s.lane == lane]


def test_a_faster_recipe_is_promoted_step_by_step(store, bench):
    for _ in range(2):
        bench.session(0.9)
    done = promote(store, BETTER, HERE, Wanted(), "test")
    assert done.state == State.PROMOTED
    assert states(store) == ["candidate", "verified", "measured", "shadow", "promoted"]
    assert states(store, lane=EXPERIMENTAL) == []
    promote(store, BETTER, HERE, Wanted(EXPERIMENTAL), "test")
    assert states(store, lane=EXPERIMENTAL)[-1] == State.SHADOW
    assert {v.answer for v in store.find(Verdict)} == {"faster"}
    assert "it is promoted" in refused(store)


def test_nothing_but_counts_is_looked_at_before_there_is_enough(store, bench):
    assert "expected" in refused(store)
    bench.session(0.5, processes=4)
    reported = refused(store)
    for told in ("processes on workload", "4 of 5", "1 more processes"):
        assert told in reported
    assert "1 of 2; needed: 1 more sessions" in reported
    assert store.find(Verdict) == [] and states(store) == ["candidate", State.VERIFIED]


def test_machines_count_where_the_database_knows_two(store, bench):
    store.add_place(place(machine="m2"))
    for _ in range(3):
        bench.session(0.5)
    assert "machines on workload" in refused(store)
    bench.session(0.5, where=place(machine="m2"))
    assert promote(store, BETTER, HERE, Wanted(), "test").state == State.PROMOTED


@pytest.mark.parametrize("ratio, what", [(1.0, "faster"), (1.1, "faster"), (0.985, "1.03")])
def test_what_is_not_clearly_faster_stays(store, bench, ratio, what):
    bench.noise = 0.002
    for _ in range(3):
        bench.session(ratio)
    assert what in refused(store)
    assert State.PROMOTED not in states(store)


def test_a_new_default_needs_more(store, bench):
    bench.noise = 0.002
    for _ in range(2):
        bench.session(0.94)
    assert "speed-up of 1.10" in refused(store, least=1.10)
    assert states(store)[-1] == State.SHADOW
    assert promote(store, BETTER, HERE, Wanted(), "test").state == State.PROMOTED


def test_other_workloads_must_not_suffer(store, bench):
    for _ in range(2):
        bench.session(0.8, loads=(SMALL,))
        bench.session(1.2, loads=(LARGE,))
    assert "not below 0.97" in refused(store, cluster="small")
    assert states(store)[-1] == State.SHADOW


def test_costs_are_limits(store, bench):
    for _ in range(2):
        bench.session(0.8)
    assert "arena of at most 999" in refused(store, arena_bytes=999)
    assert "compiled within 1 s" in refused(store, compile_seconds=1.0)
    assert states(store)[-1] == State.MEASURED
    wanted = Wanted(arena_bytes=1000, compile_seconds=2.0)
    assert promote(store, BETTER, HERE, wanted, "test").state == State.PROMOTED


@pytest.mark.parametrize("probe", [{}, {"wall_ratio": 1.2}, {"cpu_ratio": 1.0, "disturbed": 1.0}])
def test_a_session_that_tells_a_program_from_itself_decides_nothing(store, bench, probe):
    bench.session(0.8)
    bench.session(0.8, probe=probe, after=probe)
    reported = refused(store)
    assert "tell a program from itself: no, 1 of 2 sessions" in reported
    bench.session(0.8)
    assert "tell a program from itself" in refused(store)


@pytest.mark.parametrize("status", [Status.WRONG, Status.CRASH])
def test_faults_bar_a_recipe_under_that_toolchain(store, bench, status):
    for _ in range(2):
        bench.session(0.5)
    bench.session(0.5, status=status, processes=1)
    assert "made so" in refused(store)
    assert state_of(store, BETTER.id, SCOPE, STABLE) == State.QUARANTINED
    assert "it is quarantined" in refused(store) or "made so" in refused(store)
    newer = place("2")
    there = Scope("s1-structure", "", newer.hardware, newer.toolchain)
    assert state_of(store, BETTER.id, there, STABLE) == State.NEW
    # The incumbent, PyC's own choice, is no fault's.
    choices = lambda: {r.choice for r in export_wisdom(store).rows} - {NO_RECIPE}  # noqa: E731
    assert choices() == set()
    for _ in range(2):
        bench.session(0.8, where=newer)
    assert promote(store, BETTER, newer, Wanted(), "test").state == State.PROMOTED
    assert choices() == {"b"}


def test_looks_spend_the_error_and_equal_looks_are_one(store, bench):
    for _ in range(2):
        bench.session(1.0)
    for _ in range(3):
        refused(store)
    looks = {v.alpha for v in store.find(Verdict)}
    assert looks == {ALPHA / 2}
    bench.session(1.0)
    refused(store)
    assert {v.alpha for v in store.find(Verdict)} == {ALPHA / 2, ALPHA / 6}
    assert promotion_status(store, BETTER, HERE, Wanted()).case.looked
    # More processes of the same sessions are another look.
    bench.session(1.0)
    assert not promotion_status(store, BETTER, HERE, Wanted()).case.looked


def test_one_promotion_a_day(store, bench, clock):
    for candidate in (BETTER, OTHER):
        for _ in range(2):
            bench.session(0.8, candidate=candidate)
    promote(store, BETTER, HERE, Wanted(), "test")
    wanted = Wanted(incumbent=DEFAULT)
    with pytest.raises(PycError, match="no promotion of this structure") as caught:
        promote(store, OTHER, HERE, wanted, "test")
    assert caught.value.code is ReasonCode.NOT_PROMOTED and states(store, OTHER)[-1] == State.SHADOW
    clock.now += DAY
    assert promote(store, OTHER, HERE, wanted, "test").state == State.PROMOTED
    assert states(store)[-1] == State.SUSPENDED
    # The reverse brings back what was replaced, and cannot be reversed itself.
    assert store.rollback(OTHER.id, SCOPE, STABLE).state == State.SHADOW
    assert [s.impl_id for s in store.states(state=State.PROMOTED)] == [BETTER.id]
    for again in (OTHER, DEFAULT):
        with pytest.raises(PycError, match="to reverse"):
            store.rollback(again.id, SCOPE, STABLE)
    clock.now += DAY
    with pytest.raises(PycError, match="measured since its rollback"):
        promote(store, OTHER, HERE, wanted, "test")
    bench.session(0.8, candidate=OTHER, day=20)
    assert promote(store, OTHER, HERE, wanted, "test").state == State.PROMOTED


def test_another_toolchain_suspends(store, bench):
    newer = place("2")
    for where in (HERE, newer):
        bench.session(0.8, where=where)
        bench.session(0.8, where=where)
    promote(store, BETTER, HERE, Wanted(), "test")
    there = Scope("s1-structure", "", newer.hardware, newer.toolchain)
    assert state_of(store, BETTER.id, there, STABLE) == State.SUSPENDED
    assert promote(store, BETTER, newer, Wanted(), "test").state == State.PROMOTED
    mine = [s.state for s in store.history(BETTER.id) if s.scope == there]
    assert mine == [State.SUSPENDED, State.MEASURED, State.SHADOW, State.PROMOTED]
    assert state_of(store, BETTER.id, SCOPE, STABLE) == State.PROMOTED


def test_what_replaced_a_recipe_gives_way_when_it_fails(store, bench, clock):
    for candidate in (BETTER, OTHER):
        for _ in range(2):
            bench.session(0.8, candidate=candidate)
        promote(store, candidate, HERE, Wanted(incumbent=DEFAULT), "test")
        clock.now += DAY
    bench.session(0.8, candidate=OTHER, status=Status.CRASH)
    with pytest.raises(PycError, match="made so"):
        promote(store, OTHER, HERE, Wanted(incumbent=DEFAULT), "test")
    assert states(store)[-1] == State.PROMOTED and states(store, OTHER)[-1] == State.QUARANTINED


def test_the_commands(store, bench, capsys):
    def tune(*arguments) -> int:
        return pyc_tune.main(["--db", store.url, *arguments])

    env = ("--env", HERE.id[:12])
    bench.session(0.8)
    assert tune("promote", BETTER.id[:12], "--lane", "stable", *env) == 1
    assert "[NOT_PROMOTED]" in capsys.readouterr().err
    assert tune("why", BETTER.id[:12]) == 0
    reported = capsys.readouterr().out
    assert "lane stable" in reported and "3 of 5; needed: 2 more processes" in reported
    bench.session(0.8)
    assert tune("promote", BETTER.id[:12], "--lane", "stable", *env) == 0
    assert "promoted in lane stable" in capsys.readouterr().out
    assert tune("lanes") == 0 and "promoted" in capsys.readouterr().out
    assert tune("rollback", BETTER.id[:12]) == 0
    assert "shadow in lane stable" in capsys.readouterr().out
    assert tune("rollback", BETTER.id[:12]) == 1
    assert tune("promote", HERE.id[:12]) == 1
    assert tune("promote", BETTER.id[:12], "--env", "zz") == 1


def test_a_lane_exports_what_is_in_use_and_what_it_was_compared_with(store, bench, tmp_path):
    for _ in range(2):
        bench.session(0.9)
    for lane in (STABLE, EXPERIMENTAL):
        assert not export_wisdom(store, lane=lane).rows
    promote(store, BETTER, HERE, Wanted(EXPERIMENTAL), "test")
    assert not export_wisdom(store, lane=STABLE).rows
    everything = export_wisdom(store)
    assert export_wisdom(store, lane=EXPERIMENTAL) == everything
    promote(store, BETTER, HERE, Wanted(), "test")
    assert export_wisdom(store, lane=STABLE) == everything
    assert {r.choice for r in everything.rows} >= {NO_RECIPE}
    store.rollback(
        BETTER.id, promotion_status(store, BETTER, HERE, Wanted()).case.scope, STABLE, "test"
    )
    path = tmp_path / "wisdom.json"
    assert pyc_tune.main(["--db", store.url, "export", str(path), "--lane", STABLE]) == 0
    assert not Wisdom.load(path).rows


def test_probes_of_both_ends_count(store, bench):
    bench.session(0.8)
    bench.session(0.8, probe=EQUAL, after={"cpu_ratio": 0.9})
    assert "tell a program from itself: no, 1 of 2" in refused(store)


def test_baselines_are_versions_of_names(store, bench, capsys, tmp_path, monkeypatch):
    def tune(*arguments) -> int:
        return pyc_tune.main(["--db", store.url, *arguments])

    assert tune("baseline", "empty") == 1
    rows = [record("w", c, "latency", "s", 1e-3, samples=[1e-3, 2e-3]) for c in ("pyc", "iree")]
    one = Report("latency", probe(), {}, (*rows, record("w", "pyc", "arena", "B", 5)))
    path = str(tmp_path / "r.json")
    one.save(path)
    assert tune("baseline", "main", path) == 0 and tune("baseline", "main", path, path) == 0
    capsys.readouterr()
    assert tune("baselines") == 0
    assert capsys.readouterr().out == "main: main@1, main@2\n"
    assert tune("baselines", "main@1") == 0
    assert "candidate: pyc" in capsys.readouterr().out
    assert len(reports_of(store, "main")) == 2
    (back,) = reports_of(store, "main@1")
    assert back.suite == "latency" and back.environment.fingerprint == one.environment.fingerprint
    assert sorted(r["candidate"] for r in back.records) == ["iree", "pyc"]
    assert back.records[0]["samples"] == [1e-3, 2e-3]
    for wrong in ("main@3", "none", "main@x"):
        assert tune("baselines", wrong) == 1
    # Benchmarks are no choices of a compile.
    assert export_wisdom(store).rows == () and list(problems(store)) == []
    monkeypatch.setenv("PYC_DB", store.url)
    assert pyc_bench.main(["compare", path, "--to", "main"]) == 0
    assert "2 rows against main" in capsys.readouterr().out


def test_recipes_in_use_make_a_baseline(store, bench):
    for _ in range(2):
        bench.session(0.8)
    promote(store, BETTER, HERE, Wanted(), "test")
    assert freeze(store, "used", [], "2026-01-01") == 1
    rows = rows_of(store, "used")
    assert {r.impl_id for r in rows} == {BETTER.id} and len(rows) == 2
    assert rows[0].numbers["processes"] == 6 and rows[0].numbers["seconds"] < 1e-3
    with pytest.raises(PycError, match="made from reports"):
        reports_of(store, "used")
