"""The structure of a function: what it computes, with or without the contents of its constants.

    structure_of(function).id            constants by type: a retrained model has the same
    structure_of(function, exact=True)   constants by content, as `OpIds.graph_id` covers

Comes in: a function of pyc ops. Goes out: its canonical text and that text's SHA-256. Names,
locations, `pyc.*` attributes, the order of independent ops and that of a commutative op's operands
do not matter; arguments count by their places. Equal ops on equal operands count once.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

from pyc_mlir.dialects.ir.attributes import attributes_of, definition_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import attribute_content
from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.util.canonical import Vertex, canonical_text

# Counts up when the text of any program changes.
NORMALIZER = 1
_CONSTANT = "pyc.constant"


@dataclass(frozen=True)
class Structure:
    """A program's canonical text, and how many ops it has."""

    text: str
    ops: int

    @cached_property
    def id(self) -> str:
        """``s1-`` and the SHA-256 of the text."""
        return f"s{NORMALIZER}-{hashlib.sha256(self.text.encode()).hexdigest()}"


def structure_of(function: ir.Operation, exact: bool = False) -> Structure:
    """The structure of a function with a body; `exact` tells constants apart by content."""
    reader = _Reader(exact)
    for block in function.regions[0].blocks:
        reader.read(block, "argument")
    name = "graph" if exact else "structure"
    text = f"{name} {NORMALIZER}\n{canonical_text(reader.vertices)}"
    return Structure(text, reader.ops)


class _Reader:
    """Ops as vertices; ops of nested regions come before the op that they belong to."""

    def __init__(self, exact: bool) -> None:
        self.vertices: list[Vertex] = []
        self.ops = 0
        self._exact = exact
        self._values: dict[ir.Value, tuple[int, int]] = {}

    def read(self, block: ir.Block, arguments: str) -> int:
        """Read a block; return the number of its last op's vertex.

        `arguments` names the block's arguments: how deep it is nested, not which block it is.
        """
        for place, argument in enumerate(block.arguments):
            self._values[argument] = (len(self.vertices), 0)
            self.vertices.append(Vertex(f"{arguments} {place} {argument.type}"))
        for op in block.operations:
            self._visit(op.operation, f"inner {arguments}")
        return len(self.vertices) - 1

    def _visit(self, op: ir.Operation, arguments: str) -> None:
        inner = [(self.read(b, arguments), 0) for r in op.regions for b in r.blocks]
        operands = [self._values.get(v) or self._later(v) for v in op.operands]
        # A constant by its type alone is one of many.
        sharable = not inner and (self._exact or op.name != _CONSTANT)
        for place, result in enumerate(op.results):
            self._values[result] = (len(self.vertices), place)
        definition = definition_of(op)
        commutes = definition is not None and definition.has(Trait.COMMUTATIVE)
        self.vertices.append(Vertex(self._label(op), (*operands, *inner), commutes, sharable))
        self.ops += op.name.startswith("pyc.") and op.name != _CONSTANT

    def _later(self, value: ir.Value) -> tuple[int, int]:
        """A value that is made further down, where blocks form a loop: known by its type."""
        self._values[value] = (len(self.vertices), 0)
        self.vertices.append(Vertex(f"later {value.type}"))
        return self._values[value]

    def _label(self, op: ir.Operation) -> str:
        types = ", ".join(str(result.type) for result in op.results)
        if op.name == _CONSTANT and not self._exact:
            return f"{op.name} : {types}"
        kept = [(n, attr) for n, attr in attributes_of(op) if not n.startswith("pyc.")]
        listed = ", ".join(f"{n}={attribute_content(attr).decode()}" for n, attr in sorted(kept))
        return f"{op.name} {{{listed}}} : {types}"
