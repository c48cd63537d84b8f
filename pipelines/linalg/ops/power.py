"""pow with the signs and special values of C99 (annex F).

IREE 3.13 computes it for positive bases alone: a negative base, 0 ** 0 and odd powers of -0 are
wrong, in f64 also much of the rest. So |x| is raised (exponential.py) and the sign is put on. The
16-bit floats are computed in f32. Targets without f64 raise |x| by math.powf.
"""

import numpy as np

from pyc_mlir.pipelines.linalg.base.lowering import LoweredTensor, Lowering, constant_scalar, lowers
from pyc_mlir.pipelines.linalg.ops.elementwise import broadcasting
from pyc_mlir.pipelines.linalg.scalar.exponential import power_of_size, power_of_two
from pyc_mlir.pipelines.linalg.scalar.scalar import Scalar, compare, emit, narrow, select, widen


@lowers("pow")
def power(lowering: Lowering, name: str, x: LoweredTensor, y: LoweredTensor) -> LoweredTensor:
    """Compute elementwise; the constant base 2 needs no logarithm."""
    dtype = x.dtype

    def body(a: Scalar, b: Scalar) -> Scalar:
        if x.splat == 2:
            return narrow(power_of_two(widen(b, dtype)), dtype)
        wide = raise_to(widen(a, dtype), widen(b, dtype), lowering.f64_math)
        return narrow(wide, dtype)

    return broadcasting(lowering, [x, y], dtype, body)


def raise_to(x: Scalar, y: Scalar, f64_math: bool) -> Scalar:
    """Return x ** y for two f32 or two f64; `f64_math`: f32 may be computed in f64."""

    def number(value: float) -> Scalar:
        return constant_scalar(value, x.type)

    zero, one, half, nan = number(0.0), number(1.0), number(0.5), number(np.nan)
    size = emit("math.absf", x)
    value = power_of_size(size, y) if f64_math else emit("math.powf", size, y)
    value = select(compare("eq", size, one), one, value)
    halved = emit("arith.mulf", y, half)
    odd = compare("eq", emit("arith.subf", halved, emit("math.floor", halved)), half)
    negative = compare("lt", emit("math.copysign", one, x), zero)
    signed = select(emit("arith.andi", odd, negative), emit("arith.negf", value), value)
    fractional = compare("lt", emit("math.floor", y), y)
    finite = emit("arith.andi", compare("lt", x, zero), compare("lt", number(-np.inf), x))
    signed = select(emit("arith.andi", finite, fractional), nan, signed)
    unordered = emit("arith.ori", compare("unordered", x, x), compare("unordered", y, y))
    certain = emit("arith.ori", compare("eq", y, zero), compare("eq", x, one))
    return select(certain, one, select(unordered, nan, signed))
