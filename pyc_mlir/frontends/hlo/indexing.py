"""XLA's gather and scatter in terms of takes, linear indices and sums over matching rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import BOOL, DTYPES, I64, is_float
from pyc_mlir.frontends.hlo.call import Call
from pyc_mlir.frontends.hlo.movement import transposed
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import chain, expand_to, reshape_to, take
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize

FILL = "fill"


@dataclass(frozen=True)
class SliceDims:
    """Dimension numbers of a gather or a scatter; indices have their vector last.

    offset: dimensions of the result, or of the updates, that come from slices.
    collapsed: dimensions of the operand that slices have with size 1 and the result lacks.
    batch: such dimensions whose index is the position in `index_batch` of the indices.
    index_map: the dimension of the operand that each entry of an index vector is for.
    """

    offset: tuple[int, ...]
    collapsed: tuple[int, ...]
    index_map: tuple[int, ...]
    batch: tuple[int, ...] = ()
    index_batch: tuple[int, ...] = ()


def with_vector_last(b: Any, indices: Any, axis: int) -> Any:
    """Move the vectors of indices to the last dimension; StableHLO allows any, or none."""
    dims = b.dims(indices)
    if axis == len(dims):
        return b.expand_dims(indices, axis)
    return transposed(b, indices, (*(d for d in range(len(dims)) if d != axis), axis))


def gather(
    call: Call, d: SliceDims, sizes: Sequence[int], mode: str = "clip", fill: Any = None
) -> Any:
    """Gather slices of operand 0 of `sizes` at the indices (operand 1), which are clamped.

    mode: "fill" gives `fill` for a slice that does not lie inside the operand.
    """
    b, x = call.b, call.x(0)
    indices = b.convert(call.x(1), I64)
    clamped = _clamped(
        b, indices, [call.dims(0)[a] for a in d.index_map], [sizes[a] for a in d.index_map]
    )
    out = _taken(b, x, clamped, d, sizes)
    if out is None:
        # Elements of x in row-major order, at start + offset of each dimension.
        if any(isinstance(v, SymbolicSize) for v in b.dims(x)):
            raise unsupported("a gather of several dimensions from a dynamic shape")
        linear = _linear(b, clamped, d, b.dims(x), sizes)
        out = b.gather(reshape_to(b, x, (-1,)), linear, axis=0)
    if mode != FILL:
        return out
    inside = b.compare(indices, clamped, predicate="eq")
    inside = _all_last(b, inside)
    rank = b.type_of(out).rank
    batch_axes = [a for a in range(rank) if a not in d.offset]
    mask = _placed(b, inside, batch_axes, rank)
    return b.select(mask, out, _fill_value(b, out, fill))


def _clamped(b: Any, indices: Any, dims: Sequence[Extent], sizes: Sequence[int]) -> Any:
    """Clamp index vectors such that slices of `sizes` lie within `dims`."""
    least = np.zeros(len(dims) and 1, np.int64)
    if not any(isinstance(d, SymbolicSize) for d in dims):
        limits = [d - s for d, s in zip(dims, sizes, strict=True)]  # type: ignore[operator]
        return b.clip(indices, least, np.array(limits, np.int64))
    limits = [
        b.reshape(b.sub(b.extent(d), np.array(s, np.int64)), shape=(1,))
        for d, s in zip(dims, sizes, strict=True)
    ]
    return b.maximum(b.minimum(indices, chain(b, limits, 0)), least)


def _fill_value(b: Any, out: Any, fill: Any) -> Any:
    """NaN for floats, the least integer, true: what JAX fills with if it is not told."""
    dtype = b.type_of(out).dtype
    if fill is not None:
        return b.constant(np.array(fill).astype(dtype))
    if is_float(dtype):
        return b.scalar(np.nan, out)
    return b.constant(np.array(True if dtype == BOOL else np.iinfo(dtype).min, dtype))


def _all_last(b: Any, mask: Any) -> Any:
    axis = b.type_of(mask).rank - 1
    count = b.dims(mask)[axis]
    out = None
    for i in range(count):
        entry = b.squeeze(take(b, mask, axis, i, i + 1), axis)
        out = entry if out is None else b.and_(out, entry)
    return out


def _placed(b: Any, x: Any, axes: Sequence[int], rank: int) -> Any:
    """x with its dimensions at `axes` of `rank` dimensions, the others of size 1."""
    sizes = dict(zip(axes, b.dims(x), strict=True))
    return reshape_to(b, x, tuple(sizes.get(a, 1) for a in range(rank)))


def _taken(b: Any, x: Any, indices: Any, d: SliceDims, sizes: Sequence[int]) -> Any:
    """Build one pyc.gather if one dimension is indexed by single entries; None for other forms."""
    dims = b.dims(x)
    if len(d.index_map) != 1 or d.batch:
        return None
    axis = d.index_map[0]
    if not all(sizes[a] == dims[a] for a in range(len(dims)) if a != axis):
        return None
    batch = b.type_of(indices).rank - 1
    kept = [a for a in range(len(dims)) if a not in d.collapsed]
    if axis in kept:
        # The entries of a slice are along a dimension of their own, after those of the indices.
        count = sizes[axis]
        places = indices if count == 1 else b.add(indices, np.arange(count, dtype=np.int64))
    else:
        places = b.squeeze(indices, batch)
    out = b.gather(x, places, axis=axis)
    # Here are: dimensions of x before the axis, of the indices, of x from the axis on.
    slices = [a if a < axis else a + batch - (axis not in kept) for a in kept]
    index = list(range(axis, axis + batch))
    order, sources = [], {"slice": iter(slices), "index": iter(index)}
    for position in range(len(slices) + len(index)):
        order.append(next(sources["slice" if position in d.offset else "index"]))
    return transposed(b, out, order)


def _linear(b: Any, indices: Any, d: SliceDims, dims: Sequence[int], sizes: Sequence[int]) -> Any:
    """Return the row-major place in `dims` of each element of each slice, in the result's shape."""
    batch = b.dims(indices)[:-1]
    rank = len(batch) + len(d.offset)
    batch_axes = [a for a in range(rank) if a not in d.offset]
    kept = [a for a in range(len(dims)) if a not in (*d.collapsed, *d.batch)]
    strides = [math.prod(dims[a + 1 :]) for a in range(len(dims))]
    total = b.constant(np.zeros((1,) * rank, np.int64))
    last = len(batch)
    for i, axis in enumerate(d.index_map):
        start = b.squeeze(take(b, indices, last, i, i + 1), last)
        start = _placed(b, start, batch_axes, rank)
        total = b.add(total, b.mul(start, np.array(strides[axis], np.int64)))
    for axis, at in zip(d.batch, d.index_batch, strict=True):
        place = batch_axes[at]
        ramp = np.arange(dims[axis]) * strides[axis]
        total = b.add(total, ramp.reshape([-1 if a == place else 1 for a in range(rank)]))
    for axis, place in zip(kept, d.offset, strict=True):
        ramp = np.arange(sizes[axis]) * strides[axis]
        total = b.add(total, ramp.reshape([-1 if a == place else 1 for a in range(rank)]))
    made: dict[int, Extent] = dict(zip(batch_axes, batch, strict=True))
    made.update(zip(d.offset, [sizes[a] for a in kept], strict=True))
    return expand_to(b, total, tuple(made[a] for a in range(rank)))


