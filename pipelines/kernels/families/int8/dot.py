"""Sums of four products of bytes in each 32-bit lane, exact, by the instructions that a target has.

``vnni``: vpdpbusd, one instruction for four products. ``madd``: vpmaddwd on 16-bit halves, two for
four products and their additions; weights are widened when they are laid out. ``plain``: the
same in arithmetic of any target. ``amx`` (`byte_tiles.py`): whole tiles of sums at once. None
saturates: every sum is that of the integers.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.pipelines.kernels.lang.language import Build, Memory, llvm
from pyc_mlir.pipelines.kernels.lang.tiles import has_tiles
from pyc_mlir.pipelines.kernels.lang.values import Index, Vector, arith, int_vector, vector
from pyc_mlir.pipelines.streams.ir import ir
from pyc_mlir.pipelines.target.target import Target

AMX, VNNI, MADD, PLAIN = "amx", "vnni", "madd", "plain"
DOTS = (VNNI, MADD, PLAIN)
FORMS = (AMX, *DOTS)
QUAD = 4
_INTRINSICS = {
    (VNNI, 64): "llvm.x86.avx512.vpdpbusd.512",
    (VNNI, 32): "llvm.x86.avx512.vpdpbusd.256",
    (MADD, 64): "llvm.x86.avx512.pmaddw.d.512",
    (MADD, 32): "llvm.x86.avx2.pmadd.wd",
}


class IntVector:
    """One register of 32-bit integers."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    @staticmethod
    def of(number: int, lanes: int) -> "IntVector":
        """Return a constant in each lane."""
        element = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), number)
        kind = int_vector(lanes)
        return IntVector(arith.constant(kind, ir.DenseElementsAttr.get_splat(kind, element)))

    def __add__(self, other: "IntVector") -> "IntVector":
        return IntVector(arith.addi(self.value, other.value))

    def __sub__(self, other: "IntVector") -> "IntVector":
        return IntVector(arith.subi(self.value, other.value))

    def __mul__(self, other: "IntVector") -> "IntVector":
        return IntVector(arith.muli(self.value, other.value))

    def to_float(self) -> Vector:
        """Return the numbers as f32, rounded above 2^24."""
        lanes = ir.VectorType(self.value.type).shape[0]
        kind = ir.VectorType.get([lanes], ir.F32Type.get())
        return Vector(arith.sitofp(kind, self.value))


def has_dot(target: Target, dot: str) -> bool:
    """Return whether the CPU has the instruction; its features are those that LLVM may use."""
    if dot == AMX:
        return target.vector_bytes == 64 and has_tiles(target, "i8")
    if dot == VNNI:
        wide = {"avx512_vnni", "avx512vl"} <= target.needs
        return target.vector_bytes in (32, 64) and (
            wide or (target.vector_bytes == 32 and "avx_vnni" in target.needs)
        )
    return dot == PLAIN or target.vector_bytes in (32, 64)


def best_dot(target: Target) -> str:
    """Return the fastest form that the target has."""
    return next(dot for dot in DOTS if has_dot(target, dot))


@dataclass(frozen=True)
class Dot:
    """The code of one form on vectors of `k`; bytes of x are signed or not."""

    k: Build
    form: str
    signed: bool

    @property
    def words(self) -> int:
        """How many words of weights there are for each four products."""
        return words_of(self.form)

    def load(self, x: Memory, *place: Index) -> list[Any]:
        """Load four neighbouring bytes of x in each lane, as `add` takes them."""
        lanes = self.k.lanes
        i8, i32 = (ir.IntegerType.get_signless(n) for n in (8, 32))
        quad = x.load_as(ir.VectorType.get([QUAD], i8), *place)
        word = vector.extract(vector.bitcast(ir.VectorType.get([1], i32), quad), [], [0])
        whole = vector.broadcast(int_vector(lanes), word)
        if self.form == VNNI:
            if self.signed:  # As bytes without a sign, each 128 larger.
                whole = arith.xori(whole, IntVector.of(-0x7F7F7F80, lanes).value)
            return [whole]
        halves = vector.bitcast(_halves(lanes), whole)
        eight = _splat(_halves(lanes), 8)
        if self.signed:
            even = arith.shrsi(arith.shli(halves, eight), eight)
            return [even, arith.shrsi(halves, eight)]
        return [
            arith.andi(halves, _splat(_halves(lanes), 255)),
            arith.shrui(halves, eight),
        ]

    def add(self, total: IntVector, x: list[Any], weights: list[IntVector]) -> IntVector:
        """`total` and the four products of each lane."""
        lanes = self.k.lanes
        if self.form == VNNI:
            kind = ir.VectorType.get([4 * lanes], ir.IntegerType.get_signless(8))
            (own,), (other,) = x, weights
            operands = [total.value, *(vector.bitcast(kind, v) for v in (own, other.value))]
            return IntVector(self._call(operands))
        for own, other in zip(x, weights, strict=True):
            half = vector.bitcast(_halves(lanes), other.value)
            total = total + self._pairs(own, half)
        return total

    def _pairs(self, a: Any, b: Any) -> IntVector:
        """Return the sums of two products of 16-bit numbers in each lane."""
        lanes = self.k.lanes
        if self.form == MADD:
            return IntVector(self._call([a, b]))
        kind = int_vector(2 * lanes)
        products = arith.muli(arith.extsi(kind, a), arith.extsi(kind, b))
        even, odd = (
            vector.shuffle(products, products, list(range(first, 2 * lanes, 2))) for first in (0, 1)
        )
        return IntVector(arith.addi(even, odd))

    def _call(self, operands: list[Any]) -> Any:
        name = _INTRINSICS[self.form, 4 * self.k.lanes]
        return llvm.call_intrinsic(int_vector(self.k.lanes), name, operands, [], [])


def words_of(form: str) -> int:
    """Return how many 32-bit words hold four weights in a form."""
    return 1 if form in (AMX, VNNI) else 2


def words(quads: np.ndarray, form: str) -> np.ndarray:
    """Return weights [..., 4, columns] of i8 as words [..., words, columns] of i32."""
    moved = np.moveaxis(quads, -2, -1)
    if words_of(form) == 1:
        return np.ascontiguousarray(moved).view(np.int32)[..., None, :, 0]
    # The even bytes of x meet the even weights, the odd ones the odd.
    wide = moved.astype(np.int16)
    parts = [np.ascontiguousarray(wide[..., first::2]).view(np.int32)[..., 0] for first in (0, 1)]
    return np.stack(parts, axis=-2)


def _halves(lanes: int) -> Any:
    return ir.VectorType.get([2 * lanes], ir.IntegerType.get_signless(16))


def _splat(kind: Any, number: int) -> Any:
    element = ir.IntegerAttr.get(ir.VectorType(kind).element_type, number)
    return arith.constant(kind, ir.DenseElementsAttr.get_splat(kind, element))
