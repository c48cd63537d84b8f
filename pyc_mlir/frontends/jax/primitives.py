"""Handlers of JAX's primitives: parameters of an equation in, pyc ops out.

    @primitive("transpose")
    def transpose(call: Call, p: Mapping[str, Any]) -> Any: ...

`call` holds the operands, `p` the equation's parameters, in which symbolic dimensions have become
`Size`s. A handler returns the result, or a tuple of results.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.ops.creation import joined_words, words_of
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
from pyc_mlir.frontends.hlo.elementwise import POINTWISE, bitcast, convert, integer_power
from pyc_mlir.frontends.hlo.indexing import FILL, GatherDims, ScatterDims, gather, scatter
from pyc_mlir.frontends.hlo.ordering import sort, top_k
from pyc_mlir.frontends.hlo.reduction import HloWindow
from pyc_mlir.frontends.importing.builders import NotWrittenOut
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.indexing import linear_indices
from pyc_mlir.frontends.importing.shaping import chain, reshape_to, take
from pyc_mlir.frontends.importing.stated import Ignored

Handler = Callable[[Call, Mapping[str, Any]], Any]
PRIMITIVES: dict[str, Handler] = {}
# So many counters become a constant, as those of keys that are split; more are computed.
_FOLDED_COUNTERS = 64
_PLACE = "where the result lies; PyC has one device"
_ACCURACY = "allows XLA to be less exact than PyC is"
# Parameters of primitives that change no result.
IGNORED: Ignored = {
    **dict.fromkeys(("sharding", "out_sharding", "context_mesh", "unconstrained_dims"), _PLACE),
    **dict.fromkeys(("precision", "accuracy"), _ACCURACY),
    "indices_are_sorted": "a promise that lets XLA be faster",
    "unique_indices": "a promise that lets XLA be faster",
    "is_stable": "PyC's sort is always stable",
    "weak_type": "read while JAX traces",
}


def primitive(*names: str) -> Callable[[Handler], Handler]:
    """Enter a handler under the names of the primitives that it imports."""

    def enter(handler: Handler) -> Handler:
        PRIMITIVES.update(dict.fromkeys(names, handler))
        return handler

    return enter


def _pointwise(name: str) -> Handler:
    compute = POINTWISE[name]

    def handler(call: Call, p: Mapping[str, Any]) -> Any:
        out = call.pointwise(compute)
        wanted = p.get("out_dtype")
        return out if wanted is None else call.b.convert(out, np.dtype(wanted))

    handler.__doc__ = f"The elementwise operation `{name}`."
    return handler


PRIMITIVES.update({name: _pointwise(name) for name in POINTWISE})


@primitive("stop_gradient", "copy", "copy_p", "optimization_barrier", "sharding_constraint")
def identity(call: Call, p: Mapping[str, Any]) -> Any:
    """Return the operands."""
    return tuple(call.all())


@primitive("convert_element_type")
def convert_element_type(call: Call, p: Mapping[str, Any]) -> Any:
    """x as `new_dtype`."""
    return call.pointwise(partial(convert, dtype=_dtype(p["new_dtype"])))


@primitive("reduce_precision")
def reduce_precision(call: Call, p: Mapping[str, Any]) -> Any:
    """Round to the bits of a narrower type that PyC has."""
    bits = {(5, 10): "f16", (8, 7): "bf16", (8, 23): "f32", (11, 52): "f64"}
    found = bits.get((p["exponent_bits"], p["mantissa_bits"]))
    if found is None:
        raise unsupported(f"{p['exponent_bits']} exponent and {p['mantissa_bits']} mantissa bits")
    own, b = call.type().dtype, call.b
    return b.convert(b.convert(call.x(), DTYPES[found]), own)


@primitive("bitcast_convert_type")
def bitcast_convert_type(call: Call, p: Mapping[str, Any]) -> Any:
    """Return the bits of x read as `new_dtype`."""
    return call.pointwise(partial(bitcast, dtype=_dtype(p["new_dtype"])))


@primitive("threefry2x32")
def threefry2x32(call: Call, p: Mapping[str, Any]) -> Any:
    """Encrypt two words of a counter under two words of a key."""
    b, (key0, key1, x0, x1) = call.b, call.all()
    return words_of(b, b.threefry(joined_words(b, x0, x1), joined_words(b, key0, key1)))


@primitive("iota_2x32_shape")
def iota_2x32_shape(call: Call, p: Mapping[str, Any]) -> Any:
    """Return the high and the low words of 0, 1, 2, ... in the shape `shape`."""
    b, shape = call.b, p["shape"]
    if not call.emits and math.prod(shape) > _FOLDED_COUNTERS:
        raise NotWrittenOut("iota_2x32_shape")
    low, high = words_of(b, b.convert(linear_indices(b, shape), DTYPES["ui64"]))
    return high, low


def _dtype(value: Any) -> np.dtype:
    dtype = np.dtype(value)
    if dtype_name(dtype) not in DTYPES:
        why = f"element type {dtype}: expected one of {', '.join(DTYPES)}"
        raise unsupported(why, ReasonCode.UNSUPPORTED_DTYPE)
    return dtype


@primitive("integer_pow")
def integer_pow(call: Call, p: Mapping[str, Any]) -> Any:
    """x ** y by repeated squaring."""
    return call.pointwise(lambda b, x: integer_power(b, x, p["y"]))


@primitive("round")
def round_(call: Call, p: Mapping[str, Any]) -> Any:
    """Round to the nearest integer: halves to even ones, or away from zero."""
    even = p["rounding_method"].name == "TO_NEAREST_EVEN"
    return call.pointwise(POINTWISE["round_even" if even else "round_away"])


@primitive("select_n")
def select_n(call: Call, p: Mapping[str, Any]) -> Any:
    """Select operand 1 + which."""
    return movement.select_n(call)


@primitive("dot_general")
def dot(call: Call, p: Mapping[str, Any]) -> Any:
    """Build one matmul between transposes and reshapes."""
    (contract, batch) = p["dimension_numbers"]
    wanted = p["preferred_element_type"]
    dtype = call.type(0).dtype if wanted is None else _dtype(wanted)
    dims = DotDims(*map(_ints, (*contract, *batch)))
    return dot_general(call.b, call.x(0), call.x(1), dims, dtype)


def _ints(values: Any) -> tuple[int, ...]:
    return tuple(int(v) for v in values)


@primitive("conv_general_dilated")
def conv(call: Call, p: Mapping[str, Any]) -> Any:
    """pyc.conv2d."""
    numbers, wanted = p["dimension_numbers"], p["preferred_element_type"]
    specs = (numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec)
    parameters = Convolution(
        *(ConvDimensions(s[0], s[1], tuple(s[2:])) for s in specs),
        strides=p["window_strides"],
        pads=p["padding"],
        image_dilation=p["lhs_dilation"],
        weight_dilation=p["rhs_dilation"],
        groups=p["feature_group_count"],
        batch_groups=p["batch_group_count"],
    )
    dtype = call.type(0).dtype if wanted is None else _dtype(wanted)
    return convolution(call.b, call.x(0), call.x(1), parameters, dtype)


@primitive("broadcast_in_dim")
def broadcast_in_dim(call: Call, p: Mapping[str, Any]) -> Any:
    """x in another shape; dimension i of x is dimension ``broadcast_dimensions[i]`` there."""
    dims = _ints(p["broadcast_dimensions"])
    return movement.broadcast_in_dim(call.b, call.x(), p["shape"], dims)


@primitive("reshape")
def reshape(call: Call, p: Mapping[str, Any]) -> Any:
    """Reshape x, its dimensions put in the order `dimensions` first."""
    order = p["dimensions"] or range(len(call.dims()))
    x = movement.transposed(call.b, call.x(), _ints(order))
    return reshape_to(call.b, x, p["new_sizes"])


@primitive("squeeze")
def squeeze(call: Call, p: Mapping[str, Any]) -> Any:
    """x without dimensions of size 1."""
    dims, gone = call.dims(), _ints(p["dimensions"])
    return reshape_to(call.b, call.x(), [d for i, d in enumerate(dims) if i not in gone])


@primitive("expand_dims")
def expand_dims(call: Call, p: Mapping[str, Any]) -> Any:
    """x with dimensions of size 1."""
    x = call.x()
    for axis in sorted(_ints(p["dimensions"])):
        x = call.b.expand_dims(x, axis)
    return x


@primitive("transpose")
def transpose(call: Call, p: Mapping[str, Any]) -> Any:
    """x with its dimensions in another order."""
    return movement.transposed(call.b, call.x(), _ints(p["permutation"]))


@primitive("rev")
def rev(call: Call, p: Mapping[str, Any]) -> Any:
    """x backwards."""
    return movement.reverse(call.b, call.x(), _ints(p["dimensions"]))


@primitive("concatenate")
def concatenate(call: Call, p: Mapping[str, Any]) -> Any:
    """Join the operands one after the other."""
    return movement.concatenate(call, p["dimension"])


@primitive("stack")
def stack(call: Call, p: Mapping[str, Any]) -> Any:
    """Join the operands along a new dimension."""
    axis = p.get("axis", p.get("dimension", 0))
    return chain(call.b, [call.b.expand_dims(x, axis) for x in call.all()], axis)


@primitive("split")
def split(call: Call, p: Mapping[str, Any]) -> Any:
    """Split into consecutive pieces along `axis`."""
    x, parts, start = call.x(), [], 0
    for size in p["sizes"]:
        parts.append(take(call.b, x, p["axis"], start, start + size))
        start += size
    return tuple(parts)


@primitive("slice")
def slice_(call: Call, p: Mapping[str, Any]) -> Any:
    """x[start:limit:stride]."""
    dims, starts = call.dims(), p["start_indices"]
    stops = [
        movement.END if limit == have else limit
        for limit, have in zip(p["limit_indices"], dims, strict=True)
    ]
    if not all(isinstance(v, int) for v in (*starts, *stops)):
        raise unsupported("bounds that depend on a dynamic dimension: expected constants")
    return movement.slice_(call.b, call.x(), starts, stops, p["strides"] or (1,) * len(dims))


@primitive("dynamic_slice")
def dynamic_slice(call: Call, p: Mapping[str, Any]) -> Any:
    """Take a slice of known sizes at computed places."""
    return movement.dynamic_slice(call, p["slice_sizes"])


@primitive("dynamic_update_slice")
def dynamic_update_slice(call: Call, p: Mapping[str, Any]) -> Any:
    """x with a box at computed places replaced."""
    return movement.dynamic_update_slice(call)


@primitive("pad")
def pad(call: Call, p: Mapping[str, Any]) -> Any:
    """Insert values around and between the elements; negative pads cut."""
    low, high, interior = zip(*p["padding_config"], strict=True) if call.dims() else ((), (), ())
    return movement.pad(call, _ints(low), _ints(high), _ints(interior))


@primitive("iota")
def iota(call: Call, p: Mapping[str, Any]) -> Any:
    """0, 1, 2, ... along a dimension."""
    return movement.iota(call.b, p["shape"], p["dimension"], _dtype(p["dtype"]))


@primitive("gather")
def gather_(call: Call, p: Mapping[str, Any]) -> Any:
    """Gather slices at computed places."""
    d = p["dimension_numbers"]
    dims = GatherDims(
        d.offset_dims,
        d.collapsed_slice_dims,
        d.start_index_map,
        d.operand_batching_dims,
        d.start_indices_batching_dims,
    )
    mode = FILL if p["mode"].name == "FILL_OR_DROP" else "clip"
    return gather(call, dims, p["slice_sizes"], mode, p["fill_value"])


_SCATTERS = {
    "scatter": "set", "scatter-add": "add", "scatter_add": "add", "scatter-mul": "mul",
    "scatter_mul": "mul", "scatter-min": "min", "scatter_min": "min", "scatter-max": "max",
    "scatter_max": "max",
}  # fmt: skip


def _require_combiner(op: str, combiner: Any, consts: Any) -> None:
    """Raise unsupported unless a scatter's jaxpr is ``op(x, update)``; None stands for "set"."""
    if combiner is None:
        return
    (*equations,), arguments = combiner.eqns, list(combiner.invars)
    plain = len(equations) == 1 and not consts
    plain = plain and equations[0].primitive.name == op and equations[0].invars == arguments
    if not plain or equations[0].outvars != list(combiner.outvars):
        raise unsupported(
            f"a scatter with a function of its own: expected `{op}` of x and the update, got "
            f"{' '.join(str(combiner).split())[:200]}; gather the elements, apply the function to "
            "them, and set them"
        )


