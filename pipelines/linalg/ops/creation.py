"""Constants, index ramps and sizes."""

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import storage_type, to_mlir
from pyc_mlir.dialects.types import I64, TensorType, is_float, is_unsigned
from pyc_mlir.pipelines.linalg.base.dims import LoweredDim, product
from pyc_mlir.pipelines.linalg.base.lowering import LoweredTensor, Lowering, lowers
from pyc_mlir.pipelines.linalg.base.structured import pointwise
from pyc_mlir.pipelines.linalg.scalar import scalar


@lowers("iota")
def iota(
    lowering: Lowering,
    name: str,
    *like: LoweredTensor,
    shape: tuple[int, ...],
    axis: int,
    dtype: np.dtype,
) -> LoweredTensor:
    """Return the loop index, converted."""
    dims = [like[0].dims[i] if d == -1 else LoweredDim(d) for i, d in enumerate(shape)]
    counted = axis % len(shape)
    return pointwise(lowering, [], dims, dtype, lambda _: index_as(loop_index(counted), dtype))


def loop_index(loop: int) -> ir.Value:
    """linalg.index."""
    i64 = ir.IntegerType.get_signless(64)
    return ir.Operation.create(
        "linalg.index",
        results=[ir.IndexType.get()],
        attributes={"dim": ir.IntegerAttr.get(i64, loop)},
    ).result


def index_as(value: ir.Value, dtype: np.dtype) -> ir.Value:
    """Return an index converted to an element type."""
    if not is_float(dtype):
        return scalar.emit("arith.index_cast", value, result=storage_type(dtype))
    integer = scalar.emit("arith.index_cast", value, result=storage_type(I64))
    return scalar.cast(integer, I64, dtype)


def as_index(value: ir.Value, dtype: np.dtype = I64) -> ir.Value:
    """Return an integer of type `dtype` as an index."""
    name = "arith.index_castui" if is_unsigned(dtype) else "arith.index_cast"
    return scalar.emit(name, value, result=ir.IndexType.get())


@lowers("size")
def size(
    lowering: Lowering, name: str, x: LoweredTensor, *, axes: tuple[int, ...]
) -> LoweredTensor:
    """Return the product of sizes, known or computed."""
    total = product(x.dims[a] for a in axes)
    if total.static is not None:
        return lowering.constant(np.array(total.static, np.int64))
    value = scalar.emit("arith.index_cast", lowering.size(total), result=storage_type(I64))
    made = ir.Operation.create(
        "tensor.from_elements", results=[to_mlir(TensorType((), I64))], operands=[value]
    )
    return LoweredTensor(I64, (), made.result)
