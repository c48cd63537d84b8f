"""Convolutions and pools over one or two spatial dimensions."""

import math
from typing import Any

from pyc_mlir.frontends.frame.errors import unsupported
from pyc_mlir.frontends.onnx.frame.handler import Node, node
from pyc_mlir.frontends.onnx.frame.window import (
    Window,
    from_2d,
    pair,
    spatial_rank,
    to_2d,
    window,
)


@node("Conv")
def conv(n: Node) -> Any:
    """pyc.conv2d in NCHW, plus the bias."""
    b = n.b
    kernel = _kernel(n)
    w = window(n, kernel)
    out = b.conv2d(
        to_2d(b, n.x(0)),
        to_2d(b, n.x(1)),
        strides=w.strides,
        pads=w.pads,
        dilations=w.dilations,
        groups=n.attr("group", 1),
    )
    return from_2d(b, _biased(n, out), spatial_rank(n))


def _kernel(n: Node) -> tuple[int, ...]:
    """The spatial sizes of the weights."""
    shape = n.type(1).shape[2:]
    if None in shape:
        raise unsupported("weights of dynamic size: expected static ones")
    return tuple(d for d in shape if d is not None)


def _biased(n: Node, out: Any) -> Any:
    return n.b.add(out, n.b.align(n.x(2), 1, 4)) if n.has(2) else out


@node("MaxPool")
def max_pool(n: Node) -> Any:
    """pyc.max_pool2d."""
    if n.wants(1):
        raise unsupported("the output `Indices`: expected only the pooled values")
    w = window(n, n.attr("kernel_shape"))
    out = n.b.max_pool2d(
        to_2d(n.b, n.x()),
        kernel=w.kernel,
        strides=w.strides,
        pads=w.pads,
        dilations=w.dilations,
    )
    return from_2d(n.b, out, spatial_rank(n))


@node("AveragePool")
def average_pool(n: Node) -> Any:
    """pyc.avg_pool2d."""
    w = window(n, n.attr("kernel_shape"))
    if w.dilations != (1, 1):
        raise unsupported(f"dilations {w.dilations}: expected 1")
    x, w, inside = _counted_pads(n, to_2d(n.b, n.x()), w)
    out = n.b.avg_pool2d(
        x, kernel=w.kernel, strides=w.strides, pads=w.pads, count_include_pad=inside
    )
    return from_2d(n.b, out, spatial_rank(n))


def _counted_pads(n: Node, x: Any, w: Window) -> tuple[Any, Window, bool]:
    """x, window, and whether all its pads count.

    `count_include_pad` counts the pads that the model states, not those that ceil_mode adds:
    then the former become part of x.
    """
    include = bool(n.attr("count_include_pad", 0))
    if not (include and n.attr("ceil_mode", 0)):
        return x, w, include
    rank = spatial_rank(n)
    stated = pair(n, "pads", 0, n.attr("pads", [0] * (2 * rank))[rank:])
    padded = n.b.pad(x, low=(0, 0, *w.low), high=(0, 0, *stated))
    first, second = (max(0, h - s) for h, s in zip(w.high, stated, strict=True))
    return padded, Window(w.kernel, w.strides, w.dilations, (0, 0), (first, second)), False


@node("LpPool")
def lp_pool(n: Node) -> Any:
    """out = (sum of |x|^p over each window)^(1/p)."""
    b, p = n.b, float(n.attr("p", 2))
    w = window(n, n.attr("kernel_shape"))
    if w.dilations != (1, 1):
        raise unsupported(f"dilations {w.dilations}: expected 1")
    powers = b.pow(b.abs(to_2d(b, n.x())), n.number(p))
    mean = b.avg_pool2d(
        powers, kernel=w.kernel, strides=w.strides, pads=w.pads, count_include_pad=True
    )
    total = b.mul(mean, n.number(math.prod(w.kernel)))
    return from_2d(b, b.pow(total, n.number(1 / p)), spatial_rank(n))


@node("GlobalAveragePool", "GlobalMaxPool")
def global_pool(n: Node) -> Any:
    """The mean or the maximum over all spatial dimensions, which stay with size 1."""
    axes = tuple(range(2, n.type().rank))
    reduce = n.b.reduce_mean if n.op == "GlobalAveragePool" else n.b.reduce_max
    return reduce(n.x(), axes=axes, keepdims=True)
