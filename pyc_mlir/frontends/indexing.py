"""``x[key]`` on traced arrays: numpy's basic indexing, and one integer array along one axis."""

import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, TypeGuard

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ops.movement import END, START, copied
from pyc_mlir.dialects.types import BOOL, I64, INTEGERS
from pyc_mlir.frontends.numpy_protocol import implements
from pyc_mlir.frontends.source import untraceable, user_point
from pyc_mlir.frontends.traced_array import TracedArray

_FULL = slice(None)


@implements(operator.getitem)
def getitem(x: TracedArray, key: Any) -> TracedArray:
    """Record ``x[key]``: one slice, a gather where an index is an array, one reshape.

    Raises PycError: BAD_ARGUMENT where numpy raises IndexError, UNTRACEABLE for traced masks,
    traced bounds and more than one integer array.
    """
    entries = _expand(x, key if isinstance(key, tuple) else (key,))
    _check_advanced(entries)
    indices = [e for e in entries if e is not None]
    out = _slice(x, indices)
    gathered = False
    # From the last axis to the first, so that axes still to come do not move.
    for axis in reversed(range(len(indices))):
        index = _gather_index(x, indices[axis], axis)
        if index is not None:
            gathered = gathered or index.type.rank > 0
            out = x.tracer.gather(out, index, axis=axis)
    out = _reshape(x, out, entries)
    return out if gathered or out is x else out.view_of(x)


def is_int(entry: Any) -> TypeGuard[int]:
    """True for Python's and numpy's integers, not for booleans."""
    return isinstance(entry, (int, np.integer)) and not isinstance(entry, bool)


def _is_array(entry: Any) -> bool:
    return isinstance(entry, (TracedArray, np.ndarray, list))


def _expand(x: TracedArray, key: tuple[Any, ...]) -> list[Any]:
    """The key with an entry for each dimension: `...` becomes full slices, None stays."""
    entries = list(key)
    places = [i for i, e in enumerate(entries) if isinstance(e, EllipsisType)]
    given = sum(e is not None and not isinstance(e, EllipsisType) for e in entries)
    if len(places) > 1 or given > x.ndim:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{user_point()}: expected at most {x.ndim} indices and one `...`, got {len(key)}",
        )
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
    """One array, and integers beside it, as otherwise numpy moves the dimensions to the front."""
    arrays = [i for i, e in enumerate(entries) if _is_array(e)]
    fixed = [i for i, e in enumerate(entries) if _is_array(e) or is_int(e)]
    apart = bool(fixed) and fixed[-1] - fixed[0] >= len(fixed)
    if len(arrays) > 1 or (arrays and apart):
        raise untraceable(
            "indexing with more than one array, or with an array and a distant integer",
            "index in steps: `x[:, i][j]`, or `np.take` along one axis",
        )


def _slice(x: TracedArray, indices: Sequence[Any]) -> TracedArray:
    """The part of x that slices and integers select, all dimensions kept."""
    slices = [_as_slice(x, e, axis) for axis, e in enumerate(indices)]
    if all(s == _FULL for s in slices):
        return x
    steps = tuple(1 if s.step is None else _bound(s.step) for s in slices)
    if 0 in steps:
        raise PycError(ReasonCode.BAD_ARGUMENT, f"{user_point()}: a slice's step cannot be zero")
    starts = tuple(START if s.start is None else _bound(s.start) for s in slices)
    stops = tuple(END if s.stop is None else _bound(s.stop) for s in slices)
    return x.tracer.slice(x, starts=starts, stops=stops, steps=steps)


def _as_slice(x: TracedArray, entry: Any, axis: int) -> slice:
    if isinstance(entry, slice):
        return entry
    size = x.type.shape[axis]
    if _is_array(entry) or size is None:
        return _FULL
    index = int(entry)
    if not -size <= index < size:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{user_point()}: index {index} is out of bounds for axis {axis} of size {size}",
        )
    return slice(index % size, index % size + 1)


def _bound(value: Any) -> int:
    """A bound as an i64 that does not stand for an omitted one."""
    if not is_int(value):
        raise untraceable(
            f"expected slice bounds that are Python integers, got {value!r}",
            "use `np.take(x, start + np.arange(length))` for a part at a computed place",
        )
    return max(START + 1, min(END - 1, int(value)))


def _gather_index(x: TracedArray, entry: Any, axis: int) -> TracedArray | None:
    """What to gather along `axis`: an array, or an integer where the size is not known."""
    if isinstance(entry, slice):
        return None
    if is_int(entry):
        dynamic = x.type.shape[axis] is None
        return x.tracer.constant(np.array(entry, I64)) if dynamic else None
    return index_array(x, entry, axis)


def index_array(x: TracedArray, indices: Any, axis: int) -> TracedArray:
    """Integer indices into `axis` of x as a traced array; constants are checked here."""
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
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{user_point()}: expected integer indices, got an array of {values.dtype}",
        )
    size = x.type.shape[axis]
    if size is not None and values.size and not (-size <= values.min() <= values.max() < size):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{user_point()}: an index is out of bounds for axis {axis} of size {size}",
        )
    return x.tracer.constant(values.astype(I64))


def _reshape(x: TracedArray, out: TracedArray, entries: Sequence[Any]) -> TracedArray:
    """Drop the dimensions of integers and insert those of None."""
    shape: list[int] = []
    source = axis = 0
    for entry in entries:
        if entry is None:
            shape.append(1)
            continue
        fixed = is_int(entry)
        taken = 1 if not _is_array(entry) else _rank(entry)
        if not fixed:
            shape.extend(copied(a) for a in range(axis, axis + taken))
        if not (fixed and x.type.shape[source] is None):
            axis += taken
        source += 1
    if shape == [copied(a) for a in range(out.type.rank)]:
        return out
    sizes = [out.type.shape[-2 - e] if e < 0 else e for e in shape]
    known = tuple(e if s is None else s for e, s in zip(shape, sizes, strict=True))
    return x.tracer.reshape(out, shape=known)


def _rank(index: Any) -> int:
    """The dimensions that an index array adds; a constant mask counts as the vector it selects."""
    return index.type.rank if isinstance(index, TracedArray) else np.ndim(index)
