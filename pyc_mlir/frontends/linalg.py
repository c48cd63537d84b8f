"""Raise modules of linalg on tensors to pyc programs, operation by operation.

    module = import_linalg(parsed, "model.mlir")

Named operations become generic ones first, so that one reader serves all. tensor
and arith around them become reshapes, slices, pads and constants. TOSA is lowered to linalg by
MLIR's own passes before. Shapes must be static; one function.

A structured operation is loops, indexing maps and a body:

    out[map(loops)] = combine(out[map(loops)], value(inputs[their maps(loops)]))

The body is evaluated once, on whole tensors that are aligned with the loops: each operation of
arith and math becomes one elementwise operation. With reduced loops the last operation of the body
combines; a product of two inputs that is summed is a dot_general.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.functions import filled
from pyc_mlir.dialects.ir.attributes import array_of
from pyc_mlir.dialects.ir.bindings import ir, passmanager
from pyc_mlir.dialects.ir.irtypes import dtype_of
from pyc_mlir.dialects.types import BOOL, I64, TensorType, is_integer
from pyc_mlir.frontends.hlo import reduction
from pyc_mlir.frontends.hlo.call import made_by
from pyc_mlir.frontends.hlo.contraction import DotDims, dot_general
from pyc_mlir.frontends.hlo.elementwise import POINTWISE, compare
from pyc_mlir.frontends.hlo.importer import ModuleImporter
from pyc_mlir.frontends.hlo.movement import transposed
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.importer import Argument, Lift, SourceNode
from pyc_mlir.frontends.importing.shaping import chain, expand_to, reshape_to
from pyc_mlir.frontends.stablehlo.operations import tensor_type

# The operation -> the elementwise one of the same meaning, as jaxprs call it.
_SAME = {
    "arith.addf": "add", "arith.addi": "add", "arith.subf": "sub", "arith.subi": "sub",
    "arith.mulf": "mul", "arith.muli": "mul", "arith.divf": "div", "arith.maximumf": "max",
    "arith.maxsi": "max", "arith.minimumf": "min", "arith.minsi": "min", "arith.negf": "neg",
    "arith.andi": "and", "arith.ori": "or", "arith.xori": "xor",
    "math.absf": "abs", "math.absi": "abs", "math.ceil": "ceil", "math.floor": "floor",
    "math.roundeven": "round_even", "math.round": "round_away", "math.exp": "exp",
    "math.expm1": "expm1", "math.exp2": "exp2", "math.log": "log", "math.log1p": "log1p",
    "math.sin": "sin", "math.cos": "cos", "math.tan": "tan", "math.tanh": "tanh",
    "math.sinh": "sinh", "math.cosh": "cosh", "math.sqrt": "sqrt", "math.rsqrt": "rsqrt",
    "math.erf": "erf", "math.erfc": "erfc", "math.powf": "pow", "math.cbrt": "cbrt",
}  # fmt: skip
_CASTS = ("arith.extf", "arith.truncf", "arith.fptosi", "arith.extsi", "arith.trunci")
_OF_BOOLEANS = ("arith.extui", "arith.uitofp")
# Predicates by number: (ours, negated). Ordered ones are false for NaN; of integers those of signs.
_PREDICATES = {
    "arith.cmpf": {
        1: ("eq", False), 2: ("gt", False), 3: ("ge", False), 4: ("lt", False), 5: ("le", False),
        9: ("le", True), 10: ("lt", True), 11: ("ge", True), 12: ("gt", True), 13: ("ne", False),
    },
    "arith.cmpi": dict(enumerate((p, False) for p in ("eq", "ne", "lt", "le", "gt", "ge"))),
}  # fmt: skip
# What combines the running value of a reduction with a new one.
COMBINERS = {
    op: name for op, name in _SAME.items() if name in ("add", "mul", "max", "min", "and", "or")
}


def scalar_dtype(type_: ir.Type) -> np.dtype:
    """Return an element type; `index` is i64. Raises PycError (UNSUPPORTED_DTYPE)."""
    if isinstance(type_, ir.IndexType):
        return I64
    try:
        return dtype_of(type_)
    except PycError as error:
        raise PycError(ReasonCode.UNSUPPORTED_DTYPE, error.message) from error


def scalar(b: Any, op: ir.Operation, values: list[Any]) -> Any:
    """Build one operation of a body on tensors. Raises PycError (UNSUPPORTED_OP)."""
    name = op.name
    if name in _SAME:
        return POINTWISE[_SAME[name]](b, *values)
    if name in _OTHERS:
        return _OTHERS[name](b, op, values)
    raise unsupported(f"`{name}` in a body", ReasonCode.UNSUPPORTED_OP)


def _cast(b: Any, op: ir.Operation, values: list[Any]) -> Any:
    given, wanted = b.type_of(values[0]).dtype, scalar_dtype(op.results[0].type)
    if op.name in _CASTS and BOOL in (given, wanted):
        raise unsupported(f"`{op.name}` from or to i1")
    if op.name in _OF_BOOLEANS and given != BOOL:
        raise unsupported(f"`{op.name}` of another type than i1")
    if op.name == "arith.sitofp" and not is_integer(given):
        raise unsupported("`arith.sitofp` of i1, whose true is -1")
    return b.convert(values[0], wanted)


def _compare(b: Any, op: ir.Operation, values: list[Any]) -> Any:
    number = ir.IntegerAttr(op.attributes["predicate"]).value
    if number not in _PREDICATES[op.name]:
        raise unsupported(f"predicate {number} of `{op.name}`: expected a signed or ordered one")
    predicate, negated = _PREDICATES[op.name][number]
    out = compare(b, values[0], values[1], predicate)
    return b.not_(out) if negated else out


_OTHERS: Mapping[str, Callable[[Any, ir.Operation, list[Any]], Any]] = {
    **dict.fromkeys((*_CASTS, *_OF_BOOLEANS, "arith.sitofp", "arith.index_cast"), _cast),
    **dict.fromkeys(_PREDICATES, _compare),
    "arith.select": lambda b, op, v: b.select(*v),
    "arith.divsi": lambda b, op, v: b.div(*v),
    "math.fma": lambda b, op, v: b.add(b.mul(v[0], v[1]), v[2]),
}


def constant(op: ir.Operation) -> np.ndarray:
    """Return a scalar constant of a body."""
    attribute: Any = op.attributes["value"]
    dtype = I64 if str(op.results[0].type) == "index" else scalar_dtype(op.results[0].type)
    return np.array(attribute.value).astype(dtype)


_LOOP = re.compile(r"d(\d+)$")
_WIDENED = ("arith.extf", "arith.extsi")


class Undefined:
    """The result of tensor.empty: a shape whose elements nobody reads."""


UNDEFINED = Undefined()


@dataclass(frozen=True)
class Structured:
    """A structured operation as data. maps: for each operand its indices, a loop or None for 0."""

    operation: ir.Operation
    inputs: int
    maps: tuple[tuple[int | None, ...], ...]
    reduced: tuple[int, ...]
    sizes: tuple[int, ...]

    @staticmethod
    def of(operation: ir.Operation) -> "Structured":
        """Read a generic operation. Raises PycError (UNSUPPORTED_ATTRIBUTE) for other maps."""
        segments = list(ir.DenseI32ArrayAttr(operation.attributes["operandSegmentSizes"]))
        maps = tuple(map(_loops_of, operation.attributes["indexing_maps"]))
        kinds = [str(k) for k in operation.attributes["iterator_types"]]
        reduced = tuple(i for i, k in enumerate(kinds) if "reduction" in k)
        sizes: dict[int, int] = {}
        for operand, places in zip(operation.operands, maps, strict=True):
            if not isinstance(operand.type, ir.RankedTensorType):
                continue
            for axis, loop in enumerate(places):
                if operand.type.is_dynamic_dim(axis):
                    raise unsupported("a dynamic dimension: expected static shapes")
                if loop is not None:
                    sizes[loop] = operand.type.get_dim_size(axis)
        if len(sizes) != len(kinds):
            raise unsupported("a loop whose size no operand has as a dimension of its own")
        if segments[1] != 1:
            raise unsupported(f"{segments[1]} results of one loop nest: expected one")
        ordered = tuple(sizes[i] for i in range(len(kinds)))
        return Structured(operation, segments[0], maps, reduced, ordered)

    @property
    def body(self) -> Any:
        """The block of scalar operations."""
        return self.operation.regions[0].blocks[0]


def _loops_of(attribute: Any) -> tuple[int | None, ...]:
    places: list[int | None] = []
    for expression in attribute.value.results:
        text = str(expression)
        match = _LOOP.match(text)
        if match is None and text != "0":
            raise unsupported(f"the index {text}: expected a loop or 0")
        places.append(int(match[1]) if match else None)
    return tuple(places)


def captured(s: Structured) -> list[Any]:
    """Return the scalars from outside that a body reads."""
    operations = [view.operation for view in s.body.operations]
    own = {r for op in operations for r in op.results} | set(s.body.arguments)
    return list(dict.fromkeys(v for op in operations for v in op.operands if v not in own))


def lower(
    b: Any, s: Structured, operands: Sequence[Any], outer: Mapping[Any, Any], start: Any
) -> Any:
    """Build the result of a structured operation.

    operands, outer: values of b, or `UNDEFINED`; outer are those of `captured`.
    start: the initial value of a reduction, if it is known at import.
    """
    *operations, end = [view.operation for view in s.body.operations]
    if not s.reduced:
        out = _evaluated(b, s, operands, outer, end.operands[0])
        return _to_result(b, s, expand_to(b, out, s.sizes), list(range(len(s.sizes))))
    last = operations[-1] if operations else None
    running = s.body.arguments[s.inputs]
    combines = last is not None and list(end.operands) == list(last.results)
    if last is None or not combines or last.name not in COMBINERS or running not in last.operands:
        raise unsupported("a reduction whose body does not end by combining with its result")
    if any(running in op.operands for op in operations[:-1]):
        raise unsupported("a reduction whose body reads its result twice")
    name = COMBINERS[last.name]
    value = next((v for v in last.operands if v != running), None)
    if value is None:
        raise unsupported("a reduction that combines its result with itself")
    made = _contraction(b, s, operands, operations[:-1], value) if name == "add" else None
    if made is None:
        whole = expand_to(b, _evaluated(b, s, operands, outer, value), s.sizes)
        made = reduction.reduce(b, whole, name, s.reduced)
        kept = [loop for loop in range(len(s.sizes)) if loop not in s.reduced]
        made = _to_result(b, s, made, kept)
    initial = operands[s.inputs]
    if initial is UNDEFINED:
        raise unsupported("a reduction that begins with undefined values")
    if start is not None and (start == reduction.neutral(name, start.dtype)).all():
        return made
    return POINTWISE[name](b, made, initial)


def _to_result(b: Any, s: Structured, x: Any, loops: Sequence[int]) -> Any:
    """x, whose dimensions are `loops`, in the order of the result's map."""
    places = s.maps[s.inputs]
    if sorted(p for p in places if p is not None) != sorted(loops):
        raise unsupported("a result that is not indexed by every loop that is not reduced")
    order = [list(loops).index(p) for p in places if p is not None]
    out = transposed(b, x, order)
    if None in places:
        out = reshape_to(b, out, tuple(1 if p is None else s.sizes[p] for p in places))
    return out


