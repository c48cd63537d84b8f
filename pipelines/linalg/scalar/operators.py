"""Numbers of a scalar body with Python's operators: each emits one arith op.

Python numbers among the operands become constants. Integers are words of bits: sums and
products wrap, `>>` brings in zeros, comparisons are unsigned.
"""

from dataclasses import dataclass

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.pipelines.linalg.base.lowering import constant_scalar

_FLOAT_PREDICATES = {"eq": 1, "gt": 2, "ge": 3, "lt": 4, "le": 5}
_WORD_PREDICATES = {"eq": 0, "lt": 6, "le": 7, "gt": 8, "ge": 9}


@dataclass(frozen=True, eq=False)
class Number:
    """A float, a word or a bit inside a linalg.generic."""

    value: ir.Value

    @property
    def type(self) -> ir.Type:
        """The element type."""
        return self.value.type

    @property
    def is_float(self) -> bool:
        """True if it is f32 or f64."""
        return isinstance(self.type, ir.FloatType)

    @property
    def width(self) -> int:
        """Bits of the type."""
        return self.type.width  # type: ignore[attr-defined]

    def constant(self, value: float) -> "Number":
        """Return a constant of the same type; a word is given as it is read without a sign."""
        if not self.is_float and value >= 1 << (self.width - 1):
            value = int(value) - (1 << self.width)
        return Number(constant_scalar(value, self.type))

    def make(self, op: str, *others: "Number | float", result: ir.Type | None = None) -> "Number":
        """Return the op of that name on this number and the others, of this type by default."""
        lifted = [self, *(o if isinstance(o, Number) else self.constant(o) for o in others)]
        operands = [o.value for o in lifted]
        out = self.type if result is None else result
        return Number(ir.Operation.create(op, results=[out], operands=operands).result)

    def _either(self, if_float: str, if_word: str, other: "Number | float") -> "Number":
        return self.make(if_float if self.is_float else if_word, other)

    def __add__(self, other: "Number | float") -> "Number":
        return self._either("arith.addf", "arith.addi", other)

    def __sub__(self, other: "Number | float") -> "Number":
        return self._either("arith.subf", "arith.subi", other)

    def __mul__(self, other: "Number | float") -> "Number":
        return self._either("arith.mulf", "arith.muli", other)

    def __truediv__(self, other: "Number | float") -> "Number":
        return self.make("arith.divf", other)

    def __and__(self, other: "Number | float") -> "Number":
        return self.make("arith.andi", other)

    def __or__(self, other: "Number | float") -> "Number":
        return self.make("arith.ori", other)

    def __xor__(self, other: "Number | float") -> "Number":
        return self.make("arith.xori", other)

    def __lshift__(self, other: "Number | float") -> "Number":
        return self.make("arith.shli", other)

    def __rshift__(self, other: "Number | float") -> "Number":
        return self.make("arith.shrui", other)

    def signed_shift(self, count: int) -> "Number":
        """Shift right, bringing in copies of the highest bit."""
        return self.make("arith.shrsi", count)

    def __neg__(self) -> "Number":
        return self.make("arith.negf")

    def compare(self, predicate: str, other: "Number | float") -> "Number":
        """Return a bit: floats ordered, words without a sign."""
        table = _FLOAT_PREDICATES if self.is_float else _WORD_PREDICATES
        right = other if isinstance(other, Number) else self.constant(other)
        i64, bit = ir.IntegerType.get_signless(64), ir.IntegerType.get_signless(1)
        return Number(
            ir.Operation.create(
                "arith.cmpf" if self.is_float else "arith.cmpi",
                results=[bit],
                operands=[self.value, right.value],
                attributes={"predicate": ir.IntegerAttr.get(i64, table[predicate])},
            ).result
        )

    def where(self, yes: "Number | float", no: "Number | float") -> "Number":
        """Return one of two numbers, at most one a constant, by this bit."""
        like = yes if isinstance(yes, Number) else no
        assert isinstance(like, Number)
        return self.make(
            "arith.select",
            *(v if isinstance(v, Number) else like.constant(v) for v in (yes, no)),
            result=like.type,
        )

    def bits(self) -> "Number":
        """Return a float's bits as a word."""
        return self.make("arith.bitcast", result=ir.IntegerType.get_signless(self.width))

    def from_bits(self) -> "Number":
        """Return a word's bits as a float."""
        return self.make("arith.bitcast", result=_float_of(self.width))

    def cut(self, count: int) -> "Number":
        """Return a float without its lowest `count` bits: toward zero."""
        ones = (1 << self.width) - 1
        return (self.bits() & (ones ^ ((1 << count) - 1))).from_bits()


def _float_of(width: int) -> ir.Type:
    return ir.F64Type.get() if width == 64 else ir.F32Type.get()


def polynomial(x: Number, coefficients: tuple[float, ...]) -> Number:
    """Evaluate by Horner's rule, the highest power first."""
    value: Number = x.constant(coefficients[0])
    for c in coefficients[1:]:
        value = value * x + c
    return value
