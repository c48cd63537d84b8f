"""Foreign programs as pyc ops: StableHLO, linalg and TOSA texts, and what stays foreign."""

import re

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir.compilation.lower import report_import
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.hlo import importer as control
from pyc_mlir.frontends.sources import Loaded, raise_foreign
from pyc_mlir.frontends.stablehlo.importer import ARTIFACT_MAGIC, embedded_artifact

X = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)

SOFTMAX = """
func.func private @soft(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %e = stablehlo.exponential %x : tensor<4x8xf32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%e init: %z) applies stablehlo.add across dimensions = [1]
    : (tensor<4x8xf32>, tensor<f32>) -> tensor<4xf32>
  %b = stablehlo.broadcast_in_dim %s, dims = [0] : (tensor<4xf32>) -> tensor<4x8xf32>
  %r = stablehlo.divide %e, %b : tensor<4x8xf32>
  return %r : tensor<4x8xf32>
}
"""
CALLS = """
func.func public @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = func.call @soft(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}"""
COMPOSITE = """
func.func public @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %y = stablehlo.composite "NAME" %x
    {composite_attributes = {axis = 1 : i64}, decomposition = @soft}
    : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %y : tensor<4x8xf32>
}"""
LINALG = """
#id = affine_map<(i, j) -> (i, j)>
#row = affine_map<(i, j) -> (j)>
func.func @main(%x: tensor<4x8xf32>, %w: tensor<8x3xf32>, %b: tensor<3xf32>) -> tensor<4x3xf32> {
  %e = tensor.empty() : tensor<4x3xf32>
  %z = arith.constant 0.0 : f32
  %f = linalg.fill ins(%z : f32) outs(%e : tensor<4x3xf32>) -> tensor<4x3xf32>
  %m = linalg.matmul ins(%x, %w : tensor<4x8xf32>, tensor<8x3xf32>)
    outs(%f : tensor<4x3xf32>) -> tensor<4x3xf32>
  %s = linalg.generic {indexing_maps = [#id, #row, #id], iterator_types = ["parallel", "parallel"]}
    ins(%m, %b : tensor<4x3xf32>, tensor<3xf32>) outs(%e : tensor<4x3xf32>) {
    ^bb0(%p: f32, %q: f32, %o: f32):
      %a = arith.addf %p, %q : f32
      %r = arith.maximumf %a, %z : f32
      linalg.yield %r : f32
  } -> tensor<4x3xf32>
  return %s : tensor<4x3xf32>
}"""
TOSA = """
func.func @main(%a: tensor<1x4x8xf32>, %b: tensor<1x8x3xf32>) -> tensor<1x4x3xf32> {
  %zp = "tosa.const"() {values = dense<0.0> : tensor<1xf32>} : () -> tensor<1xf32>
  %m = tosa.matmul %a, %b, %zp, %zp
    : (tensor<1x4x8xf32>, tensor<1x8x3xf32>, tensor<1xf32>, tensor<1xf32>) -> tensor<1x4x3xf32>
  %t = tosa.tanh %m : (tensor<1x4x3xf32>) -> tensor<1x4x3xf32>
  return %t : tensor<1x4x3xf32>
}"""
FFT = """
func.func @main(%x: tensor<4x8xf32>) -> tensor<4x5xcomplex<f32>> {
  %0 = stablehlo.tanh %x : tensor<4x8xf32>
  %y = stablehlo.fft %0, type = RFFT, length = [8] : (tensor<4x8xf32>) -> tensor<4x5xcomplex<f32>>
  return %y : tensor<4x5xcomplex<f32>>
}"""


def raised(text: str) -> Loaded:
    return raise_foreign(text.encode(), "model.mlir", new_context())


def ops(found: Loaded) -> list[str]:
    assert found.module is not None, found.unraised
    names: list[str] = []
    (function,) = found.module.body.operations
    for op in function.operation.regions[0].blocks[0].operations:
        names += [op.operation.name.removeprefix("pyc.")]
    return names[:-1]


def run(found: Loaded, *arrays: np.ndarray) -> np.ndarray:
    assert found.module is not None, found.unraised
    (out,) = pyc_mlir.interpret(found.module, list(arrays))
    return np.asarray(out)


def softmax(x: np.ndarray) -> np.ndarray:
    return np.exp(x) / np.exp(x).sum(1, keepdims=True)


def test_a_called_function_is_inlined_and_keeps_its_lines():
    found = raised(SOFTMAX + CALLS)
    assert ops(found) == ["exp", "reduce_sum", "reshape", "broadcast_to", "div"]
    np.testing.assert_allclose(run(found, X), softmax(X), rtol=1e-6)
    assert found.module is not None
    assert re.search(r'loc\("-":3:\d+\)', found.module.operation.get_asm(enable_debug_info=True))


def test_a_composite_is_its_op_and_an_unknown_one_its_decomposition():
    found = raised(SOFTMAX + COMPOSITE.replace("NAME", "pyc.softmax"))
    assert ops(found) == ["softmax"]
    other = raised(SOFTMAX + COMPOSITE.replace("NAME", "acme.softmax"))
    assert "softmax" not in ops(other)
    for each in (found, other):
        np.testing.assert_allclose(run(each, X), softmax(X), rtol=1e-6)


