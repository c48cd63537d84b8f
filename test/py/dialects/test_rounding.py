"""Tolerances: no correct program is refused by them, and they are not wider than they must be."""

import numpy as np
import pytest
from compiled import OwnKernels
from faults import cancelling
from op_cases import CASES, inputs

import pyc_mlir
from pyc_mlir.artifact.test_vectors import ExpectedResult, compare
from pyc_mlir.dialects.numerics.rounding import NUMPY_RULES, RULES, Uncertain
from pyc_mlir.dialects.numerics.uncertain import UncertainBuilder
from pyc_mlir.dialects.opdef import OPS, Trait, evaluate
from pyc_mlir.dialects.types import DTYPES, is_float
from pyc_mlir.pipelines.choices.contract import ROUNDING, Contract

B = UncertainBuilder()
RNG = np.random.default_rng(0)

# Elementwise functions of one float.
UNARY = {
    name
    for name, op in OPS.items()
    if op.has(Trait.ELEMENTWISE) and len(op.operands) == 1 and not op.params
} - {"not"}

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def scalar(x: float) -> np.ndarray:
    return np.array(x, np.float32)


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def uncertain(value: np.ndarray, deviation: float) -> Uncertain:
    return Uncertain(value, np.full(value.shape, deviation))


@pytest.mark.parametrize("op", sorted(OPS))
def test_every_op_has_a_deviation(op: str):
    assert op in RULES or OPS[op].decompose is not None
    for case in [c for c in CASES if c.op == op][:12]:
        arrays = inputs(case, seed=1)
        found = B.build(OPS[op], *map(Uncertain.exact, arrays), **case.keywords)
        value = evaluate(OPS[op], arrays, **case.keywords)
        np.testing.assert_array_equal(found.value.astype(np.float64), value.astype(np.float64))
        assert found.deviation.shape == value.shape and (found.deviation >= 0).all()
        if not is_float(value.dtype) and op not in ("argmax", "compare", "cast"):
            assert not found.deviation.any()


@pytest.mark.parametrize("k", [1, 7, 64, 1000])
def test_products_in_any_order_are_within_and_another_term_is_not(k: int):
    a, b = f32(16, k), f32(k, 16)
    found = B.matmul(B.constant(a), B.constant(b))
    order = RNG.permutation(k)
    one_by_one = np.zeros((16, 16), np.float32)
    for i in order:
        one_by_one += np.outer(a[:, i], b[i])
    expected = [ExpectedResult(found.value, found.tolerance)]
    assert not compare([one_by_one], expected).wrong
    assert compare([one_by_one - np.outer(a[:, 0], b[0])], expected).wrong


def test_a_chain_of_layers_stays_within_and_keeps_its_sharpness():
    x, layers = f32(8, 128), [f32(128, 128) / 11 for _ in range(12)]
    value, plain = B.constant(x), x
    for w in layers:
        value = B.tanh(B.matmul(value, B.constant(w)))
        plain = np.tanh(plain @ w)
    difference = np.abs(plain - value.value)
    assert (difference < value.tolerance).all()
    assert float(np.median(value.tolerance)) < 1e-2


def test_deviations_go_through_operations():
    x = uncertain(np.array([2.0, -3.0], np.float64), 1e-3)
    assert B.neg(x).deviation == pytest.approx(1e-3)
    assert B.add(x, x).deviation == pytest.approx(1e-3 * np.sqrt(2))
    assert B.mul(x, B.constant(np.array(10.0))).deviation == pytest.approx(1e-2)
    assert B.exp(x).deviation == pytest.approx(np.exp([2.0, -3.0]) * 1e-3, rel=0.05)
    assert B.reshape(x, shape=(2, 1)).deviation.shape == (2, 1)
    assert B.concat(x, x, axis=0).deviation.shape == (4,)
    assert B.pad(x, low=(1,), high=(0,), value=9.0).deviation[0] == 0
    assert B.reduce_sum(x, axes=(0,)).deviation == pytest.approx(1e-3 * np.sqrt(2))
    zero = uncertain(np.array([1e-5]), 1e-3)
    assert np.isinf(B.div(B.constant(np.array([1.0])), zero).deviation)


def test_what_rounding_decides_is_left_open():
    near, far = uncertain(np.array([1.0, 5.5], np.float32), 0.01), B.constant(scalar(1.01))
    assert list(B.compare(near, far, predicate="lt").deviation > 0) == [True, False]
    chosen = B.select(B.compare(near, far, predicate="lt"), near, B.constant(scalar(7)))
    assert chosen.tolerance[0] > 6 > chosen.tolerance[1]
    assert list(B.floor(near).deviation > 0) == [True, False]
    assert list(B.cast(near, dtype=np.dtype(np.int32)).deviation > 0) == [True, False]
    index = B.argmax(uncertain(np.array([[1.0, 1.01], [1.0, 9.0]], np.float32), 0.01), axis=1)
    assert list(np.isinf(index.deviation)) == [True, False]
    taken = B.gather(B.constant(np.arange(4.0)), index)
    assert list(np.isinf(taken.deviation)) == [True, False]


