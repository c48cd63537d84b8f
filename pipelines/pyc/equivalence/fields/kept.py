"""Values that programs of one graph share, kept between runs and between questions.

A value is computed once for each node, and once for each operation on equal values: behind a place
where two programs are spelled differently, and after which their values agree again, nothing is
computed for the second. Interpreters are functions of what stands in the key: the op, its
parameters, its type, and its operands' values.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyc_mlir.pipelines.pyc.equivalence.fields.elements import Elements
from pyc_mlir.pipelines.pyc.equivalence.fields.programs import Graph, Program, evaluated
from pyc_mlir.pipelines.pyc.terms.nodes import TermNode

# Bytes of values that one interpreter keeps, and all those of one graph.
_MOST_BYTES, _MOST_OF_ALL = 1 << 25, 1 << 29
Step = Callable[[TermNode, list[Any]], Any]


@dataclass
class Kept:
    """The values of one interpreter.

    kinds: the op, parameters and type of each node, as a number. merges: look for equal values;
    where nearly none are, only nodes are shared. left: bytes that may still be kept.
    """

    kinds: Mapping[TermNode, int]
    merges: bool = True
    left: int = _MOST_BYTES
    by_node: dict[TermNode, Any] = field(default_factory=dict)
    by_operation: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    by_content: dict[tuple[Any, bytes], Any] = field(default_factory=dict)
    own: set[int] = field(default_factory=set)

    def evaluated(self, given: Program, step: Step) -> dict[TermNode, Any]:
        """Return the values of the results of a program, as `programs.evaluated` does."""

        def compute(node: TermNode, operands: list[Any]) -> Any:
            key = self._key(node, operands)
            value = None if key is None else self.by_operation.get(key)
            if value is None:
                value = self._keep(step(node, operands))
                if key is not None and id(value) in self.own:
                    self.by_operation[key] = value
            if id(value) in self.own:
                self.by_node[node] = value
            return value

        return evaluated(given, compute, self.by_node)

    def _key(self, node: TermNode, operands: Sequence[Any]) -> tuple[Any, ...] | None:
        """Return what the value follows from; None for leaves and for operands that are not kept.

        A constant operand is told from a value that is equal to it.
        """
        read = list(map(id, operands))
        if not self.merges or not read or not self.own.issuperset(read):
            return None
        told = [o.name == "constant" for o in node.operands]
        return self.kinds[node], *read, *told

    def _keep(self, value: Any) -> Any:
        """Return the value that is kept for all equal ones."""
        arrays = _arrays(value)
        size = sum(a.nbytes for a in arrays)
        if size > self.left:
            return value
        kept = value
        if self.merges:
            head = repr([type(value).__name__, *((a.shape, a.dtype.char) for a in arrays)])
            state = hashlib.blake2b(head.encode(), digest_size=16)
            for array in arrays:
                state.update(array.tobytes())
            # A type of bf16 has the letter of another one.
            kept = self.by_content.setdefault((value.type, state.digest()), value)
        if kept is value:
            self.own.add(id(value))
            self.left -= size
        return kept


def kept_of(graph: Graph, *key: Any, merges: bool = True) -> Kept:
    """Return what a graph keeps for the interpreter of a key."""
    if key not in graph.kept:
        taken = sum(_MOST_BYTES - k.left for k in graph.kept.values())
        left = max(0, min(_MOST_BYTES, _MOST_OF_ALL - taken))
        graph.kept[key] = Kept(graph.kinds, merges, left)
    return graph.kept[key]


def _arrays(value: Any) -> list[np.ndarray]:
    """Return all that a value of an interpreter consists of, beside its type."""
    if isinstance(value, np.ndarray | np.generic):
        return [np.asarray(value)]
    if isinstance(value, Elements):
        parts = [value.lanes, value.array]
    else:
        parts = [*value.levels, value.minus, value.array]
    return [np.zeros(0, bool) if p is None else np.asarray(p) for p in parts]
