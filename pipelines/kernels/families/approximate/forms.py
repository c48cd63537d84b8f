"""Forms of approximate products: how numbers are rounded, and what adds their products.

A form packs `per` neighbouring numbers of the depth into a word of 32 bits, on both sides; an
instruction adds the products of two words in each lane. Integers: ``bytes`` (vpdpbusd), ``pairs``
(vpdpwssd), ``madd`` (vpmaddwd) and ``plain`` (arithmetic of any target) add exactly in 32 bits;
those of 16 bits use as many levels as the depth leaves room for. ``bf16`` (vdpbf16ps) adds in f32.
"""

from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np

from pyc_mlir.dialects.numerics.approximation import BF16, INT8, INT16
from pyc_mlir.pipelines.kernels.families.int8.dot import MADD, PLAIN, VNNI, IntVector, has_dot
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Memory, llvm
from pyc_mlir.pipelines.kernels.lang.values import (
    Index,
    Vector,
    arith,
    bits,
    f32_vector,
    int_constant,
    int_vector,
    vector,
)
from pyc_mlir.pipelines.streams.ir import ir
from pyc_mlir.pipelines.target.target import Target

BYTES, PAIRS = "bytes", "pairs"
# The forms of each way, the fastest first. Integers of 16 bits also stand in for bytes.
FORMS = {
    INT8: (BYTES, MADD, PLAIN),
    INT16: (PAIRS, MADD, PLAIN),
    BF16: (BF16,),
}
_SUMS = 1 << 31  # what sums in 32 bits stay below
_MOST_LEVELS = 4095
_BYTE_LEVELS, _BYTE_OFFSET = 126, 128
_INTRINSICS = {
    (BYTES, 16): "llvm.x86.avx512.vpdpbusd.512",
    (BYTES, 8): "llvm.x86.avx512.vpdpbusd.256",
    (PAIRS, 16): "llvm.x86.avx512.vpdpwssd.512",
    (PAIRS, 8): "llvm.x86.avx512.vpdpwssd.256",
    (MADD, 16): "llvm.x86.avx512.pmaddw.d.512",
    (MADD, 8): "llvm.x86.avx2.pmadd.wd",
    (BF16, 16): "llvm.x86.avx512bf16.dpbf16ps.512",
    (BF16, 8): "llvm.x86.avx512bf16.dpbf16ps.256",
}


def has_form(target: Target, form: str) -> bool:
    """Return whether the CPU has the form's instruction; LLVM ends the process where it has not."""
    if form == BF16:
        return target.vector_bytes in (32, 64) and {"avx512_bf16", "avx512vl"} <= target.needs
    return has_dot(target, VNNI if form in (BYTES, PAIRS) else form)


def best_form(target: Target, way: str) -> str | None:
    """Return the fastest form of a way that the target has a quick instruction for, if any.

    CPUs with tile registers do products of bf16 there: vdpbf16ps takes twice the time of f32 then.
    """
    slow = (PLAIN, BF16) if "amx_tile" in target.needs else (PLAIN,)
    return next((f for f in FORMS[way] if f not in slow and has_form(target, f)), None)


@dataclass(frozen=True)
class Form:
    """A form of numbers, for products over `depth`."""

    name: str
    depth: int

    @property
    def is_bf16(self) -> bool:
        """True where numbers are rounded to bf16, False where to integers."""
        return self.name == BF16

    @property
    def per(self) -> int:
        """The numbers in a word."""
        return 4 if self.name == BYTES else 2

    @property
    def groups(self) -> int:
        """The words along the depth."""
        return -(-self.depth // self.per)

    @property
    def pitch(self) -> int:
        """The words from one row to the next: whole vectors, and a line against cache sets."""
        return -(-self.depth // LINE) * (LINE // self.per) + LINE

    @property
    def levels(self) -> int:
        """The integer of the greatest number: no sum of products exceeds 32 bits."""
        if self.name == BYTES:
            return _BYTE_LEVELS
        return min(_MOST_LEVELS, isqrt(_SUMS // self.depth) - 4)

    @property
    def offset(self) -> int:
        """The number added to integers of A: vpdpbusd takes them without a sign."""
        return _BYTE_OFFSET if self.name == BYTES else 0

    @property
    def unroll(self) -> int:
        """The words that are added in one turn of the loop.

        LLVM makes two instructions of each vpdpwssd that another one waits for within a turn.
        """
        return 1 if self.name == PAIRS else 4

    @property
    def dtype(self) -> Any:
        """The type of one number within a word."""
        return np.int8 if self.name == BYTES else np.int16

    def words(self, numbers: np.ndarray) -> np.ndarray:
        """Return [depth, columns] of integers, or of the bits of bf16, as words of i32."""
        columns = numbers.shape[1]
        whole = np.zeros((self.groups * self.per, columns), self.dtype)
        whole[: self.depth] = numbers
        quads = whole.reshape(self.groups, self.per, columns).transpose(0, 2, 1)
        return np.ascontiguousarray(quads).view(np.int32)[..., 0]


@dataclass(frozen=True)
class FormCode:
    """The code of a form on vectors of `k`."""

    k: Build
    form: Form

    def zero(self) -> Any:
        """Return sums of nothing."""
        return self.k.vector(0.0) if self.form.is_bf16 else IntVector.of(0, self.k.lanes)

    def sums(self, held: Vector) -> Any:
        """Return what sums begin with, from its bits as f32."""
        if self.form.is_bf16:
            return held
        return IntVector(bits(held))

    def load(self, memory: Memory, place: Index) -> Any:
        """Load a vector of words."""
        return memory.load_as(int_vector(self.k.lanes), place)

    def add(self, total: Any, x: Vector, w: Any) -> Any:
        """Return the total and the products of the words of x, as bits, and of w."""
        lanes, name = self.k.lanes, self.form.name
        if name == PLAIN:
            return total + IntVector(_pairs(bits(x), w, lanes))
        kind = self._numbers(lanes)
        own, other = vector.bitcast(kind, bits(x)), vector.bitcast(kind, w)
        operands = [own, other] if name == MADD else [total.value, own, other]
        result = f32_vector(lanes) if self.form.is_bf16 else int_vector(lanes)
        made = llvm.call_intrinsic(result, _INTRINSICS[name, lanes], operands, [], [])
        if name == MADD:
            return total + IntVector(made)
        return type(total)(made)

    def _numbers(self, lanes: int) -> Any:
        if self.form.is_bf16:
            element = ir.BF16Type.get()
        else:
            element = ir.IntegerType.get_signless(32 // self.form.per)
        return ir.VectorType.get([lanes * self.form.per], element)


def _pairs(a: Any, b: Any, lanes: int) -> Any:
    """Return the sums of two products of 16-bit integers in each lane, taken out by shifts.

    As vectors of 16 bits, which are bits of f32, MLIR extends other numbers than these.
    """
    half = int_constant(16, lanes)

    def halves(words: Any) -> tuple[Any, Any]:
        return arith.shrsi(arith.shli(words, half), half), arith.shrsi(words, half)

    low, high = (arith.muli(x, w) for x, w in zip(halves(a), halves(b), strict=True))
    return arith.addi(low, high)
