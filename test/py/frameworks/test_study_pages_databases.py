"""The page of a study: every trial is there, charts are well-formed, nothing is fetched."""

import re
from xml.etree import ElementTree

import pytest

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install '.[tune]'")

from lane_sessions import DEFAULT, GRAPH, SMALL, place

from pyc_mlir.evidence.database.store import EvidenceStore
from pyc_mlir.evidence.rows import Implementation, Prediction, Session, Study, Trace, samples
from pyc_mlir.tools import pyc_tune
from pyc_mlir.tools.tune.study_facts import best_so_far, facts_of
from pyc_mlir.tools.tune.study_page import page

HERE = place()
NOTED = {"flops": 1e9, "bytes": 1e7, "peak_flops": 1e11, "peak_bandwidth": 1e10}


def study(store, budget) -> Study:
    made = Study("g1", (SMALL.id,), HERE.id, "seconds", "", "local", 1, budget)
    session = Session(HERE.id, "s", 1, 3, 0, 1, "2026-01-01")
    store.add_place(HERE)
    store.add(GRAPH, SMALL, DEFAULT, made, session)
    store.add_trials(made.id, [{"rows": n, "why": "<b>"} for n in range(6)], [1e-2, *[None] * 5])
    for number, (seconds, arena) in enumerate([(2e-2, 9), (1e-2, 20), (3e-2, 5), (4e-2, 30)]):
        trial = store.claim(made.id, "w", 60)
        way = Implementation("g1", {"pass": str(number)}, arena_bytes=arena)
        told = Prediction("m", way.id, SMALL.id, HERE.id, seconds * 1.1, seconds, seconds * 2)
        store.add(way, told)
        store.finish(trial, Trace(session.id, way.id, SMALL.id, wall=samples([seconds] * 3)))
    store.fail(store.claim(made.id, "w", 60), "crash & burn")
    return made


@pytest.fixture
def store(tmp_path):
    with EvidenceStore.open(f"sqlite:///{tmp_path}/pyc.db") as opened:
        yield opened


def test_facts(store):
    facts = facts_of(store, study(store, {}))
    assert [p.state for p in facts.points] == ["done"] * 4 + ["failed", "waiting"]
    assert facts.clock == "wall" and facts.best is not None and facts.best.number == 1
    assert best_so_far(facts.measured) == [(0, 2e-2), (1, 1e-2)]
    assert [p.number for p in facts.frontier()] == [1, 0, 2]
    assert facts.points[0].predicted == 1e-2 and facts.points[1].low == 1e-2


def test_the_page(store):
    text = page(facts_of(store, study(store, NOTED)))
    charts = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(charts) == 4
    for chart in charts:
        root = ElementTree.fromstring(chart)
        assert root.get("role") == "img" and root.get("aria-label")
        assert len(root.findall(".//{*}circle")) == 4
        assert "nan" not in chart
    assert text.count("<tr>") == 7 and "crash &amp; burn" in text and "<b>," not in text
    # The namespace of SVG is a name, not an address that is fetched.
    assert not re.search(r"(src|href)=", text)
    assert "default-src 'none'" in text


def test_a_study_without_numbers_says_so(store):
    text = page(facts_of(store, study(store, {})))
    assert "does not note operations" in text and text.count("<svg") == 3


def test_the_command(store, tmp_path, capsys):
    made = study(store, NOTED)
    out = tmp_path / "page.html"
    tune = lambda *a: pyc_tune.main(["--db", store.url, *a])  # noqa: E731
    assert tune("report", made.id[:9], "-o", str(out)) == 0
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert tune("report", DEFAULT.id[:9], "-o", str(out)) == 1
    assert tune("report", made.id[:9], "-o", "/gone/p.html") == 1
    empty = Study("g1", (SMALL.id,), HERE.id, "seconds", "", "random", 9)
    store.add(empty)
    assert tune("report", empty.id[:9], "-o", str(out)) == 1
