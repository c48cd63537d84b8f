"""Replays: the same bytes from a log or a program, or an error that names what differs."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from calibrations import host_calibration
from faults import fault

from pyc_mlir import Contract, PycError, ReasonCode, Target, TensorSpec, nn
from pyc_mlir.api import build
from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.compile_log import CompileLog, head_of, read_compile_log, recipe_at
from pyc_mlir.compilation import attempts
from pyc_mlir.compilation.build import Plan
from pyc_mlir.compilation.options import Options, make_options
from pyc_mlir.debug import replay
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.pipelines.choices.evidence import Note
from pyc_mlir.pipelines.choices.log import COMPILE, Conditions, load_recipe, write_log
from pyc_mlir.tools import pyc_compile

TEXT = """func.func @main(%x: tensor<?x32xf32> {pyc.name = "x", pyc.dims = ["n", ""]},
    %w: tensor<32x32xf32> {pyc.name = "w", pyc.dims = ["", ""]}) -> tensor<?x32xf32> {
  %0 = "pyc.matmul"(%x, %w) : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
  %1 = "pyc.softmax"(%0) : (tensor<?x32xf32>) -> tensor<?x32xf32>
  %2 = "pyc.matmul"(%1, %w) : (tensor<?x32xf32>, tensor<32x32xf32>) -> tensor<?x32xf32>
  %3 = "pyc.tanh"(%2) : (tensor<?x32xf32>) -> tensor<?x32xf32>
  return %3 : tensor<?x32xf32>
}
"""
FOREIGN = """func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = math.tanh %x : tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
"""
DIMS = {"n": (1, 8)}


def layers(x: Any, w: Any) -> Any:
    for _ in range(3):
        x = nn.softmax(np.tanh(x @ w))
    return x


F32 = np.dtype(np.float32)
SPECS = [TensorSpec(F32, 16, 32), TensorSpec(F32, 32, 32)]
OPEN = [TensorSpec(F32, "batch", 32), TensorSpec(F32, 32, 32)]
PROGRAMS: dict[str, tuple[Any, Any, Callable[[], Options]]] = {
    "defaults": (TEXT, None, make_options),
    "function": (layers, SPECS, make_options),
    "plans": (layers, OPEN, lambda: make_options(plans="batch=2;batch=3:8")),
    "modes": (layers, SPECS, lambda: make_options(also_modes=["memory_first", "latency_first"])),
    "unplanned": (TEXT, None, lambda: make_options(planner_mode="iree", kernels="iree")),
    "families": (TEXT, None, lambda: make_options(target="cpu-avx2", kernels="rows+gemv")),
    "policy": (layers, SPECS, lambda: make_options(policy="memory_first")),
    "checked": (TEXT, None, lambda: make_options(contract=Contract(max_error="rounding"))),
    "budget": (
        TEXT,
        None,
        lambda: make_options(contract=Contract(memory_budget_bytes=1 << 20), dims=DIMS),
    ),
    "refined": (TEXT, [(2, 32), (32, 32)], make_options),
    "foreign": (FOREIGN, None, make_options),
    "flags": (FOREIGN, None, lambda: make_options(iree_flags=["--iree-opt-const-eval=false"])),
    "calibrated": (TEXT, None, lambda: make_options(calibration=host_calibration())),
}


def stored(folder: Path, artifact: Artifact) -> tuple[Path, Path]:
    """The program and its log as files."""
    data = artifacts.to_bytes(artifact)
    program, log = folder / "a.vmfb", folder / "a.jsonl"
    program.write_bytes(data)
    write_log([head_of(artifact, data), *artifact.decisions], log)
    return program, log


# These two are generated twice in every run; of the other ones, IREE's part only in a full run.
ANEW = ("function", "foreign")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.generates_anew] * (n in ANEW)) for n in PROGRAMS],
)
@pytest.mark.full
def test_a_replay_has_the_same_bytes(name, tmp_path):
    source, inputs, options = PROGRAMS[name]
    made = build(source, inputs, options())
    program, log = stored(tmp_path, made)
    recorded = read_compile_log((program, log)[list(PROGRAMS).index(name) % 2])
    again = replay.replay(source, inputs, recorded, calibration=options().calibration)
    assert artifacts.to_bytes(again) == program.read_bytes()


def test_a_program_and_its_log_tell_the_same(tmp_path):
    program, log = (
        read_compile_log(p) for p in stored(tmp_path, build(TEXT, None, make_options()))
    )
    assert program.conditions == log.conditions and program.digest == log.digest
    differences = [replace(d, site=replace(d.site, location="")) for d in log.decisions]
    assert differences == list(program.decisions)
    assert recipe_at(tmp_path / "a.vmfb") == recipe_at(tmp_path / "a.jsonl")


def test_recipes_repeat_no_records(tmp_path):
    _, log = stored(tmp_path, build(TEXT, None, make_options()))
    assert not any(site.startswith(f"{COMPILE}:") for site in load_recipe(log).choices)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> CompileLog:
    made = build(TEXT, None, make_options(target="cpu-avx2"))
    return read_compile_log(stored(tmp_path_factory.mktemp("recorded"), made)[1])


def changed(recorded: CompileLog, number: int, **more: Any) -> CompileLog:
    """The log with one decision changed."""
    decisions = list(recorded.decisions)
    decisions[number] = replace(decisions[number], **more)
    return replace(recorded, decisions=tuple(decisions))


def conditioned(recorded: CompileLog, **more: Any) -> CompileLog:
    return replace(recorded, conditions={**recorded.conditions, **more})


def refused(recorded: CompileLog, source: Any = TEXT, **more: Any) -> PycError:
    with pytest.raises(PycError) as caught:
        replay.replay(source, None, recorded, **more)
    return caught.value


def test_a_target_of_the_callers_own_is_given_again(tmp_path):
    mine = replace(Target.named("cpu-avx2"), name="mine", l2_bytes=1 << 20)
    recorded = read_compile_log(stored(tmp_path, build(TEXT, None, make_options(target=mine)))[1])
    error = refused(recorded)
    assert error.code is ReasonCode.BAD_ARGUMENT and "Target `mine`" in error.message
    replay.replay(TEXT, None, recorded, target=mine)
    other = refused(recorded, target=Target.named("cpu-avx2"))
    assert other.code is ReasonCode.REPLAY_MISMATCH and '"mine" as recorded' in other.message


@pytest.mark.full
def test_what_differs_is_named(recorded):
    versions = {**recorded.conditions["versions"], "pyc-mlir": "0.0.1"}
    figures = {"name": "other", "sha256": "0"}
    cases: list[tuple[CompileLog, dict[str, Any], str]] = [
        (conditioned(recorded, versions=versions), {}, 'versions: expected {"pyc-mlir": "0.0.1"'),
        (conditioned(recorded, features=["avx9"]), {}, 'features: expected ["avx9"]'),
        (conditioned(recorded, calibration=figures), {}, "calibration: expected"),
        (recorded, {"source": TEXT.replace("tanh", "exp")}, "program: expected graph"),
        (recorded, {"source": FOREIGN}, "RECIPE_MISMATCH"),
        (replace(recorded, digest="0" * 64), {}, "from equal decisions"),
        (changed(recorded, 0, evidence=(Note("seen"),)), {}, "with the recorded evidence"),
    ]
    for log, more, reported in cases:
        error = refused(log, **more)
        assert reported in str(error), error
        assert error.code in (ReasonCode.REPLAY_MISMATCH, ReasonCode.RECIPE_MISMATCH)


def test_costs_and_alternatives_are_compared(recorded):
    number = next(i for i, d in enumerate(recorded.decisions) if len(d.alternatives) > 1)
    fewer = recorded.decisions[number].alternatives[:1]
    error = refused(changed(recorded, number, alternatives=fewer))
    assert error.code is ReasonCode.REPLAY_MISMATCH
    site = recorded.decisions[number].site.key
    assert error.message.startswith(f"replay: {site}: expected")
    assert "with the recorded alternatives" in error.message


def test_a_choice_that_is_gone_is_named_with_what_is_offered(recorded):
    number = next(i for i, d in enumerate(recorded.decisions) if d.site.pass_name == "pyc-fuse")
    error = refused(changed(recorded, number, chosen="fuse:gone"))
    assert error.code is ReasonCode.RECIPE_MISMATCH
    assert recorded.decisions[number].site.key in error.message
    for name in ("'fuse:gone'", "'keep'"):
        assert name in error.message


def test_a_missing_decision_is_named(recorded):
    error = refused(replace(recorded, decisions=recorded.decisions[:-1]))
    assert error.code is ReasonCode.REPLAY_MISMATCH
    assert recorded.decisions[-1].site.key in error.message


def test_a_log_without_its_compile_is_no_program(recorded):
    error = refused(replace(recorded, conditions={}))
    assert error.code is ReasonCode.BAD_ARGUMENT and "--recipe" in error.message


def test_a_malformed_head_is_refused(tmp_path, recorded):
    write_log([Conditions({"target": "cpu"}, "")], tmp_path / "log")
    with pytest.raises(PycError, match="expected conditions of a compile") as caught:
        read_compile_log(tmp_path / "log")
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_flags_with_paths_keep_their_names_only(tmp_path):
    options = make_options(iree_flags=[f"--iree-hal-dump-executable-files-to={tmp_path}"])
    assert options.replayed.iree_flags == ("--iree-hal-dump-executable-files-to",)


@pytest.mark.full
def test_a_stand_in_is_replayed(monkeypatch, tmp_path):
    """The log of IREE's code that took the place of a wrong program is one of that code."""
    contract = Contract(max_error="rounding", fallbacks=("iree",))
    with monkeypatch.context() as patch:
        fault(patch, "pyc.tanh", "pyc.sin")
        made = build(TEXT, None, make_options(contract=contract))
    assert made.decisions[-1].site.pass_name == "oracle"
    program, _ = stored(tmp_path, made)
    again = replay.replay(TEXT, None, read_compile_log(program))
    assert artifacts.to_bytes(again) == program.read_bytes()


