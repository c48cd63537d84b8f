"""From traces to wisdom and back, upkeep, and the commands of `pyc-tune`, on SQLite."""

import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install '.[tune]'")

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import tensor
from pyc_mlir.lab.evidence.database.exchange import export_wisdom, import_wisdom, measured
from pyc_mlir.lab.evidence.database.store import EvidenceStore, collect, problems
from pyc_mlir.lab.evidence.rows import (
    COLD,
    STABLE,
    Graph,
    Implementation,
    Scope,
    Session,
    State,
    Status,
    Study,
    Trace,
    Verdict,
    Workload,
    samples,
)
from pyc_mlir.measure.environment import Environments, current_place
from pyc_mlir.pipelines.choices.choices import Alternative, Site
from pyc_mlir.pipelines.choices.policies import Fastest
from pyc_mlir.pipelines.choices.wisdom import WHOLE as RECIPE
from pyc_mlir.pipelines.choices.wisdom import Wisdom, recipe_name
from pyc_mlir.pipelines.target.work import NORMALIZER, Input, Work, WorkOp, work_id, work_text
from pyc_mlir.tools import pyc_tune

KERNELS = "pyc-select-kernels"
HERE = current_place()
ROW = tensor("f32", 8, 64)
WORK = Work((Input(ROW),), (WorkOp("softmax", (0,), {"axis": 1}, ROW),), ("func.return",))
TEXT, ID = work_text(WORK), work_id(WORK)
GRAPH = Graph(ID, "work", ID, TEXT, 1, NORMALIZER)
PROGRAM = Graph("0123", "program", "s1-abc", "graph 1\n", 3)
LOAD, WHOLE = Workload(ID, normalizer=NORMALIZER), Workload("0123")
DEFAULT = Implementation(ID, {KERNELS: "rows:softmax"}, normalizer=NORMALIZER, origin="heuristic")
IREE = Implementation(ID, {KERNELS: "iree"}, normalizer=NORMALIZER, origin="tuner")
PLAIN = Implementation("0123", {"iree-fusion": "plain"})
MIXED = Implementation("0123", {"iree-fusion": "plain", "arena-entry": "made"})
SESSIONS = [
    Session(HERE.id, str(n), 1, 3, n, 3, f"2026-01-0{n}T00:00:00+00:00") for n in range(1, 3)
]
SCOPE = Scope(structure=ID)


def traces(made: Implementation, load: Workload, seconds: float, **changes) -> list[Trace]:
    """Three processes of two sessions around a time; wall times tell nothing."""
    return [
        Trace(
            session.id,
            made.id,
            load.id,
            process,
            wall=samples([1.0, 1.0, 1.0]),
            cpu=samples([seconds * (1 + 0.01 * process)] * 3),
            **changes,
        )
        for session in SESSIONS
        for process in range(3)
    ]


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/pyc.db"


@pytest.fixture
def store(url):
    with EvidenceStore.open(url) as opened:
        opened.add_place(HERE)
        opened.add(GRAPH, PROGRAM, LOAD, WHOLE, DEFAULT, IREE, PLAIN, MIXED, *SESSIONS)
        opened.add(*traces(DEFAULT, LOAD, 2e-5), *traces(IREE, LOAD, 1e-5))
        yield opened


def test_traces_become_rows_that_a_compile_uses(store):
    wisdom = export_wisdom(store)
    assert [(r.choice, r.sessions, r.processes, r.clock) for r in wisdom.rows] == [
        ("iree", 2, 6, "cpu"),
        ("rows:softmax", 2, 6, "cpu"),
    ]
    iree = wisdom.rows[0]
    assert (iree.lo, iree.seconds, iree.hi) == pytest.approx((1e-5, 1.01e-5, 1.02e-5))
    assert wisdom.subjects[ID].text == TEXT
    policy = Fastest(wisdom, HERE.hardware, HERE.toolchain)
    site = Site(KERNELS, "softmax.1", work=ID)
    assert policy.prefer(site, (Alternative("rows:softmax"), Alternative("iree"))) == "iree"


def test_what_is_exported(store):
    store.add(*traces(IREE, LOAD, 3e-5, constants=COLD))
    store.add(
        replace(traces(IREE, LOAD, 1e-5)[0], process=9, status=Status.CRASH, reason="SIGSEGV")
    )
    store.add(*traces(PLAIN, WHOLE, 1e-3), *traces(MIXED, WHOLE, 2e-3))
    rows = export_wisdom(store).rows
    assert [(r.subject, r.constants) for r in rows if r.choice == "iree"] == [
        (ID, "cold"),
        (ID, "warm"),
    ]
    # Of a program's single choice both keys; a recipe of several choices is that of the whole.
    assert {r.subject for r in rows if r.pass_name == "iree-fusion"} == {"0123", "s1-abc"}
    assert {r.pass_name for r in rows} == {KERNELS, "iree-fusion", RECIPE}
    assert export_wisdom(store, hardware="h1-other").rows == ()


