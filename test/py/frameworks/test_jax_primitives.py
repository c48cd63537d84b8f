"""JAX primitives through jaxprs and through exported StableHLO, against JAX itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="jax is not installed")

from conftest import sample  # noqa: E402
from jax_cases import Case, cases  # noqa: E402
from random_jax import random_function  # noqa: E402

import pyc_mlir  # noqa: E402
import pyc_mlir.jax as pyc_jax  # noqa: E402
from pyc_mlir.dialects.errors import ReasonCode  # noqa: E402
from pyc_mlir.dialects.ir.pyc import new_context  # noqa: E402
from pyc_mlir.frontends.stablehlo.importer import import_stablehlo  # noqa: E402
from pyc_mlir.frontends.stablehlo.reader import read_artifact  # noqa: E402

CASES = cases()
# Regions of several operations, which StableHLO has where a jaxpr has one primitive.
ONLY_AS_JAXPR = {"cumlogsumexp-False", "cumlogsumexp-True"}


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
