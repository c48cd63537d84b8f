"""XLA's reductions: over whole dimensions, over windows, and running ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.functions import logaddexp
from pyc_mlir.dialects.types import BOOL, DTYPES, accumulator, dtype_name, is_float
from pyc_mlir.frontends.hlo.elementwise import POINTWISE
from pyc_mlir.frontends.hlo.movement import pad_edges, slice_, transposed
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import prefixes, reshape_to
from pyc_mlir.frontends.importing.sizes import SymbolicSize

# Positions of a window that are written out one by one.
_MAX_POSITIONS = 128
_I8 = DTYPES["i8"]
_REDUCTIONS = {"add": "reduce_sum", "mul": "reduce_prod", "max": "reduce_max", "min": "reduce_min"}
# On booleans a sum is an or, as XLA computes it.
_OF_BOOLEANS = {"and": "min", "or": "max", "add": "max", "mul": "min", "max": "max", "min": "min"}


def reduce(b: Any, x: Any, op: str, axes: Sequence[int]) -> Any:
    """x reduced over `axes` by "add", "mul", "max", "min", "and" or "or"."""
    if not axes:
        return x
    dtype = b.type_of(x).dtype
    axes = tuple(sorted(axes))
    if dtype == BOOL:
        name = _REDUCTIONS[_OF_BOOLEANS[op]]
        wide = getattr(b, name)(b.cast(x, dtype=_I8), axes=axes)
        return b.compare(wide, np.array(0, np.int8), predicate="gt")
    if op not in _REDUCTIONS:
        raise unsupported(f"the reduction {op} of {dtype_name(dtype)}")
    return getattr(b, _REDUCTIONS[op])(x, axes=axes)


def neutral(op: str, dtype: np.dtype) -> Any:
    """Return the result of an empty reduction."""
    if dtype == BOOL:
        return _OF_BOOLEANS[op] == "min"
    if op in ("add", "mul"):
        return 0 if op == "add" else 1
    if op not in ("max", "min"):
        raise unsupported(f"the reduction {op} of {dtype_name(dtype)}")
    if is_float(dtype):
        return -np.inf if op == "max" else np.inf
    limits = np.iinfo(dtype)
    return limits.min if op == "max" else limits.max


def arg_extreme(b: Any, x: Any, axis: int, largest: bool, dtype: np.dtype) -> Any:
    """Return the index of the first maximum or minimum along `axis`; a NaN counts as either."""
    type_ = b.type_of(x)
    if type_.dtype == BOOL:
        x = b.cast(x, dtype=_I8)
    if not largest:
        x = b.neg(x) if is_float(type_.dtype) else b.not_(x)
    return b.convert(b.argmax(x, axis=axis), dtype)


def cumulative(b: Any, x: Any, op: str, axis: int, reverse: bool) -> Any:
    """Build the running reduction along `axis`."""
    return prefixes(b, x, partial(POINTWISE[op], b), axis, reverse)


def cumulative_logsumexp(b: Any, x: Any, axis: int, reverse: bool) -> Any:
    """out = log of the running sum of e^x, each step of which takes its larger term out."""
    wide = b.convert(x, accumulator(b.type_of(x).dtype))
    out = prefixes(b, wide, partial(logaddexp, b), axis, reverse)
    return b.convert(out, b.type_of(x).dtype)


@dataclass(frozen=True)
class HloWindow:
    """The parameters of a window: an entry for each dimension; pads are (low, high)."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    base_dilations: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()

    @property
    def axes(self) -> tuple[int, ...]:
        """The dimensions along which it is not trivial."""
        entries = zip(
            self.sizes, self.strides, self.pads, self._by(self.base_dilations), strict=True
        )
        return tuple(i for i, e in enumerate(entries) if e != (1, 1, (0, 0), 1))

    @property
    def steps(self) -> tuple[int, ...]:
        """The distance between elements of a window."""
        return self._by(self.dilations)

    @property
    def spreads(self) -> tuple[int, ...]:
        """The distance between elements of the operand."""
        return self._by(self.base_dilations)

    def _by(self, dilations: tuple[int, ...]) -> tuple[int, ...]:
        return dilations or (1,) * len(self.sizes)


