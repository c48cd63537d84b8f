"""ConvTranspose as one ordinary convolution and a depth-to-space: no zeros between elements.

Along an axis, ``full[s*i + p] += x[i] * w[p]``. The result at ``s*t + u - front`` (phase u < s) is

    sum over j of x[t + j - low] * w[s*(taps - 1 - j) + u - before]

a stride-1 correlation of x with the taps of that phase: the sub-pixel form (Shi et al., "Is the
deconvolution layer the same as a convolutional layer?", arXiv:1609.07009, 2016). The phases of all
axes are filters of one conv2d, ordered (phase of rows, phase of columns, filter) inside a group;
the depth-to-space puts them side by side. Taps that a phase lacks are zeros: they add nothing to a
sum, but make NaN of an infinite x that they meet.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.ops.movement import START as BEGIN
from pyc_mlir.frontends.frame.builders import ConstantBuilder, TooLarge
from pyc_mlir.frontends.frame.errors import unsupported
from pyc_mlir.frontends.frame.shaping import merge, split, take
from pyc_mlir.frontends.onnx.frame.handler import Node, node
from pyc_mlir.frontends.onnx.frame.window import (
    Window,
    entries,
    from_2d,
    spatial_rank,
    spatial_sizes,
    to_2d,
    window,
)

SPATIAL = (2, 3)
# Taps of all phases, zeros included, that a dilated kernel may have for each tap of its own.
_MOST_TAPS = 3


@dataclass(frozen=True)
class Axis:
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


def plan_axis(kernel: int, stride: int, dilation: int, low: int, high: int) -> Axis:
    """The axis whose full result loses `low` and `high` positions (negative: gains zeros)."""
    if stride == 1:
        return _plain(kernel, dilation, low, high)
    reach = dilation * (kernel - 1) + 1
    taps, phases = -(-reach // stride), min(stride, reach)
    if dilation > 1 and (taps > kernel or taps * phases > _MOST_TAPS * kernel):
        plain = _plain(kernel, dilation, low, high)
        return Axis(**{**vars(plain), "spread": stride - 1})
    grid = _grid(reach, stride, low)
    last = -(-grid // stride)
    rest = reach - grid - high
    blocks = -(-rest // stride)
    start, end = (reach - 1 - grid) // stride, last - 1 + blocks
    missing = max(0, -end)
    return Axis(
        reach, stride, phases, last + start + 1, stride * last - grid, start, max(0, end),
        low - grid, (blocks + missing) * stride - rest, apart=dilation - 1,
    )  # fmt: skip


def _plain(kernel: int, dilation: int, low: int, high: int) -> Axis:
    """Stride 1: the correlation with the flipped kernel."""
    room = dilation * (kernel - 1)
    return Axis(
        kernel, 1, 1, kernel, 0, max(0, room - low), max(0, room - high),
        max(0, low - room), max(0, high - room), dilation,
    )  # fmt: skip


def _grid(reach: int, stride: int, low: int) -> int:
    """The position of the full result where the phases start, at most `low`.

    The last one with the fewest taps: they are the least where it is a multiple of the stride, and
    then only `reach` phases are not zero. It lies inside the kernel's reach, so that no padding is
    negative.
    """
    if reach < stride:
        return min(0, low // stride * stride)
    most = min(low, reach - 1)
    starts = range(most, most - stride, -1)
    return min(starts, key=lambda g: -(-g // stride) + (reach - 1 - g) // stride)


@node("ConvTranspose")
def conv_transpose(n: Node) -> Any:
    """One pyc.conv2d whose filters are the phases of the result, and a depth-to-space."""
    if spatial_rank(n) == 3:
        raise unsupported("3 spatial dimensions: expected 1 or 2")
    n.has(1)
    for name in ("kernel_shape", "output_shape", "output_padding", "auto_pad", "pads"):
        n.attr(name)  # Some say again what others do.
    b, groups = n.b, n.attr("group", 1)
    filters, *kernel = _static_weights(n)[1:]
    axes = _axes(n, kernel)
    rows, columns = axes
    x = to_2d(b, n.x(0))
    for axis, plan in zip(SPATIAL, axes, strict=True):
        x = _spaced(b, x, axis, plan.spread)
    out = b.conv2d(
        x,
        _known(n, 1, lambda b, w: _phase_weights(b, to_2d(b, w), groups, axes)),
        pads=(rows.low, columns.low, rows.high, columns.high),
        dilations=(rows.dilation, columns.dilation),
        groups=groups,
    )
    phases = rows.phases * columns.phases
    every = phases == rows.stride * columns.stride
    if n.has(2) and every:
        bias = _known(n, 2, lambda b, v: _phase_bias(b, v, groups, phases, filters))
        out = b.add(out, b.align(bias, 1, 4))
    out = _depth_to_space(b, out, (groups, filters), axes)
    for axis, plan in zip(SPATIAL, axes, strict=True):
        if plan.front or plan.back:
            out = take(b, out, axis, plan.front, -plan.back if plan.back else END)
    if n.has(2) and not every:
        out = b.add(out, b.align(n.x(2), 1, 4))
    return from_2d(b, out, spatial_rank(n))


def _static_weights(n: Node) -> list[int]:
    """The shape of the weights. Raises unsupported for dynamic ones."""
    value = n.operands[1]
    shape = value.shape if isinstance(value, np.ndarray) else n.type(1).shape
    sizes = [d for d in shape if d is not None]
    if len(sizes) < len(shape):
        raise unsupported("weights of dynamic size: expected static ones")
    return sizes


def _known(n: Node, index: int, build: Callable[[Any, Any], Any]) -> Any:
    """`build(builder, input)`, computed now for a constant of the model that is not too large."""
    value = n.operands[index]
    if n.emits and isinstance(value, np.ndarray):
        with suppress(TooLarge):
            return n.b.constant(build(ConstantBuilder(), value))
    return build(n.b, n.x(index))


def _axes(n: Node, kernel: Sequence[int]) -> tuple[Axis, Axis]:
    """The plans for rows and columns."""
    w = window(n, kernel) if n.attr("auto_pad", "NOTSET") == "NOTSET" else _no_pads(n, kernel)
    low, high = _crops(n, w, entries(n, "output_padding", 0))
    plans = zip(w.kernel, w.strides, w.dilations, low, high, strict=True)
    rows, columns = (plan_axis(*p) for p in plans)
    return rows, columns


def _no_pads(n: Node, kernel: Sequence[int]) -> Window:
    return Window(
        entries(n, "kernel_shape", 1, kernel), entries(n, "strides", 1), entries(n, "dilations", 1),
        (0, 0), (0, 0),
    )  # fmt: skip


def _crops(n: Node, w: Window, extra: tuple[int, ...]) -> tuple[Sequence[int], Sequence[int]]:
    """How much of the full result falls away at the start and the end of each axis."""
    shape = n.attr("output_shape")
    mode = n.attr("auto_pad", "NOTSET")
    if shape is None and mode in ("NOTSET", "VALID"):
        return w.low, [h - e for h, e in zip(w.high, extra, strict=True)]
    if shape is None:
        totals = [r - s + e for r, s, e in zip(w.reach, w.strides, extra, strict=True)]
    else:
        inputs = spatial_sizes(n, "output_shape")
        wanted = entries(n, "output_shape", 1, shape[-spatial_rank(n) :])
        totals = [
            (size - 1) * s + r + e - want
            for size, s, r, e, want in zip(inputs, w.strides, w.reach, extra, wanted, strict=True)
        ]
    low = [t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in totals]
    return low, [t - a - e for t, a, e in zip(totals, low, extra, strict=True)]


def _phase_weights(b: Any, w: Any, groups: int, axes: tuple[Axis, Axis]) -> Any:
    """[c, f/groups, kh, kw] as conv2d has it: [groups * phases * f/groups, c/groups, taps...]."""
    channels, filters = b.type_of(w).shape[:2]
    for axis, plan in zip(SPATIAL, axes, strict=True):
        w = _spaced(b, w, axis, plan.apart)
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


def _phase_bias(b: Any, bias: Any, groups: int, phases: int, filters: int) -> Any:
    """[f] repeated as the filters are: [groups * phases * f/groups]."""
    apart = b.reshape(bias, shape=(groups, 1, filters))
    spread = b.broadcast_to(apart, shape=(groups, phases, filters))
    return b.reshape(spread, shape=(groups * phases * filters,))


def _depth_to_space(b: Any, x: Any, channels: tuple[int, int], axes: tuple[Axis, Axis]) -> Any:
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


def _spaced(b: Any, x: Any, axis: int, zeros: int) -> Any:
    """x of rank 4 with `zeros` zeros between neighbours along `axis`."""
    if not zeros:
        return x
    apart = b.expand_dims(x, axis + 1)
    high = tuple(zeros if i == axis + 1 else 0 for i in range(5))
    apart = b.pad(apart, low=(0,) * 5, high=high)
    return take(b, merge(b, apart, axis), axis, 0, -zeros)
