"""Numbers of other types than f32, as they lie in memory: halves and bytes, from and to f32."""

from typing import Any

from pyc_mlir.pipelines.kernels.lang.values import (
    Vector,
    arith,
    bits,
    f32_vector,
    from_bits,
    int_constant,
    int_vector,
    larger,
    math,
    smaller,
)
from pyc_mlir.pipelines.streams.ir import dialect, ir

llvm = dialect("llvm")
_AVX2_LANES, _AVX512_LANES = 8, 16
_MOST_INTEGER = 2.0**30

_BF16_SHIFT = 16  # bf16 is the upper half of f32


def widened(value: Any, dtype: str) -> Vector:
    """Return the numbers whose bits an MLIR vector of 16-bit integers holds, exactly, as f32."""
    lanes = ir.VectorType(value.type).shape[0]
    if dtype == "f16":
        halves = arith.bitcast(ir.VectorType.get([lanes], ir.F16Type.get()), value)
        return Vector(arith.extf(f32_vector(lanes), halves))
    wide = arith.extui(int_vector(lanes), value)
    return from_bits(arith.shli(wide, int_constant(_BF16_SHIFT, lanes)))


def narrowed(x: Vector, dtype: str) -> Any:
    """Reverse `widened`: round to the nearest number of the type, of two the even one.

    That of bf16 is made of integer operations: a NaN stays one, what is beyond becomes infinite.
    """
    lanes = x.lanes
    kind = ir.VectorType.get([lanes], ir.IntegerType.get_signless(16))
    if dtype == "f16":
        half = ir.VectorType.get([lanes], ir.F16Type.get())
        return arith.bitcast(kind, arith.truncf(half, x.value))
    return arith.trunci(kind, arith.shrui(_rounded_bits(x), int_constant(_BF16_SHIFT, lanes)))


def _rounded_bits(x: Vector) -> Any:
    """Return the bits of x rounded to bf16, of which the lower half says nothing."""
    lanes, held = x.lanes, bits(x)
    odd = arith.shrui(held, int_constant(_BF16_SHIFT, lanes))
    odd = arith.andi(odd, int_constant(1, lanes))
    up = arith.addi(arith.addi(held, int_constant((1 << 15) - 1, lanes)), odd)
    quiet = arith.ori(held, int_constant(1 << 22, lanes))
    return arith.select(x.is_nan().value, quiet, up)


def whole_numbers(value: Any, signed: bool) -> Vector:
    """Return an MLIR vector of bytes, with a sign or without, as f32."""
    lanes = ir.VectorType(value.type).shape[0]
    return floats((arith.extsi if signed else arith.extui)(int_vector(lanes), value))


def floats(value: Any) -> Vector:
    """Return an MLIR vector of 32-bit integers as f32, rounded above 2^24."""
    return Vector(arith.sitofp(f32_vector(ir.VectorType(value.type).shape[0]), value))


def rounded(x: Vector, dtype: str) -> Vector:
    """Round to the nearest number of f16 or bf16."""
    return widened(narrowed(x, dtype), dtype)


def nearest(x: Vector) -> Any:
    """Return the nearest integers of 32 bits, of two the even one, as an MLIR vector.

    Beyond them, and for NaN, x86 gives the least integer; others give the nearest one, and any.
    """
    kind, operands = int_vector(x.lanes), [x.value]
    if x.lanes == _AVX2_LANES:
        return llvm.call_intrinsic(kind, "llvm.x86.avx.cvt.ps2dq.256", operands, [], [])
    if x.lanes == _AVX512_LANES:
        operands += [
            int_constant(0, x.lanes),
            arith.constant(ir.IntegerType.get_signless(16), -1),
            arith.constant(ir.IntegerType.get_signless(32), 4),
        ]
        return llvm.call_intrinsic(kind, "llvm.x86.avx512.mask.cvtps2dq.512", operands, [], [])
    most = x.constant(_MOST_INTEGER)
    bounded = smaller(larger(-most, x), most)
    return arith.fptosi(kind, math.roundeven(bounded.value))
