"""Operations that move elements without computing: views, copies, slices, gathers, scatters."""

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OpDef, Trait
from pyc_mlir.dialects.ops.reduction import COMBINATIONS
from pyc_mlir.dialects.ops.shapes import (
    agree,
    merge,
    normalize_axis,
    require,
    same_dtype,
    show,
)
from pyc_mlir.dialects.types import BOOL, I64, INTEGERS, Shape, TensorType, is_float

END = 2**63 - 1
START = -(2**63)


def copied(dimension: int) -> int:
    """Return the entry of reshape's `shape` for "the size of dimension `dimension` of x".

    Dimensions from the rank of x on are those of `like`.
    """
    return -2 - dimension


class Transpose(OpDef, name="transpose", operands="x", traits=Trait.PERMUTES | Trait.INDEXED):
    """out[i_p0, i_p1, ...] = x[i_0, i_1, ...]: dimension d of out is permutation[d] of x."""

    permutation: tuple[int, ...]

    @staticmethod
    def infer(x: TensorType, *, permutation: tuple[int, ...]) -> TensorType:
        """Return the dimensions in the new order."""
        legal = sorted(permutation) == list(range(x.rank))
        require(legal, f"`permutation`: expected an order of 0..{x.rank - 1}, got {permutation}")
        return x.with_shape(tuple(x.shape[p] for p in permutation))

    @staticmethod
    def reference(x: np.ndarray, *, permutation: tuple[int, ...]) -> np.ndarray:
        """Return numpy's transpose."""
        return np.transpose(x, permutation)


