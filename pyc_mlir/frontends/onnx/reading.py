"""From a file, bytes or a ModelProto to a protobuf within bounds; its nodes and their names.

A protobuf takes up to a hundred times its bytes in memory, and functions that call functions stand
for more nodes than any memory holds. `scan` counts the fields of the bytes before protobuf parses
them, `check_nodes` the nodes that calls stand for. The bounds are far beyond what is exported: a
node has some twenty fields. Names are made printable where they enter.

Reports about models that are refused name each node's family, ONNX's own folder of its definition
(``math``, ``rnn``, ``controlflow``), and count the work that is lost, by the shapes that onnx
infers: twice the multiplications of products, convolutions and recurrent layers, none for what
moves data, and one operation for each element of the larger of first input and output for all else.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path, PurePosixPath

import onnx
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from pyc_mlir.artifact.import_report import NODES, GraphBreak, ImportReport
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.printable import is_one_line, one_line
from pyc_mlir.dialects.util.files import file_error, open_plain

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
# ONNX's own domain.
DEFAULT_DOMAINS = ("", "ai.onnx")
# Texts that are no names, and stay as they are.
_NO_NAMES = ("doc_string", "producer_name", "producer_version", "key", "value")


@dataclass(frozen=True)
class ModelSource:
    """The origin of a model: the name for messages and locations, and its directory if any."""

    name: str
    directory: Path | None


def read_model(model: str | Path | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, ModelSource]:
    """Read the protobuf without checking it. Raises PycError (FILE_ACCESS, BAD_MODEL)."""
    if isinstance(model, onnx.ModelProto):
        source = ModelSource("<onnx>", None)
    elif isinstance(model, bytes):
        source, model = ModelSource("<onnx>", None), _parsed(model, "<onnx>")
    else:
        path = Path(model)
        try:
            with open_plain(path) as file:
                check_size(os.fstat(file.fileno()).st_size)
                data = file.read()
        except OSError as error:
            raise file_error(error, "an ONNX file", path) from None
        except ValueError as error:
            raise bad_model(str(path), str(error)) from None
        model = _parsed(data, str(path))
        source = ModelSource(one_line(path), path.resolve().parent)
    return with_printable_names(model), source


def _parsed(data: bytes, name: str) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        scan(data)
        model.ParseFromString(data)
    except ValueError as error:
        raise bad_model(name, str(error)) from None
    except DecodeError as error:
        raise bad_model(
            name, f"expected an ONNX protobuf, got {len(data)} bytes: {error}"
        ) from error
    return model


def bad_model(name: str, problem: str) -> PycError:
    """Return the error for a malformed model."""
    # onnx's own messages have several lines, and names in them.
    return PycError(
        ReasonCode.BAD_MODEL,
        f"{one_line(name)}: {' '.join(problem.split())}; export the model again",
    )


def with_printable_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model itself if all names are printable on one line, else a copy in which they
    are: values are named anew everywhere alike, so that it computes what it did."""
    if all(is_one_line(" ".join(texts)) for _, _, texts in _named(model)):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for owner, name, texts in list(_named(copy)):
        if isinstance(getattr(owner, name), str):
            setattr(owner, name, one_line(texts[0]))
        else:
            getattr(owner, name)[:] = map(one_line, texts)
    return copy


def _named(message: Message) -> Iterator[tuple[Message, str, Sequence[str]]]:
    """Yield each field of a message, and of those in it, that holds names: owner, field, texts."""
    if isinstance(message, onnx.TensorProto):
        yield message, "name", (message.name,)  # Not the data, which would be copied.
        return
    for field, value in message.ListFields():
        parts = value if hasattr(value, "extend") else (value,)
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in parts:
                yield from _named(part)
        elif field.type == FieldDescriptor.TYPE_STRING and field.name not in _NO_NAMES:
            yield message, field.name, parts


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
            # The protobuf runtime hands out bytes for a string that is not UTF-8.
            try:
                data[at : at + size].decode()
            except UnicodeDecodeError:
                got = data[at : at + min(size, 80)]
                raise ValueError(f"expected names in UTF-8, got {got!r}") from None
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
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


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return the nodes and those of the graphs in their attributes."""
    found = []
    for node in nodes:
        found.append(node)
        for graph in inner_graphs(node):
            found += all_nodes(graph.node)
    return found


def inner_graphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs in the attributes of a node."""
    single = [a.g for a in node.attribute if a.HasField("g")]
    return [*single, *(graph for a in node.attribute for graph in a.graphs)]


