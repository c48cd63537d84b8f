"""Two-dimensional convolution and pooling.

Layouts: NCHW has x [n, c, h, w] and weights [f, c/groups, kh, kw]; NHWC has x [n, h, w, c] and
weights [kh, kw, c/groups, f]. `pads` is (top, left, bottom, right).
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OpDef, Trait
from pyc_mlir.dialects.ops.contraction import product
from pyc_mlir.dialects.ops.elementwise import FLOAT, NUMBER, require_dtype
from pyc_mlir.dialects.ops.shapes import agree, require, same_dtype, show
from pyc_mlir.dialects.types import TensorType, is_float, lowest

LAYOUTS = ("NCHW", "NHWC")


def window_size(
    size: int | None, kernel: int | None, stride: int, low: int, high: int, dilation: int
) -> int | None:
    """Return a window's positions along one axis: floor((size + pads - reach) / stride) + 1."""
    if size is None or kernel is None:
        return None
    return max(0, (size + low + high - (dilation * (kernel - 1) + 1)) // stride + 1)


def check_window(
    x: TensorType,
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    layout: str,
) -> None:
    """Raise VerificationError for parameters that no window can have."""
    require(layout in LAYOUTS, f"`layout`: expected one of {LAYOUTS}, got {layout!r}")
    require(x.rank == 4, f"expected an operand of rank 4, got {show(x.shape)}")
    require(len(strides) == 2 and min(strides) >= 1, "`strides`: expected two sizes >= 1")
    require(len(dilations) == 2 and min(dilations) >= 1, "`dilations`: expected two sizes >= 1")
    require(len(pads) == 4 and min(pads) >= 0, "`pads`: expected (top, left, bottom, right) >= 0")


def spatial(layout: str) -> tuple[int, int]:
    """Return the axes of height and width."""
    return (2, 3) if layout == "NCHW" else (1, 2)


def output_shape(
    x: TensorType,
    channels: int | None,
    kernel: Sequence[int | None],
    window: dict[str, Any],
    layout: str,
) -> TensorType:
    """Return the result of sliding a window over x; `window` holds strides, pads and dilations."""
    (h, w), (sh, sw), (top, left, bottom, right), (dh, dw) = (
        spatial(layout),
        window["strides"],
        window["pads"],
        window["dilations"],
    )
    rows = window_size(x.shape[h], kernel[0], sh, top, bottom, dh)
    columns = window_size(x.shape[w], kernel[1], sw, left, right, dw)
    n = x.shape[0]
    shape = (n, channels, rows, columns) if layout == "NCHW" else (n, rows, columns, channels)
    return x.with_shape(shape)


def to_nchw(x: np.ndarray, layout: str) -> np.ndarray:
    """Return x with channels second."""
    return x if layout == "NCHW" else x.transpose(0, 3, 1, 2)


def from_nchw(x: np.ndarray, layout: str) -> np.ndarray:
    """Return the inverse of `to_nchw`."""
    return x if layout == "NCHW" else x.transpose(0, 2, 3, 1)


def padded(x: np.ndarray, pads: Sequence[int], value: Any) -> np.ndarray:
    """Return x [n, c, h, w] with its borders."""
    top, left, bottom, right = pads
    return np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=value)