class Reshape(OpDef, name="reshape", operands="x", optional="like", traits=Trait.VIEW):
    """out = the elements of x in row-major order under another shape.

    Entries of `shape`: a size; -1 (at most one) is inferred; ``-2 - d`` is the size of dimension d
    of x, so that several dynamic dimensions can pass through; dimensions from the rank of x on are
    those of `like`, whose sizes alone are read.
    """

    shape: tuple[int, ...]

    @staticmethod
    def infer(x: TensorType, *like: TensorType, shape: tuple[int, ...]) -> TensorType:
        """Return `shape` with its entries resolved where they are known."""
        require(shape.count(-1) <= 1, f"`shape`: expected at most one -1, got {shape}")
        named = list(chain(x.shape, *(o.shape for o in like)))
        beyond = [d for d in shape if -2 - d >= len(named)]
        require(not beyond, f"`shape`: {beyond} name no dimension of {show(tuple(named))}")
        dims = [named[-2 - d] if d <= -2 else None if d == -1 else d for d in shape]
        # Dimensions of x that pass through say nothing about the others.
        passed = {i for i in range(x.rank) if copied(i) in shape}
        left = [d for i, d in enumerate(x.shape) if i not in passed]
        made = [d for e, d in zip(shape, dims, strict=True) if e != -1 and -2 - e not in passed]
        if x.is_static and None not in dims:
            left, made = list(x.shape), dims
        elif None in left or None in made:
            return x.with_shape(tuple(dims))
        total, known = (math.prod(d for d in of if d is not None) for of in (left, made))
        if -1 not in shape:
            require(total == known, _mismatch(x, dims))
        elif known:
            require(total % known == 0, _mismatch(x, dims))
            dims[shape.index(-1)] = total // known
        return x.with_shape(tuple(dims))

    @staticmethod
    def reference(x: np.ndarray, *like: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return numpy's reshape, whose -1 may stand beside a dimension of size 0."""
        types = [TensorType(o.shape, o.dtype) for o in (x, *like)]
        dims = Reshape.infer(*types, shape=shape).shape
        return np.reshape(x, [-1 if d is None else d for d in dims])


def _mismatch(x: TensorType, dims: Sequence[int | None]) -> str:
    return f"cannot reshape {show(x.shape)} to {show(tuple(dims))}: the sizes differ"


class BroadcastTo(
    OpDef,
    name="broadcast_to",
    operands="x",
    optional="like",
    traits=Trait.REPEATS | Trait.INDEXED | Trait.ALIGNED | Trait.ANY_ORDER,
):
    """out = x stretched to `shape` by numpy's rules.

    -1 in `shape` is that dimension of `like`, or without `like` the aligned dimension of x.
    """

    shape: tuple[int, ...]

    @staticmethod
    def infer(x: TensorType, *like: TensorType, shape: tuple[int, ...]) -> TensorType:
        """Return `shape` with its -1 entries filled in."""
        require(len(shape) >= x.rank, f"cannot broadcast {show(x.shape)} to rank {len(shape)}")
        if like:
            require(like[0].rank == len(shape), "`like`: expected the rank of `shape`")
        offset = len(shape) - x.rank
        aligned: Shape = (1,) * offset + x.shape
        source = like[0].shape if like else aligned
        dims = tuple(source[i] if d == -1 else d for i, d in enumerate(shape))
        require(all(d is None or d >= 0 for d in dims), "`shape`: expected sizes >= 0 or -1")
        for have, want in zip(aligned, dims, strict=True):
            fits = have == 1 or agree(have, want)
            require(fits, f"cannot broadcast {show(x.shape)} to {show(dims)}")
        return x.with_shape(dims)

    @staticmethod
    def reference(x: np.ndarray, *like: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """Return numpy's broadcast_to."""
        aligned = (1,) * (len(shape) - x.ndim) + x.shape
        source = like[0].shape if like else aligned
        return np.broadcast_to(x, [source[i] if d == -1 else d for i, d in enumerate(shape)])


class Concat(OpDef, name="concat", operands="lhs rhs", traits=Trait.INDEXED | Trait.ANY_ORDER):
    """out = lhs followed by rhs along `axis`. Longer lists are trees of concats."""

    axis: int
    anchor = "concat"

    @staticmethod
    def infer(lhs: TensorType, rhs: TensorType, *, axis: int) -> TensorType:
        """Return the sum of the sizes along `axis`; the other dimensions agree."""
        same_dtype(lhs, rhs)
        axis = normalize_axis(axis, lhs.rank)
        shapes = f"{show(lhs.shape)} and {show(rhs.shape)}"
        require(lhs.rank == rhs.rank, f"expected operands of one rank, got {shapes}")
        dims: list[int | None] = []
        for i, (a, c) in enumerate(zip(lhs.shape, rhs.shape, strict=True)):
            if i == axis:
                dims.append(None if a is None or c is None else a + c)
            else:
                require(agree(a, c), f"dimension {i} differs: {shapes}")
                dims.append(merge(a, c))
        return lhs.with_shape(tuple(dims))

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray, *, axis: int) -> np.ndarray:
        """Return numpy's concatenate."""
        return np.concatenate([lhs, rhs], axis)


def slice_length(size: int | None, start: int, stop: int, step: int) -> int | None:
    """Return how many elements Python's slice takes from `size`; None where that depends on it."""
    if size is not None:
        return len(range(size)[python_slice(start, stop, step)])
    return 0 if start == stop and start not in (START, END) else None


def python_slice(start: int, stop: int, step: int) -> slice:
    """Return Python's slice; `START` and `END` stand for its omitted bounds."""
    omitted = (START, END)
    return slice(None if start in omitted else start, None if stop in omitted else stop, step)


class Slice(OpDef, name="slice", operands="x", traits=Trait.INDEXED | Trait.ANY_ORDER):
    """out = x[starts[0]:stops[0]:steps[0], ...] by Python's rules, one entry a dimension.

    The greatest and the least i64 stand for an omitted bound.
    """

    starts: tuple[int, ...]
    stops: tuple[int, ...]
    steps: tuple[int, ...]

    @staticmethod
    def infer(
        x: TensorType, *, starts: tuple[int, ...], stops: tuple[int, ...], steps: tuple[int, ...]
    ) -> TensorType:
        """Return the length of each Python slice."""
        for name, values in (("starts", starts), ("stops", stops), ("steps", steps)):
            fits = len(values) == x.rank
            require(fits, f"`{name}`: expected {x.rank} entries, got {len(values)}")
        require(0 not in steps, "`steps`: expected no zero")
        bounds = zip(x.shape, starts, stops, steps, strict=True)
        return x.with_shape(tuple(slice_length(*b) for b in bounds))

    @staticmethod
    def reference(
        x: np.ndarray, *, starts: tuple[int, ...], stops: tuple[int, ...], steps: tuple[int, ...]
    ) -> np.ndarray:
        """Return numpy's basic indexing."""
        return x[tuple(python_slice(*b) for b in zip(starts, stops, steps, strict=True))]


class UpdateSlice(OpDef, name="update_slice", operands="x update starts"):
    """out = x with the box at `starts` replaced by `update`.

    `starts` is an i64 vector with an entry for each dimension; as in XLA's dynamic-update-slice it
    is clamped so that the box lies inside x.
    """

    @staticmethod
    def infer(x: TensorType, update: TensorType, starts: TensorType) -> TensorType:
        """Return the type of x."""
        same_dtype(x, update)
        require(x.rank == update.rank, "`update`: expected the rank of x")
        require(starts.dtype == I64, "`starts`: expected element type i64")
        fits = starts.rank == 1 and agree(starts.shape[0], x.rank)
        require(fits, f"`starts`: expected shape [{x.rank}], got {show(starts.shape)}")
        for have, want in zip(x.shape, update.shape, strict=True):
            inside = have is None or want is None or want <= have
            require(inside, f"`update`: {show(update.shape)} does not fit into {show(x.shape)}")
        return x

    @staticmethod
    def reference(x: np.ndarray, update: np.ndarray, starts: np.ndarray) -> np.ndarray:
        """Return a copy with one box assigned."""
        room = np.array(x.shape, np.int64) - np.array(update.shape, np.int64)
        begin = np.clip(starts, 0, room)
        out = x.copy()
        out[tuple(slice(b, b + s) for b, s in zip(begin, update.shape, strict=True))] = update
        return out


class Pad(OpDef, name="pad", operands="x", traits=Trait.INDEXED | Trait.ANY_ORDER):
    """out = x with `low` and `high` elements of `value` added at each dimension's ends."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    value: float = 0.0

    @staticmethod
    def infer(
        x: TensorType, *, low: tuple[int, ...], high: tuple[int, ...], value: float
    ) -> TensorType:
        """Return each size with its two pads."""
        for name, values in (("low", low), ("high", high)):
            fits = len(values) == x.rank and min(values, default=0) >= 0
            require(fits, f"`{name}`: expected {x.rank} sizes >= 0, got {values}")
        with np.errstate(invalid="ignore"):
            exact = is_float(x.dtype) or float(np.array(value).astype(x.dtype)) == value
        require(exact, f"`value`: {value} is no {x.dtype}")
        sizes = zip(x.shape, low, high, strict=True)
        return x.with_shape(tuple(None if d is None else d + a + c for d, a, c in sizes))

    @staticmethod
    def reference(
        x: np.ndarray, *, low: tuple[int, ...], high: tuple[int, ...], value: float
    ) -> np.ndarray:
        """Return numpy's constant pad."""
        fill = np.array(value).astype(x.dtype)
        widths = np.array([low, high], np.int64).T
        return np.pad(x, widths, constant_values=fill) if x.ndim else x


class Gather(OpDef, name="gather", operands="x indices", traits=Trait.INDEXED):
    """out = x taken at `indices` along `axis` (numpy's take).

    Negative indices count from the end, once; indices out of range are clamped, as in XLA.
    """

    axis: int = 0

    @staticmethod
    def infer(x: TensorType, indices: TensorType, *, axis: int) -> TensorType:
        """x.shape[:axis] + indices.shape + x.shape[axis+1:]."""
        axis = normalize_axis(axis, x.rank)
        require(indices.dtype in INTEGERS, "`indices`: expected an integer type")
        nothing = x.shape[axis] == 0 and indices.is_static and indices.elements > 0
        require(not nothing, f"`axis`: {axis} has no elements to take")
        return x.with_shape((*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :]))

    @staticmethod
    def reference(x: np.ndarray, indices: np.ndarray, *, axis: int) -> np.ndarray:
        """Return numpy's take after wrapping and clamping."""
        size = x.shape[axis]
        wrapped = np.where(indices < 0, indices.astype(np.int64) + size, indices)
        return np.take(x, np.clip(wrapped, 0, size - 1), axis=axis)

    @classmethod
    def traffic(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """Count only the gathered part of x as read."""
        return inputs[1].nbytes + 2 * out.nbytes


class Scatter(OpDef, name="scatter", operands="x indices updates"):
    """out = x, with row indices[m] replaced by row m of `updates`, or combined with it.

    Rows are counted along the first dimension. `reduction` is none (of several updates of a row the
    last one stays), add, mul, min or max (of the row of x and all its updates). Negative indices
    count from the end, once; updates of rows that x lacks are dropped, as in XLA.
    """

    reduction: str = "none"

    @staticmethod
    def infer(
        x: TensorType, indices: TensorType, updates: TensorType, *, reduction: str
    ) -> TensorType:
        """Return the type of x."""
        same_dtype(x, updates)
        known = ("none", *COMBINATIONS)
        require(reduction in known, f"`reduction`: expected one of {known}, got {reduction!r}")
        numbers = reduction == "none" or x.dtype != BOOL
        require(numbers, f"`reduction`: expected none for i1, got {reduction!r}")
        require(indices.dtype in INTEGERS, "`indices`: expected an integer type")
        require(indices.rank == 1, f"`indices`: expected a vector, got {show(indices.shape)}")
        require(x.rank >= 1, "expected an operand of rank 1 or more, got a scalar")
        wanted = (indices.shape[0], *x.shape[1:])
        fits = updates.rank == x.rank and all(map(agree, updates.shape, wanted))
        require(fits, f"`updates`: expected shape {show(wanted)}, got {show(updates.shape)}")
        return x

    @staticmethod
    def reference(
        x: np.ndarray, indices: np.ndarray, updates: np.ndarray, *, reduction: str
    ) -> np.ndarray:
        """Apply one update after the other; floats in f64."""
        size = x.shape[0]
        rows = indices.astype(np.int64)
        rows = np.where(rows < 0, rows + size, rows)
        inside = (rows >= 0) & (rows < size)
        if reduction == "none":
            out = x.copy()
            for row, update in zip(rows[inside], updates[inside], strict=True):
                out[row] = update
            return out
        out = x.astype(np.float64) if is_float(x.dtype) else x.copy()
        COMBINATIONS[reduction].ufunc.at(out, rows[inside], updates[inside].astype(out.dtype))
        return out

    @classmethod
    def flops(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """Return one operation for each updated element."""
        return 0 if params["reduction"] == "none" else inputs[2].elements
