"""What the front end and numpy are compared on: edge values of each element type, and functions.

`FUNCTION_CASES` use every function of the front end's table; each takes one array of 3x4 elements.
`SIGN_IS_OPEN` are those whose zero has a sign that numpy leaves open (it follows the order of
operands, or how a library sums).
"""

import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from pyc_mlir.dialects.types import DTYPES, is_float, is_integer, is_unsigned

Case = Callable[[Any], Any]

_FINITE = (
    0.0,
    0.1,
    0.3,
    0.5,
    0.6931,
    1.0,
    1.5,
    2.0,
    2.5,
    3.0,
    3.5,
    4.5,
    7.0,
    10.0,
    20.0,
    50.0,
    100.0,
)
_POWERS = (7, 8, 15, 16, 17, 23, 24, 30, 31, 32, 33, 47, 52, 53, 54, 61, 62)
SCALARS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, -2, 100, 127, 128, -129, 2**31, 2**40, 2**63, 2**70),
    *(0.5, -0.0, 2.5, -2.5, 1e30, 1e300, float("inf"), float("nan"), True, False, 1j),
    *(np.float32(1.5), np.int8(-3), np.float64(0.1), np.int64(3), np.bool_(True)),
    *(np.uint8(200), np.uint64(2**63)),
)
EXPONENTS: tuple[Any, ...] = (0, 1, 2, 3, -1, 0.5, -0.5, 1.0, 2.0, -1.0, 0.0, True, np.int8(2))
# Sums and products of many elements, whose partial results numpy rounds to the element type.
PARTIAL = {
    "sum",
    "prod",
    "mean",
    "var",
    "std",
    "norm",
    "reduce",
    "dot",
    "matmul",
    "einsum",
    "cumsum",
    "cumprod",
}
SIGN_IS_OPEN = {"maximum", "minimum", "fmax", "fmin", "clip", "dot", "reduce", "sort"}


def edges(name: str) -> np.ndarray:
    """Every i1 and i8; of other types the ends of the range, powers of two and their neighbours,
    infinities, NaN, zeros of both signs and subnormals.
    """
    dtype = DTYPES[name]
    if name == "i1":
        return np.array([False, True])
    if name == "i8":
        return np.arange(-128, 128).astype(dtype)
    if not is_float(dtype):
        info = np.iinfo(dtype)
        near = {s * (1 << k) + o for k in _POWERS for s in (1, -1) for o in (-1, 0, 1)}
        near |= {*range(-11, 12), info.max, info.max - 1, info.min, info.min + 1}
        return np.array(sorted(v for v in near if info.min <= v <= info.max), dtype)
    info = ml_dtypes.finfo(dtype)
    step = float(info.eps)
    bounds = [float(v) for v in (info.max, info.tiny, info.smallest_subnormal)]
    near = [step, 1 - step / 2, 1 + step, 1 / step, 2 / step - 1]
    values = np.array([*_FINITE, *bounds, *near, 2.0**31, 9.2e18])
    with np.errstate(over="ignore"):
        both = np.concatenate([values, -values, [np.inf, -np.inf, np.nan]]).astype(dtype)
    bits = both.view({2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.itemsize])
    return np.unique(bits).view(dtype)


def some_edges(name: str, seed: int = 0) -> np.ndarray:
    """3x4 of them."""
    return np.random.default_rng(seed).choice(edges(name), (3, 4))


def small(name: str, seed: int = 0) -> np.ndarray:
    """3x4 whole numbers in [-3, 3]."""
    return np.random.default_rng(seed).integers(-3, 4, (3, 4)).astype(DTYPES[name])


def _over_axes(function: Callable[..., Any]) -> Case:
    return lambda x: (function(x), function(x, axis=0), function(x, axis=1, keepdims=True))