def test_conversions_of_uncertain_numbers_out_of_range():
    """Integers wrap around; floats saturate, but in numpy."""
    near = uncertain(np.array([250, 255, 300], np.int32), 1.0)
    narrow = B.cast(near, dtype=np.dtype(np.uint8))
    assert list(np.isinf(narrow.deviation)) == [False, True, True]
    assert B.cast(near, dtype=np.dtype(np.int64)).deviation == pytest.approx(1.0)
    x = B.constant(np.array([np.nan, np.inf, -1, 256, 255.9, -0.9, 3], np.float32))
    by_numpy = UncertainBuilder(rules=NUMPY_RULES)
    for b, left_open in ((B, 0), (by_numpy, 4)):
        found = b.cast(x, dtype=np.dtype(np.uint8)).deviation
        assert list(np.isinf(found)) == [True] * left_open + [False] * (7 - left_open)
        assert not b.cast(x, dtype=np.dtype(np.float16)).deviation.any()


@pytest.mark.parametrize("op", sorted(UNARY))
@pytest.mark.parametrize("kind", ["f16", "bf16", "f32", "f64"])
def test_what_is_left_open_stays_open(op: str, kind: str):
    """NaN that another program need not have, as of silu: no swing makes it exact."""
    x = np.array([np.nan, 1.5, -np.inf, 0.25], np.float32).astype(DTYPES[kind])
    left_open = Uncertain(x, np.array([np.inf, np.inf, np.inf, 0.0]))
    found = B.build(OPS[op], left_open)
    assert list(np.isinf(found.deviation)) == [True, True, True, False]
    guard = B.select(B.compare(left_open, left_open, predicate="ne"), B.constant(x), left_open)
    assert list(np.isinf(guard.deviation)) == [True, True, True, False]
    two = B.constant(np.full(4, 2, DTYPES[kind]))
    for pair in ((left_open, two), (two, left_open)):
        for other in ("maximum", "minimum", "add", "mul", "div", "pow"):
            assert np.isinf(B.build(OPS[other], *pair).deviation[:3]).all(), other


def test_subnormal_halves_are_rounded_to_their_own_step():
    """Two programs are off by one of them; factors scale that."""
    x = np.array([3e-8, 1e-7, 3e-6], np.float16)
    step = 2.0**-24
    found = B.mul(B.constant(x), B.constant(np.array(0.7, np.float16)))
    assert (found.tolerance >= step).all() and (found.tolerance <= 3 * step).all()
    exact = np.array([-17.0, -12.0, 3.0], np.float16)
    sigmoid = B.sigmoid(B.constant(exact))
    assert (sigmoid.tolerance >= [step, step, 2.0**-11]).all()
    silu = B.mul(B.constant(exact), sigmoid)
    assert (silu.tolerance[:2] >= [17 * step, 12 * step]).all()
    assert (silu.tolerance[:2] <= 1e-5).all()


def test_halves_that_leave_their_range_are_left_open():
    """A composite computes in f32 what is spelled out in f16; and a rounding decides at the end."""
    x = np.array([11.5, 11.0898, 11.0, -60, 60], np.float32)
    half = np.dtype(np.float16)
    for kind, count in ((half, 2), (np.dtype(np.float32), 0)):
        given = B.constant(x.astype(kind))
        exp = B.exp(given)
        one = B.constant(np.array(1, kind))
        sigmoid = B.div(one, B.add(one, exp))
        wanted = [True] * count + [False] * (4 - count)
        assert list(np.isinf(exp.deviation[:4])) == wanted
        assert list(np.isinf(sigmoid.deviation[:4])) == wanted
    far = B.constant(np.array([7e4, np.inf], np.float32))
    assert list(np.isinf(B.cast(far, dtype=half).deviation)) == [True, False]


def test_a_composite_has_the_error_of_its_result_near_zero(monkeypatch):
    """Not that of its decomposition, if this cancels there; nor of large operands."""
    x = B.constant(np.array([1e-8, -1e-4, 0.5, -80, -np.inf], np.float32))
    exact = B.silu(x)
    monkeypatch.setattr(OPS["silu"], "decompose", staticmethod(cancelling))
    found = B.silu(x)
    assert (found.tolerance[:3] <= 1e-5 * np.abs(x.value[:3])).all()
    assert (exact.tolerance <= found.tolerance)[3:].all() and np.isinf(found.tolerance[4])
    assert B.silu(uncertain(x.value[:3], 1e-6)).deviation == pytest.approx(1e-6, rel=1)


