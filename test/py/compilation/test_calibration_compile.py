"""Compiling with a calibration: the log and the manifest name it, costs follow its figures."""

from pathlib import Path

import numpy as np
import pytest
from calibrations import calibration, host_calibration
from modules import with_manifest

from pyc_mlir.api import build, compile
from pyc_mlir.artifact import artifact
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.manifest import CalibrationName
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import emit, lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.choices import Decision, Recipe
from pyc_mlir.pipelines.choices.evidence import ContentHash
from pyc_mlir.pipelines.choices.log import decisions_of, read_log
from pyc_mlir.pipelines.choices.wisdom import CALIBRATION_SITE as SITE
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.runtime.device import Device
from pyc_mlir.tools import pyc_compile

TEXT = """func.func @main(%x: tensor<16x64xf32>) -> tensor<16x64xf32> {
  %0 = "pyc.softmax"(%x) {axis = 1 : i64} : (tensor<16x64xf32>) -> tensor<16x64xf32>
  %1 = "pyc.exp"(%0) : (tensor<16x64xf32>) -> tensor<16x64xf32>
  return %1 : tensor<16x64xf32>
}
"""
FOREIGN = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = math.exp %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""


def made(figures: Calibration | None = None, recipe: Recipe | None = None) -> Artifact:
    return build(TEXT, None, make_options(calibration=figures, recipe=recipe))


def named(decisions: tuple[Decision, ...] | list[Decision]) -> list[Decision]:
    return [d for d in decisions if d.site.pass_name == SITE.pass_name]


@pytest.fixture(scope="module")
def plain() -> Artifact:
    return made()


@pytest.fixture(scope="module")
def measured() -> Artifact:
    return made(host_calibration())


def test_log_and_manifest_name_it(measured, tmp_path: Path):
    used = host_calibration()
    again = artifact.from_bytes(artifact.to_bytes(measured))
    assert again.manifest.calibration == CalibrationName("lab", used.hash)
    (decision,) = named(list(again.decisions))
    assert (decision.site, decision.chosen) == (SITE, used.label)
    assert [a.name for a in decision.alternatives] == [used.label, "published"]
    assert decision.grounds == (ContentHash(used.hash, "lab"),)


def test_without_one_nothing_names_it(plain):
    assert not named(list(plain.decisions)) and plain.manifest.calibration is None


def test_a_damaged_manifest_is_told(plain):
    data = with_manifest(artifact.to_bytes(plain), {"calibration": "lab"})
    with pytest.raises(PycError, match=r"got manifest.calibration: expected Cal") as caught:
        artifact.from_bytes(data)
    assert caught.value.code is ReasonCode.BAD_ARTIFACT


def test_equal_calibrations_make_equal_bytes(measured):
    assert artifact.to_bytes(made(host_calibration())) == artifact.to_bytes(measured)


def test_the_program_runs(tmp_path: Path):
    file = tmp_path / "lab.json"
    file.write_bytes(host_calibration().to_bytes())
    program = compile(TEXT, calibration=file, device=Device("local-sync"))
    x = np.linspace(-2, 2, 16 * 64, dtype=np.float32).reshape(16, 64)
    powers = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    expected = np.exp(powers / powers.sum(1, keepdims=True))
    np.testing.assert_allclose(program(x), expected, rtol=2e-6)


def predicted(figures: Calibration) -> tuple[float, list[float]]:
    """Seconds of the program, and of each alternative that the kernels' choice had."""
    lowered = lower(Job.of(TEXT, None, make_options(calibration=figures)))
    chosen = [d for d in lowered.decisions if d.site.pass_name == "pyc-select-kernels"]
    assert chosen and lowered.prediction is not None
    return lowered.prediction.seconds, [
        a.cost.seconds for d in chosen for a in d.alternatives if a.cost
    ]


def test_predicted_costs_follow_the_figures():
    fast = host_calibration(flops=4e12, bandwidth=4e11, dispatch=0.0)
    slow = host_calibration(flops=1e12, bandwidth=1e11, dispatch=0.0)
    (whole, parts), (whole_slow, parts_slow) = predicted(fast), predicted(slow)
    assert whole_slow == pytest.approx(4 * whole)
    assert sorted(parts_slow) == pytest.approx(sorted(4 * p for p in parts))


def test_each_dispatch_adds_its_cost():
    free, dear = host_calibration(dispatch=0.0), host_calibration(dispatch=1e-3)
    added = predicted(dear)[0] - predicted(free)[0]
    assert added / 1e-3 == pytest.approx(round(added / 1e-3)) and added >= 1e-3


def test_a_recipe_replays_under_its_calibration(measured):
    recipe = Recipe.from_log(measured.decisions)
    replayed = made(host_calibration(), recipe)
    assert artifact.to_bytes(replayed) == artifact.to_bytes(measured)


@pytest.mark.parametrize("other", [None, host_calibration(flops=1e11), host_calibration("den")])
def test_a_recipe_of_another_calibration_is_refused(measured, other):
    recipe = Recipe.from_log(measured.decisions)
    for compiling in (
        made,
        lambda c, r: emit(Job.of(TEXT, None, make_options(recipe=r, calibration=c)), "pyc"),
    ):
        with pytest.raises(PycError, match="that the recipe was made under") as caught:
            compiling(other, recipe)
        assert caught.value.code is ReasonCode.RECIPE_MISMATCH
        assert host_calibration().label in str(caught.value)


def test_a_recipe_that_names_none_is_used_under_any(plain):
    replayed = made(host_calibration(), Recipe.from_log(plain.decisions))
    choices = {d.site.key: d.chosen for d in replayed.decisions}
    assert len(named(list(replayed.decisions))) == 1
    assert {d.site.key: d.chosen for d in plain.decisions}.items() <= choices.items()


def test_a_program_that_enters_at_iree_names_it_too():
    options = make_options(calibration=host_calibration())
    assert len(named(lower(Job.of(FOREIGN, None, options)).decisions)) == 1
    assert len(named(emit(Job.of(FOREIGN, None, options), "linalg")[1])) == 1


def test_another_cpu_is_refused():
    with pytest.raises(PycError, match="expected the CPU") as caught:
        make_options(calibration=calibration(cpu="Other CPU 6 85"))
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


@pytest.mark.full
def test_pyc_compile_takes_it(tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("m.mlir").write_text(TEXT)
    Path("lab.json").write_bytes(host_calibration().to_bytes())
    command = ["m.mlir", "--calibration", "lab.json"]
    assert pyc_compile.run([*command, "-o", "m.vmfb", "--log", "log.jsonl"]) == 0
    assert (
        named(decisions_of(read_log("log.jsonl"))) and artifact.read("m.vmfb").manifest.calibration
    )
    assert pyc_compile.run([*command, "--emit", "linalg", "-o", "m.txt", "--log", "l.jsonl"]) == 0
    assert named(decisions_of(read_log("l.jsonl")))
    Path("lab.json").write_text("{}")
    assert pyc_compile.run([*command, "-o", "m.vmfb"]) == 1
    assert "lab.json: expected schema 1, got None" in capsys.readouterr().err
