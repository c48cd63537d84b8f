"""`pyc-explain --what-if` and the flags of `pyc-compile --policy explore`."""

from argparse import Namespace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from pythons import without_compilers
from wisdoms import KERNELS, reversed_wisdom

from pyc_mlir import PycError, nn, spec
from pyc_mlir.artifact.artifact import Artifact, write
from pyc_mlir.compilation.attempts import build_here
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.options import make_options
from pyc_mlir.lab.simulation.residuals import PROGRAM, Residual, Residuals
from pyc_mlir.lab.simulation.simulator import Simulator
from pyc_mlir.pipelines.choices.log import RecipeFile
from pyc_mlir.tools.cli import exploring
from pyc_mlir.tools.pyc_explain import main

W = np.random.default_rng(0).standard_normal((32, 32), dtype=np.float32)


@cache
def artifact() -> Artifact:
    return build_here(
        Job.of(lambda x: nn.softmax(nn.relu(x @ W)), [spec("f32", (8, 32))], make_options())
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A program, a recipe that takes IREE's code everywhere, wisdom, and residuals."""
    write(artifact(), tmp_path / "model.vmfb")
    decisions = [d for d in artifact().decisions if d.site.pass_name == KERNELS]
    choices = {d.site.key: "iree" for d in decisions}
    graph = artifact().manifest.graph_id
    (tmp_path / "recipe.json").write_bytes(RecipeFile(graph, choices).to_bytes())
    (tmp_path / "wisdom.json").write_bytes(reversed_wisdom(decisions).to_bytes())
    here = Simulator.of(artifact()).here.environment
    rows = [Residual(here, PROGRAM, f"p{i}", 1e-3, 1e-3 + i * 1e-6) for i in range(12)]
    (tmp_path / "residuals.json").write_bytes(Residuals.of(rows).to_bytes())
    return tmp_path


def requested(folder: Path, *more: str) -> list[str]:
    return [str(folder / "model.vmfb"), "--what-if", str(folder / "recipe.json"), *more]


def test_it_says_what_changes_and_on_what_that_rests(files: Path, capsys):
    assert main(requested(files)) == 0
    reported = capsys.readouterr().out
    assert reported.startswith("as compiled ")
    assert "0 ns measured" in reported
    assert "not calibrated" in reported
    assert "iree: " in reported
    assert "cost model" in reported


def test_wisdom_and_residuals_are_used(files: Path, capsys):
    more = ["--wisdom", str(files / "wisdom.json"), "--residuals", str(files / "residuals.json")]
    assert main(requested(files, *more)) == 0
    reported = capsys.readouterr().out
    assert "measured -> " in reported
    assert "covers 90% by 12 programs measured here" in reported


def test_it_needs_no_compiler(files: Path):
    assert "as compiled" in without_compilers("pyc_explain", *requested(files))


def test_what_does_not_fit_is_refused(files: Path, capsys):
    assert main([str(files / "model.vmfb"), "--wisdom", str(files / "wisdom.json")]) == 2
    assert "--what-if" in capsys.readouterr().err
    other = RecipeFile(artifact().manifest.graph_id, {"pyc-fuse:nowhere": "keep"})
    (files / "recipe.json").write_bytes(other.to_bytes())
    assert main(requested(files)) == 1
    assert "RECIPE_MISMATCH" in capsys.readouterr().err


def flags(**changes) -> Namespace:
    values = {"policy": "explore", "explore_budget": None, "explore_db": None, "model": "m"}
    return Namespace(**{**values, **changes})


@pytest.mark.parametrize(
    "wrong",
    [
        {"explore_db": "sqlite:///x.db"},
        {"explore_budget": 0.0, "explore_db": "sqlite:///x.db"},
        {"explore_budget": 5.0, "explore_db": "sqlite:///x.db", "policy": "fastest"},
    ],
)
def test_flags_of_explore_that_lack_each_other_are_refused(wrong):
    with pytest.raises(PycError, match="command line: expected"):
        exploring.check(flags(**wrong))


def test_flags_of_explore_that_fit_are_taken():
    exploring.check(flags())
    exploring.check(flags(explore_budget=5.0))
    exploring.check(flags(explore_budget=5.0, explore_db="sqlite:///x.db"))
