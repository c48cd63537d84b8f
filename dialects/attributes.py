"""Between op parameters and MLIR attributes: one encoding for each Python type.

int <-> i64, float <-> f64, bool <-> i1, str <-> string, tuple[int, ...] <-> array<i64>,
np.dtype <-> type, np.ndarray <-> elements (a resource above `INLINE_BYTES`, printed whole).
"""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from pyc_mlir.dialects.bindings import ir
from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.irtypes import dtype_of, element_type, from_mlir, to_mlir
from pyc_mlir.dialects.opdef import OpDef, Param
from pyc_mlir.dialects.types import BOOL, TensorType

INLINE_BYTES = 256
_BF16 = np.dtype(ml_dtypes.bfloat16)


def elements_attr(array: np.ndarray) -> ir.Attribute:
    """An elements attribute with the contents of `array`, any supported dtype."""
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    type_ = to_mlir(TensorType(array.shape, array.dtype))
    if array.nbytes > INLINE_BYTES and array.dtype != BOOL:
        digest = hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()
        raw = array.view(np.uint8) if array.dtype == _BF16 else array
        return ir.DenseResourceElementsAttr.get_from_buffer(
            memoryview(raw), f"pyc_{digest}", type_, array.dtype.itemsize
        )
    if array.dtype == BOOL:
        return _bool_elements(array)
    if array.dtype == _BF16:
        return _bf16_elements(array, type_)
    return ir.DenseElementsAttr.get(array, type=type_.element_type, shape=list(array.shape))


def _bool_elements(array: np.ndarray) -> ir.Attribute:
    packed = np.packbits(array.reshape(-1), bitorder="little")
    shape = list(array.shape)
    i1 = element_type(BOOL)
    if array.size and (array.all() or not array.any()):
        type_ = ir.RankedTensorType.get(shape, i1)
        return ir.DenseElementsAttr.get_splat(type_, ir.BoolAttr.get(bool(array.flat[0])))
    return ir.DenseElementsAttr.get(packed, type=i1, shape=shape)


def _bf16_elements(array: np.ndarray, type_: ir.RankedTensorType) -> ir.Attribute:
    values = [ir.FloatAttr.get(type_.element_type, float(v)) for v in array.reshape(-1)]
    return ir.DenseElementsAttr.get(values, type_)


def array_of(attr: ir.Attribute) -> np.ndarray:
    """The contents of an elements attribute as a read-only numpy array.

    Raises VerificationError when `attr` is no dense elements attribute of a supported type.
    """
    if isinstance(attr, ir.DenseResourceElementsAttr):
        return _resource_array(attr)
    if not isinstance(attr, ir.DenseElementsAttr):
        raise VerificationError(f"value: expected dense elements, got {str(attr)[:60]}")
    type_ = from_mlir(attr.type, "value")
    shape = [d or 0 for d in type_.shape]
    if attr.is_splat and type_.elements:
        return np.full(shape, _scalar(attr.get_splat_value(), type_.dtype), type_.dtype)
    if type_.dtype == _BF16:
        return _parse_bf16(attr, shape)
    array = np.array(attr)
    if type_.dtype == BOOL and array.dtype != BOOL:
        array = np.unpackbits(array, bitorder="little")[: math.prod(shape)]
    return array.reshape(shape).astype(type_.dtype, copy=False)


def _parse_bf16(attr: ir.DenseElementsAttr, shape: list[int]) -> np.ndarray:
    """The bindings give no buffer for bf16; widening to f32 in MLIR's text form is exact."""
    flat = np.array([float(attr[i]) for i in range(math.prod(shape))], np.float32)  # type: ignore[index]
    return flat.astype(_BF16).reshape(shape)


def _resource_array(attr: ir.Attribute) -> np.ndarray:
    type_ = from_mlir(attr.type, "value")
    try:
        view = memoryview(attr)  # type: ignore[arg-type]
    except (BufferError, TypeError) as error:
        raise VerificationError(f"value: the resource cannot be read ({error})") from None
    return np.frombuffer(view, type_.dtype).reshape(type_.shape)


def _scalar(attr: ir.Attribute, dtype: np.dtype) -> Any:
    if dtype == BOOL:
        return bool(ir.IntegerAttr(attr).value) if not isinstance(attr, ir.BoolAttr) else attr.value
    return attr.value  # type: ignore[attr-defined]


def encode(value: Any, kind: Any) -> ir.Attribute:
    """The attribute that carries a parameter of Python type `kind`."""
    if kind is bool:
        return ir.BoolAttr.get(bool(value))
    if kind is int:
        return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), int(value))
    if kind is float:
        return ir.FloatAttr.get(ir.F64Type.get(), float(value))
    if kind is str:
        return ir.StringAttr.get(value)
    if kind is np.dtype:
        return ir.TypeAttr.get(element_type(np.dtype(value)))
    if kind is np.ndarray:
        return elements_attr(np.asarray(value))
    assert kind == tuple[int, ...], kind
    return ir.DenseI64ArrayAttr.get([int(v) for v in value])


_DECODERS: dict[Any, tuple[str, Callable[[Any], Any], tuple[type, ...]]] = {
    bool: ("true or false", lambda a: a.value, (ir.BoolAttr,)),
    int: ("an i64 integer", lambda a: a.value, (ir.IntegerAttr,)),
    float: ("a float", lambda a: a.value, (ir.FloatAttr,)),
    str: ("a string", lambda a: a.value, (ir.StringAttr,)),
    np.dtype: ("an element type", lambda a: dtype_of(a.value), (ir.TypeAttr,)),
    np.ndarray: ("dense elements", array_of, (ir.DenseElementsAttr, ir.DenseResourceElementsAttr)),
    tuple[int, ...]: ("array<i64: ...>", tuple, (ir.DenseI64ArrayAttr,)),
}


def decode(attr: ir.Attribute, param: Param) -> Any:
    """The Python value of a parameter. Raises VerificationError naming what was expected."""
    expected, read, kinds = _DECODERS[param.kind]
    wrong = not isinstance(attr, kinds)
    wrong |= param.kind is int and (isinstance(attr, ir.BoolAttr) or str(attr.type) != "i64")
    if wrong:
        raise VerificationError(f"`{param.name}`: expected {expected}, got {str(attr)[:60]}")
    return read(attr)


def params_of(definition: type[OpDef], op: ir.Operation) -> dict[str, Any]:
    """All parameters of `op`, defaults filled in. Raises VerificationError."""
    attributes = op.attributes
    out = {}
    for param in definition.params:
        if param.name in attributes:
            out[param.name] = decode(attributes[param.name], param)
        elif param.is_required:
            raise VerificationError(f"attribute `{param.name}` is missing")
        else:
            out[param.name] = param.default
    return out
