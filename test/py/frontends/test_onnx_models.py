"""Whole ONNX models: shape arithmetic, functions, what is refused and how, locations."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import check, model, node_model

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function, interpret
from pyc_mlir.frontends.onnx.importer import UnsupportedModel, import_onnx
from pyc_mlir.tools.demo.digits import HELD_OUT, MODELS, load_digits
from pyc_mlir.tools.demo.train import reference_accuracy

F = np.float32
RNG = np.random.default_rng(1)


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def n(op: str, inputs: str, outputs: str, **attributes) -> onnx.NodeProto:
    """A node from names separated by blanks; `_` is a missing input."""
    operands = ["" if i == "_" else i for i in inputs.split()]
    return helper.make_node(op, operands, outputs.split(), outputs.split()[0], **attributes)


def ops_of(module: ir.Module) -> list[str]:
    block = entry_function(module).regions[0].blocks[0]
    return [op.operation.name.removeprefix("pyc.") for op in block.operations]


def small(nodes: list[onnx.NodeProto], weights: dict | None = None, **kw) -> onnx.ModelProto:
    """x [batch, seq, 8] -> y."""
    return model(nodes, {"x": (F, ["batch", "seq", 8])}, ["y"], weights, **kw)


X = {"x": f32(2, 3, 8)}
ZERO, ONE = {"zero": np.array(0)}, {"one": np.array(1)}
BATCH = [
    n("Shape", "x", "shape"),
    n("Gather", "shape zero", "batch"),
    n("Unsqueeze", "batch ax", "b"),
]
AX = {**ZERO, "ax": np.array([0])}


def test_heads_are_split_and_merged_by_computed_shapes() -> None:
    nodes = [
        *BATCH,
        n("Shape", "x", "seq", start=1, end=2),
        n("Concat", "b seq heads", "split", axis=0),
        n("Reshape", "x split", "parts"),
        n("Transpose", "parts", "swapped", perm=[0, 2, 1, 3]),
        n("Transpose", "parts", "keys", perm=[0, 2, 3, 1]),
        n("MatMul", "swapped keys", "scores"),
        n("Softmax", "scores", "p", axis=-1),
        n("MatMul", "p swapped", "mixed"),
        n("Transpose", "mixed", "back", perm=[0, 2, 1, 3]),
        n("Shape", "back", "back_shape"),
        n("Slice", "back_shape zeros two", "lead"),
        n("Concat", "lead width", "merged", axis=0),
        n("Reshape", "back merged", "y"),
    ]
    vectors = {"heads": [2, 4], "width": [8], "zeros": [0], "two": [2]}
    weights = {**AX, **{k: np.array(v) for k, v in vectors.items()}}
    module = check(small(nodes, weights), X)
    assert set(ops_of(module)) <= {
        "constant", "reshape", "transpose", "matmul", "softmax", "func.return",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "weights"),
    [
        # A product of sizes, and its quotient.
        (
            [
                n("Shape", "x", "s"), n("Gather", "s zero", "b"), n("Gather", "s one", "t"),
                n("Mul", "b t", "bt"), n("Unsqueeze", "bt ax", "row"),
                n("Concat", "row eight", "to", axis=0), n("Reshape", "x to", "flat"),
                n("Div", "bt b", "again"), n("Cast", "again", "r", to=TensorProto.FLOAT),
                n("Mul", "flat r", "y"),
            ],
            {**AX, **ONE, "eight": np.array([8])},
        ),
        # Back from rows to two dynamic dimensions.
        (
            [
                n("Reshape", "x rows", "flat"), n("Relu", "flat", "r"), n("Shape", "x", "s"),
                n("Reshape", "r s", "y"),
            ],
            {"rows": np.array([-1, 8])},
        ),
        # Expand a constant to a size; Where(shape == -1, ...) as exporters write it.
        (
            [
                n("Shape", "x", "s"), n("Equal", "s minus", "is"), n("Where", "is ones s", "to"),
                n("Expand", "row to", "wide"), n("Add", "x wide", "y"),
            ],
            {"minus": np.array(-1), "ones": np.array([1, 1, 1]), "row": f32(8)},
        ),
        # A constant of a dynamic shape.
        (
            [n("Shape", "x", "s"), n("ConstantOfShape", "s", "c"), n("Sub", "c x", "y")],
            {},
        ),
        # The first rows of a table.
        (
            [
                n("Shape", "x", "s"), n("Slice", "s one_ two_", "end"),
                n("Slice", "table zeros end zeros", "rows"), n("Add", "x rows", "y"),
            ],
            {"one_": np.array([1]), "two_": np.array([2]), "zeros": np.array([0]),
             "table": f32(9, 8)},
        ),
        # Positions 0, 1, ... of a dynamic length.
        (
            [
                n("Shape", "x", "s"), n("Gather", "s one", "t"), n("Range", "zero t one", "r"),
                n("Cast", "r", "f", to=TensorProto.FLOAT), n("Unsqueeze", "f last", "column"),
                n("Mul", "x column", "y"),
            ],
            {**ZERO, **ONE, "last": np.array([1])},
        ),
        # A causal mask of a dynamic size.
        (
            [
                n("Shape", "x", "s"), n("Gather", "s one", "t"), n("Unsqueeze", "t ax", "tv"),
                n("Concat", "tv tv", "square", axis=0), n("ConstantOfShape", "square", "c"),
                n("Trilu", "c one", "mask", upper=1), n("MatMul", "mask x", "y"),
            ],
            {**AX, **ONE},
        ),
        # Sizes that only a float computation needs.
        (
            [
                n("ReduceSum", "x ax", "sum", keepdims=0), n("Shape", "x", "s"),
                n("Gather", "s zero", "b"), n("Cast", "b", "f", to=TensorProto.FLOAT),
                n("Sqrt", "f", "root"), n("Div", "sum root", "y"),
            ],
            AX,
        ),
        # A whole shape as a tensor of the result.
        ([n("Shape", "x", "y")], {}),
        # int32 shapes, as TensorFlow's exporter writes them.
        (
            [
                n("Shape", "x", "s"), n("Cast", "s", "s32", to=TensorProto.INT32),
                n("Slice", "s32 z o", "b32"), n("Concat", "b32 rest", "t32", axis=0),
                n("Cast", "t32", "to", to=TensorProto.INT64), n("Reshape", "x to", "y"),
            ],
            {"z": np.array([0]), "o": np.array([1]), "rest": np.array([-1], np.int32)},
        ),
        # Repetition by a dynamic count.
        (
            [
                n("Shape", "x", "s"), n("Slice", "s z o", "b"), n("Concat", "b o", "r", axis=0),
                n("Tile", "row r", "wide"), n("MatMul", "wide m", "p"), n("Identity", "p", "y"),
            ],
            {"z": np.array([0]), "o": np.array([1]), "row": f32(3, 4), "m": f32(4, 2)},
        ),
    ],
)  # fmt: skip
def test_dynamic_shapes(nodes: list, weights: dict) -> None:
    for shape in ((2, 3, 8), (4, 1, 8), (1, 5, 8)):
        check(small(nodes, weights), {"x": f32(*shape)})


def test_known_nodes_are_folded() -> None:
    nodes = [
        n("Shape", "w", "s"), n("ReduceProd", "s", "count"), n("Cast", "count", "c", to=1),
        n("Div", "w c", "mean"), n("Transpose", "mean", "t"), n("MatMul", "x t", "y"),
    ]  # fmt: skip
    module = check(small(nodes, {"w": f32(4, 8)}), X)
    assert ops_of(module) == ["constant", "matmul", "func.return"]


def test_large_fills_are_not_stored() -> None:
    nodes = [n("ConstantOfShape", "to", "c"), n("ReduceSum", "c", "sum"), n("Add", "x sum", "y")]
    module = check(small(nodes, {"to": np.array([512, 1024])}), X)
    assert "broadcast_to" in ops_of(module)
    assert len(str(module)) < 3000


def test_names_dims_and_locations() -> None:
    inputs = {"a": (F, ["batch", 4, None]), "w": (F, [4])}
    proto = model([n("Relu", "a", "r"), n("Neg", "r", "out")], {"a": inputs["a"]}, ["out"])
    module = import_onnx(proto, name="forward")
    function = entry_function(module, "forward")
    (argument,) = function.attributes["arg_attrs"]
    assert str(argument) == '{pyc.dims = ["batch", "", ""], pyc.name = "a"}'
    assert str(function.attributes["res_attrs"]) == '[{pyc.name = "out"}]'
    relu, neg, _ = function.regions[0].blocks[0].operations
    assert str(relu.operation.location) == 'loc("r"("<onnx>":1:1))'
    assert str(neg.operation.location) == 'loc("out"("<onnx>":2:1))'


def test_weights_that_are_also_inputs_are_constants() -> None:
    proto = node_model("Add", [f32(2, 3)], [f32(3)], {})
    proto.graph.input.append(helper.make_tensor_value_info("c0", TensorProto.FLOAT, [3]))
    module = import_onnx(proto)
    assert len(entry_function(module).regions[0].blocks[0].arguments) == 1


def test_the_given_model_is_left_alone() -> None:
    proto = node_model("Relu", [f32(2, 3)], [], {}, opset=9)
    before = proto.SerializeToString()
    import_onnx(proto)
    assert proto.SerializeToString() == before


# Functions of a model's own: written out, with the attributes that a call gives.

IMPORTS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]


def called(call: onnx.NodeProto, functions: Sequence[onnx.FunctionProto], x: np.ndarray) -> Any:
    """Return what a model of one call gives for x."""
    proto = node_model("Relu", [x], [], {})
    proto.graph.node[0].CopyFrom(call)
    proto.opset_import.append(IMPORTS[1])
    proto.functions.extend(functions)
    return interpret(import_onnx(proto), [x])[0]


def test_local_functions_are_inlined() -> None:
    body = [helper.make_node("Mul", ["a", "a"], ["s"]), helper.make_node("Add", ["s", "a"], ["b"])]
    function = helper.make_function("own", "Poly", ["a"], ["b"], body, IMPORTS)
    x = np.array([[1.5, -2.0]], np.float32)
    found = called(helper.make_node("Poly", ["x0"], ["y0"], domain="own"), [function], x)
    np.testing.assert_allclose(found, x * x + x, 1e-6)


@pytest.mark.parametrize(("given", "slope"), [({}, 0.5), ({"a": 0.25}, 0.25)])
def test_attributes_of_functions_have_the_functions_defaults(given: dict, slope: float) -> None:
    """`outer` hands its attribute `a`, which has no default, to `leak`, where it is 0.5."""
    functions = []
    for name, op, domain, attribute in (
        ("leak", "LeakyRelu", "", "alpha"), ("outer", "leak", "own", "a"),
    ):  # fmt: skip
        node = helper.make_node(op, ["x"], ["y"], domain=domain)
        node.attribute.add(name=attribute, ref_attr_name="a", type=onnx.AttributeProto.FLOAT)
        function = helper.make_function("own", name, ["x"], ["y"], [node], IMPORTS)
        if name == "leak":
            function.attribute_proto.append(helper.make_attribute("a", 0.5))
        else:
            function.attribute.append("a")
        functions.append(function)
    call = helper.make_node("outer", ["x0"], ["y0"], domain="own", **given)
    x = -np.ones(3, np.float32)
    np.testing.assert_array_equal(called(call, functions, x), x * np.float32(slope))


# What is refused.


def refused(proto: onnx.ModelProto | bytes | str | Path) -> PycError:
    with pytest.raises(PycError) as caught:
        import_onnx(proto)
    return caught.value


def test_all_unsupported_nodes_are_listed() -> None:
    nodes = [
        n("RandomNormalLike", "x", "z"),
        n("Multinomial", "sq", "d"),
        n("Relu", "x", "r"),
        n("Unique", "r", "y", sorted=0),
        n("Relu", "z", "unseen"),
    ]
    sizes = {"x": (F, ["batch", "seq", 8])}
    error = refused(model(nodes, sizes, ["y", "d", "unseen"], {"sq": f32(2, 2)}))
    assert isinstance(error, UnsupportedModel)
    assert error.code is ReasonCode.UNSUPPORTED_OP
    assert [(f.node, f.op, f.code.name) for f in error.findings] == [
        ("z", "RandomNormalLike", "UNSUPPORTED_OP"),
        ("d", "Multinomial", "UNSUPPORTED_OP"),
        ("y", "Unique", "UNSUPPORTED_ATTRIBUTE"),
    ]
    assert "3 nodes cannot be imported" in str(error) and "expected elements in order" in str(error)
    report = error.report
    assert (report.total, len(report.breaks), report.untried, report.score) == (5, 3, 1, 0.2)
    assert report.by_op == {"RandomNormalLike": 1, "Multinomial": 1, "Unique": 1}
    assert [b.place for b in report.breaks] == [1, 2, 4] and report.first == "<onnx>:1"
    assert "1 of 5 nodes (20%) can be imported, 1 were not tried" in str(error)


def test_ops_of_other_domains_and_unknown_ops() -> None:
    proto = small([n("Relu", "x", "r"), n("Frobnicate", "r", "y")])
    proto.graph.node.append(helper.make_node("Fused", ["x"], ["g"], "g", domain="com.microsoft"))
    proto.graph.output.append(
        helper.make_tensor_value_info("g", TensorProto.FLOAT, ["batch", "seq", 8])
    )
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    error = refused(proto)
    assert isinstance(error, UnsupportedModel)
    assert [f.op for f in error.findings] == ["Frobnicate", "com.microsoft.Fused"]


def of_layout() -> onnx.ModelProto:
    """An op of a layout of onnxruntime's for one machine."""
    proto = node_model("Relu", [f32(2, 4)], [], {})
    proto.graph.node[0].domain = "com.microsoft.nchwc"
    proto.opset_import.append(helper.make_opsetid("com.microsoft.nchwc", 1))
    return proto


