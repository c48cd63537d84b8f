"""Values of the kernel language: MLIR values with Python's operators.

An `Index` counts and addresses, a `Scalar` is one f32, a `Vector` is one register of f32, `Ints`
one of integers, a `Mask` one bit a lane, a `Condition` one bit. Each wraps an MLIR value; an
operator builds the operation at the current insertion point through MLIR's typed builders (arith,
vector). Arithmetic on indices that are known while the kernel is built happens in Python, so that
a static size leaves no trace in the code.

Floating-point operators round once each; nothing is contracted or reassociated behind the
kernel's back. A fused multiply-add is `fma`. Integers wrap. Behind the classes stand functions on
whole registers: folds over lanes, sums of many registers, hashes, transposes, and the numbers of
other types than f32 as they lie in memory.
"""

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from math import isnan
from typing import Any, Union

from pyc_mlir.pipelines.streams.ir import dialect, ir

arith = dialect("arith")
llvm = dialect("llvm")
math = dialect("math")
vector = dialect("vector")

IndexLike = Union["Index", int]
Number = Union["Vector", "Scalar", float, int]
# Addresses do not wrap, which lets LLVM fold them into addressing modes. Differences without `nuw`:
# MLIR folds (a - 2) + 1 into a + (-1) and keeps the flag, which is then wrong.
_NSW = arith.IntegerOverflowFlags.nsw
_NO_WRAP = _NSW | arith.IntegerOverflowFlags.nuw
_ADD = partial(arith.addi, overflow_flags=_NO_WRAP)
_SUB = partial(arith.subi, overflow_flags=_NSW)
_MUL = partial(arith.muli, overflow_flags=_NO_WRAP)
# f32: the largest relative error of a rounding, the smallest normal number and the largest one.
ROUNDING, SMALLEST, LARGEST = 2.0**-24, 2.0**-126, (2 - 2.0**-23) * 2.0**127
_AVX2_LANES, _AVX512_LANES = 8, 16
_QUAD = 4  # f32 in 128 bits
_MOST_INTEGER = 2.0**30
_BF16_SHIFT = 16  # bf16 is the upper half of f32
_HASH_FACTOR = 0x7FEB352D
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


