"""Registers as bits and as wholes: integers that wrap, bits that differ, sums of many registers."""

from collections.abc import Sequence
from typing import Any

from pyc_mlir.pipelines.kernels.lang.values import (
    Condition,
    Mask,
    Scalar,
    Vector,
    arith,
    bits,
    from_bits,
    int_constant,
    picked,
    tree,
    vector,
)
from pyc_mlir.pipelines.streams.ir import ir


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


def sums_of(vectors: Sequence[Vector]) -> Vector:
    """Add up the lanes of each vector: the sums lie side by side, each in as many lanes.

    Halves of two vectors are added at once, which takes half of the shuffles of one vector after
    the other. There are at most as many vectors as lanes.
    """
    lanes, rows = vectors[0].lanes, list(vectors)
    width = lanes
    while len(rows) > 1:
        rows += [rows[0].constant(0.0)] * (len(rows) % 2)
        width //= 2
        # In blocks of `2 * width` lanes: the lower halves of both, and the upper ones.
        starts = range(0, 2 * lanes, 2 * width)
        low = [start + i for start in starts for i in range(width)]
        high = [start + width + i for start in starts for i in range(width)]
        pairs = zip(rows[::2], rows[1::2], strict=True)
        rows = [picked(a, b, low) + picked(a, b, high) for a, b in pairs]
    (x,) = rows
    while width > 1:
        width //= 2
        x += x.part([i ^ width for i in range(lanes)])
    return x
