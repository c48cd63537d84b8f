"""Windows that slide over one to three spatial axes: parameters of convolution and pooling.

One-dimensional windows become two-dimensional ones of height 1. `OnnxWindow.pads` is pyc's
(top, left, bottom, right), after the depth's of a three-dimensional one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode

# Values of `auto_pad` with which `ceil_mode` counts; with others the sizes alone say the pads.
CEILED = ("NOTSET", "", "VALID")


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
        """pyc's order."""
        return (*self.low, *self.high)

    @property
    def reach(self) -> tuple[int, ...]:
        """Positions that a window spans on each axis."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


def spatial_rank(n: OnnxNode) -> int:
    """1, 2 or 3. Raises unsupported for other ranks."""
    rank = n.type(0).rank - 2
    if rank not in (1, 2, 3):
        raise unsupported(f"{rank} spatial dimensions: expected 1 to 3")
    return rank


def to_2d(b: Any, x: Any) -> Any:
    """[n, c, w] as [n, c, 1, w]; other ranks as they are."""
    return b.expand_dims(x, 2) if b.type_of(x).rank == 3 else x


def from_2d(b: Any, x: Any, rank: int) -> Any:
    """Undo `to_2d` for `rank` spatial dimensions."""
    return b.squeeze(x, 2) if rank == 1 else x


def entries(
    n: OnnxNode, name: str, default: int, values: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Return an attribute with an entry per spatial axis, as (height, width) or (depth, ...)."""
    rank = spatial_rank(n)
    given = values if values is not None else n.attr(name, [default] * rank)
    if len(given) != rank:
        raise PycError(
            ReasonCode.BAD_MODEL, f"`{name}`: expected {rank} entries, got {list(given)}"
        )
    return (*[default] * (2 - rank), *(int(v) for v in given))


def weights_window(n: OnnxNode, index: int = 1) -> tuple[int, ...]:
    """Return the spatial sizes of a convolution's weights, input `index`.

    Raises unsupported for dynamic ones, PycError (BAD_MODEL) where `kernel_shape` states others.
    """
    shape = n.type(index).shape[2:]
    known = tuple(d for d in shape if d is not None)
    if known != shape:
        raise unsupported("weights of dynamic size: expected static ones")
    if (stated := tuple(n.attr("kernel_shape", known))) != known:
        expected = f"the sizes {list(known)} of the weights, got {list(stated)}"
        raise PycError(ReasonCode.BAD_MODEL, f"`kernel_shape`: expected {expected}")
    return known


def window(n: OnnxNode, kernel: Sequence[int]) -> OnnxWindow:
    """Return the window of a Conv or pool node, its pads found from `auto_pad` and `ceil_mode`."""
    rank = spatial_rank(n)
    pads = n.attr("pads", [0] * (2 * rank))
    if min(pads, default=0) < 0:
        raise unsupported(f"negative pads {list(pads)}")
    plain = OnnxWindow(
        entries(n, "kernel_shape", 1, kernel),
        entries(n, "strides", 1),
        entries(n, "dilations", 1),
        entries(n, "pads", 0, pads[:rank]),
        entries(n, "pads", 0, pads[rank:]),
    )
    mode, ceiled = n.attr("auto_pad", "NOTSET"), n.attr("ceil_mode", 0)
    if mode not in CEILED:
        return _same(n, plain, mode)
    if mode == "VALID":
        none = (0,) * len(plain.kernel)
        plain = OnnxWindow(plain.kernel, plain.strides, plain.dilations, none, none)
    return _ceiled(n, plain) if ceiled else plain


def spatial_sizes(n: OnnxNode, why: str) -> tuple[int, ...]:
    """Return height and width (and the depth before them) of input 0, which must be static."""
    shape = n.type(0).shape[2:]
    if None in shape:
        raise unsupported(f"{why} with dynamic spatial dimensions: expected static ones")
    return (1,) * (2 - len(shape)) + tuple(d for d in shape if d is not None)


def _same(n: OnnxNode, plain: OnnxWindow, mode: str) -> OnnxWindow:
    """SAME_UPPER, SAME_LOWER: ceil(size / stride) windows, the odd pad at the end or start."""
    low, high = [], []
    for size, stride, reach in zip(
        spatial_sizes(n, f"auto_pad={mode}"), plain.strides, plain.reach, strict=True
    ):
        total = max(0, (-(-size // stride) - 1) * stride + reach - size)
        small, large = total // 2, total - total // 2
        low.append(small if mode == "SAME_UPPER" else large)
        high.append(large if mode == "SAME_UPPER" else small)
    return OnnxWindow(plain.kernel, plain.strides, plain.dilations, tuple(low), tuple(high))


def _ceiled(n: OnnxNode, plain: OnnxWindow) -> OnnxWindow:
    """ceil_mode: the pads at the end that let a last, partial window count.

    A window that would start in the end's padding is dropped.
    """
    high = []
    sizes = spatial_sizes(n, "ceil_mode")
    for size, stride, reach, low, given in zip(
        sizes, plain.strides, plain.reach, plain.low, plain.high, strict=True
    ):
        count = -(-(size + low + given - reach) // stride) + 1
        if (count - 1) * stride >= size + low:
            count -= 1
        high.append(max(0, (count - 1) * stride + reach - size - low))
    return OnnxWindow(plain.kernel, plain.strides, plain.dilations, plain.low, tuple(high))
