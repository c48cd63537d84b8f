"""Values of the kernel language: MLIR values with Python's operators.

An `Index` counts and addresses, a `Scalar` is one f32, a `Vector` is one register of f32, a `Mask`
one bit a lane, a `Condition` one bit. Each wraps an MLIR value; an operator builds the operation
at the current insertion point through MLIR's typed builders (arith, vector). Arithmetic on
indices that are known while the kernel is built happens in Python, so that a static size leaves
no trace in the code.

Floating-point operators round once each; nothing is contracted or reassociated behind the
kernel's back. A fused multiply-add is `fma`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import isnan
from typing import Any, Union

from pyc_mlir.pipelines.streams.ir import dialect, ir

arith = dialect("arith")
math = dialect("math")
vector = dialect("vector")

IndexLike = Union["Index", int]
Number = Union["Vector", "Scalar", float, int]
# Addresses do not wrap, which lets LLVM fold them into addressing modes.
_NO_WRAP = arith.IntegerOverflowFlags.nsw | arith.IntegerOverflowFlags.nuw
# f32: the largest relative error of a rounding, the smallest normal number and the largest one.
ROUNDING, SMALLEST, LARGEST = 2.0**-24, 2.0**-126, (2 - 2.0**-23) * 2.0**127
# The block at whose start constants are made, and those that were.
_shared: ContextVar[tuple[Any, dict[Any, Any]] | None] = ContextVar("_shared", default=None)


@contextmanager
def shared_constants(block: Any) -> Iterator[None]:
    """Share constants: code built within makes each one once, at the start of `block`.

    Every second op would be a constant else, and each pass takes time for it.
    """
    before = _shared.set((block, {}))
    try:
        yield
    finally:
        _shared.reset(before)


def _constant(kind: Any, attribute: Any) -> Any:
    """Emit a constant of type `kind`: an attribute, or a Python number for an index."""
    shared = _shared.get()
    if shared is None:
        return arith.constant(kind, attribute)
    block, made = shared
    if attribute not in made:
        with ir.InsertionPoint.at_block_begin(block):
            made[attribute] = arith.constant(kind, attribute)
    return made[attribute]


class Condition:
    """One truth value, known when the kernel runs."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __and__(self, other: "Condition") -> "Condition":
        return Condition(arith.andi(self.value, other.value))

    def __or__(self, other: "Condition") -> "Condition":
        return Condition(arith.ori(self.value, other.value))


