"""Handlers of StableHLO's operations without regions: those of hlo/operations.py, and others.

Handlers get the operands as a `Call` and the operation as a `StablehloOp`, and return the result
or a tuple of results.
"""

from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.frontends.hlo import elementwise, movement
from pyc_mlir.frontends.hlo.call import Call
from pyc_mlir.frontends.hlo.contraction import DotDims, dot_general
from pyc_mlir.frontends.hlo.operations import OPERATIONS, Operation
from pyc_mlir.frontends.importing.shaping import reshape_to
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSizes, Untracked

# StableHLO's name -> the operation of the same meaning, as jaxprs call it.
_SAME = {
    "abs": "abs", "add": "add", "and": "and", "cbrt": "cbrt", "ceil": "ceil", "clamp": "clamp",
    "cosine": "cos", "divide": "div", "exponential": "exp", "exponential_minus_one": "expm1",
    "floor": "floor", "is_finite": "is_finite", "log": "log", "log_plus_one": "log1p",
    "logistic": "logistic", "maximum": "max", "minimum": "min", "multiply": "mul", "negate": "neg",
    "atan2": "atan2", "not": "not", "or": "or", "power": "pow", "remainder": "rem",
    "round_nearest_afz": "round_away", "round_nearest_even": "round_even", "rsqrt": "rsqrt",
    "sign": "sign", "sine": "sin", "sqrt": "sqrt", "subtract": "sub", "tan": "tan", "tanh": "tanh",
    "xor": "xor", "shift_left": "shift_left", "shift_right_logical": "shift_right_logical",
    "shift_right_arithmetic": "shift_right_arithmetic", "chlo.erf_inv": "erf_inv",
    "chlo.acosh": "acosh", "chlo.asinh": "asinh", "chlo.atanh": "atanh", "chlo.cosh": "cosh",
    "chlo.erf": "erf", "chlo.erfc": "erfc", "chlo.sinh": "sinh", "chlo.tan": "tan",
    "chlo.square": "square", "bitcast_convert": "bitcast_convert_type",
    "broadcast_in_dim": "broadcast_in_dim", "concatenate": "concatenate",
    "convert": "convert_element_type", "convolution": "conv_general_dilated",
    "dot_general": "dot_general", "dynamic_slice": "dynamic_slice",
    "dynamic_update_slice": "dynamic_update_slice", "gather": "gather", "iota": "iota",
    "optimization_barrier": "optimization_barrier", "pad": "pad",
    "reduce_precision": "reduce_precision", "reshape": "reshape", "reverse": "rev",
    "transpose": "transpose",
}  # fmt: skip


def _compare(call: Call, op: Any) -> Any:
    """out = x <direction> y."""
    total = op.get("compare_type") == "TOTALORDER"
    compute = elementwise.compare_total if total else elementwise.compare
    return call.pointwise(partial(compute, predicate=op["comparison_direction"].lower()))


def _dot(call: Call, op: Any) -> Any:
    """Multiply matrices or vectors: contract the last dimension with the first."""
    dims = DotDims((call.type(0).rank - 1,), (0,), (), ())
    return dot_general(call.b, call.x(0), call.x(1), dims, op["dtype"])


def _extents(call: Call, index: int) -> tuple[Extent, ...]:
    """Return a shape that an operand holds, static or in terms of dynamic dimensions."""
    value = call.operands[index]
    if not isinstance(value, SymbolicSizes):
        return tuple(int(v) for v in call.known(index, "a shape").reshape(-1))
    if not call.emits:
        raise Untracked("shape")
    return tuple(value.entries.reshape(-1))


def _dynamic_broadcast_in_dim(call: Call, op: Any) -> Any:
    """Broadcast as broadcast_in_dim, into the shape that operand 1 holds."""
    dims = op["broadcast_dimensions"]
    return movement.broadcast_in_dim(call.b, call.x(), _extents(call, 1), dims)


def _slice(call: Call, op: Any) -> Any:
    """x[start:limit:stride]; a limit that is the whole dimension stays so if that is dynamic."""
    bounds = (op[name] for name in ("start_indices", "limit_indices", "strides"))
    return movement.slice_(call.b, call.x(), *bounds)


def _get_dimension_size(call: Call, op: Any) -> Any:
    """Return the size of a dimension as a scalar; the importer follows dynamic ones."""
    size = call.dims()[op["dimension"]]
    if isinstance(size, int):
        return call.b.constant(np.array(size, np.int32))
    return call.b.cast(call.b.extent(size), dtype=DTYPES["i32"])


HANDLERS: dict[str, Operation] = {
    **{name: OPERATIONS[of] for name, of in _SAME.items()},
    "compare": _compare,
    "dot": _dot,
    "dynamic_broadcast_in_dim": _dynamic_broadcast_in_dim,
    # Into the shape that operand 1, or 0, holds.
    "dynamic_reshape": lambda call, op: reshape_to(call.b, call.x(), _extents(call, 1)),
    "dynamic_iota": lambda call, op: movement.iota(
        call.b, _extents(call, 0), op["dimension"], op["dtype"]
    ),
    "get_dimension_size": _get_dimension_size,
    "select": lambda call, op: call.pointwise(lambda b, which, yes, no: b.select(which, yes, no)),
    "slice": _slice,
}
