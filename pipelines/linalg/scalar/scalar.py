"""Scalar bodies: one arith or math op for each primitive elementwise op of the pyc dialect.

The 16-bit floats are computed in f32 and rounded once an op, as the references do.
"""

from collections.abc import Callable, Sequence

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import storage_type
from pyc_mlir.dialects.types import BOOL, DTYPES, accumulator, is_float, is_unsigned
from pyc_mlir.pipelines.linalg.base.lowering import constant_scalar
from pyc_mlir.pipelines.linalg.scalar import f64_math, trigonometry

Scalar = ir.Value
BF16 = DTYPES["bf16"]
F32, F64 = DTYPES["f32"], DTYPES["f64"]
FLOAT_OPS = {
    "add": "arith.addf",
    "sub": "arith.subf",
    "mul": "arith.mulf",
    "div": "arith.divf",
    "maximum": "arith.maximumf",
    "minimum": "arith.minimumf",
    "neg": "arith.negf",
    "abs": "math.absf",
    "floor": "math.floor",
    "ceil": "math.ceil",
    "round": "math.roundeven",
    "exp": "math.exp",
    "log": "math.log",
    "sqrt": "math.sqrt",
    "rsqrt": "math.rsqrt",
    "tanh": "math.tanh",
    "erf": "math.erf",
    "rem": "arith.remf",
}
SHIFTS = ("shift_left", "shift_right")
INTEGER_OPS = {
    "add": "arith.addi",
    "sub": "arith.subi",
    "mul": "arith.muli",
    "maximum": "arith.maxsi",
    "minimum": "arith.minsi",
    "abs": "math.absi",
    "and": "arith.andi",
    "or": "arith.ori",
    "xor": "arith.xori",
}
# What differs for integers without a sign.
UNSIGNED_OPS = {**INTEGER_OPS, "maximum": "arith.maxui", "minimum": "arith.minui"}
# What has no such op that is exact enough over the whole range: functions of an f32 or f64.
OWN_FUNCTIONS = {"sin": trigonometry.sin, "cos": trigonometry.cos}
FLOAT_PREDICATES = {"eq": 1, "gt": 2, "ge": 3, "lt": 4, "le": 5, "ne": 13, "unordered": 14}
INTEGER_PREDICATES = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5}
UNSIGNED_PREDICATES = {"eq": 0, "ne": 1, "lt": 6, "le": 7, "gt": 8, "ge": 9}


def emit(name: str, *operands: Scalar, result: ir.Type | None = None) -> Scalar:
    """Return one op whose result has the type of its first operand unless said otherwise."""
    out = result if result is not None else operands[0].type
    return ir.Operation.create(name, results=[out], operands=list(operands)).result


def select(condition: Scalar, true_value: Scalar, false_value: Scalar) -> Scalar:
    """arith.select."""
    return emit("arith.select", condition, true_value, false_value, result=true_value.type)


def compare(predicate: str, lhs: Scalar, rhs: Scalar, *, unsigned: bool = False) -> Scalar:
    """arith.cmpf (ordered, but `ne` and `unordered`) or arith.cmpi."""
    floats = isinstance(lhs.type, ir.FloatType)
    integers = UNSIGNED_PREDICATES if unsigned else INTEGER_PREDICATES
    table = FLOAT_PREDICATES if floats else integers
    i64, i1 = ir.IntegerType.get_signless(64), ir.IntegerType.get_signless(1)
    return ir.Operation.create(
        "arith.cmpf" if floats else "arith.cmpi",
        results=[i1],
        operands=[lhs, rhs],
        attributes={"predicate": ir.IntegerAttr.get(i64, table[predicate])},
    ).result


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
    if dtype == F64 and name in f64_math.FUNCTIONS:
        return f64_math.FUNCTIONS[name](*operands)
    if name in OWN_FUNCTIONS:
        return narrow(OWN_FUNCTIONS[name](widen(operands[0], dtype)), dtype)
    if accumulator(dtype) != dtype:
        return narrow(emit(FLOAT_OPS[name], *[widen(v, dtype) for v in operands]), dtype)
    if is_float(dtype):
        return emit(FLOAT_OPS[name], *operands)
    unsigned = is_unsigned(dtype)
    if name == "div":
        return (_unsigned_division if unsigned else _integer_division)(*operands)
    if name == "abs" and unsigned:
        return operands[0]
    if name == "rem":
        return _remainder(operands[0], operands[1], dtype)
    if name in SHIFTS:
        return _shift(name, operands[0], operands[1], dtype)
    if name == "neg":
        return emit("arith.subi", constant_scalar(0, operands[0].type), operands[0])
    if name == "not":
        return emit("arith.xori", operands[0], constant_scalar(-1, operands[0].type))
    return emit((UNSIGNED_OPS if unsigned else INTEGER_OPS)[name], *operands)


def _remainder(lhs: Scalar, rhs: Scalar, dtype: np.dtype) -> Scalar:
    """lhs - trunc(lhs / rhs) * rhs of integers, with x % 0 = x."""
    divide = _unsigned_division if is_unsigned(dtype) else _integer_division
    whole = emit("arith.muli", divide(lhs, rhs), rhs)
    return emit("arith.subi", lhs, whole)