class Index:
    """A count or a position, never negative; `number` is its value where that is known already."""

    __slots__ = ("_value", "number")

    def __init__(self, value: Any = None, number: int | None = None) -> None:
        self._value = value
        self.number = number

    @staticmethod
    def of(source: "IndexLike") -> "Index":
        """Make an index from an index or a Python number."""
        return source if isinstance(source, Index) else Index(number=source)

    @property
    def value(self) -> Any:
        """The MLIR value; a constant is made where it is asked for."""
        if self.number is not None:
            return _constant(ir.IndexType.get(), self.number)
        return self._value

    def __add__(self, other: IndexLike) -> "Index":
        other = Index.of(other)
        if other.number == 0:
            return self
        if self.number == 0:
            return other
        return self._fold(other, lambda a, b: a + b, _add)

    __radd__ = __add__

    def __sub__(self, other: IndexLike) -> "Index":
        """Return the difference, which must not be negative."""
        other = Index.of(other)
        return self if other.number == 0 else self._fold(other, lambda a, b: a - b, _sub)

    def __rsub__(self, other: IndexLike) -> "Index":
        return Index.of(other) - self

    def __mul__(self, other: IndexLike) -> "Index":
        other = Index.of(other)
        if 0 in (self.number, other.number):
            return Index(number=0)
        if other.number == 1:
            return self
        return other if self.number == 1 else self._fold(other, lambda a, b: a * b, _mul)

    __rmul__ = __mul__

    def __floordiv__(self, other: IndexLike) -> "Index":
        other = Index.of(other)
        return self if other.number == 1 else self._fold(other, lambda a, b: a // b, arith.divui)

    def __mod__(self, other: IndexLike) -> "Index":
        other = Index.of(other)
        if other.number == 1:
            return Index(number=0)
        return self._fold(other, lambda a, b: a % b, arith.remui)

    def ceildiv(self, other: IndexLike) -> "Index":
        """Return the number of parts of `other` that cover this count."""
        other = Index.of(other)
        return (self + (other - 1)) // other

    def __lt__(self, other: IndexLike) -> Condition:
        return self._compare(other, arith.CmpIPredicate.ult)

    def equals(self, other: IndexLike) -> Condition:
        """Return where both are the same."""
        return self._compare(other, arith.CmpIPredicate.eq)

    def to_float(self) -> "Scalar":
        """Convert the number to f32, rounded above 2^24."""
        if self.number is not None:
            return Scalar.of(float(self.number))
        wide = arith.index_cast(ir.IntegerType.get_signless(64), self.value)
        return Scalar(arith.uitofp(ir.F32Type.get(), wide))

    def _compare(self, other: IndexLike, predicate: Any) -> Condition:
        return Condition(arith.cmpi(predicate, self.value, Index.of(other).value))

    def _fold(self, other: "Index", python: Any, build: Any) -> "Index":
        if self.number is not None and other.number is not None:
            return Index(number=python(self.number, other.number))
        return Index(build(self.value, other.value))


def _add(a: Any, b: Any) -> Any:
    return arith.addi(a, b, overflow_flags=_NO_WRAP)


def _sub(a: Any, b: Any) -> Any:
    # Without `nuw`: MLIR folds (a - 2) + 1 into a + (-1) and keeps the flag, which is then wrong.
    return arith.subi(a, b, overflow_flags=arith.IntegerOverflowFlags.nsw)


def _mul(a: Any, b: Any) -> Any:
    return arith.muli(a, b, overflow_flags=_NO_WRAP)


def least(a: IndexLike, b: IndexLike) -> Index:
    """Return the smaller of two indices."""
    a, b = Index.of(a), Index.of(b)
    if a.number is not None and b.number is not None:
        return Index(number=min(a.number, b.number))
    return Index(arith.minui(a.value, b.value))


class Mask:
    """One bit for each lane of a vector."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __and__(self, other: "Mask") -> "Mask":
        return Mask(arith.andi(self.value, other.value))

    def __or__(self, other: "Mask") -> "Mask":
        return Mask(arith.ori(self.value, other.value))


class _Float:
    """The operators that `Scalar` and `Vector` share; the other side may be a Python number.

    `number` is that of a constant, None for anything else.
    """

    __slots__ = ("number", "value")

    def __init__(self, value: Any, number: float | None = None) -> None:
        self.value, self.number = value, number

    def _like(self, other: Any) -> Any:
        raise NotImplementedError

    def _binary(self, build: Any, other: Any) -> Any:
        return type(self)(build(self.value, self._like(other).value))

    def __add__(self, other: Any) -> Any:
        return self._binary(arith.addf, other)

    def __radd__(self, other: Any) -> Any:
        return self._like(other) + self

    def __sub__(self, other: Any) -> Any:
        return self._binary(arith.subf, other)

    def __rsub__(self, other: Any) -> Any:
        return self._like(other) - self

    def __mul__(self, other: Any) -> Any:
        return self._binary(arith.mulf, other)

    def __rmul__(self, other: Any) -> Any:
        return self._like(other) * self

    def __truediv__(self, other: Any) -> Any:
        return self._binary(arith.divf, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._like(other) / self

    def __neg__(self) -> Any:
        return type(self)(arith.negf(self.value))


class Scalar(_Float):
    """One f32."""

    __slots__ = ()

    @staticmethod
    def of(number: float) -> "Scalar":
        """Emit a constant, rounded to f32."""
        kind = ir.F32Type.get()
        return Scalar(_constant(kind, ir.FloatAttr.get(kind, number)), number)

    def _like(self, other: Any) -> "Scalar":
        return other if isinstance(other, Scalar) else Scalar.of(other)

    def beats(self, other: "Scalar") -> Condition:
        """Return whether numpy's argmax prefers this one: it is larger, or the first NaN."""
        above = arith.cmpf(arith.CmpFPredicate.UGT, self.value, other.value)
        sound = arith.cmpf(arith.CmpFPredicate.ORD, other.value, other.value)
        return Condition(arith.andi(above, sound))

    def to_index(self) -> Index:
        """Drop the number's fraction; it must not be negative."""
        wide = arith.fptoui(ir.IntegerType.get_signless(64), self.value)
        return Index(arith.index_cast(ir.IndexType.get(), wide))

    def across(self, lanes: int) -> "Vector":
        """Broadcast this number to each lane of a vector."""
        return Vector(vector.broadcast(f32_vector(lanes), self.value))


class Vector(_Float):
    """One register of f32; comparisons give a `Mask` and are false where a side is NaN."""

    __slots__ = ()

    @staticmethod
    def of(number: float, lanes: int) -> "Vector":
        """Emit a constant in each of `lanes` lanes, rounded to f32."""
        element = ir.FloatAttr.get(ir.F32Type.get(), number)
        kind = f32_vector(lanes)
        return Vector(_constant(kind, ir.DenseElementsAttr.get_splat(kind, element)), number)

    @staticmethod
    def counting(lanes: int) -> "Vector":
        """0, 1, 2 and so on."""
        numbers = [ir.FloatAttr.get(ir.F32Type.get(), float(n)) for n in range(lanes)]
        kind = f32_vector(lanes)
        return Vector(_constant(kind, ir.DenseElementsAttr.get(numbers, kind)))

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return ir.VectorType(self.value.type).shape[0]

    def _like(self, other: Any) -> "Vector":
        if isinstance(other, Vector):
            return other
        return other.across(self.lanes) if isinstance(other, Scalar) else self.constant(other)

    def constant(self, number: float) -> "Vector":
        """Emit a constant of this vector's width."""
        return Vector.of(number, self.lanes)

    def __lt__(self, other: Any) -> Mask:
        return self._compare("OLT", other)

    def __gt__(self, other: Any) -> Mask:
        return self._compare("OGT", other)

    def at_most(self, other: Any) -> Mask:
        """Return the lanes that are no larger."""
        return self._compare("OLE", other)

    def equals(self, other: Any) -> Mask:
        """Return the lanes that hold the same number; NaN equals nothing."""
        return self._compare("OEQ", other)

    def is_nan(self) -> Mask:
        """Return the lanes that hold NaN."""
        return self._compare("UNO", self)

    def _compare(self, predicate: str, other: Any) -> Mask:
        kind = getattr(arith.CmpFPredicate, predicate)
        return Mask(arith.cmpf(kind, self.value, self._like(other).value))

    def part(self, positions: list[int]) -> "Vector":
        """Return the lanes at `positions`, in that order."""
        return Vector(vector.shuffle(self.value, self.value, positions))

    def lane(self, position: int) -> Scalar:
        """Return one lane."""
        return Scalar(vector.extract(self.value, [], [position]))


def f32_vector(lanes: int) -> Any:
    """Return MLIR's type of a vector of f32."""
    return ir.VectorType.get([lanes], ir.F32Type.get())


def int_vector(lanes: int) -> Any:
    """Return MLIR's type of a vector of 32-bit integers, which hold the bits of f32."""
    return ir.VectorType.get([lanes], ir.IntegerType.get_signless(32))


def where(mask: Mask, yes: Number, no: Number) -> Vector:
    """`yes` in the lanes of the mask, `no` in the others; one of them is a vector."""
    model = yes if isinstance(yes, Vector) else no
    assert isinstance(model, Vector), "where: one side must be a vector"
    return Vector(arith.select(mask.value, model._like(yes).value, model._like(no).value))


def fma(a: Vector, b: Number, c: Number) -> Vector:
    """Return a * b + c, rounded once."""
    return Vector(vector.fma(a.value, a._like(b).value, a._like(c).value))


def interleaved(a: Vector, b: Vector) -> Vector:
    """Interleave the lanes of both: a vector of twice the length."""
    return Vector(vector.interleave(a.value, b.value))


def square_root(a: Any) -> Any:
    """Return the square root, rounded once; NaN of a negative number."""
    return type(a)(math.sqrt(a.value))


def add(a: Any, b: Any) -> Any:
    """Return a + b, as a name that folds can take."""
    return a + b


def maximum(a: Any, b: Any) -> Any:
    """Return the larger one, NaN where either is NaN: numpy's rule.

    Three instructions on x86, but one where a side is a constant (two for 0).
    """
    a, b = _constant_last(a, b)
    if b.number is None or isnan(b.number):
        return type(a)(arith.maximumf(a.value, b.value))
    # The larger zero is 0, not -0.
    below = arith.CmpFPredicate.OLE if b.number == 0 else arith.CmpFPredicate.OLT
    return type(a)(arith.select(arith.cmpf(below, a.value, b.value), b.value, a.value))


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller one, NaN where either is NaN, in as many instructions as `maximum`."""
    a, b = _constant_last(a, b)
    if b.number is None or isnan(b.number):
        return type(a)(arith.minimumf(a.value, b.value))
    above = arith.CmpFPredicate.OGT
    return type(a)(arith.select(arith.cmpf(above, a.value, b.value), b.value, a.value))


def _constant_last(a: Any, b: Any) -> tuple[Any, Any]:
    b = a._like(b)
    return (a, b) if a.number is None else (b, a)


def larger(kept: Any, new: Any) -> Any:
    """Return the larger one; a NaN in `new` is passed over. One instruction on x86."""
    new = kept._like(new)
    test = arith.cmpf(arith.CmpFPredicate.OGT, new.value, kept.value)
    return type(kept)(arith.select(test, new.value, kept.value))


def smaller(kept: Any, new: Any) -> Any:
    """Return the smaller one; a NaN in `new` is passed over. One instruction on x86."""
    new = kept._like(new)
    test = arith.cmpf(arith.CmpFPredicate.OLT, new.value, kept.value)
    return type(kept)(arith.select(test, new.value, kept.value))


def clamp(x: Vector, low: float, high: float) -> Vector:
    """x between two bounds, NaN kept."""
    x = where(x < low, low, x)
    return where(x > high, high, x)


def picked(a: Vector, b: Vector, positions: list[int]) -> Vector:
    """Return the lanes at `positions` of a, then b, as one row of twice the width."""
    return Vector(vector.shuffle(a.value, b.value, positions))


def bits(x: Vector) -> Any:
    """Return the f32 lanes as 32-bit integers, an MLIR value."""
    return arith.bitcast(int_vector(x.lanes), x.value)


def from_bits(value: Any) -> Vector:
    """Reverse `bits`."""
    return Vector(arith.bitcast(f32_vector(ir.VectorType(value.type).shape[0]), value))


def int_constant(number: int, lanes: int) -> Any:
    """Emit a 32-bit integer in each lane, an MLIR value."""
    kind = int_vector(lanes)
    element = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), number)
    return arith.constant(kind, ir.DenseElementsAttr.get_splat(kind, element))


def across_lanes(combine: Any, x: Vector) -> Scalar:
    """Combine all lanes into one number by a tree of halves."""
    width = x.lanes
    while width > 1:
        half = width // 2
        x = combine(x.part(list(range(half))), x.part(list(range(half, width))))
        width = half
    return x.lane(0)


def tree(combine: Any, items: list[Any]) -> Any:
    """Combine values pair by pair, which rounds less than one after the other."""
    while len(items) > 1:
        pairs = [items[i : i + 2] for i in range(0, len(items), 2)]
        items = [combine(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return items[0]
