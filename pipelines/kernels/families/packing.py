"""The kernel family ``packing``: B, known at run time only, into the panels of a product.

In comes B[depth, columns], row-major, or transposed, B[columns, depth]; out go the panels that
`Panels.pack` makes of a constant: each [depth][panel], the last one narrower, padded with zeros. It
is worth its pass over B where the product reads B often: many rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.values import Index, Vector, least
from pyc_mlir.pipelines.kernels.match.offers import KernelOffer
from pyc_mlir.pipelines.kernels.registry import Family, refuse_target
from pyc_mlir.pipelines.kernels.shared.square import transposed
from pyc_mlir.pipelines.kernels.variants import knob_space, shares
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target


@dataclass(frozen=True)
class Panels:
    """The cut of the columns of B[depth, columns]: full panels, then a narrower one in lines."""

    columns: int
    depth: int
    panel: int
    dtype: str = "f32"

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of B."""
        return self.depth, self.columns

    @property
    def full(self) -> int:
        """Panels of full width."""
        return self.columns // self.panel

    @property
    def edge(self) -> int:
        """Columns in full panels."""
        return self.full * self.panel

    @property
    def last_width(self) -> int:
        """The width of a narrower last panel, in whole cache lines; 0 where there is none."""
        return -(-(self.columns % self.panel) // LINE) * LINE

    @property
    def size(self) -> int:
        """The count of numbers in the packed B."""
        return self.depth * (self.edge + self.last_width)

    def pack(self, b: np.ndarray) -> np.ndarray:
        """Pack B[depth, columns] into panels, each [depth][panel]; zeros pad the last one. Flat."""
        assert b.shape == self.shape
        panels = b[:, : self.edge].reshape(self.depth, self.full, self.panel).transpose(1, 0, 2)
        last = np.zeros((self.depth, self.last_width), b.dtype)
        last[:, : self.columns - self.edge] = b[:, self.edge :]
        return np.concatenate([panels.ravel(), last.ravel()]).astype(DTYPES[self.dtype])


@dataclass(frozen=True)
class PanelPacking:
    """The knobs: B's sizes, the width of a panel, B transposed or not, and workgroups (panels)."""

    columns: int
    depth: int
    panel: int = 64
    transposed: bool = False
    workgroups: int = 1

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        if min(self.columns, self.depth, self.panel, self.workgroups) < 1 or self.panel % LINE:
            expected = "sizes and workgroups of at least 1, panels in lines of 16"
            raise PycError(
                ReasonCode.BAD_ARGUMENT, f"packing kernel: expected {expected}, got {self!r}"
            )

    @property
    def panels(self) -> Panels:
        """The layout of the result."""
        return Panels(self.columns, self.depth, self.panel)

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands b, then packed."""
        shape = (self.depth, self.columns)
        operands = (
            Operand("b", shape[::-1] if self.transposed else shape),
            Operand("packed", (self.panels.size,), "out"),
        )
        return Kernel(name, operands, lambda size: (self.workgroups,), self._body)

    def _body(self, k: Build, b: Memory, packed: Memory) -> None:
        panels = self.panels
        copy = _transposed if self.transposed else _rows
        if panels.full:
            share = -(-panels.full // self.workgroups)
            first = least(k.workgroup() * share, panels.full)
            with k.range(first, least(first + share, panels.full)) as panel:
                start = panel * (panels.depth * panels.panel)
                copy(k, self, b, _Target(packed, start, panels.panel, panel * panels.panel))
        if panels.last_width:
            with k.when(k.workgroup().equals(self.workgroups - 1)):
                edge = Index.of(panels.edge)
                copy(k, self, b, _Target(packed, edge * panels.depth, panels.last_width, edge))


@dataclass(frozen=True)
class _Target:
    """One panel: where it starts, its width, the column of B that it begins with."""

    memory: Memory
    start: Index
    width: int
    column: Index

    def put(self, value: Vector, row: Index, at: int) -> None:
        self.memory.store(value, self.start + row * self.width + at)


def _places(k: Build, knobs: PanelPacking, panel: _Target) -> list[Lanes | None]:
    """Return the places of the panel's vectors in a row of B; None behind its end."""
    size = Index.of(knobs.columns)
    starts = [panel.column + v for v in range(0, panel.width, k.lanes)]
    if panel.width == knobs.panel and panel.column.number is None:
        return [Lanes(start) for start in starts]
    ends = [start.number for start in starts]
    return [
        k.tail(start, size) if end is not None and end < knobs.columns else None
        for start, end in zip(starts, ends, strict=True)
    ]


def _rows(k: Build, knobs: PanelPacking, b: Memory, panel: _Target) -> None:
    """Pack row by row; a masked load gives the zeros of the padding."""
    with k.range(knobs.depth) as row:
        for v, place in enumerate(_places(k, knobs, panel)):
            value = k.vector(0.0) if place is None else b.load(row, place)
            panel.put(value, row, v * k.lanes)


def _transposed(k: Build, knobs: PanelPacking, b: Memory, panel: _Target) -> None:
    """Turn squares of registers; the rest of the depth goes under a mask."""
    whole, depth = knobs.depth // k.lanes * k.lanes, Index.of(knobs.depth)

    def square(row: Index, at: int, place: Lanes, count: int) -> None:
        columns = [panel.column + (at + i) for i in range(k.lanes)]
        rows = [
            k.vector(0.0)
            if c.number is not None and c.number >= knobs.columns
            else b.load(c, place)
            for c in columns
        ]
        for i, value in enumerate(transposed(rows)[:count]):
            panel.put(value, row + i, at)

    for at in range(0, panel.width, k.lanes):
        with k.range(0, whole, k.lanes) as row:
            square(row, at, Lanes(row), k.lanes)
        if knobs.depth % k.lanes:
            square(Index.of(whole), at, k.tail(Index.of(whole), depth), knobs.depth % k.lanes)


refusal = refuse_target


def cost(knobs: PanelPacking, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count one read of B and one write of its panels."""
    traffic = 4 * (knobs.columns * knobs.depth + knobs.panels.size)
    return CostModel(target).kernel("packing", 0.0, traffic)


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Vary the shares of panels, whose width is that of the product that reads them."""
    knobs: PanelPacking = offer.knobs
    return knob_space(
        knobs,
        {"workgroups": shares(target, knobs.panels.full)},
        lambda made: refusal(made, target),
    )


FAMILY = Family("packing", PanelPacking, refusal, cost, space=space)