def reduce_window(b: Any, x: Any, op: str, window: HloWindow) -> Any:
    """Reduce each window of x by `op`; padding never counts.

    Windows over one or two dimensions of floats are pooling, a window that ends at each position of
    a whole dimension is a running reduction, others are written out position by position.
    """
    running = _running_axis(b, x, window)
    if running is not None:
        return cumulative(b, x, op, *running)
    simple = set(window.spreads) == {1} and len(window.axes) <= 2
    simple = simple and min(min(p) for p in window.pads) >= 0
    if simple and is_float(b.type_of(x).dtype):
        if op in ("max", "min"):
            return _pooled(b, x, window, _extreme_pool(op))
        if op == "add":
            return _pooled(b, x, window, _sum_pool)
    combine = POINTWISE[op]
    start = neutral(op, b.type_of(x).dtype)
    out = None
    for part in _positions(b, padded(b, x, window, start), window):
        out = part if out is None else combine(b, out, part)
    return out


def _running_axis(b: Any, x: Any, window: HloWindow) -> tuple[int, bool] | None:
    """Return a running reduction's axis, and if it begins at the end; None for other windows."""
    if len(window.axes) != 1 or set(window.strides) != {1} or {*window.spreads} != {1}:
        return None
    axis = window.axes[0]
    size = b.dims(x)[axis]
    if window.sizes[axis] != size or window.steps[axis] != 1:
        return None
    if window.pads[axis] == (size - 1, 0):
        return axis, False
    return (axis, True) if window.pads[axis] == (0, size - 1) else None


Pool = Callable[[Any, Any, tuple[int, int], dict[str, Any]], Any]


def _extreme_pool(op: str) -> Pool:
    def pool(b: Any, x: Any, kernel: tuple[int, int], parameters: dict[str, Any]) -> Any:
        if op == "max":
            return b.max_pool2d(x, kernel=kernel, **parameters)
        return b.neg(b.max_pool2d(b.neg(x), kernel=kernel, **parameters))

    return pool


def _sum_pool(b: Any, x: Any, kernel: tuple[int, int], parameters: dict[str, Any]) -> Any:
    """Build each window's sum: a convolution of each channel with ones, exact of whole numbers."""
    type_ = b.type_of(x)
    channels = type_.shape[1 if parameters["layout"] == "NCHW" else 3]
    shape = (channels, 1, *kernel) if parameters["layout"] == "NCHW" else (*kernel, 1, channels)
    ones = b.constant(np.ones(shape, type_.dtype))
    return b.conv2d(x, ones, groups=channels, **parameters)


def _pooled(b: Any, x: Any, window: HloWindow, pool: Pool) -> Any:
    """Pool in NHWC or NCHW if x is so, of static channels, else after a transpose."""
    dims = b.dims(x)
    rank, axes = len(dims), window.axes
    if not axes:
        return x
    pair = axes if len(axes) == 2 else (axes[0], None)
    for layout, spatial in (("NHWC", (1, 2)), ("NCHW", (2, 3))):
        static = rank == 4 and isinstance(dims[6 - sum(spatial)], int)
        if static and set(axes) <= set(spatial):
            return pool(b, x, *_pool_parameters(window, spatial, layout))
    rest = [d for d in range(rank) if d not in axes]
    order = (*rest, *axes)
    moved = transposed(b, x, order)
    sizes = [dims[d] for d in axes] + [1] * (2 - len(axes))
    flat = reshape_to(b, moved, (-1 if rest else 1, 1, *sizes))
    out = pool(b, flat, *_pool_parameters(window, pair, "NCHW"))
    made = b.dims(out)[2 : 2 + len(axes)]
    out = reshape_to(b, out, (*(dims[d] for d in rest), *made))
    return transposed(b, out, tuple(np.argsort(order).tolist()))


