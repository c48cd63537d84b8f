"""Windows as columns: Col2Im, the places of maxima, MaxUnpool, DeformConv."""

import math
from collections.abc import Sequence
from itertools import product as all_of
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import expand_to, product, reshape_to
from pyc_mlir.frontends.onnx.ops.images.sampling import read_at, taps_of
from pyc_mlir.frontends.onnx.shared.handler import MAX_WRITTEN, OnnxNode, node
from pyc_mlir.frontends.onnx.shared.window import OnnxWindow


def places(sizes: Sequence[int], counts: Sequence[int], w: OnnxWindow, outside: int) -> np.ndarray:
    """i64 [product of counts, elements of a window]: linear places in an image of `sizes`.

    `outside` stands for those in the padding.
    """
    if math.prod(counts) * math.prod(w.kernel) > MAX_WRITTEN:
        raise unsupported(f"windows: expected at most {MAX_WRITTEN} elements of all")
    linear: Any = np.zeros((1, 1), np.int64)
    inside: Any = np.ones((1, 1), bool)
    for size, count, kernel, stride, dilation, low in zip(
        sizes, counts, w.kernel, w.strides, w.dilations, w.low, strict=True
    ):
        at = np.arange(count)[:, None] * stride + np.arange(kernel)[None, :] * dilation - low
        fits = (at >= 0) & (at < size)
        grown = linear[:, None, :, None] * size + at[None, :, None, :]
        both = inside[:, None, :, None] & fits[None, :, None, :]
        shape = (linear.shape[0] * count, linear.shape[1] * kernel)
        linear, inside = grown.reshape(shape), both.reshape(shape)
    return np.where(inside, linear, outside)


@node("Col2Im")
def columns_to_image(n: OnnxNode) -> Any:
    """[n, c * window, windows] added up to an image [n, c, sizes...]."""
    b = n.b
    sizes, kernel = n.ints(1, "image_shape"), n.ints(2, "block_shape")
    rank = len(sizes)
    strides, dilations = (tuple(n.attr(a, [1] * rank)) for a in ("strides", "dilations"))
    pads = tuple(n.attr("pads", [0] * (2 * rank)))
    if min(*sizes, *kernel, *strides, *dilations) < 1 or min(pads) < 0:
        raise PycError(ReasonCode.BAD_MODEL, "expected sizes, strides and dilations above 0")
    w = OnnxWindow(kernel, strides, dilations, pads[:rank], pads[rank:])
    counts = [
        (s + lo + hi - r) // stride + 1
        for s, lo, hi, r, stride in zip(sizes, w.low, w.high, w.reach, strides, strict=True)
    ]
    total, window = math.prod(sizes), math.prod(kernel)
    if total > MAX_WRITTEN or min(counts) < 1:
        raise unsupported(f"an image of {sizes}: expected one that the windows fit into")
    index = places(sizes, counts, w, total).T.reshape(-1)
    batch, rows, _ = b.dims(n.x())
    channels = rows // window
    images = product((batch, channels))
    x = reshape_to(b, n.x(), (images, window * math.prod(counts)))
    start = expand_to(b, n.number(0), (total, images))
    out = b.scatter(start, b.constant(index), b.transpose(x, permutation=(1, 0)), reduction="add")
    return reshape_to(b, b.transpose(out, permutation=(1, 0)), (batch, channels, *sizes))


def max_places(n: OnnxNode, x: Any, w: OnnxWindow, pooled: Sequence[int]) -> Any:
    """i64: where in x, counted through, the maximum of each window lies. x: [n, c, h, w]."""
    b = n.b
    sizes = [d or 0 for d in b.type_of(x).shape[2:]]
    total = math.prod(sizes)
    table = places(sizes, pooled, w, -1)
    safe, inside = np.maximum(table, 0), table >= 0
    batch, channels = b.dims(x)[:2]
    flat = reshape_to(b, x, (batch, channels, total))
    windows = b.gather(flat, b.constant(safe), axis=2)
    lowest = -np.inf if np.issubdtype(b.type_of(x).dtype, np.floating) else None
    least = np.iinfo(b.type_of(x).dtype).min if lowest is None else lowest
    windows = b.select(b.constant(inside), windows, b.scalar(least, x))
    best = b.argmax(windows, axis=3)
    if n.attr("storage_order", 0):
        table = table % sizes[1] * sizes[0] + table // sizes[1]
    starts = (np.arange(len(table)) * table.shape[1]).astype(np.int64)
    found = b.gather(b.constant(table.reshape(-1)), b.add(best, b.constant(starts)), axis=0)
    first = b.mul(b.iota_like(flat, 0), b.size(flat, 1))
    first = b.mul(b.add(first, b.iota_like(flat, 1)), b.constant(np.array(total, np.int64)))
    return reshape_to(b, b.add(found, first), (batch, channels, *pooled))


