"""Operations that make tensors from nothing: constants, index ramps, random numbers of counters.

The random numbers are functions of a counter and a key that take no state along: Salmon, Moraes,
Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", 2011. A ui64 stands for two words of
32 bits there, of which the first is the low half.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OpDef, Trait
from pyc_mlir.dialects.ops.elementwise import Elementwise
from pyc_mlir.dialects.ops.shapes import normalize_axes, normalize_axis, require
from pyc_mlir.dialects.types import DTYPES, I64, TensorType, is_float, is_integer

_U32, _U64 = DTYPES["ui32"], DTYPES["ui64"]
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)


class Constant(OpDef, name="constant", traits=Trait.CREATES):
    """out = value."""

    value: np.ndarray

    @staticmethod
    def infer(*, value: np.ndarray) -> TensorType:
        """Return the shape and element type of the value."""
        return TensorType(value.shape, value.dtype)

    @staticmethod
    def reference(*, value: np.ndarray) -> np.ndarray:
        """Return the value itself."""
        return value


class Iota(
    OpDef,
    name="iota",
    optional="like",
    traits=Trait.CREATES | Trait.INDEXED | Trait.ANY_ORDER,
):
    """out[..., i, ...] = i, counted along `axis`; -1 in `shape` is that dimension of `like`."""

    shape: tuple[int, ...]
    axis: int = 0
    dtype: np.dtype = DTYPES["i64"]

    @staticmethod
    def infer(*like: TensorType, shape: tuple[int, ...], axis: int, dtype: np.dtype) -> TensorType:
        """Return `shape` with the dimensions that `like` provides."""
        normalize_axis(axis, len(shape))
        require(is_float(dtype) or is_integer(dtype), "`dtype`: expected a number type, got i1")
        if like:
            require(like[0].rank == len(shape), "`like`: expected the rank of `shape`")
        require(bool(like) or -1 not in shape, "`shape`: -1 needs the operand `like`")
        dims = [like[0].shape[i] if d == -1 else d for i, d in enumerate(shape)]
        require(all(d is None or d >= 0 for d in dims), "`shape`: expected sizes >= 0 or -1")
        return TensorType(tuple(dims), dtype)

    @staticmethod
    def reference(
        *like: np.ndarray, shape: tuple[int, ...], axis: int, dtype: np.dtype
    ) -> np.ndarray:
        """Return numpy's arange, broadcast to the shape."""
        dims = [like[0].shape[i] if d == -1 else d for i, d in enumerate(shape)]
        axis = axis % len(shape)
        ramp = np.arange(dims[axis]).astype(dtype)
        column = ramp.reshape([-1 if i == axis else 1 for i in range(len(dims))])
        return np.broadcast_to(column, dims)


