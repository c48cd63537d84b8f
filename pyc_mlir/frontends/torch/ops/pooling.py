"""Pooling, adaptive pooling and resizing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any

import numpy as np

from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import merge, reshape_to, swap_last, take
from pyc_mlir.frontends.torch.ops.handler import AtenCall, aten, static_size, static_sizes


@dataclass(frozen=True)
class _Pool:
    """The window of a pooling over rows and columns, padded for ceil_mode."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]
    dilations: tuple[int, ...]

    @staticmethod
    def of(n: AtenCall, x: Any, rank: int = 2) -> "_Pool":
        """Return the window over the `rank` last dimensions of images x: one has rows of size 1."""

        def entries(name: str, default: Sequence[int], beside: int = 1) -> tuple[int, ...]:
            given = tuple(n.static(name) or default)
            return (beside,) * (2 - rank) + given * (rank if len(given) == 1 else 1)

        kernel = entries("kernel_size", ())
        low = entries("padding", (0,), 0)
        strides = entries("stride", kernel[2 - rank :])
        dilations = entries("dilation", (1,))
        made = _Pool(kernel, strides, low, low, dilations)
        return replace(made, high=made._ceiled(n.b, x)) if n.arg("ceil_mode") else made

    def _ceiled(self, b: Any, x: Any) -> tuple[int, ...]:
        """Return pads at the end that admit a last, partial window unless it starts in the pads."""
        high = []
        sizes = static_sizes(b, x, slice(-2, None), "ceil_mode with dynamic dimensions")
        reaches = (d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True))
        for size, reach, low, stride in zip(sizes, reaches, self.low, self.strides, strict=True):
            count = -(-(size + 2 * low - reach) // stride) + 1
            if (count - 1) * stride >= size + low:
                count -= 1
            high.append(max(low, (count - 1) * stride + reach - size - low))
        return tuple(high)

    def places(self, axis: int, count: int) -> np.ndarray:
        """Return where the first `count` windows begin in the image."""
        return np.arange(count, dtype=np.int64) * self.strides[axis] - self.low[axis]


@aten("max_pool2d.default", "max_pool2d_with_indices.default", "max_pool1d.default",
      "max_pool1d_with_indices.default")  # fmt: skip
def max_pool(n: AtenCall, x: Any) -> Any:
    """pyc.max_pool2d; positions of the maxima are linear indices into rows and columns."""
    rank = 1 if n.op.startswith("max_pool1d") else 2
    b, (x, back) = n.b, _images(n, x, rank)
    pool = _Pool.of(n, x, rank)
    out = b.max_pool2d(
        x, kernel=pool.kernel, strides=pool.strides, pads=(*pool.low, *pool.high),
        dilations=pool.dilations,
    )  # fmt: skip
    if "indices" not in n.op:
        return back(out)
    return back(out), back(_positions(b, x, pool)) if n.wants(1) else None


def _images(n: AtenCall, x: Any, rank: int) -> tuple[Any, Callable[[Any], Any]]:
    """x as [n, c, h, w], and the way back for results."""
    b = n.b
    missing = ([0] if n.rank() == rank + 1 else []) + ([2] if rank == 1 else [])
    for axis in missing:
        x = b.expand_dims(x, axis)

    def back(out: Any) -> Any:
        for axis in missing[::-1]:
            out = b.squeeze(out, axis)
        return out

    return x, back


def _positions(b: Any, x: Any, pool: _Pool) -> Any:
    """Return the linear index of each window's first maximum: the argmax over its strided taps."""
    what = "positions of maxima over dynamic dimensions"
    _, width = static_sizes(b, x, slice(2, None), what)
    tap = b.argmax(reduce(partial(b.concat, axis=0), _taps(b, x, pool)), axis=0)
    rows, columns = b.type_of(tap).shape[-2:]
    columns_of = b.constant(np.array(pool.kernel[1], np.int64))
    row_tap = b.div(tap, columns_of)
    column_tap = b.sub(tap, b.mul(row_tap, columns_of))

    def place(count: int, axis: int, chosen: Any) -> Any:
        start = pool.places(axis, count).reshape((count, 1) if axis == 0 else (1, count))
        step = b.constant(np.array(pool.dilations[axis], np.int64))
        return b.add(b.constant(start), b.mul(chosen, step))

    row, column = place(rows, 0, row_tap), place(columns, 1, column_tap)
    return b.add(b.mul(row, b.constant(np.array(width, np.int64))), column)


def _taps(b: Any, x: Any, pool: _Pool) -> list[Any]:
    """Return for each position of the kernel its reads of x, [1, n, c, oh, ow]."""
    x = b.pad(x, low=(0, 0, *pool.low), high=(0, 0, *pool.high), value=-np.inf)
    window = pool.kernel, pool.strides, pool.dilations
    sizes = [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(b.type_of(x).shape[2:], *window, strict=True)
    ]
    taps = []
    for position in np.ndindex(pool.kernel):
        tap = x
        for axis, at in enumerate(position):
            start, stride = at * pool.dilations[axis], pool.strides[axis]
            stop = start + (sizes[axis] - 1) * stride + 1
            tap = take(b, tap, 2 + axis, start, stop, stride)
        taps.append(b.expand_dims(tap, 0))
    return taps


@aten("max_pool2d_with_indices_backward.default")
def max_pool_backward(n: AtenCall, grad: Any) -> Any:
    """Send each gradient to the position of its maximum: a sum over the kernel's positions."""
    b, indices, x = n.b, n.x("indices"), n.x("self")
    pool, what = _Pool.of(n, x), "the gradient over dynamic dimensions"
    size = static_sizes(b, x, slice(-2, None), what)
    unbatched = b.type_of(x).rank == 3
    if unbatched:
        grad, indices = b.expand_dims(grad, 0), b.expand_dims(indices, 0)
    counts, total = b.type_of(grad).shape[2:], None
    for position in np.ndindex(pool.kernel):
        row, column = (
            pool.places(i, counts[i]) + position[i] * pool.dilations[i] for i in range(2)
        )
        here = b.constant(row[:, None] * size[1] + column)
        inside = ((row >= 0) & (row < size[0]))[:, None] & (column >= 0) & (column < size[1])
        chosen = b.and_(b.compare(indices, here, predicate="eq"), b.constant(inside))
        part = b.select(chosen, grad, b.scalar(0, grad))
        for i, at in enumerate(position):
            start = at * pool.dilations[i] - pool.low[i]
            part = _placed(b, part, 2 + i, pool.strides[i], start, size[i])
        total = part if total is None else b.add(total, part)
    return b.squeeze(total, 0) if unbatched else total


def _placed(b: Any, x: Any, axis: int, stride: int, start: int, size: int) -> Any:
    """x's entries at start, start + stride, ... of an axis of `size` zeros; the rest falls away."""
    rank = b.type_of(x).rank
    if stride > 1:
        apart = b.expand_dims(x, axis + 1)
        high = tuple(stride - 1 if a == axis + 1 else 0 for a in range(rank + 1))
        x = merge(b, b.pad(apart, low=(0,) * (rank + 1), high=high), axis)
    length = b.type_of(x).shape[axis]
    low, after = max(0, start), max(0, size - start - length)
    pads = [tuple(v if a == axis else 0 for a in range(rank)) for v in (low, after)]
    x = b.pad(x, low=pads[0], high=pads[1])
    skipped = max(0, -start)
    return take(b, x, axis, skipped, skipped + size)


@aten("avg_pool2d.default", "avg_pool1d.default")
def avg_pool(
    n: AtenCall, x: Any, *, count_include_pad: bool = True, divisor_override: int | None = None
) -> Any:
    """pyc.avg_pool2d; pads count, except those of ceil_mode or with count_include_pad=False."""
    rank, fixed = 1 if n.op == "avg_pool1d" else 2, divisor_override is not None
    b, (x, back) = n.b, _images(n, x, rank)
    pool = _Pool.of(n, x, rank)
    low, high = pool.low, pool.high
    if count_include_pad and high != low:
        # Stated pads count, those of ceil_mode do not: the former become part of x.
        x = b.pad(x, low=(0, 0, *low), high=(0, 0, *low))
        high = tuple(h - v for h, v in zip(high, low, strict=True))
        low, count_include_pad = (0, 0), False
    out = b.avg_pool2d(
        x, kernel=pool.kernel, strides=pool.strides, pads=(*low, *high),
        count_include_pad=count_include_pad or fixed,
    )  # fmt: skip
    if divisor_override is not None:
        out = b.mul(out, b.scalar(math.prod(pool.kernel) / divisor_override, out))
    return back(out)


@aten("adaptive_avg_pool2d.default", "_adaptive_avg_pool2d.default",
      "adaptive_avg_pool1d.default")  # fmt: skip
def adaptive_avg_pool(n: AtenCall, x: Any) -> Any:
    """Build the mean of each of `output_size` parts of an axis, which may share an element."""
    wanted, rank = n.arg("output_size"), n.rank()
    wanted = wanted if isinstance(wanted, (list, tuple)) else [wanted]
    axes = range(rank - len(wanted), rank)
    # One mean over all axes of one part each rounds less than a mean of means.
    whole = tuple(a for a, parts in zip(axes, wanted, strict=True) if parts == 1)
    for axis, parts in zip(axes, wanted, strict=True):
        if axis not in whole:
            x = _adapted(n.b, x, axis, parts)
    return n.b.reduce_mean(x, axes=whole, keepdims=True) if whole else x


def _adapted(b: Any, x: Any, axis: int, parts: int | None) -> Any:
    """Average along one axis: a mean, a mean of equal parts, or a product with a weight matrix."""
    if parts is None or parts == b.type_of(x).shape[axis]:
        return x
    size = static_size(b, x, axis, "adaptive pooling of a dynamic dimension")
    dims = b.dims(x)
    if size % parts == 0:
        apart = reshape_to(b, x, (*dims[:axis], parts, size // parts, *dims[axis + 1 :]))
        return b.reduce_mean(apart, axes=(axis + 1,))
    weights = np.zeros((size, parts))
    for i in range(parts):
        low, high = i * size // parts, -(-(i + 1) * size // parts)
        weights[low:high, i] = 1 / (high - low)
    matrix = b.constant(weights.astype(b.type_of(x).dtype))
    last = axis == b.type_of(x).rank - 1
    out = b.matmul(x if last else swap_last(b, x), matrix)
    return out if last else swap_last(b, out)


@aten("upsample_nearest2d.vec", "upsample_nearest2d.default", "upsample_bilinear2d.vec",
      "upsample_bilinear2d.default", "upsample_nearest1d.vec",
      "upsample_linear1d.vec")  # fmt: skip
def upsample(n: AtenCall, x: Any, *, align_corners: bool = False) -> Any:
    """pyc.resize; coordinates as torch takes them: i / s, or half pixels, or aligned corners."""
    b, linear, rank = n.b, "linear" in n.op, n.rank() - 2
    coordinates = "half_pixel" if linear else "asymmetric"
    if linear and align_corners:
        coordinates = "align_corners"
    scales = n.static("scale_factors")
    if n.overload == "default":
        given = [n.static(k) for k in ("scales_h", "scales_w")]
        scales = None if None in given else given
    entries, factors = [], []
    for i, (size, target) in enumerate(zip(n.dims()[2:], n.out_dims[2:], strict=True)):
        if isinstance(size, int) and isinstance(target, int):
            own = target / max(size, 1)
            entries.append(target)
            factors.append(scales[i] if scales and coordinates != "align_corners" else own)
        elif scales:
            entries.append(-1)
            factors.append(scales[i])
        else:
            raise unsupported("a dynamic size: expected scale factors")
    if rank == 1:
        x, entries, factors = b.expand_dims(x, 2), [1, *entries], [1.0, *factors]
    out = b.resize(
        x, sizes=tuple(entries), scales=tuple(float(f) for f in factors),
        mode="linear" if linear else "nearest", coordinates=coordinates, rounding="floor",
    )  # fmt: skip
    return b.squeeze(out, 2) if rank == 1 else out
