"""Elementwise ops to linalg.generic, with numpy's broadcasting in the index maps.

A dimension of size 1 that is stretched is dropped from its operand first; dynamic dimensions that
meet are checked to agree.
"""

from collections.abc import Sequence

import numpy as np

from pyc_mlir.dialects.bindings import ir
from pyc_mlir.dialects.types import BOOL
from pyc_mlir.pipelines.linalg import scalar
from pyc_mlir.pipelines.linalg.dims import Dim
from pyc_mlir.pipelines.linalg.lowering import Lowering, Tensor, lowers
from pyc_mlir.pipelines.linalg.structured import Body, drop_dims, pointwise

ONE = Dim(1)
NAMES = sorted({*scalar.FLOAT_OPS, *scalar.INTEGER_OPS, "not"})


def broadcast_dims(lowering: Lowering, operands: Sequence[Sequence[Dim]]) -> list[Dim]:
    """The sizes of the result; dynamic sizes that must agree are checked."""
    rank = max((len(dims) for dims in operands), default=0)
    out = [ONE] * rank
    for dims in operands:
        for i, dim in enumerate(dims, start=rank - len(dims)):
            if out[i] == ONE:
                out[i] = dim
            elif dim != ONE:
                out[i] = lowering.require_equal(out[i], dim, "broadcast dimensions")
    return out


def stretched(lowering: Lowering, x: Tensor, dims: Sequence[Dim]) -> tuple[Tensor, list[int]]:
    """x and its loop numbers among `dims`, without the dimensions that are stretched."""
    offset = len(dims) - x.rank
    dropped = [i for i, d in enumerate(x.dims) if d == ONE and dims[offset + i] != ONE]
    if x.splat is not None:
        return x, []
    kept = [offset + i for i in range(x.rank) if i not in dropped]
    return (drop_dims(lowering, x, dropped) if dropped else x), kept


def broadcasting(
    lowering: Lowering, operands: Sequence[Tensor], dtype: np.dtype, body: Body
) -> Tensor:
    """Apply a scalar body under numpy's broadcasting."""
    dims = broadcast_dims(lowering, [t.dims for t in operands])
    inputs = [stretched(lowering, t, dims) for t in operands]
    return pointwise(lowering, inputs, dims, dtype, lambda *values: body(*values[:-1]))


@lowers(*NAMES)
def elementwise(lowering: Lowering, name: str, *operands: Tensor) -> Tensor:
    """Ops with one scalar form and no parameters."""
    dtype = operands[0].dtype
    return broadcasting(
        lowering, operands, dtype, lambda *values: scalar.apply(name, values, dtype)
    )


@lowers("compare")
def compare(lowering: Lowering, name: str, lhs: Tensor, rhs: Tensor, *, predicate: str) -> Tensor:
    """cmpf or cmpi."""

    def body(a: ir.Value, b: ir.Value) -> ir.Value:
        a, b = scalar.widen(a, lhs.dtype), scalar.widen(b, rhs.dtype)
        return scalar.compare(predicate, a, b)

    return broadcasting(lowering, [lhs, rhs], BOOL, body)


@lowers("select")
def select(lowering: Lowering, name: str, *operands: Tensor) -> Tensor:
    """arith.select."""
    return broadcasting(lowering, operands, operands[1].dtype, scalar.select)


@lowers("cast")
def cast(lowering: Lowering, name: str, x: Tensor, *, dtype: np.dtype) -> Tensor:
    """The conversions of arith, saturating."""
    return broadcasting(lowering, [x], dtype, lambda v: scalar.cast(v, x.dtype, dtype))
