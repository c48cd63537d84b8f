"""Matrix products, convolutions, poolings: named ops of linalg where they fit, else contractions.

A product of a batched left operand with one matrix is a single larger matmul. The window of an
output position reads ``position * stride + tap * dilation`` of the padded input. 16-bit floats are
accumulated in f32; the rounding is an elementwise op after it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ops.convolution import spatial, window_size
from pyc_mlir.dialects.types import accumulator, lowest
from pyc_mlir.pipelines.linalg import scalar
from pyc_mlir.pipelines.linalg.elementwise import ONE, broadcast_dims, broadcasting
from pyc_mlir.pipelines.linalg.lowering import (
    Index,
    LoweredDim,
    LoweredTensor,
    Lowering,
    lowers,
    product,
)
from pyc_mlir.pipelines.linalg.structured import (
    PARALLEL,
    REDUCTION,
    Body,
    drop_dims,
    extract,
    fill,
    generic,
    pad,
    pointwise,
    reshape,
    structured,
)


def multiply_add(dtype: np.dtype) -> Body:
    """``acc + lhs * rhs`` in the accumulator's type."""
    wide = accumulator(dtype)

    def body(lhs: ir.Value, rhs: ir.Value, acc: ir.Value) -> Sequence[ir.Value]:
        product = scalar.combine("mul", wide)(scalar.widen(lhs, dtype), scalar.widen(rhs, dtype))
        return [scalar.combine("add", wide)(acc, product)]

    return body


def rounded(lowering: Lowering, x: LoweredTensor, dtype: np.dtype) -> LoweredTensor:
    """Return an accumulator tensor in its operands' element type."""
    if x.dtype == dtype:
        return x
    loops = range(x.rank)
    return pointwise(lowering, [(x, loops)], x.dims, dtype, lambda v, _: scalar.narrow(v, dtype))


@lowers("matmul")
def matmul(lowering: Lowering, lhs: LoweredTensor, rhs: LoweredTensor) -> LoweredTensor:
    """Return operands of rank 2 or more."""
    depth = lowering.require_equal(lhs.dims[-1], rhs.dims[-2], "inner dimensions of a matmul")
    lhs = lowering.with_dims(lhs, [*lhs.dims[:-1], depth])
    rhs = lowering.with_dims(rhs, [*rhs.dims[:-2], depth, rhs.dims[-1]])
    if rhs.rank > 2 and all(d == ONE for d in rhs.dims[:-2]):
        rhs = drop_dims(lowering, rhs, range(rhs.rank - 2))
    if rhs.rank == 2 and lhs.rank > 2:
        rows = product(lhs.dims[:-1])
        flat = _matmul(lowering, reshape(lowering, lhs, [rows, depth]), rhs)
        return reshape(lowering, flat, [*lhs.dims[:-1], rhs.dims[-1]])
    return _matmul(lowering, lhs, rhs)


def _matmul(lowering: Lowering, lhs: LoweredTensor, rhs: LoweredTensor) -> LoweredTensor:
    """Dispatch on the batch dimensions."""
    batch = broadcast_dims(lowering, [lhs.dims[:-2], rhs.dims[:-2]])
    dims = [*batch, lhs.dims[-2], rhs.dims[-1]]
    dtype = lhs.dtype
    zero = fill(lowering, dims, accumulator(dtype), 0)
    if LoweredDim(0) in (*lhs.dims, *rhs.dims):
        # Nothing to add up. With other dimensions that are dynamic, IREE divides by this one.
        return rounded(lowering, zero, dtype)
    same = lhs.dims[:-2] == rhs.dims[:-2]
    if same and len(batch) <= 1:
        name = "linalg.batch_matmul" if batch else "linalg.matmul"
        body = multiply_add(dtype)
        (out,) = structured(lowering, name, [lhs, rhs], [zero], {}, body)
    else:
        out = _contraction(lowering, lhs, rhs, zero, batch)
    return rounded(lowering, out, dtype)


def _contraction(
    lowering: Lowering,
    lhs: LoweredTensor,
    rhs: LoweredTensor,
    zero: LoweredTensor,
    batch: Sequence[LoweredDim],
) -> LoweredTensor:
    """Emit loops over the batch, m, n, k; operands drop stretched batch dimensions."""
    n_batch = len(batch)
    m, n, k = n_batch, n_batch + 1, n_batch + 2
    left, left_map = _drop_stretched(lowering, lhs, batch)
    right, right_map = _drop_stretched(lowering, rhs, batch)
    maps = [(*left_map, m, k), (*right_map, k, n), (*range(n_batch), m, n)]
    iterators = [PARALLEL] * (n_batch + 2) + [REDUCTION]
    body = multiply_add(lhs.dtype)
    (out,) = generic(lowering, [left, right], [zero], maps, iterators, body)
    return out


def _drop_stretched(
    lowering: Lowering, x: LoweredTensor, batch: Sequence[LoweredDim]
) -> tuple[LoweredTensor, list[int]]:
    offset = len(batch) - (x.rank - 2)
    leading = x.dims[:-2]
    dropped = [i for i, d in enumerate(leading) if d == ONE and batch[offset + i] != ONE]
    kept = [offset + i for i in range(len(leading)) if i not in dropped]
    return (drop_dims(lowering, x, dropped) if dropped else x), kept


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
    room = lowering.count(size) - (lowering.count(kernel) - 1) * dilation - 1
    positions = room.make("arith.floordivsi", stride) + 1
    return lowering.atom(positions.at_least(0))


def _pair(values: Sequence[int]) -> ir.Attribute:
    i64 = ir.IntegerType.get_signless(64)
    return ir.DenseElementsAttr.get(np.array(values, np.int64), type=i64, shape=[2])


@lowers("conv2d")
def conv2d(
    lowering: Lowering,
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
    quotient = lowering.atom(lowering.count(dim) // groups)
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
