"""Family and amount of work of ONNX nodes that PyC cannot import.

For reports about models that are refused. Families are ONNX's own: the folders of its operators'
definitions (``math``, ``rnn``, ``controlflow``). Work goes by the shapes that onnx infers: twice
the multiplications of products, convolutions and recurrent layers, none for what moves data, and
one operation for each element of the larger of first input and output for all else.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import PurePosixPath

import onnx

from pyc_mlir.artifact.import_report import NODES, GraphBreak, ImportReport
from pyc_mlir.frontends.onnx.reading import DEFAULT_DOMAINS, opset_of, schema_of

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
