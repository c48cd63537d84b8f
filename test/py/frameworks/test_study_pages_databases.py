"""The page of a study: every trial is there, charts are well-formed, nothing is fetched."""

import re
from xml.etree import ElementTree

import pytest

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install '.[tune]'")

from lane_sessions import DEFAULT, GRAPH, SMALL, place

from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import (
    Graph,
    Implementation,
    Prediction,
    Session,
    Study,
    Trace,
    Workload,
    samples,
)
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.tools import pyc_tune
from pyc_mlir.tools.tune.study_page import best_so_far, facts_of, page

HERE = place()
WORK = """work 1
() input tensor<32x256xf32>
() constant tensor<256x512xf32>
(%0, %1) matmul : tensor<32x512xf32>
(%2) relu : tensor<32x512xf32>
(%3) read by matmul
"""


def study(store) -> Study:
    made = Study("g1", (SMALL.id,), HERE.id, "seconds", "", "local", 1)
    session = Session(HERE.id, "s", 1, 3, 0, 1, "2026-01-01")
    store.add_place(HERE)
    store.add(GRAPH, SMALL, DEFAULT, made, session)
    store.add_trials(made.id, [{"rows": n, "why": "<b>"} for n in range(6)], [1e-2, *[None] * 5])
    for number, (seconds, arena) in enumerate([(2e-2, 9), (1e-2, 20), (3e-2, 5), (4e-2, 30)]):
        trial = store.claim(made.id, "w", 60)
        way = Implementation("g1", {"pass": str(number)}, arena_bytes=arena)
        reported = Prediction("m", way.id, SMALL.id, HERE.id, seconds * 1.1, seconds, seconds * 2)
        store.add(way, reported)
        store.finish(trial, Trace(session.id, way.id, SMALL.id, wall=samples([seconds] * 3)))
    store.fail(store.claim(made.id, "w", 60), "crash & burn")
    return made


@pytest.fixture
def store(tmp_path):
    with EvidenceStore.open(f"sqlite:///{tmp_path}/pyc.db") as opened:
        yield opened


def tuned(store) -> Study:
    """A study as `pyc-tune` leaves it: a session of an incumbent and two choices of a kernel."""
    row = Graph("w1-a", "work", "w1-a", WORK, 2)
    load = Workload("w1-a", {})
    made = Study("g1", ("w1-a",), HERE.id, "seconds of works", "", "portfolio", 1, {"effort": "x"})
    store.add_place(HERE)
    session = Session(HERE.id, "s", 1, 3, 0, 2, "2026-01-01")
    store.add(GRAPH, row, load, made, session)
    recipes = [{"select": name} for name in ("gemm:matmul", "gemm:matmul[height=4]", "iree")]
    config = {"graph": "w1-a", "recipes": recipes, "repeat": 0, "stage": "search"}
    failing = {**config, "recipes": [recipes[0], {"select": "gemm:matmul[height=99]"}]}
    store.add_trials(made.id, [config, failing])
    trial = store.claim(made.id, "w", 60)
    traces = []
    for recipe, seconds in zip(recipes, (2e-3, 1e-3, 4e-3), strict=True):
        way = Implementation("w1-a", recipe)
        store.add(way)
        for process in range(2):
            times = samples([seconds * (1 + process)] * 3)
            traces.append(Trace(session.id, way.id, load.id, process, wall=times, cpu=times))
    store.add(*traces)
    store.finish(trial, traces[2])
    store.fail(store.claim(made.id, "w", 60), "refused")
    return made


def test_facts(store):
    facts = facts_of(store, study(store))
    (graph,) = facts.graphs
    assert [p.state for p in graph.points] == ["done"] * 4 + ["failed", "waiting"]
    assert facts.clock == "wall" and graph.best is not None and graph.best.number == 1
    assert (facts.trials, facts.failed, graph.flops) == (6, 1, None)
    assert best_so_far(graph.measured) == [(0, 2e-2), (1, 1e-2)]
    assert [p.number for p in graph.frontier()] == [1, 0, 2]
    assert graph.points[0].predicted == pytest.approx(2.2e-2) and graph.points[1].low == 1e-2


def test_a_tuned_kernel_has_a_point_for_each_candidate_of_a_session(store):
    facts = facts_of(store, tuned(store))
    (graph,) = facts.graphs
    assert [(p.choice, p.seconds, p.incumbent) for p in graph.points] == [
        ("gemm:matmul[height=4]", 1.5e-3, 3e-3),
        ("iree", 6e-3, 3e-3),
        ("gemm:matmul[height=99]", None, None),
    ]
    assert facts.clock == "cpu" and graph.title == "matmul+relu to 32x512"
    assert graph.flops == 2 * 32 * 256 * 512 + 32 * 512
    assert graph.traffic_bytes == 4 * (32 * 256 + 256 * 512 + 32 * 512)


def charts_of(text: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", text, re.DOTALL)


def test_the_page(store):
    text = page(facts_of(store, study(store)))
    for chart in (charts := charts_of(text)):
        root = ElementTree.fromstring(chart)
        assert root.get("role") == "img" and root.get("aria-label")
        assert len(root.findall(".//{*}circle")) == 4
        assert "nan" not in chart
    assert len(charts) == 3 and "no single intensity" in text
    assert text.count("<tr>") == 7 and "crash &amp; burn" in text and "<b>," not in text
    # The namespace of SVG is a name, not an address that is fetched.
    assert not re.search(r"(src|href)=", text)
    assert "default-src 'none'" in text


def test_a_kernel_has_a_roofline_with_a_roof_where_the_machine_is_known(store):
    facts = facts_of(store, tuned(store))
    model = CostModel(Target.named("cpu-avx2"), threads=1)
    (bare,) = [c for c in charts_of(page(facts)) if "operations a byte" in c]
    (roofed,) = [c for c in charts_of(page(facts, model)) if "operations a byte" in c]
    assert bare.count("<circle") == roofed.count("<circle") == 2
    assert "line before" in roofed and "line before" not in bare
    assert "published figures" in page(facts, model)


def test_the_command(store, tmp_path, capsys):
    made = study(store)
    out = tmp_path / "page.html"
    tune = lambda *a: pyc_tune.main(["--db", store.url, *a])  # noqa: E731
    assert tune("report", made.id[:9], "-o", str(out)) == 0
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert tune("report", DEFAULT.id[:9], "-o", str(out)) == 1
    assert tune("report", made.id[:9], "-o", "/gone/p.html") == 1
    empty = Study("g1", (SMALL.id,), HERE.id, "seconds", "", "random", 9)
    store.add(empty)
    assert tune("report", empty.id[:9], "-o", str(out)) == 1
