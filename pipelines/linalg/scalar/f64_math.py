"""f64 functions that IREE's CPU code generation lacks: tanh, erf and the exact remainder.

tanh and erf: rational and polynomial approximations with the published coefficients of the Cephes
library (Moshier, 1989). Greatest error against the C library: 4e-16 absolute. NaN in, NaN out; both
are exact at the infinities.
"""

import math
from collections.abc import Callable, Sequence

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ops.error_function import P_Q
from pyc_mlir.pipelines.linalg.base.lowering import constant_scalar

Scalar = ir.Value

_TANH_P = (-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3)
_TANH_Q = (1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3)
_ERF_T = (
    9.60497373987051638749e0,
    9.00260197203842689217e1,
    2.23200534594684319226e3,
    7.00332514112805075473e3,
    5.55923013010394962768e4,
)
_ERF_U = (
    1.0,
    3.35617141647503099647e1,
    5.21357949780152679795e2,
    4.59432382970980127987e3,
    2.26290000613890934246e4,
    4.92673942608635921086e4,
)


def _op(name: str, *operands: Scalar, result: ir.Type | None = None) -> Scalar:
    out = operands[0].type if result is None else result
    return ir.Operation.create(name, results=[out], operands=list(operands)).result


def _number(value: float) -> Scalar:
    return constant_scalar(value, ir.F64Type.get())


def _add(a: Scalar, b: Scalar) -> Scalar:
    return _op("arith.addf", a, b)


def _sub(a: Scalar, b: Scalar) -> Scalar:
    return _op("arith.subf", a, b)


def _mul(a: Scalar, b: Scalar) -> Scalar:
    return _op("arith.mulf", a, b)


def _div(a: Scalar, b: Scalar) -> Scalar:
    return _op("arith.divf", a, b)


def _exp(a: Scalar) -> Scalar:
    return _op("math.exp", a)


def _compare(predicate: int, a: Scalar, b: Scalar) -> Scalar:
    i64, i1 = ir.IntegerType.get_signless(64), ir.IntegerType.get_signless(1)
    attr = ir.IntegerAttr.get(i64, predicate)
    return ir.Operation.create(
        "arith.cmpf", results=[i1], operands=[a, b], attributes={"predicate": attr}
    ).result


def _less(a: Scalar, b: Scalar) -> Scalar:
    return _compare(4, a, b)


def _select(condition: Scalar, a: Scalar, b: Scalar) -> Scalar:
    return _op("arith.select", condition, a, b, result=a.type)


def _polynomial(x: Scalar, coefficients: Sequence[float]) -> Scalar:
    """Evaluate by Horner's rule, highest power first."""
    value = _number(coefficients[0])
    for coefficient in coefficients[1:]:
        value = _add(_mul(value, x), _number(coefficient))
    return value


def tanh(x: Scalar) -> Scalar:
    """Compute a rational near 0, else 1 - 2 / (exp(2|x|) + 1) with the sign of x."""
    z = _mul(x, x)
    ratio = _div(_polynomial(z, _TANH_P), _polynomial(z, _TANH_Q))
    near = _add(x, _mul(_mul(x, z), ratio))
    size = _op("math.absf", x)
    two, one = _number(2.0), _number(1.0)
    far = _sub(one, _div(two, _add(_exp(_mul(two, size)), one)))
    # Near 0, -0 plus a rounded-off product would be +0.
    return _op("math.copysign", _select(_less(size, _number(0.625)), near, far), x)


def erf(x: Scalar) -> Scalar:
    """Compute a rational below 1, else 1 - exp(-x^2) P(|x|) / Q(|x|) with the sign of x."""
    z = _mul(x, x)
    near = _mul(x, _div(_polynomial(z, _ERF_T), _polynomial(z, _ERF_U)))
    # Beyond 6 the result is 1 to the last bit; capping keeps infinities out of the quotient.
    size = _op("arith.minimumf", _op("math.absf", x), _number(6.0))
    tail = _mul(
        _exp(_op("arith.negf", _mul(size, size))),
        _div(*(_polynomial(size, table[::-1]) for table in P_Q)),
    )
    far = _op("math.copysign", _sub(_number(1.0), tail), x)
    return _select(_less(_op("math.absf", x), _number(1.0)), near, far)


# An f64 is [sign, 11 bits of exponent, 52 bits of fraction]; a significand has 53 bits.
# The exponent _SPECIAL marks infinities and NaNs.
_FRACTION, _BIAS, _SPECIAL = 52, 1023, 0x7FF
# Bits that a significand can be shifted by in 64.
_CHUNK = 11
# Predicates of arith.cmpi.
_EQUAL, _LESS = 0, 2


