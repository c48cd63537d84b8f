"""Programs as nodes: what the ops of one block compute, and who reads it.

Comes in: a function of pyc ops, or calls of a builder. Goes out: `TermNode`s, which are plain data,
so that spelled-out ops and the decompositions of composites are read by the same code.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import Builder
from pyc_mlir.dialects.opdef import OPS, OpDef, Trait, has
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.pipelines.pyc.rewriting import (
    constant_array,
    definition_of,
    params_of,
    splat_of,
    tensor_types,
    values_read,
)

# What a node is named that no pyc op of the block makes.
VALUE = "value"
# The same numbers, perhaps under another shape or in another element type.
VIEWS = Trait.VIEW | Trait.REPEATS | Trait.CONVERTS
# Ops that compute no number: they may stand inside a composite and be read elsewhere too.
MOVED = VIEWS | Trait.PERMUTES | Trait.CREATES


@dataclass(frozen=True, eq=False)
class TermNode:
    """A pyc op and its result: name without the dialect, operands, parameters, type.

    `value` is the MLIR value that the node stands for; None for what a `NodeBuilder` made.
    """

    name: str
    operands: tuple["TermNode", ...]
    params: Mapping[str, Any]
    type: TensorType
    value: Any = None

    def has(self, traits: Trait) -> bool:
        """Return whether the op has one of these traits."""
        return has(self.name, traits)

    @cached_property
    def array(self) -> np.ndarray | None:
        """The contents of a constant; None for other nodes."""
        if self.name != "constant":
            return None
        return self.params["value"] if self.value is None else constant_array(self.value)

    @cached_property
    def number(self) -> float | None:
        """The one element that a constant repeats; None for other nodes. Booleans are 0 and 1."""
        if self.name != "constant":
            return None
        if self.value is not None:
            splat = splat_of(self.value)
            return None if splat is None else float(splat)
        array = np.asarray(self.params["value"])
        # Decompositions make constants of one element, candidates views that repeat one.
        repeats = array.size == 1 or (array.size > 1 and not any(array.strides))
        return float(array[(0,) * array.ndim]) if repeats else None


@dataclass(frozen=True)
class TermGraph:
    """The nodes of one block in order, those that read each, and what is read from outside.

    `kept`: nodes that ops of other dialects read, as the function's return does.
    """

    nodes: tuple[TermNode, ...]
    readers: Mapping[TermNode, Sequence[TermNode]]
    kept: frozenset[TermNode]

    @cached_property
    def place(self) -> Mapping[TermNode, int]:
        """The number of each node in program order."""
        return {node: i for i, node in enumerate(self.nodes)}

    def ordered(self, nodes: Iterable[TermNode]) -> list[TermNode]:
        """Nodes of the block in program order; others are left out."""
        return sorted((n for n in nodes if n in self.place), key=self.place.__getitem__)

    def of(self, node: TermNode) -> Sequence[TermNode]:
        """The nodes that read a node, each as often as it does."""
        return self.readers.get(node, ())


@dataclass
class _Reader:
    types: Mapping[ir.Type, TensorType]
    nodes: dict[ir.Value, TermNode] = field(default_factory=dict)

    def node(self, value: ir.Value) -> TermNode | None:
        """The node of a value; None where it is no tensor of ours."""
        if value not in self.nodes and value.type in self.types:
            self.nodes[value] = TermNode(VALUE, (), {}, self.types[value.type], value)
        return self.nodes.get(value)


def read_graph(function: ir.Operation) -> TermGraph:
    """The graph of a function's block."""
    ops = [op.operation for op in function.regions[0].blocks[0].operations]
    types = tensor_types(v for op in ops for v in (*op.operands, *op.results))
    reader, nodes = _Reader(types), []
    readers: dict[TermNode, list[TermNode]] = {}
    kept: set[TermNode] = set()
    for op in ops:
        definition = definition_of(op)
        operands = [reader.node(v) for v in op.operands]
        if definition is None or None in operands or op.result.type not in types:
            kept.update(n for v in values_read(op) if (n := reader.node(v)) is not None)
            continue
        given = tuple(n for n in operands if n is not None)
        # The contents of constants are read when they are asked for.
        params = {} if definition.name == "constant" else params_of(definition, op)
        made = TermNode(definition.name, given, params, types[op.result.type], op.result)
        reader.nodes[op.result] = made
        nodes.append(made)
        for operand in given:
            readers.setdefault(operand, []).append(made)
    return TermGraph(tuple(nodes), readers, frozenset(kept))


class NodeBuilder(Builder):
    """Makes nodes: how a decomposition is read."""

    def emit(self, op: type[OpDef], operands: Sequence[Any], params: dict[str, Any]) -> TermNode:
        """A node of the inferred type."""
        inferred = op.infer(*(v.type for v in operands), **params)
        return TermNode(op.name, tuple(operands), params, inferred)

    def scalar(self, value: float, like: TermNode) -> TermNode:
        """A rank-0 constant, which remembers the number that it is the rounding of."""
        array = np.array(value, like.type.dtype)
        return TermNode(
            "constant", (), {"value": array, "exact": float(value)}, like.type.with_shape(())
        )

    def type_of(self, value: TermNode) -> TensorType:
        """The type of a node."""
        return value.type


def expanded(node: TermNode) -> TermNode | None:
    """A composite as its own decomposition; None for primitive nodes."""
    definition = OPS.get(node.name)
    if definition is None or definition.decompose is None:
        return None
    return definition.decompose(NodeBuilder(), *node.operands, **node.params)
