"""numpy's reductions and products of whole arrays, with numpy's result types."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np

from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.ops.shapes import normalize_axes, normalize_axis
from pyc_mlir.dialects.types import (
    BOOL,
    DTYPES,
    I64,
    accumulator,
    is_float,
    is_integer,
    is_unsigned,
)
from pyc_mlir.frontends.python.numpy_movement import (
    as_axes,
    entries_of,
    first_traced,
    getitem,
    is_int,
    reshape,
)
from pyc_mlir.frontends.python.numpy_protocol import (
    FUNCTIONS,
    Handler,
    few,
    implements,
    loop_dtypes,
    result_dtype,
)
from pyc_mlir.frontends.python.numpy_ufuncs import truth
from pyc_mlir.frontends.python.source import bad, untraceable
from pyc_mlir.frontends.python.tracer import TracedArray, Tracer

Axes = int | tuple[int, ...] | None
_COMBINED = {
    "reduce_max": (np.maximum, np.logical_or),
    "reduce_min": (np.minimum, np.logical_and),
}
_F64, _F16, _I8 = DTYPES["f64"], DTYPES["f16"], DTYPES["i8"]


def axes_of(x: TracedArray, axis: Axes) -> tuple[int, ...]:
    """numpy's axis argument as a tuple counted from 0; None means all."""
    if axis is None:
        return tuple(range(x.ndim))
    return normalize_axes(as_axes(axis), x.ndim, "axis")


def _widened(x: TracedArray, dtype: Any) -> TracedArray:
    """x in the type of its sums: booleans and integers are widened to 64 bits as numpy does."""
    exact = x.dtype == BOOL or is_integer(x.dtype)
    wide = DTYPES["ui64"] if is_unsigned(x.dtype) else I64
    return x.tracer.lift(x, np.dtype(dtype) if dtype else wide if exact else x.dtype)


def _total(op: str) -> Handler:
    def handler(
        a: TracedArray, /, axis: Axes = None, dtype: Any = None, *, keepdims: bool = False
    ) -> TracedArray:
        x = _widened(a, dtype)
        return getattr(x.tracer, op)(x, axes=axes_of(x, axis), keepdims=bool(keepdims))

    return handler


def _reduces(reduce: Callable[..., Any], op: str) -> Handler:
    """Make a reduction of numpy's signature."""

    def handler(a: TracedArray, /, axis: Axes = None, *, keepdims: bool = False) -> Any:
        return reduce(a, op, axis, keepdims)

    return handler


@implements(np.mean)
def _mean(
    a: TracedArray, /, axis: Axes = None, dtype: Any = None, *, keepdims: bool = False
) -> TracedArray:
    """Build the mean; integers give f64."""
    wanted = np.dtype(dtype) if dtype else a.dtype if is_float(a.dtype) else _F64
    lifted = a.tracer.lift(a, wanted)
    return a.tracer.reduce_mean(lifted, axes=axes_of(a, axis), keepdims=bool(keepdims))


def _require_elements(x: TracedArray, axes: Sequence[int]) -> None:
    if any(x.type.shape[i] == 0 for i in axes):
        raise bad(f"expected at least one element to reduce, got {x!r}")


def _extremum(x: TracedArray, op: str, axis: Axes, keepdims: bool) -> TracedArray:
    """Build the largest or smallest elements.

    If the size of an axis is unknown, the first element is read too: without one, the reshape to
    one element fails when the program runs, as numpy does.
    """
    b, axes, is_bool = x.tracer, axes_of(x, axis), x.dtype == BOOL
    _require_elements(x, axes)
    if is_bool:
        found = _logical(x, op, axes, keepdims)
    else:
        found = getattr(b, op)(x, axes=axes, keepdims=bool(keepdims))
    if all(x.type.shape[i] is not None for i in axes):
        return found
    rank = x.type.rank
    stops = tuple(1 if i in axes else END for i in range(rank))
    part = b.slice(x, starts=(0,) * rank, stops=stops, steps=(1,) * rank)
    entries = enumerate(entries_of(x))
    kept = tuple(1 if i in axes else e for i, e in entries if keepdims or i not in axes)
    numbers, booleans = _COMBINED[op]
    return (booleans if is_bool else numbers)(found, b.reshape(part, shape=kept))


def _range(x: TracedArray, op: str, axis: Axes, keepdims: bool) -> Any:
    high: Any = _extremum(x, "reduce_max", axis, keepdims)
    return np.subtract(high, _extremum(x, "reduce_min", axis, keepdims))