def scatter(call: Call, d: SliceDims, op: str, clip: bool = False) -> Any:
    """Combine operand 0 with the updates (operand 2) by `op` at the indices (operand 1).

    Updates that do not lie inside are dropped, or moved inside if `clip`; for "set" the last update
    wins.
    """
    b, x, updates = call.b, call.x(0), call.x(2)
    dims, given = call.dims(0), call.dims(2)
    if any(isinstance(v, SymbolicSize) for v in (*dims, *given)):
        raise unsupported("a scatter of a dynamic shape")
    kept = [a for a in range(len(dims)) if a not in (*d.collapsed, *d.batch)]
    sizes = [1] * len(dims)
    for axis, place in zip(kept, d.offset, strict=True):
        sizes[axis] = given[place]  # type: ignore[call-overload]
    indices = b.convert(call.x(1), I64)
    clamped = _clamped(b, indices, [dims[a] for a in d.index_map], [sizes[a] for a in d.index_map])
    rows = _RowPlan.of(d, dims, sizes, given)
    linear = _linear(b, clamped, d, rows.row_dims, rows.row_sizes)
    if not clip:
        inside = _all_last(b, b.compare(indices, clamped, predicate="eq"))
        axes = [a for a in range(b.type_of(linear).rank) if a not in d.offset]
        inside = _placed(b, inside, axes, b.type_of(linear).rank)
        # No row has this number, so that the update is dropped.
        linear = b.select(inside, linear, np.array(np.iinfo(np.int64).max, np.int64))
    return rows.combine(b, x, linear, updates, op)


