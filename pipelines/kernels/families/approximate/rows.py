"""Round a block of A's rows into a workgroup's scratch memory, with what the checks ask of each.

A row's greatest number is the highest level of its integers. A number is rounded up or down at
random, by how near it is, with bits that a hash of the whole row makes of fixed ones: equal rows
have equal bits, and any change of a row draws all of its errors anew, so that no search goes
step by step to a row whose errors add up. What B's dither adds is that of `facts.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyc_mlir.pipelines.kernels.families.approximate.facts import Facts
from pyc_mlir.pipelines.kernels.families.approximate.forms import Form
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory, llvm
from pyc_mlir.pipelines.kernels.lang.stored import nearest
from pyc_mlir.pipelines.kernels.lang.values import (
    Index,
    Scalar,
    Vector,
    across_lanes,
    add,
    arith,
    bits,
    f32_vector,
    fma,
    int_constant,
    larger,
    least,
    square_root,
    tree,
)
from pyc_mlir.pipelines.kernels.lang.words import (
    above,
    lanes_of_sums,
    mixed,
    picked_by,
    size_of,
    sums_of,
)
from pyc_mlir.pipelines.streams.ir import ir

# Rows whose greatest number is beyond these are computed exactly.
_LEAST, _MOST = 2.0**-100, 2.0**100
_UNROLL = 4
_PANELS, _MANY = 4, 32  # panels that are multiplied together, where there are so many registers
_HALF = 16  # bits
_NAN = float("nan")


@dataclass(frozen=True)
class RowScratch:
    """The layout of a workgroup's scratch memory, as f32, for a block of `rows`.

    Words of the rows, then for all rows their units, what is added to their sums, the squares of
    norms, and for each of `panels` the products with the panel's sums. Vectors may be read and
    written beyond the last row.
    """

    form: Form
    rows: int
    panels: int

    @property
    def each(self) -> int:
        """The numbers of one kind, for all rows."""
        return -(-self.rows // LINE) * LINE + LINE

    @property
    def units(self) -> int:
        """The place of the units."""
        return self.rows * self.form.pitch

    @property
    def shifts(self) -> int:
        """The place of what is added to sums, once they are multiplied by the unit."""
        return self.units + self.each

    @property
    def norms(self) -> int:
        """The place of the squares of norms, in units."""
        return self.shifts + self.each

    @property
    def products(self) -> int:
        """The place of the products with the first panel's sums."""
        return self.norms + self.each

    @property
    def size(self) -> int:
        """The count of numbers."""
        return self.products + self.panels * self.each


