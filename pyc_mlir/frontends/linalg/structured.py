"""One structured operation: loops, indexing maps, a body. Elementwise, reduction, contraction.

    out[map(loops)] = combine(out[map(loops)], value(inputs[their maps(loops)]))

Without reduced loops the body is evaluated on the inputs, aligned with the loops. With reduced
loops the last operation of the body combines; a product of two inputs that is summed is a
dot_general, a product whose image has sums of loops as indices a convolution.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.types import I64
from pyc_mlir.frontends.hlo import reduction
from pyc_mlir.frontends.hlo.contraction import DotDims, dot_general
from pyc_mlir.frontends.hlo.elementwise import POINTWISE
from pyc_mlir.frontends.hlo.movement import transposed
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import expand_to, reshape_to
from pyc_mlir.frontends.linalg.bodies import COMBINERS, constant, scalar
from pyc_mlir.frontends.stablehlo.op import tensor_type

_LOOP = re.compile(r"d(\d+)$")
_CASTS = ("arith.extf", "arith.extsi")


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
    if not s.reduced:
        return _elementwise(b, s, operands, outer)
    *operations, end = [view.operation for view in s.body.operations]
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
    if start is not None and _is_neutral(start, name):
        return made
    return POINTWISE[name](b, made, initial)


def _is_neutral(initial: np.ndarray, name: str) -> bool:
    wanted = reduction.neutral(name, initial.dtype)
    return bool((initial == wanted).all())


def _elementwise(b: Any, s: Structured, operands: Sequence[Any], outer: Mapping[Any, Any]) -> Any:
    end = list(s.body.operations)[-1].operation
    out = _evaluated(b, s, operands, outer, end.operands[0])
    return _to_result(b, s, expand_to(b, out, s.sizes), list(range(len(s.sizes))))


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
        return op.operands[0] if op is not None and op.name in _CASTS else v

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
