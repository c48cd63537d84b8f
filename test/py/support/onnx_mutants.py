"""Mutants of ONNX models: of their bytes, and of what the bytes say.

Bytes alone are mostly refused by the protobuf's parser, so most mutants change a model's parts:
ops, operands, attributes, sizes, element types, data.
"""

import random
from collections.abc import Callable

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx_models import model, node_model

from pyc_mlir.frontends.onnx import importer as onnx_import
from pyc_mlir.frontends.onnx.ops.node import HANDLERS

F = np.float32
NUMBERS = (0, 1, -1, 2, 3, 7, 1 << 31, (1 << 31) - 1, 1 << 40, 1 << 62, -(1 << 63), (1 << 63) - 1)
SIZES = (*NUMBERS, "n", "x0#0")
FLOATS = (0.0, -0.0, 1e-30, 1e30, float("nan"), float("inf"), -1.0)
Mutation = Callable[[random.Random, onnx.ModelProto], None]
assert onnx_import.HANDLERS is HANDLERS


# Ops that need static sizes.
_STATIC = ("AveragePool", "Pad", "CumSum", "LRN")


def _ones(*shape: int) -> np.ndarray:
    return np.ones(shape, F)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def originals() -> list[onnx.ModelProto]:
    """Whole models that import."""
    n = helper.make_node
    cases: list[tuple[str, list[np.ndarray], list[object], dict[str, object]]] = [
        ("Conv", [_ones(1, 2, 6, 6)], [_ones(3, 2, 3, 3), _ones(3)], {"pads": [1, 1, 1, 1]}),
        ("ConvTranspose", [_ones(1, 2, 4, 4)], [_ones(2, 3, 3, 3)], {"strides": [2, 2]}),
        ("MaxPool", [_ones(1, 2, 6, 6)], [], {"kernel_shape": [2, 2], "strides": [2, 2]}),
        ("AveragePool", [_ones(1, 2, 6, 6)], [], {"kernel_shape": [3, 3], "ceil_mode": 1}),
        ("Gemm", [_ones(3, 4)], [_ones(4, 5), _ones(5)], {"alpha": 0.5}),
        ("Softmax", [_ones(3, 4)], [], {"axis": 1}),
        ("LayerNormalization", [_ones(3, 4)], [_ones(4), _ones(4)], {"axis": -1}),
        ("Transpose", [_ones(2, 3, 4)], [], {"perm": [2, 0, 1]}),
        ("Reshape", [_ones(2, 12)], [_ints(4, -1)], {}),
        ("Slice", [_ones(6, 6)], [_ints(1, 0), _ints(5, 6), _ints(0, 1), _ints(1, 2)], {}),
        ("Pad", [_ones(4, 4)], [_ints(1, 1, 1, 1)], {"mode": "reflect"}),
        ("Gather", [_ones(4, 4)], [_ints(0, 3)], {"axis": 1}),
        ("Split", [_ones(6, 4)], [_ints(2, 4)], {"axis": 0}),
        ("Tile", [_ones(2, 3)], [_ints(2, 2)], {}),
        ("Expand", [_ones(1, 3)], [_ints(4, 3)], {}),
        ("ReduceMean", [_ones(2, 3, 4)], [], {"axes": [1], "keepdims": 0}),
        ("Einsum", [_ones(2, 3), _ones(3, 4)], [], {"equation": "ij,jk->ik"}),
        ("CumSum", [_ones(3, 4)], [np.array(1)], {"exclusive": 1}),
        ("LRN", [_ones(1, 4, 3, 3)], [], {"size": 3}),
        ("OneHot", [], [_ints(0, 2), np.array(4), np.array([0, 1], F)], {}),
        ("SpaceToDepth", [_ones(1, 1, 4, 4)], [], {"blocksize": 2}),
        ("ArgMax", [_ones(3, 4)], [], {"axis": 1}),
        ("Clip", [_ones(4)], [np.array(0, F), np.array(1, F)], {}),
        ("BatchNormalization", [_ones(1, 3, 2, 2)], [_ones(3)] * 4, {}),
    ]
    made = [
        node_model(op, inputs, constants, attributes, outputs=2 if op == "Split" else 1, dynamic=d)
        for op, inputs, constants, attributes in cases
        for d in (False, True)
        if not (d and op in _STATIC)
    ]
    flat = [
        n("Shape", ["x"], ["s"]), n("Gather", ["s", "zero"], ["b"], axis=0),
        n("Concat", ["b", "rest"], ["to"], axis=0), n("Reshape", ["x", "to"], ["flat"]),
        n("Gemm", ["flat", "w"], ["g"]), n("Relu", ["g"], ["y"]),
    ]  # fmt: skip
    weights = {"zero": _ints(0), "rest": _ints(-1), "w": _ones(24, 4)}
    made.append(model(flat, {"x": (F, ["batch", 3, 8])}, ["y"], weights))
    chain = [
        n("Add", ["x", "w"], ["a"]),
        n("Mul", ["a", "a"], ["b"]),
        n("MatMul", ["b", "w"], ["y"]),
    ]
    made.append(model(chain, {"x": (F, [8, 8])}, ["y"], {"w": np.ones((8, 8), F)}))
    ramp = [n("Range", ["a", "b", "c"], ["r"]), n("Cast", ["r"], ["y"], to=1)]
    ends = {"a": np.array(0), "b": np.array(9), "c": np.array(2)}
    made.append(model(ramp, {}, ["y"], ends))
    made.append(_with_function())
    return made