def test_exact_values_are_compared_exactly():
    whole = B.constant(np.array([3, 5, 5], np.int32))
    assert not B.argmax(whole, axis=0).deviation.any()
    assert not B.compare(whole, whole, predicate="eq").deviation.any()
    x = B.constant(np.array([1.00001, 2.5], np.float32))
    assert not B.cast(x, dtype=np.dtype(np.float16)).deviation.any()


def test_an_operation_without_a_rule_leaves_nothing_to_compare(monkeypatch):
    monkeypatch.delitem(RULES, "tanh")
    assert np.isinf(B.tanh(B.constant(f32(3))).deviation).all()


def test_comparing():
    value = np.array([1.0, np.nan, np.inf, 100.0], np.float32)
    want = [ExpectedResult(value, np.array([1e-3, 0, 0, np.inf], np.float32))]
    assert not compare([np.array([1.0005, np.nan, np.inf, -5], np.float32)], want).wrong
    assert compare([np.array([1.0005, np.nan, np.inf, 9], np.float32)], want).compared == 3
    for wrong in ([1.1, np.nan, np.inf, 0], [1, 0, np.inf, 0], [1, np.nan, -np.inf, 0]):
        assert "result 0[" in compare([np.array(wrong, np.float32)], want).wrong
    assert "expected float32[4]" in compare([value[:3]], want).wrong
    assert "expected float32[4]" in compare([value.astype(np.float64)], want).wrong
    big = np.array([2**60], np.int64)
    assert compare([big + 1], [ExpectedResult(big, np.zeros(1, np.float32))]).wrong
    tight = [ExpectedResult(np.ones(2, np.float32), np.ones(2, np.float32))]
    got = [np.array([1, 1.01], np.float32)]
    assert not compare(got, tight, 0.1).wrong and compare(got, tight, 1e-3).wrong


def test_rounding_that_decides_on_all_elements_decides_on_their_number():
    open_ = ExpectedResult(np.array([3, 5]), np.full(2, np.inf, np.float32))
    none = ExpectedResult(np.array([], np.int64), np.zeros(0, np.float32))
    assert not compare([np.array([3])], [open_]).wrong
    assert compare([np.array([3.0])], [open_]).wrong and compare([np.array(3)], [open_]).wrong
    assert compare([np.array([3])], [none]).wrong and not compare([np.array([], int)], [none]).wrong


def test_subnormal_halves_are_not_flushed_by_conversions():
    tiny = np.array([-1.43e-6, 5e-5, 6.2e-5, 0.0, 1.0])
    half = np.dtype(np.float16)
    for source in (np.float64, np.float32):
        found = B.cast(B.constant(tiny.astype(source)), dtype=half)
        flushed = np.where(np.abs(tiny) < 6.1e-5, 0, tiny).astype(half)
        expected = [ExpectedResult(found.value, found.tolerance)]
        assert compare([flushed], expected).wrong


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_kernels_of_gelu_are_within_near_zero_too(approximate: str):
    """A polynomial's error there is one of roundings of 1; the decomposition's is far smaller."""
    x = np.linspace(-6, 6, 1001, dtype=np.float32)
    found = B.gelu(B.constant(x), approximate=approximate)
    size = np.maximum(1, np.abs(x))
    assert (found.tolerance >= 3.5e-7 * size).all() and (found.tolerance <= 4e-6 * size).all()


def test_limits_at_minus_infinity_are_left_open():
    x = np.array([-np.inf, -100, 1], np.float32)
    for op in (B.silu, B.gelu):
        assert list(np.isinf(op(B.constant(x)).deviation)) == [True, False, False]


@pytest.mark.full
def test_every_kernel_of_a_single_op_is_within():
    """Whole compiles under the contract, with PyC's kernels: an honest program is not refused."""
    x = np.linspace(-4, 4, 64 * 129, dtype=np.float32).reshape(64, 129)
    ops = ("abs", "exp", "tanh", "erf", "sigmoid", "silu", "gelu", "sin", "cos", "relu", "floor")
    text = [f'  %{op} = "pyc.{op}"(%x) : (T) -> T' for op in ops]
    text += [f'  %{op} = "pyc.{op}"(%exp) : (T) -> T' for op in ("log", "sqrt", "rsqrt")]
    text += ['  %fast = "pyc.gelu"(%x) {approximate = "tanh"} : (T) -> T']
    text += ['  %pow = "pyc.pow"(%exp, %x) : (T, T) -> T']
    names = [line.split()[0] for line in text]
    types = ", ".join("T" for _ in names)
    body = "\n".join(text) + f"\n  return {', '.join(names)} : {types}"
    module = f"func.func @main(%x: T) -> ({types}) {{\n{body}\n}}\n"
    program = pyc_mlir.compile(
        module.replace("T", "tensor<64x129xf32>"),
        contract=Contract(max_error=ROUNDING),
        policy=OwnKernels(),
    )
    x[0, 0] = -np.inf
    program(x)
    assert program.stats().comparisons == 1 and program.stats().wrong_results == 0