def _given(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Case:
    return lambda x: function(x, *args, **kwargs)


_REDUCTIONS = (
    *("sum", "prod", "mean", "max", "amax", "min", "amin", "ptp", "any", "all", "var", "std"),
    *("argmax", "argmin", "count_nonzero"),
)
_BOUNDS = ((-1, 1), (0, None), (None, 2), (1, -1), (-1.5, 2.5), (0, 300), (None, None))
_MORE_BOUNDS = ((np.float32(0.5), 3), (float("nan"), 1), (False, True), (-300, 300))

# By name, what is run; the name's first word is looked up in `SIGN_IS_OPEN`.
FUNCTION_CASES: dict[str, Case] = {
    **{name: _over_axes(getattr(np, name)) for name in _REDUCTIONS},
    **{f"clip {b}": _given(np.clip, *b) for b in (*_BOUNDS, *_MORE_BOUNDS)},
    **{f"round {d}": _given(np.round, d) for d in (-2, -1, 0, 1, 2, 5)},
    **{f"astype {d}": _given(np.astype, DTYPES[d]) for d in DTYPES},
    **{f"** {e!r}": _given(operator.pow, e) for e in EXPONENTS},
    **{f"power {e!r}": _given(np.power, e) for e in EXPONENTS},
    "var ddof": lambda x: (np.var(x, ddof=1), np.std(x, axis=1, ddof=2), np.var(x, 0, ddof=3)),
    "sum dtype": lambda x: (np.sum(x, dtype=np.float32), np.prod(x, 0, dtype=np.float64)),
    "reduce": lambda x: (np.add.reduce(x), np.multiply.reduce(x, 1), np.minimum.reduce(x)),
    "around": lambda x: (np.around(x), np.around(x, 1)),
    "norm": lambda x: (np.linalg.norm(x), np.linalg.norm(x, 1, 0), np.linalg.norm(x, np.inf, 1)),
    "where": lambda x: (np.where(x, x, 0), np.where(x > 0, x, 1.5), np.where(x == x, True, x)),
    "tril": lambda x: (np.tril(x), np.triu(x, 1), np.tril(x, -1)),
    "pad": lambda x: (np.pad(x, 1), np.pad(x, ((0, 1), (2, 0)), constant_values=1)),
    "pad large": lambda x: np.pad(x, 1, constant_values=2**62 + 1),
    "full_like": lambda x: (np.full_like(x, 2), np.zeros_like(x), np.ones_like(x, np.int64)),
    "full_like 300": lambda x: np.full_like(x, 300),
    "empty_like": lambda x: np.where(np.empty_like(x) == x, 1, 1),
    "reshape": lambda x: (np.reshape(x, (2, 6)), np.ravel(x), np.expand_dims(x, 1), np.copy(x)),
    "transpose": lambda x: (np.transpose(x), np.swapaxes(x, 0, 1), np.matrix_transpose(x)),
    "moveaxis": lambda x: (np.moveaxis(x, 0, 1), np.squeeze(x[:1]), np.broadcast_to(x, (2, 3, 4))),
    "flip": lambda x: (np.flip(x), np.flip(x, 0), np.roll(x, 1), np.roll(x, -3, 1)),
    "repeat": lambda x: (np.repeat(x, 2), np.repeat(x, 3, axis=1), np.tile(x, (2, 1, 2))),
    "take": lambda x: (np.take(x, [1, -1], axis=0), np.take(x, 5), x[[0, 2]], x[::-1, 1]),
    "split": lambda x: (*np.split(x, 2, 1), *np.split(x, [1])),
    "concatenate": lambda x: (np.concatenate([x, x], 1), np.stack([x, x]), np.hstack([x, x])),
    "vstack": lambda x: (np.vstack([x, x]), np.concatenate([x, np.ones((3, 4), np.int8)])),
    "size": lambda x: x.sum() + np.size(x) + np.ndim(x) + np.shape(x)[0],
    "result_type": lambda x: np.zeros_like(x, dtype=np.result_type(x, 1.5)),
    "dot": lambda x: (np.dot(x, x.T), np.dot(x, 2), np.inner(x, x), np.outer(x[0], x[1])),
    "matmul": lambda x: (x @ x.T, np.matmul(x[0], x[1]), np.tensordot(x, x, ((0,), (0,)))),
    "einsum": lambda x: (np.einsum("ij,kj->ik", x, x), np.einsum("ij->i", x), np.einsum("ij->", x)),
    "cumsum": lambda x: (np.cumsum(x), x.cumsum(1), np.cumsum(x, 0, np.float64)),
    "cumprod": lambda x: (np.cumprod(x[:2, :2]), np.cumprod(x, axis=-1)),
    "cumsum axis": lambda x: (
        np.cumulative_sum(x, axis=1, include_initial=True),
        np.cumulative_sum(x[0]),
        np.cumulative_prod(x, axis=0, include_initial=True),
    ),
    "unstack": lambda x: (*np.unstack(x, axis=1), *np.broadcast_arrays(x, x[0], x[:, :1], 1.5)),
    "sort": lambda x: (np.sort(x), np.sort(x, axis=0), np.sort(x, None, stable=True)),
    "argsort": lambda x: (x.argsort(stable=True), np.argsort(x, None, "stable")),
    "diff": lambda x: (np.diff(x), np.diff(x, 2, 0), np.diff(x, n=0)),
    "take_along_axis": lambda x: (
        np.take_along_axis(x, np.array([[1], [-1], [0]]), 1),
        np.take_along_axis(x, np.array([[2, 0, -3, 1]]), 0),
        np.take_along_axis(x, np.array([5, -1]), None),
    ),
    "meshgrid": lambda x: (*np.meshgrid(x[0], x[:, 1]), *np.meshgrid(x[0], x[1], x[2, :2])),
    "meshgrid ij": lambda x: (
        *np.meshgrid(x[0], x[:, 1], indexing="ij"),
        *np.meshgrid(x[0], x[1], sparse=True),
    ),
    "arange": lambda x: x.shape[0] + np.arange(1, 7, 2, like=x) + np.arange(3, like=x),
    "linspace": lambda x: (np.linspace(x[0, 0] * 0, 3, 5), np.linspace(1, x[0, 0] * 0, 1)),
    "operators": lambda x: (x + x, x * x, abs(x), -x, +x),
    "in place": lambda x: _in_place(x.copy()),
    "bits": lambda x: (~x, x & x, x | 1, x ^ 3),
    "shift": lambda x: (x << 1, x >> 1),
    "float power": lambda x: 2.0**x,
    "integer power": lambda x: 2**x,
}
# Conversions that C leaves undefined where the value does not fit: compared on small values only.
SMALL_ONLY = {f"astype {d}" for d in DTYPES if is_integer(DTYPES[d])} | {"bits"}
# Of those, the ones that C leaves undefined for negative floats too.
NONNEGATIVE_ONLY = {f"astype {d}" for d in DTYPES if is_unsigned(DTYPES[d])}


def _in_place(x: Any) -> Any:
    x += 1
    x *= 2
    return x
