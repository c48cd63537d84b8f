"""Matrix products, convolutions, poolings: named ops of linalg where they fit, else contractions.

A product of a batched left operand with one matrix is a single larger matmul. The window of an
output position reads ``position * stride + tap * dilation`` of the padded input. 16-bit floats are
accumulated in f32; the rounding is an elementwise op after it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ops.convolution import spatial, window_size
from pyc_mlir.dialects.types import accumulator, lowest
from pyc_mlir.pipelines.linalg import scalar
from pyc_mlir.pipelines.linalg.elementwise import ONE, broadcast_dims, broadcasting
from pyc_mlir.pipelines.linalg.functions import Number
from pyc_mlir.pipelines.linalg.lowering import (
    Index,
    LoweredDim,
    LoweredTensor,
    Lowering,
    lowers,
    product,
)
from pyc_mlir.pipelines.linalg.structured import (
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


def rounded(b: Lowering, x: LoweredTensor, dtype: np.dtype) -> LoweredTensor:
    """Return an accumulator tensor in its operands' element type."""
    if x.dtype == dtype:
        return x
    loops = range(x.rank)
    return pointwise(b, [(x, loops)], x.dims, dtype, lambda v, _: scalar.narrow(v, dtype))


@lowers("matmul")
def matmul(b: Lowering, lhs: LoweredTensor, rhs: LoweredTensor) -> LoweredTensor:
    """Return operands of rank 2 or more."""
    depth = b.require_equal(lhs.dims[-1], rhs.dims[-2], "inner dimensions of a matmul")
    lhs = b.with_dims(lhs, [*lhs.dims[:-1], depth])
    rhs = b.with_dims(rhs, [*rhs.dims[:-2], depth, rhs.dims[-1]])
    if rhs.rank > 2 and all(d == ONE for d in rhs.dims[:-2]):
        rhs = drop_dims(b, rhs, range(rhs.rank - 2))
    if rhs.rank == 2 and lhs.rank > 2:
        rows = product(lhs.dims[:-1])
        flat = _matmul(b, reshape(b, lhs, [rows, depth]), rhs)
        return reshape(b, flat, [*lhs.dims[:-1], rhs.dims[-1]])
    return _matmul(b, lhs, rhs)


def _matmul(b: Lowering, lhs: LoweredTensor, rhs: LoweredTensor) -> LoweredTensor:
    """Emit a named op, or loops over batch, m, n, k on operands without stretched dimensions."""
    batch = broadcast_dims(b, [lhs.dims[:-2], rhs.dims[:-2]])
    dtype = lhs.dtype
    zero = fill(b, [*batch, lhs.dims[-2], rhs.dims[-1]], accumulator(dtype), 0)
    if LoweredDim(0) in (*lhs.dims, *rhs.dims):
        # Nothing to add up. With other dimensions that are dynamic, IREE divides by this one.
        return rounded(b, zero, dtype)
    body = multiply_add(dtype)
    if lhs.dims[:-2] == rhs.dims[:-2] and len(batch) <= 1:
        name = "linalg.batch_matmul" if batch else "linalg.matmul"
        (out,) = structured(b, name, [lhs, rhs], [zero], {}, body)
        return rounded(b, out, dtype)
    m, n, k = range(len(batch), len(batch) + 3)
    left, left_map = _drop_stretched(b, lhs, batch)
    right, right_map = _drop_stretched(b, rhs, batch)
    maps = [(*left_map, m, k), (*right_map, k, n), (*range(len(batch)), m, n)]
    (out,) = generic(b, [left, right], [zero], maps, body)
    return rounded(b, out, dtype)


def _drop_stretched(
    b: Lowering, x: LoweredTensor, batch: Sequence[LoweredDim]
) -> tuple[LoweredTensor, list[int]]:
    offset = len(batch) - (x.rank - 2)
    leading = x.dims[:-2]
    dropped = [i for i, d in enumerate(leading) if d == ONE and batch[offset + i] != ONE]
    kept = [offset + i for i in range(len(leading)) if i not in dropped]
    return (drop_dims(b, x, dropped) if dropped else x), kept


