"""Convolution and pooling over three spatial axes, by the two-dimensional ops.

A window over (depth, height, width) is unfolded along the depth: each depth of the result becomes
an image, each channel at each depth of the window a channel of it. x is [n, c, d, h, w].
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import is_float
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import product, reshape_to, spaced, take
from pyc_mlir.frontends.importing.sizes import SymbolicSize


def conv3d(
    b: Any, x: Any, weight: Any, strides: Sequence[int], low: Sequence[int], high: Sequence[int],
    dilations: Sequence[int], groups: int,
) -> Any:  # fmt: skip
    """Build the convolution of x with weight [f, c / groups, kd, kh, kw]; one pyc.conv2d."""
    filters, inner, kd, kh, kw = b.type_of(weight).shape
    x = b.pad(x, low=(0, 0, low[0], 0, 0), high=(0, 0, high[0], 0, 0))
    n, c, depth, h, w = b.dims(x)
    if isinstance(depth, SymbolicSize):
        raise unsupported("a dynamic depth of a window over volumes: expected a static one")
    # i64 [out, window]: the depths that each window holds.
    starts = np.arange(0, max(depth - dilations[0] * (kd - 1), 0), strides[0])
    places = (starts[:, None] + dilations[0] * np.arange(kd)[None, :]).astype(np.int64)
    unfolded = b.transpose(
        b.gather(x, b.constant(places), axis=2), permutation=(0, 2, 1, 3, 4, 5)
    )  # [n, out, c, kd, h, w]
    images = reshape_to(b, unfolded, (product((n, len(places))), product((c, kd)), h, w))
    out = b.conv2d(
        images,
        b.reshape(weight, shape=(filters, inner * kd, kh, kw)),
        strides=tuple(strides[1:]),
        pads=(*low[1:], *high[1:]),
        dilations=tuple(dilations[1:]),
        groups=groups,
    )
    _, _, height, width = b.dims(out)
    apart = reshape_to(b, out, (n, len(places), filters, height, width))
    return b.transpose(apart, permutation=(0, 2, 1, 3, 4))


def max_pool3d(
    b: Any, x: Any, kernel: Sequence[int], strides: Sequence[int], low: Sequence[int],
    high: Sequence[int], dilations: Sequence[int],
) -> Any:  # fmt: skip
    """Build the maximum of each image's windows, then of the depths."""
    flat, deep = (tuple(dilations[1:]), (dilations[0], 1))
    return _pooled(
        b, x, (kernel, strides, low, high),
        partial(b.max_pool2d, dilations=flat), partial(b.max_pool2d, dilations=deep),
    )  # fmt: skip


def avg_pool3d(
    b: Any, x: Any, kernel: Sequence[int], strides: Sequence[int], low: Sequence[int],
    high: Sequence[int], *,
    count_include_pad: bool,
) -> Any:  # fmt: skip
    """Build the mean of each image's windows, then of the depths: counts are products of counts."""
    dtype = b.type_of(x).dtype
    if not is_float(dtype):
        raise unsupported(f"an average over volumes of {dtype}: expected a float type")
    pool = partial(b.avg_pool2d, count_include_pad=count_include_pad)
    return _pooled(b, x, (kernel, strides, low, high), pool, pool)


def _pooled(
    b: Any, x: Any, window: tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]],
    over_images: Callable[..., Any], over_depths: Callable[..., Any],
) -> Any:  # fmt: skip
    """x [n, c, d, h, w] pooled along height and width, then along depth.

    window: kernel, strides and pads before and after, of (depth, height, width) each.
    """
    kernel, strides, low, high = window
    n, c, d, h, w = b.dims(x)
    out = over_images(
        reshape_to(b, x, (n, product((c, d)), h, w)),
        kernel=tuple(kernel[1:]),
        strides=tuple(strides[1:]),
        pads=(*low[1:], *high[1:]),
    )
    _, _, height, width = b.dims(out)
    out = over_depths(
        reshape_to(b, out, (n, c, d, product((height, width)))),
        kernel=(kernel[0], 1),
        strides=(strides[0], 1),
        pads=(low[0], 0, high[0], 0),
    )
    return reshape_to(b, out, (n, c, b.dims(out)[2], height, width))


def transposed_conv3d(
    b: Any, x: Any, weight: Any, strides: Sequence[int], low: Sequence[int], high: Sequence[int],
    dilations: Sequence[int], groups: int,
) -> Any:  # fmt: skip
    """Build the gradient of a convolution: `conv3d` of x with zeros between, by reversed weights.

    weight: [c, f / groups, kd, kh, kw]. low, high: the number of elements to crop at the ends of
    each axis of the full result; below 0, zeros are added to it.
    """
    kernel = [int(k) for k in b.type_of(weight).shape[2:]]
    reach = [d * (k - 1) for k, d in zip(kernel, dilations, strict=True)]
    for axis, stride in enumerate(strides, start=2):
        x = spaced(b, x, axis, stride - 1)
    start, stop = ([max(0, r - c) for r, c in zip(reach, cut, strict=True)] for cut in (low, high))
    out = conv3d(b, x, _reversed(b, weight, groups), (1, 1, 1), start, stop, dilations, groups)
    # What is cut beyond the reach of a window holds no product, nor do zeros that are added.
    for axis, (r, first, last) in enumerate(zip(reach, low, high, strict=True), start=2):
        if first > r or last > r:
            size = b.dims(out)[axis]
            if isinstance(size, SymbolicSize):
                raise unsupported("pads larger than the window: expected static sizes")
            out = take(b, out, axis, max(0, first - r), size - max(0, last - r))
    return out


def _reversed(b: Any, weight: Any, groups: int) -> Any:
    """[c, f / groups, ...] as [f, c / groups, ...], reversed along the window."""
    channels, few, *kernel = b.type_of(weight).shape
    for axis in (2, 3, 4):
        index = np.arange(kernel[axis - 2])[::-1].astype(np.int64)
        weight = b.gather(weight, b.constant(index), axis=axis)
    apart = b.reshape(weight, shape=(groups, channels // groups, few, *kernel))
    turned = b.transpose(apart, permutation=(0, 2, 1, 3, 4, 5))
    return b.reshape(turned, shape=(groups * few, channels // groups, *kernel))
