"""numpy's functions that move elements: indexing, reshapes, transposes, joins, parts, fills.

``x[key]`` is numpy's basic indexing, and one integer array along one axis. Integers are checked:
while tracing, or when the program runs where the size is dynamic. Entries of index arrays are
checked while tracing where both they and the size are known; else the program clamps them.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from types import EllipsisType
from typing import Any, TypeGuard

import numpy as np

from pyc_mlir.dialects.functions import filled
from pyc_mlir.dialects.ops.movement import END, START, copied
from pyc_mlir.dialects.ops.shapes import normalize_axes, normalize_axis
from pyc_mlir.dialects.types import BOOL, I64, INTEGERS, is_float
from pyc_mlir.frontends.python.dims import DynamicDim
from pyc_mlir.frontends.python.numpy_protocol import few, implements, numpy_type, result_dtype
from pyc_mlir.frontends.python.source import bad, untraceable
from pyc_mlir.frontends.python.tracer import TracedArray, Tracer, converted, current

ShapeLike = int | DynamicDim | Sequence[int | DynamicDim]
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


def as_shape(shape: ShapeLike) -> tuple[int | DynamicDim, ...]:
    """numpy's shape argument: a number or a sequence."""
    single = isinstance(shape, DynamicDim) or is_int(shape)
    entries = (shape,) if single else tuple(shape)  # type: ignore[arg-type]
    for entry in entries:
        if not (isinstance(entry, DynamicDim) or is_int(entry)):
            raise untraceable(
                f"expected a shape of integers and dimensions, got {entry!r}",
                "shapes cannot depend on values",
            )
    return tuple(e if isinstance(e, DynamicDim) else int(e) for e in entries)  # type: ignore[arg-type]


def as_axes(axis: int | Iterable[int]) -> tuple[int, ...]:
    """numpy's axis argument: a number or several."""
    return (int(axis),) if is_int(axis) else tuple(axis)  # type: ignore[arg-type]


def first_traced(values: Sequence[Any]) -> Tracer:
    """Return the tracer of the first traced array among `values`."""
    return next(v.tracer for v in values if isinstance(v, TracedArray))


def entries_of(x: TracedArray) -> list[int]:
    """Return the entries of a reshape that leaves x as it is."""
    return [copied(i) if d is None else d for i, d in enumerate(x.type.shape)]


@implements(np.reshape)
def reshape(x: TracedArray, /, shape: ShapeLike, order: str = "C") -> TracedArray:
    """Reshape; dimensions of x pass through as their symbols, another symbol becomes -1.

    Of several others, arrays with these dimensions say the sizes.
    """
    if order != "C":
        raise untraceable(f"np.reshape: expected order 'C', got {order!r}", "transpose first")
    wanted = as_shape(shape)
    unused = [i for i, d in enumerate(x.type.shape) if d is None]
    entries: list[int] = []
    for entry in wanted:
        if isinstance(entry, DynamicDim):
            found = [i for i in unused if x.witness[i] == entry.witness]
            entries.append(copied(found[0]) if found else -1)
            unused = [i for i in unused if i not in found[:1]]
        else:
            entries.append(entry)
    like: tuple[TracedArray, ...] = ()
    others = [i for i, d in enumerate(wanted) if isinstance(d, DynamicDim) and entries[i] == -1]
    if others and entries.count(-1) > 1:
        like = (x.tracer.like(wanted),)
        for i in others:
            entries[i] = copied(x.ndim + i)
    if entries == entries_of(x):
        return x
    return x.tracer.reshape(x, *like, shape=tuple(entries)).view_of(x)


@implements(np.expand_dims)
def _expand_dims(x: TracedArray, axis: int | tuple[int, ...]) -> TracedArray:
    axes = as_axes(axis)
    rank = x.ndim + len(axes)
    places = normalize_axes(axes, rank, "axis")
    entries = entries_of(x)
    for place in places:
        entries.insert(place, 1)
    return x.tracer.reshape(x, shape=tuple(entries)).view_of(x)


