"""Tensors from nothing or from shapes: Constant, Shape, Size, Range and their kin."""

from typing import Any

import numpy as np
import onnx

from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.types import I64
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import expand_to, product, vector
from pyc_mlir.frontends.importing.sizes import (
    SymbolicSize,
    SymbolicSizes,
    Untracked,
    quotient,
    sizes,
)
from pyc_mlir.frontends.onnx.shared.handler import MAX_WRITTEN, OnnxNode, node, pyc_dtype

_NUMBERS = {
    "value_float": np.float32, "value_floats": np.float32,
    "value_int": np.int64, "value_ints": np.int64,
}  # fmt: skip


@node("Constant")
def constant(n: OnnxNode) -> Any:
    """Return the value of whichever attribute is present."""
    (name,) = n.attributes()
    if name in _NUMBERS:
        return np.array(n.attr(name), _NUMBERS[name])
    value = n.attr(name)
    if name != "value" or value.data_type == onnx.TensorProto.STRING:
        raise unsupported(
            f"`{name}`: expected a dense tensor of numbers", ReasonCode.UNSUPPORTED_DTYPE
        )
    return onnx.numpy_helper.to_array(value)


@node("Shape")
def shape(n: OnnxNode) -> Any:
    """Return the sizes of x from `start` to `end`, known at import."""
    dims = n.dims()
    return sizes(dims[slice(n.attr("start", 0), n.attr("end", len(dims)))])


@node("Size")
def size(n: OnnxNode) -> Any:
    """Return the number of elements of x."""
    total = product(n.dims())
    if isinstance(total, SymbolicSize):
        return SymbolicSizes(np.array(total, object))
    return np.array(total, np.int64)


@node("ConstantOfShape")
def constant_of_shape(n: OnnxNode) -> Any:
    """Build a tensor full of one value; 0.0 as f32 by default."""
    given = n.attr("value")
    value = np.float32(0) if given is None else onnx.numpy_helper.to_array(given).reshape(())
    return expand_to(n.b, n.b.constant(np.asarray(value)), n.extents(0, "shape"))


@node("Range")
def range_node(n: OnnxNode) -> Any:
    """start, start + delta, ... up to but not including limit."""
    if any(isinstance(v, SymbolicSizes) for v in n.operands):
        return _dynamic_range(n)
    start, limit, delta = (n.scalar(i, name) for i, name in enumerate(("start", "limit", "delta")))
    steps = (limit - start) / delta if delta else np.nan
    if not -np.inf < steps <= MAX_WRITTEN:
        raise unsupported(
            f"a range from {start} to {limit} by {delta}: expected one of at most {MAX_WRITTEN} "
            "elements"
        )
    count = max(0, int(np.ceil(steps)))
    return (start + np.arange(count) * delta).astype(n.known(0, "start").dtype)


def _dynamic_range(n: OnnxNode) -> Any:
    """Build a range whose length is a dynamic size: a scaled and shifted iota."""
    (start,), (limit,), (delta,) = (n.extents(i, "limits of the range") for i in range(3))
    try:
        count = quotient(limit - start, delta)
    except Untracked as error:
        raise unsupported(
            f"a range from {start} to {limit} by {delta}: no length ({error})"
        ) from None
    b = n.b
    ramp = b.mul(vector(b, count), b.extent(delta))
    out = b.add(ramp, b.extent(start))
    dtype = n.type(1).dtype
    return out if dtype == I64 else b.cast(out, dtype=dtype)


@node("EyeLike")
def eye_like(n: OnnxNode) -> Any:
    """Build ones at column = row + k, of the shape of x."""
    b = n.b
    dtype = pyc_dtype(n.attr("dtype")) if n.attr("dtype") else n.type().dtype
    shifted = b.add(b.iota_like(n.x(), 0), np.array(n.attr("k", 0), np.int64))
    return b.cast(b.compare(b.iota_like(n.x(), 1), shifted, predicate="eq"), dtype=dtype)


@node("OptionalHasElement")
def has_element(n: OnnxNode) -> Any:
    """Return True for an input that is given, as every argument of a program is."""
    return n.b.constant(np.array(n.has(0)))


@node("OptionalGetElement")
def get_element(n: OnnxNode) -> Any:
    """out = x: an optional argument of a program is given."""
    return n.x()
