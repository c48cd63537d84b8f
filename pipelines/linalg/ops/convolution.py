"""Convolutions and poolings: named convolutions where they exist, else generic windows.

The window of an output position reads ``position * stride + tap * dilation`` of the padded input.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ops.convolution import spatial, window_size
from pyc_mlir.dialects.types import accumulator, lowest
from pyc_mlir.pipelines.linalg.base.dims import LoweredDim
from pyc_mlir.pipelines.linalg.base.lowering import Index, LoweredTensor, Lowering, lowers
from pyc_mlir.pipelines.linalg.base.structured import (
    PARALLEL,
    REDUCTION,
    extract,
    fill,
    generic,
    pad,
    reshape,
    structured,
)
from pyc_mlir.pipelines.linalg.ops.contraction import multiply_add, rounded
from pyc_mlir.pipelines.linalg.ops.elementwise import broadcasting
from pyc_mlir.pipelines.linalg.scalar import scalar


def pad_image(
    lowering: Lowering, x: LoweredTensor, pads: Sequence[int], layout: str, value: Any
) -> LoweredTensor:
    """Pad height and width."""
    low, high = [0] * 4, [0] * 4
    for axis, before, after in zip(spatial(layout), pads[:2], pads[2:], strict=True):
        low[axis], high[axis] = before, after
    return pad(lowering, x, low, high, value)


def crop(
    lowering: Lowering,
    x: LoweredTensor,
    layout: str,
    image: Sequence[LoweredDim],
    kernel: Sequence[LoweredDim],
    dilations: Sequence[int],
) -> LoweredTensor:
    """Cut off what a window with a single position does not reach.

    Folding a loop of one iteration makes the window's own loop index the input, and then the
    sizes have to be equal.
    """
    sizes = list(x.dims)
    for axis, positions, taps, dilation in zip(
        spatial(layout), image, kernel, dilations, strict=True
    ):
        if (
            positions == LoweredDim(1)
            and taps.static is not None
            and sizes[axis].static is not None
        ):
            sizes[axis] = LoweredDim(dilation * (taps.static - 1) + 1)
    if tuple(sizes) == x.dims:
        return x
    return extract(lowering, x, [LoweredDim(0)] * 4, sizes, [1] * 4)


def window_dim(
    lowering: Lowering, size: LoweredDim, kernel: LoweredDim, stride: int, dilation: int
) -> LoweredDim:
    """Return the positions of a window inside a padded size, at least 0."""
    known = window_size(size.static, kernel.static, stride, 0, 0, dilation)
    if known is not None:
        return LoweredDim(known)
    if kernel == LoweredDim(1) and stride == 1:
        return size
    value = lowering.size(size)
    last_tap = lowering.arith("subi", lowering.size(kernel), lowering.number(1))
    reach = lowering.arith("muli", last_tap, lowering.number(dilation))
    room = lowering.arith("subi", lowering.arith("subi", value, reach), lowering.number(1))
    steps = lowering.arith("floordivsi", room, lowering.number(stride))
    positions = lowering.arith("addi", steps, lowering.number(1))
    return lowering.atom(lowering.arith("maxsi", positions, lowering.number(0)))


def _pair(values: Sequence[int]) -> ir.Attribute:
    i64 = ir.IntegerType.get_signless(64)
    return ir.DenseElementsAttr.get(np.array(values, np.int64), type=i64, shape=[2])


@lowers("conv2d")
def conv2d(
    lowering: Lowering,
    name: str,
    x: LoweredTensor,
    weight: LoweredTensor,
    *,
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    groups: int,
    layout: str,
) -> LoweredTensor:
    """linalg.conv_2d_nchw_fchw or conv_2d_nhwc_hwcf; with groups a generic convolution."""
    x = pad_image(lowering, x, pads, layout, 0)
    h, w = spatial(layout)
    kernel = weight.dims[2:] if layout == "NCHW" else weight.dims[:2]
    filters = weight.dims[0] if layout == "NCHW" else weight.dims[3]
    rows = window_dim(lowering, x.dims[h], kernel[0], strides[0], dilations[0])
    columns = window_dim(lowering, x.dims[w], kernel[1], strides[1], dilations[1])
    x = crop(lowering, x, layout, (rows, columns), kernel, dilations)
    if groups > 1:
        return _grouped(lowering, x, weight, (rows, columns), strides, dilations, groups, layout)
    depth, channels = (1, 1) if layout == "NCHW" else (2, 3)
    shared = lowering.require_equal(x.dims[channels], weight.dims[depth], "channels of a conv2d")
    x = lowering.with_dims(x, _replace(x.dims, channels, shared))
    weight = lowering.with_dims(weight, _replace(weight.dims, depth, shared))
    image = (filters, rows, columns) if layout == "NCHW" else (rows, columns, filters)
    zero = fill(lowering, [x.dims[0], *image], accumulator(x.dtype), 0)
    if LoweredDim(0) in (*zero.dims, *x.dims, *weight.dims):
        return rounded(lowering, zero, x.dtype)
    op = "linalg.conv_2d_nchw_fchw" if layout == "NCHW" else "linalg.conv_2d_nhwc_hwcf"
    attributes = {"strides": _pair(strides), "dilations": _pair(dilations)}
    body = multiply_add(x.dtype)
    (out,) = structured(lowering, op, [x, weight], [zero], attributes, body)
    return rounded(lowering, out, x.dtype)


def _replace(dims: Sequence[LoweredDim], axis: int, dim: LoweredDim) -> list[LoweredDim]:
    return [dim if i == axis else d for i, d in enumerate(dims)]


def _grouped(
    lowering: Lowering,
    x: LoweredTensor,
    weight: LoweredTensor,
    image: tuple[LoweredDim, LoweredDim],
    strides: Sequence[int],
    dilations: Sequence[int],
    groups: int,
    layout: str,
) -> LoweredTensor:
    """Emit loops over n, g, f, oh, ow, c, kh, kw on operands with channels split into groups."""
    nchw = layout == "NCHW"
    channels, filters = (1, 0) if nchw else (3, 3)
    per_group = _split(lowering, x.dims[channels], groups)
    f = _split(lowering, weight.dims[filters], groups)
    x = reshape(lowering, x, _split_dims(x.dims, channels, groups, per_group))
    weight = reshape(lowering, weight, _split_dims(weight.dims, filters, groups, f))
    d = [ir.AffineDimExpr.get(i) for i in range(8)]
    row = d[3] * strides[0] + d[6] * dilations[0]
    column = d[4] * strides[1] + d[7] * dilations[1]
    n, g, k, oh, ow, c, kh, kw = range(8)
    maps: list[Sequence[Index]] = (
        [(n, g, c, row, column), (g, k, c, kh, kw), (n, g, k, oh, ow)]
        if nchw
        else [(n, row, column, g, c), (kh, kw, c, g, k), (n, oh, ow, g, k)]
    )
    group = LoweredDim(groups)
    split = [x.dims[0], group, f, *image] if nchw else [x.dims[0], *image, group, f]
    zero = fill(lowering, split, accumulator(x.dtype), 0)
    dims = [x.dims[0], group * f, *image] if nchw else [x.dims[0], *image, group * f]
    if LoweredDim(0) in (*dims, *x.dims, *weight.dims):
        return reshape(lowering, rounded(lowering, zero, x.dtype), dims)
    iterators = [PARALLEL] * 5 + [REDUCTION] * 3
    (out,) = generic(lowering, [x, weight], [zero], maps, iterators, multiply_add(x.dtype))
    return reshape(lowering, rounded(lowering, out, x.dtype), dims)


def _split(lowering: Lowering, dim: LoweredDim, groups: int) -> LoweredDim:
    """dim / groups, checked to be exact."""
    exact = dim.divide(LoweredDim(groups))
    if exact is not None:
        return exact
    quotient = lowering.atom(lowering.arith("divui", lowering.size(dim), lowering.number(groups)))
    lowering.require_equal(dim, quotient * LoweredDim(groups), "channels and groups")
    return quotient


def _split_dims(
    dims: Sequence[LoweredDim], axis: int, groups: int, each: LoweredDim
) -> list[LoweredDim]:
    return [*dims[:axis], LoweredDim(groups), each, *dims[axis + 1 :]]


def pool(
    lowering: Lowering,
    x: LoweredTensor,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    layout: str,
    start: Any,
    combine: Callable[[ir.Value, ir.Value], ir.Value],
) -> LoweredTensor:
    """Reduce each window of the padded x. Loops: n, c, oh, ow, kh, kw.

    The second operand only gives the window its size.
    """
    h, w = spatial(layout)
    rows = window_dim(lowering, x.dims[h], LoweredDim(kernel[0]), strides[0], dilations[0])
    columns = window_dim(lowering, x.dims[w], LoweredDim(kernel[1]), strides[1], dilations[1])
    x = crop(lowering, x, layout, (rows, columns), [LoweredDim(k) for k in kernel], dilations)
    wide = accumulator(x.dtype)
    window = lowering.empty([LoweredDim(k) for k in kernel], wide)
    d = [ir.AffineDimExpr.get(i) for i in range(6)]
    row = d[2] * strides[0] + d[4] * dilations[0]
    column = d[3] * strides[1] + d[5] * dilations[1]
    nchw = layout == "NCHW"
    n, c = x.dims[0], x.dims[1 if nchw else 3]
    source: Sequence[Index] = (0, 1, row, column) if nchw else (0, row, column, 1)
    result = (0, 1, 2, 3) if nchw else (0, 2, 3, 1)
    dims = [n, c, rows, columns] if nchw else [n, rows, columns, c]
    begin = fill(lowering, dims, wide, start)
    if LoweredDim(0) in dims:
        return begin

    def body(value: ir.Value, _: ir.Value, acc: ir.Value) -> Sequence[ir.Value]:
        return [combine(acc, scalar.widen(value, x.dtype))]

    maps = [source, (4, 5), result]
    iterators = [PARALLEL] * 4 + [REDUCTION] * 2
    (out,) = generic(lowering, [x, window], [begin], maps, iterators, body)
    return out


@lowers("max_pool2d")
def max_pool2d(
    lowering: Lowering,
    name: str,
    x: LoweredTensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    dilations: tuple[int, ...],
    layout: str,
) -> LoweredTensor:
    """Return a maximum over windows; the padding is the least value."""
    wide = accumulator(x.dtype)
    padded = pad_image(lowering, x, pads, layout, lowest(x.dtype))
    combine = scalar.combine("maximum", wide)
    out = pool(lowering, padded, kernel, strides, dilations, layout, lowest(wide), combine)
    return rounded(lowering, out, x.dtype)


@lowers("avg_pool2d")
def avg_pool2d(
    lowering: Lowering,
    name: str,
    x: LoweredTensor,
    *,
    kernel: tuple[int, ...],
    strides: tuple[int, ...],
    pads: tuple[int, ...],
    count_include_pad: bool,
    layout: str,
) -> LoweredTensor:
    """Return a sum over windows divided by how many positions count."""
    wide = accumulator(x.dtype)
    add, one = scalar.combine("add", wide), (1, 1)
    padded = pad_image(lowering, x, pads, layout, 0)
    total = pool(lowering, padded, kernel, strides, one, layout, 0, add)
    if count_include_pad or not any(pads):
        count = lowering.constant(np.array(kernel[0] * kernel[1], wide))
    else:
        h, w = spatial(layout)
        dims = [d if i in (h, w) else LoweredDim(1) for i, d in enumerate(x.dims)]
        ones = pad_image(lowering, fill(lowering, dims, wide, 1), pads, layout, 0)
        count = pool(lowering, ones, kernel, strides, one, layout, 0, add)
    divide = scalar.combine("div", wide)
    return rounded(lowering, broadcasting(lowering, [total, count], wide, divide), x.dtype)
