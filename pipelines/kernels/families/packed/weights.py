"""How weights of few bits are laid out when compiling: words, scales and zero points in panels."""

from dataclasses import dataclass

import numpy as np

from pyc_mlir.pipelines.kernels.families.packing import Panels

WORD = 32


def in_panels(matrix: np.ndarray, panels: Panels) -> np.ndarray:
    """Return [depth, columns] as panels, each [depth][panel], the last one padded; flat."""
    whole = matrix[:, : panels.edge].reshape(panels.depth, panels.full, panels.panel)
    last = np.zeros((panels.depth, panels.last_width), matrix.dtype)
    last[:, : panels.columns - panels.edge] = matrix[:, panels.edge :]
    return np.concatenate([whole.transpose(1, 0, 2).ravel(), last.ravel()])


@dataclass(frozen=True)
class Blocks:
    """Weights [columns, blocks, bytes] of `depth` numbers of `bits` bits in blocks of `block`."""

    columns: int
    depth: int
    block: int
    bits: int
    panel: int

    @property
    def per_word(self) -> int:
        """The numbers in a word."""
        return WORD // self.bits

    @property
    def count(self) -> int:
        """The number of blocks."""
        return -(-self.depth // self.block)

    @property
    def sign(self) -> int:
        """The highest bit of a number; flipped, it makes the number one with a sign."""
        return 1 << (self.bits - 1)

    @property
    def words(self) -> Panels:
        """The panels of words."""
        return Panels(self.columns, self.depth // self.per_word, self.panel)

    @property
    def scales(self) -> Panels:
        """The panels of scales, and of zero points."""
        return Panels(self.columns, self.count, self.panel)


@dataclass(frozen=True)
class BlockWords:
    """Packed weights as words, each of neighbouring numbers of a column, less half their range."""

    blocks: Blocks

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the weights."""
        blocks = self.blocks
        return blocks.columns, blocks.count, blocks.block * blocks.bits // 8

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Return the panels of words as i32, flat."""
        blocks = self.blocks
        words = np.ascontiguousarray(array.reshape(blocks.columns, -1)).view("<u4")
        flips = blocks.sign * (((1 << WORD) - 1) // ((1 << blocks.bits) - 1))
        signed = (words[:, : blocks.words.depth] ^ np.uint32(flips)).view(np.int32)
        return in_panels(signed.T, blocks.words)


@dataclass(frozen=True)
class BlockScales:
    """Scales [columns, blocks] in panels."""

    blocks: Blocks

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the scales."""
        return self.blocks.columns, self.blocks.count

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Return the panels as f32, flat."""
        return in_panels(array.astype(np.float32).T, self.blocks.scales)


@dataclass(frozen=True)
class BlockPoints(BlockScales):
    """Zero points in panels: what is added to a number of `BlockWords`, less 1, as i8."""

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Return the panels as i8, flat."""
        added = self.blocks.sign - 1 - array.view(np.uint8).astype(np.int16)
        return in_panels(added.astype(np.int8).T, self.blocks.scales)