class Size(OpDef, name="size", operands="x", traits=Trait.CREATES):
    """out = the product of the sizes of `axes` of x, as a rank-0 i64; the elements are not read."""

    axes: tuple[int, ...]

    @staticmethod
    def infer(x: TensorType, *, axes: tuple[int, ...]) -> TensorType:
        """Return a rank-0 i64."""
        normalize_axes(axes, x.rank)
        return TensorType((), I64)

    @staticmethod
    def reference(x: np.ndarray, *, axes: tuple[int, ...]) -> np.ndarray:
        """Compute the size from the array's shape."""
        return np.array(math.prod(x.shape[a] for a in axes), np.int64)

    @classmethod
    def traffic(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """Count the result alone."""
        return out.nbytes


def _halves(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the words of ui64 numbers as arrays of rank 1 or more, whose sums wrap silently."""
    x = np.atleast_1d(x)
    return x.astype(_U32), (x >> np.uint64(32)).astype(_U32)


def _joined(low: np.ndarray, high: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    return (low.astype(_U64) | high.astype(_U64) << np.uint64(32)).reshape(shape)


def words_of(b: Any, x: Any) -> tuple[Any, Any]:
    """Return the low and the high ui32 of ui64 numbers."""
    high = b.shift_right(x, b.scalar(32, x))
    return b.cast(x, dtype=_U32), b.cast(high, dtype=_U32)


def joined_words(b: Any, low: Any, high: Any) -> Any:
    """Return the ui64 numbers of two words each."""
    high = b.cast(high, dtype=_U64)
    return b.or_(b.cast(low, dtype=_U64), b.shift_left(high, b.scalar(32, high)))


def _spread(b: Any, key: Any, counter: Any) -> Any:
    """Return the key in the counter's shape, so that the rounds become one computation."""
    return b.add(key, b.xor(counter, counter))


class Threefry(Elementwise, name="threefry", operands="counter key"):
    """out = Threefry-2x32 of 20 rounds: both words of the counter, encrypted under the key."""

    allowed = frozenset({_U64})
    flops_per_element = 110

    @staticmethod
    def reference(counter: np.ndarray, key: np.ndarray) -> np.ndarray:
        """Compute in words of numpy."""
        shape = np.broadcast_shapes(counter.shape, key.shape)
        keys = [*_halves(key)]
        keys.append(keys[0] ^ keys[1] ^ np.uint32(_PARITY))
        x, y = (word + k for word, k in zip(_halves(counter), keys, strict=False))
        for i in range(5):
            for count in _ROTATIONS[i % 2]:
                x = x + y
                y = (y << np.uint32(count) | y >> np.uint32(32 - count)) ^ x
            x = x + keys[(i + 1) % 3]
            y = y + keys[(i + 2) % 3] + np.uint32(i + 1)
        return _joined(x, y, shape)

    @staticmethod
    def decompose(b: Any, counter: Any, key: Any) -> Any:
        """Return the rounds in ui32."""
        keys = [*words_of(b, _spread(b, key, counter))]
        keys.append(b.xor(b.xor(keys[0], keys[1]), b.scalar(_PARITY, keys[0])))
        x, y = (b.add(w, k) for w, k in zip(words_of(b, counter), keys, strict=False))
        for i in range(5):
            for count in _ROTATIONS[i % 2]:
                x = b.add(x, y)
                left = b.shift_left(y, b.scalar(count, y))
                right = b.shift_right(y, b.scalar(32 - count, y))
                y = b.xor(b.or_(left, right), x)
            x = b.add(x, keys[(i + 1) % 3])
            y = b.add(b.add(y, keys[(i + 2) % 3]), b.scalar(i + 1, y))
        return joined_words(b, x, y)


class Philox(Elementwise, name="philox", operands="low high key"):
    """out = the first two words of Philox-4x32 of 10 rounds; `low`, `high` hold the counter's four.

    Equal counters under equal keys give equal numbers.
    """

    allowed = frozenset({_U64})
    flops_per_element = 100

    @staticmethod
    def reference(low: np.ndarray, high: np.ndarray, key: np.ndarray) -> np.ndarray:
        """Compute in words of numpy."""
        shape = np.broadcast_shapes(low.shape, high.shape, key.shape)
        words, keys = [*_halves(low), *_halves(high)], _halves(key)
        for _ in range(10):
            first, second = (
                word.astype(_U64) * np.uint64(m)
                for word, m in zip(words[::2], _MULTIPLIERS, strict=True)
            )
            (a, above_a), (c, above_c) = _halves(first), _halves(second)
            words = [above_c ^ words[1] ^ keys[0], c, above_a ^ words[3] ^ keys[1], a]
            keys = tuple(k + np.uint32(w) for k, w in zip(keys, _WEYL, strict=True))
        return _joined(words[0], words[1], shape)

    @staticmethod
    def decompose(b: Any, low: Any, high: Any, key: Any) -> Any:
        """Return the rounds in ui32, products in ui64."""
        words = [*words_of(b, low), *words_of(b, _spread(b, high, low))]
        keys = words_of(b, _spread(b, key, low))
        for i in range(10):
            products = []
            for word, m in zip(words[::2], _MULTIPLIERS, strict=True):
                wide = b.cast(word, dtype=_U64)
                products.append(words_of(b, b.mul(wide, b.scalar(m, wide))))
            (a, above_a), (c, above_c) = products
            steps = (b.scalar(i * w % (1 << 32), a) for w in _WEYL)
            k0, k1 = (b.add(k, step) for k, step in zip(keys, steps, strict=True))
            words = [
                b.xor(b.xor(above_c, words[1]), k0), c, b.xor(b.xor(above_a, words[3]), k1), a
            ]  # fmt: skip
        return joined_words(b, words[0], words[1])
