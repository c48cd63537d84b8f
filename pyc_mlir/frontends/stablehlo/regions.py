"""StableHLO's operations whose region says how two elements combine or compare.

A region of one operation on its two arguments is known by that operation; the region of an argmax
and of a sort is found out by what it computes for a few known elements.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pyc_mlir.frontends.hlo import reduction
from pyc_mlir.frontends.hlo.call import Call, made_by
from pyc_mlir.frontends.hlo.elementwise import POINTWISE
from pyc_mlir.frontends.hlo.indexing import SliceDims, scatter, with_vector_last
from pyc_mlir.frontends.hlo.movement import sort
from pyc_mlir.frontends.hlo.operations import window_of
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.stablehlo.op import StablehloOp, tensor_type

_COMBINERS = {
    "stablehlo.add": "add",
    "stablehlo.multiply": "mul",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.and": "and",
    "stablehlo.or": "or",
}


def combiner(region: Any) -> str | None:
    """Return the operation that a region applies to its two arguments; "set" for the second one."""
    block = region.blocks[0]
    *operations, end = [view.operation for view in block.operations]
    arguments = list(block.arguments)
    if not operations and len(arguments) == 2 and list(end.operands) == arguments[1:]:
        return "set"
    if len(operations) != 1 or len(arguments) != 2:
        return None
    only = operations[0]
    both = list(only.operands) in (arguments, arguments[::-1])
    returned = list(end.operands) == list(only.results)
    return _COMBINERS.get(only.name) if both and returned else None


def _known_combiner(op: StablehloOp) -> str:
    found = combiner(op.region(0))
    if found is None or found == "set":
        raise unsupported(
            "a region of another form than one operation on its two arguments: expected "
            + ", ".join(sorted(_COMBINERS))
        )
    return found


def reduce(state: Any, op: StablehloOp) -> Sequence[Any]:
    """Reduce whole dimensions; a pair of operands becomes argmax or argmin."""
    axes, half = op["dimensions"], len(op.operands) // 2
    if half == 2:
        return _arg_extreme(state, op, axes)
    if half != 1:
        raise unsupported(f"a reduction of {half} operands at once: expected one")
    name = _known_combiner(op)

    def apply(b: Any, lift: Any) -> Any:
        out = reduction.reduce(b, lift(0), name, axes)
        return _with_start(b, out, name, op.operands[1], lift)

    return (state.one(op.site, op.operands, apply),)


def _with_start(b: Any, out: Any, name: str, start: Any, lift: Any) -> Any:
    """`out` combined with the start of the reduction, unless that changes nothing."""
    dtype = b.type_of(out).dtype
    if isinstance(start, np.ndarray) and start == reduction.neutral(name, dtype):
        return out
    return POINTWISE[name](b, out, lift(1))


def _arg_extreme(state: Any, op: StablehloOp, axes: Sequence[int]) -> Sequence[Any]:
    """(extreme, its first index): operand 1 counts along the axis, the region keeps the better."""
    largest = _keeps(state, op)
    if largest is None or len(axes) != 1:
        raise unsupported("a reduction of two operands: expected one that finds an argmax")
    axis = axes[0]
    if not _counts(op, axis):
        raise unsupported("a reduction of two operands: expected the second one to be an iota")
    index_type = op.type(1).dtype

    def value(b: Any, lift: Any) -> Any:
        return reduction.reduce(b, lift(0), "max" if largest else "min", (axis,))

    def index(b: Any, lift: Any) -> Any:
        return reduction.arg_extreme(b, lift(0), axis, largest, index_type)

    return [
        state.one(op.site, op.operands[:1], value),
        state.one(op.site, op.operands[:1], index),
    ]


def _counts(op: StablehloOp, axis: int) -> bool:
    """Return whether operand 1 is an iota along `axis`."""
    made = made_by(op.operation.operands[1])
    if made is None or made.name != "stablehlo.iota":
        return False
    return StablehloOp(made)["dimension"] == axis


def _keeps(state: Any, op: StablehloOp) -> bool | None:
    """Return True if a region keeps the larger pair, False if the smaller; None for others."""
    region = op.region(0)
    types = [tensor_type(a.type).dtype for a in region.blocks[0].arguments]

    def run(a: tuple[float, int], b: tuple[float, int]) -> tuple[float, int] | None:
        given = [np.array(v, t) for v, t in zip((*a, *b), types, strict=True)]
        out = state.probe(region, given)
        if not all(isinstance(o, np.ndarray) for o in out):
            return None
        return out[0].item(), out[1].item()

    one, two, tie = run((0, 0), (1, 1)), run((1, 0), (0, 1)), run((1, 1), (1, 0))
    if tie != (1, 0) or run((1, 0), (1, 1)) != (1, 0):
        return None
    if (one, two) == ((1, 1), (1, 0)):
        return True
    return False if (one, two) == ((0, 0), (0, 1)) else None


def reduce_window(state: Any, op: StablehloOp) -> Sequence[Any]:
    """Reduce windows."""
    if len(op.operands) != 2:
        raise unsupported("windows over several operands at once: expected one")
    name = _known_combiner(op)
    window = window_of(op)

    def apply(b: Any, lift: Any) -> Any:
        out = reduction.reduce_window(b, lift(0), name, window)
        return _with_start(b, out, name, op.operands[1], lift)

    return (state.one(op.site, op.operands, apply),)


def select_and_scatter(state: Any, op: StablehloOp) -> Sequence[Any]:
    """Build the gradient of pooling from x, the gradient, and 0."""
    select, combine = op.regions()
    larger = state.probe(select, [np.array(v, op.type().dtype) for v in (2, 1)])
    tie = state.probe(select, [np.array(1, op.type().dtype)] * 2)
    start = op.operands[2]
    if combiner(combine) != "add" or not (isinstance(start, np.ndarray) and start == 0):
        raise unsupported("select_and_scatter: expected a sum that begins with 0")
    if not all(isinstance(v[0], np.ndarray) for v in (larger, tie)) or not tie[0]:
        raise unsupported("select_and_scatter: expected the comparison GE or LE")

    def apply(b: Any, lift: Any) -> Any:
        return reduction.select_and_scatter_add(
            b, lift(1), lift(0), window_of(op), largest=bool(larger[0])
        )

    return (state.one(op.site, op.operands, apply),)


def scatter_(state: Any, op: StablehloOp) -> Sequence[Any]:
    """Combine the updates with x at computed places; updates outside are dropped."""
    if len(op.operands) != 3:
        raise unsupported("a scatter of several operands at once: expected one")
    name = combiner(op.region(0))
    if name is None:
        raise unsupported("a scatter whose region is not one operation")
    d = op["scatter_dimension_numbers"]
    dims = SliceDims(
        tuple(d.update_window_dims),
        tuple(d.inserted_window_dims),
        tuple(d.scattered_dims_to_operand_dims),
        tuple(d.input_batching_dims),
        tuple(d.scatter_indices_batching_dims),
    )

    def apply(b: Any, lift: Any) -> Any:
        indices = with_vector_last(b, lift(1), d.index_vector_dim)
        given = [op.operands[0], indices, op.operands[2]]
        return scatter(Call(b, given, lambda i: indices if i == 1 else lift(i)), dims, name)

    return (state.one(op.site, op.operands, apply),)


def sort_(state: Any, op: StablehloOp) -> Sequence[Any]:
    """Sort the operands by the first one: the region compares its first two arguments."""
    descending, total = _direction(state, op)
    axis = op.get("dimension", -1) % op.type().rank

    def apply(b: Any, lift: Any) -> Any:
        given = [lift(i) for i in range(len(op.operands))]
        return sort(b, given, axis, descending=descending, total=total)

    return state.importer.node(op.site, op.operands, apply)


def _direction(state: Any, op: StablehloOp) -> tuple[bool, bool]:
    """Return whether a sort puts larger elements first, and whether by floats' total order.

    Behind JAX's canonical zeros and NaNs, the total order is that of numbers with NaN last. Raises
    PycError for other orders.
    """
    region = op.region(0)
    types = [tensor_type(a.type).dtype for a in region.blocks[0].arguments]
    compares = [
        view.operation
        for view in region.blocks[0].operations
        if view.operation.name == "stablehlo.compare"
    ]
    end = list(region.blocks[0].operations)[-1].operation
    made = made_by(end.operands[0])
    if made is None or made not in compares:
        raise unsupported("a sort whose region does not end with a comparison")
    first_two = list(region.blocks[0].arguments)[:2]
    comparison = StablehloOp(made)
    direction = comparison["comparison_direction"]
    sources = [_origin(v) for v in made.operands]
    if direction not in ("LT", "GT") or sources != first_two or not types:
        raise unsupported("a sort by another order than that of its first operand")
    total = comparison.get("compare_type") == "TOTALORDER"
    return direction == "GT", total and list(made.operands) == first_two


def _origin(value: Any) -> Any:
    """Return the argument behind JAX's canonical zeros and NaNs: ``select(x != x, nan, ...)``."""
    for _ in range(4):
        made = made_by(value)
        if made is None or made.name != "stablehlo.select":
            return value
        value = made.operands[2]
    return value


REGIONED: dict[str, Callable[..., Sequence[Any]]] = {
    "reduce": reduce,
    "reduce_window": reduce_window,
    "select_and_scatter": select_and_scatter,
    "scatter": scatter_,
    "sort": sort_,
}
