"""Pooling, adaptive pooling and resizing."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import merge, reshape_to, swap_last, take
from pyc_mlir.frontends.torch.shared.handler import AtenCall, aten


class _Pool:
    """The window of a pooling node over its `rank` last dimensions, padded for ceil_mode."""

    def __init__(self, n: AtenCall, rank: int) -> None:
        def entries(name: str, default: Any) -> tuple[int, ...]:
            given = n.ints(name) or default
            return given * rank if len(given) == 1 else given

        self.kernel = entries("kernel_size", ())
        self.strides = entries("stride", self.kernel)
        self.low = entries("padding", (0,))
        self.dilations = entries("dilation", (1,))
        self.high = self.low
        if n.arg("ceil_mode", False):
            self.high = self._ceiled(n, n.type().shape[-rank:])

    def _ceiled(self, n: AtenCall, sizes: Sequence[int | None]) -> tuple[int, ...]:
        """Return pads at the end that admit a last, partial window unless it starts in the pads."""
        high = []
        for i, size in enumerate(sizes):
            if size is None:
                raise unsupported("ceil_mode with dynamic dimensions: expected static ones")
            reach = self.dilations[i] * (self.kernel[i] - 1) + 1
            low, stride = self.low[i], self.strides[i]
            count = -(-(size + 2 * low - reach) // stride) + 1
            if (count - 1) * stride >= size + low:
                count -= 1
            high.append(max(low, (count - 1) * stride + reach - size - low))
        return tuple(high)


@aten("max_pool2d.default", "max_pool2d_with_indices.default", "max_pool1d.default",
      "max_pool1d_with_indices.default")  # fmt: skip
def max_pool(n: AtenCall) -> Any:
    """pyc.max_pool2d; positions of the maxima are linear indices into rows and columns."""
    rank = 1 if n.op.startswith("max_pool1d") else 2
    b, pool = n.b, _Pool(n, rank)
    x, back = _images(n, rank)
    kernel, strides, dilations = (
        (1,) * (2 - rank) + v for v in (pool.kernel, pool.strides, pool.dilations)
    )
    low, high = ((0,) * (2 - rank) + v for v in (pool.low, pool.high))
    out = b.max_pool2d(x, kernel=kernel, strides=strides, pads=(*low, *high), dilations=dilations)
    if "indices" not in n.op:
        return back(out)
    if not n.wants(1):
        return back(out), None
    window = kernel, strides, low, high, dilations
    return back(out), back(_positions(b, x, window))


def _images(n: AtenCall, rank: int) -> tuple[Any, Any]:
    """x as [n, c, h, w], and the way back for results."""
    b, x = n.b, n.x()
    missing = [0] if n.rank() == rank + 1 else []
    if rank == 1:
        missing.append(2)
    for axis in missing:
        x = b.expand_dims(x, axis)

    def back(out: Any) -> Any:
        for axis in missing[::-1]:
            out = b.squeeze(out, axis)
        return out

    return x, back


def _positions(b: Any, x: Any, window: tuple[Any, ...]) -> Any:
    """Return the linear index of each window's first maximum: the argmax over its strided taps."""
    kernel, strides, low, _, dilations = window
    height, width = b.type_of(x).shape[2:]
    if height is None or width is None:
        raise unsupported("positions of maxima over dynamic dimensions: expected static ones")
    taps = taps_of(b, x, window, -np.inf)
    stacked = taps[0]
    for tap in taps[1:]:
        stacked = b.concat(stacked, tap, axis=0)
    tap = b.argmax(stacked, axis=0)
    rows, columns = b.type_of(tap).shape[-2:]
    columns_of = b.constant(np.array(kernel[1], np.int64))
    row_tap = b.div(tap, columns_of)
    column_tap = b.sub(tap, b.mul(row_tap, columns_of))

    def place(count: int, axis: int, chosen: Any) -> Any:
        start = np.arange(count, dtype=np.int64) * strides[axis] - low[axis]
        shape = (count, 1) if axis == 0 else (1, count)
        step = b.constant(np.array(dilations[axis], np.int64))
        return b.add(b.constant(start.reshape(shape)), b.mul(chosen, step))

    row, column = place(rows, 0, row_tap), place(columns, 1, column_tap)
    return b.add(b.mul(row, b.constant(np.array(width, np.int64))), column)


def taps_of(b: Any, x: Any, window: tuple[Any, ...], value: float) -> list[Any]:
    """Return for each position of the kernel its reads of x, [1, n, c, oh, ow]."""
    kernel, strides, low, high, dilations = window
    x = b.pad(x, low=(0, 0, *low), high=(0, 0, *high), value=value)
    sizes = [
        (size - d * (k - 1) - 1) // s + 1
        for size, k, s, d in zip(b.type_of(x).shape[2:], kernel, strides, dilations, strict=True)
    ]
    taps = []
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            tap = x
            for axis, at in ((0, i), (1, j)):
                start = at * dilations[axis]
                stop = start + (sizes[axis] - 1) * strides[axis] + 1
                tap = take(b, tap, 2 + axis, start, stop, strides[axis])
            taps.append(b.expand_dims(tap, 0))
    return taps