def test_linalg_becomes_a_matmul_and_elementwise_ops():
    found = raised(LINALG)
    assert [o for o in ops(found) if o != "constant"] == ["matmul", "reshape", "add", "maximum"]
    w, b = X.T[:, :3].copy(), X[0, :3].copy()
    np.testing.assert_allclose(run(found, X, w, b), np.maximum(X @ w + b, 0), rtol=1e-5)


def test_tosa_is_raised_by_way_of_linalg():
    found = raised(TOSA)
    assert {"matmul", "tanh"} <= set(ops(found))
    a, b = X[None], X.T[None, :, :3].copy()
    np.testing.assert_allclose(run(found, a, b), np.tanh(a @ b), rtol=1e-5)


def test_what_cannot_be_raised_stays_foreign_and_is_listed():
    found = raised(FFT)
    assert found.module is None
    (finding,) = found.unraised
    assert finding.op == "stablehlo.fft"
    assert finding.code in (ReasonCode.UNSUPPORTED_OP, ReasonCode.UNSUPPORTED_DTYPE)


@pytest.mark.parametrize("text", [FFT, LINALG.replace("arith.maximumf", "arith.remf")])
def test_what_is_listed_has_its_name(text):
    lines = [
        line + ' loc("layer7/fft")'
        if "stablehlo.fft" in line or line.startswith("  } ->")
        else line
        for line in text.splitlines()
    ]
    assert [u.node for u in raised("\n".join(lines)).unraised] == ["layer7/fft"]


@pytest.mark.full
def test_the_report_says_what_was_raised():
    assert report_import(SOFTMAX + CALLS).foreign == 0
    program = pyc_mlir.compile(SOFTMAX + CALLS, cache=False)
    np.testing.assert_allclose(program(X), softmax(X), rtol=1e-5)
    assert program.stats().imported.foreign == 0


LOOP = """
func.func public @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %i = stablehlo.constant dense<0> : tensor<i32>
  %n = stablehlo.constant dense<COUNT> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %r:2 = stablehlo.while(%a = %i, %y = %x) : tensor<i32>, tensor<4x8xf32>
    cond {
      %c = stablehlo.compare LT, %a, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %b = stablehlo.add %a, %one : tensor<i32>
      %z = stablehlo.add %y, %y : tensor<4x8xf32>
      stablehlo.return %b, %z : tensor<i32>, tensor<4x8xf32>
    }
  return %r#1 : tensor<4x8xf32>
}"""


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_counted_loop_is_unrolled(count: int) -> None:
    found = raised(LOOP.replace("COUNT", str(count)))
    assert ops(found) == ["add"] * count
    np.testing.assert_array_equal(run(found, X), X * 2**count)


def test_a_loop_beyond_the_bound_stays_foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "MAX_UNROLLED", 100)
    found = raised(LOOP.replace("COUNT", "1000000000"))
    assert found.module is None and "unrolled" in found.unraised[0].why


@pytest.mark.parametrize("tanh", ["stablehlo.tanh %x", "linalg.tanh ins(%x : T) outs(%x : T) -> T"])
def test_hostile_calls_end_within_bounds(tanh: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that call each other twice, 40 deep, and one that calls itself."""
    monkeypatch.setattr(control, "MAX_VISITED", 1000)
    head = "func.func private @f0(%x: tensor<f32>) -> tensor<f32> {\n return %x : tensor<f32>\n}\n"
    body = "".join(
        f"func.func private @f{i}(%x: tensor<f32>) -> tensor<f32> {{\n"
        f" %a = func.call @f{i - 1}(%x) : (tensor<f32>) -> tensor<f32>\n"
        f" %b = func.call @f{i - 1}(%a) : (tensor<f32>) -> tensor<f32>\n"
        " return %b : tensor<f32>\n}\n"
        for i in range(1, 41)
    )
    main = (
        "func.func public @main(%x: tensor<f32>) -> tensor<f32> {\n"
        f" %0 = {tanh.replace('T', 'tensor<f32>')}\n"
        " %y = func.call @NAME(%0) : (tensor<f32>) -> tensor<f32>\n return %y : tensor<f32>\n}\n"
    )
    if "stablehlo" in tanh:
        main = main.replace("tanh %x", "tanh %x : tensor<f32>")
    for name in ("f40", "main"):
        found = raised(head + body + main.replace("NAME", name))
        assert found.module is None and found.unraised
    found = raised(head + body + main.replace("NAME", "f3"))
    assert ops(found) == ["tanh"]


def test_a_large_splat_is_not_written_out():
    text = """
func.func public @main(%x: tensor<f32>) -> tensor<f32> {
  %c = stablehlo.constant dense<1.0> : tensor<100000x100000xf32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %s = stablehlo.reduce(%c init: %z) applies stablehlo.maximum across dimensions = [0, 1]
    : (tensor<100000x100000xf32>, tensor<f32>) -> tensor<f32>
  %y = stablehlo.add %s, %x : tensor<f32>
  return %y : tensor<f32>
}"""
    assert raised(text).module is not None


def test_an_artifact_is_found_within_other_bytes():
    inner = ARTIFACT_MAGIC + b"1.15.0 and so on"
    whole = b"head" + len(inner).to_bytes(4, "little") + inner + b"tail"
    assert embedded_artifact(whole) == inner
    for other in (b"", inner, whole[:20], whole[:-8]):
        assert embedded_artifact(other) is None
