"""The kernel family ``checked_gemm``: products that detect faults of hardware.

Code, tiles and results are those of `gemm`; each tile's sums are checked before the epilogue, and
counts of faults are one result more. A contract with ``detect_faults`` takes these kernels where
`gemm` has one.

For a register tile of rows of A times a panel of B, the sums along the tile's rows must be the
product of A with the panel's own sums, which are known when compiling (Huang and Abraham, 1984,
"Algorithm-Based Fault Tolerance for Matrix Operations"). They are compared before the epilogue.
The threshold is far below what rounding can do in the worst case, so that a suspicion is cheap and
means little: the tile is computed twice more, and bits decide, which are equal in every run of
sound hardware.

- Other bits at first, equal ones afterwards: a passing fault, repaired.
- Equal bits, and sums further apart than rounding can explain: weights or the core are damaged.
- Equal bits otherwise: rounding.

What is not seen: faults as small as rounding, inputs damaged before they are read, partial sums
in memory between two blocks of the depth, and anything where inputs are not finite.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np

from pyc_mlir.pipelines.kernels.counts import FAULTS, Counter, most_workgroups
from pyc_mlir.pipelines.kernels.families.gemm import Gemm, Product
from pyc_mlir.pipelines.kernels.knobs import KernelKnobs
from pyc_mlir.pipelines.kernels.lang import values as ops
from pyc_mlir.pipelines.kernels.lang.carrier import Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.values import Condition, Index, Ints, Scalar, Vector
from pyc_mlir.pipelines.kernels.match import KernelOffer
from pyc_mlir.pipelines.kernels.nest import CHAINS, Depth, Panel, ProductTile
from pyc_mlir.pipelines.kernels.registry import Family, operand_cost
from pyc_mlir.pipelines.streams.ir import ir
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import Target

# The counts of `FAULTS`: tiles computed again and found equal, repaired, and that stay wrong.
SUSPECTED, REPAIRED, LASTING = range(3)
# For tests: row, column and, as the bits of a number, what is exchanged in the sum of that place.
FLIP = Operand("flip", (3,))
_TINY = 2.0**-100  # what numbers below the smallest normal one may add


@dataclass(frozen=True)
class PanelSums:
    """The facts of B[depth, columns] for checks: of each panel sums, then of all norms, then words.

    Sums: of columns in lines of 16, the lines' signs alternating, one for each step of the depth.
    The norm is that of the sums of sizes, |B| e. The word is the sum of the packed panel's bits, as
    integers of 32 bits that wrap: any one flip changes it.
    """

    columns: int
    depth: int
    panel: int

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of B."""
        return self.depth, self.columns

    @property
    def count(self) -> int:
        """The number of panels, a narrower last one included."""
        return -(-self.columns // self.panel)

    @property
    def size(self) -> int:
        """The number of f32."""
        return self.count * (self.depth + 2)

    @property
    def norms(self) -> int:
        """The place where the norms begin."""
        return self.count * self.depth

    @property
    def words(self) -> int:
        """The place where the words begin."""
        return self.norms + self.count

    def pack(self, b: np.ndarray) -> np.ndarray:
        """Return the sums of B, each rounded once, the norms, rounded up, and the words' bits."""
        assert b.shape == self.shape
        wide = np.zeros((self.depth, self.count * self.panel))
        wide[:, : self.columns] = b
        panels = wide.reshape(self.depth, self.count, self.panel)
        with np.errstate(invalid="ignore", over="ignore"):
            sums = (panels * signs(self.panel)).sum(axis=2).T
            norms = np.sqrt((np.abs(panels).sum(axis=2) ** 2).sum(axis=0)) * (1 + 2.0**-20)
            found = np.concatenate([sums.ravel(), norms]).astype(np.float32)
        # Padding is zeros, which change no sum of bits.
        words = panels.astype(np.float32).view(np.uint32).sum(axis=(0, 2), dtype=np.uint32)
        return np.concatenate([found, words.view(np.float32)])


def signs(panel: int) -> np.ndarray:
    """Return the sign of each column of a panel: one of its line."""
    return np.where(np.arange(panel) // LINE % 2 == 0, 1.0, -1.0)


@dataclass(frozen=True)
class TilePlace:
    """A tile: its rows, its panel, `packed` from a number on, and the block that is added."""

    row: Index
    height: int
    panel: Panel
    depth: Depth
    packed: Index


@dataclass(frozen=True)
class TileCheck:
    """The check of one workgroup's tiles: A, the sums of B's panels, and what counts faults.

    depth: the longest block of the depth.
    """

    k: Build
    a: Memory
    b: Memory
    sums: Memory
    faults: Counter
    layout: PanelSums
    depth: int

    def settled(
        self,
        values: Sequence[Vector],
        before: Sequence[Vector],
        again: Callable[[], Sequence[Vector]],
        place: TilePlace,
    ) -> list[Vector]:
        """Return the tile's sums, computed again where they are suspected.

        values: row by row; before: what they began with; again: computes them once more.
        """
        k = self.k
        products = self._products(place)
        off = self._rows(place, values, before)
        apart = ops.sums_of([x - p for x, p in zip(off, products, strict=True)])
        sizes = ops.sums_of(
            [
                reduce(lambda total, v: ops.fma(v, v, total), row[1:], row[0] * row[0])
                for row in _cut(values, place.height)
            ]
        )
        limit = (8 * ops.ROUNDING) ** 2 * (self.depth / 3)
        sound = (apart * apart).at_most(sizes * limit) & sizes.at_most(ops.LARGEST)

        def suspected() -> list[Vector]:
            none = [Scalar.of(0.0), Scalar.of(0.0)]

            @k.loop(0, 2, carry=[*values, *none])
            def computed(turn: Index, *kept: Any) -> list[Any]:
                *last, _, latest = kept
                new = list(again())
                return [*new, latest, ops.differ(last, new).chosen(1.0, 0.0)]

            *final, first, second = computed
            lasting = second.above(0.0) | self._damaged(place)
            lasting |= self._unexplained(final, before, products, place)
            stays = lasting.chosen(1.0, 0.0)
            mended = first * (1.0 - stays)
            self.faults.add(SUSPECTED, 1.0 - stays - mended)
            self.faults.add(REPAIRED, mended)
            self.faults.add(LASTING, stays)
            return final

        same = list(values)
        return k.either(sound.all(), same, lambda: same, suspected)

    def _products(self, place: TilePlace) -> list[Vector]:
        """Return each row of A times the panel's sums, as a vector whose lanes are to be added."""
        base = place.panel.number * self.layout.depth + place.depth.start

        def term(row: int, at: Lanes, kept: Vector) -> Vector:
            sums = self.sums.load(Lanes(base + at.start, at.mask))
            return ops.fma(self._of_a(place, row, at), sums, kept)

        return along_depth(self.k, place.height, place.depth.length, term)

    def _of_a(self, place: TilePlace, row: int, at: Lanes) -> Vector:
        return self.a.load(place.row + row, Lanes(place.depth.start + at.start, at.mask))

    def _rows(
        self, place: TilePlace, values: Sequence[Vector], before: Sequence[Vector]
    ) -> list[Vector]:
        """Return for each row what the block has added to it, lines with alternating signs."""
        rows = zip(_cut(values, place.height), _cut(before, place.height), strict=True)
        lanes = self.k.lanes
        return [signed_by_lines(row, lanes) - signed_by_lines(old, lanes) for row, old in rows]

    def _unexplained(
        self,
        values: Sequence[Vector],
        before: Sequence[Vector],
        products: Sequence[Vector],
        place: TilePlace,
    ) -> Condition:
        """Return whether a row's sums are further apart than any rounding explains.

        The bound is that of sums in any order (Higham, 2002, section 3.1), by Cauchy and Schwarz:
        |A| |B| e <= norm of A's row times norm of |B| e. Infinities and NaN are explained.
        """
        depth, panel = self.depth, self.layout.panel
        share = (2 * depth + panel + 8) * ops.ROUNDING

        def square_of(row: int, at: Lanes, kept: Vector) -> Vector:
            value = self._of_a(place, row, at)
            return ops.fma(value, value, kept)

        squares = along_depth(self.k, place.height, place.depth.length, square_of)
        norm = self.sums.number(place.panel.number + self.layout.norms)
        off = self._rows(place, values, before)
        found = []
        cut = _cut(before, place.height)
        for x, product, square, old in zip(off, products, squares, cut, strict=True):
            apart = ops.across_lanes(ops.add, x - product)
            size = ops.square_root(ops.across_lanes(ops.add, square)) * norm
            size += ops.across_lanes(ops.add, reduce(ops.add, [ops.maximum(v, -v) for v in old]))
            found.append(ops.maximum(apart, -apart).above(size * share + _TINY))
        return reduce(or_, found)

    def _damaged(self, place: TilePlace) -> Condition:
        """Return whether the packed panel is not what it was when the program was compiled."""
        size = self.layout.depth * place.panel.width

        @self.k.loop(0, size, self.k.lanes, carry=[Ints.of(0, self.k.lanes)])
        def words(at: Index, total: Ints) -> list[Ints]:
            return [total + self.b.load(place.packed + at).bits()]

        expected = self.sums.number(place.panel.number + self.layout.words)
        wanted = ops.arith.bitcast(ir.IntegerType.get_signless(32), expected.value)
        return Condition(ops.arith.cmpi(ops.arith.CmpIPredicate.ne, words[0].sum(), wanted))


def along_depth(
    k: Build, height: int, length: Index, term: Callable[[int, Lanes, Vector], Vector]
) -> list[Vector]:
    """Add terms along the depth for each row, in partial sums enough for the units' latency."""
    parts = max(1, CHAINS // height)

    def turn(places: Sequence[Lanes], kept: Sequence[Vector]) -> list[Vector]:
        new = list(kept)
        for u, at in enumerate(places):
            for r in range(height):
                new[u * height + r] = term(r, at, new[u * height + r])
        return new

    zeros = [k.vector(0.0)] * (height * parts)
    sums = k.walk(length, parts, zeros, turn)
    return [ops.tree(ops.add, list(sums[r::height])) for r in range(height)]


def signed_by_lines(row: Sequence[Vector], lanes: int) -> Vector:
    """Add up a row's vectors with the signs of their lines."""
    signed = (v if i * lanes // LINE % 2 == 0 else -v for i, v in enumerate(row))
    return reduce(ops.add, signed)


def _cut(values: Sequence[Vector], height: int) -> list[Sequence[Vector]]:
    width = len(values) // height
    return [values[r * width : (r + 1) * width] for r in range(height)]


def flipped(flip: Memory, value: Vector, row: Index, start: Index) -> Vector:
    """Flip bits of the lane that `flip` names by row and column, of lanes from `start` on."""
    wanted, column, mask = (flip.number(i) for i in range(3))
    lanes = value.lanes
    here = (Vector.counting(lanes) + start.to_float()).equals(column.across(lanes))
    here &= row.to_float().across(lanes).equals(wanted.across(lanes))
    return ops.where(here, (value.bits() ^ mask.across(lanes).bits()).from_bits(), value)


def refuse_high(family: str, product: Gemm, target: Target) -> str:
    """Refuse what `gemm` refuses, and more rows of a tile than a vector has lanes."""
    lanes, height = target.vector_bytes // 4, product.height
    if (reason := product.refusal(target)) or height <= lanes:
        return reason
    return f"{family}: expected at most {lanes} rows a tile, got {height}"


@dataclass(frozen=True)
class CheckedGemm(KernelKnobs, family="checked_gemm"):
    """The knobs: those of the product.

    `injected` is for tests: an operand `flip` has a row, a column and the bits of a sum that are
    wrong when it is computed first.
    """

    product: Gemm
    injected: bool = False

    def _misfit(self) -> str:
        return most_workgroups(self.product.workgroups)

    def refusal(self, target: Target) -> str:
        """Refuse what `gemm` refuses, and tiles whose sums of rows do not lie in one vector."""
        return refuse_high(self.family, self.product, target)

    @property
    def sums(self) -> PanelSums:
        """The layout of what the checks know of B."""
        return PanelSums(self.product.columns, self.product.depth, self.product.panel)

    def operands(self) -> tuple[Operand, ...]:
        """Return a, b (packed), sums, what the epilogue reads, [flip], c, faults."""
        a, b, *reads, c = self.product.operands()
        sums = Operand("sums", (self.sums.size,), layout=self.sums)
        return (a, b, sums, *reads, *(FLIP,) * self.injected, c, FAULTS)

    def _in_place(self) -> tuple[tuple[str, str], ...]:
        return self.product.kernel("c").in_place

    def _grid(self, size: Any) -> tuple[int, int]:
        return self.product.workgroups

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        product, a, b = self.product, memory["a"], memory["b"]
        longest = min(product.depth, product.depth_block)
        counter = Counter.of(k, memory["faults"], product.workgroups[0])
        check = TileCheck(k, a, b, memory["sums"], counter, self.sums, longest)
        finish = product.finish(k, memory)
        CheckedProduct(k, product, a, b, finish, check, memory.get("flip")).build()


@dataclass(frozen=True)
class CheckedProduct(Product):
    """A product under construction whose tiles are checked; `flip` has the fault of a test."""

    check: TileCheck
    flip: Memory | None

    def _accumulated(
        self,
        tile: ProductTile,
        begin: Callable[[], list[Vector]],
        panel: Panel,
        depth: Depth,
        row: Index,
    ) -> list[Vector]:
        before, panels = begin(), self.knobs.panels
        sums = tile.accumulate(depth.length, before)
        if self.flip is not None:
            spots = [(row + r, at) for r in range(tile.height) for at in panel.places(self.k)]
            pairs = zip(spots, sums, strict=True)
            sums = [flipped(self.flip, value, i, at.start) for (i, at), value in pairs]
        place = TilePlace(row, tile.height, panel, depth, panel.start(panels))
        return self.check.settled(
            sums, before, lambda: tile.accumulate(depth.length, begin()), place
        )


def _cost(knobs: CheckedGemm, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count what `gemm` counts, and the sums as constants. Checks take 3 to 5 % of the time."""
    return operand_cost(knobs.product, target, sizes) + Cost(constant_bytes=4 * knobs.sums.size)


def checked(offer: KernelOffer, target: Target) -> KernelOffer | None:
    """Return an offer of `gemm` with checks, which read the weights a second time, as sums.

    Tiles that are higher than the target's vectors are made as high.
    """
    if most_workgroups(offer.knobs.workgroups):
        return None
    first, weights, *others = offer.feeds
    product = replace(offer.knobs, height=min(offer.knobs.height, target.vector_bytes // 4))
    knobs = CheckedGemm(product)
    cost = offer.cost + Cost(constant_bytes=4 * knobs.sums.size)
    return replace(offer, knobs=knobs, feeds=(first, weights, weights, *others), cost=cost)


FAMILY = Family("checked_gemm", CheckedGemm, cost=_cost, checked=checked)
