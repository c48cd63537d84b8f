"""Transposed convolutions without zeros between elements, and windows over volumes by images.

Transposed, along an axis, ``full[s*i + p] += x[i] * w[p]``. The result at ``s*t + u - front``
(phase u < s) is

    sum over j of x[t + j - low] * w[s*(taps - 1 - j) + u - before]

a stride-1 correlation of x with the taps of that phase: the sub-pixel form (Shi et al., "Is the
deconvolution layer the same as a convolutional layer?", arXiv:1609.07009, 2016). The phases of all
axes are filters of one conv2d, ordered (phase of rows, phase of columns, filter) inside a group;
the depth-to-space puts them side by side. Taps that a phase lacks are zeros: they add nothing to a
sum, but make NaN of an infinite x that they meet.

A window over (depth, height, width) is unfolded along the depth: each depth of the result becomes
an image, each channel at each depth of the window a channel of it. x is [n, c, d, h, w].
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.ops.movement import START as BEGIN
from pyc_mlir.frontends.importing.builders import ConstantBuilder, GraphBuilder, NotWrittenOut
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import merge, product, reshape_to, spaced, split, take
from pyc_mlir.frontends.importing.sizes import SymbolicSize

SPATIAL = (2, 3)
# Taps of all phases, zeros included, that a dilated kernel may have for each tap of its own.
_MOST_TAPS = 3


@dataclass(frozen=True)
class TransposedAxis:
    """One spatial axis of a transposed convolution.

    `kernel` taps become `taps` for each of `phases` output phases, after `before` zero taps; the
    phases from there to `stride` are zero. `low`, `high`, `dilation` are the convolution's, `front`
    and `back` positions fall away from its result. `spread`: zeros of x between neighbours, and
    `apart`: those of the weights, for what the phases do not cover.
    """

    kernel: int
    stride: int
    phases: int
    taps: int
    before: int
    low: int
    high: int
    front: int
    back: int
    dilation: int = 1
    spread: int = 0
    apart: int = 0


def plan_axis(kernel: int, stride: int, dilation: int, low: int, high: int) -> TransposedAxis:
    """Plan the axis whose full result loses `low` and `high` positions (negative: gains zeros)."""
    if stride == 1:
        return _plain(kernel, dilation, low, high)
    reach = dilation * (kernel - 1) + 1
    taps, phases = -(-reach // stride), min(stride, reach)
    if dilation > 1 and (taps > kernel or taps * phases > _MOST_TAPS * kernel):
        plain = _plain(kernel, dilation, low, high)
        return TransposedAxis(**{**vars(plain), "spread": stride - 1})
    grid = _grid(reach, stride, low)
    last = -(-grid // stride)
    rest = reach - grid - high
    blocks = -(-rest // stride)
    start, end = (reach - 1 - grid) // stride, last - 1 + blocks
    missing = max(0, -end)
    return TransposedAxis(
        reach, stride, phases, last + start + 1, stride * last - grid, start, max(0, end),
        low - grid, (blocks + missing) * stride - rest, apart=dilation - 1,
    )  # fmt: skip


def _plain(kernel: int, dilation: int, low: int, high: int) -> TransposedAxis:
    """Stride 1: the correlation with the flipped kernel."""
    room = dilation * (kernel - 1)
    return TransposedAxis(
        kernel, 1, 1, kernel, 0, max(0, room - low), max(0, room - high),
        max(0, low - room), max(0, high - room), dilation,
    )  # fmt: skip


def _grid(reach: int, stride: int, low: int) -> int:
    """Return the position of the full result where the phases start, at most `low`.

    It is the last position with the fewest taps. They are the least at a multiple of the stride,
    and then only `reach` phases are not zero. It lies inside the kernel's reach, so that no padding
    is negative.
    """
    if reach < stride:
        return min(0, low // stride * stride)
    most = min(low, reach - 1)
    starts = range(most, most - stride, -1)
    return min(starts, key=lambda g: -(-g // stride) + (reach - 1 - g) // stride)


# Applies a function of (builder, tensor) to one operand: at import if that is known.
Build = Callable[[Callable[[Any, Any], Any]], Any]


def applied(b: Any, known: Any, lifted: Callable[[], Any], build: Callable[[Any, Any], Any]) -> Any:
    """`build(builder, operand)`, computed now for a known operand that is not too large."""
    if isinstance(b, GraphBuilder) and isinstance(known, np.ndarray):
        with suppress(NotWrittenOut):
            return b.constant(build(ConstantBuilder(), known))
    return build(b, lifted())


def transposed_conv2d(
    b: Any, x: Any, weight: Build, bias: Build | None, channels: tuple[int, int],
    axes: tuple[TransposedAxis, TransposedAxis],
) -> Any:  # fmt: skip
    """x [n, c, h, w] with weights [c, f/groups, kh, kw] as [n, f, oh, ow].

    channels: the groups, and f/groups.
    """
    groups, (rows, columns) = channels[0], axes
    for axis, plan in zip(SPATIAL, axes, strict=True):
        x = spaced(b, x, axis, plan.spread)
    out = b.conv2d(
        x,
        weight(lambda b, w: phase_weights(b, w, groups, axes)),
        pads=(rows.low, columns.low, rows.high, columns.high),
        dilations=(rows.dilation, columns.dilation),
        groups=groups,
    )
    phases = rows.phases * columns.phases
    every = phases == rows.stride * columns.stride
    if bias is not None and every:
        out = b.add(out, b.align(bias(lambda b, v: phase_bias(b, v, channels, phases)), 1, 4))
    out = depth_to_space(b, out, channels, axes)
    for axis, plan in zip(SPATIAL, axes, strict=True):
        if plan.front or plan.back:
            out = take(b, out, axis, plan.front, -plan.back if plan.back else END)
    if bias is not None and not every:
        out = b.add(out, b.align(bias(lambda b, v: v), 1, 4))
    return out


def phase_weights(b: Any, w: Any, groups: int, axes: tuple[TransposedAxis, TransposedAxis]) -> Any:
    """[c, f/groups, kh, kw] as conv2d has it: [groups * phases * f/groups, c/groups, taps...]."""
    channels, filters = b.type_of(w).shape[:2]
    for axis, plan in zip(SPATIAL, axes, strict=True):
        w = spaced(b, w, axis, plan.apart)
    after = [p.taps * p.phases - p.kernel - p.before for p in axes]
    w = b.pad(w, low=(0, 0, *(p.before for p in axes)), high=(0, 0, *after))
    rows, columns = axes
    sizes = (rows.taps, rows.phases, columns.taps, columns.phases)
    w = b.reshape(w, shape=(groups, channels // groups, filters, *sizes))
    forward, backward = (0, END, 1), (END, BEGIN, -1)
    bounds = (forward, forward, forward, backward, forward, backward, forward)
    starts, stops, steps = zip(*bounds, strict=True)
    w = b.slice(w, starts=starts, stops=stops, steps=steps)
    w = b.transpose(w, permutation=(0, 4, 6, 2, 1, 3, 5))
    count = groups * rows.phases * columns.phases * filters
    return b.reshape(w, shape=(count, channels // groups, rows.taps, columns.taps))


def phase_bias(b: Any, bias: Any, channels: tuple[int, int], phases: int) -> Any:
    """[f] repeated as the filters are: [groups * phases * f/groups]."""
    groups, filters = channels
    apart = b.reshape(bias, shape=(groups, 1, filters))
    spread = b.broadcast_to(apart, shape=(groups, phases, filters))
    return b.reshape(spread, shape=(groups * phases * filters,))


def depth_to_space(
    b: Any, x: Any, channels: tuple[int, int], axes: tuple[TransposedAxis, TransposedAxis]
) -> Any:
    """[n, g*ph*pw*f, h, w] as [n, g*f, h*sh, w*sw]; phases beyond ph and pw are zeros."""
    if all(p.stride == 1 for p in axes):
        return x
    (groups, filters), (rows, columns) = channels, axes
    group = (groups,) if groups > 1 else ()
    x = split(b, x, 1, (*group, rows.phases, columns.phases, filters))
    at = len(group) + 1
    order = (*range(at), at + 2, at + 3, at, at + 4, at + 1)
    x = b.transpose(x, permutation=order)
    high = [0] * len(order)
    high[-3], high[-1] = rows.stride - rows.phases, columns.stride - columns.phases
    if any(high):
        x = b.pad(x, low=(0,) * len(order), high=tuple(high))
    x = merge(b, merge(b, x, at + 3), at + 1)
    return merge(b, x, 1) if group else x


@dataclass(frozen=True)
class Axis:
    """One axis that windows slide along: sizes, steps, and pads before and after."""

    kernel: int
    stride: int = 1
    dilation: int = 1
    low: int = 0
    high: int = 0

    @property
    def reach(self) -> int:
        """Positions that a window spans."""
        return self.dilation * (self.kernel - 1) + 1


def window_of(axes: Sequence[Axis]) -> dict[str, tuple[int, ...]]:
    """Return the parameters of pyc.conv2d for two axes; pads: top, left, bottom, right."""
    return {
        "strides": tuple(a.stride for a in axes),
        "pads": (*(a.low for a in axes), *(a.high for a in axes)),
        "dilations": tuple(a.dilation for a in axes),
    }


def conv3d(b: Any, x: Any, weight: Any, axes: Sequence[Axis], groups: int) -> Any:
    """Build the convolution of x with weight [f, c / groups, kd, kh, kw]; one pyc.conv2d."""
    deep, *flat = axes
    filters, inner, kd, kh, kw = b.type_of(weight).shape
    x = b.pad(x, low=(0, 0, deep.low, 0, 0), high=(0, 0, deep.high, 0, 0))
    n, c, depth, h, w = b.dims(x)
    if isinstance(depth, SymbolicSize):
        raise unsupported("a dynamic depth of a window over volumes: expected a static one")
    # i64 [out, window]: the depths that each window holds.
    starts = np.arange(0, max(depth - deep.dilation * (kd - 1), 0), deep.stride)
    places = (starts[:, None] + deep.dilation * np.arange(kd)[None, :]).astype(np.int64)
    unfolded = b.transpose(
        b.gather(x, b.constant(places), axis=2), permutation=(0, 2, 1, 3, 4, 5)
    )  # [n, out, c, kd, h, w]
    images = reshape_to(b, unfolded, (product((n, len(places))), product((c, kd)), h, w))
    weight = b.reshape(weight, shape=(filters, inner * kd, kh, kw))
    out = b.conv2d(images, weight, **window_of(flat), groups=groups)
    _, _, height, width = b.dims(out)
    apart = reshape_to(b, out, (n, len(places), filters, height, width))
    return b.transpose(apart, permutation=(0, 2, 1, 3, 4))


def pool3d(b: Any, x: Any, axes: Sequence[Axis], pool: Callable[[Any, Sequence[Axis]], Any]) -> Any:
    """x [n, c, d, h, w] pooled along height and width, then along depth, by a pool of images.

    A mean is that of means, since counts are products of counts.
    """
    deep, *flat = axes
    n, c, d, h, w = b.dims(x)
    out = pool(reshape_to(b, x, (n, product((c, d)), h, w)), flat)
    _, _, height, width = b.dims(out)
    out = pool(reshape_to(b, out, (n, c, d, product((height, width)))), (deep, Axis(1)))
    return reshape_to(b, out, (n, c, b.dims(out)[2], height, width))


def transposed_conv3d(b: Any, x: Any, weight: Any, axes: Sequence[Axis], groups: int) -> Any:
    """Build the gradient of a convolution: `conv3d` of x with zeros between, by reversed weights.

    weight: [c, f / groups, kd, kh, kw]. The axes' pads are the number of elements to crop at the
    ends of the full result; below 0, zeros are added to it.
    """
    channels, few, *kernel = b.type_of(weight).shape
    for axis, a in enumerate(axes, start=2):
        x = spaced(b, x, axis, a.stride - 1)
        index = np.arange(a.kernel)[::-1].astype(np.int64)
        weight = b.gather(weight, b.constant(index), axis=axis)
    # As [f, c / groups, ...].
    apart = b.reshape(weight, shape=(groups, channels // groups, few, *kernel))
    turned = b.transpose(apart, permutation=(0, 2, 1, 3, 4, 5))
    weight = b.reshape(turned, shape=(groups * few, channels // groups, *kernel))
    full = [
        Axis(a.kernel, 1, a.dilation, *(max(0, a.reach - 1 - cut) for cut in (a.low, a.high)))
        for a in axes
    ]
    out = conv3d(b, x, weight, full, groups)
    # What is cut beyond the reach of a window holds no product, nor do zeros that are added.
    for axis, a in enumerate(axes, start=2):
        first, last = (max(0, cut - (a.reach - 1)) for cut in (a.low, a.high))
        if first or last:
            size = b.dims(out)[axis]
            if isinstance(size, SymbolicSize):
                raise unsupported("pads larger than the window: expected static sizes")
            out = take(b, out, axis, first, size - last)
    return out