SITE_KEY = f"{KERNELS}:group.1"


@pytest.mark.parametrize(
    ("recipe", "subjects"),
    [
        ({}, {"0123", "s1-abc"}),
        (MIXED.recipe, {"0123", "s1-abc"}),
        ({SITE_KEY: "iree"}, {"0123"}),
        ({SITE_KEY: "iree", f"{KERNELS}:{ID}": "iree"}, {"0123", "s1-abc"}),
    ],
)
def test_whole_recipes_are_exported_under_what_they_apply_to(store, tmp_path, recipe, subjects):
    whole = Implementation("0123", recipe)
    if whole.id != MIXED.id:
        store.add(whole)
    store.add(*traces(whole, WHOLE, 1e-3))
    wisdom = Wisdom.from_bytes(export_wisdom(store).to_bytes())
    rows = [r for r in wisdom.rows if r.pass_name == RECIPE]
    name = recipe_name(recipe)
    assert {r.subject for r in rows} == subjects and {r.choice for r in rows} == {name}
    assert wisdom.recipes == ({name: recipe} if recipe else {})
    with EvidenceStore.open(f"sqlite:///{tmp_path}/other.db") as other:
        import_wisdom(other, wisdom)
        assert other.get(Implementation, whole.id) is not None
    assert export_wisdom(store, least_sessions=3).rows == ()
    for state in (State.CANDIDATE, State.QUARANTINED):
        store.transition(IREE.id, SCOPE, STABLE, state, "test", "wrong results")
    assert "iree" not in {r.choice for r in export_wisdom(store).rows}


def test_times_of_several_threads_are_wall_times(store):
    there = Environments.from_facts({**HERE.facts(), "context": {"device": "local-task"}}, "m")
    session = replace(SESSIONS[0], env_id=there.id)
    store.add_place(there)
    store.add(session)
    store.add(*(replace(t, session_id=session.id) for t in traces(IREE, LOAD, 1e-5)[:3]))
    row = next(r for r in export_wisdom(store).rows if r.context == there.context)
    assert (row.clock, row.seconds, row.processes) == ("wall", 1.0, 3)


def test_imports_are_candidates_without_numbers(store, tmp_path):
    wisdom = export_wisdom(store)
    with EvidenceStore.open(f"sqlite:///{tmp_path}/other.db") as other:
        assert import_wisdom(other, wisdom) == 2
        assert import_wisdom(other, wisdom) == 0
        assert [s.state for s in other.states()] == [State.CANDIDATE, State.CANDIDATE]
        assert {i.recipe[KERNELS] for i in other.find(Implementation)} == {"iree", "rows:softmax"}
        assert other.get(Graph, ID) == GRAPH
        assert measured(other) == [] and export_wisdom(other).rows == ()
    # What is known here already keeps its state.
    store.transition(IREE.id, SCOPE, STABLE, State.CANDIDATE, "test", "")
    assert import_wisdom(store, wisdom) == 0


def test_a_text_that_contradicts_the_database_is_refused(store):
    wisdom = export_wisdom(store)
    forged = {name: replace(s, text="work 1\nother\n") for name, s in wisdom.subjects.items()}
    with pytest.raises(PycError) as caught:
        import_wisdom(store, Wisdom.of(wisdom.rows, forged))
    assert caught.value.code is ReasonCode.EVIDENCE_CONFLICT


def test_damage_is_found(store):
    assert list(problems(store)) == []
    with store.writing() as connection:
        connection.exec_driver_sql("INSERT INTO maintenance VALUES ('damage')")
        for statement in (
            f"UPDATE canonical_graphs SET text = 'other' WHERE graph_id = '{ID}'",
            f"UPDATE benchmark_traces SET p50 = 0.5 WHERE impl_id = '{IREE.id}' AND process = 1",
            f"UPDATE implementations SET recipe = '{{}}' WHERE id = '{PLAIN.id}'",
            f"UPDATE sessions SET probe = '[' WHERE id = '{SESSIONS[0].id}'",
        ):
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql("DELETE FROM maintenance")
    found = [problem.partition(" ")[0] for problem in problems(store)]
    assert sorted(found) == sorted(
        ["canonical_graphs", *["benchmark_traces"] * 2, "implementations", "sessions"]
    )


