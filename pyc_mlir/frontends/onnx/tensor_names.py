"""Tensor names of an ONNX model, made printable where they enter.

Values are named anew everywhere alike, so that the model computes what it did. Texts that are no
names (notes, metadata, where weights are stored) stay.
"""

from collections.abc import Iterable, Iterator

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from pyc_mlir.dialects.printable import is_one_line, one_line

_NO_NAMES = ("doc_string", "producer_name", "producer_version", "key", "value")


def with_printable_names(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model itself if all names are printable on one line, else a copy in which they
    are."""
    if all(map(is_one_line, _texts(model))):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _rename(copy)
    return copy


def _texts(model: onnx.ModelProto) -> Iterator[str]:
    """Yield the names of a model, many at once."""
    yield " ".join((model.domain, *(o.domain for o in model.opset_import)))
    for function in model.functions:
        yield " ".join((function.name, function.domain, function.overload))
        yield " ".join((*function.input, *function.output, *function.attribute))
        yield from _of_nodes(function.node)
        yield from _of_values(function.value_info)
    yield from _of_graph(model.graph)


def _of_graph(graph: onnx.GraphProto) -> Iterator[str]:
    yield graph.name
    yield " ".join(t.name for t in graph.initializer)
    yield " ".join(t.values.name for t in graph.sparse_initializer)
    for values in (graph.input, graph.output, graph.value_info):
        yield from _of_values(values)
    yield from _of_nodes(graph.node)


def _of_values(values: Iterable[onnx.ValueInfoProto]) -> Iterator[str]:
    for value in values:
        yield value.name
        yield from (d.dim_param for d in value.type.tensor_type.shape.dim)


def _of_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    for node in nodes:
        yield " ".join((node.name, node.op_type, node.domain, *node.input, *node.output))
        for attribute in node.attribute:
            yield attribute.name
            if attribute.HasField("t"):
                yield attribute.t.name
            if attribute.HasField("g"):
                yield from _of_graph(attribute.g)
            for graph in attribute.graphs:
                yield from _of_graph(graph)


def _rename(message: Message) -> None:
    for field, value in message.ListFields():
        if field.name in _NO_NAMES:
            continue
        many = hasattr(value, "extend")
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            for part in value if many else (value,):
                _rename(part)
        elif field.type == FieldDescriptor.TYPE_STRING and many:
            value[:] = [one_line(text) for text in value]
        elif field.type == FieldDescriptor.TYPE_STRING:
            setattr(message, field.name, one_line(value))
