"""Every elementwise function is as exact as docs/numerics.md states, for every element type.

All numbers of the 16-bit types, and of f32 and f64 a sample: some in `make test`, many in
`make test-full`. What the frame of an ulp forgives (exact powers, signs of zero, bounds) has tests
of its own.
"""

import numpy as np
import pytest
from conftest import FULL, sample
from function_errors import FUNCTIONS, MANY, RESULT, SOME, campaign, cases, computed, drawn, errors
from function_errors_page import PAGES, page

import pyc_mlir
from pyc_mlir import Tensor
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.numerics.rounding import RULES, Uncertain
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.measure.records import Report
from pyc_mlir.runtime.device import Device
from pyc_mlir.tools.docs import gen_docs

FLOATS = ["f16", "bf16", "f32", "f64"]
LARGE = [1e5, 1e10, 1e19, 1e25, 1e38, 3.4028235e38]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("dtype", "way"), sample(cases(), 3))
@pytest.mark.full
def test_errors_are_within_what_is_stated(dtype: str, way: str, record_property) -> None:
    found = list(campaign(DTYPES[dtype], way, MANY if FULL else SOME))
    assert {f.function for f in found} == set(FUNCTIONS)
    record_property("function errors", {"operands": sum(f.count for f in found)})
    wrong = [f for f in found if not f.error <= FUNCTIONS[f.function].most[dtype]]
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.sampled(1)
def test_powers_of_two_are_exact(dtype: str) -> None:
    least, most = {"f16": (-14, 15), "f64": (-1022, 1023)}.get(dtype, (-126, 127))
    # bf16 holds whole numbers up to 256; all exponents of f64 are whole numbers of it.
    y = np.arange(least, most + 1).astype(DTYPES[dtype])
    two = np.array(2, DTYPES[dtype])

    def program(y, base):
        return np.exp2(y), np.power(base, y), np.log2(np.exp2(y))

    types = [Tensor[dtype, len(y)], Tensor[dtype, len(y)]]
    got = pyc_mlir.compile(program, types, target="cpu")(y, np.full_like(y, two))
    powers = np.ldexp(1.0, y.astype(int)).astype(DTYPES[dtype])
    for out, expected in zip(got, (powers, powers, y), strict=True):
        np.testing.assert_array_equal(out, expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", ["bf16", "f32", "f64"])
@pytest.mark.full
def test_sin_and_cos_of_large_numbers_are_bounded_and_right(dtype: str) -> None:
    values = LARGE + ([1e100, 1.7976931348623157e308] if dtype == "f64" else [])
    x = np.array(values).astype(DTYPES[dtype])

    def program(x):
        return np.sin(x), np.cos(x)

    got = pyc_mlir.compile(program, [Tensor[dtype, len(x)]], target="cpu")(x)
    wide = x.astype(np.longdouble)
    for out, expected in zip(got, (np.sin(wide), np.cos(wide)), strict=True):
        eps = {"bf16": 2.0**-8, "f32": 2.0**-23, "f64": 2.0**-52}[dtype]
        np.testing.assert_allclose(out.astype(np.longdouble), expected, rtol=2 * eps, atol=0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("target", ["cuda", "vulkan"])
def test_what_is_pycs_own_is_as_exact_on_a_gpu(target: str) -> None:
    """The ulps that docs/numerics.md states for GPUs, where divisions need not be exact."""
    try:
        Device(target)
    except PycError as error:
        pytest.skip(f"no {target} device: {error.message}")
    most = {"sin": 2.5, "cos": 2.5, "tan": 5, "exp2": 2}
    x = drawn(DTYPES["f32"], MANY if FULL else SOME, np.random.default_rng(0))
    for name, got in zip(most, computed(list(most), [x], target=target), strict=True):
        assert errors(name, [x], got).max() <= most[name], name


@pytest.mark.parametrize("dtype", sample(FLOATS, 2, seed=1))
@pytest.mark.full
def test_zeros_keep_their_signs(dtype: str) -> None:
    x = np.array([0.0, -0.0]).astype(DTYPES[dtype])

    names = ["sin", "tan", "tanh", "sinh", "asinh", "atanh", "sqrt", "log1p", "expm1"]
    for name, out in zip(names, computed(names, [x]), strict=True):
        np.testing.assert_array_equal(np.signbit(out), [False, True], err_msg=name)


@pytest.mark.parametrize("dtype", sample(FLOATS, 2, seed=2))
@pytest.mark.full
def test_sign_is_minus_one_zero_or_one(dtype: str) -> None:
    tiny = 2.0 ** {"f16": -24, "f64": -1074}.get(dtype, -130)
    x = np.array([tiny, -tiny, 0, 3, -3, np.inf, -np.inf]).astype(DTYPES[dtype])
    got = pyc_mlir.compile(np.sign, [Tensor[dtype, len(x)]], target="cpu")(x)
    assert set(np.abs(got[:2]).astype(float)) <= {0.0, 1.0}
    np.testing.assert_array_equal(got[2:].astype(float), [0, 1, -1, 1, -1])


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_what_is_allowed_of_large_arguments_is_small(name: str) -> None:
    """Under `max_error` a tolerance that grew with the argument would allow anything."""
    x = Uncertain.exact(np.array(LARGE, np.float32))
    value = getattr(np, name)(x.value)
    allowed = Uncertain(value, RULES[name](value, x)).tolerance
    assert np.all(allowed <= 16 * 2.0**-24)
    unknown = Uncertain(x.value, np.abs(x.value).astype(np.float64))
    assert np.all(Uncertain(value, RULES[name](value, unknown)).tolerance <= 2.001)


def test_the_page_and_the_stored_campaign_agree_with_what_is_stated() -> None:
    records = Report.load(RESULT).records
    assert {r["workload"] for r in records} == {f"{f} {t}" for f in FUNCTIONS for t, _ in cases()}
    for r in records:
        name, dtype = r["workload"].split()
        assert r["value"] <= FUNCTIONS[name].most[dtype] + 0.01, r["workload"]
    assert all(f"| `{name}` |" in page() for name in FUNCTIONS)
    assert gen_docs.main(["--check"], PAGES) == 0
