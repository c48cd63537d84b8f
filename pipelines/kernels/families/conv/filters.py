"""The layout of a direct convolution's weights: panels of filters, block after block of groups."""

from dataclasses import dataclass

import numpy as np

from pyc_mlir.pipelines.kernels.families.packing import Panels


@dataclass(frozen=True)
class Filters:
    """The layout of w[taps channels, filters]: panels, block after block; flat.

    A block is `merged` groups as one: its weights from channels to filters of other groups are 0.
    """

    taps: int
    blocks: int
    merged: int
    panels: Panels

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of w."""
        return self.panels.depth // self.merged, self.blocks * self.panels.columns

    def pack(self, weights: np.ndarray) -> np.ndarray:
        """Return the weights under this layout."""
        each = weights.reshape(self.taps, -1, self.blocks, self.merged, self._filters)
        depth = each.shape[1]
        shape = (self.blocks, self.taps, self.merged, depth, self.merged, self._filters)
        whole = np.zeros(shape, weights.dtype)
        for g in range(self.merged):
            whole[:, :, g, :, g] = each[:, :, :, g].transpose(2, 0, 1, 3)
        matrices = whole.reshape(self.blocks, self.panels.depth, self.panels.columns)
        return np.concatenate([self.panels.pack(w) for w in matrices])

    @property
    def _filters(self) -> int:
        return self.panels.columns // self.merged