def _aligned(b: Any, s: Structured, x: Any, places: Sequence[int | None]) -> Any:
    """x with a dimension for each loop: of size 1 where it does not depend on it."""
    dims = b.dims(x)
    axes = [a for a, p in enumerate(places) if p is not None]
    loops = [places[a] for a in axes]
    if len(set(loops)) != len(loops):
        raise unsupported("an operand that one loop indexes twice")
    if any(p is None and dims[a] != 1 for a, p in enumerate(places)):
        raise unsupported("index 0 of a dimension that is larger than 1")
    if len(axes) != len(dims):
        x = reshape_to(b, x, tuple(dims[a] for a in axes))
    order = np.argsort(np.array(loops, int)).tolist()
    x = transposed(b, x, order)
    shape = tuple(n if i in loops else 1 for i, n in enumerate(s.sizes))
    return x if tuple(b.dims(x)) == shape else reshape_to(b, x, shape)


def _evaluated(
    b: Any, s: Structured, operands: Sequence[Any], outer: Mapping[Any, Any], wanted: Any
) -> Any:
    """Evaluate a value of the body as a tensor over the loops."""
    values: dict[Any, Any] = dict(outer)
    read = s.inputs if s.reduced else len(operands)
    arguments = list(s.body.arguments)[:read]
    for argument, x, places in zip(arguments, operands[:read], s.maps[:read], strict=True):
        if x is not UNDEFINED:
            values[argument] = _aligned(b, s, x, places)
    for view in s.body.operations:
        op = view.operation
        if op.name == "linalg.yield":
            break
        if op.name == "arith.constant":
            values[op.results[0]] = b.constant(constant(op))
        elif op.name == "linalg.index":
            loop = ir.IntegerAttr(op.attributes["dim"]).value
            shape = tuple(n if i == loop else 1 for i, n in enumerate(s.sizes))
            values[op.results[0]] = b.iota(shape=shape, axis=loop, dtype=I64)
        elif s.reduced and not all(v in values for v in op.operands):
            continue  # the combination with the result, which is not there yet
        elif op.regions:
            raise unsupported(f"`{op.name}` in a body")
        else:
            if not all(v in values for v in op.operands):
                raise unsupported("a body that reads values from outside, or undefined ones")
            values[op.results[0]] = scalar(b, op, [values[v] for v in op.operands])
    if wanted not in values:
        raise unsupported("a body that yields a value from outside, or an undefined one")
    return values[wanted]


