"""How is a matrix multiplied by constant weights? C = epilogue(A B), B packed at compile time.

The scheme is that of Goto and van de Geijn (2008) as BLIS has it, without packing A: a register
tile of `height` rows by one panel of B's columns is accumulated over a block of the depth; blocks
of rows stay in the second-level cache while panels stream by, and the next panel is prefetched.
The bottom tile and the rightmost panel may be smaller; the last columns are masked.

`Gemm` holds the knobs; `Gemm.on` chooses them for a target. `pack` and `unpack` lay out B.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.kernels.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.functions import gelu
from pyc_mlir.pipelines.kernels.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.values import Index, Vector, fma, least, maximum
from pyc_mlir.pipelines.target import Target

ACTIVATIONS: dict[str, Callable[[Vector], Vector]] = {
    "none": lambda x: x,
    "relu": lambda x: maximum(x, x.constant(0.0)),
    "gelu": gelu,
}
LINE = 16  # f32 in a cache line
_DEPTH_LIMIT = 1024
_STRIP_COLUMNS = 256


@dataclass(frozen=True)
class Gemm:
    """The knobs of C[rows, columns] = activation(A[rows, depth] B + bias) + residual.

    `height` and `panel` are the rows and columns of the register tile; `depth_block`,
    `row_block` (a multiple of `height`) and `strip` (a multiple of `panel`) are what caches
    hold; `workgroups` cuts rows and columns. `bias` is one number a column, `residual` a matrix
    like C.
    """

    rows: Dim
    columns: int
    depth: int
    bias: bool = False
    activation: str = "none"
    residual: bool = False
    height: int = 6
    panel: int = 64
    depth_block: int = 1024
    row_block: int = 120
    strip: int = 256
    unroll: int = 4
    workgroups: tuple[int, int] = (1, 1)

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        counts = (self.columns, self.depth, self.height, self.unroll, *self.workgroups)
        if self.rows == 0 or min(counts) < 1:
            raise _refusal("sizes, height, unroll and workgroups of at least 1", self)
        if self.activation not in ACTIVATIONS:
            raise _refusal(f"an activation of {', '.join(ACTIVATIONS)}", self.activation)
        if self.panel % LINE or self.strip % self.panel or self.row_block % self.height:
            raise _refusal("panel in lines of 16, strip in panels, row_block in heights", self)
        if self.depth_block % self.unroll:
            raise _refusal("depth_block in multiples of unroll", self.depth_block)

    @staticmethod
    def on(target: Target, rows: Dim, columns: int, depth: int, **epilogue: Any) -> "Gemm":
        """The knobs for a target's registers and caches; `epilogue` are further fields."""
        vectors = 4 if target.vector_registers >= 32 else 2
        height, unroll = 6, 4
        parts = -(-depth // _DEPTH_LIMIT)
        block = -(-depth // (parts * unroll)) * unroll
        row_block = max(1, target.l2_bytes * 15 // 16 // (4 * block * height)) * height
        panel = vectors * target.vector_bytes // 4
        knobs = {
            **{"height": height, "panel": panel, "unroll": unroll, "depth_block": block},
            **{"row_block": row_block, "strip": max(_STRIP_COLUMNS // panel, 1) * panel},
        }
        return Gemm(rows, columns, depth, **{**knobs, **epilogue})

    @property
    def full_panels(self) -> int:
        """Panels of full width."""
        return self.columns // self.panel

    @property
    def last_width(self) -> int:
        """The width of a narrower last panel, in whole cache lines; 0 where there is none."""
        return -(-(self.columns % self.panel) // LINE) * LINE

    @property
    def packed_size(self) -> int:
        """How many f32 the packed B has."""
        return self.depth * (self.full_panels * self.panel + self.last_width)

    def kernel(self, name: str) -> Kernel:
        """The kernel called `name`: operands a, b (packed), then bias, residual, then c."""
        result = (self.rows, self.columns)
        packed = Operand("b", (self.packed_size,), pack=partial(pack, self))
        operands = [Operand("a", (self.rows, self.depth)), packed]
        operands += [Operand("bias", (self.columns,))] * self.bias
        operands += [Operand("residual", result)] * self.residual
        operands.append(Operand("c", result, "out"))
        return Kernel(name, tuple(operands), lambda size: self.workgroups, self._body)

    def _body(self, k: Build, a: Memory, b: Memory, *others: Memory) -> None:
        rest = list(others)
        bias = rest.pop(0) if self.bias else None
        residual = rest.pop(0) if self.residual else None
        Product(k, self, a, b, rest[0], bias, residual).build()


@dataclass(frozen=True)
class Strip:
    """Neighbouring panels of one width: numbers `first` to `end`, the packed offset of panel 0.

    `last` is the one panel that may be narrower than others and is not full.
    """

    first: Index
    end: Index
    width: int
    base: int = 0
    last: bool = False


@dataclass(frozen=True)
class Depth:
    """A block of the depth: where it starts, how long it is, and its number."""

    start: Index
    length: Index
    number: Index


@dataclass(frozen=True)
class Product:
    """One kernel under construction: loops from the outside in, then the register tile."""

    k: Build
    knobs: Gemm
    a: Memory
    b: Memory
    c: Memory
    bias: Memory | None
    residual: Memory | None

    def build(self) -> None:
        """This workgroup's columns: strips of full panels, then the narrower last panel."""
        k, knobs = self.k, self.knobs
        first, end = self._share(1, Index.of(knobs.full_panels))
        if knobs.full_panels:
            with k.range(first, end, knobs.strip // knobs.panel) as j:
                self._strip(Strip(j, least(j + knobs.strip // knobs.panel, end), knobs.panel))
        if knobs.last_width:
            with k.when(k.workgroup(1).equals(knobs.workgroups[1] - 1)):
                start, base = Index.of(0), knobs.full_panels * knobs.panel * knobs.depth
                self._strip(Strip(start, start + 1, knobs.last_width, base, last=True))

    def _share(self, dimension: int, count: Index) -> tuple[Index, Index]:
        """This workgroup's part of `count` things."""
        parts = self.knobs.workgroups[dimension]
        if parts == 1:
            return Index.of(0), count
        size = count.ceildiv(parts)
        first = self.k.workgroup(dimension) * size
        return first, least(first + size, count)

    def _strip(self, strip: Strip) -> None:
        """Blocks of the depth, one after the other."""
        blocks = -(-self.knobs.depth // self.knobs.depth_block)
        if blocks == 1:
            return self._rows(strip, Depth(Index.of(0), Index.of(self.knobs.depth), Index.of(0)))
        with self.k.range(blocks) as number:
            start = number * self.knobs.depth_block
            length = least(Index.of(self.knobs.depth) - start, self.knobs.depth_block)
            self._rows(strip, Depth(start, length, number))
        return None

    def _rows(self, strip: Strip, depth: Depth) -> None:
        """This workgroup's rows: blocks of full tiles, then what is left of the matrix."""
        k, height = self.k, self.knobs.height
        tiles = self.a.shape[0] // height
        first, end = self._share(0, tiles)
        step = self.knobs.row_block // height
        if tiles.number != 0:
            with (
                k.range(first, end, step) as i,
                k.range(strip.first, strip.end) as panel,
                k.range(i, least(i + step, end)) as tile,
            ):
                self._tile(strip, panel, depth, tile * height, height, tile - i)
        for start, rows, needed in self._bottom(tiles * height):
            with k.when(needed), k.range(strip.first, strip.end) as panel:
                self._tile(strip, panel, depth, start, rows)

    def _bottom(self, start: Index) -> list[tuple[Index, int, Any]]:
        """The tiles below the full ones: (first row, height, condition); the last workgroup's.

        A known rest is one tile; an unknown one is made of powers of two.
        """
        mine = self.k.workgroup(0).equals(self.knobs.workgroups[0] - 1)
        rest = self.a.shape[0] % self.knobs.height
        if rest.number is not None:
            return [(start, rest.number, mine)] if rest.number else []
        powers = [1 << p for p in range((self.knobs.height - 1).bit_length())]
        return [
            (start + rest // (2 * p) * (2 * p), p, mine & (rest // p % 2).equals(1))
            for p in reversed(powers)
        ]

    def _tile(
        self,
        strip: Strip,
        panel: Index,
        depth: Depth,
        row: Index,
        height: int,
        turn: Index | None = None,
    ) -> None:
        """One register tile over one block of the depth; `turn` counts tiles for the prefetch."""
        k, knobs, lanes = self.k, self.knobs, self.k.lanes
        places = self._places(strip, panel)
        offset = panel * (knobs.depth * strip.width) + strip.base + depth.start * strip.width
        ahead = None
        if turn is not None and not strip.last:
            share = knobs.depth_block // knobs.unroll * LINE
            ahead = offset + knobs.depth * strip.width + turn * share

        def step(at: Index, kept: list[Vector]) -> list[Vector]:
            parts = [self.b.load(offset + at * strip.width + v * lanes) for v in range(len(places))]
            for r in range(height):
                x = self.a.number(row + r, depth.start + at).across(lanes)
                for v, part in enumerate(parts):
                    kept[r * len(parts) + v] = fma(x, part, kept[r * len(parts) + v])
            return kept

        def steps(at: Index, *kept: Vector) -> list[Vector]:
            if ahead is not None:
                self.b.prefetch(ahead + at * (LINE // knobs.unroll), level=2)
            values = list(kept)
            for u in range(knobs.unroll):
                values = step(at + u, values)
            return values

        spots = [(row + r, at) for r in range(height) for at in places]
        whole = depth.length // knobs.unroll * knobs.unroll
        sums = k.loop(0, whole, knobs.unroll, self._start(depth, spots))(steps)
        if knobs.depth % knobs.unroll:
            sums = k.loop(whole, depth.length, 1, sums)(lambda at, *kept: step(at, list(kept)))
        self._finish(depth, spots, sums)

    def _places(self, strip: Strip, panel: Index) -> list[Lanes]:
        """Where the tile's vectors lie in a row of C: in the last panel masked, without padding."""
        knobs, lanes = self.knobs, self.k.lanes
        if not strip.last:
            return [Lanes(panel * knobs.panel + v) for v in range(0, knobs.panel, lanes)]
        left = range(knobs.full_panels * knobs.panel, knobs.columns, lanes)
        return [self.k.tail(Index.of(v), Index.of(knobs.columns)) for v in left]

    def _start(self, depth: Depth, spots: list[tuple[Index, Lanes]]) -> list[Vector]:
        """Zeros in the first block of the depth, what C holds in the others."""
        zeros = [self.k.vector(0.0)] * len(spots)
        if depth.number.number == 0:
            return zeros
        first = depth.number.equals(0)
        return self.k.either(
            first, zeros, lambda: zeros, lambda: [self.c.load(i, at) for i, at in spots]
        )

    def _finish(self, depth: Depth, spots: list[tuple[Index, Lanes]], sums: list[Vector]) -> None:
        """Store; in the last block of the depth what the epilogue makes of it."""

        def plain() -> list[Any]:
            for (i, at), value in zip(spots, sums, strict=True):
                self.c.store(value, i, at)
            return []

        def finished() -> list[Any]:
            for (i, at), value in zip(spots, sums, strict=True):
                self.c.store(self._epilogue(value, i, at), i, at)
            return []

        blocks = -(-self.knobs.depth // self.knobs.depth_block)
        if blocks == 1:
            finished()
        else:
            self.k.either(depth.number.equals(blocks - 1), [], finished, plain)

    def _epilogue(self, value: Vector, row: Index, at: Lanes) -> Vector:
        if self.bias is not None:
            value = value + self.bias.load(at)
        value = ACTIVATIONS[self.knobs.activation](value)
        return value if self.residual is None else value + self.residual.load(row, at)


def pack(knobs: Gemm, b: np.ndarray) -> np.ndarray:
    """B[depth, columns] as panels, each [depth][panel], the last one padded with zeros; flat."""
    assert b.shape == (knobs.depth, knobs.columns)
    edge = knobs.full_panels * knobs.panel
    panels = b[:, :edge].reshape(knobs.depth, knobs.full_panels, knobs.panel).transpose(1, 0, 2)
    last = np.zeros((knobs.depth, knobs.last_width), np.float32)
    last[:, : knobs.columns - edge] = b[:, edge:]
    return np.concatenate([panels.ravel(), last.ravel()]).astype(np.float32)


def unpack(knobs: Gemm, packed: np.ndarray) -> np.ndarray:
    """The B that `pack` was given."""
    edge = knobs.depth * knobs.full_panels * knobs.panel
    panels = packed[:edge].reshape(knobs.full_panels, knobs.depth, knobs.panel)
    whole = panels.transpose(1, 0, 2).reshape(knobs.depth, -1)
    last = packed[edge:].reshape(knobs.depth, knobs.last_width)
    return np.concatenate([whole, last], axis=1)[:, : knobs.columns]


def _refusal(expected: str, came: object) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, f"gemm kernel: expected {expected}, got {came!r}")
