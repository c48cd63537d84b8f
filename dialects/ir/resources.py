"""Large constants as MLIR resources, and the way back that the bindings lack.

A resource is named by the hash of its bytes, so equal constants are stored once in a context. The
bindings can make a resource but not read one: arrays made here are remembered for the life of
their context; those that came in with a file are read from MLIR's own text form.
"""

import hashlib
import re
import weakref
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import from_mlir, to_mlir
from pyc_mlir.dialects.types import TensorType

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
    """Return the bytes of a C-contiguous array, not copied."""
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