@implements(np.squeeze)
def _squeeze(x: TracedArray, /, axis: int | tuple[int, ...] | None = None) -> TracedArray:
    if axis is None:
        places = tuple(i for i, d in enumerate(x.type.shape) if d == 1)
    else:
        places = normalize_axes(as_axes(axis), x.ndim, "axis")
    for place in places:
        if x.type.shape[place] not in (1, None):
            raise bad(f"np.squeeze: axis {place} of {x!r} is not of size 1")
    entries = tuple(e for i, e in enumerate(entries_of(x)) if i not in places)
    return x.tracer.reshape(x, shape=entries).view_of(x) if places else x


@implements(np.transpose, np.permute_dims)
def transpose(x: TracedArray, /, axes: Sequence[int] | None = None) -> TracedArray:
    """Put the dimensions in the order `axes` (reversed by default)."""
    order = tuple(reversed(range(x.ndim))) if axes is None else tuple(int(a) for a in axes)
    permutation = tuple(normalize_axis(a, x.ndim, "axes") for a in order)
    if permutation == tuple(range(x.ndim)):
        return x
    return x.tracer.transpose(x, permutation=permutation).view_of(x)


@implements(np.swapaxes)
def _swapaxes(x: TracedArray, /, axis1: int, axis2: int) -> TracedArray:
    order = list(range(x.ndim))
    a, c = normalize_axis(axis1, x.ndim), normalize_axis(axis2, x.ndim)
    order[a], order[c] = order[c], order[a]
    return transpose(x, order)


@implements(np.moveaxis)
def _moveaxis(
    x: TracedArray, source: int | Sequence[int], destination: int | Sequence[int]
) -> TracedArray:
    sources = [normalize_axis(a, x.ndim) for a in np.atleast_1d(source).tolist()]
    targets = [normalize_axis(a, x.ndim) for a in np.atleast_1d(destination).tolist()]
    order = [i for i in range(x.ndim) if i not in sources]
    for target, axis in sorted(zip(targets, sources, strict=True)):
        order.insert(target, axis)
    return transpose(x, order)


@implements(np.broadcast_to)
def broadcast_to(x: TracedArray, shape: ShapeLike) -> TracedArray:
    """x stretched to `shape`; dimensions may be those of any array of the trace."""
    wanted = as_shape(shape)
    offset = len(wanted) - x.ndim
    own = {
        i + offset: w
        for i, (w, d) in enumerate(zip(x.witness, x.type.shape, strict=True))
        if d is None
    }
    foreign = [
        i for i, d in enumerate(wanted) if isinstance(d, DynamicDim) and own.get(i) != d.witness
    ]
    entries = tuple(-1 if isinstance(d, DynamicDim) else d for d in wanted)
    if (
        len(wanted) == x.ndim
        and not foreign
        and all(e in (-1, d) for e, d in zip(entries, x.type.shape, strict=True))
    ):
        return x
    like = (x.tracer.like(wanted),) if foreign else ()
    return x.tracer.broadcast_to(x, *like, shape=entries).view_of(x)


def full(b: Tracer, shape: ShapeLike, value: Any, dtype: np.dtype) -> TracedArray:
    """Build an array of one value; `shape` may hold dimensions."""
    wanted = as_shape(shape)
    if any(isinstance(d, DynamicDim) for d in wanted) or isinstance(value, TracedArray):
        return broadcast_to(b.lift(value, dtype), wanted)
    return b.constant(np.full(wanted, converted(value, dtype)))  # type: ignore[arg-type]


@implements(np.full_like)
def _full_like(
    x: TracedArray, fill_value: Any, dtype: Any = None, *, shape: ShapeLike | None = None
) -> TracedArray:
    wanted = x.shape if shape is None else shape
    return full(x.tracer, wanted, fill_value, np.dtype(dtype) if dtype else x.dtype)


def _filled(value: int) -> Callable[..., TracedArray]:
    def handler(
        x: TracedArray, dtype: Any = None, *, shape: ShapeLike | None = None
    ) -> TracedArray:
        return _full_like(x, value, dtype, shape=shape)

    return handler


implements(np.zeros_like, np.empty_like)(_filled(0))
implements(np.ones_like)(_filled(1))


