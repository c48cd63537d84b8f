"""Handlers of JAX's primitives that StableHLO states otherwise; others: hlo/operations.py.

`call` holds the operands, `p` the equation's parameters, in which symbolic dimensions have become
`Size`s. A handler returns the result, or a tuple of results.
"""

import math
from functools import partial
from typing import Any

from pyc_mlir.dialects.functions import integer_power
from pyc_mlir.dialects.ops.creation import joined_words, words_of
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.frontends.hlo import movement, reduction
from pyc_mlir.frontends.hlo.call import Call
from pyc_mlir.frontends.hlo.elementwise import POINTWISE
from pyc_mlir.frontends.hlo.indexing import SliceDims, scatter
from pyc_mlir.frontends.hlo.operations import (
    OPERATIONS,
    Operation,
    Parameters,
    identity,
    ints,
    known_dtype,
    window_of,
)
from pyc_mlir.frontends.importing.builders import NotWrittenOut
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.importer import Ignored
from pyc_mlir.frontends.importing.shaping import chain, linear_indices, reshape_to, take

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


def _threefry2x32(call: Call, p: Parameters) -> Any:
    """Encrypt two words of a counter under two words of a key."""
    b, (key0, key1, x0, x1) = call.b, call.all()
    return words_of(b, b.threefry(joined_words(b, x0, x1), joined_words(b, key0, key1)))


def _iota_2x32_shape(call: Call, p: Parameters) -> Any:
    """Return the high and the low words of 0, 1, 2, ... in the shape `shape`."""
    b, shape = call.b, p["shape"]
    if not call.emits and math.prod(shape) > _FOLDED_COUNTERS:
        raise NotWrittenOut("iota_2x32_shape")
    low, high = words_of(b, b.convert(linear_indices(b, shape), DTYPES["ui64"]))
    return high, low


def _round(call: Call, p: Parameters) -> Any:
    even = p["rounding_method"].name == "TO_NEAREST_EVEN"
    return call.pointwise(POINTWISE["round_even" if even else "round_away"])


def _squeeze(call: Call, p: Parameters) -> Any:
    dims, gone = call.dims(), ints(p["dimensions"])
    return reshape_to(call.b, call.x(), [d for i, d in enumerate(dims) if i not in gone])


def _expand_dims(call: Call, p: Parameters) -> Any:
    x = call.x()
    for axis in sorted(ints(p["dimensions"])):
        x = call.b.expand_dims(x, axis)
    return x


def _stack(call: Call, p: Parameters) -> Any:
    axis = p.get("axis", p.get("dimension", 0))
    return chain(call.b, [call.b.expand_dims(x, axis) for x in call.all()], axis)


def _split(call: Call, p: Parameters) -> Any:
    x, parts, start = call.x(), [], 0
    for size in p["sizes"]:
        parts.append(take(call.b, x, p["axis"], start, start + size))
        start += size
    return tuple(parts)


def _slice(call: Call, p: Parameters) -> Any:
    """x[start:limit:stride]; a limit that is the whole dimension stays so if that is dynamic."""
    dims, starts = call.dims(), p["start_indices"]
    stops = [
        movement.END if limit == have else limit
        for limit, have in zip(p["limit_indices"], dims, strict=True)
    ]
    if not all(isinstance(v, int) for v in (*starts, *stops)):
        raise unsupported("bounds that depend on a dynamic dimension: expected constants")
    return movement.slice_(call.b, call.x(), starts, stops, p["strides"] or (1,) * len(dims))


def _scatter(call: Call, p: Parameters, op: str) -> Any:
    _require_combiner(op, p["update_jaxpr"], p["update_consts"])
    d = p["dimension_numbers"]
    dims = SliceDims(
        d.update_window_dims,
        d.inserted_window_dims,
        d.scatter_dims_to_operand_dims,
        d.operand_batching_dims,
        d.scatter_indices_batching_dims,
    )
    return scatter(call, dims, op, clip=p["mode"].name == "CLIP")


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


def _reduce(call: Call, p: Parameters, op: str) -> Any:
    return reduction.reduce(call.b, call.x(), op, ints(p["axes"]))


def _running(call: Call, p: Parameters, op: str) -> Any:
    return reduction.cumulative(call.b, call.x(), op, p["axis"], p["reverse"])


def _window(call: Call, p: Parameters, op: str) -> Any:
    return reduction.reduce_window(call.b, call.x(), op, window_of(p))


def _arg_extreme(call: Call, p: Parameters, largest: bool) -> Any:
    (axis,) = p["axes"]
    dtype = known_dtype(p["index_dtype"])
    return reduction.arg_extreme(call.b, call.x(), axis, largest, dtype)


def _sort(call: Call, p: Parameters) -> Any:
    if p["num_keys"] != 1:
        raise unsupported(f"a sort by {p['num_keys']} keys: expected one")
    return movement.sort(call.b, call.all(), p["dimension"])


def _top_k(call: Call, p: Parameters) -> Any:
    last = call.type().rank - 1
    if p.get("axis", last) != last:
        raise unsupported("top_k of another dimension than the last")
    return movement.top_k(call.b, call.x(), p["k"])


_OPS = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "and": "and", "or": "or"}
_ARITHMETIC = dict(list(_OPS.items())[:4])
_SCATTERS = {"scatter": "set"} | {
    f"scatter{mark}{op}": op for op in ("add", "mul", "min", "max") for mark in "-_"
}
PRIMITIVES: dict[str, Operation] = {
    **OPERATIONS,
    **dict.fromkeys(("stop_gradient", "copy", "copy_p", "sharding_constraint"), identity),
    **{name: partial(_scatter, op=op) for name, op in _SCATTERS.items()},
    **{f"reduce_{name}": partial(_reduce, op=op) for name, op in _OPS.items()},
    **{f"reduce_window_{name}": partial(_window, op=op) for name, op in _ARITHMETIC.items()},
    **{f"cum{name}": partial(_running, op=op) for name, op in _ARITHMETIC.items()},
    "cumlogsumexp": lambda call, p: reduction.cumulative_logsumexp(
        call.b, call.x(), p["axis"], p["reverse"]
    ),
    "argmax": partial(_arg_extreme, largest=True),
    "argmin": partial(_arg_extreme, largest=False),
    "threefry2x32": _threefry2x32,
    "iota_2x32_shape": _iota_2x32_shape,
    "integer_pow": lambda call, p: call.pointwise(lambda b, x: integer_power(b, x, p["y"])),
    "round": _round,
    "select_n": lambda call, p: movement.select_n(call),
    "squeeze": _squeeze,
    "expand_dims": _expand_dims,
    "stack": _stack,
    "split": _split,
    "slice": _slice,
    # The gradient of pooling.
    "select_and_scatter_add": lambda call, p: reduction.select_and_scatter_add(
        call.b, call.x(0), call.x(1), window_of(p), largest=p["select_prim"].name == "ge"
    ),
    "sort": _sort,
    "top_k": _top_k,
}
