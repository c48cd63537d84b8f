"""`tune` and `pyc-tune MODEL`, on simulated measurements of real models."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed: pip install '.[tune]'")

from suites.simulated import Failed, Simulated

from pyc_mlir import compile as compile_program
from pyc_mlir import nn
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.exchange import export_wisdom
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import State, Status, Study, Verdict
from pyc_mlir.lab.tune.search import with_known
from pyc_mlir.lab.tune.study import EFFORTS, StudyBudget, budget_of
from pyc_mlir.lab.tune.tuner import Bench, program_of, tune_program
from pyc_mlir.measure.environment import current_place
from pyc_mlir.pipelines.choices.space import split_variant
from pyc_mlir.runtime.selection.verdict import VerdictKind
from pyc_mlir.tools import pyc_tune
from pyc_mlir.tools.pyc_tune import with_command
from pyc_mlir.tools.tune.studies import result_lines

RNG = np.random.default_rng(0)
WEIGHTS = [RNG.normal(size=(64, 64)).astype(np.float32) for _ in range(2)]
X = np.zeros((8, 64), np.float32)
HERE = current_place("local-sync", 1, "recycling")


def mlp(x):
    return nn.relu(x @ WEIGHTS[0]) @ WEIGHTS[1]


def cost(subject, candidate):
    """Kernels of greater height are faster, IREE's code is slow, one setting is wrong."""
    seconds = 1e-6
    for choice in candidate.recipe.values():
        name, label = split_variant(choice)
        if name == "iree":
            seconds += 1e-3
        if "unroll=8" in label:
            return Failed(Status.WRONG, "off by 1")
        seconds += 1e-4 * (1.0 - 0.5 * ("height=4" in label))
    # The program without a recipe has its two kernels too.
    return seconds if candidate.recipe else 2e-4 + 1e-6


def slower_as_a_whole(subject, candidate):
    """Choices that are faster by themselves make the program slower."""
    if subject.graph.kind == "program":
        return 2e-3 if candidate.recipe else 1e-3
    return cost(subject, candidate)


@pytest.fixture(scope="module")
def program():
    return program_of(mlp, [X])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'pyc.db'}"


def tuned(program, url, costs=cost, effort="measure", evaluations=64):
    executor = ThreadPoolExecutor(1)
    bench = Bench(executor, 1, Simulated(costs, place=HERE), HERE)
    return tune_program(program, EFFORTS[effort], StudyBudget(evaluations=evaluations), url, bench)


def test_the_works_of_a_program(program):
    assert len(program.works) == 2
    for work in program.works:
        assert work.incumbent.startswith("gemm:matmul")
        assert [w.name for w in work.space.alternatives] == [work.incumbent, "iree"]
        assert work.space.size > 100 and work.seconds > 0
        assert all(site.startswith("pyc-select-kernels:") for site in work.sites)
        assert work.choice(work.first[0]) == work.incumbent


def test_a_program_is_tuned_and_wisdom_picks_the_result(program, url):
    result = tuned(program, url)
    assert len(result.changed) == 2 and result.state == State.MEASURED and not result.left
    assert result.program is not None and result.program.answer is VerdictKind.FASTER
    assert all("height=4" in choice for choice in result.recipe.values())
    with EvidenceStore.open(url) as store:
        assert len(store.find(Verdict)) == 3
        wisdom = export_wisdom(store, HERE.hardware, HERE.toolchain)
    made = compile_program(mlp, [X], policy="fastest", wisdom=wisdom)
    chosen = {d.site.key: d for d in made.artifact.decisions if d.site.key in result.recipe}
    assert {key: d.chosen for key, d in chosen.items()} == dict(result.recipe)
    for decision in chosen.values():
        assert any(wisdom.label in str(e) for e in decision.grounds), decision.grounds


def test_what_is_printed_names_gain_use_and_what_is_unclear(program, url):
    text = "".join(result_lines(tuned(program, url)))
    assert "2.00x" in text or "1.9" in text
    assert "pyc-tune export wisdom.json --here" in text
    assert "--policy fastest --wisdom wisdom.json" in text
    assert "whole program:" in text and "the recipe is measured" in text


def test_the_same_call_measures_nothing_again(program, url):
    def unasked(subject, candidate):
        raise AssertionError("nothing is left to measure")

    first = tuned(program, url)
    assert tuned(program, url, unasked).recipe == first.recipe


def test_choices_that_make_the_program_slower_are_retired(program, url):
    result = tuned(program, url, slower_as_a_whole)
    assert result.state == State.RETIRED
    with EvidenceStore.open(url) as store:
        assert not store.states(state=State.MEASURED)
        rows = export_wisdom(store).rows
    # The program's own way has a row too.
    own = {"heuristic", *(work.incumbent for work in program.works)}
    assert {row.choice for row in rows} <= own


def test_choices_that_make_the_program_wrong_are_retired(program, url):
    def wrong(subject, candidate):
        if subject.graph.kind == "program" and candidate.recipe:
            return Failed(Status.WRONG, "off by 1")
        return cost(subject, candidate)

    result = tuned(program, url, wrong)
    assert result.program is None and result.state == State.QUARANTINED
    assert "the recipe does not count" in "".join(result_lines(result))
    with EvidenceStore.open(url) as store:
        assert not store.states(state="measured") and len(store.states(state="retired")) == 2
        before = store.counts()["transitions"]
    assert tuned(program, url, wrong).state == State.QUARANTINED
    with EvidenceStore.open(url) as store:
        assert store.counts()["transitions"] == before, "the same evidence moves nothing again"