VOLUME = f32(1, 2, 4, 4, 4)
REFUSED = {
    "mode 'bogus'": node_model("Pad", [VOLUME], [np.zeros(10, int)], {"mode": "bogus"}),
    "padding_mode=zeros": node_model(
        "GridSample", [VOLUME], [f32(1, 2, 2, 2, 3)], {"mode": "bogus"}
    ),
    "computed when the model runs": node_model("Reshape", [f32(2, 3), np.array([3, 2])], [], {}),
    "input `x0`: element type COMPLEX64": node_model(
        "Identity", [np.zeros(3, np.complex64)], [], {}
    ),
    "level EXTENDED": of_layout(),
    "got 29; export the model with opset 28": node_model("Relu", [f32(3)], [], {}, opset=29),
}
CODES = {"element type": ReasonCode.UNSUPPORTED_DTYPE, "EXTENDED": ReasonCode.UNSUPPORTED_OP,
         "opset 28": ReasonCode.UNSUPPORTED_OP}  # fmt: skip


@pytest.mark.parametrize("why", list(REFUSED))
def test_refusals(why: str) -> None:
    error = refused(REFUSED[why])
    other = next((code for part, code in CODES.items() if part in why), None)
    assert error.code is (other or ReasonCode.UNSUPPORTED_ATTRIBUTE)
    assert why in str(error)