def _logical(x: TracedArray, op: str, axis: Axes, keepdims: bool) -> TracedArray:
    """Reduce over i8; the identities of max and min for no elements read as false and true."""
    b = x.tracer
    bits = b.cast(truth(b, x), dtype=_I8)
    found = getattr(b, op)(bits, axes=axes_of(x, axis), keepdims=bool(keepdims))
    return b.compare(found, b.scalar(0, found), predicate="gt")


@implements(np.count_nonzero)
def _count_nonzero(a: TracedArray, axis: Axes = None, *, keepdims: bool = False) -> TracedArray:
    return FUNCTIONS[np.sum](truth(a.tracer, a), axis, keepdims=keepdims)


implements(np.sum)(_total("reduce_sum"))
implements(np.prod)(_total("reduce_prod"))
implements(np.max, np.amax)(_reduces(_extremum, "reduce_max"))
implements(np.min, np.amin)(_reduces(_extremum, "reduce_min"))
implements(np.any)(_reduces(_logical, "reduce_max"))
implements(np.all)(_reduces(_logical, "reduce_min"))
implements(np.ptp)(_reduces(_range, ""))


@implements(np.argmax)
def _argmax(a: TracedArray, /, axis: int | None = None, *, keepdims: bool = False) -> TracedArray:
    _require_elements(a, axes_of(a, axis))
    if a.dtype == BOOL:
        a = a.tracer.cast(a, dtype=_I8)
    if axis is None:
        flat = a.tracer.argmax(reshape(a, -1), axis=0)
        return reshape(flat, (1,) * a.ndim) if keepdims else flat
    return a.tracer.argmax(a, axis=normalize_axis(axis, a.ndim), keepdims=bool(keepdims))


@implements(np.argmin)
def _argmin(a: TracedArray, /, axis: int | None = None, *, keepdims: bool = False) -> TracedArray:
    """Build the argmax of -x, or of ~x for integers, where -x would overflow."""
    mirrored = a.tracer.neg(a) if is_float(a.dtype) else a.tracer.not_(a)
    return _argmax(mirrored, axis, keepdims=keepdims)


@implements(np.var)
def _var(
    a: TracedArray,
    axis: Axes = None,
    dtype: Any = None,
    *,
    ddof: float = 0,
    keepdims: bool = False,
) -> TracedArray:
    """mean((x - mean(x))^2), over n - ddof; 16-bit floats in f32."""
    b, out = a.tracer, np.dtype(dtype) if dtype else a.dtype if is_float(a.dtype) else _F64
    x, axes = b.lift(a, accumulator(out)), axes_of(a, axis)
    centered = b.sub(x, b.reduce_mean(x, axes=axes, keepdims=True))
    squares = b.mul(centered, centered)
    if not ddof:
        return b.lift(b.reduce_mean(squares, axes=axes, keepdims=bool(keepdims)), out)
    total = b.reduce_sum(squares, axes=axes, keepdims=bool(keepdims))
    return b.lift(b.div(total, b.sub(b.count(x, axes), b.scalar(ddof, x))), out)


@implements(np.std)
@wraps(_var)
def _std(a: TracedArray, *args: Any, **kwargs: Any) -> TracedArray:
    return a.tracer.sqrt(_var(a, *args, **kwargs))


@implements(np.clip)
def _clip(
    a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None
) -> TracedArray:
    low = min if a_min is None else a_min
    high = max if a_max is None else a_max
    bounds = [v for v in (low, high) if v is not None]
    b, dtype = first_traced([a, *bounds]), result_dtype(a, *bounds)
    if is_integer(dtype):  # Python numbers beyond the type on their own side bound nothing.
        low = None if type(low) is int and low < np.iinfo(dtype).min else low
        high = None if type(high) is int and high > np.iinfo(dtype).max else high
        bounds = [v for v in (low, high) if v is not None]
    x, *limits = [b.lift(v, dtype) for v in (a, *bounds)]
    if not limits:
        return x.detached()
    if dtype == BOOL:
        x = x if low is None else b.or_(x, limits[0])
        return x if high is None else b.and_(x, limits[-1])
    if len(limits) == 2:
        return b.clip(x, *limits)
    return b.minimum(x, limits[0]) if low is None else b.maximum(x, limits[0])


