"""Op parameters as MLIR attributes and back: one encoding for each Python type.

int <-> i64, float <-> f64, bool <-> i1, str <-> string, tuple[int, ...] <-> array<i64>,
tuple[float, ...] <-> array<f64>, np.dtype <-> type, np.ndarray <-> elements (a resource above
`INLINE_BYTES`, printed whole).

A resource is named by the hash of its bytes, so equal constants are stored once in a context. The
bindings can make a resource but not read one: arrays made here are remembered for the life of
their context; those that came in with a file are read from MLIR's own text form."""

import hashlib
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import dtype_of, element_type, from_mlir, to_mlir
from pyc_mlir.dialects.opdef import OPS, OpDef, Param
from pyc_mlir.dialects.types import BOOL, DTYPES, TensorType

_blobs: weakref.WeakKeyDictionary[ir.Context, dict[str, np.ndarray]] = weakref.WeakKeyDictionary()
# The attributes made in each context, as capsules: these do not keep their context alive.
_made: weakref.WeakKeyDictionary[ir.Context, dict[str, Any]] = weakref.WeakKeyDictionary()
_digests: weakref.WeakKeyDictionary[ir.Context, dict[str, bytes]] = weakref.WeakKeyDictionary()
_KEY = re.compile(r"^dense_resource<(.+)> : ")
_ALIGNMENT_BYTES = 4


def resource_attr(array: np.ndarray) -> ir.Attribute:
    """Return a resource attribute with the contents of a C-contiguous `array`; one for each."""
    type_ = to_mlir(TensorType(array.shape, array.dtype))
    digest = hashlib.blake2b(_raw(array).data, digest_size=8)
    digest.update(str(type_).encode())
    name = f"pyc_{digest.hexdigest()}"
    made = _made.setdefault(ir.Context.current, {})
    if name in made:
        return ir.Attribute._CAPICreate(made[name])
    frozen = array.copy()
    frozen.flags.writeable = False
    attr = ir.DenseResourceElementsAttr.get_from_buffer(
        _raw(frozen).data, name, type_, max(_ALIGNMENT_BYTES, array.dtype.itemsize)
    )
    _blobs.setdefault(ir.Context.current, {})[resource_key(attr)] = frozen
    made[name] = attr._CAPIPtr
    return attr