@dataclass(frozen=True)
class RoundedRows:
    """Code that rounds rows; `start` is where the workgroup's scratch memory begins."""

    k: Build
    a: Memory
    facts: Memory
    scratch: Memory
    layout: Facts
    places: RowScratch
    start: Index

    def round(self, first: Index, count: Index) -> None:
        """Round rows `first` and on."""
        with self.k.range(count) as row:
            self._row(first + row, row)

    def multiply(self, first: Index, count: Index, start: Index, end: Index, height: int) -> None:
        """Multiply rows by the sums of panels `start` to `end`, `height` rows at a time.

        Several panels share what is read of A. The last rows and panels may be computed twice.
        """
        k = self.k
        together = min(_PANELS if k.target.vector_registers >= _MANY else 2, self.places.panels)
        with k.range(0, count, height) as row, k.range(start, end, together) as panel:
            rows = [least(first + row + r, first + count - 1) for r in range(height)]
            panels = [least(panel + p, end - 1) for p in range(together)]
            sums = [p * self.layout.each + self.layout.first for p in panels]

            def turn(places: Sequence[Lanes], kept: Sequence[Vector]) -> list[Vector]:
                (at,) = places
                of_b = [self.facts.load(Lanes(s + at.start, at.mask)) for s in sums]
                new = []
                for r, source in enumerate(rows):
                    x = self.a.load(source, at)
                    own = kept[r * together : (r + 1) * together]
                    new += [fma(x, s, total) for s, total in zip(of_b, own, strict=True)]
                return new

            zeros = [k.vector(0.0)] * (height * together)
            found = k.walk(Index.of(self.places.form.depth), 1, zeros, turn)
            order = lanes_of_sums(height, k.lanes)
            spread = [order.index(r) for r in range(height)] + [0] * (k.lanes - height)
            for p, number in enumerate(panels):
                total = sums_of(found[p::together]).part(spread)
                place = self.start + self.places.products + number * self.places.each
                self.scratch.store(total, place + row)

    def word(self, row: Index, at: Index) -> Vector:
        """Return a word of a row in each lane, as bits."""
        place = self.start + row * self.places.form.pitch + at
        return self.scratch.number(place).across(self.k.lanes)

    def number(self, kind: int, row: Index) -> Scalar:
        """Return a fact of a row: its unit, shift or norm."""
        return self.scratch.number(self.start + kind + row)

    def several(self, kind: Index | int, row: Index) -> Vector:
        """Return a fact of rows from `row` on, one in a lane."""
        return self.scratch.load(self.start + row + kind)

    def _row(self, source: Index, row: Index) -> None:
        k, form = self.k, self.places.form

        largest, seed = self._read(source)
        factor = arith.ori(bits(mixed(seed, Vector.counting(k.lanes))), int_constant(1, k.lanes))
        usable = above(largest, Scalar.of(_LEAST)) & above(Scalar.of(_MOST), largest)
        levels = 1.0 if form.is_bf16 else float(form.levels)
        inverse = picked_by(usable, Scalar.of(levels) / largest, Scalar.of(0.0))
        inverse_lanes = inverse.across(k.lanes)

        def turn(places: Sequence[Lanes], kept: Sequence[Vector]) -> list[Vector]:
            new = list(kept)
            drawn = self._drawn(places, seed, factor)
            for n, at in enumerate(places):
                number = self.a.load(source, at)
                share = number * inverse_lanes
                square, own = share * share, new[2 * n : 2 * n + 2]
                new[2 * n : 2 * n + 2] = (
                    self._halves(number, square, drawn[n], row, at, own)
                    if form.is_bf16
                    else self._integers(share, square, drawn[n], row, at, own)
                )
            return new

        zeros = [k.vector(0.0)] * (2 * _UNROLL)
        found = k.walk(Index.of(form.depth), _UNROLL, zeros, turn)
        squares, shares = (across_lanes(add, tree(add, found[n::2])) for n in range(2))
        # A row of zeros is exact, one beyond the range never good enough.
        empty = picked_by(above(largest, Scalar.of(0.0)), Scalar.of(_NAN), Scalar.of(0.0))
        unit = picked_by(usable, largest / Scalar.of(levels), empty)
        norm = square_root(squares) if form.is_bf16 else squares
        self._keep(self.places.units, unit, row)
        self._keep(self.places.norms, norm, row)
        if not form.is_bf16:
            self._keep(self.places.shifts, -(unit * shares), row)

    def _read(self, source: Index) -> tuple[Scalar, Vector]:
        """Return a row's greatest number without its sign, and a hash of its bits in each lane."""
        k = self.k

        def turn(places: Sequence[Lanes], kept: Sequence[Vector]) -> list[Vector]:
            new = list(kept)
            for n, at in enumerate(places):
                x = self.a.load(source, at)
                new[n] = larger(new[n], size_of(x))
                new[_UNROLL + n] = mixed(new[_UNROLL + n], x)
            return new

        starts = [k.vector(0.0)] * _UNROLL + [k.vector(n + 1.0) for n in range(_UNROLL)]
        found = k.walk(Index.of(self.places.form.depth), _UNROLL, starts, turn)
        largest = across_lanes(larger, tree(larger, found[:_UNROLL]))
        whole = mixed(tree(mixed, found[_UNROLL:]), Vector.counting(k.lanes))
        return largest, across_lanes(mixed, whole).across(k.lanes)

    def _drawn(self, places: Sequence[Lanes], seed: Vector, factor: Any) -> list[Any]:
        """Return integers for vectors of a row, of which the upper 16 bits are random.

        Two neighbouring vectors share what is drawn.
        """
        made: list[Any] = []
        for at in places[::2]:
            word = bits(mixed(mixed(self.facts.load(at), seed, factor), seed))
            made += [word, arith.shli(word, int_constant(_HALF, self.k.lanes))]
        return made[: len(places)]

    def _integers(
        self, share: Vector, square: Vector, drawn: Any, row: Index, at: Lanes, kept: list[Vector]
    ) -> list[Vector]:
        """Store integers; add to squares, and to the products of what they stand for with B's."""
        k, form = self.k, self.places.form
        chance = Vector(arith.sitofp(f32_vector(k.lanes), drawn))
        whole = nearest(fma(chance, 2.0**-32, share))
        of_b = self.facts.load(Lanes(at.start + self.layout.along, at.mask))
        stands = Vector(arith.sitofp(f32_vector(k.lanes), whole))
        if form.offset:
            whole = arith.addi(whole, int_constant(form.offset, k.lanes))
        bytes_ = ir.IntegerType.get_signless(32 // form.per)
        self._store(arith.trunci(ir.VectorType.get([k.lanes], bytes_), whole), row, at)
        return [kept[0] + square, fma(stands, of_b, kept[1])]

    def _halves(
        self, number: Vector, square: Vector, drawn: Any, row: Index, at: Lanes, kept: list[Vector]
    ) -> list[Vector]:
        """Store numbers of bf16, rounded up or down by the random bits; add to fourth powers."""
        k = self.k
        half = int_constant(_HALF, k.lanes)
        upper = arith.shrui(arith.addi(bits(number), arith.shrui(drawn, half)), half)
        sixteen = ir.VectorType.get([k.lanes], ir.IntegerType.get_signless(_HALF))
        self._store(arith.trunci(sixteen, upper), row, at)
        return [fma(square, square, kept[0]), kept[1]]

    def _store(self, numbers: Any, row: Index, at: Lanes) -> None:
        """Store a whole vector of narrow numbers as words; what is behind the depth meets zeros."""
        form = self.places.form
        words = f32_vector(self.k.lanes // form.per)
        place = self.start + row * form.pitch + at.start // form.per
        # MLIR rewrites a bitcast of its own after a truncation to one that is not legal.
        self.scratch.store_as(llvm.bitcast(words, numbers), place)

    def _keep(self, kind: int, number: Scalar, row: Index) -> None:
        self.scratch.put(number, self.start + kind + row)