def _with_function() -> onnx.ModelProto:
    n = helper.make_node
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    twice = helper.make_function(
        "own", "twice", ["x"], ["y"], [n("Add", ["x", "x"], ["y"])], opsets
    )
    made = model([n("Relu", ["x"], ["a"]), n("Neg", ["a"], ["y"])], {"x": (F, [4])}, ["y"])
    made.graph.node[0].CopyFrom(n("twice", ["x"], ["a"], domain="own"))
    made.opset_import.append(helper.make_opsetid("own", 1))
    made.functions.append(twice)
    return made


def _any_node(draw: random.Random, proto: onnx.ModelProto) -> onnx.NodeProto:
    nodes = [*proto.graph.node, *(n for f in proto.functions for n in f.node)]
    return draw.choice(nodes) if nodes else proto.graph.node.add()


def other_op(draw: random.Random, proto: onnx.ModelProto) -> None:
    _any_node(draw, proto).op_type = draw.choice(sorted(HANDLERS))


def other_operand(draw: random.Random, proto: onnx.ModelProto) -> None:
    node, graph = _any_node(draw, proto), proto.graph
    names = [*(i.name for i in (*graph.input, *graph.initializer)), ""]
    names += [o for n in graph.node for o in n.output]
    if node.input and draw.random() < 0.7:
        node.input[draw.randrange(len(node.input))] = draw.choice(names)
    elif node.input and draw.random() < 0.5:
        del node.input[draw.randrange(len(node.input))]
    else:
        node.input.append(draw.choice(names))


def other_attribute(draw: random.Random, proto: onnx.ModelProto) -> None:
    node = _any_node(draw, proto)
    if not node.attribute or draw.random() < 0.2:
        name = draw.choice(("axis", "axes", "keepdims", "pads", "perm", "to", "mode", "size"))
        node.attribute.append(helper.make_attribute(name, draw.choice((1, [1, 0], "x", -7, 0.5))))
        return
    attribute = draw.choice(node.attribute)
    if attribute.ints and draw.random() < 0.8:
        attribute.ints[draw.randrange(len(attribute.ints))] = draw.choice(NUMBERS)
    elif attribute.ints:
        attribute.ints.append(draw.choice(NUMBERS))
    elif attribute.type == onnx.AttributeProto.INT:
        attribute.i = draw.choice(NUMBERS)
    elif attribute.type == onnx.AttributeProto.FLOAT:
        attribute.f = draw.choice(FLOATS)
    elif attribute.s:
        attribute.s = draw.choice((b"", b"\xff", b"ij->ji", b"...->...", b"constant", b"a" * 300))
    else:
        node.attribute.remove(attribute)


