"""Programs to compare, as nodes of one graph in which equal computations are one node.

Comes in: functions of pyc ops, with a size for each dynamic dimension. Goes out: `Program`s, whose
nodes are `TermNode`s of static types. Composites are nodes of their own; groups are read through.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, VerificationError
from pyc_mlir.dialects.ir.attributes import params_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import Builder
from pyc_mlir.dialects.ir.interpreter import check_unstretched, op_definition
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.ir.pyc import compatible
from pyc_mlir.dialects.opdef import OPS, OpDef, Trait
from pyc_mlir.dialects.types import TensorType, dtype_name, is_float
from pyc_mlir.pipelines.pyc.terms.nodes import VALUE, TermNode

# The name of a constant of fractions, which no type of floats holds.
EXACT = "exact"


class NotComparable(Exception):
    """A program or a pair that the engines cannot read; the message says why."""


@dataclass(frozen=True)
class Program:
    """A function as nodes: its arguments, its results, and all nodes in program order."""

    inputs: tuple[TermNode, ...]
    outputs: tuple[TermNode, ...]
    nodes: tuple[TermNode, ...]

    @property
    def input_types(self) -> tuple[TensorType, ...]:
        """The types of the arguments, with their sizes."""
        return tuple(node.type for node in self.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """The types of the results, with their sizes."""
        return tuple(node.type for node in self.outputs)


@dataclass
class Graph:
    """The nodes of the programs of one comparison, each computation once.

    places, values: where each node first stood, for people, and the value that it is there. kept:
    values of nodes by interpreter (kept.py). plain: nodes in primitive ops. kinds: op,
    parameters and type of each node as a number.
    """

    known: dict[tuple[Any, ...], TermNode] = field(default_factory=dict)
    places: dict[TermNode, str] = field(default_factory=dict)
    values: dict[TermNode, ir.Value] = field(default_factory=dict)
    kept: dict[tuple[Any, ...], Any] = field(default_factory=dict, repr=False)
    plain: dict[TermNode, TermNode] = field(default_factory=dict, repr=False)
    kinds: dict[TermNode, int] = field(default_factory=dict, repr=False)
    _numbers: dict[tuple[Any, ...], int] = field(default_factory=dict, repr=False)

    def input(self, number: int, type_: TensorType) -> TermNode:
        """Return the node of an argument."""
        return self._made((VALUE, number, type_), VALUE, (), {"number": number}, type_)

    def exact(self, fractions: np.ndarray, dtype: np.dtype) -> TermNode:
        """Return the node of a constant of `Fraction`s; `value` has them rounded to f64."""
        type_ = TensorType(fractions.shape, dtype)
        params = {"fractions": fractions, "value": fractions.astype(np.float64)}
        content = tuple(map(str, fractions.ravel()))
        return self._made((EXACT, (), content, type_), EXACT, (), params, type_)

    def node(
        self, op: type[OpDef], operands: Sequence[TermNode], params: Mapping[str, Any]
    ) -> TermNode:
        """Return the node of an op. Raises VerificationError for operands that do not fit."""
        type_ = op.infer(*(o.type for o in operands), **params)
        if not type_.is_static:
            raise NotComparable(f"pyc.{op.name}: the sizes of its result depend on data")
        content = content_of(params)
        ordered: Iterable[int] = map(id, operands)
        # The sign of a zero that maximum and minimum give depends on the order.
        arithmetic = op.has(Trait.ARITHMETIC) or not is_float(type_.dtype)
        arithmetic |= any(o.number is not None and o.number != 0 for o in operands)
        if op.has(Trait.COMMUTATIVE) and arithmetic:
            ordered = sorted(ordered)
        key = (op.name, tuple(ordered), content, type_)
        return self._made(key, op.name, tuple(operands), dict(params), type_)

    def _made(
        self,
        key: tuple[Any, ...],
        name: str,
        operands: tuple[TermNode, ...],
        params: dict[str, Any],
        type_: TensorType,
    ) -> TermNode:
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = TermNode(name, operands, params, type_)
            kind = (name, key[2], type_)
            self.kinds[found] = self._numbers.setdefault(kind, len(self._numbers))
        return found

    def read(self, function: ir.Operation, sizes: Sequence[TensorType] = ()) -> Program:
        """Return the program of a function; `sizes` are its arguments' types where some vary.

        Raises NotComparable for dynamic sizes without `sizes`, for sizes that the function does not
        take, and for ops of other dialects.
        """
        block = function.regions[0].blocks[0]
        declared = [from_mlir(a.type, f"argument {i}") for i, a in enumerate(block.arguments)]
        types = list(sizes) or declared
        if len(types) != len(declared) or not all(map(compatible, types, declared)):
            raise NotComparable("the function takes other arguments")
        if not all(t.is_static for t in types):
            raise NotComparable("the sizes of its arguments vary; give their sizes")
        inputs = tuple(self.input(i, t) for i, t in enumerate(types))
        values: dict[ir.Value, TermNode] = dict(zip(block.arguments, inputs, strict=True))
        self.values.update(zip(inputs, block.arguments, strict=True))
        try:
            outputs = self._block(block, values)
        except (PycError, VerificationError) as error:
            raise NotComparable(str(error)) from None
        results = function.attributes["function_type"].value.results
        for node, result in zip(outputs, results, strict=True):
            _require(compatible(node.type, from_mlir(result)), node.type, result)
        return program(inputs, outputs)

    def _block(self, block: ir.Block, values: dict[ir.Value, TermNode]) -> tuple[TermNode, ...]:
        for op in block.operations:
            operation = op.operation
            operands = [values[v] for v in operation.operands]
            if operation.name in ("func.return", "pyc.yield"):
                return tuple(operands)
            if operation.name == "pyc.group":
                inner = operation.regions[0].blocks[0]
                values.update(zip(inner.arguments, operands, strict=False))
                (made,) = self._block(inner, values)
            elif operation.name == "tensor.cast":
                (made,) = operands
            else:
                definition = op_definition(operation)
                params = params_of(definition, operation)
                made = self.node(definition, operands, params)
                shapes = [_sizes(o.type) for o in operands]
                check_unstretched(operation, shapes, _sizes(made.type))
            declared = from_mlir(operation.result.type)
            _require(compatible(made.type, declared), made.type, operation.result.type)
            self.places.setdefault(made, str(operation.location))
            self.values.setdefault(made, operation.result)
            values[operation.result] = made
        raise AssertionError("a verified block ends in a terminator")

    def place(self, node: TermNode) -> str:
        """Return a node for people: its op, type and location."""
        where = self.places.get(node, "")
        where = "" if "unknown" in where else f" at {where.removeprefix('loc(').removesuffix(')')}"
        return f"{node.name} : {node.type}{where}"


class GraphBuilder(Builder):
    """Makes nodes of a graph: how a decomposition becomes nodes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def emit(self, op: type[OpDef], operands: Sequence[Any], params: dict[str, Any]) -> TermNode:
        """Return the node."""
        return self.graph.node(op, operands, params)

    def type_of(self, value: TermNode) -> TensorType:
        """Return the type of a node."""
        return value.type


