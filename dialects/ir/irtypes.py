"""Between MLIR's types and ours: `from_mlir` and `to_mlir`. Both need an active context."""

import numpy as np

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.types import (
    BOOL,
    DTYPES,
    MAX_BYTES,
    SIGNED,
    UNSIGNED,
    TensorType,
    dtype_name,
    storage,
)

_SUPPORTED = ", ".join(sorted(DTYPES))


def element_type(dtype: np.dtype) -> ir.Type:
    """Return MLIR's element type of a numpy dtype. Raises VerificationError if PyC has none."""
    name = dtype_name(dtype)
    if name not in DTYPES:
        raise VerificationError(f"element type: expected one of {_SUPPORTED}, got {dtype}")
    if name == "bf16":
        return ir.BF16Type.get()
    if name.startswith("f"):
        return {"f16": ir.F16Type, "f32": ir.F32Type, "f64": ir.F64Type}[name].get()
    if dtype in UNSIGNED:
        return ir.IntegerType.get_unsigned(8 * dtype.itemsize)
    return ir.IntegerType.get_signless(int(name[1:]))


def storage_type(dtype: np.dtype) -> ir.Type:
    """Return the element type under which linalg and IREE hold `dtype`: integers without a sign."""
    return element_type(storage(dtype))


def to_mlir(type_: TensorType) -> ir.RankedTensorType:
    """Return the MLIR type of `type_`. Raises VerificationError for one that no memory holds."""
    _require_fits(type_, "value")
    dynamic = ir.ShapedType.get_dynamic_size()
    dims = [dynamic if d is None else d for d in type_.shape]
    return ir.RankedTensorType.get(dims, element_type(type_.dtype), loc=ir.Location.unknown())


def stored_as(type_: ir.Type) -> ir.Type:
    """Return the type that holds a tensor of unsigned integers; other types as they are."""
    if not isinstance(type_, ir.RankedTensorType):
        return type_
    element = type_.element_type
    if not isinstance(element, ir.IntegerType) or not element.is_unsigned:
        return type_
    signless = ir.IntegerType.get_signless(element.width)
    return ir.RankedTensorType.get(type_.shape, signless, loc=ir.Location.unknown())


_FLOATS: dict[type, np.dtype] = {
    ir.F64Type: DTYPES["f64"],
    ir.F32Type: DTYPES["f32"],
    ir.F16Type: DTYPES["f16"],
    ir.BF16Type: DTYPES["bf16"],
}
_SIGNLESS = {1: BOOL, **{8 * d.itemsize: d for d in SIGNED}}
_UNSIGNED = {8 * d.itemsize: d for d in UNSIGNED}


def dtype_of(element: ir.Type, what: str = "element type") -> np.dtype:
    """Return the numpy dtype of an MLIR element type. Raises VerificationError for others."""
    found = _FLOATS.get(type(element))
    if found is None and isinstance(element, ir.IntegerType) and not element.is_signed:
        found = (_UNSIGNED if element.is_unsigned else _SIGNLESS).get(element.width)
    if found is None:
        raise VerificationError(f"{what}: expected an element type in {_SUPPORTED}, got {element}")
    return found


def from_mlir(type_: ir.Type, what: str = "value") -> TensorType:
    """Return our view of a ranked tensor type.

    Raises VerificationError, naming `what`, for others, and for one that no memory holds.
    """
    if not isinstance(type_, ir.RankedTensorType):
        raise VerificationError(f"{what}: expected a ranked tensor, got {type_}")
    if type_.encoding is not None:
        raise VerificationError(f"{what}: expected a tensor without encoding, got {type_}")
    dtype = dtype_of(type_.element_type, what)
    shape = type_.shape
    if type_.has_static_shape:
        found = TensorType(tuple(shape), dtype)
    else:
        dynamic = ir.ShapedType.get_dynamic_size()
        found = TensorType(tuple(None if d == dynamic else d for d in shape), dtype)
    _require_fits(found, what)
    return found


def _require_fits(type_: TensorType, what: str) -> None:
    if not type_.fits:
        raise VerificationError(
            f"{what}: expected a tensor of at most {MAX_BYTES} bytes, got {str(type_)[:200]}"
        )
