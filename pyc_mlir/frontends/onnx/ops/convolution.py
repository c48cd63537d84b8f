"""Convolutions, transposed ones and pools over one to three spatial dimensions.

One-dimensional windows become two-dimensional ones of height 1.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.functions import accumulated
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import expand_to, product, reshape_to
from pyc_mlir.frontends.importing.windows import (
    applied,
    avg_pool3d,
    conv3d,
    max_pool3d,
    plan_axis,
    transposed_conv2d,
    transposed_conv3d,
)
from pyc_mlir.frontends.onnx.ops.node import MAX_WRITTEN, Ints, OnnxNode, Operand, node

# Values of `auto_pad` with which `ceil_mode` counts; with others the sizes alone say the pads.
_CEILED = ("NOTSET", "", "VALID")


@dataclass(frozen=True)
class OnnxWindow:
    """Kernel sizes, strides, dilations and pads for the axes (height, width), or (depth, ...)."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def pads(self) -> tuple[int, ...]:
        """pyc's order: top, left, bottom, right."""
        return (*self.low, *self.high)

    @property
    def reach(self) -> tuple[int, ...]:
        """Positions that a window spans on each axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


@dataclass(frozen=True)
class Sliding:
    """The attributes of windows that slide over the spatial axes of an image."""

    kernel_shape: Sequence[int] = ()
    strides: Sequence[int] = ()
    dilations: Sequence[int] = ()
    pads: Sequence[int] = ()
    auto_pad: str = "NOTSET"
    ceil_mode: int = 0

    def window(self, b: Any, x: Any, kernel: Sequence[int] | None = None) -> OnnxWindow:
        """Return the window over x, its pads found from `auto_pad` and `ceil_mode`.

        kernel: the spatial sizes of weights, if there are any.
        """
        rank = spatial_rank(b, x)
        if min(self.pads, default=0) < 0:
            raise unsupported(f"negative pads {list(self.pads)}")
        pads = [0] * (2 * rank) if self.pads == () else self.pads
        plain = replace(
            self.plain(rank, kernel),
            low=entries(rank, "pads", 0, pads[:rank]),
            high=entries(rank, "pads", 0, pads[rank:]),
        )
        if self.auto_pad not in _CEILED:
            sizes = spatial_sizes(b, x, f"auto_pad={self.auto_pad}")
            return _same(plain, sizes, upper=self.auto_pad == "SAME_UPPER")
        if self.auto_pad == "VALID":
            plain = self.plain(rank, kernel)
        return _ceiled(plain, spatial_sizes(b, x, "ceil_mode")) if self.ceil_mode else plain

    def plain(self, rank: int, kernel: Sequence[int] | None = None) -> OnnxWindow:
        """Return the window without pads."""
        sizes = entries(rank, "kernel_shape", 1, self.kernel_shape if kernel is None else kernel)
        none = (0,) * len(sizes)
        strides, dilations = (
            entries(rank, name, 1, getattr(self, name)) for name in ("strides", "dilations")
        )
        return OnnxWindow(sizes, strides, dilations, none, none)

    def over_weights(self, b: Any, x: Any, weight: Any) -> OnnxWindow:
        """Return the window of a convolution.

        Raises unsupported for weights of dynamic size, PycError (BAD_MODEL) where `kernel_shape`
        states other sizes.
        """
        shape = b.type_of(weight).shape[2:]
        known = tuple(d for d in shape if d is not None)
        if known != shape:
            raise unsupported("weights of dynamic size: expected static ones")
        if self.kernel_shape != () and tuple(self.kernel_shape) != known:
            got = f"the sizes {list(known)} of the weights, got {list(self.kernel_shape)}"
            raise PycError(ReasonCode.BAD_MODEL, f"`kernel_shape`: expected {got}")
        return self.window(b, x, known)


def spatial_rank(b: Any, x: Any) -> int:
    """1, 2 or 3. Raises unsupported for other ranks."""
    rank = b.type_of(x).rank - 2
    if rank not in (1, 2, 3):
        raise unsupported(f"{rank} spatial dimensions: expected 1 to 3")
    return rank


def to_2d(b: Any, x: Any) -> Any:
    """[n, c, w] as [n, c, 1, w]; other ranks as they are."""
    return b.expand_dims(x, 2) if b.type_of(x).rank == 3 else x


def from_2d(b: Any, x: Any, rank: int) -> Any:
    """Undo `to_2d` for `rank` spatial dimensions."""
    return b.squeeze(x, 2) if rank == 1 else x


def entries(rank: int, name: str, default: int, given: Sequence[int]) -> tuple[int, ...]:
    """Return an attribute with an entry per spatial axis, as (height, width) or (depth, ...)."""
    given = [default] * rank if given == () else given
    if len(given) != rank:
        raise PycError(
            ReasonCode.BAD_MODEL, f"`{name}`: expected {rank} entries, got {list(given)}"
        )
    return (*[default] * (2 - rank), *(int(v) for v in given))


def spatial_sizes(b: Any, x: Any, why: str) -> tuple[int, ...]:
    """Return height and width (and the depth before them) of x, which must be static."""
    shape = b.type_of(x).shape[2:]
    if None in shape:
        raise unsupported(f"{why} with dynamic spatial dimensions: expected static ones")
    return (1,) * (2 - len(shape)) + tuple(d for d in shape if d is not None)


def _same(plain: OnnxWindow, sizes: Sequence[int], upper: bool) -> OnnxWindow:
    """SAME_UPPER, SAME_LOWER: ceil(size / stride) windows, the odd pad at the end or start."""
    low, high = [], []
    for size, stride, reach in zip(sizes, plain.strides, plain.reach, strict=True):
        total = max(0, (-(-size // stride) - 1) * stride + reach - size)
        small, large = total // 2, total - total // 2
        low.append(small if upper else large)
        high.append(large if upper else small)
    return replace(plain, low=tuple(low), high=tuple(high))


def _ceiled(plain: OnnxWindow, sizes: Sequence[int]) -> OnnxWindow:
    """ceil_mode: the pads at the end that let a last, partial window count.

    A window that would start in the end's padding is dropped.
    """
    high = []
    for size, stride, reach, low, given in zip(
        sizes, plain.strides, plain.reach, plain.low, plain.high, strict=True
    ):
        count = -(-(size + low + given - reach) // stride) + 1
        if (count - 1) * stride >= size + low:
            count -= 1
        high.append(max(0, (count - 1) * stride + reach - size - low))
    return replace(plain, high=tuple(high))


@node("Conv")
def conv(b: Any, x: Any, weight: Any, bias: Any = None, *, group: int = 1, sliding: Sliding) -> Any:
    """pyc.conv2d in NCHW, plus the bias; of a volume unfolded along its depth."""
    w, rank = sliding.over_weights(b, x, weight), spatial_rank(b, x)
    out = _convolved(b, x, weight, w, group)
    out = out if bias is None else b.add(out, b.align(bias, 1, max(rank + 2, 4)))
    return from_2d(b, out, rank)


def _convolved(b: Any, x: Any, weight: Any, w: OnnxWindow, groups: int) -> Any:
    """Build the convolution; [n, c, h, w], or [n, c, d, h, w] of a volume."""
    if len(w.kernel) == 3:
        return conv3d(b, x, weight, w.strides, w.low, w.high, w.dilations, groups)
    return conv2d(b, x, weight, w, groups)


def conv2d(b: Any, x: Any, weight: Any, w: OnnxWindow, groups: int) -> Any:
    """Build one pyc.conv2d; [n, c, h, w]. Raises unsupported for volumes."""
    if len(w.kernel) == 3:
        raise unsupported("3 spatial dimensions: expected 1 or 2")
    x, weight = to_2d(b, x), to_2d(b, weight)
    return b.conv2d(x, weight, strides=w.strides, pads=w.pads, dilations=w.dilations, groups=groups)


@node("MaxPool")
def max_pool(n: OnnxNode, x: Any, *, storage_order: int = 0, sliding: Sliding) -> Any:
    """pyc.max_pool2d; output 1 are the places of the maxima."""
    b, w, rank = n.b, sliding.window(n.b, x), spatial_rank(n.b, x)
    if rank == 3:
        if n.wants(1):
            raise unsupported("the output `Indices` of volumes: expected the pooled values alone")
        return max_pool3d(b, x, w.kernel, w.strides, w.low, w.high, w.dilations)
    flat = to_2d(b, x)
    out = b.max_pool2d(flat, kernel=w.kernel, strides=w.strides, pads=w.pads, dilations=w.dilations)
    if not n.wants(1):
        return from_2d(b, out, rank)
    spatial_sizes(b, x, "the output `Indices`")
    pooled = [d or 0 for d in b.type_of(out).shape[2:]]
    places = _max_places(b, flat, w, pooled, columns_first=bool(storage_order))
    return from_2d(b, out, rank), from_2d(b, places, rank)


@node("AveragePool")
def average_pool(b: Any, x: Any, *, count_include_pad: int = 0, sliding: Sliding) -> Any:
    """pyc.avg_pool2d; with dilations a sum of windows over their number of elements."""
    w, include, rank = sliding.window(b, x), bool(count_include_pad), spatial_rank(b, x)
    channels, dilated = b.type_of(x).shape[1], set(w.dilations) != {1}
    if dilated and channels is None:
        raise unsupported("a dynamic number of channels with dilations: expected a static one")
    x = to_2d(b, x)
    if include and sliding.ceil_mode and sliding.auto_pad in _CEILED:
        # The pads that the model states count, not those that ceil_mode adds: they join x.
        stated = entries(rank, "pads", 0, sliding.pads[rank:])
        x = b.pad(x, low=(0, 0, *w.low), high=(0, 0, *stated))
        added = tuple(max(0, h - s) for h, s in zip(w.high, stated, strict=True))
        w, include = replace(w, low=(0,) * len(added), high=added), False
    if dilated:
        return from_2d(b, _dilated_average(b, x, w, channels, include), rank)
    if rank == 3:
        return avg_pool3d(b, x, w.kernel, w.strides, w.low, w.high, count_include_pad=include)
    out = b.avg_pool2d(
        x, kernel=w.kernel, strides=w.strides, pads=w.pads, count_include_pad=include
    )
    return from_2d(b, out, rank)


def _dilated_average(b: Any, x: Any, w: OnnxWindow, channels: int, include: bool) -> Any:
    """Build sums by convolving each channel with ones, divided by the elements in the window."""

    def formula(x: Any) -> Any:
        total = _window_sum(b, x, w, channels)
        if include:
            return b.div(total, math.prod(w.kernel))
        ones = expand_to(b, b.scalar(1, x), b.dims(x))
        return b.div(total, _window_sum(b, ones, w, channels))

    return accumulated(b, x, formula)


def _window_sum(b: Any, x: Any, w: OnnxWindow, channels: int) -> Any:
    weight = b.constant(np.ones((channels, 1, *w.kernel), b.type_of(x).dtype))
    return _convolved(b, x, weight, w, channels)


@node("LpPool")
def lp_pool(b: Any, x: Any, *, p: int = 2, sliding: Sliding) -> Any:
    """out = (sum of |x|^p over each window)^(1/p)."""
    w, channels, rank = sliding.window(b, x), b.type_of(x).shape[1], spatial_rank(b, x)
    if channels is None:
        raise unsupported("a dynamic number of channels: expected a static one")
    sums = partial(_window_sum, b, w=w, channels=channels)
    return _of_powers(b, x, p, lambda terms: from_2d(b, sums(terms), rank))


@node("GlobalLpPool")
def global_lp_pool(b: Any, x: Any, *, p: int = 2) -> Any:
    """out = (sum of |x|^p over all spatial dimensions)^(1/p)."""
    axes = tuple(range(2, b.type_of(x).rank))
    return _of_powers(b, x, p, lambda terms: b.reduce_sum(terms, axes=axes, keepdims=True))


def _of_powers(b: Any, x: Any, p: float, total: Callable[[Any], Any]) -> Any:
    """Return (the total of |x|^p)^(1/p). Raises PycError (BAD_MODEL) for p below 1."""
    if p < 1:
        raise PycError(ReasonCode.BAD_MODEL, f"`p`: expected 1 or more, got {p}")

    def formula(x: Any) -> Any:
        terms = b.pow(b.abs(x), float(p))
        return b.pow(total(terms), 1 / p)

    return accumulated(b, x, formula)


@node("GlobalAveragePool", "GlobalMaxPool")
def global_pool(n: OnnxNode, x: Any) -> Any:
    """Build the mean or the maximum over all spatial dimensions, which stay with size 1."""
    axes = tuple(range(2, n.b.type_of(x).rank))
    reduce = n.b.reduce_mean if n.op == "GlobalAveragePool" else n.b.reduce_max
    return reduce(x, axes=axes, keepdims=True)


def _places(sizes: Sequence[int], counts: Sequence[int], w: OnnxWindow, outside: int) -> np.ndarray:
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


def _max_places(b: Any, x: Any, w: OnnxWindow, pooled: Sequence[int], columns_first: bool) -> Any:
    """i64: where in x, counted through, the maximum of each window lies. x: [n, c, h, w]."""
    sizes = [d or 0 for d in b.type_of(x).shape[2:]]
    total, dtype = math.prod(sizes), b.type_of(x).dtype
    table = _places(sizes, pooled, w, -1)
    safe, inside = np.maximum(table, 0), table >= 0
    batch, channels = b.dims(x)[:2]
    flat = reshape_to(b, x, (batch, channels, total))
    windows = b.gather(flat, b.constant(safe), axis=2)
    least = -np.inf if np.issubdtype(dtype, np.floating) else np.iinfo(dtype).min
    windows = b.select(b.constant(inside), windows, least)
    best = b.argmax(windows, axis=3)
    if columns_first:
        table = table % sizes[1] * sizes[0] + table // sizes[1]
    starts = (np.arange(len(table)) * table.shape[1]).astype(np.int64)
    found = b.gather(b.constant(table.reshape(-1)), b.add(best, b.constant(starts)), axis=0)
    first = b.mul(b.iota_like(flat, 0), b.size(flat, 1))
    first = b.mul(b.add(first, b.iota_like(flat, 1)), total)
    return reshape_to(b, b.add(found, first), (batch, channels, *pooled))


@node("MaxUnpool")
def max_unpool(b: Any, x: Any, indices: Any, output_shape: Ints = None, *, sliding: Sliding) -> Any:
    """Put maxima back at their places, 0 elsewhere; a larger `output_shape` pads with 0."""
    shape = b.type_of(x).shape
    rank = len(shape) - 2
    if None in shape:
        raise unsupported("a dynamic shape: expected a static one")
    pads = [0] * (2 * rank) if sliding.pads == () else sliding.pads
    strides = [1] * rank if sliding.strides == () else sliding.strides
    sizes = [
        (shape[2 + i] - 1) * strides[i] + sliding.kernel_shape[i] - pads[i] - pads[rank + i]
        for i in range(rank)
    ]
    total = math.prod((*shape[:2], *sizes))
    if not 0 < total <= MAX_WRITTEN:
        raise unsupported(f"a result of {total} elements: expected 1 to {MAX_WRITTEN}")
    start = b.constant(np.zeros(total, b.type_of(x).dtype))
    values, places = (b.reshape(v, shape=(-1,)) for v in (x, indices))
    out = b.reshape(b.scatter(start, places, values), shape=(*shape[:2], *sizes))
    if output_shape is None:
        return out
    high = tuple(w - d for w, d in zip(output_shape, b.type_of(out).shape, strict=True))
    return b.pad(out, low=(0,) * len(high), high=high, value=0.0)


@node("Col2Im")
def columns_to_image(
    b: Any, x: Any, image_shape: Ints, block_shape: Ints, *, sliding: Sliding
) -> Any:
    """[n, c * window, windows] added up to an image [n, c, sizes...]."""
    sizes, kernel, rank = image_shape, block_shape, len(image_shape)
    strides, dilations = (tuple(v or [1] * rank) for v in (sliding.strides, sliding.dilations))
    pads = tuple(sliding.pads or [0] * (2 * rank))
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
    index = _places(sizes, counts, w, total).T.reshape(-1)
    batch, rows, _ = b.dims(x)
    channels = rows // window
    images = product((batch, channels))
    flat = reshape_to(b, x, (images, window * math.prod(counts)))
    start = expand_to(b, b.scalar(0, x), (total, images))
    moved = b.transpose(flat, permutation=(1, 0))
    out = b.scatter(start, b.constant(index), moved, reduction="add")
    return reshape_to(b, b.transpose(out, permutation=(1, 0)), (batch, channels, *sizes))


@node("ConvTranspose")
def conv_transpose(
    n: OnnxNode, x: Any, weight: Operand, bias: Operand = None, *,
    group: int = 1, output_padding: Sequence[int] = (), output_shape: Sequence[int] | None = None,
    sliding: Sliding,
) -> Any:  # fmt: skip
    """Build one pyc.conv2d whose filters are the phases of the result, and a depth-to-space.

    Over volumes a convolution of x with zeros between its elements.
    """
    b, rank = n.b, spatial_rank(n.b, x)
    shape = weight.shape if isinstance(weight, np.ndarray) else b.type_of(n.x(1)).shape
    if None in shape:
        raise unsupported("weights of dynamic size: expected static ones")
    kernel, mode = shape[2:], sliding.auto_pad
    w = sliding.window(b, x, kernel) if mode == "NOTSET" else sliding.plain(rank, kernel)
    extra = entries(rank, "output_padding", 0, output_padding)
    inputs = wanted = None
    if output_shape is not None:
        inputs = spatial_sizes(b, x, "output_shape")
        wanted = entries(rank, "output_shape", 1, output_shape[-rank:])
    low, high = _crops(w, extra, mode, inputs, wanted)
    if rank == 3:
        out = transposed_conv3d(b, x, n.x(1), w.strides, low, high, w.dilations, group)
        return out if bias is None else b.add(out, b.align(n.x(2), 1, 5))

    def known(index: int, build: Callable[[Any, Any], Any]) -> Any:
        """Compute from a constant of the model now, if it is not too large."""
        return applied(b, n.operands[index], lambda: n.x(index), build)

    rows, columns = map(plan_axis, w.kernel, w.strides, w.dilations, low, high)
    out = transposed_conv2d(
        b,
        to_2d(b, x),
        lambda build: known(1, lambda b, v: build(b, to_2d(b, v))),
        None if bias is None else partial(known, 2),
        (group, shape[1]),
        (rows, columns),
    )
    return from_2d(b, out, rank)


def _crops(
    w: OnnxWindow, extra: Sequence[int], mode: str, inputs: Sequence[int] | None,
    wanted: Sequence[int] | None,
) -> tuple[Sequence[int], Sequence[int]]:  # fmt: skip
    """Return the elements of the full result to crop at the start and the end of each axis.

    inputs, wanted: the sizes of x and of the result, where `output_shape` states that.
    """
    if inputs is None or wanted is None:
        if mode in ("NOTSET", "VALID"):
            return w.low, [h - e for h, e in zip(w.high, extra, strict=True)]
        totals = [r - s + e for r, s, e in zip(w.reach, w.strides, extra, strict=True)]
    else:
        sizes = zip(inputs, w.strides, w.reach, extra, wanted, strict=True)
        totals = [(size - 1) * s + r + e - want for size, s, r, e, want in sizes]
    low = [t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in totals]
    return low, [t - a - e for t, a, e in zip(totals, low, extra, strict=True)]
