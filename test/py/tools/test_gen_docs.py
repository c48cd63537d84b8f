"""The generated pages: complete, the same every time, and noticed when they are stale."""

import pytest

from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import OPS, new_context
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Report, record
from pyc_mlir.pipelines.driver.registry import BUILT_IN
from pyc_mlir.tools.docs.examples import EXAMPLES, example_of
from pyc_mlir.tools.docs.gen_docs import PAGES, generate, main


@pytest.fixture
def docs(tmp_path):
    folder = tmp_path / "docs"
    (folder / "results").mkdir(parents=True)
    records = [
        record("encoder", "pyc", "latency", "s", 0.5),
        record("encoder", "iree", "latency", "s", 1.0),
    ]
    report = Report("encoder", probe(), {"rounds": 15}, records)
    report.save(folder / "results" / "encoder.json")
    return folder


@pytest.mark.full
def test_pages_name_everything(docs):
    pages = {path.name: text for path, text in generate(docs).items()}
    assert list(pages) == [*PAGES, "results.md", "encoder.md"]
    for name in OPS:
        assert (
            f'"pyc.{name}"(' in pages["dialect.md"] and f"### pyc.{name}\n" in pages["dialect.md"]
        )
    for name in BUILT_IN:
        assert f"## {name}\n" in pages["passes.md"]
    for code in ReasonCode:
        assert f"| `{code.name}` |" in pages["errors.md"]
    assert "| [encoder](results/encoder.md) | encoder | `encoder` |" in pages["results.md"]
    assert "| encoder | latency | 500 ms | 1 s | 2x |" in pages["encoder.md"]
    assert "Settings: rounds: 15." in pages["encoder.md"]


@pytest.mark.full
def test_reports_of_one_goal_share_a_page(docs):
    folder = docs / "results"
    report = (folder / "encoder.json").read_text()
    for stem in ("overhead", "start"):
        (folder / f"{stem}.json").write_text(report)
    pages = {str(path.relative_to(docs)): text for path, text in generate(docs).items()}
    assert "## overhead\n" in pages["results/calls.md"]
    assert "## start\n" in pages["results/calls.md"]
    assert "results/overhead.md" not in pages
    assert "`overhead`, `start`" in pages["results.md"]


def test_examples_have_no_rows_for_ops_that_do_not_exist():
    assert set(EXAMPLES) <= set(OPS)


@pytest.mark.parametrize("name", OPS)
def test_every_op_has_an_example_that_fits(name):
    example = example_of(OPS[name])
    with new_context(), ir.Location.unknown():
        inferred = OPS[name].infer(*example.types, **OPS[name].bind(example.params))
    results = inferred if isinstance(inferred, (tuple, list)) else [inferred]
    assert results and all(isinstance(result, TensorType) for result in results)


@pytest.mark.full
def test_writing_then_checking_finds_nothing_stale(docs, capsys):
    assert main(["--check", "--docs", str(docs)]) == 1
    assert "docs/dialect.md is stale" in capsys.readouterr().out
    assert main(["--docs", str(docs)]) == 0
    assert main(["--check", "--docs", str(docs)]) == 0
    (docs / "errors.md").write_text("edited by hand")
    capsys.readouterr()
    assert main(["--check", "--docs", str(docs)]) == 1
    assert capsys.readouterr().out == "docs/errors.md is stale; run `make docs`\n"


def test_a_malformed_result_is_named(docs, capsys):
    (docs / "results" / "broken.json").write_text("{}")
    assert main(["--docs", str(docs)]) == 1
    assert "broken.json" in capsys.readouterr().err


@pytest.mark.full
def test_no_results_yet(docs):
    (docs / "results" / "encoder.json").unlink()
    pages = {path.name: text for path, text in generate(docs).items()}
    assert "no results are stored yet" in pages["results.md"]