def test_old_toolchains_are_collected_and_what_decisions_rest_on_stays(store):
    facts = HERE.facts()
    for age in range(1, 4):
        place = Environments.from_facts({**facts, "toolchain": {"source": str(age)}}, HERE.machine)
        session = Session(place.id, "x", 1, 3, 0, 1, f"2025-01-0{4 - age}T00:00:00+00:00")
        store.add_place(place)
        store.add(session)
        store.add(*(replace(t, session_id=session.id) for t in traces(IREE, LOAD, 1e-5)[:3]))
        if age == 2:
            made = (session.id,)
            store.add(
                Verdict(IREE.id, DEFAULT.id, LOAD.id, "h", "t", made, 0.5, 0.4, 0.6, 0.01, "r",
                        "faster")
            )  # fmt: skip
        if age == 3:
            study = Study(ID, (LOAD.id,), place.id, "seconds", "", "random", 0,
                          normalizer=NORMALIZER)  # fmt: skip
            store.add(study)
            store.add_trials(study.id, [{"a": 1}])
            trial = store.claim(study.id, "w", 60)
            assert trial is not None
            store.finish(
                trial, replace(traces(IREE, LOAD, 1.0)[0], session_id=session.id, process=8)
            )
    before = store.counts()["benchmark_traces"]
    assert collect(store, 1, dry_run=True).traces == 3 + 3
    assert store.counts()["benchmark_traces"] == before
    assert len(collect(store, 1).toolchains) == 3
    # Age 1: all gone; age 2: its session has a verdict; age 3: its trial's trace.
    assert store.counts()["benchmark_traces"] == before - 6
    assert collect(store, 1).traces == 0 and list(problems(store)) == []


# The commands


def tune(url, *arguments) -> int:
    return pyc_tune.main(["--db", url, *arguments])


def test_commands(store, url, tmp_path, capsys):
    store.transition(IREE.id, SCOPE, STABLE, State.CANDIDATE, "tuner", "proposed")
    store.transition(IREE.id, SCOPE, STABLE, State.VERIFIED, "tuner", "equal results")
    made = tuple(s.id for s in SESSIONS)
    store.add(
        Verdict(
            IREE.id, DEFAULT.id, LOAD.id, "h", "t", made, 0.5, 0.45, 0.55, 0.01, "rule 1", "faster"
        )
    )
    assert tune(url, "ls") == 0
    reported = capsys.readouterr().out
    assert "benchmark_traces  12" in reported
    assert f"work    {ID[:16]}  1 ops, 2 implementations measured in 2 sessions" in reported
    assert tune(url, "show", ID[:9]) == 0
    reported = capsys.readouterr().out
    assert "softmax" in reported and "6 processes of 2 sessions" in reported
    assert tune(url, "show", traces(IREE, LOAD, 1e-5)[0].id[:12]) == 0
    assert "3 samples" in capsys.readouterr().out
    assert tune(url, "why", IREE.id[:12]) == 0
    reported = capsys.readouterr().out
    assert "verified    by tuner: equal results" in reported
    assert "verdict faster: 0.500 (0.450 to 0.550) of the time against" in reported
    path = str(tmp_path / "w.json")
    assert tune(url, "export", path, "--here") == 0
    wisdom = Wisdom.load(path)
    assert len(wisdom.rows) == 2 and wisdom.label in capsys.readouterr().out
    assert tune(f"sqlite:///{tmp_path}/new.db", "import", path) == 0
    assert "2 rows, 2 new candidates" in capsys.readouterr().out
    assert tune(url, "gc", "--dry-run") == 0
    assert "would remove 0 traces" in capsys.readouterr().out
    assert tune(url, "verify") == 0
    assert ", 0 damaged" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [(), ("show", "gone"), ("show", ""), ("why", ID[:9]), ("gc", "--keep-toolchains", "-1"),
     ("export", "/gone/w.json"), ("import", "/gone/w.json")],
)  # fmt: skip
def test_wrong_use(store, url, arguments, capsys):
    unread = not arguments or arguments[0] == "gc"
    assert tune(url, *arguments) == (2 if unread else 1)
    assert capsys.readouterr().err.startswith("pyc-tune: error: ")


def test_the_default_database_is_the_users_own(tmp_path):
    assert pyc_tune.default_url({"PYC_DB": "postgresql://host/name"}) == "postgresql://host/name"
    url = pyc_tune.default_url({"XDG_DATA_HOME": str(tmp_path)})
    assert url == f"sqlite:///{tmp_path}/pyc-mlir/evidence.db"
    assert (tmp_path / "pyc-mlir").is_dir()


def test_without_sqlalchemy_the_remedy_is_told(tmp_path):
    script = (
        "import sys; sys.modules['sqlalchemy'] = None; from pyc_mlir.tools import pyc_tune; "
        "sys.exit(pyc_tune.main(['--db', 'sqlite:///x.db', 'ls']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1 and "pip install '.[tune]'" in done.stderr
