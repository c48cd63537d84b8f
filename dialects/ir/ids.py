"""Names of ops and programs by what they compute: canonical ids of ops, structures of functions.

An op's id is ``<op>.<hash>`` where the hash covers the op, its parameters (constants by content),
its result type and the ids of its operands (a Merkle hash). Equal computations on equal operands
that stand twice get ``#1``, ``#2`` in program order. `pyc.*` attributes are for reading and are
left out. The graph's own id covers the ids that it returns. Beside each id stands one by type,
which is blind to the contents of constants: programs of equal structure, such as a model before and
after training, have equal ones.

    structure_of(function).id            constants by type: a retrained model has the same
    structure_of(function, exact=True)   constants by content, as `OpIds.graph_id` covers

A structure is the canonical text of a function and that text's SHA-256. Names, locations, `pyc.*`
attributes, the order of independent ops and that of a commutative op's operands do not matter;
arguments count by their places. Equal ops on equal operands count once."""

import hashlib
from collections import Counter
from dataclasses import dataclass
from functools import cached_property

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.attributes import (
    array_of,
    as_resource,
    attributes_of,
    content_digest,
    definition_of,
    resource_digest,
)
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.util.canonical import Vertex, canonical_text

_DIGEST = 8


def _hash(*parts: str | bytes) -> str:
    data = [part.encode() if isinstance(part, str) else part for part in parts]
    joined = b"".join([len(d).to_bytes(8, "little") + d for d in data])
    return hashlib.blake2b(joined, digest_size=_DIGEST).hexdigest()


def attribute_content(attr: ir.Attribute) -> bytes:
    """Return an attribute by content: constants inline and as resources are the same."""
    if isinstance(attr, ir.DenseElementsAttr) and attr.is_splat:
        return str(attr).encode()
    resource = as_resource(attr)
    try:
        if resource is not None:
            return _hash(str(attr.type), resource_digest(resource)).encode()
        if isinstance(attr, ir.DenseElementsAttr):
            return _hash(str(attr.type), content_digest(array_of(attr))).encode()
    except VerificationError:
        pass  # Elements of other dialects' types, such as vectors, have their text.
    return str(attr).encode()


class OpIds:
    """The ids of every op of one function, by operation. Recompute after changing the function.

    `seen` counts the computations that stand twice; shared by the functions of a module, it makes
    ids unique in the module.
    """

    def __init__(self, function: ir.Operation, seen: Counter[str] | None = None) -> None:
        self._values: dict[ir.Value, tuple[str, str]] = {}
        self._types: dict[ir.Type, str] = {}
        self._attributes: dict[ir.Attribute, bytes] = {}
        self._seen: Counter[str] = Counter() if seen is None else seen
        self.by_op: dict[ir.Operation, str] = {}
        self.by_type: dict[ir.Operation, str] = {}
        blocks = [self._visit_block(block, "arg") for block in function.regions[0].blocks]
        one = len(blocks) == 1
        self.graph_id = blocks[0][0] if one else _hash(*(exact for exact, _ in blocks))
        self.graph_by_type = blocks[0][1] if one else _hash(*(by_type for _, by_type in blocks))

    def __getitem__(self, op: ir.Operation) -> str:
        return self.by_op[op]

    def _visit_block(self, block: ir.Block, arguments: str) -> tuple[str, str]:
        """Give ids to the ops in order; the block's own hashes are those of its terminator.

        `arguments` names the block's arguments: how deep it is nested, not which block it is.
        """
        for i, argument in enumerate(block.arguments):
            name = f"{arguments}{i}:{argument.type}"
            self._values[argument] = name, name
        last = "", ""
        for op in block.operations:
            last = self._visit(op.operation, f"inner-{arguments}")
        return last

    def _visit(self, op: ir.Operation, arguments: str) -> tuple[str, str]:
        regions = [self._visit_block(b, arguments) for r in op.regions for b in r.blocks]
        attributes = [(n, attr) for n, attr in attributes_of(op) if not n.startswith("pyc.")]
        name, results = op.name, list(op.results)
        texts = [part for n, attr in attributes for part in (n, self._attribute_text(attr))]
        types = [self._type_text(r.type) for r in results]
        read = [self._values.get(v) or (f"later:{v.type}",) * 2 for v in op.operands]
        exact, by_type = (
            _hash(name, *parameters, *types, *[v[i] for v in read], *[r[i] for r in regions])
            for i, parameters in enumerate((texts, [] if name == "pyc.constant" else texts))
        )
        for i, result in enumerate(results):
            self._values[result] = f"{exact}:{i}", f"{by_type}:{i}"
        base = name.removeprefix("pyc.")
        self.by_op[op] = self._numbered(f"{base}.{exact}")
        self.by_type[op] = self._numbered(f"{base}.by-type.{by_type}")
        return exact, by_type

    def _numbered(self, base: str) -> str:
        """Return an id that several ops may have, with ``#1`` from the second on."""
        repeat = self._seen.get(base, 0)
        self._seen[base] = repeat + 1
        return f"{base}#{repeat}" if repeat else base

    def _attribute_text(self, attr: ir.Attribute) -> bytes:
        text = self._attributes.get(attr)
        if text is None:
            text = self._attributes[attr] = attribute_content(attr)
        return text

    def _type_text(self, type_: ir.Type) -> str:
        """Return `str`, asked once: programs have many values and few types."""
        text = self._types.get(type_)
        if text is None:
            text = self._types[type_] = str(type_)
        return text


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
    """Return the structure of a function with a body; `exact` tells constants apart by content."""
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
        """Return a value that is made further down, where blocks form a loop: known by its type."""
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
