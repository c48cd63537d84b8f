"""The geometry of a convolution of bytes in tiles: rows of pixels, chunks of channels, padding.

A tile's row is one pixel's bytes under neighbouring taps of a row, which lie one after the other in
NHWC images; its rows are neighbouring outputs. A padded image is copied with its border first.
"""

from dataclasses import dataclass

from pyc_mlir.pipelines.kernels.families.conv.window import ConvAxis
from pyc_mlir.pipelines.kernels.families.int8.dot import QUAD
from pyc_mlir.pipelines.kernels.families.int8.weights import starts_of
from pyc_mlir.pipelines.kernels.lang.tiles import ROW_BYTES, ROWS


@dataclass(frozen=True)
class TileWindow:
    """A window over images of so many channels."""

    rows: ConvAxis
    columns: ConvAxis
    channels: int

    @property
    def is_product(self) -> bool:
        """True for a window of one tap that meets each pixel: pixels are the rows of a matrix."""
        axes = (self.rows, self.columns)
        return all((a.kernel, a.stride, a.low, a.high) == (1, 1, 0, 0) for a in axes)

    @property
    def runs(self) -> tuple[int, int]:
        """How many runs of neighbouring bytes the window has, and the bytes of one.

        A run is a row of taps; of taps that lie apart, one of them.
        """
        high, wide = self.rows.kernel, self.columns.kernel
        if self.columns.dilation == 1 or wide == 1:
            return high, wide * self.channels
        return high * wide, self.channels

    @property
    def is_copied(self) -> bool:
        """True where the image is copied: it has a border, or rows of tiles would pass its end."""
        depth = self.runs[1]
        borders = (self.rows.low, self.rows.high, self.columns.low, self.columns.high)
        return any(borders) or (not self.is_product and depth < ROW_BYTES and depth % QUAD != 0)

    @property
    def chunk(self) -> int:
        """The bytes of a tile's row, in fours; 0 for too few channels."""
        depth = self.runs[1]
        even = -(-depth // -(-depth // ROW_BYTES))
        chunk = -(-even // QUAD) * QUAD
        return chunk if chunk <= depth or self.is_copied else depth // QUAD * QUAD

    @property
    def starts(self) -> list[int]:
        """The first byte of each chunk of a run."""
        return starts_of(self.runs[1], self.chunk)

    @property
    def steps(self) -> int:
        """How many products of tiles a tile of sums has."""
        return self.runs[0] * len(self.starts)

    @property
    def height(self) -> int:
        """The pixels of a tile: those of a row of outputs evenly cut."""
        outputs = self.columns.outputs
        return -(-outputs // -(-outputs // ROWS))

    @property
    def pitch(self) -> int:
        """The bytes of a row of the image, or of its copy."""
        border = self.columns.low + self.columns.high if self.is_copied else 0
        return (self.columns.size + border) * self.channels

    @property
    def reach(self) -> int:
        """How many rows of the image a row of outputs has more than the next one starts behind."""
        return max(0, self.rows.dilation * (self.rows.kernel - 1) + 1 - self.rows.stride)

    def copied_bytes(self, parts: int) -> int:
        """Return the size of a copy for one of `parts` shares of the rows, with a line to spare."""
        rows = -(-self.rows.outputs // parts) * self.rows.stride + self.reach
        return -(-rows * self.pitch // ROW_BYTES) * ROW_BYTES + ROW_BYTES