def _scatter(op: str) -> Handler:
    def handler(call: Call, p: Mapping[str, Any]) -> Any:
        """Combine the updates with x at computed places."""
        _require_combiner(op, p["update_jaxpr"], p["update_consts"])
        d = p["dimension_numbers"]
        dims = ScatterDims(
            d.update_window_dims,
            d.inserted_window_dims,
            d.scatter_dims_to_operand_dims,
            d.operand_batching_dims,
            d.scatter_indices_batching_dims,
        )
        return scatter(call, dims, op, clip=p["mode"].name == "CLIP")

    return handler


PRIMITIVES.update({name: _scatter(op) for name, op in _SCATTERS.items()})


def _reduction(op: str) -> Handler:
    def handler(call: Call, p: Mapping[str, Any]) -> Any:
        """Reduce whole dimensions."""
        return reduction.reduce(call.b, call.x(), op, _ints(p["axes"]))

    return handler


def _running(op: str) -> Handler:
    def handler(call: Call, p: Mapping[str, Any]) -> Any:
        """Build a running reduction along `axis`."""
        return reduction.cumulative(call.b, call.x(), op, p["axis"], p["reverse"])

    return handler


def _windowed(op: str) -> Handler:
    def handler(call: Call, p: Mapping[str, Any]) -> Any:
        """Reduce windows."""
        return reduction.reduce_window(call.b, call.x(), op, _window(p))

    return handler