def _contraction(
    b: Any, s: Structured, operands: Sequence[Any], operations: Sequence[ir.Operation], value: Any
) -> Any:
    """Build the sum of products of two inputs as a dot_general; None for other bodies."""
    made = {op.results[0]: op for op in operations}
    product = made.get(value)
    if product is None or product.name not in ("arith.mulf", "arith.muli"):
        return None

    def source(v: Any) -> Any:
        op = made.get(v)
        return op.operands[0] if op is not None and op.name in _WIDENED else v

    arguments = list(s.body.arguments)[: s.inputs]
    pair = [source(v) for v in product.operands]
    if len(operations) > 3 or any(v not in arguments for v in pair) or pair[0] == pair[1]:
        return None
    left, right = (arguments.index(v) for v in pair)
    maps = s.maps[left], s.maps[right]
    if any(None in m or len(set(m)) != len(m) for m in maps):
        return None
    shared = [loop for loop in maps[0] if loop in maps[1]]
    contract = [loop for loop in shared if loop in s.reduced]
    batch = [loop for loop in shared if loop not in s.reduced]
    if set(contract) != set(s.reduced):
        return None
    dims = DotDims(
        *(tuple(m.index(loop) for loop in contract) for m in maps),  # type: ignore[misc]
        *(tuple(m.index(loop) for loop in batch) for m in maps),
    )
    free = [[loop for loop in m if loop not in shared] for m in maps]
    dtype = tensor_type(s.operation.results[0].type).dtype
    out = dot_general(b, operands[left], operands[right], dims, dtype)
    return _to_result(b, s, out, [*batch, *free[0], *free[1]])  # type: ignore[list-item]


