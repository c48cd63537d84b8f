"""The tracing front end: what a trace computes equals what numpy computes, types included."""

import inspect
from functools import partial
from typing import TYPE_CHECKING, Annotated

import numpy as np
import pytest
from modules import shared_context

import pyc_mlir
from pyc_mlir import nn
from pyc_mlir.dialects.errors import PycError, ReasonCode, VerificationError
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function, interpret
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.frontends.python.specs import Tensor, TensorSpec, spec
from pyc_mlir.frontends.python.trace import trace

if TYPE_CHECKING:
    from numpy.typing import NDArray as Image

BF16 = DTYPES["bf16"]
WEIGHTS = np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5)


def array(dtype: str, *shape: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "i1":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.startswith("i"):
        return rng.integers(-9, 10, shape).astype(DTYPES[dtype])
    return rng.normal(size=shape).astype(DTYPES[dtype])


def names(array: np.ndarray) -> list[str | None]:
    """Each dimension under its own name."""
    return [f"d{size}" for size in array.shape]


def check(function, *arrays: np.ndarray, dynamic: bool = False) -> None:
    """Trace, interpret and compare with numpy: structure, dtypes, shapes, values."""
    dims = names if dynamic else np.shape
    module = trace(function, *(spec(a.dtype, dims(a)) for a in arrays), context=shared_context())
    with np.errstate(all="ignore"):
        expected = function(*arrays)
    expected = list(expected) if isinstance(expected, (tuple, list)) else [expected]
    results = interpret(module, arrays)
    assert len(results) == len(expected)
    for got, want in zip(results, expected, strict=True):
        want = np.asarray(want)
        assert got.dtype == want.dtype and got.shape == want.shape
        loose = got.dtype in (np.float16, BF16)
        rtol, atol = (1e-2, 1e-2) if loose else (2e-5, 2e-6)
        if got.dtype == bool:
            np.testing.assert_array_equal(got, want)
        else:
            wide = (got.astype(np.float64), want.astype(np.float64))
            np.testing.assert_allclose(*wide, rtol=rtol, atol=atol)


F, G = array("f32", 3, 4), array("f32", 3, 4, seed=1)
POSITIVE = np.abs(G) + np.float32(0.5)
INT, J = array("i32", 3, 4), array("i32", 3, 4, seed=1)
B, C = array("i1", 3, 4), array("i1", 3, 4, seed=1)
T = array("f32", 2, 3, 4)

CASES = [
    (lambda x, y: (x + y, x - y, x * y, x / y, -x, +x, abs(x)), F, G),
    (lambda x, y: (x + y, x - y, x * y, x / y, x // y, x % y, -x, abs(x)), INT, J),
    (lambda x: (x // 4, x % 4, *divmod(x, -3), np.fmod(x, 4)), INT),
    (lambda x, y: (x // 3, x % -3, 7 // y, np.fmod(x, 4)), INT, J),
    (lambda x, y: (x < y, x <= y, x > y, x >= y, x == y, x != y), INT, J),
    (lambda x, y: (x & y, x | y, x ^ y, ~x), INT, J),
    (lambda x, y: (x & y, x | y, x ^ y, ~x, x + y, x * y, x == y), B, C),
    (lambda x: (x**2, x**0.5, x**-1, x**3.0, x**1, 2.0**x), POSITIVE),
    (lambda x: (x**0, x**1, x**2, x**3, x**5), INT),
    (lambda x: (2 * x, x + 1.5, 1 - x, True + x, np.float64(2) * x, x * np.float32(2)), F),
    (lambda x: (2 * x, x + 1.5, 1 / x, x + True, x * np.float32(2), x + np.int64(1)), INT),
    (lambda x: (x + 1, x + 1.5, x * x, x & True, x == 1), B),
    (lambda x: (x + np.arange(4), x @ WEIGHTS, WEIGHTS.T @ x.T), F),
    (lambda x, y: (x + y, x * y, x / y, x < y), F, INT),
    (lambda x, y: (x + y, x / y), array("f16", 3, 4), array("f16", 3, 4, seed=1)),
    (lambda x, y: (x + y, x * y, x / y), array("i8", 3, 4), array("i64", 3, 4)),
    (lambda x, y: (x + y, x * y), array("f16", 3, 4), array("f64", 3, 4)),
    (lambda x: (x.round(), x.round(1), np.round(x, -1), np.rint(x)), 10 * F),
    (lambda x: (x.round(), np.floor(x), np.ceil(x), np.trunc(x)), INT),
    # ufuncs
    (lambda x: (np.exp(x), np.tanh(x), np.sin(x), np.cos(x), np.tan(x), np.square(x)), F),
    (lambda x: (np.log(x), np.sqrt(x), np.log2(x), np.log10(x), np.exp2(x), 1 / x), POSITIVE),
    (lambda x: (np.reciprocal(x), np.sqrt(x)), POSITIVE),
    (lambda x: (np.log1p(x), np.expm1(x), np.log1p(x * 1e-6), np.expm1(x * 1e-6)), POSITIVE),
    (lambda x: (np.exp(x), np.sqrt(abs(x)), np.sin(x), np.square(x)), INT),
    (lambda x: (np.exp(x), np.sqrt(x)), array("i8", 5) % 4),
    (lambda x, y: (np.maximum(x, y), np.minimum(x, 0), np.fmax(x, y), np.fmin(x, y)), F, G),
    (lambda x, y: (np.maximum(x, y), np.minimum(x, y)), B, C),
    (lambda x, y: (np.hypot(x, y), np.logaddexp(x, y), np.sign(x), np.fabs(x)), F, G),
    (lambda x, y: (np.logical_and(x, y), np.logical_or(x, y), np.logical_xor(x, y)), INT, J),
    (lambda x: (np.logical_not(x), np.isnan(x), np.isfinite(x), np.isinf(x)), INT),
    (lambda x: (np.trunc(x), np.ceil(x), np.floor(x), np.sign(x), np.positive(x)), 3 * F),
    (lambda x, y: (np.add(x, y, dtype=np.float64), np.power(x, 2), np.divide(x, y)), F, G),
    (lambda x: (np.add.reduce(x), np.maximum.reduce(x, axis=1), np.multiply.reduce(x)), F),
    # reductions
    (lambda x: (x.sum(), x.sum(0), x.sum(axis=(0, -1)), x.sum(-1, keepdims=True)), T),
    (lambda x: (x.mean(), x.mean(1), x.max(), x.min(-1), x.prod(0), np.ptp(x, 0)), T),
    (lambda x: (x.var(), x.std(0), x.var(1, ddof=1), np.std(x, axis=(0, 1), keepdims=True)), T),
    (lambda x: (x.sum(), x.mean(), x.max(0), x.min(), x.var(0), x.sum(dtype="i4")), INT),
    (lambda x: (x.sum(0), x.mean(), x.any(), x.all(0), x.max(0), x.min(1), np.count_nonzero(x)), B),
    (lambda x: (np.any(x, axis=1), np.all(x), np.count_nonzero(x, axis=0)), INT),
    (lambda x: (x.argmax(), x.argmin(0), np.argmax(x, -1, keepdims=True), np.argmin(x)), T),
    (lambda x: (x.argmax(1), x.argmin()), INT),
    (lambda x: (x.argmax(1), x.argmin(0)), B),
    (lambda x: (x.mean(0), x.var(), x.sum()), array("f16", 3, 4)),
    (lambda x: (np.linalg.norm(x), np.linalg.norm(x, axis=1), np.linalg.norm(x, 1, 0)), F),
    (lambda x: (np.linalg.norm(x, np.inf, axis=-1, keepdims=True), np.linalg.norm(x, "fro")), F),
    (lambda x, y: (x.clip(-1, 1), np.clip(x, y, None), np.clip(x, None, 0.5), x.clip(max=0)), F, G),
    (lambda x: (x.clip(-2, 3), np.clip(x, 0, 2.5)), INT),
    # moving elements
    (lambda x: (x.T, x.transpose(1, 0, 2), np.transpose(x, (2, 0, 1)), x.mT, x.transpose()), T),
    (lambda x: (x.swapaxes(0, -1), np.moveaxis(x, 0, -1), np.moveaxis(x, [0, 1], [1, 2])), T),
    (lambda x: (x.reshape(6, 4), x.reshape((-1, 2)), x.ravel(), x.flatten(), np.ravel(x)), T),
    (lambda x: (np.expand_dims(x, 1), np.expand_dims(x, (0, -1)), x[:, None], x[..., None]), F),
    (lambda x: (x.squeeze(), x.squeeze(0), np.squeeze(x, axis=(0, 2))), array("f32", 1, 3, 1)),
    (lambda x: (np.broadcast_to(x, (2, 3, 4)), np.broadcast_to(x[:1], (5, 4))), F),
    (lambda x, y: (np.concatenate([x, y, x]), np.concatenate([x, y], axis=-1)), F, G),
    (lambda x, y: (np.concatenate([x, y], axis=None), np.concatenate([x, WEIGHTS.T[:, :4]])), F, J),
    (lambda x, y: (np.stack([x, y]), np.stack([x, y, x], axis=-1)), F, G),
    (lambda x, y: (np.hstack([x, y]), np.vstack([x, y]), np.vstack([x[0], y[0]])), F, G),
    (lambda x, y: (np.where(x > 0, x, y), np.where(x > y, 1.0, x), np.where(x > 0, 0, 1)), F, G),
    (lambda x: (np.take(x, [0, 2], axis=0), x.take(3), np.take(x, [[1], [-1]], axis=1)), F),
    (lambda x, i: (x[i], np.take(x, i, axis=0), nn.take(WEIGHTS, i)),
     F, np.array([2, 0, -1, 1])),
    (lambda x: (np.pad(x, 1), np.pad(x, ((0, 2), (1, 0)), constant_values=7)), F),
    (lambda x: np.pad(x.astype(np.int64), 1, constant_values=2**62 + 1), F),
    (lambda x: (*np.split(x, 2, axis=1), *np.split(x, [1, 2])), F),
    (lambda x: (np.flip(x), np.flip(x, 0), np.roll(x, 1, 1), np.roll(x, -5), np.roll(x, 0, 0)), F),
    (lambda x: (np.repeat(x, 2), x.repeat(3, axis=1), np.tile(x, 2), np.tile(x, (2, 1, 2))), F),
    (lambda x: (np.tril(x), np.triu(x, 1), np.tril(x, -1)), T),
    (lambda x: (np.zeros_like(x), np.ones_like(x, dtype=np.int64), np.full_like(x, 2.5)), F),
    (lambda x: (x.astype(np.int32), x.astype("f8"), x.astype(bool), x.copy()), 4 * F),
    # indexing
    (lambda x: (x[0], x[-1], x[1, 2], x[..., 0], x[0, ..., 1], x[:, -2]), T),
    (lambda x: (x[1:], x[:-1], x[::2], x[:, ::-1], x[..., 1:3], x[::-1, 2:0:-1], x[5:]), T),
    (lambda x: (x[None], x[:, None, 1], x[None, ..., None], x[0, None, 1:]), T),
    (lambda x: (x[:, [0, 2]], x[..., [3, -1, 0]], x[1, [0, 1]], x[[[0, 1], [1, 0]]]), T),
    (lambda x: (x[:, [0, 2], 1], x[:, :, :1][:, [0, 2]], x[::2, [[0, 2]], 1:], x[1:, [0, 2]]), T),
    (lambda x: (x[1:][[0]], x[:, 1:][:, [0, -1], None], np.take(x[..., :1], [1, 0], 1)), T),
    (lambda x, i: (x[1:, i, 2], x[:, :, 1:3][:, i], x[0, i]), T, np.array([2, 0, -1])),
    (lambda x: (x[[True, False, True]], x[np.array([2, 1], np.uint8)]), F),
    (lambda x: [row * 2 for row in x], F),
    # products
    (lambda x, y: (x @ y.T, np.matmul(x.T, y), np.dot(x, y.T), x[0] @ y[1], x @ y[0]), F, G),
    (lambda x, y: (x @ y.T, np.outer(x, y), np.inner(x, y)), INT, J),
    (lambda x: (np.dot(x, 2), np.dot(x, x.mT), np.tensordot(x, x, ((1, 2), (1, 2)))), T),
    (lambda x, y: (np.einsum("ij,kj->ik", x, y), np.einsum("ij,ij->i", x, y)), F, G),
    (lambda x, y: (np.einsum("ij,kj", x, y), np.einsum("ij,kl->", x, y)), F, G),
    (lambda x, y: (np.einsum("ij,ij", x, y), np.einsum("ij->ji", x), np.einsum("ij->j", x)), F, G),
    (lambda x, y: np.einsum("ij,jk,lk->il", x, WEIGHTS, y[:, :2] @ np.ones((2, 5), "f4")), F, G),
    (lambda x, y: (np.einsum("aij,aik->ajk", x, y), np.einsum("aij,bij->ab", x, y)), T, T),
    (lambda x: (np.einsum("...ij,...kj->...ik", x, x), np.einsum("...ij->...ji", x)), T),
]  # fmt: skip


def _title(function) -> str:
    return f"line {inspect.getsourcelines(function)[1]}"


@pytest.mark.parametrize("case", CASES, ids=lambda c: _title(c[0]))
def test_equals_numpy(case):
    check(*case)


DYNAMIC = [
    (lambda x, y: (x + y, x @ y.T, x.sum(0), x.mean(1), x.max()), F, G),
    (lambda x: (x[1:], x[::-1], x[0], x[-1], x[1:, None]), F),
    (lambda x: (x.reshape(x.shape[0], -1), x.reshape(-1, x.shape[2]), x.reshape(x.shape)), T),
    (lambda x: (np.exp(x).reshape(x.shape[0], x.shape[1] , 4, 1), x.T.reshape(x.T.shape)), T),
    (lambda x: (x.sum(0) / x.shape[0], x * x.shape[1], x.shape[0] / x), POSITIVE),
    (lambda x: (np.zeros_like(x), np.full_like(x, 3, shape=(x.shape[0], 2)), np.tril(x)), F),
    (lambda x, y: (np.broadcast_to(x[0], y.shape), np.broadcast_to(x, x.shape)), F, G),
    (lambda x, y: (np.concatenate([x, y]), np.stack([x, y], 1), np.expand_dims(x, 1)), F, G),
    (lambda x: (x[-1, None], x[-2, ..., 0], x[1, [0, 2]], x[:, [0, 2], 1], x[0, 1, 2]), T),
    (lambda x: (x.T, x[:, None], x.ravel(), x.var(0), x.std(), np.pad(x, 1), x[:, [0, 1]]), F),
    (lambda x: (np.repeat(x, 2, axis=0), np.tile(x, (2, 1)), x.any(), x.argmax(0), x.argmin()), F),
    (lambda x: (np.einsum("bij,bkj->bik", x, x), np.einsum("bij->bj", x)), T),
    (lambda x: (x[:, 1:].reshape(x.shape[0], -1), x[..., -1, 0]), T),
]  # fmt: skip


@pytest.mark.parametrize("case", DYNAMIC, ids=lambda c: _title(c[0]))
def test_equals_numpy_with_dynamic_dimensions(case):
    check(*case, dynamic=True)


def annotated(
    x: Tensor["f32", "batch", 4],  # noqa: F821
    w: Annotated[np.ndarray, TensorSpec("f32", 4, None)],
):
    return {"logits": x @ w, "all": [x.sum(), (w * 2, 1)]}


def attributes_of(module: ir.Module, which: str) -> list[dict]:
    found = entry_function(module).attributes[which]
    return [{a.name: a.attr for a in entry} for entry in found]


def test_annotations_give_specs_and_names():
    module = trace(annotated)
    arguments = attributes_of(module, "arg_attrs")
    assert [a["pyc.name"].value for a in arguments] == ["x", "w"]
    assert [[d.value for d in a["pyc.dims"]] for a in arguments] == [["batch", ""], ["", ""]]
    results = [a["pyc.name"].value for a in attributes_of(module, "res_attrs")]
    assert results == ["logits", "all.0", "all.1.0", "all.1.1"]
    assert "tensor<?x4xf32>" in str(module) and "tensor<4x?xf32>" in str(module)


def test_results_of_a_tuple_and_of_one_array_have_names():
    def result_names(function):
        module = trace(function, TensorSpec("f32", 2))
        return [a["pyc.name"].value for a in attributes_of(module, "res_attrs")]

    assert result_names(lambda x: x) == ["out"]
    assert result_names(lambda x: (x, x + 1)) == ["out0", "out1"]


def test_trees_static_values_and_examples_as_arguments():
    def model(params, x, negate=False, *rest):
        out = x @ params["w"] + params["b"][0]
        return -out if negate else out

    params = {"w": WEIGHTS, "b": [np.ones(5, np.float32)]}
    module = trace(model, params, TensorSpec("f32", "n", 4), True)
    names = [a["pyc.name"].value for a in attributes_of(module, "arg_attrs")]
    assert names == ["params.w", "params.b.0", "x"]
    (out,) = interpret(module, [WEIGHTS, params["b"][0], F])
    np.testing.assert_allclose(out, model(params, F, True), rtol=1e-6)


def test_name_and_context_of_the_module():
    context = ir.Context()
    module = trace(lambda x: x + 1, TensorSpec("i64"), name="step", context=context)
    assert module.context is context or module.context == context
    assert entry_function(module, "step").attributes["sym_name"].value == "step"


def test_ops_have_the_location_of_the_python_line():
    line = inspect.getsourcelines(test_ops_have_the_location_of_the_python_line)[1] + 4

    def model(x):
        return np.tanh(x) + nn.relu(x)

    module = trace(model, TensorSpec("f32", 2))
    ops = _ops(module)
    for op in ops[:3]:
        assert op.location.filename == __file__
        assert op.location.start_line == line
    columns = [op.location.start_col for op in ops[:3]]
    assert columns == [16, 29, 16]


def test_captured_arrays_are_constants_as_they_were_when_traced():
    weight = np.ones(3, np.float32)
    module = trace(lambda x: x * weight, TensorSpec("f32", 3))
    weight[:] = 5
    np.testing.assert_array_equal(interpret(module, [weight])[0], [5, 5, 5])


def test_unused_constants_leave_no_op():
    module = trace(lambda x: x**2, TensorSpec("f32", 3))
    assert [op.operation.name for op in _ops(module)] == ["pyc.mul", "func.return"]


def _ops(module: ir.Module) -> list:
    return list(entry_function(module).regions[0].blocks[0].operations)


def test_bf16_behaves_as_a_16_bit_float():
    x = array("bf16", 4, 4)
    module = trace(lambda x: (x * 2.5 + 1, x @ x, x.mean(), np.exp(x)), x)
    assert {a.dtype for a in interpret(module, [x])} == {BF16}


def test_in_place_operators_give_new_arrays_of_the_same_type():
    def model(x):
        x += 1
        x *= np.float64(2)
        return x

    (out,) = interpret(trace(model, F), [F])
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, (F + 1) * 2, rtol=1e-6)


def power_in_place(x):
    x **= 1
    return x


def same_value_of_its_own(x):
    y = +x
    y += 1
    z = np.concatenate([x])
    z += 2
    return x, y, z


@pytest.mark.parametrize("function", [power_in_place, same_value_of_its_own])
def test_copies_are_not_views(function):
    expected = function(F.copy())
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, want in zip(interpret(trace(function, F), [F]), expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_other_callables():
    class Model:
        def __call__(self, x):
            return x * 2

    for function in (Model(), partial(np.multiply, 2), partial(lambda n, x: n * x, 2)):
        np.testing.assert_array_equal(interpret(trace(function, F), [F])[0], 2 * F)


def test_annotations_that_only_type_checkers_know_are_ignored():
    def model(x: "Image") -> "Image":
        return x + 1

    assert "pyc.add" in str(trace(model, F))
    with pytest.raises(PycError, match="expected a spec for `x`"):
        trace(model)


def test_defaults_are_captured():
    def model(x, weight=WEIGHTS, power=2):
        return (x @ weight) ** power

    module = trace(model, F)
    assert len(attributes_of(module, "arg_attrs")) == 1
    np.testing.assert_allclose(interpret(module, [F])[0], model(F), rtol=1e-5)


def test_a_size_is_a_result_like_any_other():
    module = trace(lambda x: (x.shape[0], 3, 2.5), TensorSpec("f32", "n", 4))
    got = interpret(module, [F])
    assert [(a.dtype.name, a.item()) for a in got] == [("int64", 3), ("int64", 3), ("float64", 2.5)]


def untraceable(function, *specs) -> str:
    """The message of the UNTRACEABLE error that tracing must raise."""
    with pytest.raises(PycError) as caught:
        trace(function, *(specs or (TensorSpec("f32", "n", 4),)))
    assert caught.value.code is ReasonCode.UNTRACEABLE
    assert caught.value.message.startswith(__file__ + ":")
    return caught.value.message


def changed_view(x):
    view = x.T
    x += 1
    return view + x.T


def item_assignment(x):
    x[0] = 1
    return x


def while_loop(x):
    while x.sum() > 0:
        x = x - 1
    return x


@pytest.mark.parametrize(
    "function, needle",
    [
        (lambda x: x if x.sum() > 0 else -x, "np.where"),
        (while_loop, "while x.sum() > 0"),
        (lambda x: (x > 0) and x, "np.where"),
        (lambda x: float(x.sum()), "Python number"),
        (lambda x: int(x.sum()), "Python number"),
        (lambda x: x.sum().item(), ".item()"),
        (lambda x: range(x.sum()), "Python index"),
        (lambda x: np.asarray(x), "np.stack"),
        (lambda x: np.array([x, x]), "np.stack"),
        (lambda x: WEIGHTS[x], "nn.take"),
        (lambda x: np.fft.fft(x), "np.fft.fft cannot be traced"),
        (lambda x: np.unique(x), "np.unique cannot be traced"),
        (lambda x: x.sort(), ".sort"),
        (lambda x: np.logaddexp2(x, x), "np.logaddexp2 cannot be traced"),
        (lambda x: np.add.accumulate(x), "np.add.accumulate"),
        (lambda x: np.sum(x, where=True), "where"),
        (lambda x: np.exp(x, out=np.zeros(4)), "not traced"),
        (lambda x: x[x > 0], "np.where"),
        (lambda x: np.where(x), "np.where(condition, x, y)"),
        (lambda x: x[[0], [1]], "index in steps"),
        (lambda x: x["a"], "expected an index"),
        (lambda x: np.zeros(x.shape), "np.zeros_like"),
        (lambda x: x if x.shape[0] == 3 else -x, "`n` is not known"),
        (lambda x: [row for row in x], "`n` is not known"),
        (lambda x: x.size, "`n` is not known"),
        (lambda x: np.split(x, 2), "`n`"),
        (lambda x: np.pad(x, 1, mode="edge"), "np.concatenate"),
        (lambda x: np.einsum("ii", x @ x.T), "twice"),
        (lambda x: (x > 0).astype(np.int32) ** (x > 1).astype(np.int32), "integer power"),
        (lambda x: np.linalg.norm(x, 3, axis=0), "np.linalg.norm"),
        (changed_view, "changed in place"),
        (item_assignment, "nn.update_slice"),
    ],
)
def test_what_cannot_be_recorded_names_the_line_and_the_remedy(function, needle):
    assert needle in untraceable(function)


def test_arrays_do_not_leave_their_trace():
    kept = []
    trace(lambda x: kept.append(x) or x, TensorSpec("f32", 4))
    assert "outside of the trace" in untraceable(lambda x: x + kept[0], TensorSpec("f32", 4))


@pytest.mark.parametrize(
    "code, function, specs",
    [
        (ReasonCode.UNSUPPORTED_DTYPE, lambda x: x.astype(np.complex64), ["f32"]),
        (ReasonCode.UNSUPPORTED_DTYPE, lambda x: x - x, ["i1"]),
        (ReasonCode.UNSUPPORTED_DTYPE, lambda x: x * 1j, ["f32"]),
        (ReasonCode.BAD_ARGUMENT, lambda x: x + 300, ["i8"]),
        (ReasonCode.BAD_ARGUMENT, lambda x: x**-1, ["i32"]),
        (ReasonCode.BAD_ARGUMENT, lambda x: x[7], ["f32"]),
        (ReasonCode.BAD_ARGUMENT, lambda x: x[0, 0, 0], ["f32"]),
        (ReasonCode.BAD_ARGUMENT, lambda x: x[[9]], ["f32"]),
        (ReasonCode.BAD_ARGUMENT, lambda x: x[:0].max(), ["f32"]),
        (ReasonCode.BAD_ARGUMENT, lambda x: x[:0].argmax(0), ["f32"]),
        (ReasonCode.BAD_ARGUMENT, lambda x: np.argmin(x[:, :0]), ["i32"]),
        (ReasonCode.BAD_ARGUMENT, lambda x: np.split(x, 2), ["f32"]),
        (ReasonCode.BAD_ARGUMENT, lambda x: "text", ["f32"]),
        (ReasonCode.BAD_ARGUMENT, lambda x, y: x, ["f32"]),
        (ReasonCode.BAD_ARGUMENT, lambda: 1, ["f32"]),
        (ReasonCode.INVALID_IR, lambda x: x @ x, ["f32"]),
    ],
)
def test_faults_have_their_codes(code, function, specs):
    with pytest.raises(PycError) as caught:
        trace(function, *(TensorSpec(d, 3, 4) for d in specs))
    assert caught.value.code is code


def test_a_shape_error_names_the_python_line():
    with pytest.raises(VerificationError, match=r"test_trace.py:\d+:\d+: pyc.matmul: inner dim"):
        trace(lambda x: x @ x, TensorSpec("f32", 3, 4))


@pytest.mark.parametrize("dims", [(-1,), ("a b",), (1.5,), (True,)])
def test_specs_refuse_what_is_no_dimension(dims):
    with pytest.raises(PycError, match="TensorSpec"):
        TensorSpec("f32", *dims)


def test_specs_are_values():
    assert Tensor["f32", "n", 4] == spec(np.float32, ("n", 4)) == TensorSpec("f32", "n", 4)
    assert len({TensorSpec("f32", 2), TensorSpec("f32", 2), TensorSpec("f16", 2)}) == 2
    with pytest.raises(PycError, match="element type"):
        TensorSpec("u7", 2)


def test_python_round_is_numpys():
    (out,) = interpret(trace(lambda x: round(x), F), [F])
    np.testing.assert_array_equal(out, np.round(F))


@pytest.mark.parametrize("index", [3, 7, -4])
@pytest.mark.parametrize("rest", [(), (0,), (slice(None), None)], ids=["x[i]", "x[i, 0]", "None"])
@pytest.mark.full
def test_an_index_out_of_a_dynamic_dimension_is_an_error_when_the_program_runs(index, rest):
    program = pyc_mlir.compile(lambda x: x[index, *rest] + 1, [TensorSpec("f32", "n", 4)])
    with pytest.raises(PycError) as caught:
        program(F)
    assert caught.value.code is ReasonCode.DIMENSION_MISMATCH
    longer = array("f32", 9, 4)
    np.testing.assert_array_equal(program(longer), longer[index, *rest] + 1)


def test_a_gather_comes_before_the_slice_that_it_is_from():
    module = trace(lambda x: x[:, :, :1][:, [0, 2]], T)
    assert [op.operation.name for op in _ops(module)][1:3] == ["pyc.gather", "pyc.slice"]
    program = pyc_mlir.compile(lambda x: (x[:, [0, 2], 1], x[:, :, :1][:, [0, 2]]), [T])
    for got, want in zip(program(T), (T[:, [0, 2], 1], T[:, :, :1][:, [0, 2]]), strict=True):
        np.testing.assert_array_equal(got, want)


def test_hypot_neither_overflows_nor_loses_infinity():
    x = np.array([3e30, 3e-30, 0, -np.inf, np.nan, 1, -0.0], np.float32)
    y = np.array([4e30, -4e-30, 0, 2, np.inf, np.nan, 5], np.float32)
    (out,) = interpret(trace(np.hypot, x, y), [x, y])
    np.testing.assert_allclose(out, np.hypot(x, y), rtol=1e-6)
    np.testing.assert_allclose(pyc_mlir.compile(np.hypot, [x, y])(x, y), out, rtol=1e-6)