def remainder(x: Scalar, y: Scalar) -> Scalar:
    """Return C's fmod: x - trunc(x / y) * y exactly, by long division of the significands.

    Each step brings down 11 bits of the quotient, so that the steps grow with the difference of
    the exponents (one up to quotients of 2^11, 187 at most). Subnormal numbers are 0.
    """
    bits_x, bits_y = (_op("arith.bitcast", v, result=_i64()) for v in (x, y))
    size_x, size_y = (_op("arith.andi", v, _whole(2**63 - 1)) for v in (bits_x, bits_y))
    power_x, power_y = (_op("arith.shrui", v, _whole(_FRACTION)) for v in (size_x, size_y))
    shift = _op("arith.maxsi", _op("arith.subi", power_x, power_y), _whole(0))
    dividend, divisor = _significand(size_x), _significand(size_y)
    rest = _long_division(_op("arith.remui", dividend, divisor), divisor, shift)
    near = _in_last_places(rest, power_y)
    near = _op("arith.select", _whole_compare(_LESS, size_x, size_y), size_x, near, result=_i64())
    normal = _whole_compare(_LESS, _whole(2**_FRACTION - 1), near)
    near = _op("arith.select", normal, near, _whole(0), result=_i64())
    signed = _op("arith.ori", near, _op("arith.andi", bits_x, _whole(-(2**63))))
    undefined = _whole_compare(_EQUAL, power_y, _whole(0))
    infinite = _whole(_SPECIAL << _FRACTION)
    for case in (
        _whole_compare(_EQUAL, power_x, _whole(_SPECIAL)),
        _whole_compare(_LESS, infinite, size_y),
    ):
        undefined = _op("arith.ori", undefined, case)
    return _select(undefined, _number(math.nan), _op("arith.bitcast", signed, result=x.type))


def _significand(size: Scalar) -> Scalar:
    """Return the 53 bits of a normal number's bits without the sign."""
    fraction = _op("arith.andi", size, _whole(2**_FRACTION - 1))
    return _op("arith.ori", fraction, _whole(2**_FRACTION))


def _in_last_places(count: Scalar, power: Scalar) -> Scalar:
    """Return the bits of `count` last places at that exponent; 0 or less if subnormal."""
    bits = _op("arith.bitcast", _op("arith.uitofp", count, result=ir.F64Type.get()), result=_i64())
    moved = _op("arith.subi", power, _whole(_BIAS + _FRACTION))
    bits = _op("arith.addi", bits, _op("arith.shli", moved, _whole(_FRACTION)))
    none = _whole_compare(_EQUAL, count, _whole(0))
    return _op("arith.select", none, _whole(0), bits, result=_i64())


def _long_division(rest: Scalar, divisor: Scalar, shift: Scalar) -> Scalar:
    """(rest * 2^shift) mod divisor for rest < divisor < 2^53."""
    index = ir.IndexType.get()
    zero, one = constant_scalar(0, index), constant_scalar(1, index)
    chunk = constant_scalar(_CHUNK, rest.type)
    chunks = _op("arith.ceildivsi", shift, chunk)
    count = _op("arith.index_cast", chunks, result=index)
    loop = ir.Operation.create(
        "scf.for",
        results=[rest.type, rest.type],
        operands=[zero, count, one, rest, shift],
        regions=1,
    )
    body = loop.regions[0].blocks.append(index, rest.type, rest.type)
    with ir.InsertionPoint(body):
        held, left = body.arguments[1], body.arguments[2]
        step = _op("arith.minsi", left, chunk)
        held = _op("arith.remui", _op("arith.shli", held, step), divisor)
        left = _op("arith.subi", left, step)
        ir.Operation.create("scf.yield", operands=[held, left])
    return loop.results[0]


def _i64() -> ir.Type:
    return ir.IntegerType.get_signless(64)


def _whole(value: int) -> Scalar:
    return constant_scalar(value, _i64())


def _whole_compare(predicate: int, a: Scalar, b: Scalar) -> Scalar:
    attr = ir.IntegerAttr.get(_i64(), predicate)
    return ir.Operation.create(
        "arith.cmpi",
        results=[ir.IntegerType.get_signless(1)],
        operands=[a, b],
        attributes={"predicate": attr},
    ).result


FUNCTIONS: dict[str, Callable[..., Scalar]] = {
    "tanh": tanh,
    "erf": erf,
    "rem": remainder,
}