@node("MaxUnpool")
def max_unpool(n: OnnxNode) -> Any:
    """Put maxima back at their places, 0 elsewhere; a larger `output_shape` pads with 0."""
    b, shape = n.b, n.type().shape
    rank = len(shape) - 2
    if None in shape:
        raise unsupported("a dynamic shape: expected a static one")
    kernel, pads = n.attr("kernel_shape"), n.attr("pads", [0] * (2 * rank))
    strides = n.attr("strides", [1] * rank)
    sizes = [
        ((shape[2 + i] or 0) - 1) * strides[i] + kernel[i] - pads[i] - pads[rank + i]
        for i in range(rank)
    ]
    total = (shape[0] or 0) * (shape[1] or 0) * math.prod(sizes)
    if not 0 < total <= MAX_WRITTEN:
        raise unsupported(f"a result of {total} elements: expected 1 to {MAX_WRITTEN}")
    start = b.constant(np.zeros(total, n.type().dtype))
    flat = [b.reshape(n.x(i), shape=(-1,)) for i in (0, 1)]
    out = b.reshape(b.scatter(start, flat[1], flat[0]), shape=(shape[0], shape[1], *sizes))
    if not n.has(2):
        return out
    high = tuple(
        w - d for w, d in zip(n.ints(2, "output_shape"), b.type_of(out).shape, strict=True)
    )
    return b.pad(out, low=(0,) * len(high), high=high, value=0.0)


@node("DeformConv")
def deformable(n: OnnxNode) -> Any:
    """Build a convolution whose taps are moved by offsets, read bilinearly. Zhu et al., 2019."""
    b, kernel = n.b, [d or 0 for d in n.type(1).shape[2:]]
    if n.type().rank != 4 or None in (*n.type(0).shape, *n.type(1).shape, *n.type(2).shape):
        raise unsupported("expected images and weights of static sizes")
    n.attr("kernel_shape")
    batch, channels, height, width = (d or 0 for d in n.type(0).shape)
    filters, inner = (d or 0 for d in n.type(1).shape[:2])
    rows, columns = (d or 0 for d in n.type(2).shape[2:])
    groups, sets, taps = n.attr("group", 1), n.attr("offset_group", 1), math.prod(kernel)
    strides, dilations = n.attr("strides", [1, 1]), n.attr("dilations", [1, 1])
    pads, spots = n.attr("pads", [0] * 4), rows * columns
    offsets = b.reshape(n.x(2), shape=(batch * sets, taps, 2, spots))
    axes = []
    for axis, size in enumerate((height, width)):
        grid = np.arange((rows, columns)[axis]) * strides[axis] - pads[axis]
        grid = np.broadcast_to(grid[:, None] if axis == 0 else grid[None, :], (rows, columns))
        reach = np.array([k[axis] for k in all_of(*(range(k) for k in kernel))]) * dilations[axis]
        fixed = (reach[:, None] + grid.reshape(-1)[None, :]).astype(n.type().dtype)
        moved = b.slice(
            offsets, starts=(0, 0, axis, 0), stops=(batch * sets, taps, axis + 1, spots),
            steps=(1, 1, 1, 1),
        )  # fmt: skip
        u = b.add(b.reshape(moved, shape=(batch * sets, taps, spots)), b.constant(fixed))
        axes.append(taps_of(b, b.reshape(u, shape=(batch * sets, taps * spots)), size))
    own = channels // sets
    image = b.reshape(n.x(0), shape=(batch * sets, own, height * width))
    read = read_at(b, b.transpose(image, permutation=(0, 2, 1)), axes, (height, width))
    read = b.reshape(read, shape=(batch, sets, taps, spots, own))
    if n.has(4):
        read = b.mul(read, b.reshape(n.x(4), shape=(batch, sets, taps, spots, 1)))
    unfolded = b.transpose(read, permutation=(0, 1, 4, 2, 3))
    unfolded = b.reshape(unfolded, shape=(batch, groups, inner * taps, spots))
    weight = b.reshape(n.x(1), shape=(groups, filters // groups, inner * taps))
    out = b.reshape(b.matmul(weight, unfolded), shape=(batch, filters, rows, columns))
    return b.add(out, b.align(n.x(3), 1, 4)) if n.has(3) else out
