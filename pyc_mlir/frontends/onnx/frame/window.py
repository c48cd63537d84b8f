"""Windows that slide over one or two spatial axes: parameters shared by convolution and pooling.

One-dimensional windows become two-dimensional ones of height 1. `Window.pads` is pyc's
(top, left, bottom, right).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.frame.errors import unsupported
from pyc_mlir.frontends.onnx.frame.handler import Node


@dataclass(frozen=True)
class Window:
    """Kernel sizes, strides, dilations and pads for the axes (height, width)."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    low: tuple[int, int]
    high: tuple[int, int]

    @property
    def pads(self) -> tuple[int, int, int, int]:
        """pyc's order."""
        return (*self.low, *self.high)

    @property
    def reach(self) -> tuple[int, int]:
        """Positions that a window spans on each axis."""
        a, b = (d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilations, strict=True))
        return a, b


def spatial_rank(n: Node) -> int:
    """1 or 2. Raises unsupported for other ranks."""
    rank = n.type(0).rank - 2
    if rank not in (1, 2):
        raise unsupported(f"{rank} spatial dimensions: expected 1 or 2")
    return rank


def to_2d(b: Any, x: Any) -> Any:
    """[n, c, w] as [n, c, 1, w]; rank 4 as it is."""
    return b.expand_dims(x, 2) if b.type_of(x).rank == 3 else x


def from_2d(b: Any, x: Any, rank: int) -> Any:
    """The inverse of `to_2d`, for `rank` spatial dimensions."""
    return b.squeeze(x, 2) if rank == 1 else x


def pair(n: Node, name: str, default: int, values: Sequence[int] | None = None) -> tuple[int, int]:
    """An attribute with an entry for each spatial axis, as (height, width)."""
    rank = spatial_rank(n)
    given = values if values is not None else n.attr(name, [default] * rank)
    if len(given) != rank:
        raise PycError(
            ReasonCode.BAD_MODEL, f"`{name}`: expected {rank} entries, got {list(given)}"
        )
    filled = [default] * (2 - rank) + [int(v) for v in given]
    return filled[0], filled[1]


def window(n: Node, kernel: Sequence[int]) -> Window:
    """The window of a Conv or pool node, its pads found from `auto_pad` and `ceil_mode`."""
    rank = spatial_rank(n)
    pads = n.attr("pads", [0] * (2 * rank))
    if min(pads, default=0) < 0:
        raise unsupported(f"negative pads {list(pads)}")
    plain = Window(
        pair(n, "kernel_shape", 1, kernel),
        pair(n, "strides", 1),
        pair(n, "dilations", 1),
        pair(n, "pads", 0, pads[:rank]),
        pair(n, "pads", 0, pads[rank:]),
    )
    mode = n.attr("auto_pad", "NOTSET")
    if mode in ("NOTSET", ""):
        return _ceiled(n, plain) if n.attr("ceil_mode", 0) else plain
    if mode == "VALID":
        plain = Window(plain.kernel, plain.strides, plain.dilations, (0, 0), (0, 0))
        return _ceiled(n, plain) if n.attr("ceil_mode", 0) else plain
    return _same(n, plain, mode)


def sizes_2d(n: Node, why: str) -> tuple[int, int]:
    """Height and width of input 0, which must be static."""
    shape = n.type(0).shape[2:]
    if None in shape:
        raise unsupported(f"{why} with dynamic spatial dimensions: expected static ones")
    height, width = (1,) * (2 - len(shape)) + tuple(d for d in shape if d is not None)
    return height, width


def _same(n: Node, plain: Window, mode: str) -> Window:
    """SAME_UPPER, SAME_LOWER: ceil(size / stride) windows, the odd pad at the end or start."""
    low, high = [], []
    for size, stride, reach in zip(
        sizes_2d(n, f"auto_pad={mode}"), plain.strides, plain.reach, strict=True
    ):
        total = max(0, (-(-size // stride) - 1) * stride + reach - size)
        small, large = total // 2, total - total // 2
        low.append(small if mode == "SAME_UPPER" else large)
        high.append(large if mode == "SAME_UPPER" else small)
    return Window(
        plain.kernel, plain.strides, plain.dilations, (low[0], low[1]), (high[0], high[1])
    )


def _ceiled(n: Node, plain: Window) -> Window:
    """ceil_mode: the pads at the end that let a last, partial window count.

    A window that would start in the end's padding is dropped.
    """
    high = []
    for size, stride, reach, low, given in zip(
        sizes_2d(n, "ceil_mode"), plain.strides, plain.reach, plain.low, plain.high, strict=True
    ):
        count = -(-(size + low + given - reach) // stride) + 1
        if (count - 1) * stride >= size + low:
            count -= 1
        high.append(max(0, (count - 1) * stride + reach - size - low))
    return Window(plain.kernel, plain.strides, plain.dilations, plain.low, (high[0], high[1]))