class _Bits:
    """A truth value, or one for each lane."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __and__(self, other: Any) -> Any:
        return type(self)(arith.andi(self.value, other.value))

    def __or__(self, other: Any) -> Any:
        return type(self)(arith.ori(self.value, other.value))


class Condition(_Bits):
    """One truth value, known when the kernel runs."""

    __slots__ = ()

    def chosen(self, yes: float, no: float) -> "Scalar":
        """Return one of two numbers."""
        return self.picked(Scalar.of(yes), Scalar.of(no))

    def picked(self, yes: "Scalar", no: "Scalar") -> "Scalar":
        """Return one of two numbers that are computed both."""
        return Scalar(arith.select(self.value, yes.value, no.value))


class Mask(_Bits):
    """One bit for each lane of a vector."""

    __slots__ = ()

    @staticmethod
    def first(count: int, lanes: int) -> "Mask":
        """Return that of the first `count` lanes."""
        return Mask(vector.constant_mask(int_vector(lanes, 1), [count]))

    def all(self) -> Condition:
        """Return whether the bit is set in each lane."""
        kind = ir.IntegerType.get_signless(1)
        return Condition(vector.reduction(kind, vector.CombiningKind.AND, self.value))


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
        return other if self.number == 0 else self._fold(other, operator.add, _ADD)

    __radd__ = __add__

    def __sub__(self, other: IndexLike) -> "Index":
        """Return the difference, which must not be negative."""
        other = Index.of(other)
        return self if other.number == 0 else self._fold(other, operator.sub, _SUB)

    def __rsub__(self, other: IndexLike) -> "Index":
        return Index.of(other) - self

    def __mul__(self, other: IndexLike) -> "Index":
        other = Index.of(other)
        if 0 in (self.number, other.number):
            return Index(number=0)
        if other.number == 1:
            return self
        return other if self.number == 1 else self._fold(other, operator.mul, _MUL)

    __rmul__ = __mul__

    def __floordiv__(self, other: IndexLike) -> "Index":
        other = Index.of(other)
        return self if other.number == 1 else self._fold(other, operator.floordiv, arith.divui)

    def __mod__(self, other: IndexLike) -> "Index":
        other = Index.of(other)
        if other.number == 1:
            return Index(number=0)
        return self._fold(other, operator.mod, arith.remui)

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


def least(a: IndexLike, b: IndexLike) -> Index:
    """Return the smaller of two indices."""
    return Index.of(a)._fold(Index.of(b), min, arith.minui)


def _operators(build: Any) -> Any:
    """Return the operator of numbers that `build` emits, and that of exchanged sides."""

    def forward(self: Any, other: Any) -> Any:
        return type(self)(build(self.value, self._like(other).value))

    def backward(self: Any, other: Any) -> Any:
        return forward(self._like(other), self)

    return forward, backward


class _Float:
    """The operators that `Scalar` and `Vector` share; the other side may be a Python number.

    `number` is that of a constant, None for anything else.
    """

    __slots__ = ("number", "value")

    def __init__(self, value: Any, number: float | None = None) -> None:
        self.value, self.number = value, number

    def _like(self, other: Any) -> Any:
        raise NotImplementedError

    __add__, __radd__ = _operators(arith.addf)
    __sub__, __rsub__ = _operators(arith.subf)
    __mul__, __rmul__ = _operators(arith.mulf)
    __truediv__, __rtruediv__ = _operators(arith.divf)

    def __neg__(self) -> Any:
        return type(self)(arith.negf(self.value))

    def _test(self, predicate: str, other: Any) -> Any:
        kind = getattr(arith.CmpFPredicate, predicate)
        return arith.cmpf(kind, self.value, self._like(other).value)


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

    def above(self, other: Any) -> Condition:
        """Return whether this one is larger: false where either is NaN."""
        return Condition(self._test("OGT", other))

    def beats(self, other: "Scalar") -> Condition:
        """Return whether numpy's argmax prefers this one: it is larger, or the first NaN."""
        return Condition(arith.andi(self._test("UGT", other), other._test("ORD", other)))

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
    def holding(numbers: Sequence[float]) -> "Vector":
        """Emit these numbers, one in a lane."""
        kind = f32_vector(len(numbers))
        held = [ir.FloatAttr.get(ir.F32Type.get(), number) for number in numbers]
        return Vector(_constant(kind, ir.DenseElementsAttr.get(held, kind)))

    @staticmethod
    def counting(lanes: int) -> "Vector":
        """0, 1, 2 and so on."""
        return Vector.holding(list(map(float, range(lanes))))

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
        return Mask(self._test("OLT", other))

    def __gt__(self, other: Any) -> Mask:
        return Mask(self._test("OGT", other))

    def at_most(self, other: Any) -> Mask:
        """Return the lanes that are no larger."""
        return Mask(self._test("OLE", other))

    def equals(self, other: Any) -> Mask:
        """Return the lanes that hold the same number; NaN equals nothing."""
        return Mask(self._test("OEQ", other))

    def is_nan(self) -> Mask:
        """Return the lanes that hold NaN."""
        return Mask(self._test("UNO", self))

    def part(self, positions: list[int]) -> "Vector":
        """Return the lanes at `positions`, in that order."""
        return picked(self, self, positions)

    def lane(self, position: int) -> Scalar:
        """Return one lane."""
        return Scalar(vector.extract(self.value, [], [position]))

    def bits(self) -> "Ints":
        """Return the bits of the numbers, as integers."""
        return Ints(arith.bitcast(int_vector(self.lanes), self.value))

    def size(self) -> "Vector":
        """Return the numbers without their signs."""
        return (self.bits() & ((1 << 31) - 1)).from_bits()

    def whole(self) -> "Ints":
        """Return whole numbers as integers."""
        return Ints(arith.fptosi(int_vector(self.lanes), self.value))

    def nearest(self) -> "Ints":
        """Return the nearest integers, of two the even one.

        Beyond 32 bits, and for NaN, x86 gives the least integer; others give the nearest one, and
        any.
        """
        kind, operands = int_vector(self.lanes), [self.value]
        if self.lanes == _AVX2_LANES:
            return Ints(_intrinsic(kind, "llvm.x86.avx.cvt.ps2dq.256", operands))
        if self.lanes == _AVX512_LANES:
            operands += [
                Ints.of(0, self.lanes).value,
                arith.constant(ir.IntegerType.get_signless(16), -1),
                arith.constant(ir.IntegerType.get_signless(32), 4),
            ]
            return Ints(_intrinsic(kind, "llvm.x86.avx512.mask.cvtps2dq.512", operands))
        most = self.constant(_MOST_INTEGER)
        return Vector(math.roundeven(smaller(larger(-most, self), most).value)).whole()


