"""Normal forms: one spelling of what front ends and users spell in several ways.

    axis of softmax, norms, argsort    counts from the end, as its default does; others from 0
    axes of reductions                 count from 0, in order
    epsilon, scale in f32              the shortest decimal number that rounds to the same f32
    constant operands of elementwise   no dimension along which they repeat themselves
    reduce_sum(x) / n                  reduce_mean(x)
    reshape(reduce(x))                 reduce(x) that keeps its dimensions, or does not

Each keeps every bit of the result. Programs of the same mathematics become the same program, which
evidence, recipes and kernels then know as one.
"""

import math
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.opdef import OPS, Param, Trait
from pyc_mlir.dialects.ops.reduction import reduced_axes, reduced_shape
from pyc_mlir.dialects.types import DTYPES, TensorType, accumulator, is_float
from pyc_mlir.pipelines.driver.base import Relation
from pyc_mlir.pipelines.pyc.canonicalize.identities import KEEPS, REWRITES, rewrites
from pyc_mlir.pipelines.pyc.rewriting import (
    constant_array,
    defining_op,
    definition_of,
    params_of,
    splat_of,
)

__all__ = ["KEEPS", "REWRITES"]

_SPELLED = tuple(
    name for name, op in OPS.items() if {p.name for p in op.params} & {"axis", "axes", "epsilon"}
)
_BROADCAST = tuple(
    name for name, op in OPS.items() if op.has(Trait.ELEMENTWISE) and len(op.operands) > 1
)


def _bound(op: ir.Operation) -> tuple[Any, dict[str, Any]]:
    definition = definition_of(op)
    assert definition is not None
    return definition, params_of(definition, op)


@rewrites(Relation.REALS, *_SPELLED, "attention")
def spelled_parameters(op: ir.Operation) -> ir.Value | None:
    """Return axes and small numbers as the module says."""
    definition, given = _bound(op)
    ranks = from_mlir((op.operands[0] if len(op.operands) else op.result).type).rank
    rank = from_mlir(op.result.type).rank if definition.name == "iota" else ranks
    is_f32 = from_mlir(op.result.type).dtype == DTYPES["f32"]
    wanted = {p.name: _spelled(p, given[p.name], rank, is_f32) for p in definition.params}
    if wanted == given:
        return None
    return IRBuilder().build(definition, *op.operands, **wanted)


def _spelled(param: Param, value: Any, rank: int, is_f32: bool) -> Any:
    if param.name == "axis":
        from_end = isinstance(param.default, int) and param.default < 0
        return value % rank - (rank if from_end else 0)
    if param.name == "axes":
        return tuple(sorted(a % rank for a in value))
    if param.kind is float and is_f32:
        # "9.99999975e-06", an f32 that a model stores, is the rounding of 1e-5.
        return float(str(np.float32(value)))
    return value


@rewrites(Relation.BITS, *_BROADCAST)
def repeated_constant(op: ir.Operation) -> ir.Value | None:
    """``x + c = x + c[:1]`` for a constant that repeats itself along a dimension which x has."""
    builder = IRBuilder()
    slim = [_slim(value) for value in op.operands]
    if all(array is None for array in slim):
        return None
    definition, given = _bound(op)
    before = [from_mlir(value.type) for value in op.operands]
    after = [
        type_ if array is None else TensorType(array.shape, array.dtype)
        for type_, array in zip(before, slim, strict=True)
    ]
    # Where the constant alone says a size, the program checks it.
    if definition.infer(*after, **given) != definition.infer(*before, **given):
        return None
    made = [v if a is None else a for v, a in zip(op.operands, slim, strict=True)]
    return builder.build(definition, *made, **given)


def _slim(value: ir.Value) -> np.ndarray | None:
    """Return a constant without the dimensions along which it repeats; None if it has none."""
    rank = from_mlir(value.type).rank
    if not rank:
        return None
    if (splat := splat_of(value)) is not None:
        return np.asarray(splat)
    array = constant_array(value)
    if array is None or not array.size:
        return None
    slim = array
    for axis in range(rank):
        first, rest = np.split(slim, [1], axis)
        # Of most constants the first two elements say that they do not repeat themselves.
        second = np.split(rest, [1], axis)[0]
        if rest.size and _is_repeated(first, second) and _is_repeated(first, rest):
            slim = first
    while slim.ndim and slim.shape[0] == 1:
        slim = slim[0]
    return np.ascontiguousarray(slim) if slim.ndim < rank or slim.size < array.size else None


def _is_repeated(first: np.ndarray, rest: np.ndarray) -> bool:
    """Return whether all slices have the bits of the first one."""
    bits = np.dtype(f"u{first.dtype.itemsize}")
    return bool((rest.view(bits) == first.view(bits)).all())


@rewrites(Relation.REALS, "div", "mul")
def mean_of_sum(op: ir.Operation) -> ir.Value | None:
    """``reduce_sum(x) / n = reduce_mean(x)``; times 1/n only for powers of two, in every bit."""
    total, count = op.operands
    sums, number = defining_op(total), splat_of(count)
    if sums is None or sums.name != "pyc.reduce_sum" or number is None:
        return None
    x = from_mlir(sums.operands[0].type)
    _, given = _bound(sums)
    sizes = [x.shape[a] for a in given["axes"]]
    # The mean of 16-bit floats is computed in f32, the sum here is not.
    if None in sizes or not is_float(x.dtype) or accumulator(x.dtype) != x.dtype:
        return None
    n = math.prod(d or 0 for d in sizes)
    wanted = n if op.name == "pyc.div" else (1 / n if n and n & (n - 1) == 0 else None)
    if wanted is None or number != wanted or from_mlir(count.type).rank:
        return None
    return IRBuilder().reduce_mean(sums.operands[0], **given)


@rewrites(Relation.BITS, "reshape")
def kept_dimensions(op: ir.Operation) -> ir.Value | None:
    """Return a reshape that only drops, or adds, the dimensions of size 1 that a reduction made."""
    made, out = defining_op(op.operands[0]), from_mlir(op.result.type)
    definition = None if made is None else definition_of(made)
    if made is None or definition is None or not definition.has(Trait.REDUCES) or not out.is_static:
        return None
    given = params_of(definition, made)
    x, other = made.operands[0], {**given, "keepdims": not given["keepdims"]}
    axes = [a % from_mlir(x.type).rank for a in reduced_axes(given)]
    if reduced_shape(from_mlir(x.type).shape, axes, other["keepdims"]) != out.shape:
        return None
    return IRBuilder().build(definition, x, **other)