@implements(np.concatenate)
def concatenate(
    arrays: Sequence[Any], /, axis: int | None = 0, *, dtype: Any = None
) -> TracedArray:
    """Concatenate in a balanced tree, so that no element is copied more often than log2(n)."""
    b = first_traced(arrays)
    kept = [a if hasattr(a, "dtype") else np.asarray(a) for a in arrays]
    common = np.dtype(dtype) if dtype else result_dtype(*kept)
    lifted = [b.lift(a, common) for a in kept]
    if axis is None:
        lifted, axis = [reshape(a, -1) for a in lifted], 0
    while len(lifted) > 1:
        pairs = [lifted[i : i + 2] for i in range(0, len(lifted), 2)]
        lifted = [b.concat(*p, axis=axis) if len(p) == 2 else p[0] for p in pairs]
    return lifted[0].detached()


@implements(np.stack)
def _stack(arrays: Sequence[Any], axis: int = 0, *, dtype: Any = None) -> TracedArray:
    ranks = {np.ndim(a) for a in arrays}
    if len(ranks) != 1:
        raise bad(f"np.stack: expected arrays of one rank, got ranks {sorted(ranks)}")
    place = normalize_axis(axis, ranks.pop() + 1)
    return concatenate([np.expand_dims(a, place) for a in arrays], place, dtype=dtype)


@implements(np.hstack)
def _hstack(tup: Sequence[Any], *, dtype: Any = None) -> TracedArray:
    arrays = [a if np.ndim(a) else np.reshape(a, (1,)) for a in tup]
    return concatenate(arrays, 0 if np.ndim(arrays[0]) == 1 else 1, dtype=dtype)


@implements(np.vstack)
def _vstack(tup: Sequence[Any], *, dtype: Any = None) -> TracedArray:
    arrays = [a if np.ndim(a) > 1 else np.expand_dims(np.ravel(a), 0) for a in tup]
    return concatenate(arrays, 0, dtype=dtype)


@implements(np.split)
def _split(
    ary: TracedArray, indices_or_sections: int | Sequence[int], axis: int = 0
) -> list[TracedArray]:
    place = normalize_axis(axis, ary.ndim)
    if is_int(indices_or_sections):
        size, parts = ary.shape[place], int(indices_or_sections)
        if isinstance(size, DynamicDim):
            raise untraceable(
                f"np.split into equal parts needs the size `{size}`", "give the indices instead"
            )
        if size % parts:
            raise bad(f"np.split: {size} elements do not divide into {parts} equal parts")
        few("np.split", parts, "parts", "keep the array whole and reshape it")
        bounds = [i * (size // parts) for i in range(1, parts)]
    else:
        bounds = [int(i) for i in indices_or_sections]  # type: ignore[union-attr]
    edges = zip([None, *bounds], [*bounds, None], strict=True)
    before = (slice(None),) * place
    return [getitem(ary, (*before, slice(low, high))) for low, high in edges]


@implements(np.take)
def _take(
    x: TracedArray, /, indices: Any, axis: int | None = None, *, mode: str = "raise"
) -> TracedArray:
    if mode != "raise":
        raise untraceable(f"np.take: mode {mode!r} cannot be traced", "clip the indices first")
    b = first_traced([x, indices])
    x = x if isinstance(x, TracedArray) else b.constant(np.asarray(x))
    x, axis = (reshape(x, -1), 0) if axis is None else (x, normalize_axis(axis, x.ndim))
    return gather(x, index_array(x, indices, axis), axis)


@implements(np.pad)
def _pad(
    array: TracedArray, pad_width: Any, mode: str = "constant", *, constant_values: float = 0
) -> TracedArray:
    if mode != "constant" or isinstance(constant_values, TracedArray):
        raise untraceable(
            "np.pad: expected mode 'constant' with a number", "use `np.concatenate` otherwise"
        )
    values = np.unique(np.asarray(constant_values))
    if values.size != 1:
        raise untraceable("np.pad: expected one value", "pad one side after the other")
    widths = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2)).tolist()
    low, high = (tuple(w[side] for w in widths) for side in (0, 1))
    return filled(array.tracer, array, low, high, values[0])


