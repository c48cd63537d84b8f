"""Scalar bodies: one arith or math op for each primitive elementwise op of the pyc dialect.

The 16-bit floats are computed in f32 and rounded once an op, as the references do.
"""

from collections.abc import Callable, Sequence

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import storage_type
from pyc_mlir.dialects.types import BOOL, DTYPES, accumulator, is_float, is_unsigned
from pyc_mlir.pipelines.linalg.functions import (
    F64_FUNCTIONS,
    Number,
    compare,
    constant_scalar,
    cos,
    emit,
    sin,
)

Scalar = ir.Value
BF16 = DTYPES["bf16"]
F32, F64 = DTYPES["f32"], DTYPES["f64"]
FLOAT_OPS = {
    "add": "arith.addf", "sub": "arith.subf", "mul": "arith.mulf", "div": "arith.divf",
    "rem": "arith.remf", "maximum": "arith.maximumf", "minimum": "arith.minimumf",
    "neg": "arith.negf", "abs": "math.absf", "floor": "math.floor", "ceil": "math.ceil",
    "round": "math.roundeven", "exp": "math.exp", "log": "math.log", "sqrt": "math.sqrt",
    "rsqrt": "math.rsqrt", "tanh": "math.tanh", "erf": "math.erf",
}  # fmt: skip
SHIFTS = ("shift_left", "shift_right")
INTEGER_OPS = {
    "add": "arith.addi", "sub": "arith.subi", "mul": "arith.muli", "maximum": "arith.maxsi",
    "minimum": "arith.minsi", "abs": "math.absi", "and": "arith.andi", "or": "arith.ori",
    "xor": "arith.xori",
}  # fmt: skip
# What differs for integers without a sign.
UNSIGNED_OPS = {**INTEGER_OPS, "maximum": "arith.maxui", "minimum": "arith.minui"}
# What has no such op that is exact enough over the whole range: functions of an f32 or f64.
OWN_FUNCTIONS = {"sin": sin, "cos": cos}


def widen(value: Scalar, dtype: np.dtype) -> Scalar:
    """Return a 16-bit float as f32; others as they are."""
    wide = accumulator(dtype)
    return value if wide == dtype else emit("arith.extf", value, result=storage_type(wide))


def narrow(value: Scalar, dtype: np.dtype) -> Scalar:
    """Return the inverse of `widen`: rounds to nearest even."""
    if dtype == BF16:
        return _to_bf16(value)
    wide = accumulator(dtype)
    return value if wide == dtype else emit("arith.truncf", value, result=storage_type(dtype))


def apply(name: str, operands: Sequence[Scalar], dtype: np.dtype) -> Scalar:
    """Return the scalar form of an elementwise op on operands of one element type."""
    if dtype == F64 and name in F64_FUNCTIONS:
        return F64_FUNCTIONS[name](*operands)
    if name in OWN_FUNCTIONS:
        return narrow(OWN_FUNCTIONS[name](widen(operands[0], dtype)), dtype)
    if accumulator(dtype) != dtype:
        return narrow(emit(FLOAT_OPS[name], *[widen(v, dtype) for v in operands]), dtype)
    if is_float(dtype):
        return emit(FLOAT_OPS[name], *operands)
    unsigned = is_unsigned(dtype)
    if name == "div":
        return _divide(operands[0], operands[1], dtype)
    if name == "abs" and unsigned:
        return operands[0]
    if name == "rem":  # lhs - trunc(lhs / rhs) * rhs, with x % 0 = x
        lhs, rhs = operands
        multiple = emit("arith.muli", _divide(lhs, rhs, dtype), rhs)
        return emit("arith.subi", lhs, multiple)
    if name in SHIFTS:
        return _shift(name, operands[0], operands[1], dtype)
    if name == "neg":
        return emit("arith.subi", constant_scalar(0, operands[0].type), operands[0])
    if name == "not":
        return emit("arith.xori", operands[0], constant_scalar(-1, operands[0].type))
    return emit((UNSIGNED_OPS if unsigned else INTEGER_OPS)[name], *operands)


def _shift(name: str, lhs: Scalar, rhs: Scalar, dtype: np.dtype) -> Scalar:
    """Return a shift; counts outside of the type leave 0, or the sign."""
    bits, count, value = 8 * dtype.itemsize, Number(rhs), Number(lhs)
    inside = count.compare("lt", bits)
    if name == "shift_right" and not is_unsigned(dtype):
        return value.make("arith.shrsi", inside.where(count, bits - 1)).value
    zero = value.constant(0)
    op = "arith.shli" if name == "shift_left" else "arith.shrui"
    return inside.where(value.make(op, inside.where(count, zero)), zero).value


