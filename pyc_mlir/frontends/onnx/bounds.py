"""Check the bytes of an ONNX model against the reader's bounds, before protobuf parses them.

A protobuf takes up to a hundred times its bytes in memory, and functions that call functions stand
for more nodes than any memory holds. `scan` counts the fields of the bytes, `check_nodes` the
nodes that calls stand for. The bounds are far beyond what is exported: a node has some
twenty fields.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache

import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor

# What a protobuf may have; larger models keep their weights in files beside them.
MAX_PROTO_BYTES = (1 << 31) - 1
# A message takes some 200 bytes of memory, so that these are a gigabyte, read in seconds.
MAX_FIELDS = 5_000_000
# Messages in messages, as protobuf has it: graphs in nodes take three levels each.
MAX_LEVELS = 100
# Nodes after functions were put in the place of their calls, which take some 2 ms each to lower,
# and functions that call each other.
MAX_NODES, MAX_CALLS = 50_000, 100
# Characters of an attribute: ONNX's own are short, and onnx takes the square of them for some.
MAX_TEXT = 4096

# An Einsum's terms: letters, and at most one ellipsis each.
_TERM = rb"[A-Za-z\s]*(?:\.\.\.)?[A-Za-z\s]*"
_EQUATION = re.compile(_TERM + rb"(?:," + _TERM + rb")*(?:->" + _TERM + rb")?")

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}


def check_size(size: int) -> None:
    """Raise ValueError for more bytes than a protobuf may have."""
    if size > MAX_PROTO_BYTES:
        raise ValueError(
            f"expected at most {MAX_PROTO_BYTES} bytes with weights in files beside the model, "
            f"got {size}"
        )


def scan(data: bytes) -> None:
    """Raise ValueError for bytes that are no ONNX model, or beyond the bounds.

    Nothing is allocated; weights are passed over.
    """
    check_size(len(data))
    try:
        _scan(data)
    except IndexError:
        got = f"{len(data)} bytes that end early"
        raise ValueError(f"expected an ONNX protobuf, got {got}") from None


Kind = tuple[bool, Descriptor | None]
Table = dict[int, Kind]
_BYTES: Kind = (False, None)


@cache
def _table(kind: Descriptor) -> Table:
    """Return for each field of a message whether it is text, and the message that it holds."""
    return {
        f.number: (
            f.type == FieldDescriptor.TYPE_STRING,
            f.message_type if f.type == FieldDescriptor.TYPE_MESSAGE else None,
        )
        for f in kind.fields or ()
        if f.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE)
    }


def _scan(data: bytes) -> None:
    """Walk the fields of a serialized model. Raises ValueError, IndexError."""
    at, count = 0, 0
    end, fields = len(data), _table(onnx.ModelProto.DESCRIPTOR)
    outer: list[tuple[int, Table]] = []
    while True:
        while at == end:
            if not outer:
                return
            end, fields = outer.pop()
        count += 1
        if count > MAX_FIELDS:
            raise ValueError(f"expected at most {MAX_FIELDS} fields beside the weights, got more")
        key, at = _varint(data, at)
        wire = key & 7
        if wire == _VARINT:
            _, at = _varint(data, at)
            if at > end:
                raise ValueError(f"expected an ONNX protobuf, got other bytes at {at}")
            continue
        size, at = _varint(data, at) if wire == _LENGTH else (_FIXED.get(wire, -1), at)
        if size < 0 or at + size > end:
            raise ValueError(f"expected an ONNX protobuf, got other bytes at {at}")
        is_text, message = fields.get(key >> 3, _BYTES)
        if wire == _LENGTH and message is not None:
            if len(outer) == MAX_LEVELS:
                raise ValueError(f"expected at most {MAX_LEVELS} messages in one another")
            outer.append((end, fields))
            end, fields = at + size, _table(message)
            continue
        if is_text and wire == _LENGTH:
            _require_text(data[at : at + size])
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode the number at a place; return it with the place behind it."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift += 7
        if shift > 70:
            raise ValueError(f"expected an ONNX protobuf, got other bytes at {at}")
    return value, at + 1


def _require_text(data: bytes) -> None:
    # The protobuf runtime hands out bytes for a string that is not UTF-8.
    try:
        data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"expected names in UTF-8, got {data[:80]!r}") from None


def all_nodes(nodes: Sequence[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield the nodes and those of the graphs in their attributes."""
    for node in nodes:
        yield node
        for graph in inner_graphs(node):
            yield from all_nodes(graph.node)


def inner_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def check_nodes(model: onnx.ModelProto) -> None:
    """Raise ValueError for texts, or functions, that stand for more than is read."""
    bodies = [model.graph.node, *(f.node for f in model.functions)]
    count = sum(1 for nodes in bodies for _ in all_nodes(nodes))
    if count > MAX_NODES:
        raise ValueError(f"expected at most {MAX_NODES} nodes, got {count}")
    for node in (n for nodes in bodies for n in all_nodes(nodes)):
        for attribute in node.attribute:
            if len(attribute.s) > MAX_TEXT:
                raise ValueError(
                    f"node {node.name or node.op_type}: expected attribute `{attribute.name}` of "
                    f"at most {MAX_TEXT} characters, got {len(attribute.s)}"
                )
        _check_native(node)
    if model.functions:
        _check_calls(model)


def _check_native(node: onnx.NodeProto) -> None:
    """Raise ValueError for what onnx's own inference of shapes does not come back from."""
    for attribute in node.attribute:
        where = f"node {node.name or node.op_type}: expected attribute `{attribute.name}`"
        terms = (node.op_type, attribute.name) == ("Einsum", "equation")
        if terms and not _EQUATION.fullmatch(attribute.s):
            raise ValueError(f"{where} of terms as in `ij,jk->ik`, got {attribute.s[:80]!r}")
        # It makes a list of as many parts, whatever outputs there are.
        parts = (node.op_type, attribute.name) == ("Split", "num_outputs")
        if parts and not 0 < attribute.i <= len(node.output):
            raise ValueError(f"{where} of 1 to {len(node.output)}, got {attribute.i}")


Called = tuple[str, str, str]


def _check_calls(model: onnx.ModelProto) -> None:
    """Raise ValueError for functions that call each other in a ring, too deep or too often."""
    calls: dict[Called, list[Called]] = {
        (f.domain, f.name, f.overload): [_called(n) for n in all_nodes(f.node)]
        for f in model.functions
    }
    sizes: dict[Called, int] = {}
    waiting = set(calls)
    for _ in range(MAX_CALLS):
        ready = [f for f in waiting if waiting.isdisjoint(calls[f])]
        sizes |= {f: sum(sizes.get(c, 1) for c in calls[f]) for f in ready}
        waiting.difference_update(ready)
        if not ready:
            break
    if waiting:
        name = ".".join(min(waiting)[:2])
        raise ValueError(
            f"function {name}: expected functions that call at most {MAX_CALLS} of each other, "
            "none of them itself"
        )
    nodes = sum(sizes.get(_called(n), 1) for n in all_nodes(model.graph.node))
    if nodes > MAX_NODES:
        raise ValueError(
            f"expected at most {MAX_NODES} nodes once functions stand in the place of their "
            f"calls, got {nodes}"
        )


def _called(node: onnx.NodeProto) -> Called:
    return node.domain, node.op_type, node.overload
