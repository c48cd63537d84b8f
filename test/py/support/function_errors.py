"""The errors of elementwise functions: which are computed, on which numbers, and how far off.

    python test/py/support/function_errors.py    # the full campaign, stored in
    docs/results/functions.json

A function is traced, compiled for this machine's CPU and run; its results are compared with the
same function in the long doubles of x86 (64 bits of mantissa), or in f64 for the smaller types. An
error is counted in ulps: a result's distance from the exact one over the distance of the exact
one's neighbours in the result's type.
"""

import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from compiled import OwnKernels

import pyc_mlir
from pyc_mlir import Tensor, nn
from pyc_mlir.dialects import functions
from pyc_mlir.dialects.types import DTYPES, dtype_name
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Report, record

Array = np.ndarray
RESULT = Path(__file__).resolve().parents[3] / "docs" / "results" / "functions.json"
# Numbers that are drawn for f32 and f64, beside the edges. All of f16 and bf16 are computed.
SOME, MANY = 10_000, 1 << 20
WAYS: dict[str, dict[str, Any]] = {
    "own kernels": {"policy": OwnKernels()},
    "iree": {"kernels": "iree"},
}


@dataclass(frozen=True)
class Function:
    """`traced` is the user's function, `exact` the same on long doubles or f64.

    `most`: the largest error in ulps by type, stated in docs/numerics.md. Of what an ulp is taken,
    by `scale`: of the exact result and at least of this function of the operands.
    """

    traced: Callable[..., Any]
    exact: Callable[..., Array]
    most: dict[str, float]
    scale: Callable[..., Any] | None = None
    operands: int = 1


def bounds(small: float, f32: float, f64: float) -> dict[str, float]:
    """By element type; `small` of f16 and bf16."""
    return {"f16": small, "bf16": small, "f32": f32, "f64": f64}


EXACT, ROUNDED, ONCE = bounds(0, 0, 0), bounds(0.5, 0.5, 0.5), 0.51


def _each(function: Callable[[float], float]) -> Callable[[Array], Array]:
    return np.vectorize(function, otypes=[np.longdouble])


def _logistic(x: Array) -> Array:
    # Not 1 / (1 + exp(-x)): where x is negative, this has the digits of exp(x).
    return np.where(x < 0, np.exp(-np.abs(x)), 1) / (1 + np.exp(-np.abs(x)))


def _gelu(x: Array) -> Array:
    return x * _each(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)))(x)


def _gelu_tanh(x: Array) -> Array:
    root = np.sqrt(2 / np.arccos(x.dtype.type(-1)))
    return x * _logistic(2 * root * (x + x.dtype.type("0.044715") * x**3))


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def _numpy(name: str, most: dict[str, float], operands: int = 1, **more: Any) -> Function:
    return Function(getattr(np, name), getattr(np, name), most, operands=operands, **more)


def _composed(name: str, exact: Callable[[Array], Array], most: dict[str, float]) -> Function:
    """A function of dialects/functions.py, which ONNX's operator of that name is."""
    return Function(lambda x: getattr(functions, name)(x.tracer, x), exact, most)


FUNCTIONS: dict[str, Function] = {
    "exp": _numpy("exp", bounds(ONCE, 6, 1)),
    "exp2": _numpy("exp2", bounds(ONCE, 1.5, 1.5)),
    "expm1": _numpy("expm1", bounds(ONCE, 6, 2.5)),
    "log": _numpy("log", bounds(ONCE, 1, 1)),
    "log2": _numpy("log2", bounds(ONCE, 2, 2)),
    "log10": _numpy("log10", bounds(ONCE, 2.5, 3.5)),
    "log1p": _numpy("log1p", bounds(ONCE, 3, 3)),
    "sin": _numpy("sin", bounds(ONCE, 1, 1.5)),
    "cos": _numpy("cos", bounds(ONCE, 1, 1.5)),
    "tan": _numpy("tan", bounds(ONCE, 2.5, 2.5)),
    "tanh": _numpy("tanh", bounds(ONCE, 5, 2)),
    "sinh": _composed("sinh", np.sinh, bounds(ONCE, 8, 5)),
    "cosh": _composed("cosh", np.cosh, bounds(ONCE, 5, 3)),
    "asinh": _composed("asinh", np.arcsinh, bounds(ONCE, 4, 4)),
    "acosh": _composed("acosh", np.arccosh, bounds(ONCE, 4, 4)),
    "atanh": _composed("atanh", np.arctanh, bounds(ONCE, 4, 4)),
    "erf": Function(nn.erf, _each(math.erf), bounds(ONCE, 6, 3.5)),
    "sqrt": _numpy("sqrt", ROUNDED),
    "rsqrt": Function(nn.rsqrt, lambda x: 1 / np.sqrt(x), bounds(ONCE, 1.5, 1.5)),
    "reciprocal": _numpy("reciprocal", ROUNDED),
    "square": _numpy("square", ROUNDED),
    "sigmoid": Function(nn.sigmoid, _logistic, bounds(ONCE, 4, 2.5)),
    "silu": Function(nn.silu, lambda x: x * _logistic(x), bounds(ONCE, 4, 3)),
    "gelu": Function(nn.gelu, _gelu, bounds(1, 8.5, 3), np.abs),
    "gelu_tanh": Function(lambda x: nn.gelu(x, "tanh"), _gelu_tanh, bounds(1, 8.5, 2), np.abs),
    "softplus": _composed("softplus", _softplus, bounds(ONCE, 4, 4)),
    "mish": _composed("mish", lambda x: x * np.tanh(_softplus(x)), bounds(ONCE, 8, 5)),
    **{
        name: _numpy(name, EXACT)
        for name in ("sign", "floor", "ceil", "rint", "trunc", "absolute", "negative")
    },
    "relu": Function(nn.relu, lambda x: np.maximum(x, 0), EXACT),
    "power": _numpy("power", bounds(ONCE, 0.6, 1), 2),
    **{name: _numpy(name, ROUNDED, 2) for name in ("add", "subtract", "multiply", "divide")},
    "hypot": _numpy("hypot", bounds(ONCE, 2.5, 2.5), 2),
    "logaddexp": _numpy(
        "logaddexp",
        bounds(ONCE, 2, 2),
        2,
        scale=lambda x, y: np.maximum(np.maximum(np.abs(x), np.abs(y)), 1),
    ),
    "maximum": _numpy("maximum", EXACT, 2),
    "minimum": _numpy("minimum", EXACT, 2),
}
# Their limit 0 by a kernel, NaN by the formula: both are right (docs/kernels.md).
OPEN_AT_MINUS_INFINITY = ("silu", "gelu", "gelu_tanh", "mish")


