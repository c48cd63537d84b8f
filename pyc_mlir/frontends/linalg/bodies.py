"""The scalar operations in bodies of linalg operations, as pyc's elementwise ones.

A body is evaluated once, on whole tensors: each argument is a tensor aligned with the loops, and
each operation of arith and math becomes one elementwise operation.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import dtype_of
from pyc_mlir.dialects.types import BOOL, I64, is_integer
from pyc_mlir.frontends.hlo.elementwise import POINTWISE, compare
from pyc_mlir.frontends.importing.errors import unsupported

# The operation -> the elementwise one of the same meaning, as jaxprs call it.
_SAME = {
    "arith.addf": "add", "arith.addi": "add", "arith.subf": "sub", "arith.subi": "sub",
    "arith.mulf": "mul", "arith.muli": "mul", "arith.divf": "div", "arith.maximumf": "max",
    "arith.maxsi": "max", "arith.minimumf": "min", "arith.minsi": "min", "arith.negf": "neg",
    "arith.andi": "and", "arith.ori": "or", "arith.xori": "xor",
    "math.absf": "abs", "math.absi": "abs", "math.ceil": "ceil", "math.floor": "floor",
    "math.roundeven": "round_even", "math.round": "round_away", "math.exp": "exp",
    "math.expm1": "expm1", "math.exp2": "exp2", "math.log": "log", "math.log1p": "log1p",
    "math.sin": "sin", "math.cos": "cos", "math.tan": "tan", "math.tanh": "tanh",
    "math.sinh": "sinh", "math.cosh": "cosh", "math.sqrt": "sqrt", "math.rsqrt": "rsqrt",
    "math.erf": "erf", "math.erfc": "erfc", "math.powf": "pow", "math.cbrt": "cbrt",
}  # fmt: skip
_CASTS = ("arith.extf", "arith.truncf", "arith.fptosi", "arith.extsi", "arith.trunci")
_OF_BOOLEANS = ("arith.extui", "arith.uitofp")
# Predicates of arith.cmpf by number: (ours, negated). Ordered ones are false for NaN.
_FLOAT = {
    1: ("eq", False), 2: ("gt", False), 3: ("ge", False), 4: ("lt", False), 5: ("le", False),
    9: ("le", True), 10: ("lt", True), 11: ("ge", True), 12: ("gt", True), 13: ("ne", False),
}  # fmt: skip
_INTEGER = {0: "eq", 1: "ne", 2: "lt", 3: "le", 4: "gt", 5: "ge"}
# What combines the running value of a reduction with a new one.
COMBINERS = {
    "arith.addf": "add", "arith.addi": "add", "arith.mulf": "mul", "arith.muli": "mul",
    "arith.maximumf": "max", "arith.maxsi": "max", "arith.minimumf": "min", "arith.minsi": "min",
    "arith.andi": "and", "arith.ori": "or",
}  # fmt: skip


def scalar_dtype(type_: ir.Type) -> np.dtype:
    """Return an element type; `index` is i64. Raises PycError (UNSUPPORTED_DTYPE)."""
    if isinstance(type_, ir.IndexType):
        return I64
    try:
        return dtype_of(type_)
    except PycError as error:
        raise PycError(ReasonCode.UNSUPPORTED_DTYPE, error.message) from error


def scalar(b: Any, op: ir.Operation, values: list[Any]) -> Any:
    """Build one operation of a body on tensors. Raises PycError (UNSUPPORTED_OP)."""
    name = op.name
    if name in _SAME:
        return POINTWISE[_SAME[name]](b, *values)
    if name in _OTHERS:
        return _OTHERS[name](b, op, values)
    raise unsupported(f"`{name}` in a body", ReasonCode.UNSUPPORTED_OP)


def _number(op: ir.Operation, name: str) -> int:
    return ir.IntegerAttr(op.attributes[name]).value


def _cast(b: Any, op: ir.Operation, values: list[Any]) -> Any:
    given, wanted = b.type_of(values[0]).dtype, scalar_dtype(op.results[0].type)
    if op.name in _CASTS and BOOL in (given, wanted):
        raise unsupported(f"`{op.name}` from or to i1")
    if op.name in _OF_BOOLEANS and given != BOOL:
        raise unsupported(f"`{op.name}` of another type than i1")
    if op.name == "arith.sitofp" and not is_integer(given):
        raise unsupported("`arith.sitofp` of i1, whose true is -1")
    return b.convert(values[0], wanted)


def _compare_floats(b: Any, op: ir.Operation, values: list[Any]) -> Any:
    number = _number(op, "predicate")
    if number not in _FLOAT:
        raise unsupported(f"predicate {number} of `arith.cmpf`")
    predicate, negated = _FLOAT[number]
    out = compare(b, values[0], values[1], predicate)
    return b.not_(out) if negated else out


def _compare_integers(b: Any, op: ir.Operation, values: list[Any]) -> Any:
    number = _number(op, "predicate")
    if number not in _INTEGER:
        raise unsupported("an unsigned comparison")
    return compare(b, values[0], values[1], _INTEGER[number])


_OTHERS: Mapping[str, Callable[[Any, ir.Operation, list[Any]], Any]] = {
    **dict.fromkeys((*_CASTS, *_OF_BOOLEANS, "arith.sitofp", "arith.index_cast"), _cast),
    "arith.cmpf": _compare_floats,
    "arith.cmpi": _compare_integers,
    "arith.select": lambda b, op, v: b.select(*v),
    "arith.divsi": lambda b, op, v: b.div(*v),
    "math.fma": lambda b, op, v: b.add(b.mul(v[0], v[1]), v[2]),
}


def constant(op: ir.Operation) -> np.ndarray:
    """Return a scalar constant of a body."""
    attribute: Any = op.attributes["value"]
    dtype = I64 if str(op.results[0].type) == "index" else scalar_dtype(op.results[0].type)
    return np.array(attribute.value).astype(dtype)