LOOP = """func.func @main(%x: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
  %zero = arith.constant 0 : index
  %one = arith.constant 1 : index
  %count = tensor.extract %n[] : tensor<i32>
  %end = arith.index_cast %count : i32 to index
  %r = scf.for %i = %zero to %end step %one iter_args(%a = %x) -> tensor<4xf32> {
    %b = math.tanh %a : tensor<4xf32>
    scf.yield %b : tensor<4xf32>
  }
  return %r : tensor<4xf32>
}
"""


def test_a_program_without_an_arena_entry_is_replayed(tmp_path):
    made = build(LOOP, None, make_options())
    (decision,) = [d for d in made.decisions if d.site.pass_name == "arena-entry"]
    assert (decision.chosen, decision.decided_by) == ("none", "fallback")
    program, _ = stored(tmp_path, made)
    again = replay.replay(LOOP, None, read_compile_log(program))
    assert artifacts.to_bytes(again) == program.read_bytes()


def test_a_fallback_of_code_generation_is_replayed_without_the_failure(monkeypatch, tmp_path):
    honest, tried = attempts.build, []

    def build_under(plan: Plan, setting: str) -> Any:
        tried.append(setting)
        if setting == "aggressive":
            raise PycError(ReasonCode.TARGET_COMPILE_FAILED, "x: expected y, got: too large")
        return honest(plan, setting)

    monkeypatch.setattr(attempts, "build", build_under)
    text = FOREIGN.replace("tanh", "exp")
    program, _ = stored(tmp_path, build(text, None, make_options()))
    again = replay.replay(text, None, read_compile_log(program))
    assert artifacts.to_bytes(again) == program.read_bytes()
    assert tried == ["aggressive", "plain", "plain"]