def test_wrong_choices_are_quarantined_and_left_out(program, url):
    tuned(program, url, evaluations=64)
    with EvidenceStore.open(url) as store:
        bad = {s.impl_id for s in store.states(state=State.QUARANTINED)}
        assert bad
        assert not any("unroll=8" in row.choice for row in export_wisdom(store).rows)


def test_estimate_measures_nothing(program, url):
    def unasked(subject, candidate):
        raise AssertionError("an estimate measures nothing")

    result = tuned(program, url, unasked, effort="estimate")
    assert not result.trials and "estimate" in result.left


def test_an_interrupt_ends_with_what_is_known(program, url):
    requested = []

    def interrupted(subject, candidate):
        requested.append(candidate)
        if len(requested) == 15:
            raise KeyboardInterrupt
        return cost(subject, candidate)

    result = tuned(program, url, interrupted)
    assert result.left == "interrupted" and 0 < result.trials < 15
    assert not result.recipe and any(work.tried for work in result.works)
    assert f"pyc-tune resume {result.study_id[:16]}" in "".join(result_lines(result))
    assert tuned(program, url).state == State.MEASURED


def test_a_neighbour_s_choice_is_tried_first(program, url):
    tuned(program, url)
    wide = RNG.normal(size=(64, 96)).astype(np.float32)
    other = program_of(lambda x: x @ wide, [X])
    with EvidenceStore.open(url) as store:
        (work,) = with_known(store, other.works, HERE)
        again = with_known(store, program.works, HERE)
    assert work.known and all("height=4" in choice for choice in work.known)
    assert work.choice(work.first[1]) == work.known[0]
    assert work.uncertainty == other.works[0].uncertainty, "nothing was measured of it"
    assert all(a.uncertainty < b.uncertainty for a, b in zip(again, program.works, strict=True))


@pytest.mark.parametrize(
    ("text", "budget"),
    [("10min", (600.0,)), ("90s", (90.0,)), ("2h", (7200.0,)), ("500", (None, 500)),
     (1.5, (1.5,)), (None, ())],
)  # fmt: skip
def test_budgets(text, budget):
    assert budget_of(text) == StudyBudget(*budget)


@pytest.mark.parametrize("text", ("", "ten", "-5s", "0", "1.5", "infs", "nan", "5 days"))
def test_other_budgets_are_refused(text):
    with pytest.raises(PycError, match="expected a time such as 90s") as caught:
        budget_of(text)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


@pytest.mark.parametrize(
    ("given", "read"),
    (
        (["ls"], ["ls"]),
        (["--db", "U", "ls"], ["--db", "U", "ls"]),
        (["--db=U", "ls"], ["--db=U", "ls"]),
        (["--db=U", "m.onnx"], ["--db=U", "tune", "m.onnx"]),
        (["m.onnx", "--budget", "5"], ["tune", "m.onnx", "--budget", "5"]),
        (["--db", "U", "m.onnx"], ["--db", "U", "tune", "m.onnx"]),
        (["--effort", "measure", "m.onnx"], ["tune", "--effort", "measure", "m.onnx"]),
        (["--help"], ["--help"]),
        ([], []),
    ),
)
def test_a_model_s_name_stands_for_tuning_it(given, read):
    assert with_command(given, ("ls", "tune")) == read


@pytest.mark.parametrize("command", pyc_tune.COMMANDS)
def test_each_command_is_known_as_one(command, capsys):
    assert pyc_tune.main([command, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: pyc-tune {command} ")


def test_the_command_line(url, tmp_path, capsys):
    source = tmp_path / "model.mlir"
    source.write_text(
        "func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {\n"
        '  %0 = "pyc.relu"(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>\n'
        "  return %0 : tensor<8x8xf32>\n}\n"
    )
    assert pyc_tune.main([str(source), "--effort", "estimate", "--db", url]) == 0
    reported = capsys.readouterr().out
    assert "nothing is measured with the effort `estimate`" in reported
    assert "estimated: " in reported
    with EvidenceStore.open(url) as store:
        (study,) = store.find(Study)
    assert pyc_tune.main(["--db", url, "resume", study.id[:12]]) == 0
    assert study.id[:16] in capsys.readouterr().out
    assert pyc_tune.main(["worker", "--db", url, "--idle", "0.1"]) == 0
    assert "0 trials measured" in capsys.readouterr().out
    for wrong in (
        ["--effort", "pateint", str(source)],
        [str(source), "--budget", "soon"],
        [str(source), "--workers", "-1"],
        ["resume", "0000"],
    ):
        assert pyc_tune.main([*wrong, "--db", url]) == 1
        assert "BAD_ARGUMENT" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", (["--help"], ["tune", "--help"]))
def test_the_help_needs_no_database(arguments):
    code = "import sys; sys.modules['sqlalchemy'] = None; from pyc_mlir.tools import pyc_tune; "
    code += f"sys.exit(pyc_tune.main({arguments}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and (
        "--effort" in done.stdout or "write measured choices" in done.stdout
    )
