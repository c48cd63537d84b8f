"""Programs as nodes: what the ops of one block compute, and who reads it.

Comes in: a function of pyc ops, or calls of a builder. Goes out: `TermNode`s, which are plain data,
so that spelled-out ops and the decompositions of composites are read by the same code.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import Builder
from pyc_mlir.dialects.opdef import OPS, OpDef, Trait, has
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.pipelines.pyc.graph import BlockGraph
from pyc_mlir.pipelines.pyc.rewriting import constant_array, splat_of

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
        """Return nodes of the block in program order; others are left out."""
        return sorted((n for n in nodes if n in self.place), key=self.place.__getitem__)

    def of(self, node: TermNode) -> Sequence[TermNode]:
        """Return the nodes that read a node, each as often as it does."""
        return self.readers.get(node, ())


def read_graph(function: ir.Operation) -> TermGraph:
    """Return the graph of a function's block."""
    block = BlockGraph(function)
    nodes: list[TermNode] = []
    # By value; None for what is no tensor.
    known: list[TermNode | None] = [
        None if type_ is None else TermNode(VALUE, (), {}, type_, value)
        for value, type_ in zip(block.values, block.types, strict=True)
    ]
    readers: dict[TermNode, list[TermNode]] = {}
    kept: set[TermNode] = set()
    for i, definition in enumerate(block.definitions):
        operands = tuple(n for v in block.operands[i] if (n := known[v]) is not None)
        type_ = block.result(i)
        if definition is None or type_ is None or len(operands) < len(block.operands[i]):
            kept.update(n for v in block.reads[i] if (n := known[v]) is not None)
            continue
        # The contents of constants are read when they are asked for.
        params = {} if definition.name == "constant" else block.params(i)
        at = block.makes[i]
        made = known[at] = TermNode(definition.name, operands, params, type_, block.values[at])
        nodes.append(made)
        for operand in operands:
            readers.setdefault(operand, []).append(made)
    return TermGraph(tuple(nodes), readers, frozenset(kept))


class NodeBuilder(Builder):
    """Makes nodes: how a decomposition is read."""

    def emit(self, op: type[OpDef], operands: Sequence[Any], params: dict[str, Any]) -> TermNode:
        """Return a node of the inferred type."""
        inferred = op.infer(*(v.type for v in operands), **params)
        return TermNode(op.name, tuple(operands), params, inferred)

    def scalar(self, value: float, like: TermNode) -> TermNode:
        """Return a rank-0 constant, which remembers the number that it is the rounding of."""
        array = np.array(value, like.type.dtype)
        return TermNode(
            "constant", (), {"value": array, "exact": float(value)}, like.type.with_shape(())
        )

    def type_of(self, value: TermNode) -> TensorType:
        """Return the type of a node."""
        return value.type


def expanded(node: TermNode) -> TermNode | None:
    """Return a composite as its own decomposition; None for primitive nodes."""
    definition = OPS.get(node.name)
    if definition is None or definition.decompose is None:
        return None
    return definition.decompose(NodeBuilder(), *node.operands, **node.params)