def smallest(dtype: np.dtype) -> float:
    """The smallest number that is not flushed: of f32 for bf16, of every size for f16."""
    if dtype == np.float16:
        return 0.0
    return float(np.finfo(np.float64 if dtype.itemsize == 8 else np.float32).tiny)


def drawn(dtype: np.dtype, count: int, rng: np.random.Generator) -> Array:
    """All numbers of a 16-bit type; of f32 and f64 any bits, ordinary numbers, and the edges."""
    if dtype.itemsize == 2:
        return np.arange(2**16, dtype=np.uint16).view(dtype)
    words, info = (np.uint32 if dtype.itemsize == 4 else np.uint64), np.finfo(dtype)
    any_bits = rng.integers(0, 2 ** (8 * dtype.itemsize), count, dtype=words).view(dtype)
    ordinary = rng.uniform(-1, 1, count) * rng.choice([1, 10, 100, 1100], count)
    near_one = 1 + rng.uniform(-1, 1, count // 4) * 2.0 ** -rng.integers(0, 30, count // 4)
    quarters = np.round(10 ** rng.uniform(0, 9, count // 4)) * (np.pi / 2)
    powers = 2.0 ** np.arange(int(info.minexp) - 1, int(info.maxexp))
    halves = np.arange(2049) / 2
    brinks = np.concatenate([np.linspace(n, n + 1, 1025) for n in (88, 709)])
    edges = np.concatenate([powers, halves, brinks, [info.max, info.tiny, 1e19, 1e25, 1e300]])
    edges = edges.astype(dtype)
    around = [np.nextafter(edges, dtype.type(side)) for side in (-np.inf, np.inf)]
    edges = np.concatenate([edges, *around, np.array([0, np.inf, np.nan], dtype)])
    rest = np.concatenate([ordinary, near_one, quarters]).astype(dtype)
    return np.concatenate([any_bits, rest, edges, -edges])


def pairs(dtype: np.dtype, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Both operands: anything with anything, positive with ordinary, 2 with all, special values."""
    x = drawn(dtype, count, rng)
    y, third = rng.permutation(x), len(x) // 3
    bases = np.abs(rng.normal(1, 1, third)) * 2.0 ** rng.integers(-20, 20, third)
    x, y = np.concatenate([x, x, x]), np.concatenate([y, np.full_like(x, 2), x])
    x[:third] = bases.astype(dtype)
    y[:third] = rng.uniform(-40, 40, third).astype(dtype)
    x[2 * len(y) // 3 :] = dtype.type(2)
    special = np.array([0, -0.0, 1, -1, 0.5, -0.5, 2, 3, -3, -3.5, np.nan, np.inf, -np.inf], dtype)
    n = len(special)
    return np.concatenate([x, np.repeat(special, n)]), np.concatenate([y, np.tile(special, n)])


def computed(names: Sequence[str], arrays: Sequence[Array], **options: Any) -> list[Array]:
    """The results of the functions of that name, compiled as one program."""
    name = dtype_name(arrays[0].dtype)

    def program(*xs: Any) -> Any:
        return tuple(FUNCTIONS[name].traced(*xs) for name in names)

    types = [Tensor[name, len(a)] for a in arrays]
    chosen: dict[str, Any] = {"target": "cpu", **options}
    compiled = pyc_mlir.compile(program, types, **chosen)
    return [np.asarray(out) for out in compiled(*arrays)]


def errors(name: str, arrays: Sequence[Array], got: Array) -> Array:
    """How far off each result is, in ulps; infinite where only one is NaN.

    Subnormal operands may count as zero and subnormal results may be zero where the type is
    computed with such flushed (not f16, which is computed in f32). So may a factor within silu.
    """
    function, least = FUNCTIONS[name], smallest(got.dtype)
    wide = np.longdouble if got.dtype.itemsize == 8 else np.float64

    def off(operands: Sequence[Array], got: Array) -> Array:
        values = [a.astype(wide) for a in operands]
        exact = np.asarray(function.exact(*values)).astype(wide)
        scale = 0 if function.scale is None else function.scale(*values)
        flush = least * np.maximum(np.abs(values[0]), 1) if name in ("silu", "mish") else least
        out = apart(got, exact, scale, flush)
        if name in OPEN_AT_MINUS_INFINITY:
            out[np.isneginf(values[0]) & (np.isnan(got) | (got == 0))] = 0
        return out

    with np.errstate(all="ignore"):
        out = off(arrays, got)
        small = [(np.abs(a) < least) & (a != 0) for a in arrays]
        for zeroed in itertools.product((False, True), repeat=len(arrays)):
            taken = [s & z for s, z in zip(small, zeroed, strict=True)]
            at = np.flatnonzero(np.logical_or.reduce(taken) & (out > 0))
            zeros = [np.copysign(np.zeros(len(at), a.dtype), a[at]) for a in arrays]
            some = [np.where(t[at], o, a[at]) for t, o, a in zip(taken, zeros, arrays, strict=True)]
            out[at] = np.minimum(out[at], off(some, got[at]))
    return out


def apart(got: Array, exact: Array, scale: Any, flush: Any) -> Array:
    """|got - exact| in ulps of got's type; infinity counts as the number after the largest."""
    info, wide = ml_dtypes.finfo(got.dtype), exact.dtype.type
    limit, least = wide(2) ** int(info.maxexp), wide(float(info.smallest_normal))
    value = got.astype(exact.dtype)
    near, target = (np.clip(v, -limit, limit) for v in (value, exact))
    _, exponent = np.frexp(np.clip(np.maximum(np.abs(target), scale), least, limit))
    ulp = np.ldexp(wide(1), np.minimum(exponent, int(info.maxexp)) - 1 - int(info.nmant))
    off = (np.abs(near - target) / ulp).astype(np.float64)
    # What rounds to the smallest normal number may have been below it before.
    off[(value == 0) & (np.abs(exact) < flush * wide(1 + 2.0**-20))] = 0
    nan = np.isnan(value), np.isnan(exact)
    return np.where(nan[0] & nan[1], 0, np.where(nan[0] | nan[1], np.inf, off))


@dataclass(frozen=True)
class Found:
    """The largest error of a function, where it was, and on how many operands it was looked for."""

    function: str
    error: float
    operands: tuple[Any, ...]
    result: Any
    count: int


def campaign(dtype: np.dtype, way: str, count: int, seed: int = 0) -> Iterator[Found]:
    """Every function on numbers of one type, by one way of code generation."""
    rng = np.random.default_rng(seed)
    for operands in (1, 2):
        with np.errstate(all="ignore"):
            x = drawn(dtype, count, rng)
            arrays = [x] if operands == 1 else list(pairs(dtype, count // 4, rng))
        names = [n for n, f in FUNCTIONS.items() if f.operands == operands]
        for name, got in zip(names, computed(names, arrays, **WAYS[way]), strict=True):
            off = errors(name, arrays, got)
            i = int(np.argmax(off))
            where = tuple(a[i] for a in arrays)
            yield Found(name, float(off[i]), where, got[i], len(off))


def cases() -> list[tuple[str, str]]:
    """(type, way): PyC's kernels compute f32 only; x86 has the long doubles that f64 needs."""
    types = ["f16", "bf16", "f32", *(["f64"] if np.finfo(np.longdouble).nmant >= 63 else [])]
    return [(t, way) for t in types for way in WAYS if t == "f32" or way == "iree"]


def main() -> int:
    """Run the full campaign and store the largest errors; 1 if one is beyond what is stated."""
    records, wrong = [], []
    for dtype, way in cases():
        for f in campaign(DTYPES[dtype], way, MANY):
            stated = FUNCTIONS[f.function].most[dtype]
            error = math.ceil(f.error * 100) / 100 if f.error < math.inf else 1e9
            details = {"stated": stated, "of": f.count, "at": [str(v) for v in f.operands]}
            name = f"{f.function} {dtype}"
            records.append(record(name, way, "largest error", "ulps", error, **details))
            if f.error > stated:
                wrong.append(f"{dtype} {way}: {f}")
    Report("functions", probe(), {"drawn": MANY}, records).save(RESULT)
    print("\n".join(wrong) or "all within what is stated")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
