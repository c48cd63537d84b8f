"""Between MLIR's types and ours: `from_mlir` and `to_mlir`. Both need an active context."""

import numpy as np

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.types import DTYPES, MAX_BYTES, TensorType, dtype_name

_SUPPORTED = ", ".join(sorted(DTYPES))


def element_type(dtype: np.dtype) -> ir.Type:
    """MLIR's element type of a numpy dtype. Raises VerificationError if PyC has none."""
    name = dtype_name(dtype)
    if name not in DTYPES:
        raise VerificationError(f"element type: expected one of {_SUPPORTED}, got {dtype}")
    if name == "bf16":
        return ir.BF16Type.get()
    if name.startswith("f"):
        return {"f16": ir.F16Type, "f32": ir.F32Type, "f64": ir.F64Type}[name].get()
    return ir.IntegerType.get_signless(int(name[1:]))


def to_mlir(type_: TensorType) -> ir.RankedTensorType:
    """The MLIR type of `type_`. Raises VerificationError for one that no memory holds."""
    _require_fits(type_, "value")
    dynamic = ir.ShapedType.get_dynamic_size()
    dims = [dynamic if d is None else d for d in type_.shape]
    return ir.RankedTensorType.get(dims, element_type(type_.dtype), loc=ir.Location.unknown())


_FLOATS: dict[type, np.dtype] = {
    ir.F64Type: DTYPES["f64"],
    ir.F32Type: DTYPES["f32"],
    ir.F16Type: DTYPES["f16"],
    ir.BF16Type: DTYPES["bf16"],
}
_INTEGERS = {1: DTYPES["i1"], 8: DTYPES["i8"], 32: DTYPES["i32"], 64: DTYPES["i64"]}


def dtype_of(element: ir.Type, what: str = "element type") -> np.dtype:
    """The numpy dtype of an MLIR element type. Raises VerificationError for others."""
    found = _FLOATS.get(type(element))
    if found is None and isinstance(element, ir.IntegerType) and element.is_signless:
        found = _INTEGERS.get(element.width)
    if found is None:
        raise VerificationError(f"{what}: expected an element type in {_SUPPORTED}, got {element}")
    return found


def from_mlir(type_: ir.Type, what: str = "value") -> TensorType:
    """Our view of a ranked tensor type.

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
