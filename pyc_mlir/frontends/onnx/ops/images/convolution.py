"""Convolutions and pools over one to three spatial dimensions."""

import math
from typing import Any

import numpy as np

from pyc_mlir.dialects.functions import accumulated
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import expand_to
from pyc_mlir.frontends.importing.volumes import avg_pool3d, conv3d, max_pool3d
from pyc_mlir.frontends.onnx.ops.images.folding import max_places
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node
from pyc_mlir.frontends.onnx.shared.window import (
    CEILED,
    OnnxWindow,
    entries,
    from_2d,
    spatial_rank,
    spatial_sizes,
    to_2d,
    weights_window,
    window,
)


@node("Conv")
def conv(n: OnnxNode) -> Any:
    """pyc.conv2d in NCHW, plus the bias; of a volume unfolded along its depth."""
    b = n.b
    kernel = weights_window(n)
    w = window(n, kernel)
    if spatial_rank(n) == 3:
        groups = n.attr("group", 1)
        out = conv3d(b, n.x(0), n.x(1), w.strides, w.low, w.high, w.dilations, groups)
        return b.add(out, b.align(n.x(2), 1, 5)) if n.has(2) else out
    out = b.conv2d(
        to_2d(b, n.x(0)),
        to_2d(b, n.x(1)),
        strides=w.strides,
        pads=w.pads,
        dilations=w.dilations,
        groups=n.attr("group", 1),
    )
    return from_2d(b, _biased(n, out), spatial_rank(n))


def _biased(n: OnnxNode, out: Any) -> Any:
    return n.b.add(out, n.b.align(n.x(2), 1, 4)) if n.has(2) else out


@node("MaxPool")
def max_pool(n: OnnxNode) -> Any:
    """pyc.max_pool2d."""
    w = window(n, n.attr("kernel_shape"))
    n.attr("storage_order")
    if spatial_rank(n) == 3:
        if n.wants(1):
            raise unsupported("the output `Indices` of volumes: expected the pooled values alone")
        return max_pool3d(n.b, n.x(), w.kernel, w.strides, w.low, w.high, w.dilations)
    x, rank = to_2d(n.b, n.x()), spatial_rank(n)
    out = n.b.max_pool2d(x, kernel=w.kernel, strides=w.strides, pads=w.pads, dilations=w.dilations)
    if not n.wants(1):
        return from_2d(n.b, out, rank)
    spatial_sizes(n, "the output `Indices`")
    pooled = [d or 0 for d in n.b.type_of(out).shape[2:]]
    return from_2d(n.b, out, rank), from_2d(n.b, max_places(n, x, w, pooled), rank)


@node("AveragePool")
def average_pool(n: OnnxNode) -> Any:
    """pyc.avg_pool2d; with dilations a sum of windows over their number of elements."""
    return averaged(n, n.x())


def averaged(n: OnnxNode, x: Any) -> Any:
    """Build the mean of each window of x, which has the shape of input 0."""
    w = window(n, n.attr("kernel_shape"))
    if set(w.dilations) != {1}:
        return _dilated_average(n, x, w)
    x, w, inside = _counted_pads(n, to_2d(n.b, x), w)
    if spatial_rank(n) == 3:
        return avg_pool3d(n.b, x, w.kernel, w.strides, w.low, w.high, count_include_pad=inside)
    out = n.b.avg_pool2d(
        x, kernel=w.kernel, strides=w.strides, pads=w.pads, count_include_pad=inside
    )
    return from_2d(n.b, out, spatial_rank(n))


def _counted_pads(n: OnnxNode, x: Any, w: OnnxWindow) -> tuple[Any, OnnxWindow, bool]:
    """x, window, and whether all its pads count.

    `count_include_pad` counts the pads that the model states, not those that ceil_mode adds:
    then the former become part of x.
    """
    include = bool(n.attr("count_include_pad", 0))
    if not (include and n.attr("ceil_mode", 0)) or n.attr("auto_pad", "") not in CEILED:
        return x, w, include
    rank = spatial_rank(n)
    stated = entries(n, "pads", 0, n.attr("pads", [0] * (2 * rank))[rank:])
    padded = n.b.pad(x, low=(0, 0, *w.low), high=(0, 0, *stated))
    added = tuple(max(0, h - s) for h, s in zip(w.high, stated, strict=True))
    return padded, OnnxWindow(w.kernel, w.strides, w.dilations, (0,) * len(added), added), False


def _dilated_average(n: OnnxNode, x: Any, w: OnnxWindow) -> Any:
    """Build sums by convolving each channel with ones, divided by the elements in the window."""
    b = n.b
    if n.type().shape[1] is None:
        raise unsupported("a dynamic number of channels with dilations: expected a static one")
    x, w, include = _counted_pads(n, to_2d(b, x), w)

    def formula(x: Any) -> Any:
        total = _window_sum(n, x, w)
        if include:
            return b.div(total, b.scalar(math.prod(w.kernel), x))
        ones = expand_to(b, b.scalar(1, x), b.dims(x))
        return b.div(total, _window_sum(n, ones, w))

    return accumulated(b, x, formula)


def _window_sum(n: OnnxNode, x: Any, w: OnnxWindow) -> Any:
    """Build the sum of each window of each channel."""
    b, rank, channels = n.b, spatial_rank(n), n.type().shape[1] or 1
    kernel = (1, 1, *w.kernel)
    weight = b.constant(np.ones((channels, *kernel[1:]), b.type_of(x).dtype))
    if rank == 3:
        return conv3d(b, x, weight, w.strides, w.low, w.high, w.dilations, channels)
    out = b.conv2d(
        to_2d(b, x), weight, strides=w.strides, pads=w.pads, dilations=w.dilations, groups=channels
    )
    return from_2d(b, out, rank)


@node("LpPool", "GlobalLpPool")
def lp_pool(n: OnnxNode) -> Any:
    """out = (sum of |x|^p over each window, or over all spatial dimensions)^(1/p)."""
    b, p, axes = n.b, float(n.attr("p", 2)), tuple(range(2, n.type().rank))
    w = window(n, n.attr("kernel_shape")) if n.op == "LpPool" else None
    if w and n.type().shape[1] is None:
        raise unsupported("a dynamic number of channels: expected a static one")

    def formula(x: Any) -> Any:
        terms = b.pow(b.abs(x), b.scalar(p, x))
        total = _window_sum(n, terms, w) if w else b.reduce_sum(terms, axes=axes, keepdims=True)
        return b.pow(total, b.scalar(1 / p, x))

    return accumulated(b, n.x(), formula)


@node("GlobalAveragePool", "GlobalMaxPool")
def global_pool(n: OnnxNode) -> Any:
    """Build the mean or the maximum over all spatial dimensions, which stay with size 1."""
    axes = tuple(range(2, n.type().rank))
    reduce = n.b.reduce_mean if n.op == "GlobalAveragePool" else n.b.reduce_max
    return reduce(n.x(), axes=axes, keepdims=True)
