"""Tensors made from nothing, random numbers among them.

Random numbers are Philox of a seed that each call of the program is given. Each call of an operator
counts its elements under a number of its own, so that no two share their bits. Distributions are
torch's, bits are not.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.ops.creation import words_of
from pyc_mlir.dialects.types import DTYPES, I64, accumulator, is_float
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import expand_to, linear_indices, vector
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize
from pyc_mlir.frontends.torch.ops.handler import AtenCall, aten, draws, promoted

_U64, _I32, _F64 = (DTYPES[name] for name in ("ui64", "i32", "f64"))
# Random bits of a uniform number, by element type: as many as its significand has.
_DIGITS = {DTYPES["f32"]: 24, DTYPES["f16"]: 11, DTYPES["bf16"]: 8}


@aten("full.default", "full_like.default", "zeros.default", "zeros_like.default", "ones.default",
      "ones_like.default", "empty.memory_format", "empty_like.default", "empty_strided.default",
      "new_zeros.default", "new_ones.default", "new_full.default", "new_empty.default",
      "new_empty_strided.default", "empty_permuted.default", "fill.Scalar",
      "fill.Tensor")  # fmt: skip
def full(n: AtenCall) -> Any:
    """Fill with one value; 0 for torch's undefined elements (`empty`)."""
    given = next((name for name in ("value", "fill_value") if name in n.arguments), "")
    known = np.array("ones" in n.op).astype(n.dtype)
    return expand_to(n.b, n.x(given, n.dtype) if given else n.b.constant(known), n.out_dims)


@promoted("scalar_tensor.default")
def scalar(b: Any, value: Any) -> Any:
    """Build a rank-0 tensor."""
    return value


@aten("arange.default", "arange.start", "arange.start_step")
def arange(n: AtenCall) -> Any:
    """start, start + step, ... up to but not including end."""
    b, dtype = n.b, n.dtype
    start, step = n.arg("start", 0), n.arg("step", 1)
    if not any(isinstance(v, SymbolicSize) for v in (start, step, n.arg("end"))):
        count = n.out_dims[0]
        assert isinstance(count, int)
        values = np.arange(count, dtype=np.float64 if dtype.kind == "f" else np.int64)
        return b.constant((values * step + start).astype(dtype))
    out = b.convert(vector(b, n.out_dims[0]), dtype)
    if step != 1:
        out = b.mul(out, n.x("step", dtype))
    return out if start == 0 else b.add(out, n.x("start", dtype))


@aten("linspace.default")
def linspace(n: AtenCall, start: float, end: float) -> Any:
    """Build `steps` numbers from start to end, both included."""
    count = n.out_dims[0]
    if not isinstance(count, int):
        raise unsupported("a dynamic number of steps: expected a static one")
    return n.b.constant(np.linspace(start, end, count).astype(n.dtype))


@aten("eye.default", "eye.m")
def eye(n: AtenCall) -> Any:
    """Build ones at equal rows and columns."""
    b, (rows, columns) = n.b, n.out_dims
    row = b.reshape(vector(b, rows), shape=(-1, 1))
    column = b.reshape(vector(b, columns), shape=(1, -1))
    return b.convert(b.compare(row, column, predicate="eq"), n.dtype)


def _bits(n: AtenCall, dims: Sequence[Extent], draw: int = 0) -> Any:
    """Return random ui64 of a shape; each draw of a call gives others."""
    b = n.b
    seed, number = n.seed()
    low = b.convert(linear_indices(b, dims), _U64)
    return b.philox(low, b.constant(np.array(number | draw << 32, _U64)), seed)


def _fraction(b: Any, word: Any, digits: int, dtype: np.dtype) -> Any:
    """Return the upper `digits` bits of ui32 as multiples of 2^-digits below 1."""
    upper = b.cast(b.shift_right(word, b.scalar(32 - digits, word)), dtype=_I32)
    number = b.cast(upper, dtype=accumulator(dtype))
    return b.convert(b.mul(number, b.scalar(2.0**-digits, number)), dtype)


def _unit(n: AtenCall, dims: Sequence[Extent], dtype: np.dtype, draw: int = 0) -> Any:
    """Return floats uniform in [0, 1)."""
    b, bits = n.b, _bits(n, dims, draw)
    if dtype != _F64:
        return _fraction(b, words_of(b, bits)[0], _DIGITS[dtype], dtype)
    upper = b.cast(b.shift_right(bits, b.scalar(11, bits)), dtype=I64)
    number = b.cast(upper, dtype=_F64)
    return b.mul(number, b.scalar(2.0**-53, number))


def _normal(n: AtenCall, dims: Sequence[Extent], dtype: np.dtype) -> Any:
    """Return sqrt(-2 ln(1 - u)) cos(2 pi v) of uniform u and v. Box and Muller, 1958."""
    b, wide = n.b, accumulator(dtype)
    if wide == _F64:
        u, v = (_unit(n, dims, wide, draw) for draw in range(2))
    else:
        u, v = (_fraction(b, word, 24, wide) for word in words_of(b, _bits(n, dims)))
    size = b.sqrt(b.mul(b.log(b.sub(b.scalar(1, u), u)), b.scalar(-2, u)))
    return b.convert(b.mul(size, b.cos(b.mul(v, b.scalar(2 * math.pi, v)))), dtype)


