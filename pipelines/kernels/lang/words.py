"""Registers as bits and as wholes: integers that wrap, bits that differ, sums of many registers."""

from collections.abc import Callable, Sequence
from typing import Any

from pyc_mlir.pipelines.kernels.lang.values import (
    Condition,
    Mask,
    Scalar,
    Vector,
    add,
    arith,
    bits,
    from_bits,
    int_constant,
    picked,
    tree,
    vector,
)
from pyc_mlir.pipelines.streams.ir import ir

_FACTOR = 0x7FEB352D


class Word:
    """A register of 32-bit integers whose sums wrap."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    @staticmethod
    def zero(lanes: int) -> "Word":
        """Return zeros."""
        return Word(int_constant(0, lanes))

    @staticmethod
    def of(x: Vector) -> "Word":
        """Return the bits of numbers."""
        return Word(bits(x))

    def __add__(self, other: "Word") -> "Word":
        return Word(arith.addi(self.value, other.value))

    def sum_differs(self, expected: Scalar) -> Condition:
        """Return whether the sum of all lanes is not the bits of `expected`."""
        kind = ir.IntegerType.get_signless(32)
        total = vector.reduction(kind, vector.CombiningKind.ADD, self.value)
        wanted = arith.bitcast(kind, expected.value)
        return Condition(arith.cmpi(arith.CmpIPredicate.ne, total, wanted))


def exclusive_or(a: Vector, b: Vector) -> Vector:
    """Return the vector whose bits are those in which both differ."""
    return from_bits(arith.xori(bits(a), bits(b)))


def mixed(a: Vector, b: Vector, factor: Any = None) -> Vector:
    """Hash the bits of both: a product carries differences up, a shift takes them down.

    The step and the factor, but for one that is given, are of ``lowbias32`` (Wellons, 2018).
    """
    known = int_constant(_FACTOR, a.lanes) if factor is None else factor
    x = arith.muli(arith.xori(bits(a), bits(b)), known)
    return from_bits(arith.xori(x, arith.shrui(x, int_constant(15, a.lanes))))


def differ(these: Sequence[Vector], those: Sequence[Vector]) -> Condition:
    """Return whether any bit of the vectors differs from its partner's."""
    pairs = zip(these, those, strict=True)
    apart = tree(arith.ori, [arith.xori(bits(a), bits(b)) for a, b in pairs])
    kind = ir.IntegerType.get_signless(32)
    found = vector.reduction(kind, vector.CombiningKind.OR, apart)
    return Condition(arith.cmpi(arith.CmpIPredicate.ne, found, arith.constant(kind, 0)))


def all_lanes(mask: Mask) -> Condition:
    """Return whether the bit is set in each lane."""
    kind = ir.IntegerType.get_signless(1)
    return Condition(vector.reduction(kind, vector.CombiningKind.AND, mask.value))


def above(a: Scalar, b: Scalar) -> Condition:
    """Return whether a is larger: false where either is NaN."""
    return Condition(arith.cmpf(arith.CmpFPredicate.OGT, a.value, b.value))


def chosen(condition: Condition, yes: float, no: float) -> Scalar:
    """Return one of two numbers."""
    return Scalar(arith.select(condition.value, Scalar.of(yes).value, Scalar.of(no).value))


def picked_by(condition: Condition, yes: Scalar, no: Scalar) -> Scalar:
    """Return one of two numbers that are computed both."""
    return Scalar(arith.select(condition.value, yes.value, no.value))


def size_of(x: Vector) -> Vector:
    """Return the numbers without their signs."""
    return from_bits(arith.andi(bits(x), int_constant((1 << 31) - 1, x.lanes)))


def sums_of(vectors: Sequence[Vector], combine: Callable[[Any, Any], Any] = add) -> Vector:
    """Add up the lanes of each vector: the sums lie side by side, each in as many lanes.

    Halves of two vectors are added at once, which takes half of the shuffles of one vector after
    the other. There are at most as many vectors as lanes; of an odd number one stands there twice
    (`lanes_of_sums`). `combine` may stand for the addition.
    """
    lanes, rows = vectors[0].lanes, list(vectors)
    width = lanes
    while len(rows) > 1:
        rows += rows[:1] * (len(rows) % 2)
        width //= 2
        # In blocks of `2 * width` lanes: the lower halves of both, and the upper ones.
        starts = range(0, 2 * lanes, 2 * width)
        low = [start + i for start in starts for i in range(width)]
        high = [start + width + i for start in starts for i in range(width)]
        pairs = zip(rows[::2], rows[1::2], strict=True)
        rows = [combine(picked(a, b, low), picked(a, b, high)) for a, b in pairs]
    (x,) = rows
    while width > 1:
        width //= 2
        x = combine(x, x.part([i ^ width for i in range(lanes)]))
    return x


def lanes_of_sums(vectors: int, lanes: int) -> list[int]:
    """Return for each lane of `sums_of` the number of the vector; some stand there twice."""
    rows = [[number] for number in range(vectors)]
    while len(rows) > 1:
        rows += rows[:1] * (len(rows) % 2)
        rows = [a + b for a, b in zip(rows[::2], rows[1::2], strict=True)]
    (order,) = rows
    return [order[lane * len(order) // lanes] for lane in range(lanes)]


_QUAD = 4  # f32 in 128 bits


def transposed(rows: Sequence[Vector]) -> list[Vector]:
    """Transpose a square block of vectors: as many as lanes, by shuffles of 128 bits.

    Shuffles that stay within 128 bits are one quick instruction on x86: pairs of rows are
    interleaved by single numbers, then by pairs, which transposes each 4 x 4; then the quarters
    change places.
    """
    lanes = len(rows)
    units = range(0, lanes, _QUAD)
    columns: list[list[Vector]] = [[] for _ in range(_QUAD)]
    for q in units:
        a, b, c, d = rows[q : q + _QUAD]
        for half in (0, 2):
            # Columns `half` and `half + 1` of four rows, in each 128 bits.
            ab, cd = (_interleaved(*pair, half, units) for pair in ((a, b), (c, d)))
            for odd in (0, 1):
                spots = [u + 2 * odd + s for u in units for s in (0, 1, lanes, lanes + 1)]
                columns[half + odd].append(picked(ab, cd, spots))
    made = [_quarters(column, lanes) for column in columns]
    return [made[c % _QUAD][c // _QUAD] for c in range(lanes)]


def _interleaved(a: Vector, b: Vector, half: int, units: range) -> Vector:
    lanes = units.stop
    return picked(a, b, [u + half + s for u in units for s in (0, lanes, 1, lanes + 1)])


def _quarters(parts: list[Vector], lanes: int) -> list[Vector]:
    """[u, p] -> [p, u], where u counts units of 128 bits in a vector and p the vectors."""
    if len(parts) == 1:
        return parts
    pairs = list(zip(parts[::2], parts[1::2], strict=True))
    halves = []
    for odd in (0, 1):
        spots = [u + s for u in range(odd * _QUAD, 2 * lanes, 2 * _QUAD) for s in range(_QUAD)]
        halves.append(_quarters([picked(a, b, spots) for a, b in pairs], lanes))
    return [unit for pair in zip(*halves, strict=True) for unit in pair]