def tensors_of(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return the tensors in attributes of nodes, of functions and inner graphs too."""
    bodies = (model.graph.node, *(f.node for f in model.functions))
    found = []
    for attribute in (a for nodes in bodies for n in all_nodes(nodes) for a in n.attribute):
        found += [attribute.t] if attribute.HasField("t") else []
        found += attribute.tensors
        for graph in (attribute.g, *attribute.graphs):
            found += graph.initializer
    return found


def live_nodes(graph: onnx.GraphProto) -> set[int]:
    """Return the numbers, from 0, of the nodes that an output needs: ONNX has no effects."""
    needed = {o.name for o in graph.output}
    live = set()
    for index, node in reversed(list(enumerate(graph.node))):
        if not needed.isdisjoint(node.output):
            live.add(index)
            for inner in all_nodes([node]):
                needed.update(inner.input)
                needed.update(o.name for body in inner_graphs(inner) for o in body.output)
    return live


def opset_of(model: onnx.ModelProto) -> int | None:
    """Return the version of ONNX's default domain that the model imports."""
    versions = [o.version for o in model.opset_import if o.domain in DEFAULT_DOMAINS]
    return max(versions, default=None)


def schema_of(node: onnx.NodeProto, opset: int) -> onnx.defs.OpSchema | None:
    """Return ONNX's definition of the node's op at `opset`, or None."""
    if node.domain in DEFAULT_DOMAINS and onnx.defs.has(node.op_type, opset, ""):
        return onnx.defs.get_schema(node.op_type, opset, "")
    return None


def schemas_of(
    model: onnx.ModelProto, opset: int
) -> list[tuple[onnx.NodeProto, onnx.defs.OpSchema | None]]:
    """Return the graph's nodes with ONNX's definitions of them."""
    return [(node, schema_of(node, opset)) for node in model.graph.node]


def names_of(node: onnx.NodeProto) -> tuple[str, str]:
    """Return the node's name, without one its op and first output; and the op type.

    The op has its domain, unless that is ONNX's own.
    """
    name = node.name or f"{node.op_type}:{next(iter(node.output), '')}"
    own = node.domain in DEFAULT_DOMAINS
    return name, node.op_type if own else f"{node.domain}.{node.op_type}"


def check_nodes(model: onnx.ModelProto) -> None:
    """Raise ValueError for texts, or functions, that stand for more than is read."""
    bodies = (model.graph.node, *(f.node for f in model.functions))
    nodes = [node for body in bodies for node in all_nodes(body)]
    if len(nodes) > MAX_NODES:
        raise ValueError(f"expected at most {MAX_NODES} nodes, got {len(nodes)}")
    for node in nodes:
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


Shapes = Mapping[str, tuple[int, ...]]
Rule = Callable[[onnx.NodeProto, Shapes], int]
_MOVING = frozenset({"tensor", "sequence", "optional", "generator", "text"})
_UNKNOWN = "unknown"
_RANKS = 64
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def refused(
    name: str, model: onnx.ModelProto, breaks: Sequence[GraphBreak], untried: Collection[int] = ()
) -> ImportReport:
    """Return the report about a model with breaks; `untried` are numbers of nodes, from 0.

    Nodes of graphs inside of a node have the number of that one, which counts once. A break that is
    no node, as weights are none, counts as one more.
    """
    nodes, opset = model.graph.node, opset_of(model) or onnx.defs.onnx_opset_version()
    with_family = tuple(
        b if b.place is None else replace(b, family=family(nodes[b.place - 1], opset))
        for b in breaks
    )
    shapes = _inferred(model)
    work = [_work(node, shapes, opset) for node in nodes]
    lost = {b.place - 1 for b in breaks if b.place is not None}
    flops, left = _total(work), set(untried) - lost
    lost_flops = None if flops is None else _total([work[i] for i in sorted(lost | left)])
    total = len(nodes) + len(breaks) - len(lost)
    return ImportReport(
        total, NODES, name, with_family, len(left), flops=flops, lost_flops=lost_flops
    )


def family(node: onnx.NodeProto, opset: int) -> str:
    """Return the folder of ONNX's definition of the op; for other domains' ops the domain."""
    if node.domain not in DEFAULT_DOMAINS:
        return node.domain
    schema = schema_of(node, opset)
    return PurePosixPath(schema.file.replace("\\", "/")).parent.name if schema else _UNKNOWN


def _total(work: Sequence[int | None]) -> int | None:
    known = [w for w in work if w is not None]
    return sum(known) if len(known) == len(work) else None


def _inferred(model: onnx.ModelProto) -> Shapes:
    """Return the static shapes that onnx infers; none for a model that it cannot follow."""
    try:
        graph = onnx.shape_inference.infer_shapes(model).graph
    except (onnx.shape_inference.InferenceError, MemoryError, RuntimeError, ValueError):
        return {}
    found: dict[str, tuple[int, ...]] = {t.name: tuple(t.dims) for t in graph.initializer}
    for info in (*graph.value_info, *graph.input, *graph.output):
        tensor = info.type.tensor_type
        if tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim):
            found[info.name] = tuple(d.dim_value for d in tensor.shape.dim)
    # The model is not checked yet: shapes that no memory could hold are left out.
    return {
        name: shape
        for name, shape in found.items()
        if len(shape) <= _RANKS and min(shape, default=0) >= 0 and prod(shape) < 1 << 62
    }


