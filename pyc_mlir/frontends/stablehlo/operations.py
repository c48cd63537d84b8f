"""StableHLO's operations: attributes by the names that jaxprs give them, and a handler for each.

Handlers of operations without regions are those of hlo/operations.py, and others: they get the
operands as a `Call` and the operation as a `StablehloOp`, and return the result or a tuple of
results. A region of one operation on its two arguments, which says how two elements combine, is
known by that operation; the region of an argmax and of a sort is found out by what it computes for
a few known elements.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.attributes import array_of
from pyc_mlir.dialects.ir.bindings import ir, stablehlo
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.frontends.hlo import elementwise, movement, reduction
from pyc_mlir.frontends.hlo.call import Call, made_by
from pyc_mlir.frontends.hlo.contraction import DotDims, dot_general
from pyc_mlir.frontends.hlo.elementwise import POINTWISE
from pyc_mlir.frontends.hlo.indexing import SliceDims, scatter, with_vector_last
from pyc_mlir.frontends.hlo.movement import sort
from pyc_mlir.frontends.hlo.operations import OPERATIONS, Operation, window_of
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.importer import Ignored, SourceNode, Stated
from pyc_mlir.frontends.importing.shaping import reshape_to
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSizes, Untracked

_ACCURACY = "allows less exact results than PyC's"
# Attributes that change no result.
IGNORED: Ignored = {
    **dict.fromkeys(("precision_config", "algorithm", "result_accuracy"), _ACCURACY),
    "indices_are_sorted": "a promise that lets a compiler be faster",
    "unique_indices": "a promise that lets a compiler be faster",
    "is_stable": "PyC's sort is always stable",
    "version": "composites are known by name, and their attributes are read",
}


class StablehloOp(Mapping[str, Any]):
    """An operation; attributes by name, with the default where StableHLO leaves one out.

    attributes: with the regions, whose names are `region 0`, `region 1`; looking one up counts as
        reading it.
    site, operands: and what regions around it define (`around`), where it is imported.
    """

    def __init__(
        self, operation: ir.Operation, site: SourceNode | None = None,
        operands: Sequence[Any] = (), values: Mapping[Any, Any] | None = None,
    ) -> None:  # fmt: skip
        self.operation = operation
        # Without its dialect, where that is StableHLO.
        self.name = operation.name.removeprefix("stablehlo.")
        self.site: Any = site
        self.operands = operands
        self.around = values or {}
        entries: dict[str, Any] = {n: operation.attributes[n] for n in operation.attributes}
        entries |= {f"region {i}": r for i, r in enumerate(operation.regions)}
        # MLIR lets every pass discard attributes of another dialect.
        self.attributes = Stated(entries, "attribute", IGNORED, lambda name, value: "." in name)

    def type(self, index: int = 0) -> TensorType:
        """Return the type of a result. Raises PycError (UNSUPPORTED_DTYPE)."""
        return tensor_type(self.operation.results[index].type)

    def shape(self) -> tuple[int, ...]:
        """Return the static shape of the result. Raises PycError (UNSUPPORTED_ATTRIBUTE)."""
        shape = self.type().shape
        if None in shape:
            raise unsupported("the result of dynamic shape: expected a static one")
        return tuple(d for d in shape if d is not None)

    def __getitem__(self, name: str) -> Any:
        """Return a parameter as Python data, by the name that jaxprs give it."""
        derived = _DERIVED.get((self.name, name), _DERIVED.get(("", name)))
        if derived is not None:
            return derived(self)
        own = _RENAMED.get((self.name, name), _RENAMED.get(("", name), name))
        return python(self.attributes[own])

    def __iter__(self) -> Iterator[str]:
        return iter(self.attributes)

    def __len__(self) -> int:
        return len(self.attributes)

    def region(self, index: int) -> Any:
        """Return a region."""
        return self.attributes[f"region {index}"]

    def regions(self) -> list[Any]:
        """Return every region."""
        return [self.region(i) for i in range(len(self.operation.regions))]


# Of an operation ("": any) a parameter by its name in jaxprs: what StableHLO calls it, or how it
# follows from the result's type and other attributes.
_RENAMED = {
    ("iota", "dimension"): "iota_dimension",
    ("dynamic_iota", "dimension"): "iota_dimension",
    ("dot_general", "dimension_numbers"): "dot_dimension_numbers",
    ("", "base_dilation"): "base_dilations",
    ("", "window_dilation"): "window_dilations",
}
_DERIVED: dict[tuple[str, str], Callable[[StablehloOp], Any]] = {
    **dict.fromkeys((("", "shape"), ("", "new_sizes")), StablehloOp.shape),
    **dict.fromkeys(
        (("", name) for name in ("dtype", "new_dtype", "preferred_element_type")),
        lambda op: op.type().dtype,
    ),
    ("pad", "padding_config"): lambda op: tuple(
        zip(op["edge_padding_low"], op["edge_padding_high"], op["interior_padding"], strict=True)
    ),
}
# Dimension numbers that jaxprs have as tuples.
_NUMBERS: dict[str, Callable[[Any], Any]] = {
    "DotDimensionNumbers": lambda d: (
        (d.lhs_contracting_dimensions, d.rhs_contracting_dimensions),
        (d.lhs_batching_dimensions, d.rhs_batching_dimensions),
    ),
    "ConvDimensionNumbers": lambda d: (
        (d.input_batch_dimension, d.input_feature_dimension, *d.input_spatial_dimensions),
        (
            d.kernel_output_feature_dimension,
            d.kernel_input_feature_dimension,
            *d.kernel_spatial_dimensions,
        ),
        (d.output_batch_dimension, d.output_feature_dimension, *d.output_spatial_dimensions),
    ),
    "GatherDimensionNumbers": lambda d: d,
    "ScatterDimensionNumbers": lambda d: d,
    "ComparisonDirectionAttr": lambda d: d.value,
    "ComparisonTypeAttr": lambda d: d.value,
}


def python(attribute: ir.Attribute) -> Any:
    """Return an attribute as Python data: arrays as tuples, single elements as numbers."""
    for kind in (ir.BoolAttr, ir.IntegerAttr, ir.FloatAttr, ir.StringAttr, ir.FlatSymbolRefAttr):
        if isinstance(attribute, kind):
            return kind(attribute).value
    for kind in (ir.DenseI64ArrayAttr, ir.DenseBoolArrayAttr):
        if isinstance(attribute, kind):
            return tuple(kind(attribute))
    if isinstance(attribute, ir.DenseElementsAttr):
        return _tuples(np.asarray(array_of(attribute)).tolist())
    for name, read in _NUMBERS.items():
        kind = getattr(stablehlo, name)
        if kind.isinstance(attribute):
            return read(kind(attribute))
    return attribute


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def tensor_type(type_: ir.Type) -> TensorType:
    """Return an MLIR type as data. Raises PycError (UNSUPPORTED_DTYPE) for types that PyC lacks."""
    try:
        return from_mlir(type_)
    except PycError as error:
        raise PycError(ReasonCode.UNSUPPORTED_DTYPE, error.message) from error


# StableHLO's name -> the operation of the same meaning, as jaxprs call it.
_SAME = {
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
    "chlo.square": "square", "bitcast_convert": "bitcast_convert_type",
    "broadcast_in_dim": "broadcast_in_dim", "concatenate": "concatenate",
    "convert": "convert_element_type", "convolution": "conv_general_dilated",
    "dot_general": "dot_general", "dynamic_slice": "dynamic_slice",
    "dynamic_update_slice": "dynamic_update_slice", "gather": "gather", "iota": "iota",
    "optimization_barrier": "optimization_barrier", "pad": "pad",
    "reduce_precision": "reduce_precision", "reshape": "reshape", "reverse": "rev",
    "transpose": "transpose",
}  # fmt: skip


def _extents(call: Call, index: int) -> tuple[Extent, ...]:
    """Return a shape that an operand holds, static or in terms of dynamic dimensions."""
    value = call.operands[index]
    if not isinstance(value, SymbolicSizes):
        return tuple(int(v) for v in call.known(index, "a shape").reshape(-1))
    if not call.emits:
        raise Untracked("shape")
    return tuple(value.entries.reshape(-1))


HANDLERS: dict[str, Operation] = {
    **{name: OPERATIONS[of] for name, of in _SAME.items()},
    # out = x <direction> y.
    "compare": lambda call, op: call.pointwise(partial(
        elementwise.compare_total if op.get("compare_type") == "TOTALORDER"
        else elementwise.compare, predicate=op["comparison_direction"].lower())),
    # Matrices or vectors: the last dimension is contracted with the first.
    "dot": lambda call, op: dot_general(
        call.b, call.x(0), call.x(1), DotDims((call.type(0).rank - 1,), (0,), (), ()), op["dtype"]),
    "dynamic_broadcast_in_dim": lambda call, op: movement.broadcast_in_dim(
        call.b, call.x(), _extents(call, 1), op["broadcast_dimensions"]),
    # Into the shape that operand 1, or 0, holds.
    "dynamic_reshape": lambda call, op: reshape_to(call.b, call.x(), _extents(call, 1)),
    "dynamic_iota": lambda call, op: movement.iota(
        call.b, _extents(call, 0), op["dimension"], op["dtype"]
    ),
    "select": lambda call, op: call.pointwise(lambda b, which, yes, no: b.select(which, yes, no)),
    # A limit that is the whole dimension stays so if that is dynamic.
    "slice": lambda call, op: movement.slice_(
        call.b, call.x(), *(op[name] for name in ("start_indices", "limit_indices", "strides"))),
}  # fmt: skip


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
    made = made_by(op.operation.operands[1])
    counts = made is not None and made.name == "stablehlo.iota"
    if made is None or not counts or StablehloOp(made)["dimension"] != axis:
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
