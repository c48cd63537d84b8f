"""Models that ask for more than there is are refused with a code, in little memory and time."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import sample
from mutation import limit_memory, wrong_cases
from onnx import TensorProto, helper, numpy_helper
from refusals import refused

from pyc_mlir import Contract, PycError, ReasonCode
from pyc_mlir.api import build
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import make_options

MEMORY_BYTES, SECONDS = 1 << 30, 60
TERA, HUGE = 1 << 40, 1 << 62


def text(body: str, argument: str, result: str) -> str:
    return f"func.func @main(%a: {argument}) -> {result} {{\n{body}\n  return %r : {result}\n}}\n"


def splat(kind: str, op: str, result: str) -> str:
    """One op on a constant that repeats 1."""
    made = f'%0 = "pyc.constant"() {{value = dense<1.0> : {kind}}} : () -> {kind}'
    return text(f"{made}\n%r = {op.replace('KIND', kind)} -> {result}", "tensor<4xf32>", result)


def relu(kind: str) -> str:
    return text(f'%r = "pyc.relu"(%a) : ({kind}) -> {kind}', kind, kind)


def with_attribute(attribute: str) -> str:
    kind = "tensor<4xf32>"
    return text(f'%r = "pyc.relu"(%a) {{x = {attribute}}} : ({kind}) -> {kind}', kind, kind)


def chain(length: int) -> str:
    kind, last = "tensor<4xf32>", "%a"
    lines = []
    for i in range(length):
        now = "%r" if i == length - 1 else f"%{i}"
        op = "relu" if i % 2 else "sigmoid"
        lines.append(f'{now} = "pyc.{op}"({last}) : ({kind}) -> {kind}')
        last = now
    return text("\n".join(lines), kind, kind)


WIDE, FLAT = f"tensor<{TERA}x4xf32>", f"tensor<{TERA}xf32>"
OVERFLOW = f"tensor<{HUGE}x{HUGE}xf32>"
DOUBLE = "#n0 = [1]\n" + "".join(f"#n{i + 1} = [#n{i}, #n{i}]\n" for i in range(60))
DEEP = "#n0 = [1]\n" + "".join(f"#n{i + 1} = [#n{i}]\n" for i in range(100_000))
MLIR: dict[str, tuple[str, str]] = {
    "a constant of a terabyte": (splat(FLAT, '"pyc.neg"(%0) : (KIND)', FLAT), ""),
    "a sum of a terabyte": (
        splat(WIDE, '"pyc.reduce_sum"(%0) {axes = array<i64: 0>, keepdims = false} : (KIND)',
              "tensor<4xf32>"), ""),
    "a reshape of a terabyte": (
        splat(WIDE, f'"pyc.reshape"(%0) {{shape = array<i64: 4, {TERA}>}} : (KIND)',
              f"tensor<4x{TERA}xf32>"), ""),
    "an argument beyond 64 bits": (relu(OVERFLOW), "INVALID_IR"),
    "a constant beyond 64 bits": (
        splat(OVERFLOW, '"pyc.neg"(%0) : (KIND)', OVERFLOW), "INVALID_IR"),
    "a concat beyond 64 bits": (
        text(f'%r = "pyc.concat"(%a, %a) {{axis = 0 : i64}} : (tensor<{HUGE}xi8>, '
             f"tensor<{HUGE}xi8>) -> tensor<?xi8>", f"tensor<{HUGE}xi8>", "tensor<?xi8>"),
        "INVALID_IR"),
    "a pad beyond 64 bits": (
        text(f'%r = "pyc.pad"(%a) {{low = array<i64: {HUGE}>, high = array<i64: {HUGE}>}} : '
             "(tensor<4xf32>) -> tensor<4xf32>", "tensor<4xf32>", "tensor<4xf32>"), "INVALID_IR"),
    "an absent resource": (
        text(f'%r = "pyc.constant"() {{value = dense_resource<x> : {FLAT}}} : () -> {FLAT}',
             "tensor<4xf32>", FLAT), "INVALID_IR"),
    "a value that needs itself": (
        text('%r = "pyc.relu"(%r) : (tensor<4xf32>) -> tensor<4xf32>', "tensor<4xf32>",
             "tensor<4xf32>"), "INVALID_IR"),
    "a thousand dimensions": (relu(f"tensor<{'1x' * 1000}f32>"), ""),
    "deep brackets": (with_attribute("[" * 100_000 + "]" * 100_000), "INVALID_IR"),
    "deep names": (DEEP + with_attribute("#n100000"), "INVALID_IR"),
    "names that double": (DOUBLE + with_attribute("#n60"), "INVALID_IR"),
    "a million signs": (
        with_attribute(f"affine_map<(d0) -> ({'-' * 1_000_000}d0)>"), "INVALID_IR"),
    "a number of many digits": (with_attribute("9" * 200_000 + " : i8388607"), "INVALID_IR"),
    "a long chain": (chain(3000), ""),
    "deep brackets for IREE": (
        f"func.func @main() {{ return }}\n#x = {'[' * 100_000}{']' * 100_000}\n", "INVALID_IR"),
}  # fmt: skip


def model(
    nodes: Sequence[onnx.NodeProto], rank: int = 1, weights: Sequence[TensorProto] = (),
    x: Sequence[int | str] = (4,), functions: Sequence[onnx.FunctionProto] = (),
) -> bytes:  # fmt: skip
    """A model from `x` to `y`, whose sizes are not stated."""
    ends = [("x", list(x)), ("y", [f"y{i}" for i in range(rank)])]
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ends)
    graph = helper.make_graph(nodes, "g", [given], [made], list(weights))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=8, functions=list(functions)
    ).SerializeToString()


def n(op: str, taken: str, made: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, taken.split(), made.split(), **attributes)


def ints(name: str, *values: int, scalar: bool = False) -> TensorProto:
    array = np.array(values[0] if scalar else values, np.int64)
    return numpy_helper.from_array(array, name)


def ones(name: str, *shape: int) -> TensorProto:
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


def declared(*dims: int, data: bytes = b"") -> bytes:
    """Weights of these sizes, of which `data` is there."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, raw_data=data, dims=dims)
    return model([n("Add", "x w", "y")], len(dims), [tensor])