_OPS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}
PRIMITIVES.update({f"reduce_{name}": _reduction(op) for name, op in _OPS.items()})
PRIMITIVES.update({f"reduce_window_{name}": _windowed(op) for name, op in list(_OPS.items())[:4]})
PRIMITIVES.update({f"cum{name}": _running(op) for name, op in list(_OPS.items())[:4]})


@primitive("cumlogsumexp")
def cumlogsumexp(call: Call, p: Mapping[str, Any]) -> Any:
    """Build the logarithm of the running sum of exponentials."""
    return reduction.cumulative_logsumexp(call.b, call.x(), p["axis"], p["reverse"])


def _window(p: Mapping[str, Any]) -> HloWindow:
    return HloWindow(
        p["window_dimensions"],
        p["window_strides"],
        tuple((int(low), int(high)) for low, high in p["padding"]),
        tuple(p.get("base_dilation", ())),
        tuple(p.get("window_dilation", ())),
    )


@primitive("select_and_scatter_add")
def select_and_scatter_add(call: Call, p: Mapping[str, Any]) -> Any:
    """Build the gradient of pooling."""
    largest = p["select_prim"].name == "ge"
    return reduction.select_and_scatter_add(
        call.b, call.x(0), call.x(1), _window(p), largest=largest
    )