def test_the_newest_opset() -> None:
    assert ops_of(import_onnx(node_model("Relu", [f32(3)], [], {}, opset=28)))


@pytest.mark.parametrize(("fmod", "formula"), [(0, np.remainder), (1, np.fmod)])
def test_mod_of_doubles_is_exact(fmod: int, formula: np.ufunc) -> None:
    x, y = np.array([1.0, -5.0, 1e300, np.inf, 7.0]), np.array([0.1, 0.1, 3.0, 2.0, np.inf])
    module = import_onnx(node_model("Mod", [x, y], [], {"fmod": fmod}))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(interpret(module, [x, y])[0], formula(x, y))


def test_what_a_newer_version_adds_is_not_passed_over() -> None:
    from pyc_mlir.dialects.ir.builder import NumpyBuilder
    from pyc_mlir.frontends.onnx.ops.node import Handler, OnnxNode

    def run(handler: Handler, operands: list, **stated: object) -> tuple:
        names = ["x", "y"][: len(operands)]
        node = OnnxNode(helper.make_node("Relu", names, ["z"]), NumpyBuilder(), operands, id)
        return handler(node, stated)

    with pytest.raises(PycError, match="attribute `extra`"):
        run(Handler(lambda b, x: x), [1], extra=1)
    assert run(Handler(lambda b, x, *, extra: (x, extra)), [1], extra=1) == (id(0), 1)
    with pytest.raises(PycError, match="input 1"):
        run(Handler(lambda b, x: x), [1, 2])
    with pytest.raises(PycError, match="expected an input 1, got none"):
        run(Handler(lambda b, x, y: x), [1, None])
    with pytest.raises(PycError, match="output 0 "):
        run(Handler(lambda b, x=None: x), [None])


