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
from pyc_mlir.dialects.types import is_float
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import expand_to, product, reshape_to
from pyc_mlir.frontends.importing.windows import (
    Axis,
    applied,
    conv3d,
    plan_axis,
    pool3d,
    transposed_conv2d,
    transposed_conv3d,
    window_of,
)
from pyc_mlir.frontends.onnx.ops.node import MAX_WRITTEN, Ints, OnnxNode, Operand, node

# Values of `auto_pad` with which `ceil_mode` counts; with others the sizes alone say the pads.
_CEILED = ("NOTSET", "", "VALID")


@dataclass(frozen=True)
class Sliding:
    """The attributes of windows that slide over the spatial axes of an image."""

    kernel_shape: Sequence[int] = ()
    strides: Sequence[int] = ()
    dilations: Sequence[int] = ()
    pads: Sequence[int] = ()
    auto_pad: str = "NOTSET"
    ceil_mode: int = 0

    def window(self, b: Any, x: Any, kernel: Sequence[int] | None = None) -> tuple[Axis, ...]:
        """Return the axes (height, width) of x, or (depth, ...).

        Their pads are found from `auto_pad` and `ceil_mode`. kernel: the spatial sizes of weights,
        if there are any.
        """
        rank = spatial_rank(b, x)
        if min(self.pads, default=0) < 0:
            raise unsupported(f"negative pads {list(self.pads)}")
        plain = self.plain(rank, kernel)
        pads = [0] * (2 * rank) if self.pads == () else self.pads
        padded = self.plain(rank, kernel, (pads[:rank], pads[rank:]))
        if self.auto_pad not in _CEILED:
            # Windows that move by one have the same pads at every size.
            by_one = all(a.stride == 1 for a in plain)
            sizes = [1] * rank if by_one else spatial_sizes(b, x, f"auto_pad={self.auto_pad}")
            upper = self.auto_pad == "SAME_UPPER"
            return tuple(_same(a, size, upper) for a, size in zip(plain, sizes, strict=True))
        axes = plain if self.auto_pad == "VALID" else padded
        if not self.ceil_mode:
            return axes
        sizes = spatial_sizes(b, x, "ceil_mode")
        return tuple(_ceiled(a, size) for a, size in zip(axes, sizes, strict=True))

    def plain(
        self, rank: int, kernel: Sequence[int] | None = None,
        pads: tuple[Sequence[int], Sequence[int]] = ((), ()),
    ) -> tuple[Axis, ...]:  # fmt: skip
        """Return the axes with the pads given."""
        sizes = entries(rank, "kernel_shape", 1, self.kernel_shape if kernel is None else kernel)
        steps = (entries(rank, n, 1, getattr(self, n)) for n in ("strides", "dilations"))
        ends = (entries(rank, "pads", 0, given) for given in pads)
        return tuple(Axis(*a) for a in zip(sizes, *steps, *ends, strict=True))

    def over_weights(self, b: Any, x: Any, weight: Any) -> tuple[Axis, ...]:
        """Return the axes of a convolution.

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


def _same(a: Axis, size: int, upper: bool) -> Axis:
    """SAME_UPPER, SAME_LOWER: ceil(size / stride) windows, the odd pad at the end or start."""
    total = max(0, (-(-size // a.stride) - 1) * a.stride + a.reach - size)
    small, large = total // 2, total - total // 2
    low, high = (small, large) if upper else (large, small)
    return replace(a, low=low, high=high)


def _ceiled(a: Axis, size: int) -> Axis:
    """ceil_mode: the pad at the end that lets a last, partial window count.

    A window that would start in the end's padding is dropped.
    """
    count = -(-(size + a.low + a.high - a.reach) // a.stride) + 1
    if (count - 1) * a.stride >= size + a.low:
        count -= 1
    return replace(a, high=max(0, (count - 1) * a.stride + a.reach - size - a.low))


@node("Conv")
def conv(b: Any, x: Any, weight: Any, bias: Any = None, *, group: int = 1, sliding: Sliding) -> Any:
    """pyc.conv2d in NCHW, plus the bias; of a volume unfolded along its depth."""
    w, rank = sliding.over_weights(b, x, weight), spatial_rank(b, x)
    out = _convolved(b, x, weight, w, group)
    out = out if bias is None else b.add(out, b.align(bias, 1, max(rank + 2, 4)))
    return from_2d(b, out, rank)


def _convolved(b: Any, x: Any, weight: Any, axes: Sequence[Axis], groups: int) -> Any:
    """Build the convolution; [n, c, h, w], or [n, c, d, h, w] of a volume."""
    if len(axes) == 3:
        return conv3d(b, x, weight, axes, groups)
    return conv2d(b, x, weight, axes, groups)


def conv2d(b: Any, x: Any, weight: Any, axes: Sequence[Axis], groups: int) -> Any:
    """Build one pyc.conv2d; [n, c, h, w]. Raises unsupported for volumes."""
    if len(axes) == 3:
        raise unsupported("3 spatial dimensions: expected 1 or 2")
    return b.conv2d(to_2d(b, x), to_2d(b, weight), **window_of(axes), groups=groups)


def _kernel(axes: Sequence[Axis]) -> tuple[int, ...]:
    return tuple(a.kernel for a in axes)


@node("MaxPool")
def max_pool(n: OnnxNode, x: Any, *, storage_order: int = 0, sliding: Sliding) -> Any:
    """pyc.max_pool2d; output 1 are the places of the maxima."""
    b, axes, rank = n.b, sliding.window(n.b, x), spatial_rank(n.b, x)

    def pool(x: Any, axes: Sequence[Axis]) -> Any:
        return b.max_pool2d(x, kernel=_kernel(axes), **window_of(axes))

    if rank == 3:
        if n.wants(1):
            raise unsupported("the output `Indices` of volumes: expected the pooled values alone")
        return pool3d(b, x, axes, pool)
    flat = to_2d(b, x)
    out = pool(flat, axes)
    if not n.wants(1):
        return from_2d(b, out, rank)
    spatial_sizes(b, x, "the output `Indices`")
    pooled = [d or 0 for d in b.type_of(out).shape[2:]]
    places = _max_places(b, flat, axes, pooled, columns_first=bool(storage_order))
    return from_2d(b, out, rank), from_2d(b, places, rank)


@node("AveragePool")
def average_pool(b: Any, x: Any, *, count_include_pad: int = 0, sliding: Sliding) -> Any:
    """pyc.avg_pool2d; with dilations a sum of windows over their number of elements."""
    axes, include, rank = sliding.window(b, x), bool(count_include_pad), spatial_rank(b, x)
    channels, dilated = b.type_of(x).shape[1], any(a.dilation != 1 for a in axes)
    if dilated and channels is None:
        raise unsupported("a dynamic number of channels with dilations: expected a static one")
    x = to_2d(b, x)
    if include and sliding.ceil_mode and sliding.auto_pad in _CEILED:
        # The pads that the model states count, not those that ceil_mode adds: they join x.
        stated = entries(rank, "pads", 0, sliding.pads[rank:])
        x = b.pad(x, low=(0, 0, *(a.low for a in axes)), high=(0, 0, *stated))
        added = zip(axes, stated, strict=True)
        axes = tuple(replace(a, low=0, high=max(0, a.high - s)) for a, s in added)
        include = False

    def dilated_mean(x: Any) -> Any:
        total = _window_sum(b, x, axes, channels)
        if include:
            return b.div(total, math.prod(_kernel(axes)))
        ones = expand_to(b, b.scalar(1, x), b.dims(x))
        return b.div(total, _window_sum(b, ones, axes, channels))

    def pool(x: Any, axes: Sequence[Axis]) -> Any:
        given = {k: v for k, v in window_of(axes).items() if k != "dilations"}
        return b.avg_pool2d(x, kernel=_kernel(axes), **given, count_include_pad=include)

    if dilated:
        return from_2d(b, accumulated(b, x, dilated_mean), rank)
    if rank == 3:
        if not is_float(b.type_of(x).dtype):
            got = b.type_of(x).dtype
            raise unsupported(f"an average over volumes of {got}: expected a float type")
        return pool3d(b, x, axes, pool)
    return from_2d(b, pool(x, axes), rank)


def _window_sum(b: Any, x: Any, axes: Sequence[Axis], channels: int) -> Any:
    weight = b.constant(np.ones((channels, 1, *_kernel(axes)), b.type_of(x).dtype))
    return _convolved(b, x, weight, axes, channels)


@node("LpPool")
def lp_pool(b: Any, x: Any, *, p: int = 2, sliding: Sliding) -> Any:
    """out = (sum of |x|^p over each window)^(1/p)."""
    axes, channels, rank = sliding.window(b, x), b.type_of(x).shape[1], spatial_rank(b, x)
    if channels is None:
        raise unsupported("a dynamic number of channels: expected a static one")
    return _of_powers(
        b, x, p, lambda terms: from_2d(b, _window_sum(b, terms, axes, channels), rank)
    )


@node("GlobalLpPool")
def global_lp_pool(b: Any, x: Any, *, p: int = 2) -> Any:
    """out = (sum of |x|^p over all spatial dimensions)^(1/p)."""
    axes = tuple(range(2, b.type_of(x).rank))
    return _of_powers(b, x, p, lambda terms: b.reduce_sum(terms, axes=axes, keepdims=True))


def _of_powers(b: Any, x: Any, p: float, total: Callable[[Any], Any]) -> Any:
    """Return (the total of |x|^p)^(1/p). Raises PycError (BAD_MODEL) for p below 1."""
    if p < 1:
        raise PycError(ReasonCode.BAD_MODEL, f"`p`: expected 1 or more, got {p}")
    return accumulated(b, x, lambda x: b.pow(total(b.pow(b.abs(x), float(p))), 1 / p))


@node("GlobalAveragePool", "GlobalMaxPool")
def global_pool(n: OnnxNode, x: Any) -> Any:
    """Build the mean or the maximum over all spatial dimensions, which stay with size 1."""
    axes = tuple(range(2, n.b.type_of(x).rank))
    reduce = n.b.reduce_mean if n.op == "GlobalAveragePool" else n.b.reduce_max
    return reduce(x, axes=axes, keepdims=True)


def _places(
    sizes: Sequence[int], counts: Sequence[int], axes: Sequence[Axis], outside: int
) -> np.ndarray:
    """i64 [product of counts, elements of a window]: linear places in an image of `sizes`.

    `outside` stands for those in the padding.
    """
    if math.prod(counts) * math.prod(_kernel(axes)) > MAX_WRITTEN:
        raise unsupported(f"windows: expected at most {MAX_WRITTEN} elements of all")
    linear: Any = np.zeros((1, 1), np.int64)
    inside: Any = np.ones((1, 1), bool)
    for size, count, a in zip(sizes, counts, axes, strict=True):
        at = np.arange(count)[:, None] * a.stride + np.arange(a.kernel) * a.dilation - a.low
        grown = linear[:, None, :, None] * size + at[None, :, None, :]
        both = inside[:, None, :, None] & ((at >= 0) & (at < size))[None, :, None, :]
        shape = (linear.shape[0] * count, linear.shape[1] * a.kernel)
        linear, inside = grown.reshape(shape), both.reshape(shape)
    return np.where(inside, linear, outside)


def _max_places(
    b: Any, x: Any, axes: Sequence[Axis], pooled: Sequence[int], columns_first: bool
) -> Any:
    """i64: where in x, counted through, the maximum of each window lies. x: [n, c, h, w]."""
    sizes = [d or 0 for d in b.type_of(x).shape[2:]]
    total, dtype = math.prod(sizes), b.type_of(x).dtype
    table = _places(sizes, pooled, axes, -1)
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
    pads = tuple(sliding.pads) or (0,) * (2 * rank)
    axes = sliding.plain(rank, pads=(pads[:rank], pads[rank:]))[-rank:]
    sizes = [(shape[2 + i] - 1) * a.stride + a.kernel - a.low - a.high for i, a in enumerate(axes)]
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
    every = zip(kernel, strides, dilations, pads[:rank], pads[rank:], strict=True)
    axes = [Axis(*a) for a in every]
    counts = [
        (s + a.low + a.high - a.reach) // a.stride + 1 for s, a in zip(sizes, axes, strict=True)
    ]
    total, window = math.prod(sizes), math.prod(kernel)
    if total > MAX_WRITTEN or min(counts) < 1:
        raise unsupported(f"an image of {sizes}: expected one that the windows fit into")
    index = _places(sizes, counts, axes, total).T.reshape(-1)
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
    axes = sliding.window(b, x, kernel) if mode == "NOTSET" else sliding.plain(rank, kernel)
    extra = entries(rank, "output_padding", 0, output_padding)
    inputs: Sequence[Any] = [None] * len(axes)
    wanted = inputs
    if output_shape is not None:
        inputs = spatial_sizes(b, x, "output_shape")
        wanted = entries(rank, "output_shape", 1, output_shape[-rank:])
    axes = [_cropped(*a, mode) for a in zip(axes, extra, inputs, wanted, strict=True)]
    if rank == 3:
        out = transposed_conv3d(b, x, n.x(1), axes, group)
        return out if bias is None else b.add(out, b.align(n.x(2), 1, 5))

    def known(index: int, build: Callable[[Any, Any], Any]) -> Any:
        """Compute from a constant of the model now, if it is not too large."""
        return applied(b, n.operands[index], lambda: n.x(index), build)

    rows, columns = (plan_axis(a.kernel, a.stride, a.dilation, a.low, a.high) for a in axes)
    out = transposed_conv2d(
        b,
        to_2d(b, x),
        lambda build: known(1, lambda b, v: build(b, to_2d(b, v))),
        None if bias is None else partial(known, 2),
        (group, shape[1]),
        (rows, columns),
    )
    return from_2d(b, out, rank)


def _cropped(a: Axis, extra: int, size: int | None, wanted: int | None, mode: str) -> Axis:
    """Return an axis whose pads are what to crop of the full result at the start and the end.

    size, wanted: those of x and of the result, where `output_shape` states that.
    """
    if size is None or wanted is None:
        if mode in ("NOTSET", "VALID"):
            return replace(a, high=a.high - extra)
        total = a.reach - a.stride + extra
    else:
        total = (size - 1) * a.stride + a.reach + extra - wanted
    low = total // 2 if mode == "SAME_UPPER" else total - total // 2
    return replace(a, low=low, high=total - low - extra)