@aten("max_pool2d_with_indices_backward.default")
def max_pool_backward(n: AtenCall) -> Any:
    """Send each gradient to the position of its maximum: a sum over the kernel's positions."""
    b, grad, indices = n.b, n.x("grad_output"), n.x("indices")
    pool = _Pool(n, 2)
    dims = n.type("self").shape
    height, width = dims[-2:]
    if height is None or width is None:
        raise unsupported("the gradient over dynamic dimensions: expected static ones")
    if len(dims) == 3:
        grad, indices = b.expand_dims(grad, 0), b.expand_dims(indices, 0)
    rows, columns = b.type_of(grad).shape[2:]
    total = None
    for i in range(pool.kernel[0]):
        for j in range(pool.kernel[1]):
            row = np.arange(rows) * pool.strides[0] - pool.low[0] + i * pool.dilations[0]
            column = np.arange(columns) * pool.strides[1] - pool.low[1] + j * pool.dilations[1]
            here = b.constant((row[:, None] * width + column).astype(np.int64))
            inside = (row[:, None] >= 0) & (row[:, None] < height)
            inside = inside & (column >= 0) & (column < width)
            chosen = b.and_(b.compare(indices, here, predicate="eq"), b.constant(inside))
            part = b.select(chosen, grad, b.scalar(0, grad))
            for axis, at in ((2, i), (3, j)):
                size = (height, width)[axis - 2]
                start = at * pool.dilations[axis - 2] - pool.low[axis - 2]
                part = _placed(b, part, axis, pool.strides[axis - 2], start, size)
            total = part if total is None else b.add(total, part)
    return b.squeeze(total, 0) if len(dims) == 3 else total


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
def avg_pool(n: AtenCall) -> Any:
    """pyc.avg_pool2d; pads count, except those of ceil_mode or with count_include_pad=False."""
    rank = 1 if n.op == "avg_pool1d" else 2
    b, pool = n.b, _Pool(n, rank)
    x, back = _images(n, rank)
    kernel, strides = ((1,) * (2 - rank) + v for v in (pool.kernel, pool.strides))
    low, high = ((0,) * (2 - rank) + v for v in (pool.low, pool.high))
    include = bool(n.arg("count_include_pad", True))
    divisor = n.static("divisor_override")
    if include and high != low:
        # Stated pads count, those of ceil_mode do not: the former become part of x.
        x = b.pad(x, low=(0, 0, *low), high=(0, 0, *low))
        high = tuple(h - v for h, v in zip(high, low, strict=True))
        low, include = (0, 0), divisor is not None
    include = include or divisor is not None
    out = b.avg_pool2d(
        x, kernel=kernel, strides=strides, pads=(*low, *high), count_include_pad=include
    )
    if divisor is not None:
        out = b.mul(out, b.scalar(math.prod(kernel) / divisor, out))
    return back(out)


@aten("adaptive_avg_pool2d.default", "_adaptive_avg_pool2d.default",
      "adaptive_avg_pool1d.default")  # fmt: skip
def adaptive_avg_pool(n: AtenCall) -> Any:
    """Build the mean of each of `output_size` parts of an axis, which may share an element."""
    x, rank = n.x(), n.rank()
    wanted = n.arg("output_size")
    wanted = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
    axes = range(rank - len(wanted), rank)
    # One mean over all axes of one part each rounds less than a mean of means.
    whole = tuple(a for a, parts in zip(axes, wanted, strict=True) if parts == 1)
    for axis, parts in zip(axes, wanted, strict=True):
        if axis not in whole:
            x = _adapted(n.b, x, axis, parts)
    return n.b.reduce_mean(x, axes=whole, keepdims=True) if whole else x


def _adapted(b: Any, x: Any, axis: int, parts: int | None) -> Any:
    """Average along one axis: a mean, a mean of equal parts, or a product with a weight matrix."""
    size = b.type_of(x).shape[axis]
    if parts is None or parts == size:
        return x
    if size is None:
        raise unsupported("adaptive pooling of a dynamic dimension: expected a static one")
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
def upsample(n: AtenCall) -> Any:
    """pyc.resize; coordinates as torch takes them: i / s, or half pixels, or aligned corners."""
    b, linear = n.b, "linear" in n.op
    name = "input" if "input" in n.arguments else "self"
    x, rank = n.x(name), n.rank(name) - 2
    coordinates = "half_pixel" if linear else "asymmetric"
    if linear and n.arg("align_corners", False):
        coordinates = "align_corners"
    sizes, scales = n.b.dims(x)[2:], n.static("scale_factors")
    if n.overload == "default":
        given = [n.static(k) for k in ("scales_h", "scales_w")]
        scales = None if None in given else given
    wanted = list(n.out_dims[2:])
    entries, factors = [], []
    for i, size in enumerate(sizes):
        target = wanted[i]
        if isinstance(size, int) and isinstance(target, int):
            entries.append(target)
            scale = scales[i] if scales else target / max(size, 1)
            factors.append(target / max(size, 1) if coordinates == "align_corners" else scale)
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