def test_the_domain_of_onnxruntime_is_stated() -> None:
    """Its optimizer leaves the import out, and writes an op of it into ONNX's domain."""
    for op, domain in (("QuickGelu", "com.microsoft"), ("SimplifiedLayerNormalization", "")):
        weights = [] if op == "QuickGelu" else [np.ones(4, np.float32)]
        proto = node_model("Relu", [f32(2, 4)], weights, {})
        node = proto.graph.node[0]
        node.op_type, node.domain = op, domain
        assert ops_of(import_onnx(proto))


def test_inputs_of_unknown_rank() -> None:
    proto = node_model("Relu", [f32(3)], [], {})
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    assert refused(proto).code in (ReasonCode.UNSUPPORTED_ATTRIBUTE, ReasonCode.BAD_MODEL)


def bad_models() -> dict[str, onnx.ModelProto | bytes]:
    cycle = small([n("Relu", "b", "a"), n("Relu", "a", "b"), n("Add", "x b", "y")])
    missing = small([n("Add", "x nowhere", "y")])
    attribute = node_model("Relu", [f32(3)], [], {"alpha": 1.0})
    kind = node_model("Softmax", [f32(3, 3)], [], {"axis": [1]})
    shapes = model([n("MatMul", "a b", "y")], {"a": (F, [2, 3]), "b": (F, [4, 5])}, ["y"])
    types = model([n("Add", "a b", "y")], {"a": (F, [2]), "b": (np.int64, [2])}, ["y"])
    pads = node_model("Conv", [f32(1, 1, 4, 4)], [f32(1, 1, 3, 3)], {"pads": [1, 1, 1]})
    short = node_model("Add", [f32(3)], [f32(3)], {})
    short.graph.initializer[0].raw_data = b"abc"
    return {
        "empty": b"", "noise": b"\xff\x00noise", "text": b"ir_version: 8", "cycle": cycle,
        "missing": missing, "attribute": attribute, "kind": kind, "shapes": shapes,
        "types": types, "pads": pads, "short": short,
    }  # fmt: skip