# The command line.


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.mlir").write_text(TEXT)
    (tmp_path / "f.py").write_text(
        "import numpy as np\n\ndef f(x, y=np.float32(2)):\n    return np.tanh(x) * y\n"
    )
    return tmp_path


def run(*arguments: str) -> int:
    return pyc_compile.run([*arguments])


@pytest.mark.full
def test_inputs_come_from_the_log(folder):
    line = ("m.mlir", "-o", "a.vmfb", "--input", "x=4x32", "--kernels", "iree")
    assert run(*line, "--log", "a.jsonl") == 0
    assert run("m.mlir", "-o", "b.vmfb", "--replay", "a.jsonl", "--log", "b.jsonl") == 0
    assert Path("a.vmfb").read_bytes() == Path("b.vmfb").read_bytes()
    assert Path("a.jsonl").read_text() == Path("b.jsonl").read_text()
    assert run("f.py:f", "-o", "c.vmfb", "--input", "x=?x3xf32") == 0
    assert run("f.py:f", "-o", "d.vmfb", "--replay", "c.vmfb") == 0
    assert Path("c.vmfb").read_bytes() == Path("d.vmfb").read_bytes()


@pytest.mark.full
def test_bytecode_is_replayed(folder):
    """A worker reads it, in both compiles."""
    buffer = io.BytesIO()
    with new_context() as context:
        ir.Module.parse(FOREIGN, context).operation.write_bytecode(buffer)
    Path("m.mlirbc").write_bytes(buffer.getvalue())
    assert run("m.mlirbc", "-o", "a.vmfb", "--log", "a.jsonl") == 0
    assert run("m.mlirbc", "-o", "b.vmfb", "--replay", "a.jsonl") == 0
    assert Path("a.vmfb").read_bytes() == Path("b.vmfb").read_bytes()


@pytest.mark.full
def test_other_shapes_are_another_program(folder, capsys):
    assert run("m.mlir", "-o", "a.vmfb") == 0
    assert run("m.mlir", "-o", "b.vmfb", "--replay", "a.vmfb", "--input", "x=4x32") == 1
    assert "REPLAY_MISMATCH" in capsys.readouterr().err
    assert not Path("b.vmfb").exists()


def test_another_model_is_told_by_its_inputs(folder, capsys):
    assert run("m.mlir", "-o", "a.vmfb") == 0
    assert run("f.py:f", "-o", "b.vmfb", "--replay", "a.vmfb") == 1
    error = capsys.readouterr().err
    assert "expected a model that takes the recorded inputs" in error
    assert "REPLAY_MISMATCH" in error


@pytest.mark.parametrize(
    "line",
    ["--kernels iree", "--target cuda", "--recipe r", "--cache", "--emit linalg", "--dim n=1:2"],
)
def test_flags_that_a_replay_takes_from_its_log(folder, capsys, line):
    assert run("m.mlir", "-o", "b", "--replay", "a", *line.split()) == 2
    error = capsys.readouterr().err
    assert "--replay" in error and "BAD_ARGUMENT" in error


@pytest.mark.full
def test_a_program_is_a_recipe(folder):
    assert run("m.mlir", "-o", "a.vmfb", "--planner-mode", "memory_first") == 0
    assert (
        run("m.mlir", "-o", "b.vmfb", "--planner-mode", "memory_first", "--recipe", "a.vmfb") == 0
    )
    assert Path("a.vmfb").read_bytes() == Path("b.vmfb").read_bytes()
