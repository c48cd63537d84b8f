"""XLA's operations that jaxprs and StableHLO state alike: parameters in, pyc ops out.

    @operation("transpose")
    def transpose(call: Call, p: Parameters) -> Any: ...

`call` holds the operands, `p` the parameters by the names that jaxprs give them; StableHLO's
attributes are read under these names (stablehlo/operations.py). A handler returns the result, or a
tuple of results.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.types import DTYPES, dtype_name
from pyc_mlir.frontends.hlo import movement, reduction
from pyc_mlir.frontends.hlo.call import Call
from pyc_mlir.frontends.hlo.contraction import (
    ConvDimensions,
    Convolution,
    DotDims,
    convolution,
    dot_general,
)
from pyc_mlir.frontends.hlo.elementwise import POINTWISE, bitcast, convert
from pyc_mlir.frontends.hlo.indexing import FILL, SliceDims, gather, with_vector_last
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import reshape_to

Parameters = Mapping[str, Any]
Operation = Callable[[Call, Parameters], Any]
# Types that floats are rounded to, by bits of exponent and mantissa.
_PRECISIONS = {(5, 10): "f16", (8, 7): "bf16", (8, 23): "f32", (11, 52): "f64"}


def pointwise(name: str) -> Operation:
    """Return the handler of an elementwise operation."""
    compute = POINTWISE[name]

    def handler(call: Call, p: Parameters) -> Any:
        out = call.pointwise(compute)
        wanted = p.get("out_dtype")
        return out if wanted is None else call.b.convert(out, np.dtype(wanted))

    return handler


OPERATIONS: dict[str, Operation] = {name: pointwise(name) for name in POINTWISE}


def operation(*names: str) -> Callable[[Operation], Operation]:
    """Enter a handler under the names of the primitives that it imports."""

    def enter(handler: Operation) -> Operation:
        OPERATIONS.update(dict.fromkeys(names, handler))
        return handler

    return enter


def known_dtype(value: Any) -> np.dtype:
    """Return an element type as numpy's. Raises PycError (UNSUPPORTED_DTYPE)."""
    dtype = np.dtype(value)
    if dtype_name(dtype) not in DTYPES:
        why = f"element type {dtype}: expected one of {', '.join(DTYPES)}"
        raise unsupported(why, ReasonCode.UNSUPPORTED_DTYPE)
    return dtype


def ints(values: Any) -> tuple[int, ...]:
    """Return integers of any type as Python's."""
    return tuple(int(v) for v in values)


def _made(call: Call, p: Parameters) -> np.dtype:
    """Return the element type of a product."""
    wanted = p["preferred_element_type"]
    return call.type(0).dtype if wanted is None else known_dtype(wanted)


@operation("optimization_barrier")
def identity(call: Call, p: Parameters) -> Any:
    """Return the operands."""
    return tuple(call.all())


@operation("convert_element_type")
def convert_element_type(call: Call, p: Parameters) -> Any:
    """x as `new_dtype`."""
    return call.pointwise(partial(convert, dtype=known_dtype(p["new_dtype"])))


@operation("bitcast_convert_type")
def bitcast_convert_type(call: Call, p: Parameters) -> Any:
    """Return the bits of x read as `new_dtype`."""
    return call.pointwise(partial(bitcast, dtype=known_dtype(p["new_dtype"])))


@operation("reduce_precision")
def reduce_precision(call: Call, p: Parameters) -> Any:
    """Round to the bits of a narrower type that PyC has."""
    bits = p["exponent_bits"], p["mantissa_bits"]
    if bits not in _PRECISIONS:
        raise unsupported(f"{bits[0]} exponent and {bits[1]} mantissa bits: expected a type's")
    own, b = call.type().dtype, call.b
    return b.convert(b.convert(call.x(), DTYPES[_PRECISIONS[bits]]), own)


@operation("dot_general")
def dot(call: Call, p: Parameters) -> Any:
    """Build one matmul between transposes and reshapes."""
    (contract, batch) = p["dimension_numbers"]
    dims = DotDims(*map(ints, (*contract, *batch)))
    return dot_general(call.b, call.x(0), call.x(1), dims, _made(call, p))