@dataclass(frozen=True)
class Window:
    """A window over the rows and columns of images: its taps, and the steps between them."""

    layout: str
    kernel: Sequence[LoweredDim]
    strides: Sequence[int]
    dilations: Sequence[int]

    @property
    def is_nchw(self) -> bool:
        """True if channels come before rows and columns."""
        return self.layout == "NCHW"

    @property
    def channels(self) -> int:
        """The axis of the channels of images."""
        return 1 if self.is_nchw else 3

    def dims(
        self, n: LoweredDim, channels: Sequence[LoweredDim], image: Sequence[LoweredDim]
    ) -> list[LoweredDim]:
        """Return the sizes of images, in the order of the layout."""
        return [n, *channels, *image] if self.is_nchw else [n, *image, *channels]

    def pad(self, b: Lowering, x: LoweredTensor, pads: Sequence[int], value: Any) -> LoweredTensor:
        """Pad height and width."""
        low, high = [0] * 4, [0] * 4
        for axis, before, after in zip(spatial(self.layout), pads[:2], pads[2:], strict=True):
            low[axis], high[axis] = before, after
        return pad(b, x, low, high, value)

    def over(
        self, b: Lowering, x: LoweredTensor
    ) -> tuple[LoweredTensor, tuple[LoweredDim, LoweredDim]]:
        """Return padded images without what no window reaches, and the positions on both axes.

        Folding a loop of one iteration makes the window's own loop index the input, and then the
        sizes have to be equal.
        """
        axes = spatial(self.layout)
        rows, columns = (self._positions(b, x.dims[axis], i) for i, axis in enumerate(axes))
        sizes = list(x.dims)
        for i, (axis, positions) in enumerate(zip(axes, (rows, columns), strict=True)):
            taps = self.kernel[i].static
            if positions == ONE and taps is not None and sizes[axis].static is not None:
                sizes[axis] = LoweredDim(self.dilations[i] * (taps - 1) + 1)
        if tuple(sizes) != x.dims:
            x = extract(b, x, [LoweredDim(0)] * 4, sizes, [1] * 4)
        return x, (rows, columns)

    def _positions(self, b: Lowering, size: LoweredDim, i: int) -> LoweredDim:
        """Return the positions inside a padded size, at least 0."""
        kernel, stride, dilation = self.kernel[i], self.strides[i], self.dilations[i]
        known = window_size(size.static, kernel.static, stride, 0, 0, dilation)
        if known is not None:
            return LoweredDim(known)
        if kernel == ONE and stride == 1:
            return size
        if kernel.static is not None:
            return window_count(b, size, dilation * (kernel.static - 1) + 1, stride)
        return _steps(b, b.count(size) - (b.count(kernel) - 1) * dilation - 1, stride)

    def read(self, positions: Sequence[int], taps: Sequence[int]) -> list[Index]:
        """Return the row and the column that loops over positions and taps read."""
        steps = zip(positions, self.strides, taps, self.dilations, strict=True)
        d = ir.AffineDimExpr.get
        return [d(at) * stride + d(tap) * dilation for at, stride, tap, dilation in steps]


def window_count(b: Lowering, size: LoweredDim, reach: int, stride: int) -> LoweredDim:
    """Return the steps of a window that reaches so far, at least 0: equal ones are one."""

    def make() -> LoweredDim:
        return _steps(b, b.count(size) - reach, stride)

    return b.once("window", size, reach, stride, make=make)


def _steps(b: Lowering, room: Number, stride: int) -> LoweredDim:
    return b.atom((room.make("arith.floordivsi", stride) + 1).at_least(0))


@lowers("conv2d")
def conv2d(
    b: Lowering,
    x: LoweredTensor,
    weight: LoweredTensor,
    *,
    pads: Sequence[int],
    groups: int,
    layout: str,
    **steps: Sequence[int],
) -> LoweredTensor:
    """linalg.conv_2d_nchw_fchw or conv_2d_nhwc_hwcf; with groups a generic convolution."""
    nchw = layout == "NCHW"
    window = Window(layout, weight.dims[2:] if nchw else weight.dims[:2], **steps)
    x, image = window.over(b, window.pad(b, x, pads, 0))
    if groups > 1:
        return _grouped(b, x, weight, image, groups, window)
    depth, channels = 1 if nchw else 2, window.channels
    shared = b.require_equal(x.dims[channels], weight.dims[depth], "channels of a conv2d")
    x = b.with_dims(x, _replace(x.dims, channels, shared))
    weight = b.with_dims(weight, _replace(weight.dims, depth, shared))
    dims = window.dims(x.dims[0], [weight.dims[0 if nchw else 3]], image)
    zero = fill(b, dims, accumulator(x.dtype), 0)
    if LoweredDim(0) in (*zero.dims, *x.dims, *weight.dims):
        return rounded(b, zero, x.dtype)
    op = "linalg.conv_2d_nchw_fchw" if nchw else "linalg.conv_2d_nhwc_hwcf"
    i64 = ir.IntegerType.get_signless(64)
    attributes = {
        name: ir.DenseElementsAttr.get(np.array(both, np.int64), type=i64, shape=[2])
        for name, both in (("strides", window.strides), ("dilations", window.dilations))
    }
    (out,) = structured(b, op, [x, weight], [zero], attributes, multiply_add(x.dtype))
    return rounded(b, out, x.dtype)