def _arg_extreme(largest: bool) -> Handler:
    def handler(call: Call, p: Mapping[str, Any]) -> Any:
        """Build the index of the first extreme along one dimension."""
        (axis,) = p["axes"]
        dtype = _dtype(p["index_dtype"])
        return reduction.arg_extreme(call.b, call.x(), axis, largest, dtype)

    return handler


PRIMITIVES.update({"argmax": _arg_extreme(True), "argmin": _arg_extreme(False)})


@primitive("sort")
def sort_(call: Call, p: Mapping[str, Any]) -> Any:
    """Sort the operands by the first one."""
    if p["num_keys"] != 1:
        raise unsupported(f"a sort by {p['num_keys']} keys: expected one")
    return sort(call.b, call.all(), p["dimension"])


@primitive("top_k")
def top_k_(call: Call, p: Mapping[str, Any]) -> Any:
    """Build the k largest along the last dimension."""
    axis = p.get("axis", call.type().rank - 1)
    if axis != call.type().rank - 1:
        raise unsupported("top_k of another dimension than the last")
    return top_k(call.b, call.x(), p["k"])


@primitive("clamp")
def clamp(call: Call, p: Mapping[str, Any]) -> Any:
    """min(max(x, low), high)."""
    return call.pointwise(POINTWISE["clamp"])
