"""Every op, compiled for the CPU, against its numpy reference: static and dynamic shapes.

Cases of several ops are compiled as functions of one module. What is not compared bit for bit has
the tolerance of its element type, times the length of what is summed.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from compiled import OpCall, assert_close, expected_of, run_calls
from conftest import sample
from op_cases import Case, cases_of, dynamic_types, inputs

from pyc_mlir.dialects.ir.interpreter import flush_subnormals
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.iree.diagnostics import CompileError

PER_OP = 2
# Ops of one module: a compile of a single op takes mostly what every compile takes.
AT_ONCE = 8
# A decomposition rounds several times in the 16-bit floats, its reference once.
COMPOSITE_SCALE = 8.0
# Values that touch foreign memory unless they are clamped, and those with rules of their own.
FAR = {"far_index", "far_start"}
EDGES = {"special", "extreme", "wide", "bits", "half_minus_inf"}


def call_of(case: Case, dynamic: bool) -> OpCall:
    arrays = tuple(flush_subnormals(a) for a in inputs(case, seed=1))
    declared = tuple(dynamic_types(case)) if dynamic else None
    return OpCall(case.op, arrays, case.keywords, declared)


def guards_memory(case: Case) -> bool:
    """Indices, places or bounds of a slice that lie far out of what they are of."""
    bounds = {*case.keywords.get("starts", ()), *case.keywords.get("stops", ())}
    return any(o.values in FAR for o in case.operands) or bool(bounds & {-100, 100})


def always(op: str) -> list[Case]:
    """The cases that every sample has: all that guard memory, one of each kind of edge values.

    Cases of edge values that differ in element types alone are of one kind.
    """
    kinds: dict[str, Case] = {}
    for case in cases_of(op):
        if not EDGES.isdisjoint(o.values for o in case.operands):
            untyped = replace(case, operands=tuple(replace(o, dtype="") for o in case.operands))
            kinds.setdefault(str(untyped), case)
    return [c for c in cases_of(op) if guards_memory(c) or c in kinds.values()]


@cache
def calls_of(op: str) -> list[OpCall]:
    guards = always(op)
    others = [c for c in cases_of(op) if c not in guards]
    cases = [*guards, *sample(others, max(PER_OP - len(guards), 1), seed=7)]
    calls = [call_of(c, dynamic=False) for c in cases]
    changing = [c for c in cases if c.dynamic and dynamic_types(c) != c.types]
    dynamic = [c for c in changing if guards_memory(c)]
    dynamic += sample([c for c in changing if c not in dynamic], 1, seed=8)
    return calls + [call_of(c, dynamic=True) for c in dynamic]


@cache
def results_with(ops: tuple[str, ...]) -> dict[str, list[np.ndarray]]:
    """The results of all calls of some ops, by op."""
    results = iter(run_calls([call for op in ops for call in calls_of(op)]))
    return {op: [next(results) for _ in calls_of(op)] for op in ops}


def results_of(op: str) -> list[np.ndarray]:
    """The results of an op's calls; on its own where IREE refuses it, or one of its companions."""
    names = sorted(OPS)
    first = names.index(op) // AT_ONCE * AT_ONCE
    try:
        return results_with(tuple(names[first : first + AT_ONCE]))[op]
    except CompileError:
        return run_calls(calls_of(op))


@pytest.mark.parametrize("op", sorted(OPS))
def test_compiled_equals_reference(op: str) -> None:
    calls = calls_of(op)
    assert calls, f"op_cases has no case for pyc.{op}"
    results = results_of(op)
    scale = COMPOSITE_SCALE if OPS[op].decompose is not None else 4.0
    for call, got in zip(calls, results, strict=True):
        expected = flush_subnormals(expected_of(call))
        assert_close(got, expected, str(call), scale)


@pytest.mark.parametrize("name", ["erf", "tanh"])
def test_f64_functions_over_the_whole_range(name: str) -> None:
    """The error that f64_math states, and the special values."""
    rng = np.random.default_rng(0)
    sizes = 10.0 ** rng.uniform(-12, 4, 20_000) * rng.choice([-1, 1], 20_000)
    x = np.concatenate([sizes, np.linspace(-8, 8, 10_001), [0.0, -0.0, np.nan, np.inf, -np.inf]])
    (got,) = run_calls([OpCall(name, (x,))])
    expected = expected_of(OpCall(name, (x,)))
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    assert np.all(np.abs(got[finite] - expected[finite]) <= 4e-16)


def test_f64_remainders_are_exact_over_the_whole_range() -> None:
    """Quotients of up to 2^2000, special values, subnormal operands and results (0)."""
    rng = np.random.default_rng(0)
    special = np.array(
        [0.0, -0.0, 1, -3, 0.1, 1.7e308, 2.0**-1022, 5e-324, np.nan, np.inf, -np.inf]
    )
    sizes = 10.0 ** rng.uniform(-305, 305, (2, 4000)) * rng.choice([-1, 1], (2, 4000))
    near = rng.normal(size=(2, 4000)) * [[1e3], [1.0]]
    x = np.concatenate([np.repeat(special, len(special)), sizes[0], near[0]])
    y = np.concatenate([np.tile(special, len(special)), sizes[1], near[1]])
    call = OpCall("rem", (flush_subnormals(x), flush_subnormals(y)))
    expected = flush_subnormals(expected_of(call))
    (got,) = run_calls([OpCall("rem", (x, y))])
    np.testing.assert_array_equal(got, expected)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[number]), np.signbit(x[number]))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.sampled(2)
def test_pow_of_every_sign_and_special_value(dtype: str) -> None:
    values = [0.0, -0.0, 1, -1, 0.5, -0.5, 2, -2, 3, -3, -3.5, 7, np.nan, np.inf, -np.inf]
    special = np.array(values).astype(DTYPES[dtype])
    call = OpCall("pow", (np.repeat(special, len(special)), np.tile(special, len(special))))
    (got,) = run_calls([call])
    assert_close(got, expected_of(call), str(call))
    zeros = expected_of(call) == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(expected_of(call)[zeros]))


def test_f64_pow_over_the_whole_range() -> None:
    """The stated error, and C99's special values in every combination."""
    rng = np.random.default_rng(0)
    special = np.array([0.0, -0.0, 1, -1, 0.5, -2, 3, -3.5, 7, np.nan, np.inf, -np.inf])
    x = np.concatenate([np.repeat(special, 12), 10.0 ** rng.uniform(-20, 20, 20_000)])
    y = np.concatenate([np.tile(special, 12), rng.uniform(-15, 15, 20_000)])
    call = OpCall("pow", (x, y))
    (got,) = run_calls([call])
    expected = expected_of(call)
    np.testing.assert_allclose(got[:144], expected[:144], rtol=1e-14, atol=0)
    relative = np.abs(got[144:] / expected[144:] - 1)
    assert np.all(relative <= 3e-16 * (1 + np.abs(y[144:] * np.log(x[144:]))))