def _replace(dims: Sequence[LoweredDim], axis: int, *by: LoweredDim) -> list[LoweredDim]:
    return [*dims[:axis], *by, *dims[axis + 1 :]]


def _grouped(
    b: Lowering,
    x: LoweredTensor,
    weight: LoweredTensor,
    image: Sequence[LoweredDim],
    groups: int,
    window: Window,
) -> LoweredTensor:
    """Emit loops over n, g, f, oh, ow, c, kh, kw on operands with channels split into groups."""
    channels, filters = window.channels, 0 if window.is_nchw else 3
    group = LoweredDim(groups)
    per_group = _split(b, x.dims[channels], group)
    f = _split(b, weight.dims[filters], group)
    x = reshape(b, x, _replace(x.dims, channels, group, per_group))
    weight = reshape(b, weight, _replace(weight.dims, filters, group, f))
    n, g, k, oh, ow, c, kh, kw = range(8)
    place = window.read((oh, ow), (kh, kw))
    maps: list[Sequence[Index]] = (
        [(n, g, c, *place), (g, k, c, kh, kw), (n, g, k, oh, ow)]
        if window.is_nchw
        else [(n, *place, g, c), (kh, kw, c, g, k), (n, oh, ow, g, k)]
    )
    zero = fill(b, window.dims(x.dims[0], [group, f], image), accumulator(x.dtype), 0)
    dims = window.dims(x.dims[0], [group * f], image)
    if LoweredDim(0) in (*dims, *x.dims, *weight.dims):
        return reshape(b, rounded(b, zero, x.dtype), dims)
    (out,) = generic(b, [x, weight], [zero], maps, multiply_add(x.dtype))
    return reshape(b, rounded(b, out, x.dtype), dims)


def _split(b: Lowering, dim: LoweredDim, groups: LoweredDim) -> LoweredDim:
    """dim / groups, checked to be exact."""
    exact = dim.divide(groups)
    if exact is not None:
        return exact
    quotient = b.atom(b.count(dim) // groups.coefficient)
    b.require_equal(dim, quotient * groups, "channels and groups")
    return quotient


def pool(
    b: Lowering, x: LoweredTensor, window: Window, start: Any, combine: Callable[..., ir.Value]
) -> LoweredTensor:
    """Reduce each window of the padded x. Loops: n, c, oh, ow, kh, kw.

    The second operand only gives the window its size.
    """
    x, image = window.over(b, x)
    wide = accumulator(x.dtype)
    taps = b.empty(window.kernel, wide)
    place = window.read((2, 3), (4, 5))
    source: Sequence[Index] = (0, 1, *place) if window.is_nchw else (0, *place, 1)
    result = (0, 1, 2, 3) if window.is_nchw else (0, 2, 3, 1)
    dims = window.dims(x.dims[0], [x.dims[window.channels]], image)
    begin = fill(b, dims, wide, start)
    if LoweredDim(0) in dims:
        return begin

    def body(value: ir.Value, _: ir.Value, acc: ir.Value) -> Sequence[ir.Value]:
        return [combine(acc, scalar.widen(value, x.dtype))]

    (out,) = generic(b, [x, taps], [begin], [source, (4, 5), result], body)
    return out


@lowers("max_pool2d")
def max_pool2d(
    b: Lowering,
    x: LoweredTensor,
    *,
    kernel: Sequence[int],
    pads: Sequence[int],
    layout: str,
    **steps: Sequence[int],
) -> LoweredTensor:
    """Return a maximum over windows; the padding is the least value."""
    wide = accumulator(x.dtype)
    window = Window(layout, [*map(LoweredDim, kernel)], **steps)
    padded = window.pad(b, x, pads, lowest(x.dtype))
    out = pool(b, padded, window, lowest(wide), scalar.combine("maximum", wide))
    return rounded(b, out, x.dtype)


@lowers("avg_pool2d")
def avg_pool2d(
    b: Lowering,
    x: LoweredTensor,
    *,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    count_include_pad: bool,
    layout: str,
) -> LoweredTensor:
    """Return a sum over windows divided by how many positions count."""
    wide = accumulator(x.dtype)
    add = scalar.combine("add", wide)
    window = Window(layout, [*map(LoweredDim, kernel)], strides, (1, 1))
    total = pool(b, window.pad(b, x, pads, 0), window, 0, add)
    if count_include_pad or not any(pads):
        count = b.constant(np.array(kernel[0] * kernel[1], wide))
    else:
        dims = [d if i in spatial(layout) else ONE for i, d in enumerate(x.dims)]
        count = pool(b, window.pad(b, fill(b, dims, wide, 1), pads, 0), window, 0, add)
    divide = scalar.combine("div", wide)
    return rounded(b, broadcasting(b, [total, count], wide, divide), x.dtype)