_GENERALIZE = "builtin.module(func.func(linalg-generalize-named-ops))"
_FROM_TOSA = (
    "builtin.module(func.func(tosa-to-linalg-named,tosa-to-linalg,tosa-to-arith,tosa-to-tensor))"
)
_DYNAMIC = -(2**63)


def import_linalg(module: ir.Module, source: str) -> ir.Module:
    """Raise the entry function of a verified module, which is changed on the way.

    Functions that it calls are written out. Raises UnsupportedModel for operations that PyC cannot
    express, all of them listed; PycError (INVALID_IR) for a module without an entry.
    """
    with module.context, ir.Location.unknown():
        for pipeline in (_FROM_TOSA, _GENERALIZE):
            try:
                passmanager.PassManager.parse(pipeline).run(module.operation)
            except ir.MLIRError as error:
                why = f"{source}: MLIR's lowering to linalg failed: {error}"
                raise PycError(ReasonCode.UNSUPPORTED_OP, why[:500]) from None
        return _LinalgImporter(module, source).run()


class _LinalgImporter(ModuleImporter):
    def argument(self, index: int, value: Any) -> Argument:
        """Name an argument after its place; a dynamic shape is refused."""
        type_ = tensor_type(value.type)
        return Argument(f"arg{index}", type_.dtype, _static_shape(type_, "an argument"))

    def function(
        self, name: str, arguments: Sequence[Argument], results: Callable[[Any], Any]
    ) -> ir.Module:
        """Make the module. Raises PycError (UNSUPPORTED_ATTRIBUTE) for an undefined result."""

        def defined(values: Any) -> Any:
            named = results(values)
            if not self.importer.findings and any(v is UNDEFINED for _, v in named):
                raise unsupported("a result that is undefined")
            return named

        return super().function(name, arguments, defined)

    def operation(
        self, site: SourceNode, operation: ir.Operation, operands: Sequence[Any],
        values: dict[Any, Any],
    ) -> Sequence[Any]:  # fmt: skip
        """Import an operation by its handler, or as a structured one."""
        op = operation
        try:
            if op.name == "arith.constant" and isinstance(op.results[0].type, ir.RankedTensorType):
                return (np.asarray(array_of(op.attributes["value"])),)
            if op.name == "arith.constant":
                return (constant(op),)
            if op.name == "tensor.empty":
                return (UNDEFINED,)
            if op.name == "func.call":
                return self.call(op.attributes["callee"].value, operands)
            if op.name == "linalg.generic":
                return self._generic(site, op, operands, values)
            if op.name == "tensor.pad":
                return self._pad(site, op, operands, values)
            handler = _HANDLERS.get(op.name)
            if op.name.startswith(("arith.", "math.")):
                handler = lambda b, op, x: scalar(b, op, _all(op, x))  # noqa: E731
            if handler is None:
                raise unsupported("no rule for this operation", ReasonCode.UNSUPPORTED_OP)
        except PycError as error:
            return self.refused(site, error)
        known = [None if o is UNDEFINED else o for o in operands]

        def apply(b: Any, lift: Lift) -> Any:
            def operand(index: int) -> Any:
                if known[index] is None:
                    raise unsupported("undefined elements that are read")
                return lift(index)

            return handler(b, op, operand)

        return self.importer.node(site, known, apply)

    def _generic(
        self, site: SourceNode, op: ir.Operation, operands: Sequence[Any], values: dict[Any, Any]
    ) -> Sequence[Any]:
        """Build a structured operation: undefined operands stay so, a filled start is known."""
        s = Structured.of(op)
        names = captured(s)
        if any(v not in values for v in names):
            raise unsupported("a body that reads values of another one")
        given = [*operands, *(values[v] for v in names)]
        known = [None if o is UNDEFINED else o for o in given]
        start = operands[s.inputs] if isinstance(operands[s.inputs], np.ndarray) else None

        def apply(b: Any, lift: Lift) -> Any:
            lifted = [UNDEFINED if o is None else lift(i) for i, o in enumerate(known)]
            outer = dict(zip(names, lifted[len(operands) :], strict=True))
            return lower(b, s, lifted[: len(operands)], outer, start)

        return self.importer.node(site, known, apply)

    def _pad(
        self, site: SourceNode, op: ir.Operation, operands: Sequence[Any], values: dict[Any, Any]
    ) -> Sequence[Any]:
        """tensor.pad by a constant, of its body or from outside."""
        end = list(op.regions[0].blocks[0].operations)[-1].operation
        made, value = made_by(end.operands[0]), values.get(end.operands[0])
        if value is None and made is not None and made.name == "arith.constant":
            value = constant(made)
        if not isinstance(value, np.ndarray):
            raise unsupported("a pad by a value that is no constant")
        low, high = _static(op, "static_low"), _static(op, "static_high")
        return self.importer.node(site, operands, lambda b, x: filled(b, x(0), low, high, value))


