"""JAX primitives through jaxprs and through exported StableHLO, against JAX itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

from conftest import sample  # noqa: E402
from jax import numpy as jnp  # noqa: E402  # pyright: ignore[reportMissingImports]
from jax_cases import Case, cases  # noqa: E402
from random_jax import random_function  # noqa: E402

import pyc_mlir  # noqa: E402
import pyc_mlir.jax as pyc_jax  # noqa: E402
from pyc_mlir.dialects.errors import ReasonCode  # noqa: E402
from pyc_mlir.dialects.ir.pyc import new_context  # noqa: E402
from pyc_mlir.frontends.jax import primitives  # noqa: E402
from pyc_mlir.frontends.stablehlo.importer import import_stablehlo, read_artifact  # noqa: E402

CASES = cases()
# Regions of several operations, which StableHLO has where a jaxpr has one primitive.
ONLY_AS_JAXPR = {name for name in CASES if name.startswith("cumlogsumexp")}


def from_jaxpr(case: Case) -> Any:
    return pyc_jax.jit(case.function).module(*case.arrays)


def from_stablehlo(case: Case) -> Any:
    exported = jax.export.export(jax.jit(case.function, keep_unused=True))(*case.arrays)
    artifact = exported.mlir_module_serialized
    return import_stablehlo(read_artifact(artifact, case.name, new_context()), case.name)


def check(got: Any, case: Case, least: float = 1e-3) -> None:
    want = jax.tree.leaves(jax.jit(case.function)(*case.arrays))
    results: Sequence[Any] = got if isinstance(got, (tuple, list)) else [got]
    for mine, theirs in zip(map(np.asarray, results), map(np.asarray, want), strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        a, b = mine.astype(np.float64), theirs.astype(np.float64)
        finite = np.isfinite(b)
        np.testing.assert_array_equal(a[~finite], b[~finite])
        limit = case.tolerance * max(np.abs(b[finite]).max(initial=0), least)
        assert (np.abs(a[finite] - b[finite]) <= limit).all(), np.abs(a - b)[finite].max()


@pytest.mark.parametrize("name", sample(sorted(CASES), 60))
def test_a_primitive_equals_jax_through_its_jaxpr(name: str) -> None:
    case = CASES[name]
    check(pyc_mlir.interpret(from_jaxpr(case), list(case.arrays)), case)


@pytest.mark.parametrize("road", [from_jaxpr, from_stablehlo])
def test_a_remainder_is_exact_however_large_its_quotient(road: Any) -> None:
    arrays = np.array([1e17, -7, 5], np.float32), np.array([3, np.inf, 0.1], np.float32)
    case = Case("rem-large", jax.lax.rem, arrays, 0)
    check(pyc_mlir.interpret(road(case), list(arrays)), case)


def _of_64_bits(x: Any) -> Any:
    """A pad, running extremes and windows whose numbers f64 does not hold."""
    least, most = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    yield jax.lax.pad(x, np.int64(2**53 + 1), ((1, 2, 1),))
    for running in (jax.lax.cummin, jax.lax.cummax):
        yield from (running(x, 0), running(x.astype(np.uint64), 0, reverse=True))
    for start, combine in ((most, jax.lax.min), (least, jax.lax.max)):
        yield jax.lax.reduce_window(x, np.int64(start), combine, (2,), (1,), ((1, 0),))


@pytest.mark.parametrize("road", [from_jaxpr, from_stablehlo])
def test_integers_of_64_bits_go_through_no_float(road: Any) -> None:
    with jax.enable_x64(True):
        x = np.array([5, -3, 2**53 + 1, -(2**63), 2**63 - 1], np.int64)
        case = Case("integers", lambda x: tuple(_of_64_bits(x)), (x,), 0)
        got = pyc_mlir.interpret(road(case), [x])
        for mine, theirs in zip(got, case.function(x), strict=True):
            np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_tail_of_erfc_keeps_its_digits(dtype: Any) -> None:
    """Relative to each element: erfc, and what the normal distribution's tails are made of."""
    from jax.scipy import special, stats

    top, limit = (9, 1e-5) if dtype == np.float32 else (25, 1e-12)
    x = np.concatenate([np.linspace(-top, top, 101), [np.inf, -np.inf, np.nan]]).astype(dtype)
    with jax.enable_x64(True):
        for function in (jax.lax.erfc, lambda x: special.ndtr(-x), stats.norm.logsf):
            (got,) = pyc_mlir.interpret(pyc_jax.jit(function).module(x), [x])
            np.testing.assert_allclose(got, function(x), limit)


@pytest.mark.parametrize("name", sample(sorted(CASES.keys() - ONLY_AS_JAXPR), 40))
def test_a_primitive_equals_jax_through_stablehlo(name: str) -> None:
    case = CASES[name]
    check(pyc_mlir.interpret(from_stablehlo(case), list(case.arrays)), case)


