"""Convolutions and pools over one or two spatial dimensions."""

import math
from typing import Any

from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.ops.movement import START as BEGIN
from pyc_mlir.frontends.onnx.frame.handler import Node, node, unsupported
from pyc_mlir.frontends.onnx.frame.shaping import take
from pyc_mlir.frontends.onnx.frame.window import (
    Window,
    from_2d,
    pair,
    sizes_2d,
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


@node("ConvTranspose")
def conv_transpose(n: Node) -> Any:
    """The gradient of Conv: x with zeros between its elements, convolved with flipped weights."""
    b, groups = n.b, n.attr("group", 1)
    kernel = _kernel(n)
    w = window(n, kernel) if n.attr("auto_pad", "NOTSET") == "NOTSET" else _no_pads(n, kernel)
    extra = pair(n, "output_padding", 0)
    low, high = _crops(n, w, extra)
    pads = [r - 1 - c for r, c in zip((*w.reach, *w.reach), (*low, *high), strict=True)]
    if min(pads) < 0:
        raise unsupported(f"pads {[*low, *high]} that reach past the kernel")
    x = to_2d(b, n.x(0))
    for axis, stride in zip((2, 3), w.strides, strict=True):
        x = _spaced(b, x, axis, stride)
    out = b.conv2d(x, _flipped(n, groups), pads=tuple(pads), dilations=w.dilations, groups=groups)
    return from_2d(b, _biased(n, out), spatial_rank(n))


def _no_pads(n: Node, kernel: tuple[int, ...]) -> Window:
    return Window(
        pair(n, "kernel_shape", 1, kernel), pair(n, "strides", 1), pair(n, "dilations", 1),
        (0, 0), (0, 0),
    )  # fmt: skip


def _crops(n: Node, w: Window, extra: tuple[int, int]) -> tuple[list[int], list[int]]:
    """How much of the full result falls away at the start and the end of each axis."""
    shape = n.attr("output_shape")
    mode = n.attr("auto_pad", "NOTSET")
    if mode == "VALID" and shape is None:
        return [0, 0], [-e for e in extra]
    if shape is None and mode == "NOTSET":
        return list(w.low), [h - e for h, e in zip(w.high, extra, strict=True)]
    inputs = sizes_2d(n, "output_shape")
    if shape is None:
        wanted = [i * s for i, s in zip(inputs, w.strides, strict=True)]
    else:
        wanted = list(pair(n, "output_shape", 1, shape[-spatial_rank(n) :]))
    low, high = [], []
    for size, stride, reach, want, more in zip(
        inputs, w.strides, w.reach, wanted, extra, strict=True
    ):
        total = (size - 1) * stride + reach + more - want
        first = total // 2 if mode == "SAME_UPPER" else total - total // 2
        low.append(first)
        high.append(total - first - more)
    return low, high


def _spaced(b: Any, x: Any, axis: int, stride: int) -> Any:
    """x with `stride - 1` zeros between neighbours along `axis`."""
    if stride == 1:
        return x
    size = b.type_of(x).shape[axis]
    if size is None:
        raise unsupported("strides with dynamic spatial dimensions: expected static ones")
    apart = b.expand_dims(x, axis + 1)
    high = tuple(stride - 1 if i == axis + 1 else 0 for i in range(5))
    apart = b.pad(apart, low=(0,) * 5, high=high)
    shape = [d if isinstance(d, int) else -1 for d in b.dims(x)]
    shape[axis] = size * stride
    return take(b, b.reshape(apart, shape=tuple(shape)), axis, 0, (size - 1) * stride + 1)


def _flipped(n: Node, groups: int) -> Any:
    """[c, f/groups, kh, kw] as the matching Conv has them turned: [f, c/groups, kh, kw]."""
    b = n.b
    w = to_2d(b, n.x(1))
    shape = b.type_of(w).shape
    assert all(d is not None for d in shape[2:])
    channels, filters, *kernel = (d or 0 for d in shape)
    w = b.reshape(w, shape=(groups, channels // groups, filters, *kernel))
    w = b.transpose(w, permutation=(0, 2, 1, 3, 4))
    w = b.reshape(w, shape=(groups * filters, channels // groups, *kernel))
    return b.slice(w, starts=(0, 0, END, END), stops=(END, END, BEGIN, BEGIN), steps=(1, 1, -1, -1))


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