def own(name: str, *calls: onnx.NodeProto) -> onnx.FunctionProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["x"], ["y"], list(calls), opsets)


def call(name: str, taken: str, made: str) -> onnx.NodeProto:
    return n(name, taken, made, domain="own")


def laughs(levels: int) -> bytes:
    """Functions that each call the next one twice."""
    twice = [
        own(f"f{i}", call(f"f{i + 1}", "x", "a"), call(f"f{i + 1}", "a", "y"))
        for i in range(levels)
    ]
    return model([call("f0", "x", "y")], functions=[*twice, own(f"f{levels}", n("Relu", "x", "y"))])


def field(number: int, data: bytes) -> bytes:
    """A field of a protobuf."""
    size, head = len(data), bytes([number << 3 | 2])
    while size >= 0x80:
        head, size = head + bytes([size & 0x7F | 0x80]), size >> 7
    return head + bytes([size]) + data


def graphs(levels: int) -> bytes:
    """Graphs in attributes of nodes of graphs."""
    inner = b""
    for _ in range(levels):
        inner = field(1, field(5, field(6, inner)))
    return RELU + field(7, inner)


def doubled(first: str, weights: Sequence[TensorProto] = ()) -> bytes:
    """Forty concats of a value with itself."""
    names = [first, *(f"s{i}" for i in range(40))]
    nodes = [n("Concat", f"{a} {a}", b, axis=0) for a, b in pairwise(names)]
    start = [n("Shape", "x", "shape")] if first == "shape" else []
    end = n("Cast", "s39", "y", to=TensorProto.FLOAT)
    return model([*start, *nodes, end], weights=weights, x=("n",) if first == "shape" else (4,))


def computed(op: str, count: int, *shape: int) -> bytes:
    """A chain of ops on constants, each result as large as the weights, added to the argument."""
    names = ["w", *(f"c{i}" for i in range(count))]
    second = " w" if op == "MatMul" else ""
    nodes = [n(op, a + second, b) for a, b in pairwise(names)]
    return model([*nodes, n("Add", f"x {names[-1]}", "y")], len(shape), [ones("w", *shape)], (1,))