@implements(np.round, np.around)
def _round(a: TracedArray, /, decimals: int = 0) -> TracedArray:
    if a.dtype == BOOL and not decimals:
        return a.tracer.lift(a, _F16)  # as numpy's rint of booleans
    if not is_float(a.dtype):
        if decimals >= 0:
            return a.detached()
        raise untraceable("np.round: integers to negative decimals", "use `x // 10 * 10`")
    if not decimals:
        return a.tracer.round(a)
    b, factor = a.tracer, a.tracer.scalar(10.0 ** abs(decimals), a)
    if decimals > 0:
        return b.div(b.round(b.mul(a, factor)), factor)
    return b.mul(b.round(b.div(a, factor)), factor)


@implements(np.linalg.norm)
def _norm(
    x: TracedArray, ord: Any = None, axis: Axes = None, keepdims: bool = False
) -> TracedArray:
    """2-norms (Frobenius for matrices), and the 1- and inf-norms of vectors."""
    b = x.tracer
    x = b.lift(x, x.dtype if is_float(x.dtype) else _F64)
    axes = axes_of(x, axis)
    known = (None, 2, 1, np.inf) if len(axes) == 1 else (None, "fro")
    if ord not in known:
        raise untraceable(
            f"np.linalg.norm: expected ord in {known} over {len(axes)} axes, got {ord!r}",
            "compute it from sums and maxima",
        )
    size = b.abs(x) if ord in (1, np.inf) else b.mul(x, x)
    if ord == np.inf:
        return b.reduce_max(size, axes=axes, keepdims=keepdims)
    total = b.reduce_sum(size, axes=axes, keepdims=keepdims)
    return total if ord == 1 else b.sqrt(total)


@implements(np.dot)
def _dot(a: Any, b: Any) -> Any:
    a, b = (v if isinstance(v, TracedArray) else np.asarray(v) for v in (a, b))
    if not a.ndim or not b.ndim:
        return np.multiply(a, b)
    return np.matmul(a, b) if np.ndim(b) <= 2 else _tensordot(a, b, ((-1,), (-2,)))


@implements(np.inner)
def _inner(a: Any, b: Any, /) -> Any:
    if not np.ndim(a) or not np.ndim(b):
        return _dot(a, b)
    return _tensordot(a, b, ((-1,), (-1,)))


@implements(np.outer)
def _outer(a: Any, b: Any) -> Any:
    return np.multiply(np.expand_dims(np.ravel(a), 1), np.expand_dims(np.ravel(b), 0))


@implements(np.tensordot)
def _tensordot(a: Any, b: Any, axes: int | Sequence[Any] = 2) -> Any:
    """Build an einsum: contracted axes share a letter."""
    ranks = np.ndim(a), np.ndim(b)
    if is_int(axes):
        pairs = [range(ranks[0] - axes, ranks[0]), range(axes)]  # type: ignore[operator]
    else:
        pairs = [np.atleast_1d(side).tolist() for side in axes]  # type: ignore[union-attr]
    left = [chr(ord("a") + i) for i in range(ranks[0])]
    right = [chr(ord("A") + i) for i in range(ranks[1])]
    for i, j in zip(*pairs, strict=True):
        right[j] = left[i]
    shared = set(left) & set(right)
    out = [c for c in (*left, *right) if c not in shared]
    return np.einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", a, b)


@implements(np.einsum)
def _einsum(subscripts: str, *operands: Any, optimize: Any = False) -> TracedArray:
    tracer = first_traced(operands)
    if not isinstance(subscripts, str):
        raise untraceable("np.einsum: expected the form with a string", "write 'ij,jk->ik'")
    arrays = [x if isinstance(x, TracedArray) else np.asarray(x) for x in operands]
    if len(arrays) == 1:
        dtype = arrays[0].dtype
    else:
        dtype = loop_dtypes(np.matmul, arrays[:2])[0]
        dtype = result_dtype(*arrays) if len(arrays) > 2 else dtype
    return einsum(tracer, subscripts, [tracer.lift(x, dtype) for x in arrays])


_SPARE = "⓪①②③④⑤⑥⑦⑧⑨"


def einsum(b: Tracer, subscripts: str, operands: Sequence[TracedArray]) -> TracedArray:
    """Evaluate e.g. "bhqd,bhkd->bhqk" or "...ij,jk". Raises PycError (UNTRACEABLE)."""
    terms, wanted = _parse(subscripts, [x.ndim for x in operands])
    x, letters = operands[0], terms[0]
    for i in range(1, len(operands)):
        later = set(wanted).union(*terms[i + 1 :])
        x, letters = _pair(b, (x, letters), (operands[i], terms[i]), later)
    x, letters = _sum_out(b, x, letters, set(wanted))
    order = tuple(letters.index(c) for c in wanted)
    return x if order == tuple(range(len(order))) else b.transpose(x, permutation=order)