def _work(node: onnx.NodeProto, shapes: Shapes, opset: int) -> int | None:
    """Count the operations of a node; None if a shape that decides is not known."""
    kind = family(node, opset)
    if kind in _MOVING:
        return 0
    given = [shapes.get(name) for name in node.input if name]
    made = [shapes.get(name) for name in node.output if name]
    known = [s for s in (*given, *made) if s is not None]
    followed = node.domain in DEFAULT_DOMAINS and kind not in (_UNKNOWN, "controlflow")
    if not followed or len(known) < len(given) + len(made):
        return None
    rule = _RULES.get(node.op_type)
    if rule is not None:
        try:
            return rule(node, shapes)
        except (IndexError, KeyError, ValueError):
            return None  # A malformed node: it lacks an input, or a dimension.
    return max((prod(s) for s in (*known[:1], *known[len(given) :])), default=0)


def _product(a: int, b: int) -> Rule:
    """2 M N K of the matrices at inputs a and b, batched."""

    def work(node: onnx.NodeProto, shapes: Shapes) -> int:
        rows, out = shapes[node.input[a]], shapes[node.output[0]]
        transposed = any(x.name == "transA" and x.i for x in node.attribute)
        depth = rows[0 if transposed else -1] if rows and shapes[node.input[b]] else 1
        return 2 * prod(out) * depth

    return work


def _convolution(weight: int) -> Rule:
    """2 multiplications for each output and weight of its filter [filters, channels, ...]."""
    return lambda n, shapes: 2 * prod(shapes[n.output[0]]) * prod(shapes[n.input[weight]][1:])


def _recurrent(node: onnx.NodeProto, shapes: Shapes) -> int:
    """2 multiplications with the weights of all gates, of input and state, at each step.

    x: [length, batch, input]; weights: [directions, gates * hidden, input].
    """
    length, batch, depth = shapes[node.input[0]]
    directions, rows, _ = shapes[node.input[1]]
    return 2 * length * batch * directions * rows * (depth + rows // _GATES[node.op_type])


_RULES: Mapping[str, Rule] = {
    "MatMul": _product(0, 1),
    "MatMulInteger": _product(0, 1),
    "QLinearMatMul": _product(0, 3),
    "Gemm": _product(0, 1),
    "Conv": _convolution(1),
    "ConvInteger": _convolution(1),
    "QLinearConv": _convolution(3),
    "DeformConv": _convolution(1),
    # Of each input and weight of its filter [channels, filters, ...].
    "ConvTranspose": lambda n, shapes: 2 * prod(shapes[n.input[0]]) * prod(shapes[n.input[1]][1:]),
    **dict.fromkeys(_GATES, _recurrent),
}
