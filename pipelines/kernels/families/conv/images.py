"""Find the window that a group begins with: from `Work` to images, axes and feeds.

A group may begin with the transpose that makes NHWC of a network's NCHW input: the kernel then
reads the input as it lies. Or with concatenations and slices of channels, whose parts it reads
(`sources.py`).
"""

import math
from dataclasses import dataclass, replace

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.types import Shape
from pyc_mlir.pipelines.kernels.families.conv.sources import ChannelSlice, find_parts
from pyc_mlir.pipelines.kernels.families.conv.window import ConvAxis
from pyc_mlir.pipelines.kernels.lang.carrier import Dim
from pyc_mlir.pipelines.kernels.match.offers import Feed
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION
from pyc_mlir.pipelines.target.work import Work, WorkOp, float_type

_TO_NHWC = (0, 2, 3, 1)
# Names of sizes that are known at run time only.
_SIDES, _POSITIONS = ("high", "wide"), "positions"


@dataclass(frozen=True)
class Images:
    """A window on NHWC images, the first `covers` ops of a group; x is NCHW if `planar`.

    `weights` is the value of a convolution's constant weights [rows, columns, channels, filters];
    `result` the shape of what the window makes. `feeds` are the images, or the tensors that
    `parts` are of.
    """

    images: Dim
    rows: ConvAxis
    columns: ConvAxis
    channels: int
    filters: int
    result: Shape
    covers: int
    feeds: tuple[Feed, ...]
    planar: bool = False
    groups: int = 1
    weights: int | None = None
    parts: tuple[ChannelSlice, ...] = ()
    dtype: str = "f32"

    @property
    def is_flat(self) -> bool:
        """True for a window of one position that takes every position of the image."""
        return all(a == ConvAxis(a.size, name=a.name) for a in (self.rows, self.columns))

    @property
    def is_static(self) -> bool:
        """True where the size of the images is known."""
        return not (self.rows.name or self.columns.name)

    @property
    def flat(self) -> "Images":
        """The same with all positions in one row, of all images where a kernel can count them."""
        positions = self.rows.size * self.columns.size
        if not self.is_static:
            columns = ConvAxis(positions, name=_POSITIONS)
            images = self.images if self.planar else 1
            return self._in_one_row(images, columns, (1, 2, 2) if self.planar else (0, 0, 3))
        if self.planar or isinstance(self.images, str):
            cuts = (1, 2, 2) if self.planar else (1, 1, 3)
            return self._in_one_row(self.images, ConvAxis(positions), cuts)
        return self._in_one_row(1, ConvAxis(self.images * positions), (0, 0, 3))

    def _in_one_row(self, images: Dim, columns: ConvAxis, cuts: tuple[int, ...]) -> "Images":
        feeds = tuple(replace(feed, cuts=cuts) for feed in self.feeds)
        return replace(self, images=images, rows=ConvAxis(1), columns=columns, feeds=feeds)


def find(work: Work, *names: str, dynamic: bool = False) -> Images | None:
    """Find the window op of floats that a group begins with, one of `names`; None without a kernel.

    Batches may be dynamic. So may be images, if that is `dynamic`, in each dimension of which there
    are as many outputs.
    """
    planar = "conv2d" in names and _is_planar(work)
    joined = find_parts(work)
    before = joined.covers if joined else int(planar)
    node = work.nodes[before]
    dtype = float_type(work, node.operands)
    if node.name not in names or node.params["layout"] != "NHWC" or not dtype:
        return None
    if before and node.operands[0] != work.number_of(before - 1):
        return None
    sources = work.nodes[0].operands[:1] if planar else node.operands[:1]
    images, *image = work.type(node.operands[0]).shape
    kernel = _kernel(work, node)
    *sides, channels = image
    if kernel is None or images == 0 or (None in sides and not dynamic):
        return None
    try:
        rows, columns = (_axis(node, axis, size, kernel) for axis, size in enumerate(sides))
    except PycError:
        return None
    result = node.type.shape
    filters = result[3]
    if not filters or not channels:
        return None
    found = Images(
        "n" if images is None else images, rows, columns, channels, filters, result, before + 1,
        tuple(Feed(v, (1, 2, 3)) for v in (joined.values if joined else sources)), planar,
        parts=joined.parts if joined else (), dtype=dtype,
    )  # fmt: skip
    if node.name != "conv2d":
        return found
    weights = node.operands[1]
    # Kernels leave out padding, where an infinite weight would make NaN.
    if not work.is_constant(weights) or not math.isfinite(work.inputs[weights].magnitude):
        return None
    return replace(found, groups=node.params["groups"], weights=weights)


def _kernel(work: Work, node: WorkOp) -> tuple[int, int] | None:
    """Return the taps along both axes; None where they are not known."""
    size = node.params.get("kernel") or work.type(node.operands[1]).shape[:2]
    rows, columns = size
    return None if rows is None or columns is None else (rows, columns)


def _axis(node: WorkOp, axis: int, size: int | None, kernel: tuple[int, int]) -> ConvAxis:
    pads, dilations = node.params["pads"], node.params.get("dilations", (1, 1))
    window = (kernel[axis], node.params["strides"][axis], pads[axis], pads[axis + 2])
    if size is None:
        return ConvAxis(NOMINAL_DIMENSION, *window, dilations[axis], _SIDES[axis])
    return ConvAxis(size, *window, dilations[axis])


def _is_planar(work: Work) -> bool:
    """Return whether the group begins with a transpose to NHWC that only the convolution reads."""
    first = work.nodes[0]
    if first.name != "transpose" or tuple(first.params["permutation"]) != _TO_NHWC:
        return False
    own = work.number_of(0)
    return (
        len(work.nodes) > 1
        and work.nodes[1].operands[0] == own
        and own not in (o for n in work.nodes[2:] for o in n.operands)
    )