def _parse(subscripts: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the result; the ellipsis becomes spare letters."""
    left, arrow, right = subscripts.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise _unclear(subscripts, f"it has {len(terms)} terms for {len(ranks)} operands")
    widths = [r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True)]
    spare = _SPARE[: max((w for t, w in zip(terms, widths, strict=True) if "..." in t), default=0)]
    for i, (term, width) in enumerate(zip(terms, widths, strict=True)):
        if width < 0 or (width and "..." not in term):
            raise _unclear(subscripts, f"term {i} does not fit an array of rank {ranks[i]}")
        terms[i] = term.replace("...", spare[len(spare) - width :])
        if len(set(terms[i])) != len(terms[i]):
            raise _unclear(subscripts, "a letter stands twice in one term")
    if not arrow:
        once = sorted(c for c in set(left) if c.isalpha() and left.count(c) == 1)
        right = ("..." if spare else "") + "".join(once)
    wanted = right.replace("...", spare)
    if len(set(wanted)) != len(wanted) or not set(wanted) <= set("".join(terms)):
        raise _unclear(subscripts, "the result has a letter twice, or one that no operand has")
    return terms, wanted


def _unclear(subscripts: str, why: str) -> Exception:
    return untraceable(
        f"np.einsum({subscripts!r}): {why}", "use distinct letters, one for each dimension"
    )


def _sum_out(b: Tracer, x: TracedArray, letters: str, keep: set[str]) -> tuple[TracedArray, str]:
    axes = tuple(i for i, c in enumerate(letters) if c not in keep)
    kept = "".join(c for c in letters if c in keep)
    return (b.reduce_sum(x, axes=axes) if axes else x), kept


def _pair(
    b: Tracer, left: tuple[TracedArray, str], right: tuple[TracedArray, str], later: set[str]
) -> tuple[TracedArray, str]:
    """Contract two operands; the result's letters are batch, left's own, right's own."""
    x, xs = _sum_out(b, *left, later | set(right[1]))
    y, ys = _sum_out(b, *right, later | set(left[1]))
    batch = "".join(c for c in xs if c in ys and c in later)
    depth = "".join(c for c in xs if c in ys and c not in later)
    rows = "".join(c for c in xs if c not in ys)
    columns = "".join(c for c in ys if c not in xs)
    lhs = _grouped(b, x, xs, batch, rows, depth)
    rhs = _grouped(b, y, ys, batch, depth, columns)
    out = b.matmul(lhs, rhs)
    # Right's letters are split first: its dimension is the last, so that rows stay where they are.
    out = _split(b, out, len(batch) + 1, y, ys, columns)
    return _split(b, out, len(batch), x, xs, rows), batch + rows + columns


def _grouped(
    b: Tracer, x: TracedArray, letters: str, batch: str, first: str, second: str
) -> TracedArray:
    """x as [batch..., first, second], the letters of a group merged into one dimension."""
    order = tuple(letters.index(c) for c in batch + first + second)
    if order != tuple(range(len(order))):
        x = b.transpose(x, permutation=order)
    place = len(batch)
    x = _merge(b, x, place + len(first), len(second))
    return _merge(b, x, place, len(first))


def _merge(b: Tracer, x: TracedArray, start: int, number: int) -> TracedArray:
    """Merge dimensions [start, start + number) into one; size 1 for none."""
    if number == 1:
        return x
    entries = entries_of(x)
    entries[start : start + number] = [-1 if number else 1]
    return b.reshape(x, shape=tuple(entries))


def _split(
    b: Tracer, out: TracedArray, axis: int, source: TracedArray, letters: str, group: str
) -> TracedArray:
    """Undo a merge: dimension `axis` of out as the dimensions of `group` in `source`."""
    if len(group) == 1:
        return out
    sizes = [source.type.shape[letters.index(c)] for c in group]
    if sizes.count(None) > 1:
        raise untraceable(
            "np.einsum: two dynamic dimensions of one operand would have to be merged",
            "use `np.matmul`, or give all but one of them a size",
        )
    entries = entries_of(out)
    entries[axis : axis + 1] = [-1 if d is None else d for d in sizes]
    return b.reshape(out, shape=tuple(entries))


def _along(a: TracedArray, axis: int | None) -> tuple[TracedArray, int]:
    """x and its axis counted from 0; x in a row where numpy's axis is None."""
    return (reshape(a, -1), 0) if axis is None else (a, normalize_axis(axis, a.ndim))


def _running(a: TracedArray, reduction: str, axis: int | None, dtype: Any) -> TracedArray:
    """Build sums or products up to each element."""
    x, place = _along(_widened(a, dtype), axis)
    if not x.ndim:
        raise bad("expected an array of rank >= 1 with an axis")
    return a.tracer.cumulative(x, axis=place, reduction=reduction)


def _cumulative(reduction: str, first: float, *functions: Any) -> None:
    """Enter numpy's running sums or products, and those of the array API.

    Those need no axis for rank 1, and `first` may precede the results.
    """

    @implements(functions[0])
    def _(a: TracedArray, axis: int | None = None, dtype: Any = None) -> TracedArray:
        return _running(a, reduction, axis, dtype)

    @implements(functions[1])
    def _(
        x: TracedArray, /, *, axis: int | None = None, dtype: Any = None,
        include_initial: bool = False,
    ) -> TracedArray:  # fmt: skip
        if axis is None and x.ndim != 1:
            raise bad(f"expected an axis for an array of rank {x.ndim}")
        place = 0 if axis is None else normalize_axis(axis, x.ndim)
        out = _running(x, reduction, place, dtype)
        if not include_initial:
            return out
        low = tuple(int(i == place) for i in range(out.ndim))
        return out.tracer.pad(out, low=low, high=(0,) * out.ndim, value=first)


_cumulative("add", 0.0, np.cumsum, np.cumulative_sum)
_cumulative("mul", 1.0, np.cumprod, np.cumulative_prod)


@implements(np.argsort)
def _argsort(
    a: TracedArray, axis: int | None = -1, kind: str | None = None, *, stable: bool | None = None
) -> TracedArray:
    """Build the order; equal elements keep theirs for each `kind`."""
    x, place = _along(a, axis)
    return a.tracer.argsort(x, axis=place)


@implements(np.sort)
def _sort(
    a: TracedArray, axis: int | None = -1, kind: str | None = None, *, stable: bool | None = None
) -> TracedArray:
    x, place = _along(a, axis)
    return take_along_axis(x, a.tracer.argsort(x, axis=place), place)


@implements(np.take_along_axis)
def take_along_axis(arr: TracedArray, indices: Any, axis: int | None = -1) -> TracedArray:
    """out[i, j, ...] = arr[indices[i, j, ...], j, ...] for axis 0, by linear indices into arr.

    Indices out of range are clamped along with the linear index: they raise nothing.
    """
    b = first_traced([arr, indices])
    x, place = _along(b.lift(arr, arr.dtype), axis)
    index = b.lift(indices, I64)
    if index.ndim != x.ndim:
        raise bad(f"np.take_along_axis: expected indices of rank {x.ndim}, got {index!r}")
    sizes = [b.lift(d, I64) for d in x.shape]
    zero = b.constant(np.array(0, I64))
    linear = b.select(b.compare(index, zero, predicate="lt"), b.add(index, sizes[place]), index)
    step = b.constant(np.array(1, I64))
    total = zero
    for i in reversed(range(x.ndim)):
        at = linear if i == place else b.iota_like(x, i)
        if i != place and x.type.shape[i] == 1:
            at = zero
        total = b.add(total, b.mul(at, step))
        step = b.mul(step, sizes[i])
    return b.gather(reshape(x, -1), total, axis=0)


@implements(np.diff)
def _diff(
    a: TracedArray, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None
) -> TracedArray:
    """Build differences of neighbours, `n` times; for booleans, whether they differ."""
    if not is_int(n) or n < 0:
        raise bad(f"np.diff: expected a number of times >= 0, got {n!r}")
    if prepend is not None or append is not None:
        raise untraceable("np.diff with `prepend` or `append`", "join them by np.concatenate")
    place = normalize_axis(axis, a.ndim)
    few("np.diff", n, "times", "make the sums of its terms a product with a captured matrix")
    before = (slice(None),) * place
    for _ in range(n):
        high, low = (getitem(a, (*before, s)) for s in (slice(1, None), slice(None, -1)))
        a = np.not_equal(high, low) if a.dtype == BOOL else np.subtract(high, low)
    return a
