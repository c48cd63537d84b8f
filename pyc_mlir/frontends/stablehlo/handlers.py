"""Handlers of StableHLO's operations without regions: attributes in, pyc ops out.

Handlers get the operands as a `Call` and the operation as an `StablehloOp`, and return the result
or a tuple of results.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.frontends.hlo import elementwise, movement
from pyc_mlir.frontends.hlo.call import Call
from pyc_mlir.frontends.hlo.contraction import (
    ConvDimensions,
    Convolution,
    DotDims,
    convolution,
    dot_general,
)
from pyc_mlir.frontends.hlo.elementwise import POINTWISE
from pyc_mlir.frontends.hlo.indexing import GatherDims, gather, with_vector_last
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import reshape_to
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSizes, Untracked
from pyc_mlir.frontends.stablehlo.op import StablehloOp

Handler = Callable[[Call, StablehloOp], Any]
HANDLERS: dict[str, Handler] = {}

# StableHLO's name -> the elementwise operation of the same meaning, as jaxprs call it.
_ELEMENTWISE = {
    "abs": "abs", "add": "add", "and": "and", "cbrt": "cbrt", "ceil": "ceil", "clamp": "clamp",
    "cosine": "cos", "divide": "div", "exponential": "exp", "exponential_minus_one": "expm1",
    "floor": "floor", "is_finite": "is_finite", "log": "log", "log_plus_one": "log1p",
    "logistic": "logistic", "maximum": "max", "minimum": "min", "multiply": "mul", "negate": "neg",
    "atan2": "atan2", "not": "not", "or": "or", "power": "pow", "remainder": "rem",
    "round_nearest_afz": "round_away", "round_nearest_even": "round_even", "rsqrt": "rsqrt",
    "sign": "sign", "sine": "sin", "sqrt": "sqrt", "subtract": "sub", "tan": "tan", "tanh": "tanh",
    "xor": "xor", "shift_left": "shift_left", "shift_right_logical": "shift_right_logical",
    "shift_right_arithmetic": "shift_right_arithmetic", "chlo.erf_inv": "erf_inv",
    "chlo.acosh": "acosh", "chlo.asinh": "asinh", "chlo.atanh": "atanh", "chlo.cosh": "cosh",
    "chlo.erf": "erf", "chlo.erfc": "erfc", "chlo.sinh": "sinh", "chlo.tan": "tan",
    "chlo.square": "square",
}  # fmt: skip


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Enter a handler under the names of the operations that it imports."""

    def enter(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return enter


def _pointwise(name: str) -> Handler:
    return lambda call, op: call.pointwise(POINTWISE[name])


HANDLERS.update({name: _pointwise(of) for name, of in _ELEMENTWISE.items()})


@handles("compare")
def compare(call: Call, op: StablehloOp) -> Any:
    """out = x <direction> y."""
    total = op.enum("compare_type") == "TOTALORDER"
    compute = elementwise.compare_total if total else elementwise.compare
    return call.pointwise(partial(compute, predicate=op.enum("comparison_direction").lower()))


@handles("bitcast_convert")
def bitcast_convert(call: Call, op: StablehloOp) -> Any:
    """Return the bits of x in the element type of the result."""
    return call.pointwise(partial(elementwise.bitcast, dtype=op.type().dtype))


@handles("convert")
def convert(call: Call, op: StablehloOp) -> Any:
    """x in the element type of the result."""
    return call.pointwise(partial(elementwise.convert, dtype=op.type().dtype))


@handles("reduce_precision")
def reduce_precision(call: Call, op: StablehloOp) -> Any:
    """Round to the bits of a narrower type that PyC has."""
    bits = {(5, 10): "f16", (8, 7): "bf16", (8, 23): "f32", (11, 52): "f64"}
    found = bits.get((op.integer("exponent_bits"), op.integer("mantissa_bits")))
    if found is None:
        raise unsupported("exponent_bits and mantissa_bits: expected those of a type")
    return call.b.convert(call.b.convert(call.x(), DTYPES[found]), call.type().dtype)


@handles("select")
def select(call: Call, op: StablehloOp) -> Any:
    """x where the predicate, else y."""
    return call.pointwise(lambda b, which, yes, no: b.select(which, yes, no))


@handles("optimization_barrier")
def identity(call: Call, op: StablehloOp) -> Any:
    """Return the operands."""
    return tuple(call.all())


@handles("dot_general")
def dot(call: Call, op: StablehloOp) -> Any:
    """Build one matmul between transposes and reshapes."""
    d = op.numbers("dot_dimension_numbers", "DotDimensionNumbers")
    dims = DotDims(
        tuple(d.lhs_contracting_dimensions),
        tuple(d.rhs_contracting_dimensions),
        tuple(d.lhs_batching_dimensions),
        tuple(d.rhs_batching_dimensions),
    )
    return dot_general(call.b, call.x(0), call.x(1), dims, op.type().dtype)


@handles("dot")
def plain_dot(call: Call, op: StablehloOp) -> Any:
    """Multiply matrices or vectors: contract the last dimension with the first."""
    dims = DotDims((call.type(0).rank - 1,), (0,), (), ())
    return dot_general(call.b, call.x(0), call.x(1), dims, op.type().dtype)


@handles("convolution")
def conv(call: Call, op: StablehloOp) -> Any:
    """pyc.conv2d."""
    d = op.numbers("dimension_numbers", "ConvDimensionNumbers")
    spatial = tuple(d.input_spatial_dimensions)
    ones = (1,) * len(spatial)
    parameters = Convolution(
        ConvDimensions(d.input_batch_dimension, d.input_feature_dimension, spatial),
        ConvDimensions(
            d.kernel_output_feature_dimension,
            d.kernel_input_feature_dimension,
            tuple(d.kernel_spatial_dimensions),
        ),
        ConvDimensions(
            d.output_batch_dimension, d.output_feature_dimension, tuple(d.output_spatial_dimensions)
        ),
        strides=op.ints("window_strides", ones),
        pads=op.pairs("padding", len(spatial)),
        image_dilation=op.ints("lhs_dilation", ones),
        weight_dilation=op.ints("rhs_dilation", ones),
        groups=op.integer("feature_group_count", 1),
        batch_groups=op.integer("batch_group_count", 1),
        reversal=op.flags("window_reversal"),
    )
    return convolution(call.b, call.x(0), call.x(1), parameters, op.type().dtype)


@handles("broadcast_in_dim")
def broadcast_in_dim(call: Call, op: StablehloOp) -> Any:
    """x in another shape; dimension i of x is dimension ``broadcast_dimensions[i]`` there."""
    dims = op.ints("broadcast_dimensions")
    return movement.broadcast_in_dim(call.b, call.x(), op.shape(), dims)


def _extents(call: Call, index: int) -> tuple[Extent, ...]:
    """Return a shape that an operand holds, static or in terms of dynamic dimensions."""
    value = call.operands[index]
    if isinstance(value, SymbolicSizes):
        if not call.emits:
            raise Untracked("shape")
        return tuple(value.entries.reshape(-1))
    return tuple(int(v) for v in call.known(index, "a shape").reshape(-1))


@handles("dynamic_broadcast_in_dim")
def dynamic_broadcast_in_dim(call: Call, op: StablehloOp) -> Any:
    """Broadcast as broadcast_in_dim, into the shape that operand 1 holds."""
    dims = op.ints("broadcast_dimensions")
    return movement.broadcast_in_dim(call.b, call.x(), _extents(call, 1), dims)


@handles("reshape")
def reshape(call: Call, op: StablehloOp) -> Any:
    """Reshape x to the shape of the result."""
    return reshape_to(call.b, call.x(), op.shape())


@handles("dynamic_reshape")
def dynamic_reshape(call: Call, op: StablehloOp) -> Any:
    """Reshape x to the shape that operand 1 holds."""
    return reshape_to(call.b, call.x(), _extents(call, 1))


@handles("transpose")
def transpose(call: Call, op: StablehloOp) -> Any:
    """x with its dimensions in another order."""
    return movement.transposed(call.b, call.x(), op.ints("permutation"))


@handles("reverse")
def reverse(call: Call, op: StablehloOp) -> Any:
    """x backwards."""
    return movement.reverse(call.b, call.x(), op.ints("dimensions"))


@handles("concatenate")
def concatenate(call: Call, op: StablehloOp) -> Any:
    """Join the operands one after the other."""
    return movement.concatenate(call, op.integer("dimension"))


@handles("slice")
def slice_(call: Call, op: StablehloOp) -> Any:
    """x[start:limit:stride]; a limit that is the whole dimension stays so if that is dynamic."""
    names = ("start_indices", "limit_indices", "strides")
    return movement.slice_(call.b, call.x(), *(op.ints(n) for n in names))


@handles("dynamic_slice")
def dynamic_slice(call: Call, op: StablehloOp) -> Any:
    """Take a slice of known sizes at computed places."""
    return movement.dynamic_slice(call, op.ints("slice_sizes"))


@handles("dynamic_update_slice")
def dynamic_update_slice(call: Call, op: StablehloOp) -> Any:
    """x with a box at computed places replaced."""
    return movement.dynamic_update_slice(call)


@handles("pad")
def pad(call: Call, op: StablehloOp) -> Any:
    """Insert values around and between the elements; negative pads cut."""
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    return movement.pad(call, *(op.ints(n) for n in names))


@handles("iota")
def iota(call: Call, op: StablehloOp) -> Any:
    """0, 1, 2, ... along a dimension."""
    return movement.iota(call.b, op.shape(), op.integer("iota_dimension"), op.type().dtype)


@handles("dynamic_iota")
def dynamic_iota(call: Call, op: StablehloOp) -> Any:
    """Build an iota of the shape that operand 0 holds."""
    shape = _extents(call, 0)
    return movement.iota(call.b, shape, op.integer("iota_dimension"), op.type().dtype)


@handles("gather")
def gather_(call: Call, op: StablehloOp) -> Any:
    """Gather slices at computed places, which are clamped."""
    d = op.numbers("dimension_numbers", "GatherDimensionNumbers")
    dims = GatherDims(
        tuple(d.offset_dims),
        tuple(d.collapsed_slice_dims),
        tuple(d.start_index_map),
        tuple(d.operand_batching_dims),
        tuple(d.start_indices_batching_dims),
    )
    indices = with_vector_last(call.b, call.x(1), d.index_vector_dim)
    given = Call(call.b, [call.operands[0], indices], lambda i: indices if i else call.x(0))
    return gather(given, dims, op.ints("slice_sizes"))


@handles("get_dimension_size")
def get_dimension_size(call: Call, op: StablehloOp) -> Any:
    """Return the size of a dimension as a scalar; the importer follows dynamic ones."""
    size = call.dims()[op.integer("dimension")]
    if isinstance(size, int):
        return call.b.constant(np.array(size, np.int32))
    return call.b.cast(call.b.extent(size), dtype=DTYPES["i32"])