def _static_shape(type_: TensorType, what: str) -> tuple[int, ...]:
    if None in type_.shape:
        raise unsupported(f"{what} of dynamic shape: expected a static one")
    return tuple(d for d in type_.shape if d is not None)


def _shape(op: ir.Operation) -> tuple[int, ...]:
    return _static_shape(tensor_type(op.results[0].type), "a result")


def _static(op: ir.Operation, name: str) -> tuple[int, ...]:
    values = tuple(ir.DenseI64ArrayAttr(op.attributes[name]))
    if _DYNAMIC in values:
        raise unsupported(f"`{name}` computed when the program runs: expected constants")
    return values


def _sliced(op: ir.Operation) -> list[tuple[int, ...]]:
    return [_static(op, f"static_{name}") for name in ("offsets", "sizes", "strides")]


def _extract(b: Any, op: ir.Operation, x: Lift) -> Any:
    starts, sizes, steps = _sliced(op)
    stops = tuple(
        o + (n - 1) * s + 1 if n else o for o, n, s in zip(starts, sizes, steps, strict=True)
    )
    return reshape_to(b, b.slice(x(0), starts=starts, stops=stops, steps=steps), _shape(op))


def _insert(b: Any, op: ir.Operation, x: Lift) -> Any:
    starts, sizes, steps = _sliced(op)
    if set(steps) - {1}:
        raise unsupported("insert_slice with strides: expected 1")
    update = reshape_to(b, x(0), sizes)
    if tuple(sizes) == _shape(op):
        return update
    return b.update_slice(x(1), update, np.array(starts, np.int64))


def _extract_scalar(b: Any, op: ir.Operation, x: Lift) -> Any:
    if len(op.operands) > 1:
        raise unsupported("an element at a computed place", ReasonCode.UNSUPPORTED_OP)
    return x(0)


def _all(op: ir.Operation, x: Lift) -> list[Any]:
    return [x(i) for i in range(len(op.operands))]


_Handler = Callable[[Any, ir.Operation, Lift], Any]
_FILL: _Handler = lambda b, op, x: expand_to(b, reshape_to(b, x(0), ()), _shape(op))  # noqa: E731
_RESHAPE: _Handler = lambda b, op, x: reshape_to(b, x(0), _shape(op))  # noqa: E731
_HANDLERS: dict[str, _Handler] = {
    **dict.fromkeys(("linalg.fill", "tensor.splat"), _FILL),
    **dict.fromkeys(("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast"), _RESHAPE),
    "tensor.extract_slice": _extract,
    "tensor.insert_slice": _insert,
    "tensor.extract": _extract_scalar,
    "tensor.concat": lambda b, op, x: chain(b, _all(op, x), op.attributes["dim"].value),
}