def _happens(n: AtenCall, dims: Sequence[Extent], chance: float) -> Any:
    """Return i1 that hold with a known probability, to 2^-32."""
    b, limit = n.b, round(chance * 2**32)
    if not 0 < limit < 2**32:
        return expand_to(b, b.constant(np.array(limit > 0)), dims)
    word = words_of(b, _bits(n, dims))[0]
    return b.compare(word, b.scalar(limit, word), predicate="lt")


def _below(n: AtenCall, dims: Sequence[Extent], count: int) -> Any:
    """Return i64 uniform in [0, count), as multiples of a word, or remainders for large counts."""
    b = n.b
    if count >= 1 << 32:
        bits = _bits(n, dims)
        return b.cast(b.rem(bits, b.scalar(count, bits)), dtype=I64)
    wide = b.cast(words_of(b, _bits(n, dims))[0], dtype=_U64)
    scaled = b.mul(wide, b.scalar(count, wide))
    return b.cast(b.shift_right(scaled, b.scalar(32, scaled)), dtype=I64)


@aten("dropout.default", "alpha_dropout.default", "feature_dropout.default")
def exported_dropout(n: AtenCall, x: Any, *, p: float, train: bool) -> Any:
    """x itself, in eval mode."""
    if train and p:
        n.seed()
    return x


@draws("aten.native_dropout.default")
def dropout(n: AtenCall, x: Any, p: float, train: bool = True) -> Any:
    """x / (1 - p) with probability 1 - p, else 0; and where it is kept. Srivastava et al., 2014."""
    b, trained = n.b, train and p > 0
    kept = _happens(n, n.out_dims, 1 - p if trained else 1)
    if trained:
        scaled = b.mul(x, b.scalar(0 if p == 1 else 1 / (1 - p), x))
        x = b.select(kept, scaled, b.scalar(0, x))
    return x, kept


@draws("aten.bernoulli.p", "aten.bernoulli.default", "aten.bernoulli.Tensor")
def bernoulli(n: AtenCall) -> Any:
    """1 with probability p, else 0."""
    if n.overload == "p":
        return n.b.convert(_happens(n, n.out_dims, float(n.static("p"))), n.dtype)
    chance = n.x("p" if n.overload == "Tensor" else "self")
    dtype = n.b.type_of(chance).dtype
    wide = accumulator(dtype) if is_float(dtype) else _F64
    drawn = _unit(n, n.out_dims, wide)
    return n.b.convert(n.b.compare(drawn, n.b.convert(chance, wide), predicate="lt"), n.dtype)


@draws("aten.rand.default", "aten.rand_like.default", "aten.uniform.default")
def uniform(n: AtenCall) -> Any:
    """Uniform floats in [from, to), [0, 1) by default."""
    low, high = float(n.static("from", 0)), float(n.static("to", 1))
    return _scaled(n.b, _unit(n, n.out_dims, _floating(n)), high - low, low)


@draws("aten.randn.default", "aten.randn_like.default", "aten.normal_functional.default",
       "prims.normal.default")  # fmt: skip
def normal(n: AtenCall, *, std: float = 1, mean: float = 0) -> Any:
    """mean + std * z, z of the normal distribution."""
    return _scaled(n.b, _normal(n, n.out_dims, _floating(n)), std, mean)


def _floating(n: AtenCall) -> np.dtype:
    if not is_float(n.dtype):
        raise unsupported(f"random numbers of type {n.dtype}: expected floats")
    return n.dtype


def _scaled(b: Any, x: Any, factor: float, offset: float) -> Any:
    x = x if factor == 1 else b.mul(x, b.scalar(factor, x))
    return x if offset == 0 else b.add(x, b.scalar(offset, x))


@draws("aten.randint.default", "aten.randint.low", "aten.randint_like.default",
       "aten.randint_like.low_dtype", "aten.random.to", "aten.random.from")  # fmt: skip
def integers(n: AtenCall) -> Any:
    """Integers uniform in [low, high)."""
    low = int(n.static("low", n.static("from", 0)))
    high = int(n.static("high", n.static("to")))
    b, out = n.b, _below(n, n.out_dims, high - low)
    return b.convert(b.add(out, b.scalar(low, out)) if low else out, n.dtype)


@draws("aten.randperm.default")
def permutation(n: AtenCall) -> Any:
    """0, 1, ... in random order: the order of random numbers."""
    return n.b.convert(n.b.argsort(_bits(n, n.out_dims), axis=0), n.dtype)


@draws("aten.multinomial.default")
def multinomial(n: AtenCall, x: Any, count: int, replacement: bool = False) -> Any:
    """i with probability self[..., i] / sum(self), along the last dimension.

    With replacement by the inverse of the running sums; without, those that come first in a race
    of exponential times, x / t the largest.
    """
    b = n.b
    rank, dtype = b.type_of(x).rank, b.type_of(x).dtype
    if count > 1 and not replacement:
        u = _unit(n, b.dims(x), dtype)
        time = b.maximum(b.neg(b.log(b.sub(b.scalar(1, u), u))), b.scalar(2.0**-25, u))
        return b.argsort(b.div(x, time), axis=-1, descending=True, count=count)
    sums = b.cumulative(x, axis=-1, reduction="add")
    total = b.reduce_max(sums, axes=(-1,), keepdims=True)
    most = b.mul(total, b.scalar(1 - float(np.finfo(dtype).eps) / 2, total))
    drawn = b.minimum(b.mul(_unit(n, n.out_dims, dtype), total), most)
    passed = b.compare(b.expand_dims(sums, rank - 1), b.expand_dims(drawn, rank), predicate="le")
    return b.reduce_sum(b.cast(passed, dtype=I64), axes=(-1,), keepdims=False)