@pytest.mark.parametrize("name", list(bad_models()))
def test_malformed_models(name: str) -> None:
    error = refused(bad_models()[name])
    assert error.code is ReasonCode.BAD_MODEL, error
    assert str(error).startswith("<onnx>: ")


def test_missing_files(tmp_path: Path) -> None:
    error = refused(tmp_path / "none.onnx")
    assert error.code is ReasonCode.FILE_ACCESS
    assert "none.onnx" in str(error)


# The demo's models.


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.full
def test_demo_models_match_the_reference_evaluator(name: str) -> None:
    path = MODELS[name]
    assert path.stat().st_size < 200_000
    _, held_out = load_digits()
    assert len(held_out.labels) == HELD_OUT
    proto = onnx.load_model(path)
    assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    (scores,) = interpret(import_onnx(path), [held_out.pixels])
    accuracy = held_out.accuracy(scores)
    assert accuracy == reference_accuracy(proto, held_out)
    assert accuracy > 0.98
    check(proto, {"image": held_out.pixels[:7]}, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_the_split_is_a_partition() -> None:
    train, held_out = load_digits()
    assert (len(train.labels), len(held_out.labels)) == (1437, 360)
    again, _ = load_digits()
    np.testing.assert_array_equal(train.pixels, again.pixels)
    rows = {p.tobytes() for p in train.pixels} & {p.tobytes() for p in held_out.pixels}
    assert not rows


@pytest.mark.parametrize("size", [2, 300])
def test_shapes_that_onnxruntime_does_not_need(size: int) -> None:
    """An output without a type, an input without a shape whose default is an initializer."""
    weight = np.full((size, size), 0.5, F)
    proto = model([n("MatMul", "x w", "y")], {"x": (F, [1, size])}, ["y"], {"w": weight})
    proto.graph.output[0].ClearField("type")
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, None))
    x = np.ones((1, size), F)
    np.testing.assert_array_equal(interpret(import_onnx(proto), [x])[0], x @ weight)


def test_numpy_weights_round_trip_through_raw_and_typed_fields() -> None:
    for values in (f32(3), np.array([1.5, 2.5, -3], np.float16), np.array([1, 2, 3])):
        tensor = numpy_helper.from_array(values, "c0")
        proto = node_model("Identity", [values], [values], {})
        del proto.graph.input[:]
        proto.graph.node[0].input[:] = ["c0"]
        proto.graph.initializer[0].CopyFrom(tensor)
        np.testing.assert_array_equal(interpret(import_onnx(proto), [])[0], values)
