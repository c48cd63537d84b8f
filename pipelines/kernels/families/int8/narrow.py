"""From f32 to bytes: the last steps of a kernel whose result is quantized.

A program that ends with ``round(v) + point`` and a conversion to bytes loses these steps
(`Narrow.of`): the conversion to integers rounds to even by itself, the point is added to 16-bit
integers, and packing them saturates. On x86 up to four vectors are packed into one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyc_mlir.pipelines.kernels.lang.language import Build, Memory, Place, llvm
from pyc_mlir.pipelines.kernels.lang.pointwise import Pointwise
from pyc_mlir.pipelines.kernels.lang.stored import nearest
from pyc_mlir.pipelines.kernels.lang.values import (
    Index,
    Mask,
    Vector,
    arith,
    int_vector,
    larger,
    math,
    smaller,
    vector,
    where,
)
from pyc_mlir.pipelines.streams.ir import ir

BOUNDS = {"i8": (-128.0, 127.0), "ui8": (0.0, 255.0)}
# Above what a byte holds, below what 32-bit integers do.
_HIGH = 2.0**30
_PREFIX = {8: "llvm.x86.avx2", 16: "llvm.x86.avx512"}
_SUFFIX = {8: "", 16: ".512"}


@dataclass(frozen=True)
class Narrow:
    """The conversion of f32 to bytes, NaN to 0: ``round(v) + point`` if `rounded`, else cut.

    Out of range the nearest bound is taken. `finite`: there is no NaN.
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
        most = 4 if k.lanes in _PREFIX else 1
        lanes = k.lanes
        left = len(values) * lanes if count is None else count
        at = 0
        while at < len(values) and left > 0:
            number = next(n for n in (4, 2, 1) if n <= min(most, len(values) - at))
            packed = self._packed(k, values[at : at + number])
            place: Sequence[Place] = (*head, start + at * lanes)
            if mask is not None:
                memory.store_as(packed, *place, mask=mask)
            elif left < number * lanes:
                kind = ir.VectorType.get([number * lanes], ir.IntegerType.get_signless(1))
                memory.store_as(packed, *place, mask=Mask(vector.constant_mask(kind, [left])))
            else:
                memory.store_as(packed, *place)
            at, left = at + number, left - number * lanes

    def _packed(self, k: Build, values: Sequence[Vector]) -> Any:
        """Return the bytes of one, two or four vectors as one."""
        i8 = ir.IntegerType.get_signless(8)
        if k.lanes not in _PREFIX:
            (value,) = values
            return arith.trunci(ir.VectorType.get([k.lanes], i8), self._clipped(k, value))
        lanes = k.lanes
        whole = [self._whole(k, value) for value in values]
        pairs = [(whole[n], whole[min(n + 1, len(whole) - 1)]) for n in range(0, len(whole), 2)]
        words = [self._moved(k, _pack(k, "packssdw", 16, *pair)) for pair in pairs]
        sign = "packuswb" if self.dtype == "ui8" else "packsswb"
        mixed = _pack(k, sign, 8, words[0], words[-1])
        # In each 128 bits there are now four bytes of each vector.
        quads = vector.bitcast(int_vector(lanes), mixed)
        order = [4 * n + v for v in range(len(values)) for n in range(lanes // 4)]
        ordered = vector.shuffle(quads, quads, order)
        return vector.bitcast(ir.VectorType.get([lanes * len(values)], i8), ordered)

    def _sound(self, value: Vector) -> Vector:
        return value if self.finite else where(value.is_nan(), float(-self.point), value)

    def _clipped(self, k: Build, value: Vector) -> Any:
        """Return whole numbers within the bounds, as i32, by arithmetic of any target."""
        value = self._sound(value)
        if self.rounded:
            value = Vector(math.roundeven(value.value)) + float(self.point)
        low, high = (value.constant(bound) for bound in BOUNDS[self.dtype])
        return arith.fptosi(int_vector(k.lanes), smaller(larger(low, value), high).value)

    def _whole(self, k: Build, value: Vector) -> Any:
        """Return the number as i32, rounded to even."""
        if not self.rounded:
            return self._clipped(k, value)
        value = self._sound(value)
        high = value.constant(_HIGH)
        value = where(value > high, high, value)
        return nearest(value)

    def _moved(self, k: Build, words: Any) -> Any:
        if not self.point:
            return words
        kind = ir.VectorType.get([2 * k.lanes], ir.IntegerType.get_signless(16))
        point = ir.IntegerAttr.get(kind.element_type, self.point)
        added = arith.constant(kind, ir.DenseElementsAttr.get_splat(kind, point))
        name = f"llvm.sadd.sat.v{2 * k.lanes}i16"
        return llvm.call_intrinsic(kind, name, [words, added], [], [])


NARROW = Narrow("i8")


def _pack(k: Build, name: str, bits: int, a: Any, b: Any) -> Any:
    """Pack both vectors into half the bits, saturated, in turn for each 128 bits."""
    kind = ir.VectorType.get([4 * k.lanes * 8 // bits], ir.IntegerType.get_signless(bits))
    full = f"{_PREFIX[k.lanes]}.{name}{_SUFFIX[k.lanes]}"
    return llvm.call_intrinsic(kind, full, [a, b], [], [])
