"""The kernel family ``approximate_gemm``: products of f32 in fewer bits, with checks.

C = epilogue(A B) with constant weights, as `gemm`, where an error of `allowed` of the greatest
element of its row of a tile, before the epilogue, may be spent. A contract that bounds the error
offers these kernels (`approximated`) where it leaves room for them.

A workgroup rounds a block of its rows, then goes through its panels. Each tile is checked before
the epilogue. First the bound: `DEVIATIONS` standard deviations of an element's error must be within
what is allowed of the greatest element of its row of the tile. Then the sums, which show what the
bound does not know, as damaged memory: the sum of the row with the signs of its lines must be the
row of A times the panel's own sums. A tile that fails is computed by the code of `gemm`, with the
bits that `gemm` gives, and counted.

A row's greatest number is the highest level of its integers. A number is rounded up or down at
random, by how near it is, with bits that a hash of the whole row makes of fixed ones: equal rows
have equal bits, and any change of a row draws all of its errors anew, so that no search goes
step by step to a row whose errors add up. What B's dither adds is that of `facts.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, NamedTuple

from pyc_mlir.dialects.numerics.approximation import DEVIATIONS, WAYS
from pyc_mlir.pipelines.kernels import nest
from pyc_mlir.pipelines.kernels.counts import APPROXIMATIONS, Counter, most_workgroups
from pyc_mlir.pipelines.kernels.families.approximate_forms import (
    BOUND_A,
    BOUND_B,
    FORMS,
    SUMS_A,
    SUMS_B,
    ApproximateWords,
    Facts,
    Form,
    FormCode,
    best_form,
    has_form,
)
from pyc_mlir.pipelines.kernels.families.checked import refuse_high, signed_by_lines
from pyc_mlir.pipelines.kernels.families.gemm import Gemm, Product
from pyc_mlir.pipelines.kernels.knobs import KernelKnobs, one_of
from pyc_mlir.pipelines.kernels.lang import values as ops
from pyc_mlir.pipelines.kernels.lang.carrier import Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.values import Condition, Index, Ints, Scalar, Vector
from pyc_mlir.pipelines.kernels.match import KernelOffer
from pyc_mlir.pipelines.kernels.nest import Depth, Panel, ProductTile, share
from pyc_mlir.pipelines.kernels.registry import Family, operand_cost
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import Target

# Rows below which rounding them takes what the products gain.
_LEAST_ROWS = 8
_MOST_DEPTH = 1 << 16
# Products of a form in the time of one of f32, at 512 x 512 x 512 (results/approximate.md); that of
# bf16 was measured with another library.
_FASTER = {"bytes": 2.7, "pairs": 1.5, "madd": 1.1, "plain": 0.5, "bf16": 1.4}
# The counts of `APPROXIMATIONS`.
TILES, BY_BOUND, BY_SUMS = range(3)
# Rows whose greatest number is beyond these are computed exactly.
_LEAST, _MOST = 2.0**-100, 2.0**100
_UNROLL = 4
_PANELS, _MANY = 4, 32  # panels that are multiplied together, where there are so many registers
_HALF = 16  # bits
_NAN = float("nan")


class RowPlaces(NamedTuple):
    """The places in scratch memory of facts of rows, behind their words, and its size."""

    units: int
    shifts: int
    norms: int
    products: int
    size: int


@dataclass(frozen=True)
class RowScratch:
    """The layout of a workgroup's scratch memory, as f32, for a block of `rows`.

    Words of the rows, then for all rows their units, what is added to their sums once these are
    multiplied by the unit, the squares of norms in units, and for each of `panels` the products
    with the panel's sums. Vectors may be read and written beyond the last row.
    """

    form: Form
    rows: int
    panels: int

    @property
    def each(self) -> int:
        """The numbers of one kind, for all rows."""
        return -(-self.rows // LINE) * LINE + LINE

    @property
    def at(self) -> RowPlaces:
        """The places of the facts."""
        each = self.each
        sizes = (self.rows * self.form.pitch, each, each, each, self.panels * each)
        return RowPlaces(*accumulate(sizes))


@dataclass(frozen=True)
class ApproximateGemm(KernelKnobs, family="approximate_gemm"):
    """The knobs: those of the product, the way to compute it, and what error is allowed.

    `way`: how many bits (`WAYS`); `form`: by which instruction; `allowed`: the greatest error of an
    element as a share of the greatest one of its row of a tile, before the epilogue; `block`:
    rows that are rounded at once. Tiles are not `checked` in measurements only.
    """

    product: Gemm
    way: str = field(metadata=one_of(WAYS))
    allowed: float
    form: str
    block: int = 96
    checked: bool = True

    def _misfit(self) -> str:
        if expected := most_workgroups(self.product.workgroups):
            return expected
        if self.form not in FORMS[self.way]:
            return f"a form of {FORMS[self.way]}"
        if not 0 < self.allowed < 1:
            return "an error above 0 and below 1"
        return f"a depth of at most {_MOST_DEPTH}" if self.product.depth > _MOST_DEPTH else ""

    def refusal(self, target: Target) -> str:
        """Refuse what `gemm` refuses, tiles of more rows than lanes, and a missing instruction."""
        if (reason := refuse_high(self.family, self.product, target)) or has_form(
            target, self.form
        ):
            return reason
        return f"approximate_gemm: expected a CPU with the instruction of {self.form!r}"

    @staticmethod
    def on(target: Target, product: Gemm, way: str, allowed: float, form: str) -> "ApproximateGemm":
        """Return the knobs for a target's caches."""
        made = Form(form, product.depth)
        panel = 4 * made.groups * product.panel
        rows = nest.row_block(target, product.height, panel, 4 * (product.depth + made.pitch))
        return ApproximateGemm(product, way, allowed, form, rows)

    @property
    def of_form(self) -> Form:
        """The form for the depth."""
        return Form(self.form, self.product.depth)

    @property
    def words(self) -> ApproximateWords:
        """The layout of the rounded weights."""
        return ApproximateWords(self.of_form, self.product.columns, self.product.panel)

    @property
    def facts(self) -> Facts:
        """The layout of what the checks know of B."""
        return Facts(self.of_form, self.product.columns, self.product.panel)

    @property
    def scratch(self) -> RowScratch:
        """The layout of one workgroup's scratch memory."""
        rows = self.product.rows
        most = min(self.block, rows) if isinstance(rows, int) else self.block
        return RowScratch(self.of_form, most, self.facts.count)

    @property
    def constants(self) -> int:
        """The bytes of the rounded weights and of the facts."""
        return 4 * (self.words.panels.size + self.facts.size)

    def operands(self) -> tuple[Operand, ...]:
        """Return a, b (packed), words, facts, what the epilogue reads, c, scratch, counts."""
        a, b, *reads, c = self.product.operands()
        words, facts = self.words, self.facts
        rows, columns = self.product.workgroups
        return (
            a,
            b,
            Operand("words", (words.panels.size,), dtype="i32", layout=words),
            Operand("facts", (facts.size,), layout=facts),
            *reads,
            c,
            Operand("scratch", (rows * columns * self.scratch.at.size,), "out"),
            APPROXIMATIONS,
        )

    def _in_place(self) -> tuple[tuple[str, str], ...]:
        return nest.overwritable(self.product.epilogue, self.product.rows)

    def _grid(self, size: Any) -> tuple[int, int]:
        return self.product.workgroups

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        product, a, b = self.product, memory["a"], memory["b"]
        number = k.workgroup(0) * product.workgroups[1] + k.workgroup(1)
        start = number * self.scratch.at.size
        rows = RoundedRows(k, self, a, memory["facts"], memory["scratch"], start)
        counter = Counter.of(k, memory["approximations"], product.workgroups[0])
        finish = product.finish(k, memory)
        taken = (self, memory["words"], rows, counter)
        ApproximateProduct(k, product, a, b, finish, *taken).build()


