"""From f32 to bytes: the last steps of a kernel whose result is quantized.

A program that ends with ``round(v) + point`` and a conversion to bytes loses these steps
(`Narrow.of`): the conversion to integers rounds to even by itself, the point is added to 16-bit
integers, and packing them saturates. On x86 up to four vectors are packed into one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyc_mlir.pipelines.kernels.lang.language import Build, Memory, Place
from pyc_mlir.pipelines.kernels.lang.pointwise import Pointwise
from pyc_mlir.pipelines.kernels.lang.values import (
    Index,
    Ints,
    Mask,
    Vector,
    arith,
    int_vector,
    larger,
    llvm,
    math,
    smaller,
    where,
)
from pyc_mlir.pipelines.target.target import Target

BOUNDS = {"i8": (-128.0, 127.0), "ui8": (0.0, 255.0)}
# Above what a byte holds, below what 32-bit integers do.
_HIGH = 2.0**30
_PREFIX = {8: "llvm.x86.avx2", 16: "llvm.x86.avx512"}
_SUFFIX = {8: "", 16: ".512"}
BYTE_VALUES = 256
_TABLE_LANES = 64


def has_tables(target: Target) -> bool:
    """Return whether the target looks bytes up in registers (AVX-512 VBMI)."""
    return target.vector_bytes == _TABLE_LANES and "avx512vbmi" in target.needs


def looked_up(table: Sequence[Ints], index: Ints) -> Ints:
    """Return at each byte of `index`, 64 or fewer, that of a table in four registers."""
    wide = index.part([n % index.lanes for n in range(_TABLE_LANES)])
    name, below = "llvm.x86.avx512.vpermi2var.qi.512", arith.CmpIPredicate.slt
    low, high = (
        llvm.call_intrinsic(wide.value.type, name, [a.value, wide.value, b.value], [], [])
        for a, b in (table[:2], table[2:])
    )
    upper = arith.cmpi(below, wide.value, Ints.of(0, _TABLE_LANES, 8).value)
    return Ints(arith.select(upper, high, low)).part(list(range(index.lanes)))


@dataclass(frozen=True)
class Narrow:
    """The conversion of f32 to bytes, NaN to 0: ``round(v) + point`` if `rounded`, else cut.

    Out of range the nearest bound is taken. `finite`: there is no NaN. A `dtype` of ``i32`` stores
    single vectors of whole numbers as they are.
    """

    dtype: str
    rounded: bool = False
    point: int = 0
    finite: bool = True

    @staticmethod
    def of(program: Pointwise, dtype: str) -> "tuple[Pointwise, Narrow]":
        """Return the program without the rounding at its end, and the conversion that has it."""
        finite = not any(read.down for read in program.reads)
        cut = Narrow(dtype, finite=finite)
        steps, point = list(program.steps), 0
        if steps and steps[-1].op == "add":
            last, other = program.first_step + len(steps) - 2, steps[-1].operands[1]
            constants = dict(enumerate(program.constants, 1 + len(program.reads)))
            number = constants.get(other, 0.5)
            if steps[-1].operands[0] != last or number % 1 or not -128 <= number <= 255:
                return program, cut
            steps, point = steps[:-1], int(number)
        if not steps or steps[-1].op != "round":
            return program, cut
        before = program.first_step + len(steps) - 2 if len(steps) > 1 else 0
        if steps[-1].operands[0] != before:
            return program, cut
        return replace(program, steps=tuple(steps[:-1])), replace(cut, rounded=True, point=point)

    def store(
        self,
        k: Build,
        memory: Memory,
        values: Sequence[Vector],
        head: Sequence[Place],
        start: Index,
        count: int | None = None,
        mask: Mask | None = None,
    ) -> None:
        """Write neighbouring vectors, the first at `start`: `count` bytes of them, or all.

        A `mask` is that of a single vector.
        """
        if self.dtype == "i32":
            (value,) = values
            return memory.store_as(value.whole().value, *head, start, mask=mask)
        most = 4 if k.lanes in _PREFIX else 1
        lanes = k.lanes
        left = len(values) * lanes if count is None else count
        at = 0
        while at < len(values) and left > 0:
            number = next(n for n in (4, 2, 1) if n <= min(most, len(values) - at))
            packed, wide = self._packed(k, values[at : at + number]), number * lanes
            cut = Mask.first(left, wide) if mask is None and left < wide else mask
            memory.store_as(packed.value, *head, start + at * lanes, mask=cut)
            at, left = at + number, left - wide
        return None

    def table(
        self, k: Build, apply: Callable[[Vector], Vector], signed: bool
    ) -> Callable[[Ints], Ints]:
        """Compute what a program makes of each byte; return a function that looks bytes up."""
        numbers = [n - BYTE_VALUES * (signed and n > 127) for n in range(BYTE_VALUES)]
        made = [apply(Vector.holding(numbers[n : n + 16])) for n in range(0, BYTE_VALUES, 16)]
        return partial(looked_up, [self._packed(k, made[n : n + 4]) for n in range(0, 16, 4)])

    def _packed(self, k: Build, values: Sequence[Vector]) -> Ints:
        lanes = k.lanes
        if lanes not in _PREFIX:
            (value,) = values
            return self._clipped(value).cut(8)
        whole = [self._clipped(v) if not self.rounded else self._nearest(v) for v in values]
        words = []
        for n in range(0, len(whole), 2):
            word = _pack(k, "packssdw", 16, whole[n], whole[min(n + 1, len(whole) - 1)])
            if self.point:
                operands = [word.value, Ints.of(self.point, 2 * lanes, 16).value]
                name = f"llvm.sadd.sat.v{2 * lanes}i16"
                word = Ints(llvm.call_intrinsic(int_vector(2 * lanes, 16), name, operands, [], []))
            words.append(word)
        sign = "packuswb" if self.dtype == "ui8" else "packsswb"
        # In each 128 bits there are now four bytes of each vector.
        quads = _pack(k, sign, 8, words[0], words[-1]).as_bits(32)
        order = [4 * n + v for v in range(len(values)) for n in range(lanes // 4)]
        return quads.part(order).as_bits(8)

    def _sound(self, value: Vector) -> Vector:
        return value if self.finite else where(value.is_nan(), float(-self.point), value)

    def _clipped(self, value: Vector) -> Ints:
        """Return whole numbers within the bounds, as i32, by arithmetic of any target."""
        value = self._sound(value)
        if self.rounded:
            value = Vector(math.roundeven(value.value)) + float(self.point)
        low, high = (value.constant(bound) for bound in BOUNDS[self.dtype])
        return smaller(larger(low, value), high).whole()

    def _nearest(self, value: Vector) -> Ints:
        """Return the number as i32, rounded to even; no NaN and nothing beyond."""
        value = self._sound(value)
        high = value.constant(_HIGH)
        return where(value > high, high, value).nearest()


NARROW = Narrow("i8")


def _pack(k: Build, name: str, bits: int, a: Ints, b: Ints) -> Ints:
    """Pack both vectors into half the bits, saturated, in turn for each 128 bits."""
    full = f"{_PREFIX[k.lanes]}.{name}{_SUFFIX[k.lanes]}"
    kind = int_vector(4 * k.lanes * 8 // bits, bits)
    return Ints(llvm.call_intrinsic(kind, full, [a.value, b.value], [], []))