@implements(np.flip)
def _flip(m: TracedArray, axis: int | tuple[int, ...] | None = None) -> TracedArray:
    places = normalize_axes(as_axes(range(m.ndim) if axis is None else axis), m.ndim)
    return getitem(m, tuple(slice(None, None, -1 if i in places else 1) for i in range(m.ndim)))


@implements(np.roll)
def _roll(a: TracedArray, shift: int, axis: int | None = None) -> TracedArray:
    if axis is None:
        return reshape(_roll(reshape(a, -1), shift, 0), a.shape)
    if not is_int(shift) or not is_int(axis):
        raise untraceable("np.roll: expected one shift and one axis", "roll axis by axis")
    place = normalize_axis(axis, a.ndim)
    size = a.shape[place]
    if isinstance(size, DynamicDim):
        raise untraceable(f"np.roll needs the size `{size}`", "join two slices")
    before = (slice(None),) * place
    cut = -shift % size if size else 0
    parts = [getitem(a, (*before, slice(cut, None))), getitem(a, (*before, slice(None, cut)))]
    return concatenate(parts, place) if cut else _copy(a)


@implements(np.repeat)
def _repeat(a: TracedArray, repeats: int, axis: int | None = None) -> TracedArray:
    if not is_int(repeats):
        raise untraceable("np.repeat: expected one number of repeats", "use `np.take`")
    a, axis = (reshape(a, -1), 0) if axis is None else (a, normalize_axis(axis, a.ndim))
    wide = _expand_dims(a, axis + 1)
    stretched = broadcast_to(
        wide, [repeats if i == axis + 1 else d for i, d in enumerate(wide.shape)]
    )
    entries = entries_of(stretched)
    entries[axis : axis + 2] = [-1]
    return a.tracer.reshape(stretched, shape=tuple(entries))


@implements(np.tile)
def _tile(A: TracedArray, reps: int | Sequence[int]) -> TracedArray:
    counts = [int(r) for r in np.atleast_1d(reps)]
    counts = [1] * (A.ndim - len(counts)) + counts
    out = A if A.ndim == len(counts) else _expand_dims(A, tuple(range(len(counts) - A.ndim)))
    for axis, number in enumerate(counts):
        few("np.tile", number, "copies", "use `np.broadcast_to` and `np.reshape`")
        if number != 1:
            none = (slice(None),) * axis + (slice(0, 0),)
            out = concatenate([out] * number, axis) if number else getitem(out, none)
    return _copy(out)


def _triangle(predicate: str) -> Callable[..., TracedArray]:
    """Make x where column <predicate> row + k, else 0."""

    def handler(m: TracedArray, k: int = 0) -> TracedArray:
        b = m.tracer
        if m.ndim < 2:
            raise bad(f"expected an array of rank >= 2, got {m!r}")
        rows, columns = b.iota_like(m, m.ndim - 2), b.iota_like(m, m.ndim - 1)
        bound = b.add(rows, b.constant(np.array(k, I64)))
        return b.select(b.compare(columns, bound, predicate=predicate), m, b.scalar(0, m))

    return handler


implements(np.tril)(_triangle("le"))
implements(np.triu)(_triangle("ge"))
implements(np.ndim)(lambda a: a.ndim)
implements(np.shape)(lambda a: a.shape)
implements(np.size)(lambda a, axis=None: a.size if axis is None else a.shape[axis])
implements(np.ravel)(lambda x, /, order="C": reshape(x, -1, order))
implements(np.matrix_transpose)(lambda x, /: _swapaxes(x, -1, -2))


@implements(np.copy)
def _copy(a: TracedArray, order: str = "K") -> TracedArray:
    return a.detached()


@implements(np.astype)
def _astype(x: TracedArray, dtype: Any, /, *, copy: bool = True) -> TracedArray:
    return _copy(x) if np.dtype(dtype) == x.dtype else x.tracer.lift(x, np.dtype(dtype))


@implements(np.where)
def _where(condition: Any, x: Any = None, y: Any = None, /) -> TracedArray:
    if x is None or y is None:
        raise untraceable(
            "np.where(condition) selects a number of elements that is not known while tracing",
            "use `np.where(condition, x, y)`",
        )
    b = first_traced([condition, x, y])
    dtype = result_dtype(x, y)
    return b.select(b.lift(condition, BOOL), b.lift(x, dtype), b.lift(y, dtype))


