"""What every import tells: of what compiles, of what is refused, in Python and on the terminal."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import pyc_mlir
from pyc_mlir import TensorSpec, nn, trace
from pyc_mlir.artifact.artifact import from_bytes, to_bytes
from pyc_mlir.artifact.import_report import GraphBreak, ImportReport, UnsupportedModel
from pyc_mlir.compilation.lower import report_import
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import DTYPES, TensorType
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.frontends.onnx.reading import refused
from pyc_mlir.tools import pyc_explain

F32 = DTYPES["f32"]
SQUARE = [TensorSpec("f32", 4, 4)]
FOREIGN = """func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %c = arith.constant dense<1.0> : tensor<4xf32>
  %0 = arith.addf %x, %c : tensor<4xf32>
  %1 = arith.mulf %0, %0 : tensor<4xf32>
  return %1 : tensor<4xf32>
}
"""
PYTHON = """
import numpy as np
from pyc_mlir import Tensor

def sorts(x: Tensor["f32", 4, 4]):
    y = np.tanh(x) @ x
    return np.unique(y)

def fits(x: Tensor["f32", "n", 4]):
    return np.tanh(x)
"""


def layer(x):
    return np.tanh(x) @ x + np.float32(1)


def onnx_model(nodes: list, inputs: dict, outputs: dict, opset: int = 17) -> onnx.ModelProto:
    """A model of f32 tensors, by name and shape."""

    def infos(shapes: dict) -> list:
        make = helper.make_tensor_value_info
        return [make(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]

    graph = helper.make_graph(nodes, "graph", infos(inputs), infos(outputs))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


STEPS = 300


def recurrent(batch: int | str = 2) -> onnx.ModelProto:
    """Of four nodes two are breaks, and one needs the result of one of them.

    The recurrence has more steps than an import unrolls.
    """
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["h"], "lstm", hidden_size=4),
        helper.make_node("Unique", ["x"], ["z"], "found", sorted=0),
        helper.make_node("Relu", ["h"], ["q"], "relu"),
        helper.make_node("MatMul", ["x", "m"], ["p"], "product"),
    ]
    inputs = {"x": [STEPS, batch, 3], "w": [1, 16, 3], "r": [1, 16, 4], "m": [3, 7]}
    made = onnx_model(nodes, inputs, {"q": [STEPS, 1, batch, 4], "p": [STEPS, batch, 7]})
    made.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["found"]))
    return made


# What compiles.


def test_a_program_that_compiles():
    square = TensorType((4, 4), F32)
    flops = OPS["tanh"].flops([square], square) + 2 * 4**3 + 16
    expected = ImportReport(3, flops=flops)
    assert report_import(layer, SQUARE) == expected
    assert expected.score == expected.flop_score == 1.0 and expected.first == ""
    assert expected.where == {"pyc": 3, "iree": 0, "refused": 0, "untried": 0}
    assert str(expected) == f"3 of 3 ops (100%) can be compiled, {flops} flops: all of it by PyC"
    program = pyc_mlir.compile(layer, SQUARE)
    assert program.stats().imported == expected
    assert from_bytes(to_bytes(program.artifact)).imported == expected


def test_the_report_follows_from_the_graph_alone(tmp_path):
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], "t"),
        helper.make_node("MatMul", ["t", "x"], ["y"], "y"),
        helper.make_node("Exp", ["x"], ["unused"], "unused"),
    ]
    onnx.save(onnx_model(nodes, {"x": [4, 4]}, {"y": [4, 4]}), tmp_path / "a.onnx")
    text = str(trace(lambda x: np.tanh(x) @ x, *SQUARE))
    (tmp_path / "b.mlir").write_text(text)
    sources = (str(tmp_path / "a.onnx"), tmp_path / "b.mlir", text)
    assert len({report_import(source) for source in sources}) == 1


def test_flops_need_static_shapes():
    text = str(trace(lambda x: np.tanh(x), TensorSpec("f32", "n", 4)))
    dynamic = report_import(text)
    assert (dynamic.total, dynamic.flops, dynamic.score, dynamic.flop_score) == (1, None, 1.0, None)
    known = TensorType((3, 4), F32)
    assert report_import(text, [(3, 4)]).flops == OPS["tanh"].flops([known], known)


def test_what_enters_at_iree():
    report = report_import(FOREIGN)
    assert report == ImportReport(2, foreign=2)
    assert report.score == 1.0 and report.where["pyc"] == 0
    assert str(report) == "2 of 2 ops (100%) can be compiled: 2 left to IREE"
    assert pyc_mlir.compile(FOREIGN).stats().imported == report


def test_a_program_without_ops():
    report = report_import(lambda x: x, SQUARE)
    assert report == ImportReport(0, flops=0) and report.score == report.flop_score == 1.0


# What is refused: Python.


def test_the_first_break_of_a_function_is_a_line(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(PYTHON)
    space: dict = {}
    exec(compile(PYTHON, path, "exec"), space)
    with pytest.raises(UnsupportedModel) as caught:
        pyc_mlir.compile(space["sorts"])
    report = caught.value.report
    (found,) = report.breaks
    assert report.first == f"{path}:7"
    assert (found.node, found.op, found.family) == ("sorts", "np.unique", "numpy")
    assert caught.value.code is found.code is ReasonCode.UNTRACEABLE
    assert str(caught.value).startswith(
        f"{path}:7:12: np.unique cannot be traced\n    return np.unique"
    )
    # What comes after the break is not known.
    assert report.where == {"pyc": 2, "iree": 0, "refused": 1, "untried": None}
    assert report.score is report.flop_score is None
    assert str(report) == (
        "2 ops recorded before the break; breaks by family: numpy 1 (np.unique 1); the first at "
        f"{path}:7"
    )
    assert report_import(space["sorts"]) == report


@pytest.mark.parametrize(
    ("function", "op", "family"),
    [
        (lambda x: x if x.sum() > 0 else -x, "bool()", "Python"),
        (lambda x: x * float(x[0, 0]), "float()", "Python"),
        (lambda x: x[x > 0], "x[i]", "Python"),
        (lambda x: x.item(), ".item()", "Python"),
        (lambda x: np.asarray(x), "np.asarray", "numpy"),
        (lambda x: x.partition(2), "ndarray.partition", "numpy"),
        (lambda x: np.exp(x, where=x > 0), "np.exp", "numpy"),
        (lambda x: np.reshape(x, (2, 8), order="F"), "np.reshape", "numpy"),
        (lambda x: np.add.accumulate(x), "np.add.accumulate", "numpy"),
        (lambda x: x.astype("complex64"), "np.astype", "numpy"),
    ],
)
def test_constructs_that_break_a_trace(function, op, family):
    report = report_import(function, SQUARE)
    assert (report.by_op, report.by_family) == ({op: 1}, {family: 1})
    assert report.first == f"{__file__}:{function.__code__.co_firstlineno}"
    assert round_trip(report) == report


def test_sizes_and_nn_break_a_trace():
    spec = [TensorSpec("f32", 2, "n")]
    assert report_import(lambda x: range(x.shape[1] * 2), spec).by_op == {"size": 1}
    assert report_import(lambda x: nn.attention(x, x, x), spec).by_family == {"nn": 1}


def test_other_faults_of_a_function_are_no_breaks():
    with pytest.raises(PycError) as caught:
        report_import(lambda x: x @ np.zeros((3, 3), np.float32), SQUARE)
    assert not isinstance(caught.value, UnsupportedModel)


# What is refused: ONNX.


def test_a_model_with_breaks():
    with pytest.raises(UnsupportedModel) as caught:
        pyc_mlir.compile(recurrent())
    report = caught.value.report
    assert report == report_import(recurrent())
    assert (report.total, report.counted, report.untried) == (4, "nodes", 1)
    assert report.where == {"pyc": 1, "iree": 0, "refused": 2, "untried": 1}
    assert (report.by_op, report.by_family) == ({"LSTM": 1, "Unique": 1}, {"rnn": 1, "tensor": 1})
    # An LSTM of 4 gates with 3 inputs and 4 states; the relu behind it; the product.
    rows = 2 * STEPS
    lstm, relu, product = rows * 2 * 16 * (3 + 4), rows * 4, 2 * rows * 3 * 7
    assert (report.flops, report.lost_flops) == (lstm + relu + product, lstm + relu)
    assert report.score == 0.25 and report.flop_score == product / (lstm + relu + product)
    assert str(report) == (
        "1 of 4 nodes (25%, 16% of the flops) can be imported, 1 were not tried; breaks by "
        "family: rnn 1 (LSTM 1); tensor 1 (Unique 1); the first at <onnx>:1"
    )
    assert round_trip(report) == report


def test_flops_of_dynamic_models_are_not_known():
    report = report_import(recurrent("batch"))
    assert report.score == 0.25
    assert report.flops is report.lost_flops is report.flop_score is None
    assert "1 of 4 nodes (25%) can be imported" in str(report)


def test_ops_of_other_domains_have_no_known_work():
    model = onnx_model([], {"x": [4]}, {"y": [4]})
    model.graph.node.append(
        helper.make_node("BeamSearch", ["x"], ["y"], "g", domain="com.microsoft")
    )
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    report = report_import(model)
    assert (report.by_family, report.flops, report.score) == ({"com.microsoft": 1}, None, 0.0)


WORKS = [
    ("MatMul", {"a": [2, 3, 4], "b": [4, 5]}, [2, 3, 5], {}, 2 * 2 * 3 * 4 * 5),
    ("Gemm", {"a": [4, 3], "b": [4, 5]}, [3, 5], {"transA": 1}, 2 * 3 * 4 * 5),
    ("Conv", {"x": [1, 6, 5, 5], "w": [4, 3, 3, 3]}, [1, 4, 3, 3], {"group": 2}, 2 * 36 * 27),
    ("ConvTranspose", {"x": [1, 6, 3, 3], "w": [6, 4, 3, 3]}, [1, 4, 5, 5], {}, 2 * 54 * 36),
    ("Relu", {"x": [3, 4]}, [3, 4], {}, 12),
    ("ReduceMax", {"x": [3, 4]}, [1, 1], {}, 12),
    ("Transpose", {"x": [3, 4]}, [4, 3], {}, 0),
]


@pytest.mark.parametrize(("op", "inputs", "output", "attributes", "flops"), WORKS)
def test_work_of_nodes(op, inputs, output, attributes, flops):
    node = helper.make_node(op, list(inputs), ["y"], "node", **attributes)
    report = refused("m", onnx_model([node], inputs, {"y": output}), [])
    assert (report.flops, report.lost_flops) == (flops, 0)


def test_recurrent_work_by_directions():
    shapes = {"x": [5, 2, 3], "w": [2, 12, 3], "r": [2, 12, 4]}
    node = helper.make_node("GRU", list(shapes), ["y"], hidden_size=4, direction="bidirectional")
    report = refused("m", onnx_model([node], shapes, {"y": [5, 2, 2, 4]}), [])
    assert report.flops == 2 * (5 * 2) * 2 * 12 * (3 + 4)


@pytest.mark.parametrize("shape", [[], [4], [-1, 2, 3], [1 << 40, 1 << 40, 1], [1] * 100])
@pytest.mark.parametrize("op", ["LSTM", "Gemm", "Conv"])
def test_malformed_nodes_have_no_known_work(op, shape):
    """ONNX lacks an op, so that its checker has not looked at the others."""
    nodes = [helper.make_node(op, ["x"], ["y"]), helper.make_node("Frobnicate", ["x"], ["z"])]
    report = report_import(onnx_model(nodes, {"x": shape}, {"y": shape, "z": shape}))
    assert report.by_family["unknown"] == 1 and report.flops is None
    assert round_trip(report) == report


def test_weights_that_are_refused():
    model = onnx_model([helper.make_node("Relu", ["x"], ["y"], "r")], {"x": [4]}, {"y": [4]})
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0])
    places = helper.make_tensor("i", TensorProto.INT64, [1], [2])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4]))
    report = report_import(model)
    assert report.where == {"pyc": 0, "iree": 0, "refused": 1, "untried": 1}
    assert report.score == 0.0 and report.first == "<onnx>"


# The data.


def round_trip(report: ImportReport) -> ImportReport:
    return from_data(ImportReport, json.loads(json.dumps(to_data(report))))


GOOD = ImportReport(4, "nodes", "m.onnx", flops=9, lost_flops=2, untried=1, foreign=1)
BREAK = GraphBreak("n", "LSTM", ReasonCode.UNSUPPORTED_OP, "unknown", 2, "rnn")


def test_reports_survive_json():
    for report in (ImportReport(), GOOD, replace(GOOD, breaks=(BREAK,))):
        assert round_trip(report) == report


@pytest.mark.parametrize(
    "change",
    [
        {"total": -1},
        {"total": True},
        {"total": 1.5},
        {"counted": "bananas"},
        {"name": 3},
        {"flops": -9},
        {"lost_flops": 10},
        {"foreign": 5},
        {"untried": "all"},
        {"score": 0.5},
        {"breaks": [{}]},
        {"breaks": "none"},
        {"breaks": [{**to_data(GOOD), "code": "NO_SUCH_CODE"}]},
        {"more": 1},
    ],
)
def test_other_data_is_refused(change):
    with pytest.raises(ValueError, match=r"ImportReport.*: expected"):
        from_data(ImportReport, {**to_data(GOOD), **change})
    with pytest.raises(ValueError, match="expected ImportReport"):
        from_data(ImportReport, [])


# On the terminal.


def explained(capfd, *argv: str) -> tuple[int, str, str]:
    status = pyc_explain.main([*argv])
    return status, *capfd.readouterr()


def test_explain_a_model(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(recurrent(), "model.onnx")
    status, out, _ = explained(capfd, "model.onnx")
    assert status == 1
    assert out.splitlines()[0].startswith("model.onnx: 1 of 4 nodes (25%, 16% of the flops)")
    assert "  model.onnx:2: found (Unique): UNSUPPORTED_ATTRIBUTE: " in out
    status, out, _ = explained(capfd, "model.onnx", "--json", "-")
    report = json.loads(out)
    assert (status, report["first"], report["score"]) == (1, "model.onnx:1", 0.25)
    assert explained(capfd, "model.onnx", "--json", "r.json")[1].startswith("model.onnx: ")
    assert json.loads(Path("r.json").read_text()) == report


@pytest.mark.full
def test_explain_functions_and_text(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("m.py").write_text(PYTHON)
    Path("f.mlir").write_text(FOREIGN)
    status, out, _ = explained(capfd, "m.py:sorts")
    assert status == 1 and "m.py:7: sorts (np.unique): UNTRACEABLE: " in out
    assert explained(capfd, "m.py:fits")[:2] == (
        0,
        "m.py:fits: 1 of 1 ops (100%) can be compiled: all of it by PyC\n",
    )
    status, out, _ = explained(capfd, "m.py:fits", "--input", "x=3x4")
    assert status == 0 and " flops: " in out
    # In a process of its own: a forked child of one that has compiled opens no session of IREE.
    command = [sys.executable, "-m", "pyc_mlir.tools.pyc_explain", "f.mlir"]
    done = subprocess.run(command, capture_output=True, text=True)
    reported = "f.mlir: 2 of 2 ops (100%) can be compiled: 2 left to IREE\n"
    assert (done.returncode, done.stdout) == (0, reported), done.stderr


def test_explain_refuses(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = explained(capfd, "gone.onnx")
    assert status == 1 and "gone.onnx" in err and "[FILE_ACCESS]" in err
    status, _, err = explained(capfd, "m.onnx", "--html", "x.html")
    assert status == 2 and "expected a program for --html" in err