def program(inputs: Sequence[TermNode], outputs: Sequence[TermNode]) -> Program:
    """Return the program of these results; its nodes are those that they need."""
    order: dict[TermNode, None] = {}
    stack = [(node, False) for node in reversed(outputs)]
    while stack:
        node, done = stack.pop()
        if node in order:
            continue
        if done:
            order[node] = None
        else:
            stack.append((node, True))
            stack.extend((o, False) for o in reversed(node.operands) if o not in order)
    return Program(tuple(inputs), tuple(outputs), tuple(order))


def decomposed(given: Program, graph: Graph) -> Program:
    """Return the program in primitive ops."""
    builder = GraphBuilder(graph)
    made = graph.plain

    def primitive(node: TermNode) -> TermNode:
        stack = [node]
        while stack:
            top = stack[-1]
            if top in made:
                stack.pop()
            elif missing := [o for o in top.operands if o not in made]:
                stack.extend(missing)
            elif (target := _spelled(top, [made[o] for o in top.operands], builder)) is None:
                made[top] = top
            elif target is top or target in made:
                made[top] = made.get(target, top)
            else:
                if top in graph.places:
                    graph.places.setdefault(target, graph.places[top])
                stack.append(target)
        return made[node]

    for node in given.nodes:
        primitive(node)
    return program(given.inputs, [made[o] for o in given.outputs])


def _spelled(
    node: TermNode, operands: Sequence[TermNode], builder: GraphBuilder
) -> TermNode | None:
    """Return what a node becomes, with its operands in primitive ops; None for an argument."""
    if node.name in (VALUE, EXACT):
        return None
    definition = OPS[node.name]
    spelled = None
    if definition.decompose is not None:
        spelled = definition.decompose(builder, *operands, **node.params)
    if spelled is not None:
        return spelled
    if all(a is b for a, b in zip(operands, node.operands, strict=True)):
        return node
    return builder.graph.node(definition, operands, node.params)


def evaluated(
    given: Program,
    compute: Callable[[TermNode, list[Any]], Any],
    known: Mapping[TermNode, Any] = MappingProxyType({}),
) -> dict[TermNode, Any]:
    """Return the values of the results; others are forgotten after their last use.

    known: values that need not be computed, nor what only they are computed from.
    """
    needed = _needed(given, known)
    uses: dict[TermNode, int] = {}
    for node in needed:
        for operand in node.operands if node not in known else ():
            uses[operand] = uses.get(operand, 0) + 1
    values: dict[TermNode, Any] = {}
    for node in needed:
        if node in known:
            values[node] = known[node]
            continue
        values[node] = compute(node, [values[o] for o in node.operands])
        for operand in node.operands:
            uses[operand] -= 1
            if not uses[operand] and operand not in given.outputs:
                values.pop(operand, None)
    return values


def _needed(given: Program, known: Mapping[TermNode, Any]) -> list[TermNode]:
    """Return the nodes that the results need in order, as far as the nearest that are known."""
    needed: set[TermNode] = set()
    pending = list(given.outputs)
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            if node not in known:
                pending.extend(node.operands)
    return [node for node in given.nodes if node in needed]


def describe(types: Sequence[TensorType]) -> str:
    """Return types as a text for messages."""
    return ", ".join(map(str, types)) or "none"


def _sizes(type_: TensorType) -> tuple[int, ...]:
    return tuple(d or 0 for d in type_.shape)


def _require(holds: bool, got: object, declared: object) -> None:
    if not holds:
        raise NotComparable(f"a value of type {got} is declared as {declared}")


def content_of(params: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return parameters as a key."""
    return tuple((name, _content(value)) for name, value in sorted(params.items()))


def _content(value: Any) -> Any:
    """Return a parameter as a key: numbers by their bits, arrays by their contents."""
    if isinstance(value, float):
        return "f64", struct.pack("<d", value)
    if isinstance(value, np.dtype):
        return dtype_name(value)
    if isinstance(value, tuple):
        return tuple(map(_content, value))
    if isinstance(value, np.ndarray):
        repeats = value.size > 1 and not any(value.strides)
        few = value[(0,) * value.ndim] if repeats else value
        data = np.ascontiguousarray(few).reshape(-1).view(np.uint8)
        digest = hashlib.blake2b(data.tobytes(), digest_size=16).digest()
        return value.shape, dtype_name(value.dtype), repeats, digest
    return type(value).__name__, value