@pytest.mark.parametrize("seed", sample(range(100), 15))
def test_a_random_function_equals_jax(seed: int) -> None:
    function, arrays = random_function(seed)
    case = Case(f"random-{seed}", function, arrays, 2e-4)
    check(pyc_mlir.interpret(from_jaxpr(case), list(arrays)), case, least=1.0)


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda x: jax.numpy.linalg.qr(x), ReasonCode.UNSUPPORTED_OP),
        (lambda x: jax.numpy.fft.fft(x).real, ReasonCode.UNSUPPORTED_OP),
        (
            lambda x: jax.lax.while_loop(lambda v: v.sum() < 9, lambda v: v + 1, x),
            ReasonCode.UNSUPPORTED_ATTRIBUTE,
        ),
        (
            lambda x: jax.lax.fori_loop(0, 10**6, lambda i, v: v + i, x),
            ReasonCode.UNSUPPORTED_ATTRIBUTE,
        ),
    ],
    ids=["qr", "fft", "while", "long-loop"],
)
def test_what_pyc_lacks_is_refused_with_its_line(function: Any, code: ReasonCode) -> None:
    with pytest.raises(pyc_mlir.PycError) as refused:
        pyc_jax.jit(function).module(np.ones((3, 3), np.float32))
    assert refused.value.code in (code, ReasonCode.UNSUPPORTED_OP)
    assert str(code.name) in str(refused.value)
    line = function.__code__.co_firstlineno
    assert f"{__file__}:{line}" in str(refused.value)


def _unsigned(x: Any, y: Any) -> Any:
    return jax.lax.div(x, y), jax.lax.rem(x, y), jax.lax.sign(x)


def _searches(ordered: Any, x: Any) -> Any:
    """All of these divide unsigned integers, and compare by the total order of floats."""
    return (
        jnp.searchsorted(ordered, x, side="right"),
        jnp.digitize(x, ordered),
        jnp.interp(x, ordered, ordered * ordered),
        jnp.histogram(x, ordered)[0],
    )


def _by_total_order(x: Any) -> Any:
    """0 is larger than -0, NaN the largest and -NaN the least."""
    return jax.lax.top_k(x, x.shape[-1])[1]


def _whole_sums(x: Any) -> Any:
    """Sums of whole numbers, over windows whose means are none."""
    windows = ((1, 5, 5, 1), (1, 7, 3, 1), (1, 1, 7, 1))
    sums = [jax.lax.reduce_window(x, 0.0, jax.lax.add, w, (1,) * 4, "SAME") for w in windows]
    apart = jax.lax.reduce_window(
        x, 0.0, jax.lax.add, windows[1], (1,) * 4, "VALID", window_dilation=(1, 1, 2, 1)
    )
    return *sums, apart


_NANS = [-0.0, 0.0, np.nan, -np.nan, 1.0, np.nan, -np.inf, 1.0]
EDGES = (
    Case("unsigned", _unsigned, (np.array([3, 200, 7], "u1"), np.array([2, 3, 0], "u1")), 0),
    Case("whole-sums", _whole_sums, (np.arange(336, dtype="f4").reshape(3, 8, 7, 2),), 0),
    Case("searches", _searches, (np.arange(5.0, dtype="f4"), np.array([0.5, 2, 7, -1], "f4"))),
    Case("top-k", _by_total_order, (np.array([_NANS], "f4"),), 0),
)


@pytest.mark.parametrize("road", [from_jaxpr, from_stablehlo])
@pytest.mark.parametrize("case", EDGES, ids=lambda case: case.name)
def test_edges_of_integers_and_orders(case: Case, road: Any) -> None:
    check(pyc_mlir.interpret(road(case), list(case.arrays)), case)


@pytest.mark.parametrize("road", [from_jaxpr, from_stablehlo])
def test_a_scatter_with_a_function_of_its_own_is_refused(road: Any) -> None:
    case = Case("apply", lambda x: x.at[1].apply(lambda v: v * 3), (np.ones(4, np.float32),))
    with pytest.raises(pyc_mlir.PycError, match="scatter") as refused:
        road(case)
    assert refused.value.code is ReasonCode.UNSUPPORTED_ATTRIBUTE


def test_a_handler_that_passes_over_a_parameter_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setitem(primitives.PRIMITIVES, "transpose", lambda call, p: call.x())
    with pytest.raises(pyc_mlir.PycError, match=r"parameter `permutation` is \(1, 0\)"):
        pyc_jax.jit(jax.numpy.transpose).module(np.ones((2, 2), np.float32))


def _with_unused_keys(x: Any) -> Any:
    """Keys in loops, calls and functions with derivatives, which nothing draws from."""
    key, other = jax.random.split(jax.random.key(0))
    step = lambda c, row: ((c[0] + row, jax.random.split(c[1])[0]), c[0])  # noqa: E731
    (total, _), rows = jax.lax.scan(step, (x[0], key), x)
    kept, _ = jax.checkpoint(lambda x: (jax.nn.relu(x), jax.random.normal(other)))(x)
    return total + rows.sum(0) + kept.sum(0)


def test_random_keys_that_nothing_needs_are_dropped() -> None:
    case = Case("keys", _with_unused_keys, (np.ones((3, 2), np.float32),))
    check(pyc_mlir.interpret(from_jaxpr(case), list(case.arrays)), case)
    unread = pyc_jax.jit(lambda key, x: (jax.random.split(key), x + 1)[1])
    assert unread.module(jax.random.key(1), np.ones(3, np.float32))