RELU = model([n("Relu", "x", "y")])
FILL = [n("ConstantOfShape", "s", "c"), n("Add", "c c", "y")]
ONNX: dict[str, tuple[bytes, str]] = {
    "a fill of a terabyte": (model(FILL, weights=[ints("s", TERA)]), ""),
    "a fill beyond 64 bits": (
        model(FILL, 2, [ints("s", TERA, TERA)]), "UNSUPPORTED_ATTRIBUTE"),
    "a fill of less than nothing": (model(FILL, weights=[ints("s", -5)]), "BAD_MODEL"),
    "an expansion": (
        model([n("Expand", "k s", "c"), n("Add", "c c", "y")], weights=[
            ints("s", TERA), ones("k", 1)]), ""),
    "a tiling": (
        model([n("Tile", "k s", "c"), n("Add", "c c", "y")], weights=[
            ints("s", TERA), ones("k", 1)]), ""),
    "a range": (
        model([n("Range", "a s b", "c"), n("Cast", "c", "y", to=1)], weights=[
            ints("a", 0, scalar=True), ints("s", TERA, scalar=True), ints("b", 1, scalar=True)]),
        "UNSUPPORTED_ATTRIBUTE"),
    "a range of no steps": (
        model([n("Range", "a s b", "c"), n("Cast", "c", "y", to=1)], weights=[
            ints("a", 0, scalar=True), ints("s", 7, scalar=True), ints("b", 0, scalar=True)]),
        "UNSUPPORTED_ATTRIBUTE"),
    "one of many": (
        model([n("OneHot", "i d v", "y")], 2, [
            ints("i", 1), ints("d", TERA, scalar=True), ones("v", 2)]), ""),
    "a normalization of many": (
        model([n("LRN", "x", "y", size=1 << 40)], 4, x=(1, 1, 4, 4)), "UNSUPPORTED_ATTRIBUTE"),
    "an input beyond 64 bits": (model([n("Relu", "x", "y")], 2, x=(HUGE, HUGE)), "BAD_MODEL"),
    "an input of less than nothing": (model([n("Relu", "x", "y")], x=(-4,)), "BAD_MODEL"),
    "pads beyond 64 bits": (
        model([n("Conv", "x w", "y", pads=[1 << 60] * 4)], 4, [ones("w", 1, 1, 3, 3)],
              (1, 1, 4, 4)), "UNSUPPORTED_ATTRIBUTE"),
    "absent weights": (declared(TERA), "BAD_MODEL"),
    "weights of less than nothing": (declared(-1, 4, data=bytes(16)), "BAD_MODEL"),
    "no weights, and many": (declared(0, HUGE, HUGE), "BAD_MODEL"),
    "weights beyond 64 bits": (declared(1 << 32, 1 << 32), "BAD_MODEL"),
    "short weights": (declared(1000, data=bytes(3000)), "BAD_MODEL"),
    "long weights": (declared(1000, data=bytes(5000)), "BAD_MODEL"),
    "nodes in a ring": (model([n("Add", "x b", "a"), n("Relu", "a", "b"), n("Relu", "b", "y")]),
                        "BAD_MODEL"),
    "functions in a ring": (
        model([call("f", "x", "y")], functions=[own("f", call("g", "x", "y")),
                                                own("g", call("f", "x", "y"))]), "BAD_MODEL"),
    "functions that double": (laughs(40), "BAD_MODEL"),
    "concats that double": (doubled("k", [ones("k", 4)]), ""),
    "concats of shapes that double": (doubled("shape"), ""),
    "nested graphs": (graphs(5000), "BAD_MODEL"),
    "many empty nodes": (RELU + field(7, b"\x0a\x00" * (8 << 20)), "BAD_MODEL"),
    "ellipses without end": (model([n("Einsum", "x", "y", equation="......")]), "BAD_MODEL"),
    "parts without end": (
        model([n("Split", "x", "y", num_outputs=(1 << 31) - 1)]), "BAD_MODEL"),
    "a chain without end": (
        model([n("Relu", "x" if i == 0 else f"v{i}", "y" if i == 99_999 else f"v{i + 1}")
               for i in range(100_000)]), "BAD_MODEL"),
    "a chain of products of constants": (computed("MatMul", 300, 1500, 1500), ""),
    "a chain of slow functions of constants": (computed("Erf", 2000, 1 << 20), ""),
    "a long attribute": (model([n("Einsum", "x", "y", equation="..." * 50_000)]), "BAD_MODEL"),
}  # fmt: skip
CASES: dict[str, tuple[str | bytes, str]] = {**MLIR, **ONNX}
CHOSEN = sample(list(CASES), 12)


def warm_up() -> None:
    outcome("an input of less than nothing")  # what is loaded late is loaded now


def outcome(name: str) -> str:
    """The faults of what the compile's front says of a model."""
    limit_memory(MEMORY_BYTES)
    source, wanted = CASES[name]
    try:
        lower(Job.of(source, None, make_options(target="cpu-avx2")))
    except PycError as error:
        return "" if error.code.name == wanted and error.message else str(error)
    return f"expected {wanted}" if wanted else ""


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, str]:
    folder = tmp_path_factory.mktemp("hostile")
    return dict(wrong_cases(outcome, CHOSEN, folder, (SECONDS, SECONDS)))


@pytest.mark.parametrize("name", CHOSEN)
def test_hostile_model(wrong, name):
    assert name not in wrong, wrong[name]


def test_a_reference_that_no_memory_holds():
    options = make_options(target="cpu-avx2", contract=Contract(max_error="rounding"))
    source, _ = CASES["a constant of a terabyte"]
    refused(ReasonCode.NO_ORACLE, build, source, None, options)