def taps(
    x: np.ndarray, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield for each kernel position its strided view of the padded x: (i, j, [n, c, oh, ow])."""
    sizes = [
        window_size(x.shape[2 + a], kernel[a], strides[a], 0, 0, dilations[a]) or 0 for a in (0, 1)
    ]
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            rows = slice(i * dilations[0], i * dilations[0] + sizes[0] * strides[0], strides[0])
            columns = slice(j * dilations[1], j * dilations[1] + sizes[1] * strides[1], strides[1])
            yield i, j, x[:, :, rows, columns][:, :, : sizes[0], : sizes[1]]


class Conv2d(
    OpDef, name="conv2d", operands="x weight", traits=Trait.WINDOW | Trait.FINITE_OPERANDS
):
    """out[n, f, i, j] = sum over c, p, q of x[n, c, i*s+p*d-pad, j*s+q*d-pad] * weight[f, c, p, q].

    With groups, channel block g of x meets filter block g. The 16-bit floats are accumulated in
    f32 and rounded once.
    """

    strides: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilations: tuple[int, ...] = (1, 1)
    groups: int = 1
    layout: str = "NCHW"
    anchor = "contraction"

    @staticmethod
    def infer(
        x: TensorType, weight: TensorType, *, groups: int, layout: str, **window: Any
    ) -> TensorType:
        """[n, f, oh, ow], or [n, oh, ow, f] for NHWC."""
        check_window(x, layout=layout, **window)
        require_dtype(x, NUMBER, "operand 0")
        same_dtype(x, weight)
        require(weight.rank == 4, f"weight: expected rank 4, got {show(weight.shape)}")
        nchw = layout == "NCHW"
        filters, depth = (weight.shape[0], weight.shape[1]) if nchw else weight.shape[:1:-1]
        kernel = weight.shape[2:] if nchw else weight.shape[:2]
        channels = x.shape[1] if nchw else x.shape[3]
        require(groups >= 1, f"`groups`: expected >= 1, got {groups}")
        per_group = None if channels is None else channels // groups
        require(
            agree(per_group, depth) and (channels is None or channels % groups == 0),
            f"channels: x has {channels}, weight has {depth} for each of {groups} groups",
        )
        require(filters is None or filters % groups == 0, f"{filters} filters, {groups} groups")
        return output_shape(x, filters, kernel, window, layout)

    @staticmethod
    def reference(
        x: np.ndarray, weight: np.ndarray, *, groups: int, layout: str, **window: Any
    ) -> np.ndarray:
        """Return a product for each kernel position; floats in f64."""
        wide = np.float64 if is_float(x.dtype) else x.dtype
        data = padded(to_nchw(x, layout).astype(wide), window["pads"], 0)
        filters = (weight if layout == "NCHW" else weight.transpose(3, 2, 0, 1)).astype(wide)
        f, depth, *kernel = filters.shape
        n = data.shape[0]
        filters = filters.reshape(groups, f // groups, depth, *kernel)
        out: Any = 0
        for i, j, view in taps(data, kernel, window["strides"], window["dilations"]):
            blocks = view.reshape(n, groups, depth, view.shape[2] * view.shape[3])
            rows, columns = view.shape[2:]
            out = out + product(filters[..., i, j], blocks)
        out = out.reshape(n, f, rows, columns)
        return from_nchw(out, layout)

    @classmethod
    def flops(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """2 * outputs * (c / groups) * kh * kw."""
        weight = inputs[1]
        filters = weight.shape[0] if params["layout"] == "NCHW" else weight.shape[3]
        return 2 * out.elements * weight.elements // max(1, filters or 0)

    @classmethod
    def evaluation_work(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """Count also the view of x and the sum that the reference makes for each kernel place."""
        x, weight = inputs
        nchw = params["layout"] == "NCHW"
        kernel = weight.shape[2:] if nchw else weight.shape[:2]
        filters, channels = out.shape[1 if nchw else 3], x.shape[1 if nchw else 3]
        read = out.elements // max(1, filters or 0) * (channels or 0)
        moved = math.prod(k or 0 for k in kernel) * (read + 2 * out.elements)
        return super().evaluation_work(inputs, out, **params) + cls.element_work // 2 * moved


class Pooling(OpDef, traits=Trait.WINDOW):
    """Base of poolings over windows of `kernel`."""

    anchor = "window"

    @classmethod
    def flops(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """Return one operation for each element of each window."""
        return out.elements * math.prod(params["kernel"])


def _check_kernel(kernel: Sequence[int]) -> None:
    require(len(kernel) == 2 and min(kernel) >= 1, "`kernel`: expected two sizes >= 1")


def _channels(x: TensorType, layout: str) -> int | None:
    return x.shape[1] if layout == "NCHW" else x.shape[3]


class MaxPool2d(Pooling, name="max_pool2d", operands="x"):
    """out = the maximum of each window; padding never wins. NaN if any is."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilations: tuple[int, ...] = (1, 1)
    layout: str = "NCHW"

    @staticmethod
    def infer(x: TensorType, *, kernel: tuple[int, ...], layout: str, **window: Any) -> TensorType:
        """Return the window positions, same channels."""
        check_window(x, layout=layout, **window)
        _check_kernel(kernel)
        require_dtype(x, NUMBER, "operand 0")
        return output_shape(x, _channels(x, layout), kernel, window, layout)

    @staticmethod
    def reference(
        x: np.ndarray, *, kernel: tuple[int, ...], layout: str, **window: Any
    ) -> np.ndarray:
        """Return the maximum over strided views."""
        wide = to_nchw(x, layout).astype(np.float64 if is_float(x.dtype) else x.dtype)
        data = padded(wide, window["pads"], lowest(wide.dtype))
        out = None
        for _, _, view in taps(data, kernel, window["strides"], window["dilations"]):
            out = view if out is None else np.maximum(out, view)
        assert out is not None
        return from_nchw(out, layout)


class AvgPool2d(Pooling, name="avg_pool2d", operands="x"):
    """out = the mean of each window, over all kh*kw positions or (by default) those inside x."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    count_include_pad: bool = False
    layout: str = "NCHW"

    @staticmethod
    def infer(x: TensorType, *, kernel: tuple[int, ...], layout: str, **params: Any) -> TensorType:
        """Return the window positions, same channels."""
        window = {"strides": params["strides"], "pads": params["pads"], "dilations": (1, 1)}
        check_window(x, layout=layout, **window)
        _check_kernel(kernel)
        require_dtype(x, FLOAT, "operand 0")
        return output_shape(x, _channels(x, layout), kernel, window, layout)

    @staticmethod
    def reference(
        x: np.ndarray,
        *,
        kernel: tuple[int, ...],
        pads: tuple[int, ...],
        count_include_pad: bool,
        layout: str,
        strides: tuple[int, ...],
    ) -> np.ndarray:
        """Return the sum of strided views over the count of positions, in f64."""
        data = to_nchw(x, layout).astype(np.float64)
        inside = np.ones_like(data[:1, :1])
        total: Any = 0
        count: Any = 0
        views = zip(
            taps(padded(data, pads, 0), kernel, strides, (1, 1)),
            taps(padded(inside, pads, float(count_include_pad)), kernel, strides, (1, 1)),
            strict=True,
        )
        for (_, _, view), (_, _, ones) in views:
            total, count = total + view, count + ones
        return from_nchw(total / count, layout)
