"""XLA's operations that move elements: broadcasts, pads, slices at computed places, sorts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.functions import filled
from pyc_mlir.dialects.ops.movement import END, START
from pyc_mlir.dialects.types import BOOL, DTYPES, I64
from pyc_mlir.frontends.hlo.call import Call
from pyc_mlir.frontends.hlo.elementwise import total_order_key
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import chain, expand_to, reshape_to, take, vector, whole
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize


def transposed(b: Any, x: Any, order: Sequence[int]) -> Any:
    """x with its dimensions in `order`; x itself where that changes nothing."""
    if tuple(order) == tuple(range(len(order))):
        return x
    return b.transpose(x, permutation=tuple(order))


def broadcast_in_dim(b: Any, x: Any, target: Sequence[Extent], dims: Sequence[int]) -> Any:
    """x in the shape `target`; dimension i of x is dimension ``dims[i]`` of the result."""
    have = b.dims(x)
    order = np.argsort(dims, kind="stable").tolist()
    x = transposed(b, x, order)
    placed = {dims[i]: have[i] for i in order}
    aligned = tuple(placed.get(d, 1) for d in range(len(target)))
    # A leading dimension of size 1 is numpy's to add.
    while aligned and len(aligned) > len(have) and (len(target) - len(aligned)) not in placed:
        aligned = aligned[1:]
    if tuple(b.dims(x)) != aligned:
        x = reshape_to(b, x, aligned)
    return expand_to(b, x, target)


def reverse(b: Any, x: Any, axes: Sequence[int]) -> Any:
    """x backwards along `axes`."""
    starts, stops, steps = (list(v) for v in whole(b.type_of(x).rank))
    for axis in axes:
        starts[axis], stops[axis], steps[axis] = END, START, -1
    return b.slice(x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def pad_edges(b: Any, x: Any, axis: int, low: int, high: int, value: Any, interior: int = 0) -> Any:
    """Pad one dimension as XLA: `interior` values between elements, negative ends cut off."""
    rank = b.type_of(x).rank
    if interior:
        x = _interior(b, x, axis, interior, value)
    if low < 0 or high < 0:
        x = take(b, x, axis, max(-low, 0), high if high < 0 else END)
    if low > 0 or high > 0:
        ends = [[0] * rank, [0] * rank]
        ends[0][axis], ends[1][axis] = max(low, 0), max(high, 0)
        x = filled(b, x, ends[0], ends[1], value)
    return x


def _interior(b: Any, x: Any, axis: int, interior: int, value: Any) -> Any:
    """Insert `interior` values after each element, except for the last one."""
    dims = b.dims(x)
    size = dims[axis]
    if isinstance(size, SymbolicSize):
        raise unsupported("values between the elements of a dynamic dimension")
    if size < 2:
        return x
    spread = reshape_to(b, x, (*dims[: axis + 1], 1, *dims[axis + 1 :]))
    high = tuple(interior if d == axis + 1 else 0 for d in range(len(dims) + 1))
    spread = filled(b, spread, (0,) * len(high), high, value)
    step = interior + 1
    flat = reshape_to(b, spread, (*dims[:axis], size * step, *dims[axis + 1 :]))
    return take(b, flat, axis, 0, size * step - interior)


def pad(call: Call, low: Sequence[int], high: Sequence[int], interior: Sequence[int]) -> Any:
    """Pad as XLA; operand 1 is the value."""
    b, value = call.b, call.value(1)
    if value is not None:
        return _padded(b, call.x(0), low, high, interior, value)
    # The value is computed when the program runs: elements of x stand where the mask is true.
    ones = b.constant(np.ones((1,) * call.type(0).rank, np.int8))
    mask = _padded(b, expand_to(b, ones, call.dims(0)), low, high, interior, 0.0)
    out = _padded(b, call.x(0), low, high, interior, 0.0)
    return b.select(b.convert(mask, BOOL), out, call.x(1))


def _padded(
    b: Any, x: Any, low: Sequence[int], high: Sequence[int], interior: Sequence[int], value: Any,
) -> Any:  # fmt: skip
    plain = not any(interior) and min((*low, *high), default=0) >= 0
    if plain:
        return filled(b, x, low, high, value) if any((*low, *high)) else x
    for axis in range(len(low)):
        x = pad_edges(b, x, axis, low[axis], high[axis], value, interior[axis])
    return x


def slice_(
    b: Any, x: Any, starts: Sequence[int], stops: Sequence[int], steps: Sequence[int]
) -> Any:
    """x[start:stop:step] in each dimension; bounds lie within x."""
    return b.slice(x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))


def iota(b: Any, dims: Sequence[Extent], axis: int, dtype: np.dtype) -> Any:
    """out[..., i, ...] = i along `axis`."""
    ramp = b.align(vector(b, dims[axis]), axis, len(dims))
    ramp = b.convert(ramp, dtype)
    return expand_to(b, ramp, dims)


def concatenate(call: Call, axis: int) -> Any:
    """Join the operands one after the other along `axis`."""
    return chain(call.b, call.all(), axis)


def dynamic_slice(call: Call, sizes: Sequence[int]) -> Any:
    """x[start : start + size] in each dimension; starts are clamped so that it lies inside x."""
    b, x, dims = call.b, call.x(0), call.dims(0)
    for axis, size in enumerate(sizes):
        extent = dims[axis]
        if size == extent:
            continue
        if isinstance(extent, SymbolicSize):
            raise unsupported("a slice of a dynamic dimension at a computed place")
        known = call.value(1 + axis)
        if known is not None:
            start = min(max(int(known), 0), extent - size)
            x = take(b, x, axis, start, start + size)
            continue
        start = b.convert(call.x(1 + axis), I64)
        limit = np.array(extent - size, np.int64)
        start = b.clip(start, np.array(0, np.int64), limit)
        if size == 1:
            x = b.gather(x, b.reshape(start, shape=(1,)), axis=axis)
        else:
            x = b.gather(x, b.add(start, np.arange(size)), axis=axis)
    return x


def dynamic_update_slice(call: Call) -> Any:
    """x with the box at the starts (operands 2, 3, ...) replaced by operand 1."""
    b = call.b
    if call.count == 2:
        return call.x(1)
    starts = [b.reshape(b.convert(call.x(i), I64), shape=(1,)) for i in range(2, call.count)]
    return b.update_slice(call.x(0), call.x(1), chain(b, starts, 0))


def select_n(call: Call) -> Any:
    """Select operand 1 + which, element by element; `which` (operand 0) is i1 or an integer."""
    if call.type(0).dtype == BOOL:
        return call.pointwise(lambda b, which, no, yes: b.select(which, yes, no))

    def chosen(b: Any, which: Any, *cases: Any) -> Any:
        out = cases[-1]
        for i in reversed(range(len(cases) - 1)):
            out = b.select(b.compare(which, b.scalar(i, which), predicate="le"), cases[i], out)
        return out

    return call.pointwise(chosen)


def top_k(b: Any, x: Any, k: int) -> tuple[Any, Any]:
    """Return the k largest along the last dimension and their i32 indices; ties by place.

    The order is XLA's total order of floats: 0 is larger than -0, and NaN the largest.
    """
    axis = b.type_of(x).rank - 1
    order = b.argsort(total_order_key(b, x), axis=axis, descending=True, count=k)
    return _along(b, x, order, axis), b.cast(order, dtype=DTYPES["i32"])


def sort(
    b: Any, operands: Sequence[Any], axis: int, descending: bool = False, total: bool = False
) -> tuple[Any, ...]:
    """Sort the operands by the first one along `axis`; equals keep their order.

    NaN is the largest of floats. total: by the total order, in which -0 and 0 are no equals.
    """
    keys = total_order_key(b, operands[0]) if total else operands[0]
    order = b.argsort(keys, axis=axis, descending=descending)
    return tuple(_along(b, x, order, axis) for x in operands)


def _along(b: Any, x: Any, order: Any, axis: int) -> Any:
    """x taken at `order` along `axis`, by linear indices into its rows."""
    dims, wanted = b.dims(x), b.dims(order)
    if len(dims) == 1:
        return b.gather(x, order, axis=0)
    if any(isinstance(d, SymbolicSize) for d in dims):
        raise unsupported("a sort of several rows of dynamic shape")
    last = [d for d in range(len(dims)) if d != axis] + [axis]
    rows = int(np.prod([dims[d] for d in last[:-1]], dtype=np.int64))
    size, count = dims[axis], wanted[axis]
    flat = reshape_to(b, transposed(b, x, last), (rows * size,))
    start = np.arange(rows, dtype=np.int64).reshape(rows, 1) * size
    linear = b.add(reshape_to(b, transposed(b, order, last), (rows, count)), start)
    taken = reshape_to(b, b.gather(flat, linear, axis=0), [wanted[d] for d in last])
    return transposed(b, taken, tuple(np.argsort(last).tolist()))