@dataclass(frozen=True)
class _RowPlan:
    """A scatter as rows: places by columns, where columns are dimensions that windows have whole.

    row_axes: dimensions of the operand that make a place; column_axes the others.
    """

    dims: tuple[int, ...]
    sizes: tuple[int, ...]
    row_axes: tuple[int, ...]
    column_axes: tuple[int, ...]
    order: tuple[int, ...]

    @staticmethod
    def of(
        d: SliceDims, dims: Sequence[Any], sizes: Sequence[int], given: Sequence[Any]
    ) -> "_RowPlan":
        kept = [a for a in range(len(dims)) if a not in (*d.collapsed, *d.batch)]
        columns = [a for a in kept if sizes[a] == dims[a]]
        rows = [a for a in range(len(dims)) if a not in columns]
        place_of = dict(zip(kept, d.offset, strict=True))
        last = [place_of[a] for a in columns]
        order = [p for p in range(len(given)) if p not in last] + last
        return _RowPlan(tuple(dims), tuple(sizes), tuple(rows), tuple(columns), tuple(order))

    @property
    def row_dims(self) -> tuple[int, ...]:
        """The operand's sizes, those of columns as 1."""
        return tuple(1 if a in self.column_axes else n for a, n in enumerate(self.dims))

    @property
    def row_sizes(self) -> tuple[int, ...]:
        """The windows' sizes, those of columns as 1."""
        return tuple(1 if a in self.column_axes else n for a, n in enumerate(self.sizes))

    def combine(self, b: Any, x: Any, linear: Any, updates: Any, op: str) -> Any:
        """Combine the updates at the rows `linear`; rows beyond the end are dropped."""
        columns = math.prod(self.dims[a] for a in self.column_axes)
        places = math.prod(self.dims[a] for a in self.row_axes)
        linear = transposed(b, linear, self.order)
        count = math.prod(b.dims(linear))
        order = (*self.row_axes, *self.column_axes)
        flat = reshape_to(b, transposed(b, x, order), (places, columns))
        given = reshape_to(b, transposed(b, updates, self.order), (count, columns))
        out = _combined(b, flat, reshape_to(b, linear, (count,)), given, op)
        moved = reshape_to(b, out, tuple(self.dims[a] for a in order))
        return transposed(b, moved, tuple(np.argsort(order).tolist()))


_OF_BOOLEANS = {"add": "max", "or": "max", "mul": "min", "and": "min"}


def _combined(b: Any, flat: Any, rows: Any, given: Any, op: str) -> Any:
    """pyc.scatter of flat [places, columns], rows [updates], given [updates, columns]."""
    if op == "set":
        return b.scatter(flat, rows, given)
    if b.type_of(flat).dtype == BOOL:
        wide = [b.cast(v, dtype=DTYPES["i8"]) for v in (flat, given)]
        op = _OF_BOOLEANS.get(op, op)
        return b.cast(b.scatter(wide[0], rows, wide[1], reduction=op), dtype=BOOL)
    if op in ("and", "or"):
        raise unsupported(f"a scatter by the bits of `{op}`")
    return b.scatter(flat, rows, given, reduction=op)
