"""The steps of pointwise programs: each as code on vectors, as a reference, as an error bound.

A step has the name of the pyc op that it computes, and that op's numpy reference in f64; gelu in
its tanh form is ``gelu_tanh``, a comparison has the name of its predicate. ``to_f16`` and
``to_bf16`` round to these types, which the reference in f64 counts as an error. The error of a
result is at most what the operands' errors make of it, in the first order (Higham, Accuracy and
Stability of Numerical Algorithms, 2002, chapter 3), plus the step's own rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.ops import elementwise
from pyc_mlir.pipelines.kernels.lang import functions
from pyc_mlir.pipelines.kernels.lang.functions import ERRORS
from pyc_mlir.pipelines.kernels.lang.stored import rounded
from pyc_mlir.pipelines.kernels.lang.values import (
    LARGEST,
    ROUNDING,
    SMALLEST,
    Mask,
    Vector,
    arith,
    math,
    maximum,
    minimum,
    where,
)

Arrays = list[np.ndarray]
# (operands, their errors, the result) -> the result's error that comes from the operands.
Slip = Callable[[Arrays, Arrays, np.ndarray], Any]


@dataclass(frozen=True)
class Op:
    """A step: how many operands, its code, its reference in f64, its errors; `flops` a number.

    `own` is the relative error that it adds, and an absolute one as a share of the first operand's
    size; `range` is the largest absolute error of small results, and the largest finite result. A
    comparison gives a `mask`, whose error is infinite where it may come out differently; a
    selection takes one (`by_mask`) as its first operand.
    """

    operands: int
    build: Callable[..., Any]
    exact: Callable[..., np.ndarray]
    slip: Slip
    own: tuple[float, float] = (0.0, 0.0)
    flops: int = 1
    mask: bool = False
    by_mask: bool = False
    range: tuple[float, float] = (SMALLEST, LARGEST)

    def bound(self, values: Arrays, errors: Arrays, result: np.ndarray) -> np.ndarray:
        """Bound the error of `result`, computed from operands that are off by `errors`.

        Infinite where nothing can be told.
        """
        relative, absolute = self.own
        smallest, largest = self.range
        own = relative * np.abs(result) + smallest
        if absolute:
            own = own + absolute * (np.abs(values[0]) + errors[0])
        total = self.slip(values, errors, result) + own
        # What may pass the largest number is infinite in f32, and what comes of it is anything.
        beyond = np.isnan(total) | (np.abs(result) + total > largest)
        total = np.where(beyond, np.inf, total)
        # An infinity that was read is not off, nor is what stays infinite by it.
        read = np.any(np.broadcast_arrays(*map(_exactly_infinite, values, errors)), axis=0)
        return np.where(np.isinf(result) & read, 0.0, total)


def _exactly_infinite(value: np.ndarray, error: np.ndarray) -> np.ndarray:
    return np.isinf(value) & (error == 0)


def _sum(values: Arrays, errors: Arrays, result: np.ndarray) -> Any:
    return sum(errors)


def _largest(values: Arrays, errors: Arrays, result: np.ndarray) -> Any:
    return np.max(np.broadcast_arrays(*errors), axis=0)


def _product(values: Arrays, errors: Arrays, result: np.ndarray) -> Any:
    (a, b), (da, db) = values, errors
    return np.abs(a) * db + np.abs(b) * da + da * db


def _quotient(values: Arrays, errors: Arrays, result: np.ndarray) -> Any:
    least = np.maximum(np.abs(values[1]) - errors[1], 0)
    return _share(errors[0] + np.abs(result) * errors[1], least)


def _share(error: np.ndarray, least: np.ndarray) -> np.ndarray:
    """error / least; 0 where there is no error, whatever `least`."""
    return np.where(error == 0, 0.0, error / least)


def _slope(most: float) -> Slip:
    """Make the error rule of a function whose derivative is nowhere steeper."""
    return lambda values, errors, result: most * errors[0]


def _exp(values: Arrays, errors: Arrays, result: np.ndarray) -> Any:
    return np.abs(result) * np.expm1(errors[0])


def _log(values: Arrays, errors: Arrays, result: np.ndarray) -> Any:
    return _share(errors[0], np.maximum(values[0] - errors[0], 0))


def _sqrt(values: Arrays, errors: Arrays, result: np.ndarray) -> Any:
    return _share(errors[0], result + np.sqrt(np.maximum(values[0] - errors[0], 0)))


def _rsqrt(values: Arrays, errors: Arrays, result: np.ndarray) -> Any:
    least = np.maximum(values[0] - errors[0], 0)
    return np.where(errors[0] == 0, 0.0, 1 / np.sqrt(least) - result)


def _jump(values: Arrays, errors: Arrays, result: np.ndarray) -> Any:
    """Return a whole step for functions to integers if the operand is not exact."""
    return np.where(errors[0] == 0, 0.0, errors[0] + 1)


def _compared(values: Arrays, errors: Arrays, result: np.ndarray) -> Any:
    (a, b), off = values, errors[0] + errors[1]
    known = (off == 0) | (np.abs(a - b) > off) | np.isnan(a) | np.isnan(b)
    return np.where(known, 0.0, np.inf)


def _selected(values: Arrays, errors: Arrays, result: np.ndarray) -> Any:
    chosen = np.where(values[0], errors[1], errors[2])
    either = np.abs(values[1] - values[2]) + np.maximum(errors[1], errors[2])
    return np.where(np.isinf(errors[0]), either, chosen)


def _of_math(name: str) -> Callable[[Vector], Vector]:
    """Make the emitter of an op of MLIR's math dialect."""
    return lambda x: Vector(getattr(math, name)(x.value))