class Ints:
    """One register of integers, of 32 bits or as its type says; the other side may be a number."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    @staticmethod
    def of(number: int, lanes: int, bits: int = 32) -> "Ints":
        """Emit a constant in each lane."""
        kind = int_vector(lanes, bits)
        element = ir.IntegerAttr.get(kind.element_type, number)
        return Ints(arith.constant(kind, ir.DenseElementsAttr.get_splat(kind, element)))

    def _like(self, other: Any) -> "Ints":
        if isinstance(other, Ints):
            return other
        return Ints.of(other, self.lanes, ir.VectorType(self.value.type).element_type.width)

    __add__, __radd__ = _operators(arith.addi)
    __sub__, __rsub__ = _operators(arith.subi)
    __mul__, __rmul__ = _operators(arith.muli)
    __and__, __rand__ = _operators(arith.andi)
    __or__, __ror__ = _operators(arith.ori)
    __xor__, __rxor__ = _operators(arith.xori)
    __lshift__ = _operators(arith.shli)[0]
    # With the sign, as Python's; `upper` brings in zeros.
    __rshift__ = _operators(arith.shrsi)[0]
    upper = _operators(arith.shrui)[0]

    @property
    def lanes(self) -> int:
        """The number of lanes."""
        return ir.VectorType(self.value.type).shape[0]

    def as_bits(self, bits: int) -> "Ints":
        """Return the same register as integers of so many bits."""
        count = self.lanes * ir.VectorType(self.value.type).element_type.width // bits
        return Ints(vector.bitcast(int_vector(count, bits), self.value))

    def cut(self, bits: int) -> "Ints":
        """Return the lowest bits of each integer."""
        return Ints(arith.trunci(int_vector(self.lanes, bits), self.value))

    def wide(self, signed: bool = True, bits: int = 32) -> "Ints":
        """Return the integers in more bits."""
        extended = arith.extsi if signed else arith.extui
        return Ints(extended(int_vector(self.lanes, bits), self.value))

    def part(self, positions: list[int]) -> "Ints":
        """Return the lanes at `positions`, in that order."""
        return Ints(vector.shuffle(self.value, self.value, positions))

    def from_bits(self) -> Vector:
        """Return the numbers of f32 that these are the bits of."""
        return Vector(arith.bitcast(f32_vector(self.lanes), self.value))

    def to_float(self) -> Vector:
        """Return the integers, of 32 bits, as f32, rounded above 2^24."""
        return Vector(arith.sitofp(f32_vector(self.lanes), self.value))

    def sum(self) -> Any:
        """Return the sum of all lanes, an MLIR value."""
        kind = ir.VectorType(self.value.type).element_type
        return vector.reduction(kind, vector.CombiningKind.ADD, self.value)


def f32_vector(lanes: int) -> Any:
    """Return MLIR's type of a vector of f32."""
    return ir.VectorType.get([lanes], ir.F32Type.get())


def int_vector(lanes: int, bits: int = 32) -> Any:
    """Return MLIR's type of a vector of integers; those of 32 bits hold the bits of f32."""
    return ir.VectorType.get([lanes], ir.IntegerType.get_signless(bits))


