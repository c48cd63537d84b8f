"""The entry of a module with several public functions, on each road into the compiler."""

from pathlib import Path

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir import CompileOptions, PycError
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import Options
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.ir.bindings import ir, stablehlo
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.sources import Loaded, OnnxBytes, Source, TorchModule, raise_foreign
from pyc_mlir.frontends.stablehlo.importer import enter
from pyc_mlir.iree.foreign import read_entry
from pyc_mlir.tools import pyc_compile, pyc_explain

X = np.linspace(-1, 1, 4, dtype=np.float32)
TWO = """
func.func @exp(%x: tensor<4xf32>) -> tensor<4xf32> {
  EXP
  return %y : tensor<4xf32>
}
func.func @OTHER(%x: tensor<4xf32>) -> tensor<4xf32> {
  %t = func.call @exp(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %t : tensor<4xf32>
}
func.func @twice(%x: tensor<4xf32>) -> tensor<4xf32> {
  %t = func.call @OTHER(%x) : (tensor<4xf32>) -> tensor<4xf32>
  TWICE
  return %y : tensor<4xf32>
}
"""
ROADS = {
    "pyc": (
        '%y = "pyc.exp"(%x) : (tensor<4xf32>) -> tensor<4xf32>',
        '%y = "pyc.add"(%t, %t) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>',
    ),
    "stablehlo": (
        "%y = stablehlo.exponential %x : tensor<4xf32>",
        "%y = stablehlo.add %t, %t : tensor<4xf32>",
    ),
    "linalg": (
        "%e = tensor.empty() : tensor<4xf32>\n"
        "%y = linalg.exp ins(%x : tensor<4xf32>) outs(%e : tensor<4xf32>) -> tensor<4xf32>",
        "%e = tensor.empty() : tensor<4xf32>\n"
        "%y = linalg.add ins(%t, %t : tensor<4xf32>, tensor<4xf32>) outs(%e : tensor<4xf32>)"
        " -> tensor<4xf32>",
    ),
    "iree": ("%y = math.exp %x : tensor<4xf32>", "%y = arith.addf %t, %t : tensor<4xf32>"),
}


def text(road: str, other: str = "other") -> str:
    exp, twice = ROADS[road]
    return TWO.replace("EXP", exp).replace("TWICE", twice).replace("OTHER", other)


@pytest.mark.parametrize("road", ROADS)
def test_the_function_that_is_named_is_compiled(road):
    program = pyc_mlir.compile(text(road, "main"), cache=False, function="twice", check=False)
    np.testing.assert_allclose(program(X), 2 * np.exp(X), rtol=1e-6)


@pytest.mark.parametrize("road", ROADS)
def test_several_functions_without_a_name_are_refused(road):
    with pytest.raises(
        PycError, match=r"got exp, other, twice; name the entry `main`, or by `--function`"
    ):
        pyc_mlir.compile(text(road), cache=False)


@pytest.mark.parametrize("road", ROADS)
def test_an_unknown_name_is_refused_with_those_there_are(road):
    expected = r"\(exp, other, twice\), got 'twise'; did you mean 'twice'\?"
    with pytest.raises(PycError, match=expected) as caught:
        pyc_mlir.compile(text(road), cache=False, function="twise")
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


@pytest.mark.parametrize("road", ROADS)
def test_main_and_a_single_function_need_no_name(road):
    for given, name in (
        (text(road, "main"), "main"),
        (text(road).partition("func.func @o")[0], "exp"),
    ):
        assert lower(Job.of(given, None, Options())).entry == name


def test_what_the_entry_does_not_call_is_dropped():
    with new_context() as context, ir.Location.unknown():
        for source in (text("pyc"), ir.Module.parse(text("pyc"), context)):
            loaded = Source.of(source, function="exp").load(None, context)
            assert isinstance(loaded, Loaded) and loaded.module is not None
            assert len(loaded.module.body.operations) == 1
            assert entry_function(loaded.module).attributes["sym_name"].value == "exp"
        kept = Source.of(text("pyc", "main"), function="twice").load(None, context).module
        assert entry_function(kept).attributes["sym_name"].value == "twice"
        assert kept is not None and len(kept.body.operations) == 3
    entry = read_entry(text("iree").encode(), function="exp")
    assert entry.name == "exp" and read_entry(entry.code).name == "exp"


def test_an_artifact_of_stablehlo():
    with new_context() as context, ir.Location.unknown():
        enter(context)
        module = ir.Module.parse(text("stablehlo"), context)
        version = stablehlo.get_current_version()
        data = stablehlo.serialize_portable_artifact(module, version)
        found = raise_foreign(data, "model", context, function="other")
        assert "pyc.exp" in str(found.module) and "pyc.add" not in str(found.module)
        with pytest.raises(PycError, match="name the entry `main`, or by `--function`"):
            raise_foreign(data, "model", context)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("road", ["pyc", "iree"])
def test_a_worker_takes_the_name(road):
    options = CompileOptions(function="exp", check=False)
    program = pyc_mlir.compile(text(road), None, options, cache=False, untrusted=True)
    np.testing.assert_allclose(program(X), np.exp(X), rtol=1e-6)


@pytest.mark.parametrize("road", ["pyc", "iree"])
def test_the_cache_tells_functions_apart(tmp_path, road):
    path, cache = tmp_path / "two.mlir", tmp_path / "cache"
    path.write_text(text(road, "main"))
    for outcomes in (("miss",), ("memory", "hit")):
        for name, times in (("", 1), ("twice", 2)):
            program = pyc_mlir.compile(path, cache=cache, function=name, check=False)
            np.testing.assert_allclose(program(X), times * np.exp(X), rtol=1e-6)
            record = program.stats().cache
            assert record is not None and record.outcome in outcomes


def test_other_sources_have_no_functions_to_name():
    def double(x):
        return x + x

    for source in (double, OnnxBytes(b""), TorchModule(None), Path("model.onnx")):
        with pytest.raises(PycError, match="function: expected MLIR, whose entry it names") as e:
            Source.of(source, function="main")
        assert e.value.code is ReasonCode.BAD_ARGUMENT
    with pytest.raises(PycError, match="got module of kind Trace"):
        pyc_mlir.jit(double, **{"function": "main"})(X)


def test_commands(tmp_path, capfd):
    """A program, its replay, and the report name the entry by `--function`."""
    path, made, again = tmp_path / "two.mlir", tmp_path / "a.vmfb", tmp_path / "b.vmfb"
    path.write_text(text("iree"))
    flags = [str(path), "--no-check", "--no-cache", "-o", str(made)]
    assert pyc_compile.run(flags) != 0
    assert "name the entry `main`, or by `--function`" in capfd.readouterr().err
    assert pyc_compile.run([*flags, "--function", "twice"]) == 0
    assert pyc_compile.run([str(path), "--replay", str(made), "-o", str(again)]) == 0
    assert made.read_bytes() == again.read_bytes()
    np.testing.assert_allclose(pyc_mlir.load(made)(X), 2 * np.exp(X), rtol=1e-6)
    path.write_text(text("stablehlo"))
    assert pyc_explain.main([str(path), "--function", "exp"]) == 0
    assert "1 of 1 ops" in capfd.readouterr().out