def _divide(lhs: Scalar, rhs: Scalar, dtype: np.dtype) -> Scalar:
    """Divide toward zero, with x/0 = 0 and MIN/-1 = MIN: the machine's division traps on both."""
    value, by = Number(lhs), Number(rhs)
    zero, one = value.constant(0), value.constant(1)
    if is_unsigned(dtype):
        by_zero = by.compare("eq", zero)
        return by_zero.where(zero, value // by_zero.where(one, by)).value
    minus_one = value.constant(-1)
    by_zero, by_minus_one = by.compare("eq", zero), by.compare("eq", minus_one)
    quotient = value.make("arith.divsi", (by_zero | by_minus_one).where(one, by))
    return by_zero.where(zero, by_minus_one.where(zero - value, quotient)).value


def cast(value: Scalar, source: np.dtype, target: np.dtype) -> Scalar:
    """pyc.cast on one element."""
    if source == target:
        return value
    out = storage_type(target)
    if target == BOOL:
        wide = widen(value, source)
        return compare("ne", wide, constant_scalar(0, wide.type))
    if is_float(source):
        if is_float(target):
            return _between_floats(value, source, target)
        return _saturate(widen(value, source), target)
    if is_float(target):
        # A 16-bit float is reached by way of f32, as numpy does.
        name = "arith.uitofp" if source == BOOL or is_unsigned(source) else "arith.sitofp"
        return narrow(emit(name, value, result=storage_type(accumulator(target))), target)
    if source == BOOL:
        return emit("arith.extui", value, result=out)
    if target.itemsize == source.itemsize:
        return value
    grows = "arith.extui" if is_unsigned(source) else "arith.extsi"
    name = grows if target.itemsize > source.itemsize else "arith.trunci"
    return emit(name, value, result=out)


def _between_floats(value: Scalar, source: np.dtype, target: np.dtype) -> Scalar:
    if source.itemsize == target.itemsize:
        value, source = widen(value, source), accumulator(source)
    if source == F64 and target.itemsize == 2:
        # As numpy does: bf16 is rounded twice.
        value, source = _to_f32(value, odd=target != BF16), F32
    if source == accumulator(target):
        return narrow(value, target)
    grows = target.itemsize > source.itemsize
    name = "arith.extf" if grows else "arith.truncf"
    return emit(name, value, result=storage_type(target))


def _to_f32(value: Scalar, *, odd: bool) -> Scalar:
    """Round an f64 to nearest even; `odd`: to the odd neighbour, and the next rounding is right.

    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", IEEE Trans. Comp. 57, 2008.
    IREE's own f64 to f16 may round twice, and flushes subnormal results.
    """
    near = Number(emit("arith.truncf", value, result=storage_type(F32)))
    if not odd:
        return near.value
    bits, size = near.bits(), abs(Number(value))
    found = abs(near.make("arith.extf", result=value.type))
    one = bits.constant(1)
    low = found.compare("gt", size).where(bits - one, bits)
    keeps = found.compare("eq", size) | found.compare("unordered", size)
    return keeps.where(bits, low | one).from_bits().value


def _to_bf16(value: Scalar) -> Scalar:
    """Round an f32 to nearest even in integer arithmetic; NaN stays NaN, with its sign.

    Not as ``arith.truncf``: IREE's CPU code generation takes ``extf(truncf(x))`` for x where the
    smaller type is bf16, so that nothing would be rounded, and folds ``truncf(sitofp(x))`` to one
    conversion that it has no code for.
    """
    x = Number(value)
    bits = x.bits()
    half, one, shift, quiet = map(bits.constant, (0x7FFF, 1, 16, 1 << 22))
    odd = (bits >> shift) & one
    rounded = bits + half + odd
    rounded = x.compare("unordered", x).where(bits | quiet, rounded)
    upper = (rounded >> shift).make("arith.trunci", result=ir.IntegerType.get_signless(16))
    return upper.make("arith.bitcast", result=storage_type(BF16)).value


def _saturate(value: Scalar, target: np.dtype) -> Scalar:
    """Round toward zero; out of range to the nearest bound, NaN to 0 (fptosi is undefined)."""
    info, x = np.iinfo(target), Number(value)
    above, below = x.compare("ge", float(info.max + 1)), x.compare("lt", float(info.min))
    outside = above | below | x.compare("unordered", x)
    convert = "arith.fptoui" if is_unsigned(target) else "arith.fptosi"
    converted = outside.where(x.constant(0), x).make(convert, result=storage_type(target))
    converted = above.where(int(info.max), converted)
    return below.where(int(info.min), converted).value


def combine(name: str, dtype: np.dtype) -> Callable[[Scalar, Scalar], Scalar]:
    """Return a binary op on accumulators of `dtype` (never a 16-bit float)."""
    integers = UNSIGNED_OPS if is_unsigned(dtype) else INTEGER_OPS
    table = FLOAT_OPS if is_float(dtype) else integers
    return lambda a, b: emit(table[name], a, b)
