"""What the front end records is what numpy computes: each ufunc and function, at edge values.

numpy itself answers, so that nothing of the front end stands on both sides. Both refuse the same
calls; what only the front end refuses it refuses by a PycError. `PYC_FULL=1` takes every pair of
types and every scalar, otherwise both are sampled; all pairs of i8 are always there.
"""

import copy
import functools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conftest import FULL, sample
from modules import shared_context
from numpy_cases import (
    FUNCTION_CASES,
    NONNEGATIVE_ONLY,
    PARTIAL,
    SCALARS,
    SIGN_IS_OPEN,
    SMALL_ONLY,
    edges,
    small,
    some_edges,
)

import pyc_mlir
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.numerics.rounding import Uncertain
from pyc_mlir.dialects.numerics.uncertain import interpret_uncertain
from pyc_mlir.dialects.types import DTYPES, is_float
from pyc_mlir.frontends.python.numpy_protocol import FUNCTIONS, UFUNCS
from pyc_mlir.frontends.python.specs import spec
from pyc_mlir.frontends.python.trace import trace

BF16 = DTYPES["bf16"]
BY_NAME = {u.__name__: u for u in UFUNCS if u is not np.matmul}
MIXED = [(a, b) for a in DTYPES for b in DTYPES if a != b and "bf16" not in (a, b)]
REMAINDERS = ("remainder", "fmod", "divmod", "floor_divide")
# numpy's own error, in units of the last place; beside the tolerance of the trace.
ULPS = 8


def agree(function: Callable[..., Any], arrays: Sequence[np.ndarray], name: str = "") -> str:
    """Assert that trace and numpy give the same; "equal", or "refused" where the trace is."""
    wanted: Any = None
    try:
        with np.errstate(all="ignore"):
            wanted = function(*(a.copy() for a in arrays))
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        wanted = error
    try:
        module = trace(
            function, *(spec(a.dtype, a.shape) for a in arrays), context=shared_context()
        )
    except PycError as error:
        assert error.code is not ReasonCode.INTERNAL_ERROR
        return "refused"
    if isinstance(wanted, Exception):
        return "numpy refuses"
    wanted = list(wanted) if isinstance(wanted, tuple | list) else [wanted]
    found = interpret_uncertain(module, arrays)
    assert len(found) == len(wanted)
    wants: list[tuple[Uncertain, list[np.ndarray]]] = []
    narrow = any(a.dtype == BF16 for a in arrays)
    for got, want in zip(found, map(np.asarray, wanted), strict=True):
        bf16 = narrow and want.dtype in (np.float32, np.float64)
        assert got.value.dtype == (BF16 if bf16 and got.value.dtype == BF16 else want.dtype)
        assert got.value.shape == want.shape
        wants.append((got, [want]))
    if name in PARTIAL and any(is_float(a.dtype) for a in arrays):
        for (_, either), wide in zip(wants, _in_wider(function, arrays), strict=True):
            either.append(wide)
    for got, either in wants:
        _same(got, either, name)
    return "equal"


