"""ConvTranspose: pads, output shapes and `auto_pad` become the axes of a transposed convolution."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.transposed import (
    TransposedAxis,
    applied,
    plan_axis,
    transposed_conv2d,
)
from pyc_mlir.frontends.importing.volumes import transposed_conv3d
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node
from pyc_mlir.frontends.onnx.shared.window import (
    OnnxWindow,
    entries,
    from_2d,
    spatial_rank,
    spatial_sizes,
    to_2d,
    window,
)


@node("ConvTranspose")
def conv_transpose(n: OnnxNode) -> Any:
    """Build one pyc.conv2d whose filters are the phases of the result, and a depth-to-space.

    Over volumes a convolution of x with zeros between its elements.
    """
    n.has(1)
    for name in ("kernel_shape", "output_shape", "output_padding", "auto_pad", "pads"):
        n.attr(name)  # Read: several attributes state the same fact.
    filters, *kernel = _static_weights(n)[1:]
    if spatial_rank(n) == 3:
        return _over_volumes(n, kernel)
    out = transposed_conv2d(
        n.b,
        to_2d(n.b, n.x(0)),
        lambda build: _known(n, 1, lambda b, w: build(b, to_2d(b, w))),
        partial(_known, n, 2) if n.has(2) else None,
        (n.attr("group", 1), filters),
        _axes(n, kernel),
    )
    return from_2d(n.b, out, spatial_rank(n))


def _over_volumes(n: OnnxNode, kernel: Sequence[int]) -> Any:
    b, w, low, high = n.b, *_cut(n, kernel)
    groups = n.attr("group", 1)
    out = transposed_conv3d(b, n.x(0), n.x(1), w.strides, low, high, w.dilations, groups)
    return b.add(out, b.align(n.x(2), 1, 5)) if n.has(2) else out


def _static_weights(n: OnnxNode) -> list[int]:
    """Return the shape of the weights. Raises unsupported for dynamic ones."""
    value = n.operands[1] if n.has(1) else None
    shape = value.shape if isinstance(value, np.ndarray) else n.type(1).shape
    sizes = [d for d in shape if d is not None]
    if len(sizes) < len(shape):
        raise unsupported("weights of dynamic size: expected static ones")
    return sizes


def _known(n: OnnxNode, index: int, build: Callable[[Any, Any], Any]) -> Any:
    """`build(builder, input)`, computed now for a constant of the model that is not too large."""
    return applied(n.b, n.operands[index], lambda: n.x(index), build)


def _axes(n: OnnxNode, kernel: Sequence[int]) -> tuple[TransposedAxis, TransposedAxis]:
    """Plan the rows and the columns."""
    w, low, high = _cut(n, kernel)
    plans = zip(w.kernel, w.strides, w.dilations, low, high, strict=True)
    rows, columns = (plan_axis(*p) for p in plans)
    return rows, columns


def _cut(n: OnnxNode, kernel: Sequence[int]) -> tuple[OnnxWindow, Sequence[int], Sequence[int]]:
    """Return the window and the number of elements to crop at the ends of each axis."""
    w = window(n, kernel) if n.attr("auto_pad", "NOTSET") == "NOTSET" else _no_pads(n, kernel)
    return w, *_crops(n, w, entries(n, "output_padding", 0))


def _no_pads(n: OnnxNode, kernel: Sequence[int]) -> OnnxWindow:
    return OnnxWindow(
        entries(n, "kernel_shape", 1, kernel), entries(n, "strides", 1), entries(n, "dilations", 1),
        (0, 0), (0, 0),
    )  # fmt: skip


def _crops(
    n: OnnxNode, w: OnnxWindow, extra: tuple[int, ...]
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the elements of the full result to crop at the start and the end of each axis."""
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