def other_sizes(draw: random.Random, proto: onnx.ModelProto) -> None:
    if proto.graph.initializer and draw.random() < 0.5:
        tensor = draw.choice(proto.graph.initializer)
        if tensor.dims and draw.random() < 0.8:
            tensor.dims[draw.randrange(len(tensor.dims))] = draw.choice(NUMBERS)
        else:
            tensor.dims.append(draw.choice(NUMBERS))
        return
    values = [*proto.graph.input, *proto.graph.output]
    shape = draw.choice(values).type.tensor_type.shape if values else None
    if shape is None or not shape.dim:
        return
    size = draw.choice(SIZES)
    dim = draw.choice(shape.dim)
    if isinstance(size, str):
        dim.dim_param = size
    else:
        dim.dim_value = size


def other_type(draw: random.Random, proto: onnx.ModelProto) -> None:
    types = list(onnx.TensorProto.DataType.values())
    values = [*proto.graph.input, *proto.graph.output]
    if values and draw.random() < 0.6:
        draw.choice(values).type.tensor_type.elem_type = draw.choice(types)
    elif proto.graph.initializer:
        draw.choice(proto.graph.initializer).data_type = draw.choice(types)


def other_data(draw: random.Random, proto: onnx.ModelProto) -> None:
    if not proto.graph.initializer:
        return
    tensor = draw.choice(proto.graph.initializer)
    if tensor.data_type == onnx.TensorProto.INT64 and draw.random() < 0.8:
        array = numpy_helper.to_array(tensor).copy()
        if array.size:
            array.reshape(-1)[draw.randrange(array.size)] = draw.choice(NUMBERS)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    else:
        tensor.raw_data = tensor.raw_data[: draw.randrange(len(tensor.raw_data) + 1)] + b"\x7f"


def other_order(draw: random.Random, proto: onnx.ModelProto) -> None:
    nodes = list(proto.graph.node)
    draw.shuffle(nodes)
    if draw.random() < 0.5 and nodes:
        nodes.append(draw.choice(nodes))
    else:
        nodes = nodes[1:]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)


def other_opset(draw: random.Random, proto: onnx.ModelProto) -> None:
    draw.choice(proto.opset_import).version = draw.choice((*range(1, 25), *NUMBERS))


OF_PARTS: tuple[Mutation, ...] = (
    other_op, other_operand, other_attribute, other_attribute, other_sizes, other_type, other_data,
    other_order, other_opset,
)  # fmt: skip


def bytes_changed(draw: random.Random, data: bytes) -> bytes:
    """One to four bytes changed, or left out, or a part of them twice."""
    changed = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(len(changed)) if changed else 0
        how = draw.random()
        if how < 0.6 and changed:
            changed[place] = draw.randrange(256)
        elif how < 0.8:
            del changed[place : place + draw.randint(1, 6)]
        else:
            changed[place:place] = changed[place : place + draw.choice((1, 8, 64))]
    return bytes(changed)


def mutant(seed: int, models: list[onnx.ModelProto]) -> bytes:
    """The bytes of a mutant."""
    draw = random.Random(seed)
    proto = onnx.ModelProto()
    proto.CopyFrom(draw.choice(models))
    if draw.random() < 0.25:
        return bytes_changed(draw, proto.SerializeToString())
    for _ in range(draw.randint(1, 3)):
        try:
            draw.choice(OF_PARTS)(draw, proto)
        except ValueError:
            continue  # what another mutation left is no array any more
    return proto.SerializeToString()