def _raw(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def as_resource(attr: ir.Attribute) -> ir.DenseResourceElementsAttr | None:
    """Return the attribute as a resource, or None. The bindings hand resources out untyped."""
    try:
        return ir.DenseResourceElementsAttr(attr)
    except ValueError:
        return None


def resource_key(attr: ir.Attribute) -> str:
    """Return the name under which the context holds the resource."""
    match = _KEY.match(str(attr))
    assert match, str(attr)
    return match.group(1).strip('"')


def resource_digest(attr: ir.DenseResourceElementsAttr) -> bytes:
    """Return a hash of the contents, computed once in a context. Raises as `resource_array`."""
    known, key = _digests.setdefault(attr.context, {}), resource_key(attr)
    if key not in known:
        known[key] = content_digest(resource_array(attr))
    return known[key]


def content_digest(array: np.ndarray) -> bytes:
    """Return a hash of an array's bytes in row-major order."""
    return hashlib.blake2b(_raw(np.ascontiguousarray(array)).data).digest()


def resource_array(attr: ir.DenseResourceElementsAttr) -> np.ndarray:
    """Return the contents of a resource, read-only.

    Raises VerificationError if the file lacks them.
    """
    table = _blobs.setdefault(attr.context, {})
    key = resource_key(attr)
    if key not in table:
        table[key] = _read_from_text(attr, key)
    return table[key]


def _read_from_text(attr: ir.DenseResourceElementsAttr, key: str) -> np.ndarray:
    """Print a module that holds only this resource and decode its hexadecimal blob."""
    type_ = from_mlir(attr.type, "value")
    if not type_.is_static:
        raise VerificationError(f"value: expected a static shape, got {type_}")
    with attr.context, ir.Location.unknown():
        holder = ir.Module.create()
        holder.operation.attributes["pyc.value"] = attr
        text = str(holder)
    match = re.search(r': "0x([0-9A-Fa-f]+)"', text)
    if not match:
        raise VerificationError(f"value: the module has no data for the resource `{key}`")
    data = bytes.fromhex(match.group(1))[_ALIGNMENT_BYTES:]
    if len(data) != type_.nbytes:
        raise VerificationError(
            f"value: resource `{key}`: expected {type_.nbytes} bytes, got {len(data)}"
        )
    return np.frombuffer(data, type_.dtype).reshape([d or 0 for d in type_.shape])


INLINE_BYTES = 1024
_FEW = 256
_BF16 = DTYPES["bf16"]


def definition_of(op: ir.Operation) -> type[OpDef] | None:
    """Return the definition of a pyc op; None for groups, terminators and other dialects."""
    name = op.name
    return OPS.get(name[4:]) if name.startswith("pyc.") else None


def attributes_of(op: ir.Operation) -> list[tuple[str, ir.Attribute]]:
    """Return the attributes of an op by name.

    Raises VerificationError for one that the bindings cannot hand out, as ``array<i24: 0>``.
    """
    try:
        return list(op.attributes.items())
    except TypeError as error:
        raise VerificationError(
            f"{op.location}: {op.name}: expected attributes that MLIR's Python bindings read, "
            f"got: {error}"
        ) from None


def elements_attr(array: np.ndarray) -> ir.Attribute:
    """Return an elements attribute with the contents of `array`, any supported dtype.

    A view that repeats one element (`np.broadcast_to`) is never written out, however large.
    """
    if array.size > 1 and not any(array.strides):
        return _repeated(array)
    array = np.ascontiguousarray(array).reshape(np.shape(array))
    type_ = to_mlir(TensorType(array.shape, array.dtype))
    if array.nbytes > INLINE_BYTES and array.dtype != BOOL and not _is_splat(array):
        return resource_attr(array)
    if array.dtype == _BF16:
        values = array.reshape(-1)[:1] if _is_splat(array) else array.reshape(-1)
        attrs = [ir.FloatAttr.get(type_.element_type, float(v)) for v in values]
        if len(attrs) == 1:
            return ir.DenseElementsAttr.get_splat(type_, attrs[0])
        if not attrs:
            return ir.Attribute.parse(f"dense<> : {type_}")
        return ir.DenseElementsAttr.get(attrs, type_)
    if array.dtype == BOOL:
        return ir.DenseElementsAttr.get(array)
    return ir.DenseElementsAttr.get(array, type=type_.element_type, shape=list(array.shape))


def _repeated(array: np.ndarray) -> ir.Attribute:
    type_ = to_mlir(TensorType(array.shape, array.dtype))
    first = array[(0,) * array.ndim]
    if array.dtype == BOOL:
        return ir.DenseElementsAttr.get_splat(type_, ir.BoolAttr.get(bool(first)))
    if array.dtype == _BF16:
        element = ir.FloatAttr.get(type_.element_type, float(first))
        return ir.DenseElementsAttr.get_splat(type_, element)
    raw = np.array([first], array.dtype)
    return ir.DenseElementsAttr.get(raw, type=type_.element_type, shape=list(array.shape))


def _is_splat(array: np.ndarray) -> bool:
    """Return whether all bytes repeat the first element (NaNs and signed zeros by their bits)."""
    raw = array.reshape(-1).view(np.uint8).reshape(-1, array.dtype.itemsize)
    # Nearly every array that is none differs early.
    few = raw[:_FEW]
    return bool(array.size) and bool((few == few[0]).all()) and bool((raw == raw[0]).all())


def array_of(attr: ir.Attribute) -> np.ndarray:
    """Return the contents of an elements attribute as a numpy array (not to be written to).

    Raises VerificationError when `attr` is no dense elements attribute of a supported type.
    """
    if not isinstance(attr, ir.DenseElementsAttr):
        resource = as_resource(attr)
        if resource is not None:
            return resource_array(resource)
        raise VerificationError(f"value: expected dense elements, got {str(attr)[:60]}")
    type_ = from_mlir(attr.type, "value")
    shape = [d or 0 for d in type_.shape]
    if attr.is_splat and type_.elements:
        # A view of one element: a splat may be far larger than memory.
        element = attr.get_splat_value().value  # type: ignore[attr-defined]
        return np.broadcast_to(np.array(element).astype(type_.dtype), shape)
    if type_.dtype == _BF16:
        return _parse_bf16(str(attr), shape)
    return np.array(attr).reshape(shape).astype(type_.dtype, copy=False)


def _parse_bf16(text: str, shape: list[int]) -> np.ndarray:
    """Read MLIR's text, which is exact: the bindings give no buffer for bf16."""
    body = text[text.index("<") + 1 : text.rindex("> : ")]
    if body.startswith('"0x'):
        flat = np.frombuffer(bytes.fromhex(body[3:-1]), _BF16)
    else:
        words = [w for w in body.replace("[", " ").replace("]", " ").replace(",", " ").split()]
        flat = np.array([_bf16_word(w) for w in words], _BF16)
    return np.broadcast_to(flat.reshape(()), shape) if flat.size == 1 else flat.reshape(shape)


def _bf16_word(word: str) -> Any:
    """Return one printed element: a decimal, or the bits of a NaN or an infinity."""
    if word.startswith("0x"):
        return np.array(int(word, 16), np.uint16).view(_BF16)[()]
    return _BF16.type(float(word))


def encode(value: Any, kind: Any) -> ir.Attribute:
    """Return the attribute that carries a parameter of Python type `kind`."""
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
    if kind == tuple[float, ...]:
        return ir.DenseF64ArrayAttr.get([float(v) for v in value])
    assert kind == tuple[int, ...], kind
    return ir.DenseI64ArrayAttr.get([int(v) for v in value])


_DECODERS: dict[Any, tuple[str, Callable[[Any], Any], tuple[type, ...]]] = {
    bool: ("true or false", lambda a: a.value, (ir.BoolAttr,)),
    int: ("an i64 integer", lambda a: a.value, (ir.IntegerAttr,)),
    float: ("a float", lambda a: a.value, (ir.FloatAttr,)),
    str: ("a string", lambda a: a.value, (ir.StringAttr,)),
    np.dtype: ("an element type", lambda a: dtype_of(a.value), (ir.TypeAttr,)),
    np.ndarray: ("dense elements", array_of, (ir.Attribute,)),
    tuple[int, ...]: ("array<i64: ...>", tuple, (ir.DenseI64ArrayAttr,)),
    tuple[float, ...]: ("array<f64: ...>", tuple, (ir.DenseF64ArrayAttr,)),
}


def decode(attr: ir.Attribute, param: Param) -> Any:
    """Return the Python value of a parameter. Raises VerificationError naming what was expected."""
    expected, read, kinds = _DECODERS[param.kind]
    wrong = not isinstance(attr, kinds)
    wrong |= param.kind is int and (isinstance(attr, ir.BoolAttr) or str(attr.type) != "i64")
    if wrong:
        raise VerificationError(f"`{param.name}`: expected {expected}, got {str(attr)[:60]}")
    return read(attr)


def params_of(definition: type[OpDef], op: ir.Operation) -> dict[str, Any]:
    """Return all parameters of `op`, defaults filled in. Raises VerificationError."""
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