@dataclass(frozen=True)
class RoundedRows:
    """Code that rounds rows; `start` is where the workgroup's scratch memory begins."""

    k: Build
    own: ApproximateGemm
    a: Memory
    facts: Memory
    scratch: Memory
    start: Index

    @property
    def form(self) -> Form:
        """The form of the numbers."""
        return self.own.of_form

    @property
    def at(self) -> RowPlaces:
        """The places of facts of rows."""
        return self.own.scratch.at

    def round(self, first: Index, count: Index) -> None:
        """Round rows `first` and on."""
        with self.k.range(count) as row:
            self._row(first + row, row)

    def multiply(self, first: Index, count: Index, start: Index, end: Index, height: int) -> None:
        """Multiply rows by the sums of panels `start` to `end`, `height` rows at a time.

        Several panels share what is read of A. The last rows and panels may be computed twice.
        """
        k = self.k
        together = min(
            _PANELS if k.target.vector_registers >= _MANY else 2, self.own.scratch.panels
        )
        with k.range(0, count, height) as row, k.range(start, end, together) as panel:
            rows = [ops.least(first + row + r, first + count - 1) for r in range(height)]
            panels = [ops.least(panel + p, end - 1) for p in range(together)]
            sums = [p * self.own.facts.at.size + self.own.facts.first for p in panels]

            def turn(places: Sequence[Lanes], kept: Sequence[Vector]) -> list[Vector]:
                (at,) = places
                of_b = [self.facts.load(Lanes(s + at.start, at.mask)) for s in sums]
                new = []
                for r, source in enumerate(rows):
                    x = self.a.load(source, at)
                    own = kept[r * together : (r + 1) * together]
                    new += [ops.fma(x, s, total) for s, total in zip(of_b, own, strict=True)]
                return new

            zeros = [k.vector(0.0)] * (height * together)
            found = k.walk(Index.of(self.form.depth), 1, zeros, turn)
            order = ops.lanes_of_sums(height, k.lanes)
            spread = [order.index(r) for r in range(height)] + [0] * (k.lanes - height)
            for p, number in enumerate(panels):
                total = ops.sums_of(found[p::together]).part(spread)
                place = self.start + self.at.products + number * self.own.scratch.each
                self.scratch.store(total, place + row)

    def several(self, kind: Index | int, row: Index) -> Vector:
        """Return a fact of rows from `row` on, one in a lane."""
        return self.scratch.load(self.start + row + kind)

    def _row(self, source: Index, row: Index) -> None:
        k, form = self.k, self.form
        largest, seed = self._read(source)
        factor = ops.mixed(seed, Vector.counting(k.lanes)).bits() | 1
        usable = largest.above(_LEAST) & Scalar.of(_MOST).above(largest)
        levels = 1.0 if form.is_bf16 else float(form.levels)
        inverse = usable.picked(Scalar.of(levels) / largest, Scalar.of(0.0)).across(k.lanes)

        def turn(places: Sequence[Lanes], kept: Sequence[Vector]) -> list[Vector]:
            new = list(kept)
            drawn = self._drawn(places, seed, factor)
            for n, at in enumerate(places):
                number = self.a.load(source, at)
                share = number * inverse
                square, own = share * share, new[2 * n : 2 * n + 2]
                new[2 * n : 2 * n + 2] = (
                    self._halves(number, square, drawn[n], row, at, own)
                    if form.is_bf16
                    else self._integers(share, square, drawn[n], row, at, own)
                )
            return new

        zeros = [k.vector(0.0)] * (2 * _UNROLL)
        found = k.walk(Index.of(form.depth), _UNROLL, zeros, turn)
        squares, shares = (
            ops.across_lanes(ops.add, ops.tree(ops.add, found[n::2])) for n in range(2)
        )
        # A row of zeros is exact, one beyond the range never good enough.
        empty = largest.above(0.0).chosen(_NAN, 0.0)
        unit = usable.picked(largest / Scalar.of(levels), empty)
        norm = ops.square_root(squares) if form.is_bf16 else squares
        kept = {self.at.units: unit, self.at.norms: norm}
        if not form.is_bf16:
            kept[self.at.shifts] = -(unit * shares)
        for place, value in kept.items():
            self.scratch.put(value, self.start + place + row)

    def _read(self, source: Index) -> tuple[Scalar, Vector]:
        """Return a row's greatest number without its sign, and a hash of its bits in each lane."""
        k = self.k

        def turn(places: Sequence[Lanes], kept: Sequence[Vector]) -> list[Vector]:
            new = list(kept)
            for n, at in enumerate(places):
                x = self.a.load(source, at)
                new[n] = ops.larger(new[n], x.size())
                new[_UNROLL + n] = ops.mixed(new[_UNROLL + n], x)
            return new

        starts = [k.vector(0.0)] * _UNROLL + [k.vector(n + 1.0) for n in range(_UNROLL)]
        found = k.walk(Index.of(self.form.depth), _UNROLL, starts, turn)
        largest = ops.across_lanes(ops.larger, ops.tree(ops.larger, found[:_UNROLL]))
        whole = ops.mixed(ops.tree(ops.mixed, found[_UNROLL:]), Vector.counting(k.lanes))
        return largest, ops.across_lanes(ops.mixed, whole).across(k.lanes)

    def _drawn(self, places: Sequence[Lanes], seed: Vector, factor: Ints) -> list[Ints]:
        """Return integers for vectors of a row, of which the upper 16 bits are random.

        Two neighbouring vectors share what is drawn.
        """
        made: list[Ints] = []
        for at in places[::2]:
            word = ops.mixed(ops.mixed(self.facts.load(at), seed, factor), seed).bits()
            made += [word, word << _HALF]
        return made[: len(places)]

    def _integers(
        self, share: Vector, square: Vector, drawn: Ints, row: Index, at: Lanes, kept: list[Vector]
    ) -> list[Vector]:
        """Store integers; add to squares, and to the products of what they stand for with B's."""
        whole = ops.fma(drawn.to_float(), 2.0**-32, share).nearest()
        of_b = self.facts.load(Lanes(at.start + self.own.facts.along, at.mask))
        stands = whole.to_float()
        if self.form.offset:
            whole = whole + self.form.offset
        self._store(whole.cut(32 // self.form.per), row, at)
        return [kept[0] + square, ops.fma(stands, of_b, kept[1])]

    def _halves(
        self, number: Vector, square: Vector, drawn: Ints, row: Index, at: Lanes, kept: list[Vector]
    ) -> list[Vector]:
        """Store numbers of bf16, rounded up or down by the random bits; add to fourth powers."""
        self._store((number.bits() + drawn.upper(_HALF)).upper(_HALF).cut(_HALF), row, at)
        return [ops.fma(square, square, kept[0]), kept[1]]

    def _store(self, numbers: Ints, row: Index, at: Lanes) -> None:
        """Store a whole vector of narrow numbers as words; what is behind the depth meets zeros."""
        form = self.form
        words = ops.f32_vector(self.k.lanes // form.per)
        place = self.start + row * form.pitch + at.start // form.per
        # MLIR rewrites a bitcast of its own after a truncation to one that is not legal.
        self.scratch.store_as(ops.llvm.bitcast(words, numbers.value), place)


@dataclass(frozen=True)
class Spot:
    """A register tile: its rows in A and in the block, its panel, its words and facts there."""

    source: Index
    row: Index
    height: int
    panel: Panel
    words: Index
    facts: Index


@dataclass(frozen=True)
class ApproximateProduct(Product):
    """One kernel under construction, over the blocks, panels and tiles of a workgroup."""

    own: ApproximateGemm
    words: Memory
    rows: RoundedRows
    counter: Counter

    def build(self) -> None:
        """Round a block of rows, then compute its tiles, panel by panel."""
        k, knobs, own, facts = self.k, self.knobs, self.own, self.own.facts
        panels, parts = knobs.panels, knobs.workgroups[1]

        def block(first: Index, count: Index) -> None:
            self.rows.round(first, count)
            if own.checked:
                # The next panel may be the narrower last one.
                start, end = share(k, 1, parts, Index.of(panels.full))
                end = ops.least(end + 1, facts.count) if panels.last_width else end
                self.rows.multiply(first, count, start, end, knobs.height)

            def tiles(panel: Panel) -> None:
                words = panel.start(own.words.panels)
                place = panel.number * facts.at.size + facts.first

                def tile(row: Index, height: int) -> None:
                    self._approximate(Spot(first + row, row, height, panel, words, place))

                nest.for_tiles(k, count, knobs.height, tile)

            nest.for_panels(k, panels, parts, tiles)

        nest.for_blocks(k, knobs.rows, knobs.workgroups[0], own.scratch.rows, block)

    def _approximate(self, spot: Spot) -> None:
        """Compute one tile, check it, compute it exactly if it fails, and store it."""
        places = spot.panel.places(self.k)
        values = self._scaled(spot, len(places), self._sums(spot, len(places)))
        self.counter.add(TILES, Scalar.of(1.0))
        if self.own.checked:
            within, sound = self._checked(spot, values)

            def exact() -> list[Vector]:
                bound = within.chosen(0.0, 1.0)
                self.counter.add(BY_BOUND, bound)
                self.counter.add(BY_SUMS, Scalar.of(1.0) - bound)
                return self._exact(spot)

            tile = values
            values = self.k.either(within & sound, tile, lambda: tile, exact)
        self.finish.tile(values, places, nest.matrix_rows(spot.source))

    def _sums(self, spot: Spot, width: int) -> list:
        k, own, form = self.k, self.own, self.own.of_form
        code = FormCode(k, form)

        def left(r: int, at: Index) -> Vector:
            place = self.rows.start + (spot.row + r) * form.pitch + at
            return self.rows.scratch.number(place).across(k.lanes)

        def right(v: int, at: Index) -> Ints:
            return self.words.ints(spot.words + at * spot.panel.width + v * k.lanes)

        def multiply(x: Vector, weights: Ints, total: Any) -> Any:
            return code.add(total, x, weights)

        tile = ProductTile(k, spot.height, width, form.unroll, left, right, multiply=multiply)
        begin: list[Any] = [k.vector(0.0)] * width
        if not form.is_bf16:
            starts = spot.facts + own.facts.at.starts
            begin = [self.rows.facts.load(starts + v * k.lanes).bits() for v in range(width)]
        return tile.accumulate(Index.of(form.groups), begin * spot.height)

    def _scaled(self, spot: Spot, width: int, sums: Sequence) -> list[Vector]:
        """Return the elements of C that the sums stand for."""
        rows, lanes = self.rows, self.k.lanes
        if self.own.of_form.is_bf16:
            return list(sums)
        place = spot.facts + self.own.facts.at.scales
        scales = [rows.facts.load(place + v * lanes) for v in range(width)]
        made = []
        for r in range(spot.height):
            unit, shift = (
                rows.scratch.number(rows.start + kind + (spot.row + r)).across(lanes)
                for kind in (rows.at.units, rows.at.shifts)
            )
            for v in range(width):
                made.append(ops.fma(sums[r * width + v].to_float(), unit, shift) * scales[v])
        return made

    def _checked(self, spot: Spot, values: Sequence[Vector]) -> tuple[Condition, Condition]:
        """Return whether the bound is small enough, and whether the sums are those of B."""
        own, rows, lanes = self.own, self.rows, self.k.lanes
        width = len(values) // spot.height
        cut = [values[n : n + width] for n in range(0, len(values), width)]
        units = rows.several(rows.at.units, spot.row)
        norms = rows.several(rows.at.norms, spot.row)
        order = ops.lanes_of_sums(spot.height, lanes)

        def deviation(of_b: int, of_a: int, times: float) -> Vector:
            """Return that of each row, in the order of the lanes of sums."""
            place = spot.facts + own.facts.at.bounds
            b, a = (rows.facts.number(place + which).across(lanes) for which in (of_b, of_a))
            return (units * (ops.square_root(ops.fma(norms, a, b)) * times)).part(order)

        # What is allowed of the exact greatest element is a little less of the computed one.
        share_of = DEVIATIONS * (1 + own.allowed) / own.allowed
        sizes = [ops.tree(ops.larger, [v.size() for v in row]) for row in cut]
        greatest = ops.sums_of(sizes, combine=ops.larger)
        # Beside infinities nothing is small.
        finite = ops.where(greatest > ops.LARGEST, 0.0, greatest)
        within = deviation(BOUND_B, BOUND_A, share_of).at_most(finite)
        place = rows.at.products + spot.panel.number * own.scratch.each
        products = rows.several(place, spot.row)
        apart = ops.sums_of([signed_by_lines(row, lanes) for row in cut]) - products.part(order)
        sound = apart.size().at_most(deviation(SUMS_B, SUMS_A, DEVIATIONS))
        return within.all(), sound.all()

    def _exact(self, spot: Spot) -> list[Vector]:
        k, knobs = self.k, self.knobs

        def over(depth: Depth, sums: Sequence[Vector]) -> list[Vector]:
            tile = self._register_tile(spot.panel, depth, spot.source, spot.height)
            return tile.accumulate(depth.length, sums)

        zeros = [k.vector(0.0)] * (spot.height * len(spot.panel.places(k)))
        whole, blocks = Index.of(knobs.depth), Index.of(-(-knobs.depth // knobs.depth_block))

        @k.loop(0, blocks, 1, zeros)
        def sums(number: Index, *kept: Vector) -> list[Vector]:
            return over(Depth.block(number, blocks, whole, knobs.depth_block), kept)

        return sums


def _cost(knobs: ApproximateGemm, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count what `gemm` counts, in less time, and the words and facts as constants."""
    return _quicker(operand_cost(knobs.product, target, sizes), knobs)


def _quicker(cost: Cost, knobs: ApproximateGemm) -> Cost:
    quicker = replace(cost, seconds=cost.seconds / _FASTER[knobs.form])
    return quicker + Cost(constant_bytes=knobs.constants)


def approximated(
    offer: KernelOffer, target: Target, way: str, allowed: float
) -> KernelOffer | None:
    """Return an offer of `gemm` computed in a way; None without an instruction, or for few rows."""
    form = best_form(target, way)
    product: Gemm = offer.knobs
    few = isinstance(product.rows, int) and product.rows < _LEAST_ROWS
    if form is None or few or most_workgroups(product.workgroups) or product.depth > _MOST_DEPTH:
        return None
    knobs = ApproximateGemm.on(target, product, way, allowed, form)
    if not FAMILY.offers(knobs, target):
        return None
    first, weights, *others = offer.feeds
    feeds = (first, weights, weights, weights, *others)
    return replace(offer, knobs=knobs, feeds=feeds, cost=_quicker(offer.cost, knobs))


FAMILY = Family("approximate_gemm", ApproximateGemm, cost=_cost, approximated=approximated)
