"""How the weights of a product of bytes are laid out when compiling."""

from dataclasses import dataclass

import numpy as np

from pyc_mlir.pipelines.kernels.families.conv.window import ConvAxis
from pyc_mlir.pipelines.kernels.families.int8.dot import QUAD, words, words_of
from pyc_mlir.pipelines.kernels.families.packing import Panels


def starts_of(channels: int, chunk: int) -> list[int]:
    """Return the first channel of each chunk; the last one overlaps that before, or passes the end.

    It passes the end where it is the only one.
    """
    return [max(0, min(start, channels - chunk)) for start in range(0, channels, chunk)]


def quad_starts(channels: int, chunk: int = QUAD) -> list[int]:
    """Return the first channel of each four of all chunks."""
    return [s + q for s in starts_of(channels, chunk) for q in range(0, chunk, QUAD)]


@dataclass(frozen=True)
class ByteFilters:
    """w[taps channels, filters] of i8 as panels of words, each [taps][quads][words][panel].

    The quads are those of chunks of so many channels.
    """

    taps: int
    channels: int
    filters: int
    panel: int
    form: str
    chunk: int = QUAD

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of w."""
        return self.taps * self.channels, self.filters

    @property
    def panels(self) -> Panels:
        """The panels, whose depth counts words."""
        depth = self.taps * len(self._quads[0]) * words_of(self.form)
        return Panels(self.filters, depth, self.panel)

    @property
    def _quads(self) -> tuple[np.ndarray, np.ndarray]:
        """The channels of each quad, and which of them count: a channel does in its first quad."""
        starts = np.array(quad_starts(self.channels, self.chunk))
        before = np.concatenate([[0], np.maximum.accumulate(starts + QUAD)[:-1]])
        channels = starts[:, None] + np.arange(QUAD)
        return channels, (channels >= before[:, None]) & (channels < self.channels)

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Return the panels as words, flat."""
        w = array.reshape(self.taps, self.channels, self.filters)
        channels, counts = self._quads
        quads = np.where(counts[..., None], w[:, np.where(counts, channels, 0)], 0).astype(np.int8)
        matrix = words(quads, self.form).reshape(-1, self.filters)
        panels = self.panels
        last = np.zeros((panels.depth, panels.last_width), np.int32)
        last[:, : self.filters - panels.edge] = matrix[:, panels.edge :]
        whole = matrix[:, : panels.edge].reshape(panels.depth, panels.full, self.panel)
        return np.concatenate([whole.transpose(1, 0, 2).ravel(), last.ravel()]).astype(np.int32)


@dataclass(frozen=True)
class TapRanges:
    """The runs of taps that meet an image along one axis, numbered for a table.

    Outputs meet the taps from a first one up to `most` to before an end from `least` on.
    """

    most: int
    least: int
    kernel: int

    @staticmethod
    def of(axis: ConvAxis) -> "TapRanges":
        """Return the ranges of an axis; of an unknown size all."""
        if axis.name and (axis.low or axis.high):
            return TapRanges(axis.kernel, 0, axis.kernel)
        met = [[t for t in range(axis.kernel) if axis.meets(o, t)] for o in range(axis.outputs)]
        if not all(met):
            return TapRanges(axis.kernel, 0, axis.kernel)
        return TapRanges(max(m[0] for m in met), min(m[-1] + 1 for m in met), axis.kernel)

    @property
    def ends(self) -> int:
        """How many different ends there are."""
        return self.kernel - self.least + 1

    @property
    def count(self) -> int:
        """How many rows the table has."""
        return (self.most + 1) * self.ends

    def runs(self) -> list[range]:
        """Return the runs of taps in the order of their numbers."""
        ends = range(self.least, self.kernel + 1)
        return [range(first, end) for first in range(self.most + 1) for end in ends]


@dataclass(frozen=True)
class TapSums:
    """Sums of w[taps channels, filters] over channels and each run of taps, as i32.

    The table is [row runs, column runs, filters], flat, padded by a line for whole vectors.
    """

    rows: ConvAxis
    columns: ConvAxis
    channels: int
    filters: int

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of w."""
        return self.rows.kernel * self.columns.kernel * self.channels, self.filters

    @property
    def size(self) -> int:
        """How many numbers the table has."""
        return TapRanges.of(self.rows).count * TapRanges.of(self.columns).count * self.filters

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Return the table."""
        kernel = (self.rows.kernel, self.columns.kernel)
        each = array.reshape(*kernel, self.channels, self.filters).astype(np.int32).sum(2)
        table = [
            each[down.start : down.stop, along.start : along.stop].sum((0, 1))
            for down in TapRanges.of(self.rows).runs()
            for along in TapRanges.of(self.columns).runs()
        ]
        return np.concatenate(table).astype(np.int32)
