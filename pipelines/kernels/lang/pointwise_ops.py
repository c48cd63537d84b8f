"""The steps of pointwise programs as code on vectors, and the roundings that they add.

A step has the name of the pyc op that it computes; gelu in its tanh form is ``gelu_tanh``, a
comparison has the name of its predicate. ``to_f16`` and ``to_bf16`` round to these types.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from pyc_mlir.dialects.ops.elementwise import TRANSCENDENTAL_FLOPS
from pyc_mlir.pipelines.kernels.lang import functions
from pyc_mlir.pipelines.kernels.lang.functions import ERRORS
from pyc_mlir.pipelines.kernels.lang.stored import rounded
from pyc_mlir.pipelines.kernels.lang.values import (
    ROUNDING,
    Mask,
    Vector,
    arith,
    math,
    maximum,
    minimum,
    where,
)


@dataclass(frozen=True)
class Op:
    """A step: how many operands, its code, its roundings; `flops` a number.

    `own` is the relative error that it adds, and an absolute one as a share of the first operand's
    size. A comparison gives a `mask`; a selection takes one (`by_mask`) as its first operand.
    """

    operands: int
    build: Callable[..., Any]
    own: tuple[float, float] = (0.0, 0.0)
    flops: int = 1
    mask: bool = False
    by_mask: bool = False


def _of_math(name: str) -> Callable[[Vector], Vector]:
    """Make the emitter of an op of MLIR's math dialect."""
    return lambda x: Vector(getattr(math, name)(x.value))


def _comparison(predicate: str) -> Op:
    """Make a comparison by MLIR's name of it; NaN is unequal to all."""
    kind = getattr(arith.CmpFPredicate, predicate)
    return Op(2, lambda a, b: Mask(arith.cmpf(kind, a.value, b.value)), mask=True)


def _clip(x: Vector, low: Vector, high: Vector) -> Vector:
    return minimum(maximum(x, low), high)


def _arithmetic(build: Callable[..., Any]) -> Op:
    return Op(2, build, (ROUNDING, 0.0))


def _function(name: str) -> Op:
    """Make the step of a function of functions.py."""
    return Op(1, getattr(functions, name), ERRORS[name], TRANSCENDENTAL_FLOPS)


# Half the distance of 1 from the next number.
_HALF_ROUNDINGS = {"f16": 2.0**-11, "bf16": 2.0**-8}
STEPS = MappingProxyType(
    {
        "add": _arithmetic(lambda a, b: a + b),
        "sub": _arithmetic(lambda a, b: a - b),
        "mul": _arithmetic(lambda a, b: a * b),
        "div": _arithmetic(lambda a, b: a / b),
        "maximum": Op(2, maximum),
        "minimum": Op(2, minimum),
        "clip": Op(3, _clip),
        "eq": _comparison("OEQ"),
        "ne": _comparison("UNE"),
        "lt": _comparison("OLT"),
        "le": _comparison("OLE"),
        "gt": _comparison("OGT"),
        "ge": _comparison("OGE"),
        "select": Op(3, where, by_mask=True),
        "neg": Op(1, lambda x: -x),
        "abs": Op(1, _of_math("absf")),
        "relu": Op(1, lambda x: maximum(x, 0.0)),
        "floor": Op(1, _of_math("floor")),
        "ceil": Op(1, _of_math("ceil")),
        "round": Op(1, _of_math("roundeven")),
        "sqrt": Op(1, functions.sqrt, ERRORS["sqrt"]),
        "rsqrt": Op(1, functions.rsqrt, ERRORS["rsqrt"]),
        **{
            f"to_{dtype}": Op(1, partial(rounded, dtype=dtype), (unit, 0.0))
            for dtype, unit in _HALF_ROUNDINGS.items()
        },
        **{
            name: _function(name)
            for name in (
                *("exp", "log", "tanh", "erf", "erfc"),
                *("sigmoid", "silu", "gelu", "gelu_tanh"),
            )
        },
    }
)
