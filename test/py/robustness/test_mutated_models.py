"""Mutated models end in a program or in an error with a code: no crash, no hang, nothing else.

Mutants of .mlir files and of ONNX models go as far as linalg. Bytes alone are mostly refused by the
protobuf's parser, so most mutants of models change their parts: ops, operands, attributes, sizes,
element types, data.
"""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from conftest import rounds
from mutation import BATCH, mutated_bytes, mutated_text, reported, require_all_right
from onnx import helper, numpy_helper
from onnx_cases import cases, tensors, with_dynamic_sizes
from onnx_models import model

from pyc_mlir import PycError
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import Lowered, lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.frontends.onnx.ops.node import HANDLERS

TEXTS, PROTOS = rounds(100, 5000), rounds(100, 2000)
NUMBERS = (0, 1, -1, 2, 3, 7, 1 << 31, (1 << 31) - 1, 1 << 40, 1 << 62, -(1 << 63), (1 << 63) - 1)
SIZES = (*NUMBERS, "n", "x0#0")
FLOATS = (0.0, -0.0, 1e-30, 1e30, float("nan"), float("inf"), -1.0)
Mutation = Callable[[random.Random, onnx.ModelProto], None]
# Operators of node tests of the onnx wheel.
OPERATORS = (
    "Conv", "ConvTranspose", "MaxPool", "AveragePool", "Gemm", "Softmax", "LayerNormalization",
    "Transpose", "Reshape", "Slice", "Pad", "Gather", "Split", "Tile", "Expand", "ReduceMean",
    "Einsum", "CumSum", "LRN", "OneHot", "SpaceToDepth", "ArgMax", "Clip", "BatchNormalization",
)  # fmt: skip


def lowered(source: str | bytes | onnx.ModelProto) -> Lowered:
    return lower(Job.of(source, None, make_options(target="cpu-avx2")))


def is_taken(proto: onnx.ModelProto) -> bool:
    try:
        return bool(lowered(proto).signature.outputs)
    except PycError:
        return False


def of_one_argument(proto: onnx.ModelProto, inputs: list[np.ndarray]) -> onnx.ModelProto:
    """The model with all inputs but the first as weights."""
    names = [info.name for info in proto.graph.input]
    for name, value in zip(names[1:], inputs[1:], strict=True):
        proto.graph.initializer.append(numpy_helper.from_array(value, name))
    del proto.graph.input[1:]
    return proto


@cache
def originals() -> list[onnx.ModelProto]:
    """Models that are taken: a node test of each operator, chains of nodes, a function."""
    n, made = helper.make_node, []
    for op in OPERATORS:
        own = (c for c in cases() if [x.op_type for x in c.model.graph.node] == [op])
        found = (of_one_argument(*t[:2]) for t in map(tensors, own) if not isinstance(t, str))
        static = next(proto for proto in found if is_taken(proto))
        made += filter(is_taken, (static, with_dynamic_sizes(static)))
    flat = [
        n("Shape", ["x"], ["s"]), n("Gather", ["s", "zero"], ["b"], axis=0),
        n("Concat", ["b", "rest"], ["to"], axis=0), n("Reshape", ["x", "to"], ["flat"]),
        n("Gemm", ["flat", "w"], ["g"]), n("Relu", ["g"], ["y"]),
    ]  # fmt: skip
    weights = {"zero": np.array([0]), "rest": np.array([-1]), "w": np.ones((24, 4), np.float32)}
    made.append(model(flat, {"x": (np.float32, ["batch", 3, 8])}, ["y"], weights))
    chain = [
        n("Add", ["x", "w"], ["a"]),
        n("Mul", ["a", "a"], ["b"]),
        n("MatMul", ["b", "w"], ["y"]),
    ]
    made.append(
        model(chain, {"x": (np.float32, [8, 8])}, ["y"], {"w": np.ones((8, 8), np.float32)})
    )
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
    made = model([n("Relu", ["x"], ["a"]), n("Neg", ["a"], ["y"])], {"x": (np.float32, [4])}, ["y"])
    made.graph.node[0].CopyFrom(n("twice", ["x"], ["a"], domain="own"))
    made.opset_import.append(helper.make_opsetid("own", 1))
    made.functions.append(twice)
    return made


def any_node(draw: random.Random, proto: onnx.ModelProto) -> onnx.NodeProto:
    nodes = [*proto.graph.node, *(n for f in proto.functions for n in f.node)]
    return draw.choice(nodes) if nodes else proto.graph.node.add()


def other_op(draw: random.Random, proto: onnx.ModelProto) -> None:
    any_node(draw, proto).op_type = draw.choice(sorted(HANDLERS))


def other_operand(draw: random.Random, proto: onnx.ModelProto) -> None:
    node, graph = any_node(draw, proto), proto.graph
    names = [*(i.name for i in (*graph.input, *graph.initializer)), ""]
    names += [o for n in graph.node for o in n.output]
    if node.input and draw.random() < 0.7:
        node.input[draw.randrange(len(node.input))] = draw.choice(names)
    elif node.input and draw.random() < 0.5:
        del node.input[draw.randrange(len(node.input))]
    else:
        node.input.append(draw.choice(names))


def other_attribute(draw: random.Random, proto: onnx.ModelProto) -> None:
    node = any_node(draw, proto)
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


def mutated_onnx(seed: int) -> str:
    draw, proto = random.Random(seed), onnx.ModelProto()
    proto.CopyFrom(draw.choice(originals()))
    if draw.random() < 0.25:
        data = mutated_bytes(draw, proto.SerializeToString())
        return reported(lambda: lowered(data))
    for _ in range(draw.randint(1, 3)):
        try:
            draw.choice(OF_PARTS)(draw, proto)
        except ValueError:
            continue  # what another mutation left is no array any more
    return reported(lambda: lowered(proto.SerializeToString()))


def mutated_mlir(seed: int) -> str:
    # The module's own text in its first line is no path.
    return reported(lambda: lowered(mutated_text(random.Random(seed)) + "\n"))


def warm_up() -> None:
    """Load before any mutant is timed what is loaded late."""
    lowered(originals()[0])
    lowered("func.func @main() { return }\n")


@pytest.mark.parametrize("batch", range(TEXTS // BATCH))
@pytest.mark.full
def test_mutated_mlir(batch: int, tmp_path: Path) -> None:
    require_all_right(mutated_mlir, batch, tmp_path)


@pytest.mark.parametrize("batch", range(PROTOS // BATCH))
@pytest.mark.full
def test_mutated_onnx(batch: int, tmp_path: Path) -> None:
    require_all_right(mutated_onnx, batch, tmp_path)


def test_originals_compile():
    """So that what is refused is refused for the mutation."""
    assert len(originals()) == 51
    for proto in originals():
        assert len(lowered(proto).signature.outputs) == len(proto.graph.output)