def _pool_parameters(
    window: HloWindow, axes: Sequence[int | None], layout: str
) -> tuple[tuple[int, int], dict[str, Any]]:
    """Return a two-dimensional pool's kernel and other parameters; None is an axis of size 1."""
    first, second = axes

    def of(values: Sequence[Any], default: Any) -> tuple[Any, Any]:
        return tuple(default if a is None else values[a] for a in (first, second))  # type: ignore[return-value]

    (top, bottom), (left, right) = of(window.pads, (0, 0))
    return of(window.sizes, 1), {
        "strides": of(window.strides, 1),
        "pads": (top, left, bottom, right),
        "dilations": of(window.steps, 1),
        "layout": layout,
    }


def padded(b: Any, x: Any, window: HloWindow, value: Any) -> Any:
    """x with `value` where windows reach beyond it."""
    for axis in window.axes:
        low, high = window.pads[axis]
        x = pad_edges(b, x, axis, low, high, value, window.spreads[axis] - 1)
    return x


def _positions(b: Any, x: Any, window: HloWindow) -> list[Any]:
    """Return for each position in a window the elements of x at that position of every window."""
    count = int(np.prod(window.sizes))
    if count > _MAX_POSITIONS:
        raise unsupported(f"a window of {count} elements: expected at most {_MAX_POSITIONS}")
    return [slice_(b, x, *bounds) for bounds in position_bounds(b.dims(x), window)]


def position_bounds(
    dims: Sequence[Any], window: HloWindow
) -> list[tuple[list[int], list[int], list[int]]]:
    """Start, stop and step of each position of a window that slides over sizes `dims`."""
    if any(isinstance(d, SymbolicSize) for d in dims):
        raise unsupported("a window that is written out, over a dynamic shape")
    bounds = []
    for place in np.ndindex(*window.sizes):
        starts = [p * s for p, s in zip(place, window.steps, strict=True)]
        reach = [(n - 1) * s for n, s in zip(window.sizes, window.steps, strict=True)]
        stops = [start + d - r for start, d, r in zip(starts, dims, reach, strict=True)]
        bounds.append((starts, stops, list(window.strides)))
    return bounds


def select_and_scatter_add(
    b: Any, gradient: Any, x: Any, window: HloWindow, largest: bool = True
) -> Any:
    """Build the gradient of max (min) pooling: it goes to the first extremum of each window."""
    start = neutral("max" if largest else "min", b.type_of(x).dtype)
    whole = padded(b, x, window, start)
    dims = b.dims(whole)
    parts = _positions(b, whole, window)
    best, which = parts[0], None
    index = np.zeros((), np.int32)
    for number, part in enumerate(parts[1:], 1):
        better = b.compare(part, best, predicate="gt" if largest else "lt")
        best = b.select(better, part, best)
        before = b.constant(index) if which is None else which
        which = b.select(better, np.array(number, np.int32), before)
    total = None
    zero = b.scalar(0, gradient)
    for number, (starts, _, steps) in enumerate(position_bounds(dims, window)):
        share = gradient
        if which is not None:
            here = b.compare(which, np.array(number, np.int32), predicate="eq")
            share = b.select(here, gradient, zero)
        for axis in range(len(dims)):
            count = b.dims(gradient)[axis]
            used = (count - 1) * steps[axis] + 1
            high = dims[axis] - starts[axis] - used
            share = pad_edges(b, share, axis, starts[axis], high, 0.0, steps[axis] - 1)
        total = share if total is None else b.add(total, share)
    for axis in window.axes:
        low, high = window.pads[axis]
        total = pad_edges(b, total, axis, -low, -high, 0.0)
    return total