def _in_wider(function: Callable[..., Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What numpy computes where it rounds no partial sum to the type, nor overflows at one."""
    with np.errstate(all="ignore"):
        made = function(*(a.astype(np.longdouble) for a in arrays))
    return [np.asarray(m) for m in (made if isinstance(made, tuple | list) else [made])]


def _same(found: Uncertain, either: Sequence[np.ndarray], name: str) -> None:
    """Assert that each element is what one of the arrays has there."""
    got, tolerance = found.value, found.tolerance
    if not is_float(got.dtype):
        np.testing.assert_array_equal(got, either[0])
        return
    with np.errstate(all="ignore"):
        wanted = [want.astype(got.dtype) for want in either]
    ok = np.any([_close(got, want, tolerance, name) for want in wanted], axis=0)
    assert ok.all(), (
        f"{int((~ok).sum())} of {ok.size}: got {got[~ok][:5]}, want {wanted[0][~ok][:5]}"
    )


def _close(got: np.ndarray, want: np.ndarray, tolerance: np.ndarray, name: str) -> np.ndarray:
    a, b = got.astype(np.float64), want.astype(np.float64)
    info = ml_dtypes.finfo(got.dtype)
    step, least = float(info.eps), float(info.smallest_subnormal)
    with np.errstate(all="ignore"):
        # Where rounding decides by infinity, the values must still be alike in kind.
        limit = np.where(np.isfinite(tolerance), tolerance, 0.0) + ULPS * step * np.abs(b) + least
        close = (np.abs(a - b) <= limit) | (np.isinf(tolerance) & np.isfinite(a) & np.isfinite(b))
        ok = (a == b) | (np.isnan(a) & np.isnan(b)) | close
        if name not in SIGN_IS_OPEN and got.dtype != BF16:
            ok &= ~((a == 0) & (b == 0)) | (np.signbit(a) == np.signbit(b))
    # Which partial sum overflows first, and to which side, is a matter of their order.
    return ok | np.isinf(tolerance) if name in PARTIAL else ok


def count(record: Callable[..., None], what: str, counts: Counter[str]) -> None:
    record(f"front-end calls compared with numpy: {what}", dict(counts))


@pytest.mark.parametrize("name", sorted(BY_NAME))
@pytest.mark.sampled(38)
def test_ufunc(name, record_property):
    """All pairs of edge values, of equal types and of different ones."""
    ufunc, counts = BY_NAME[name], Counter()
    if ufunc.nin == 1:
        for kind in DTYPES:
            counts[agree(lambda x: ufunc(x), [edges(kind)], name)] += 1
    else:
        for one, other in [*((d, d) for d in DTYPES), *sample(MIXED, 1, seed=len(name))]:
            pair = [edges(one)[:, None], edges(other)[None, :]]
            counts[agree(lambda x, y: ufunc(x, y), pair, name)] += 1
    assert counts["equal"]
    count(record_property, "ufuncs", counts)


@pytest.mark.parametrize("name", sorted(n for n, u in BY_NAME.items() if u.nin == 2))
def test_scalars(name, record_property):
    """Python's and numpy's scalars on either side: NEP 50, and numbers that no element holds."""
    ufunc, counts = BY_NAME[name], Counter()
    pairs = [(kind, i) for kind in DTYPES for i in range(len(SCALARS))]
    for kind, i in [("i32", SCALARS.index(3)), *sample(pairs, 8, seed=len(name))]:
        scalar, array = SCALARS[i], edges(kind)
        counts[agree(lambda x, s=scalar: ufunc(x, _alike(s, x, name)), [array], name)] += 1
        counts[agree(lambda x, s=scalar: ufunc(_alike(s, x, name), x), [array], name)] += 1
    assert counts["equal"]
    count(record_property, "ufuncs with scalars", counts)


def _alike(scalar: Any, x: Any, name: str) -> Any:
    """A Python number as bf16 beside numpy's bf16, as NEP 50 has it; `ml_dtypes` takes it as f32.

    Of remainders, which jump where the divisor changes by a rounding.
    """
    weak = type(scalar) in (int, float) and isinstance(x, np.ndarray) and x.dtype == BF16
    return BF16.type(scalar) if weak and name in REMAINDERS else scalar


@pytest.mark.parametrize("name", FUNCTION_CASES)
@pytest.mark.sampled(57)
def test_function(name, record_property):
    """At edge values, at small ones, of no elements where numpy takes that."""
    function, counts = FUNCTION_CASES[name], Counter()
    for kind in DTYPES:
        positive = name in NONNEGATIVE_ONLY and is_float(DTYPES[kind])
        arrays = [abs(small(kind)) if positive else small(kind)]
        # numpy takes norms of bf16 in f64, which overflows later.
        if name not in SMALL_ONLY and (name, kind) != ("norm", "bf16"):
            arrays += [some_edges(kind, seed) for seed in range(8 if FULL else 2)]
        for array in arrays:
            counts[agree(function, [array], name.partition(" ")[0])] += 1
    assert counts["equal"] or name == "shift"
    count(record_property, "functions", counts)


def test_every_function_has_a_case(monkeypatch):
    used = set()

    def noting(function: Any, handler: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            used.add(function)
            return handler(*args, **kwargs)

        return functools.wraps(handler)(call)

    for function, handler in list(FUNCTIONS.items()):
        monkeypatch.setitem(FUNCTIONS, function, noting(function, handler))
    for case in FUNCTION_CASES.values():
        for kind in ("f32", "i32", "i1"):
            try:
                trace(case, spec(kind, (3, 4)), context=shared_context())
            except PycError:
                continue
    assert not {f.__name__ for f in FUNCTIONS} - {f.__name__ for f in used}


@pytest.mark.parametrize(
    "code, function, kind",
    [
        (ReasonCode.UNSUPPORTED_DTYPE, lambda x: np.clip(x, np.int64(-2), 2), "bf16"),
        (ReasonCode.UNSUPPORTED_DTYPE, lambda x: x & np.int64(3), "bf16"),
        (ReasonCode.UNTRACEABLE, np.reciprocal, "i32"),
        (ReasonCode.BAD_ARGUMENT, lambda x: np.full_like(x, 300), "i8"),
        (ReasonCode.BAD_ARGUMENT, lambda x: x + 10**400, "bf16"),
    ],
)
def test_what_has_no_one_answer_is_refused(code, function, kind):
    with pytest.raises(PycError) as caught:
        trace(function, spec(kind, (3, 4)))
    assert caught.value.code is code


@pytest.mark.parametrize(
    "function",
    [np.frombuffer, memoryview, hash, json.dumps, "{:.2f}".format, lambda x: dict.fromkeys([x])],
)
def test_what_others_refuse_shows_the_line(function):
    """Python and its libraries know nothing of traced arrays: what they say becomes a PycError."""
    with pytest.raises(PycError) as caught:
        trace(lambda x: function(x), spec("f32", (3, 4)))
    assert caught.value.code is ReasonCode.UNTRACEABLE
    assert "TypeError: " in caught.value.message and Path(__file__).name in caught.value.message
    assert "function(x)" in caught.value.message or "dict.fromkeys" in caught.value.message


RAGGED: Any = [[1], [2, 3]]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: np.pad(x, {0: 1}),  # pyright: ignore
        lambda x: np.einsum(x, [0, 1], [1, 0]),
        lambda x: x[RAGGED],
        lambda x: x[: np.arange(2)],
        lambda x: x + RAGGED,
        lambda x: x.clip(RAGGED),
        lambda x: np.sum(x, 0, keepdims=np.ones(2)),  # pyright: ignore
        lambda x: np.sum(x, axis="0"),  # pyright: ignore
        lambda x: round(x, 2**31),
        lambda x: x.astype(axis=None),
        lambda x: np.add(x, x, out={}),  # pyright: ignore
        lambda x: x.all(dtype=None),
    ],
)
def test_what_handlers_do_not_take_shows_the_line(function):
    """What Python raises within PyC's own code becomes a PycError at the user's line."""
    with pytest.raises(PycError) as caught:
        trace(function, spec("f32", (3, 4)))
    assert Path(__file__).name in caught.value.message


def test_errors_of_the_users_own_code_stay_as_they_are():
    nothing: Any = None
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        trace(lambda x: x + (nothing + 1), spec("f32", (3, 4)))
    assert not isinstance(caught.value, PycError)
    with pytest.raises(KeyError):
        trace(lambda x: x + {}["scale"], spec("f32", (3, 4)))
    with pytest.raises(ValueError, match="shape"):
        trace(lambda x: x + np.ones(3).reshape(2, 2), spec("f32", (3, 4)))


def test_a_traced_array_as_out_of_what_is_not_traced():
    """The result is written into the traced copy, whose type it takes."""
    w = np.array([-1.5, 2, np.nan], np.float32)

    x = np.ones(3, np.float32)
    for function in (lambda x: np.abs(w, x + 0), lambda x: np.abs(w, copy.deepcopy(x))):
        (found,) = interpret_uncertain(trace(function, spec("f32", (3,))), [x])
        np.testing.assert_array_equal(found.value, np.abs(w))


@pytest.mark.full
def test_compiled_quotients_are_those_of_numpy():
    """Remainder times divisor wraps around to 0 for 263 pairs of i8, and for many others."""

    def quotients(x: Any, y: Any) -> Any:
        return x // y, x % y, *np.divmod(x, y), np.fmod(x, y)

    pairs = [a for d in ("i8", "i32", "i64") for a in (edges(d)[:, None], edges(d)[None, :])]

    def both(*arrays: Any) -> list[Any]:
        sides = zip(arrays[::2], arrays[1::2], strict=True)
        return [q for x, y in sides for q in quotients(x, y)]

    def traced(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> list[Any]:
        return both(a, b, c, d, e, f)

    program = pyc_mlir.compile(traced, [spec(a.dtype, a.shape) for a in pairs])
    with np.errstate(all="ignore"):
        wanted = both(*pairs)
    for got, want in zip(program(*pairs), wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    one = pyc_mlir.compile(quotients, [spec("i32", (1,)), spec("i32", (1,))])
    assert one(np.array([65536], np.int32), np.array([-131072], np.int32))[0] == -1
