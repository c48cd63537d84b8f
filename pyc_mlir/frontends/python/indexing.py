"""``x[key]`` on traced arrays: numpy's basic indexing, and one integer array along one axis.

Integers are checked: while tracing, or when the program runs where the size is dynamic. Entries of
index arrays are checked while tracing where both they and the size are known; else the program
clamps them into range.
"""

import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, TypeGuard

import numpy as np

from pyc_mlir.dialects.ops.movement import END, START, copied
from pyc_mlir.dialects.ops.shapes import normalize_axis
from pyc_mlir.dialects.types import BOOL, I64, INTEGERS
from pyc_mlir.frontends.python.dims import DynamicDim
from pyc_mlir.frontends.python.numpy_protocol import few, implements
from pyc_mlir.frontends.python.source import bad, untraceable
from pyc_mlir.frontends.python.tracer import TracedArray

_FULL = slice(None)


@implements(operator.getitem)
def getitem(x: TracedArray, key: Any) -> TracedArray:
    """Record ``x[key]``: a gather where an index is an array, one slice, one reshape.

    Raises PycError: BAD_ARGUMENT where numpy raises IndexError, UNTRACEABLE for traced masks,
    traced bounds and more than one integer array.
    """
    entries = _expand(x, key if isinstance(key, tuple) else (key,))
    _check_advanced(entries)
    x, entries = _of_dynamic_bounds(x, entries)
    indices = [e for e in entries if e is not None]
    slices = [_as_slice(x, e, axis) for axis, e in enumerate(indices)]
    out, gathered = x, False
    place = next((axis for axis, e in enumerate(indices) if _is_array(e)), None)
    if place is not None:
        index = index_array(x, indices[place], place)
        out, gathered = gather(x, index, place), index.type.rank > 0
        slices[place : place + 1] = [_FULL] * index.type.rank
    out = _reshape(_slice(out, slices), entries)
    return out if gathered or out is x else out.view_of(x)


@implements(np.unstack)
def _unstack(x: TracedArray, /, *, axis: int = 0) -> tuple[TracedArray, ...]:
    place = normalize_axis(axis, x.ndim)
    count = x.shape[place]
    if isinstance(count, DynamicDim):
        raise untraceable(f"np.unstack along the size `{count}`", "use operations on whole arrays")
    few("np.unstack", count, "parts", "use operations on whole arrays")
    return tuple(getitem(x, (*(slice(None),) * place, i)) for i in range(count))


def _of_dynamic_bounds(x: TracedArray, entries: Sequence[Any]) -> tuple[TracedArray, list[Any]]:
    """x and its key with bounds of slices that are dynamic sizes taken care of.

    They must come from the dimension that is sliced, n: n itself, n - c (as -c, which Python has
    other elements for where n < c), or n // c: then x becomes a gather of that part.
    """
    made, axis = list(entries), 0
    for place, entry in enumerate(entries):
        if isinstance(entry, slice) and any(
            isinstance(v, DynamicDim) for v in (entry.start, entry.stop)
        ):
            x, made[place] = _part(x, entry, axis)
        axis += entry is not None
    return x, made


def _part(x: TracedArray, entry: slice, axis: int) -> tuple[TracedArray, slice]:
    """Take one axis of `_of_dynamic_bounds`."""
    size, start, stop = x.shape[axis], entry.start, entry.stop
    if isinstance(stop, DynamicDim):
        stop = _plain_bound(size, stop)
    if isinstance(start, DynamicDim):
        start = _plain_bound(size, start)
    if start is size:
        start, stop = 0, 0
    if stop is size:
        stop = None
    if isinstance(start, DynamicDim) and isinstance(stop, DynamicDim):
        raise untraceable(
            f"a slice from `{start}` to `{stop}`", "slice twice: x[:stop], then its part", "x[i]"
        )
    if isinstance(stop, DynamicDim):
        return _taken(x, stop, None, axis), slice(start, None, entry.step)
    if isinstance(start, DynamicDim):
        assert start.form is not None
        count = start.form[2]
        # n - n // c, as sizes that a vector may have.
        length = (size * (count - 1) + (count - 1)) // count
        if stop is not None:
            raise untraceable(
                f"a slice from `{start}` to `{stop}`", "slice twice: x[start:], then its part"
            )
        return _taken(x, length, start, axis), slice(None, None, entry.step)
    return x, slice(start, stop, entry.step)


def _plain_bound(size: int | DynamicDim, bound: DynamicDim) -> Any:
    """Return a bound as `size`, a negative integer, or n // c of it. Raises PycError."""
    if isinstance(size, DynamicDim):
        if bound.witness == size.witness:
            return size
        op, of, count = bound.form or ("", 0, 0)
        if of == size.witness and op == "sub":
            return -count
        if of == size.witness and op == "floordiv":
            return bound
    raise untraceable(
        f"`{bound}` as a bound of a slice of a dimension of size `{size}`",
        "bounds are sizes of that dimension itself: n, n - c or n // c; a part of n elements is "
        "`np.take(x, np.arange(n, like=x), axis)`, which clamps",
        "x[i]",
    )


def _taken(x: TracedArray, length: Any, start: DynamicDim | None, axis: int) -> TracedArray:
    """`length` elements along `axis`, from `start` on."""
    b = x.tracer
    index = b.iota(b.like([length]), shape=(-1,), axis=0, dtype=I64)
    index = index if start is None else b.add(index, start.value())
    return gather(x, index, axis)