def _intrinsic(kind: Any, name: str, operands: Sequence[Any]) -> Any:
    return llvm.call_intrinsic(kind, name, operands, [], [])


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
    below = a._test("OLE" if b.number == 0 else "OLT", b)
    return type(a)(arith.select(below, b.value, a.value))


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller one, NaN where either is NaN, in as many instructions as `maximum`."""
    a, b = _constant_last(a, b)
    if b.number is None or isnan(b.number):
        return type(a)(arith.minimumf(a.value, b.value))
    return type(a)(arith.select(a._test("OGT", b), b.value, a.value))


def _constant_last(a: Any, b: Any) -> tuple[Any, Any]:
    b = a._like(b)
    return (a, b) if a.number is None else (b, a)


def larger(kept: Any, new: Any) -> Any:
    """Return the larger one; a NaN in `new` is passed over. One instruction on x86."""
    new = kept._like(new)
    return type(kept)(arith.select(new._test("OGT", kept), new.value, kept.value))


def smaller(kept: Any, new: Any) -> Any:
    """Return the smaller one; a NaN in `new` is passed over. One instruction on x86."""
    new = kept._like(new)
    return type(kept)(arith.select(new._test("OLT", kept), new.value, kept.value))


def clamp(x: Vector, low: float, high: float) -> Vector:
    """x between two bounds, NaN kept."""
    x = where(x < low, low, x)
    return where(x > high, high, x)


def picked(a: Vector, b: Vector, positions: list[int]) -> Vector:
    """Return the lanes at `positions` of a, then b, as one row of twice the width."""
    return Vector(vector.shuffle(a.value, b.value, positions))


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


def mixed(a: Vector, b: Vector, factor: "Ints | int" = _HASH_FACTOR) -> Vector:
    """Hash the bits of both: a product carries differences up, a shift takes them down.

    The step and the factor, but for one that is given, are of ``lowbias32`` (Wellons, 2018).
    """
    x = (a.bits() ^ b.bits()) * factor
    return (x ^ x.upper(15)).from_bits()


def differ(these: Sequence[Vector], those: Sequence[Vector]) -> Condition:
    """Return whether any bit of the vectors differs from its partner's."""
    pairs = zip(these, those, strict=True)
    apart = tree(operator.or_, [a.bits() ^ b.bits() for a, b in pairs])
    kind = ir.IntegerType.get_signless(32)
    found = vector.reduction(kind, vector.CombiningKind.OR, apart.value)
    return Condition(arith.cmpi(arith.CmpIPredicate.ne, found, arith.constant(kind, 0)))


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


def widened(value: Any, dtype: str) -> Vector:
    """Return the numbers whose bits an MLIR vector of 16-bit integers holds, exactly, as f32."""
    lanes = ir.VectorType(value.type).shape[0]
    if dtype == "f16":
        halves = arith.bitcast(ir.VectorType.get([lanes], ir.F16Type.get()), value)
        return Vector(arith.extf(f32_vector(lanes), halves))
    return (Ints(value).wide(signed=False) << _BF16_SHIFT).from_bits()


def narrowed(x: Vector, dtype: str) -> Any:
    """Reverse `widened`: round to the nearest number of the type, of two the even one.

    That of bf16 is made of integer operations: a NaN stays one, what is beyond becomes infinite.
    """
    if dtype == "f16":
        half = ir.VectorType.get([x.lanes], ir.F16Type.get())
        return arith.bitcast(int_vector(x.lanes, 16), arith.truncf(half, x.value))
    held = x.bits()
    up = held + ((1 << 15) - 1) + (held.upper(_BF16_SHIFT) & 1)
    made = arith.select(x.is_nan().value, (held | 1 << 22).value, up.value)
    return Ints(made).upper(_BF16_SHIFT).cut(16).value


def rounded(x: Vector, dtype: str) -> Vector:
    """Round to the nearest number of f16 or bf16."""
    return widened(narrowed(x, dtype), dtype)
