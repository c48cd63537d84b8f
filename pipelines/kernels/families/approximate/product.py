"""The code of one approximate product: rounded rows by panels of rounded weights, tile by tile.

A workgroup rounds a block of its rows, then goes through its panels. Each tile is checked before
the epilogue. First the bound: `DEVIATIONS` standard deviations of an element's error must be within
what is allowed of the greatest element of its row of the tile. Then the sums, which show what the
bound does not know, as damaged memory: the sum of the row with the signs of its lines must be the
row of A times the panel's own sums. A tile that fails is computed by the code of `gemm`, with the
bits that `gemm` gives, and counted.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from pyc_mlir.dialects.numerics.approximation import DEVIATIONS
from pyc_mlir.pipelines.kernels.families.approximate.facts import (
    BOUND_A,
    BOUND_B,
    SUMS_A,
    SUMS_B,
    ApproximateWords,
    Facts,
)
from pyc_mlir.pipelines.kernels.families.approximate.forms import Form, FormCode
from pyc_mlir.pipelines.kernels.families.approximate.rows import RoundedRows
from pyc_mlir.pipelines.kernels.families.gemm import Depth, Product, Strip
from pyc_mlir.pipelines.kernels.lang.language import Memory
from pyc_mlir.pipelines.kernels.lang.values import (
    LARGEST,
    Condition,
    Index,
    Scalar,
    Vector,
    fma,
    larger,
    least,
    square_root,
    tree,
    where,
)
from pyc_mlir.pipelines.kernels.lang.words import (
    all_lanes,
    chosen,
    lanes_of_sums,
    size_of,
    sums_of,
)
from pyc_mlir.pipelines.kernels.shared.checksums import signed_by_lines
from pyc_mlir.pipelines.kernels.shared.counts import Counter
from pyc_mlir.pipelines.kernels.shared.epilogues import store_tile
from pyc_mlir.pipelines.kernels.shared.grid import share
from pyc_mlir.pipelines.kernels.shared.tile import ProductTile, bottom, local, partial_sums
from pyc_mlir.pipelines.kernels.shared.unpacked import row_blocks

# The counts of `APPROXIMATIONS`.
TILES, BY_BOUND, BY_SUMS = range(3)


@dataclass(frozen=True)
class Spot:
    """A register tile: its rows in A and in the block, and its panel.

    `number` counts panels, the narrower last one included; `words` and `facts` are where the
    panel's begin.
    """

    source: Index
    row: Index
    height: int
    strip: Strip
    panel: Index
    number: Index
    words: Index
    facts: Index


@dataclass(frozen=True)
class Approximation:
    """The parts of an approximate product beside those of an exact one.

    `block` are the rows rounded at once, `allowed` the share of the greatest element.
    """

    form: Form
    words: Memory
    word_layout: ApproximateWords
    facts: Memory
    fact_layout: Facts
    rows: RoundedRows
    counter: Counter
    allowed: float
    block: int
    checked: bool


@dataclass(frozen=True)
class ApproximateProduct(Product):
    """One kernel under construction, over the blocks, panels and tiles of a workgroup."""

    approximation: Approximation | None = None

    @property
    def _own(self) -> Approximation:
        assert self.approximation is not None, "the field has a default for those of the base only"
        return self.approximation

    def build(self) -> None:
        """Round a block of rows, then compute its tiles, panel by panel."""
        k, knobs, own = self.k, self.knobs, self._own
        if knobs.epilogue.heavy:
            self.sums.append(local(k, knobs.height * knobs.panel))

        def block(first: Index, count: Index) -> None:
            own.rows.round(first, count)
            if own.checked:
                own.rows.multiply(first, count, *self._panels(), knobs.height)
            self._columns(first, count)

        row_blocks(k, knobs.rows, knobs.workgroups[0], own.block, block)

    def _panels(self) -> tuple[Index, Index]:
        """Return this workgroup's panels and the next one, which may be the narrower last one."""
        panels, parts = self.knobs.panels, self.knobs.workgroups[1]
        start, end = share(self.k, 1, parts, Index.of(panels.full))
        return start, least(end + 1, self._own.fact_layout.count) if panels.last_width else end

    def _columns(self, first: Index, count: Index) -> None:
        """Compute this workgroup's full panels, then the narrower last one."""
        k, knobs, panels = self.k, self.knobs, self.knobs.panels
        if panels.full:
            start, end = share(k, 1, knobs.workgroups[1], Index.of(panels.full))
            with k.range(start, end) as panel:
                self._tiles(Strip(start, end, knobs.panel), panel, first, count)
        if panels.last_width:
            with k.when(k.workgroup(1).equals(knobs.workgroups[1] - 1)):
                zero, base = Index.of(0), panels.edge * knobs.depth
                strip = Strip(zero, zero + 1, panels.last_width, base, last=True)
                self._tiles(strip, zero, first, count)

    def _tiles(self, strip: Strip, panel: Index, first: Index, count: Index) -> None:
        """Compute the tiles of a block of rows by a panel: full ones, then lower ones."""
        k, height, own, panels = self.k, self.knobs.height, self._own, self.knobs.panels
        form = own.form
        words = panel * (form.groups * strip.width)
        if strip.last:
            words = words + panels.edge * form.groups
        number = panel + (panels.full if strip.last else 0)
        facts = number * own.fact_layout.each + own.fact_layout.first

        def tile(row: Index, rows: int) -> None:
            self._approximate(Spot(first + row, row, rows, strip, panel, number, words, facts))

        full = count // height
        if full.number != 0:
            with k.range(full) as turn:
                tile(turn * height, height)
        for row, rest, needed in bottom(count, height):
            with nullcontext() if needed is None else k.when(needed):
                tile(row, rest)

    def _approximate(self, spot: Spot) -> None:
        """Compute one tile, check it, compute it exactly if it fails, and store it."""
        k = self.k
        places = self._places(spot.strip, spot.panel)
        spots = [(spot.source + r, at) for r in range(spot.height) for at in places]
        values = self._scaled(spot, len(places), self._sums(spot, len(places)))
        kept = self.sums[0] if self.sums else None
        self._own.counter.add(TILES, Scalar.of(1.0))
        if self._own.checked:
            values = self._settled(spot, values)
        store_tile(k, self.epilogue, self.c, spots, values, len(places), kept)

    def _settled(self, spot: Spot, values: Sequence[Vector]) -> list[Vector]:
        """Return the tile, computed exactly if a check fails."""
        within, sound = self._checked(spot, values)
        width = len(values) // spot.height

        def exact() -> list[Vector]:
            bound = chosen(within, 0.0, 1.0)
            self._own.counter.add(BY_BOUND, bound)
            self._own.counter.add(BY_SUMS, Scalar.of(1.0) - bound)
            return self._exact(spot, width)

        return self.k.either(within & sound, values, lambda: values, exact)

    def _sums(self, spot: Spot, width: int) -> list:
        """Return the sums of products of words, row by row."""
        k, own, panel_width = self.k, self._own, spot.strip.width
        code = FormCode(k, own.form)
        unroll = own.form.unroll

        def step(at: Index, kept: Sequence) -> list:
            start = spot.words + at * panel_width
            weights = [code.load(own.words, start + v * k.lanes) for v in range(width)]
            new = list(kept)
            for r in range(spot.height):
                x = own.rows.word(spot.row + r, at)
                for v in range(width):
                    n = r * width + v
                    new[n] = code.add(new[n], x, weights[v])
            return new

        def steps(at: Index, *kept: object) -> list:
            new = list(kept)
            for u in range(unroll):
                new = step(at + u, new)
            return new

        begin = [self._start_of(spot, v) for v in range(width)] * spot.height
        groups = own.form.groups
        whole = groups // unroll * unroll
        kept = k.loop(0, whole, unroll, begin)(steps)
        return k.loop(whole, groups, 1, kept)(lambda at, *last: step(at, last))

    def _start_of(self, spot: Spot, v: int) -> object:
        own = self._own
        code = FormCode(self.k, own.form)
        if own.form.is_bf16:
            return code.zero()
        return code.sums(own.facts.load(spot.facts + own.fact_layout.starts + v * self.k.lanes))

    def _scaled(self, spot: Spot, width: int, sums: Sequence) -> list[Vector]:
        """Return the elements of C that the sums stand for."""
        own, lanes = self._own, self.k.lanes
        if own.form.is_bf16:
            return list(sums)
        place = spot.facts + own.fact_layout.scales
        scales = [own.facts.load(place + v * lanes) for v in range(width)]
        made = []
        for r in range(spot.height):
            unit, shift = (
                own.rows.number(kind, spot.row + r).across(lanes)
                for kind in (own.rows.places.units, own.rows.places.shifts)
            )
            for v in range(width):
                made.append(fma(sums[r * width + v].to_float(), unit, shift) * scales[v])
        return made

    def _checked(self, spot: Spot, values: Sequence[Vector]) -> tuple[Condition, Condition]:
        """Return whether the bound is small enough, and whether the sums are those of B."""
        own, rows, lanes = self._own, self._own.rows, self.k.lanes
        width = len(values) // spot.height
        cut = [values[n : n + width] for n in range(0, len(values), width)]
        units = rows.several(rows.places.units, spot.row)
        norms = rows.several(rows.places.norms, spot.row)
        order = lanes_of_sums(spot.height, lanes)

        def deviation(of_b: int, of_a: int, times: float) -> Vector:
            """Return that of each row, in the order of the lanes of sums."""
            place = spot.facts + own.fact_layout.bounds
            b, a = (own.facts.number(place + which).across(lanes) for which in (of_b, of_a))
            return (units * (square_root(fma(norms, a, b)) * times)).part(order)

        # What is allowed of the exact greatest element is a little less of the computed one.
        share_of = DEVIATIONS * (1 + own.allowed) / own.allowed
        greatest = sums_of([_greatest(row) for row in cut], combine=larger)
        # Beside infinities nothing is small.
        finite = where(greatest > LARGEST, 0.0, greatest)
        within = deviation(BOUND_B, BOUND_A, share_of).at_most(finite)
        products = rows.several(rows.places.products + spot.number * rows.places.each, spot.row)
        apart = sums_of([signed_by_lines(row, lanes) for row in cut]) - products.part(order)
        sound = size_of(apart).at_most(deviation(SUMS_B, SUMS_A, DEVIATIONS))
        return all_lanes(within), all_lanes(sound)

    def _exact(self, spot: Spot, width: int) -> list[Vector]:
        """Return the tile as `gemm` computes it, block of the depth by block."""
        k, knobs, strip = self.k, self.knobs, spot.strip
        parts = partial_sums(knobs.rows, knobs.height, width, knobs.unroll)

        def over(depth: Depth, sums: Sequence[Vector]) -> list[Vector]:
            offset = self._offset(strip, spot.panel, depth)

            def left(r: int, at: Index) -> Scalar:
                return self.a.number(spot.source + r, depth.start + at)

            def right(v: int, at: Index) -> Vector:
                return self.b.load(offset + at * strip.width + v * k.lanes)

            tile = ProductTile(k, spot.height, width, knobs.unroll, left, right, parts=parts)
            return tile.accumulate(depth.length, sums)

        zeros = [k.vector(0.0)] * (spot.height * width)
        blocks = -(-knobs.depth // knobs.depth_block)
        if blocks == 1:
            return over(Depth(Index.of(0), Index.of(knobs.depth), Index.of(0)), zeros)

        @k.loop(0, blocks, 1, zeros)
        def sums(number: Index, *kept: Vector) -> list[Vector]:
            start = number * knobs.depth_block
            length = least(Index.of(knobs.depth) - start, knobs.depth_block)
            return over(Depth(start, length, number), kept)

        return sums


def _greatest(values: Sequence[Vector]) -> Vector:
    return tree(larger, list(map(size_of, values)))
