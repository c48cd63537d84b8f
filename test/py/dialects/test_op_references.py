"""Each op's numpy reference against an independent formula, its type rule and its decomposition.

Everything runs over the whole table of op_cases.
"""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from faults import cancelling
from op_cases import CASES, Case, cases_of, dynamic_types, inputs
from op_formulas import FORMULAS, f64

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.builder import NumpyBuilder
from pyc_mlir.dialects.numerics.rounding import flushed
from pyc_mlir.dialects.opdef import OPS, REQUIRED, Trait, evaluate
from pyc_mlir.dialects.types import BOOL, DTYPES, TensorType, is_float

# Against the exact formula, results are rounded once; decompositions round at every step.
RTOL = {"float64": 1e-9, "float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
STEPWISE = {"float64": 1e-9, "float32": 1e-4, "float16": 3e-2, "bfloat16": 2e-1}


def rounded(exact: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The formula's values in the op's element type; integers wrap."""
    exact = np.asarray(exact)
    if dtype == BOOL or is_float(dtype):
        with np.errstate(all="ignore"):
            return exact.astype(np.float64).astype(dtype) if is_float(dtype) else exact.astype(bool)
    info = np.iinfo(dtype)
    wrapped = [(int(v) - info.min) % 2**info.bits + info.min for v in exact.reshape(-1)]
    return np.array(wrapped, dtype).reshape(exact.shape)


def assert_equal(got: np.ndarray, want: np.ndarray, tolerances: dict[str, float]) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if not is_float(got.dtype):
        np.testing.assert_array_equal(got, want)
        return
    tolerance = tolerances[str(got.dtype)]
    with np.errstate(all="ignore"):
        got, want = f64(got, want)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_the_table_covers_every_op():
    assert {c.op for c in CASES} == set(OPS) == set(FORMULAS)
    assert len(set(map(str, CASES))) > 0.95 * len(CASES)


def test_inputs_are_reproducible_and_typed():
    for case in CASES[::37]:
        first, second = inputs(case, 3), inputs(case, 3)
        for a, b, type_ in zip(first, second, case.types, strict=True):
            assert (a.tobytes(), TensorType(a.shape, a.dtype)) == (b.tobytes(), type_)


@pytest.mark.parametrize("op", sorted(OPS))
@np.errstate(all="ignore")
def test_reference_equals_an_independent_formula(op):
    for case in cases_of(op):
        arrays = inputs(case, 1)
        got = evaluate(OPS[op], arrays, **case.keywords)
        try:
            want = rounded(FORMULAS[op](*arrays, **case.keywords), got.dtype)
            assert_equal(got, want, RTOL)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from None


@pytest.mark.parametrize("op", sorted(OPS))
@np.errstate(all="ignore")
def test_inferred_type_is_the_results(op):
    for case in cases_of(op):
        bound = OPS[op].bind(case.keywords)
        out = OPS[op].reference(*inputs(case), **bound)
        inferred = OPS[op].infer(*case.types, **bound)
        # These have lengths that follow from values.
        expected = (None,) if op in ("range", "nonzero") else np.shape(out)
        assert inferred.shape == expected, case
        if case.dynamic:
            dynamic = OPS[op].infer(*dynamic_types(case), **bound)
            assert dynamic.dtype == inferred.dtype
            pairs = zip(dynamic.shape, inferred.shape, strict=True)
            assert all(d in (None, s) for d, s in pairs), case


# Elementwise ops of floats alone, whose parameters have defaults.
OF_FLOATS = sorted(
    name
    for name, op in OPS.items()
    if op.has(Trait.ELEMENTWISE)
    and DTYPES["f32"] in getattr(op, "allowed", ())
    and all(p.default is not REQUIRED for p in op.params)
    and name != "select"
)
SMALL = np.array([s * 10.0**-k for k in np.arange(0.25, 45, 0.5) for s in (1, -1)])


def assert_near_zero(got: np.ndarray, want: np.ndarray) -> None:
    """Assert relative equality, but of what may be flushed."""
    least = flushed(got.dtype) if got.dtype != np.float16 else 2.0**-24
    tolerance = RTOL[str(got.dtype)]
    got, want = f64(got, want)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=least)


def near_zero(op: str, kind: str) -> list[np.ndarray]:
    x = SMALL.astype(DTYPES[kind])
    return [np.roll(x, 7 * i) for i in range(len(OPS[op].operands))]


@pytest.mark.parametrize("op", OF_FLOATS)
@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16"])
@np.errstate(all="ignore")
def test_elementwise_ops_are_as_exact_near_zero(op: str, kind: str):
    """In relative terms; `dialects/functions.py` has what decompositions need for it."""
    arrays = near_zero(op, kind)
    bound = OPS[op].bind({})
    got = evaluate(OPS[op], arrays, **bound)
    assert_near_zero(got, rounded(FORMULAS[op](*arrays, **bound), got.dtype))
    if (decompose := OPS[op].decompose) is not None:
        assert_near_zero(decompose(NumpyBuilder(), *arrays, **bound), got)


def test_cancelling_near_zero_is_seen(monkeypatch):
    monkeypatch.setattr(OPS["silu"], "decompose", staticmethod(cancelling))
    with pytest.raises(AssertionError):
        test_elementwise_ops_are_as_exact_near_zero("silu", "f32")


COMPOSITE = sorted(name for name, op in OPS.items() if op.decompose is not None)


def decomposed(case: Case, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    definition = OPS[case.op]
    assert definition.decompose is not None
    return definition.decompose(NumpyBuilder(), *arrays, **definition.bind(case.keywords))


@pytest.mark.parametrize("op", COMPOSITE)
@np.errstate(all="ignore")
def test_decomposition_equals_the_reference(op):
    compared = 0
    for case in cases_of(op):
        arrays = inputs(case, 2)
        got = decomposed(case, arrays)
        if got is None:
            continue
        try:
            assert_equal(got, evaluate(OPS[op], arrays, **case.keywords), STEPWISE)
        except AssertionError as error:
            raise AssertionError(f"{case}: {error}") from None
        compared += 1
    assert compared >= 3


def test_a_batchnorm_of_f16_keeps_its_factors_in_f32():
    """In f16, the product with the factor and the offset are both infinite."""
    given = [
        np.array(v, np.float16) for v in ([[1000, 1001]], [1, 1], [0, 0.5], [1e3, 1e3], [0, 0])
    ]
    decompose = OPS["batchnorm"].decompose
    assert decompose is not None
    found = decompose(NumpyBuilder(), *given, axis=1, epsilon=1e-5)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, [[0, 316.7]], 1e-3)


@pytest.mark.parametrize(("name", "top"), [("f32", 9), ("f64", 26)])
def test_erfc_keeps_its_digits_where_it_is_small(name, top):
    x = np.linspace(-top, top, 999).astype(DTYPES[name])
    decompose = OPS["erfc"].decompose
    assert decompose is not None
    got = decompose(NumpyBuilder(), x)
    want = [math.erfc(v) for v in x.tolist()]
    np.testing.assert_allclose(got, want, {"f32": 1e-6, "f64": 1e-14}[name])


@pytest.mark.parametrize("name", ["f16", "bf16"])
def test_a_batch_norm_of_16_bits_rounds_no_offset(name):
    """The offset -mean / deviation is 160 times the deviation here."""
    dtype = DTYPES[name]
    x, mean = np.full((1, 2), 10.0625, dtype), np.full(2, 10, dtype)
    variance = np.full(2, 0.00390625, dtype)
    ones, zeros = np.ones(2, dtype), np.zeros(2, dtype)
    keywords = {"axis": 1, "epsilon": 0.0}
    decompose = OPS["batchnorm"].decompose
    assert decompose is not None
    got = decompose(NumpyBuilder(), x, ones * dtype.type(0.7), zeros, mean, variance, **keywords)
    want = evaluate(
        OPS["batchnorm"], (x, ones * dtype.type(0.7), zeros, mean, variance), **keywords
    )
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=0.01)


@pytest.mark.parametrize(("op", "wanted"), [("softmax", 2.0**-17), ("log_softmax", -11.783)])
def test_long_rows_of_f16_are_summed_in_f32(op, wanted):
    """As many equal terms as a large vocabulary has are beyond f16."""
    decompose = OPS[op].decompose
    assert decompose is not None
    found = decompose(NumpyBuilder(), np.zeros((1, 1 << 17), np.float16), axis=1)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, np.full_like(found, wanted), 1e-3)


def types(*shapes: tuple[int, ...], dtype: str = "f32") -> list[TensorType]:
    return [TensorType(s, DTYPES[dtype]) for s in shapes]


@pytest.mark.parametrize(
    "op, operands, params, flops, traffic",
    [
        ("add", types((3, 4), (4,)), {}, 12, 4 * (12 + 4 + 12)),
        ("exp", types((5,)), {}, 50, 40),
        ("matmul", types((2, 3, 4), (4, 5)), {}, 2 * 2 * 3 * 5 * 4, 4 * (24 + 20 + 30)),
        ("matmul", types((4,), (4,)), {}, 8, 4 * 9),
        ("conv2d", types((1, 4, 8, 8), (6, 2, 3, 3)), {"groups": 2}, 2 * 216 * 18, 4 * 580),
        ("max_pool2d", types((1, 1, 4, 4)), {"kernel": (2, 2), "strides": (2, 2)}, 16, 80),
        ("resize", types((1, 2, 4, 4)), {"sizes": (8, 8), "mode": "linear"}, 3 * 192, 640),
        ("resize", types((1, 2, 4, 4)), {"sizes": (8, 8)}, 0, 640),
        ("reduce_sum", types((3, 4)), {"axes": (1,)}, 12, 4 * 15),
        ("softmax", types((2, 8)), {}, 14 * 16, 128),
        ("layernorm", types((2, 8), (8,), (8,)), {}, 128, 4 * 48),
        ("attention", types((2, 3, 8), (2, 5, 8), (2, 5, 6)), {"scale": 1.0}, 30 * 42, 4 * 224),
        ("attention", types((2, 3, 8), (2, 5, 8), (2, 5, 0)), {"scale": 1.0}, 30 * 30, 4 * 128),
        ("transpose", types((2, 3), dtype="f16"), {"permutation": (1, 0)}, 0, 24),
        ("size", types((9, 9)), {"axes": (0,)}, 0, 8),
        ("cast", types((4,), dtype="i1"), {"dtype": DTYPES["f64"]}, 4, 4 + 32),
    ],
)
def test_counts(op, operands, params, flops, traffic):
    definition = OPS[op]
    bound = definition.bind(params)
    out = definition.infer(*operands, **bound)
    assert definition.flops(operands, out, **bound) == flops
    assert definition.traffic(operands, out, **bound) == traffic


def test_gather_reads_only_what_it_takes():
    operands = [*types((1000, 4)), *types((3,), dtype="i64")]
    out = OPS["gather"].infer(*operands, axis=0)
    assert OPS["gather"].traffic(operands, out, axis=0) == 3 * 8 + 2 * 12 * 4


def test_evaluate_refuses_what_does_not_fit():
    x = np.ones((2, 3), np.float32)
    with pytest.raises(VerificationError, match="expected 2 operands, got 1"):
        evaluate(OPS["add"], [x])
    with pytest.raises(VerificationError, match="do not broadcast"):
        evaluate(OPS["add"], [x, np.ones((2, 4), np.float32)])
    with pytest.raises(VerificationError, match="expected parameters"):
        evaluate(OPS["relu"], [x], slope=1)
    with pytest.raises(VerificationError, match="`axes` is missing"):
        evaluate(OPS["reduce_sum"], [x])


@pytest.mark.parametrize("exponents", [np.full(n, 0.5, np.float32) for n in (1, 4)], ids=len)
def test_a_power_of_one_half_has_the_special_values_of_c(exponents: np.ndarray) -> None:
    """numpy takes the square root, NaN for -inf, where one number is the exponent of all."""
    x = np.array([-np.inf, -0.0, np.inf, 4], np.float32)
    got = NumpyBuilder().build(OPS["pow"], x, exponents)
    want = np.array([np.inf, 0, np.inf, 2], np.float32)
    assert got.dtype == want.dtype and got.tobytes() == want.tobytes()
