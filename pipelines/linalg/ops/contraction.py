"""Matrix products: linalg.matmul and linalg.batch_matmul where they fit, else a contraction.

A product of a batched left operand with one matrix is a single larger matmul. 16-bit floats are
accumulated in f32; the rounding is an elementwise op after it.
"""

from collections.abc import Sequence

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.types import accumulator
from pyc_mlir.pipelines.linalg.base.dims import LoweredDim, product
from pyc_mlir.pipelines.linalg.base.lowering import LoweredTensor, Lowering, lowers
from pyc_mlir.pipelines.linalg.base.structured import (
    PARALLEL,
    REDUCTION,
    Body,
    drop_dims,
    fill,
    generic,
    pointwise,
    reshape,
    structured,
)
from pyc_mlir.pipelines.linalg.ops.elementwise import ONE, broadcast_dims
from pyc_mlir.pipelines.linalg.scalar import scalar


def multiply_add(dtype: np.dtype) -> Body:
    """``acc + lhs * rhs`` in the accumulator's type."""
    wide = accumulator(dtype)

    def body(lhs: ir.Value, rhs: ir.Value, acc: ir.Value) -> Sequence[ir.Value]:
        product = scalar.combine("mul", wide)(scalar.widen(lhs, dtype), scalar.widen(rhs, dtype))
        return [scalar.combine("add", wide)(acc, product)]

    return body


def rounded(lowering: Lowering, x: LoweredTensor, dtype: np.dtype) -> LoweredTensor:
    """Return an accumulator tensor in its operands' element type."""
    if x.dtype == dtype:
        return x
    loops = range(x.rank)
    return pointwise(lowering, [(x, loops)], x.dims, dtype, lambda v, _: scalar.narrow(v, dtype))


@lowers("matmul")
def matmul(lowering: Lowering, name: str, lhs: LoweredTensor, rhs: LoweredTensor) -> LoweredTensor:
    """Return operands of rank 2 or more."""
    depth = lowering.require_equal(lhs.dims[-1], rhs.dims[-2], "inner dimensions of a matmul")
    lhs = lowering.with_dims(lhs, [*lhs.dims[:-1], depth])
    rhs = lowering.with_dims(rhs, [*rhs.dims[:-2], depth, rhs.dims[-1]])
    if rhs.rank > 2 and all(d == ONE for d in rhs.dims[:-2]):
        rhs = drop_dims(lowering, rhs, range(rhs.rank - 2))
    if rhs.rank == 2 and lhs.rank > 2:
        rows = product(lhs.dims[:-1])
        flat = _matmul(lowering, reshape(lowering, lhs, [rows, depth]), rhs)
        return reshape(lowering, flat, [*lhs.dims[:-1], rhs.dims[-1]])
    return _matmul(lowering, lhs, rhs)


def _matmul(lowering: Lowering, lhs: LoweredTensor, rhs: LoweredTensor) -> LoweredTensor:
    """Dispatch on the batch dimensions."""
    batch = broadcast_dims(lowering, [lhs.dims[:-2], rhs.dims[:-2]])
    dims = [*batch, lhs.dims[-2], rhs.dims[-1]]
    dtype = lhs.dtype
    zero = fill(lowering, dims, accumulator(dtype), 0)
    if LoweredDim(0) in (*lhs.dims, *rhs.dims):
        # Nothing to add up. With other dimensions that are dynamic, IREE divides by this one.
        return rounded(lowering, zero, dtype)
    same = lhs.dims[:-2] == rhs.dims[:-2]
    if same and len(batch) <= 1:
        name = "linalg.batch_matmul" if batch else "linalg.matmul"
        body = multiply_add(dtype)
        (out,) = structured(lowering, name, [lhs, rhs], [zero], {}, body)
    else:
        out = _contraction(lowering, lhs, rhs, zero, batch)
    return rounded(lowering, out, dtype)


def _contraction(
    lowering: Lowering,
    lhs: LoweredTensor,
    rhs: LoweredTensor,
    zero: LoweredTensor,
    batch: Sequence[LoweredDim],
) -> LoweredTensor:
    """Emit loops over the batch, m, n, k; operands drop stretched batch dimensions."""
    n_batch = len(batch)
    m, n, k = n_batch, n_batch + 1, n_batch + 2
    left, left_map = _drop_stretched(lowering, lhs, batch)
    right, right_map = _drop_stretched(lowering, rhs, batch)
    maps = [(*left_map, m, k), (*right_map, k, n), (*range(n_batch), m, n)]
    iterators = [PARALLEL] * (n_batch + 2) + [REDUCTION]
    body = multiply_add(lhs.dtype)
    (out,) = generic(lowering, [left, right], [zero], maps, iterators, body)
    return out


def _drop_stretched(
    lowering: Lowering, x: LoweredTensor, batch: Sequence[LoweredDim]
) -> tuple[LoweredTensor, list[int]]:
    offset = len(batch) - (x.rank - 2)
    leading = x.dims[:-2]
    dropped = [i for i, d in enumerate(leading) if d == ONE and batch[offset + i] != ONE]
    kept = [offset + i for i in range(len(leading)) if i not in dropped]
    return (drop_dims(lowering, x, dropped) if dropped else x), kept