def gather(x: TracedArray, index: TracedArray, axis: int) -> TracedArray:
    """Return the entries of x at `index` along `axis`.

    If x is a slice that takes all of `axis`, the gather comes before the slice: IREE's CPU back end
    cannot compile every gather from a slice.
    """
    if x.sliced is None or x.sliced[1][axis] != _FULL:
        return x.tracer.gather(x, index, axis=axis)
    base, slices = x.sliced
    around = (*slices[:axis], *[_FULL] * index.type.rank, *slices[axis + 1 :])
    return _slice(gather(base, index, axis), around)


def is_int(entry: Any) -> TypeGuard[int]:
    """Return True for Python's and numpy's integers, not for booleans."""
    return isinstance(entry, (int, np.integer)) and not isinstance(entry, bool)


def _is_array(entry: Any) -> bool:
    return isinstance(entry, (TracedArray, np.ndarray, list))


def _expand(x: TracedArray, key: tuple[Any, ...]) -> list[Any]:
    """Return the key with an entry for each dimension: `...` becomes full slices, None stays."""
    entries = list(key)
    places = [i for i, e in enumerate(entries) if isinstance(e, EllipsisType)]
    given = sum(e is not None and not isinstance(e, EllipsisType) for e in entries)
    if len(places) > 1 or given > x.ndim:
        raise bad(f"expected at most {x.ndim} indices and one `...`, got {len(key)}")
    place = places[0] if places else len(entries)
    entries[place : place + len(places)] = [_FULL] * (x.ndim - given)
    for entry in entries:
        if not (entry is None or isinstance(entry, slice) or is_int(entry) or _is_array(entry)):
            raise untraceable(
                f"expected an index that is an integer, a slice, None, `...` or an integer array, "
                f"got {type(entry).__name__} {entry!r}",
                "use integers, or `np.take` with an integer array",
            )
    return entries


def _check_advanced(entries: Sequence[Any]) -> None:
    """Require one array, with integers beside it only: numpy would move dimensions."""
    arrays = [i for i, e in enumerate(entries) if _is_array(e)]
    fixed = [i for i, e in enumerate(entries) if _is_array(e) or is_int(e)]
    apart = bool(fixed) and fixed[-1] - fixed[0] >= len(fixed)
    if len(arrays) > 1 or (arrays and apart):
        raise untraceable(
            "indexing with more than one array, or with an array and a distant integer",
            "index in steps: `x[:, i][j]`, or `np.take` along one axis",
        )


def _slice(x: TracedArray, slices: Sequence[slice]) -> TracedArray:
    """Return the part of x that one slice for each dimension selects, all dimensions kept."""
    if all(s == _FULL for s in slices):
        return x
    steps = tuple(1 if s.step is None else _bound(s.step) for s in slices)
    if 0 in steps:
        raise bad("a slice's step cannot be zero")
    starts = tuple(START if s.start is None else _bound(s.start) for s in slices)
    stops = tuple(END if s.stop is None else _bound(s.stop) for s in slices)
    out = x.tracer.slice(x, starts=starts, stops=stops, steps=steps)
    out.sliced = (x, tuple(slices))
    return out


def _as_slice(x: TracedArray, entry: Any, axis: int) -> slice:
    """Return an entry as a slice of its axis; an integer selects one element.

    If the size is not known, an integer out of range selects none, so that the reshape which drops
    the dimension fails when the program runs.
    """
    if isinstance(entry, slice):
        return entry
    if _is_array(entry):
        return _FULL
    size, index = x.type.shape[axis], int(entry)
    if size is None:
        return slice(index, None if index == -1 else index + 1)
    if not -size <= index < size:
        raise bad(f"index {index} is out of bounds for axis {axis} of size {size}")
    return slice(index % size, index % size + 1)


def _bound(value: Any) -> int:
    """Return a bound as an i64 that does not stand for an omitted one."""
    if not is_int(value):
        raise untraceable(
            f"expected slice bounds that are Python integers, got {value!r}",
            "use `np.take(x, start + np.arange(length))` for a part at a computed place",
        )
    return max(START + 1, min(END - 1, int(value)))


def index_array(x: TracedArray, indices: Any, axis: int) -> TracedArray:
    """Return integer indices into `axis` of x as a traced array; constants are checked here."""
    if isinstance(indices, TracedArray):
        if indices.dtype == BOOL:
            raise untraceable(
                "a mask selects a number of elements that is not known while tracing",
                "use `np.where(mask, x, other)`",
            )
        return indices if indices.dtype in INTEGERS else x.tracer.lift(indices, I64)
    values = np.asarray(indices)
    if values.dtype == BOOL and values.ndim == 1:
        values = np.flatnonzero(values)
    if values.dtype.kind not in "iu" and values.size:
        raise bad(f"expected integer indices, got an array of {values.dtype}")
    size = x.type.shape[axis]
    if size is not None and values.size and not (-size <= values.min() <= values.max() < size):
        raise bad(f"an index is out of bounds for axis {axis} of size {size}")
    return x.tracer.constant(values.astype(I64))


def _reshape(out: TracedArray, entries: Sequence[Any]) -> TracedArray:
    """Drop the dimensions of integers and insert those of None."""
    shape: list[int] = []
    axis = 0
    for entry in entries:
        if entry is None:
            shape.append(1)
            continue
        taken = _rank(entry) if _is_array(entry) else 1
        if not is_int(entry):
            shape.extend(copied(a) for a in range(axis, axis + taken))
        axis += taken
    if shape == [copied(a) for a in range(out.type.rank)]:
        return out
    sizes = [out.type.shape[-2 - e] if e < 0 else e for e in shape]
    known = tuple(e if s is None else s for e, s in zip(shape, sizes, strict=True))
    return out.tracer.reshape(out, shape=known)


def _rank(index: Any) -> int:
    """Count the dimensions that an index array adds; a constant mask counts as a vector."""
    return index.type.rank if isinstance(index, TracedArray) else np.ndim(index)