@operation("conv_general_dilated")
def conv(call: Call, p: Parameters) -> Any:
    """pyc.conv2d."""
    dims = [ConvDimensions(s[0], s[1], tuple(s[2:])) for s in p["dimension_numbers"]]
    ones = (1,) * len(dims[0].spatial)
    parameters = Convolution(
        *dims,
        strides=p.get("window_strides", ones),
        pads=p.get("padding", ((0, 0),) * len(ones)),
        image_dilation=p.get("lhs_dilation", ones),
        weight_dilation=p.get("rhs_dilation", ones),
        groups=p.get("feature_group_count", 1),
        batch_groups=p.get("batch_group_count", 1),
        reversal=p.get("window_reversal", ()),
    )
    return convolution(call.b, call.x(0), call.x(1), parameters, _made(call, p))


@operation("broadcast_in_dim")
def broadcast_in_dim(call: Call, p: Parameters) -> Any:
    """x in another shape; dimension i of x is dimension ``broadcast_dimensions[i]`` there."""
    dims = ints(p["broadcast_dimensions"])
    return movement.broadcast_in_dim(call.b, call.x(), p["shape"], dims)


@operation("reshape")
def reshape(call: Call, p: Parameters) -> Any:
    """Reshape x, its dimensions put in the order `dimensions` first."""
    order = p.get("dimensions") or range(len(call.dims()))
    return reshape_to(call.b, movement.transposed(call.b, call.x(), ints(order)), p["new_sizes"])


@operation("transpose")
def transpose(call: Call, p: Parameters) -> Any:
    """x with its dimensions in another order."""
    return movement.transposed(call.b, call.x(), ints(p["permutation"]))


@operation("rev")
def rev(call: Call, p: Parameters) -> Any:
    """x backwards."""
    return movement.reverse(call.b, call.x(), ints(p["dimensions"]))


@operation("concatenate")
def concatenate(call: Call, p: Parameters) -> Any:
    """Join the operands one after the other."""
    return movement.concatenate(call, p["dimension"])


@operation("dynamic_slice")
def dynamic_slice(call: Call, p: Parameters) -> Any:
    """Take a slice of known sizes at computed places."""
    return movement.dynamic_slice(call, p["slice_sizes"])


@operation("dynamic_update_slice")
def dynamic_update_slice(call: Call, p: Parameters) -> Any:
    """x with a box at computed places replaced."""
    return movement.dynamic_update_slice(call)


@operation("pad")
def pad(call: Call, p: Parameters) -> Any:
    """Insert values around and between the elements; negative pads cut."""
    low, high, interior = zip(*p["padding_config"], strict=True) if call.dims() else ((), (), ())
    return movement.pad(call, ints(low), ints(high), ints(interior))


@operation("iota")
def iota(call: Call, p: Parameters) -> Any:
    """0, 1, 2, ... along a dimension."""
    return movement.iota(call.b, p["shape"], p["dimension"], known_dtype(p["dtype"]))


@operation("gather")
def gather_(call: Call, p: Parameters) -> Any:
    """Gather slices at computed places; those of StableHLO are clamped."""
    d, b = p["dimension_numbers"], call.b
    dims = SliceDims(
        tuple(d.offset_dims),
        tuple(d.collapsed_slice_dims),
        tuple(d.start_index_map),
        tuple(d.operand_batching_dims),
        tuple(d.start_indices_batching_dims),
    )
    at, mode = getattr(d, "index_vector_dim", None), p.get("mode")
    if at is not None:
        x, indices = call.x(0), with_vector_last(b, call.x(1), at)
        call = Call(b, [call.operands[0], indices], lambda i: indices if i else x)
    fill = mode is not None and mode.name == "FILL_OR_DROP"
    return gather(call, dims, p["slice_sizes"], FILL if fill else "clip", p.get("fill_value"))


def window_of(p: Parameters) -> reduction.HloWindow:
    """Return the window that slides over every dimension."""
    sizes = p["window_dimensions"]
    return reduction.HloWindow(
        sizes,
        p.get("window_strides", (1,) * len(sizes)),
        tuple((int(lo), int(hi)) for lo, hi in p.get("padding", ((0, 0),) * len(sizes))),
        tuple(p.get("base_dilation", ())),
        tuple(p.get("window_dilation", ())),
    )