def _shift(name: str, lhs: Scalar, rhs: Scalar, dtype: np.dtype) -> Scalar:
    """Return a shift; counts outside of the type leave 0, or the sign."""
    bits = 8 * dtype.itemsize
    inside = compare("lt", rhs, constant_scalar(bits, rhs.type), unsigned=True)
    if name == "shift_right" and not is_unsigned(dtype):
        return emit("arith.shrsi", lhs, select(inside, rhs, constant_scalar(bits - 1, rhs.type)))
    zero = constant_scalar(0, lhs.type)
    op = "arith.shli" if name == "shift_left" else "arith.shrui"
    return select(inside, emit(op, lhs, select(inside, rhs, zero)), zero)


def _unsigned_division(lhs: Scalar, rhs: Scalar) -> Scalar:
    """Divide, rounded down, with x/0 = 0: the machine's division traps on it."""
    zero, one = (constant_scalar(v, lhs.type) for v in (0, 1))
    by_zero = compare("eq", rhs, zero)
    return select(by_zero, zero, emit("arith.divui", lhs, select(by_zero, one, rhs)))


def _integer_division(lhs: Scalar, rhs: Scalar) -> Scalar:
    """Divide toward zero, with x/0 = 0 and MIN/-1 = MIN: the machine's division traps on both."""
    zero, one, minus_one = (constant_scalar(v, lhs.type) for v in (0, 1, -1))
    by_zero, by_minus_one = compare("eq", rhs, zero), compare("eq", rhs, minus_one)
    traps = emit("arith.ori", by_zero, by_minus_one)
    quotient = emit("arith.divsi", lhs, select(traps, one, rhs))
    quotient = select(by_minus_one, emit("arith.subi", zero, lhs), quotient)
    return select(by_zero, zero, quotient)


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
        return _to_float(value, source, target)
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
    near = emit("arith.truncf", value, result=storage_type(F32))
    if not odd:
        return near
    bits = emit("arith.bitcast", near, result=ir.IntegerType.get_signless(32))
    size, found = (
        emit("math.absf", v) for v in (value, emit("arith.extf", near, result=value.type))
    )
    one = constant_scalar(1, bits.type)
    low = select(compare("gt", found, size), emit("arith.subi", bits, one), bits)
    keeps = emit("arith.ori", *(compare(p, found, size) for p in ("eq", "unordered")))
    out = select(keeps, bits, emit("arith.ori", low, one))
    return emit("arith.bitcast", out, result=near.type)


def _to_float(value: Scalar, source: np.dtype, target: np.dtype) -> Scalar:
    """Convert integers; a 16-bit float is reached by way of f32, as numpy does."""
    wide = storage_type(accumulator(target))
    name = "arith.uitofp" if source == BOOL or is_unsigned(source) else "arith.sitofp"
    converted = emit(name, value, result=wide)
    return narrow(converted, target)


def _to_bf16(value: Scalar) -> Scalar:
    """Round an f32 to nearest even in integer arithmetic; NaN stays NaN, with its sign.

    Not as ``arith.truncf``: IREE's CPU code generation takes ``extf(truncf(x))`` for x where the
    smaller type is bf16, so that nothing would be rounded, and folds ``truncf(sitofp(x))`` to one
    conversion that it has no code for.
    """
    i32, i16 = ir.IntegerType.get_signless(32), ir.IntegerType.get_signless(16)
    bits = emit("arith.bitcast", value, result=i32)
    half, one, shift, quiet = (constant_scalar(v, i32) for v in (0x7FFF, 1, 16, 1 << 22))
    odd = emit("arith.andi", emit("arith.shrui", bits, shift), one)
    rounded = emit("arith.addi", emit("arith.addi", bits, half), odd)
    nan = compare("unordered", value, value)
    rounded = select(nan, emit("arith.ori", bits, quiet), rounded)
    upper = emit("arith.trunci", emit("arith.shrui", rounded, shift), result=i16)
    return emit("arith.bitcast", upper, result=storage_type(BF16))


def _saturate(value: Scalar, target: np.dtype) -> Scalar:
    """Round toward zero; out of range to the nearest bound, NaN to 0 (fptosi is undefined)."""
    out = storage_type(target)
    info = np.iinfo(target)
    above = compare("ge", value, constant_scalar(float(info.max + 1), value.type))
    below = compare("lt", value, constant_scalar(float(info.min), value.type))
    unordered = compare("unordered", value, value)
    outside = emit("arith.ori", emit("arith.ori", above, below), unordered)
    safe = select(outside, constant_scalar(0, value.type), value)
    convert = "arith.fptoui" if is_unsigned(target) else "arith.fptosi"
    converted = emit(convert, safe, result=out)
    converted = select(above, constant_scalar(int(info.max), out), converted)
    return select(below, constant_scalar(int(info.min), out), converted)


def combine(name: str, dtype: np.dtype) -> Callable[[Scalar, Scalar], Scalar]:
    """Return a binary op on accumulators of `dtype` (never a 16-bit float)."""
    integers = UNSIGNED_OPS if is_unsigned(dtype) else INTEGER_OPS
    table = FLOAT_OPS if is_float(dtype) else integers
    return lambda a, b: emit(table[name], a, b)