@implements(np.result_type)
def _result_type(*arrays_and_dtypes: Any) -> np.dtype:
    traced = [a for a in arrays_and_dtypes if isinstance(a, TracedArray)]
    others = [a for a in arrays_and_dtypes if not isinstance(a, TracedArray)]
    return np.result_type(*(numpy_type(a) for a in traced), *others)


@implements(np.broadcast_arrays)
def _broadcast_arrays(*args: Any, subok: bool = False) -> tuple[TracedArray, ...]:
    b = first_traced(args)
    arrays = [b.lift(a, result_dtype(a)) for a in args]
    # i1 of their shapes.
    zeros = [b.compare(x, x, predicate="eq") for x in arrays]
    whole = reduce(b.or_, zeros[1:], zeros[0])
    return tuple(broadcast_to(x, whole.shape) for x in arrays)


@implements(np.meshgrid)
def _meshgrid(
    *xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy"
) -> tuple[TracedArray, ...]:
    """Make an array for each vector, which varies along its own axis; "xy" swaps the first two."""
    if indexing not in ("xy", "ij"):
        raise bad(f"np.meshgrid: expected indexing 'xy' or 'ij', got {indexing!r}")
    b, rank = first_traced(xi), len(xi)
    places = list(range(rank))
    if indexing == "xy" and rank > 1:
        places[:2] = [1, 0]
    rows = [reshape(b.lift(x, np.asarray(x).dtype if is_int(x) else x.dtype), -1) for x in xi]
    out = [
        reshape(x, [x.shape[0] if axis == place else 1 for axis in range(rank)])
        for x, place in zip(rows, places, strict=True)
    ]
    shape: list[int | DynamicDim] = [1] * rank
    for x, place in zip(rows, places, strict=True):
        shape[place] = x.shape[0]
    return tuple(out) if sparse else tuple(_copy(broadcast_to(x, shape)) for x in out)


@implements(np.arange)
def arange(
    start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, *, device: Any = None
) -> TracedArray:
    """start, start + step, ...: ``np.arange(n, like=x)`` of a dynamic size n, or of numbers.

    Of a dynamic size, from 0 in steps of 1.
    """
    b = current()
    first: Any = 0 if stop is None else start
    last: Any = start if stop is None else stop
    if not isinstance(last, DynamicDim):
        numbers = [v for v in (first, last, step) if not isinstance(v, (int, float, np.generic))]
        if numbers:
            raise untraceable(f"np.arange of {numbers[0]!r}", "use numbers, or a size of an array")
        return b.constant(np.arange(first, last, step, dtype=dtype))
    if not is_int(first) or first or not is_int(step) or step != 1:
        raise untraceable(
            f"np.arange({first!r}, {last}, {step!r})",
            "compute `start + step * np.arange(n, like=x)`, n being the number of elements",
        )
    return b.lift(b.iota(b.like([last]), shape=(-1,), axis=0, dtype=I64), np.dtype(dtype or I64))


@implements(np.linspace)
def linspace(
    start: Any,
    stop: Any,
    num: int | DynamicDim = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
) -> TracedArray:
    """start + i * (stop - start) / (num - 1), the last one being `stop`; without it, / num.

    start, stop: arrays of rank 0, or numbers.
    """
    b = current()
    if retstep or axis or any(np.ndim(v) for v in (start, stop)):
        raise untraceable("np.linspace of arrays, or with `retstep`", "compute it from np.arange")
    found = result_dtype(start, stop, 0.0)
    low, high = (b.lift(v, found) for v in (start, stop))
    count = b.lift(num, found)
    divisor = b.maximum(b.sub(count, b.scalar(int(endpoint), count)), b.scalar(1, count))
    steps = b.lift(arange(num), found)
    out = b.add(b.mul(steps, b.div(b.sub(high, low), divisor)), low)
    if endpoint:
        last = b.compare(steps, divisor, predicate="eq")
        out = b.select(last, high, out)
    wanted = found if dtype is None else np.dtype(dtype)
    if not is_float(wanted):
        out = b.floor(out)
    return b.lift(out, wanted)
