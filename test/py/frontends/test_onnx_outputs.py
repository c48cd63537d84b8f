"""The option `outputs`: values of an ONNX model in place of its own results."""

import numpy as np
import onnx
import pytest
from onnx import helper

import pyc_mlir
from pyc_mlir.artifact.artifact import to_bytes
from pyc_mlir.artifact.compile_log import read_compile_log
from pyc_mlir.artifact.import_report import UnsupportedModel
from pyc_mlir.debug.replay import replay
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.tools import pyc_compile, pyc_explain

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def path(tmp_path):
    """Relu, exp, then a tail that nothing compiles: an op of nobody's, and rows as many as data."""
    nodes = [
        helper.make_node("Relu", ["x"], ["kept"]),
        helper.make_node("Exp", ["kept"], ["grown"]),
        helper.make_node("Tail", ["grown", "w"], ["z"], domain="nobody"),
        helper.make_node("NonZero", ["z"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", 1, ["n", 4])
    y = helper.make_tensor_value_info("y", 7, [2, "m"])
    w = onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    opsets = [helper.make_opsetid("", 22), helper.make_opsetid("nobody", 1)]
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def kept(program):
    grown, relu = program(X)
    assert [o.name for o in program.signature.outputs] == ["grown", "kept"]
    np.testing.assert_array_equal(relu, np.maximum(X, 0))
    np.testing.assert_allclose(grown, np.exp(np.maximum(X, 0)), rtol=1e-6)


@pytest.mark.parametrize("untrusted", [False, True])
def test_results_are_the_named_values_in_that_order(path, untrusted):
    kept(pyc_mlir.compile(path, outputs=["grown", "kept"], cache=False, untrusted=untrusted))
    kept(pyc_mlir.compile(path.read_bytes(), outputs=["grown", "kept"], cache=False))
    kept(pyc_mlir.compile(onnx.load(path), outputs=["grown", "kept"], cache=False))
    with pytest.raises(UnsupportedModel):
        pyc_mlir.compile(path, cache=False)


def test_an_input_is_a_value_too(path):
    program = pyc_mlir.compile(path, outputs="x", cache=False)
    np.testing.assert_array_equal(program(X), X)


@pytest.mark.parametrize(
    ("given", "got"),
    [(["growm"], "'growm'; did you mean 'grown'"), (["kept", "kept"], "'kept' twice")],
)
def test_what_is_no_value_is_refused_with_the_nearest_one(path, given, got):
    with pytest.raises(PycError, match=got) as caught:
        pyc_mlir.compile(path, outputs=given, cache=False)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT
    assert "its own results are y" in caught.value.message


def test_a_function_has_no_named_values():
    with pytest.raises(PycError, match="outputs: expected an ONNX model") as caught:
        pyc_mlir.compile(lambda x: x, [X], outputs=["y"], cache=False)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_the_cache_tells_results_apart(path, tmp_path):
    for names in (["grown", "kept"], ["kept"], ["grown", "kept"]):
        program = pyc_mlir.compile(path, cache=tmp_path / "cache", outputs=names)
        assert [o.name for o in program.signature.outputs] == names


def test_commands_take_names(path, tmp_path):
    made, again = str(tmp_path / "m.vmfb"), tmp_path / "again.vmfb"
    parts = [str(path), "--outputs", "grown,kept", "--no-cache"]
    assert pyc_compile.run([*parts, "-o", made]) == 0
    program = pyc_mlir.load(made)
    kept(program)
    recorded = read_compile_log(made)
    assert recorded.reading == (False, "", ("grown", "kept"))
    assert to_bytes(replay(path, None, recorded)) == to_bytes(program.artifact)
    assert pyc_compile.run([str(path), "--replay", made, "-o", str(again)]) == 0
    assert pyc_explain.main([str(path), "--outputs", "grown"]) == 0
    assert pyc_explain.main([str(path)]) != 0