def _comparison(predicate: str) -> dict[str, Any]:
    """Make a comparison by MLIR's name of it; NaN is unequal to all."""
    kind = getattr(arith.CmpFPredicate, predicate)

    def build(a: Vector, b: Vector) -> Mask:
        return Mask(arith.cmpf(kind, a.value, b.value))

    return {"operands": 2, "build": build, "slip": _compared, "mask": True}


def _clip(x: Vector, low: Vector, high: Vector) -> Vector:
    return minimum(maximum(x, low), high)


def _arithmetic(build: Callable[..., Any], slip: Slip) -> dict[str, Any]:
    return {"operands": 2, "build": build, "slip": slip, "own": (ROUNDING, 0.0)}


def _exactly(build: Callable[..., Any], slip: Slip = _largest, operands: int = 1) -> dict[str, Any]:
    return {"operands": operands, "build": build, "slip": slip}


def _function(name: str, slip: Slip) -> dict[str, Any]:
    """Make the emitter of a function of functions.py."""
    return {
        **{"operands": 1, "build": getattr(functions, name), "slip": slip, "own": ERRORS[name]},
        "flops": elementwise.TRANSCENDENTAL_FLOPS,
    }


# Half the distance of 1 from the next number, the largest error of small numbers (below the
# smallest normal one those of bf16 count as zero), and the largest number.
HALF_RANGES = {
    "f16": (2.0**-11, 2.0**-25, 65504.0),
    "bf16": (2.0**-8, SMALLEST, (2 - 2.0**-7) * 2.0**127),
}


def _rounding(dtype: str) -> dict[str, Any]:
    """Make the step that rounds to a half type."""
    own, *range_ = HALF_RANGES[dtype]
    build = partial(rounded, dtype=dtype)
    return {**_exactly(build), "own": (own, 0.0), "range": tuple(range_)}


_FIELDS: dict[str, dict[str, Any]] = {
    "add": _arithmetic(lambda a, b: a + b, _sum),
    "sub": _arithmetic(lambda a, b: a - b, _sum),
    "mul": _arithmetic(lambda a, b: a * b, _product),
    "div": _arithmetic(lambda a, b: a / b, _quotient),
    "maximum": _exactly(maximum, operands=2),
    "minimum": _exactly(minimum, operands=2),
    "clip": _exactly(_clip, operands=3),
    "eq": _comparison("OEQ"),
    "ne": _comparison("UNE"),
    "lt": _comparison("OLT"),
    "le": _comparison("OLE"),
    "gt": _comparison("OGT"),
    "ge": _comparison("OGE"),
    "select": {**_exactly(where, _selected, operands=3), "by_mask": True},
    "neg": _exactly(lambda x: -x),
    "abs": _exactly(_of_math("absf")),
    "relu": _exactly(lambda x: maximum(x, 0.0)),
    "floor": _exactly(_of_math("floor"), _jump),
    "ceil": _exactly(_of_math("ceil"), _jump),
    "round": _exactly(_of_math("roundeven"), _jump),
    "sqrt": {**_exactly(functions.sqrt, _sqrt), "own": ERRORS["sqrt"]},
    "rsqrt": {**_exactly(functions.rsqrt, _rsqrt), "own": ERRORS["rsqrt"]},
    **{f"to_{dtype}": _rounding(dtype) for dtype in HALF_RANGES},
    "exp": _function("exp", _exp),
    "log": _function("log", _log),
    "tanh": _function("tanh", _slope(1.0)),
    **{name: _function(name, _slope(1.13)) for name in ("erf", "erfc")},
    "sigmoid": _function("sigmoid", _slope(0.25)),
    "silu": _function("silu", _slope(1.1)),
    "gelu": _function("gelu", _slope(1.13)),
    "gelu_tanh": _function("gelu_tanh", _slope(1.13)),
}


def _exact(name: str) -> Callable[..., np.ndarray]:
    if name.startswith("to_"):
        return np.positive
    if name.startswith("gelu"):
        form = "tanh" if name == "gelu_tanh" else "none"
        return partial(OPS["gelu"].reference, approximate=form)
    if name in elementwise.PREDICATES:
        return partial(OPS["compare"].reference, predicate=name)
    return OPS[name].reference


STEPS = MappingProxyType({n: Op(exact=_exact(n), **f) for n, f in _FIELDS.items()})


def stored(dtype: str, exact: np.ndarray, bound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Add to the error of results that of writing them as numbers of a half type."""
    step = STEPS[f"to_{dtype}"]
    return exact, step.bound([exact], [bound], exact)
