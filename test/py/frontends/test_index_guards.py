"""Indices in an argument are compared with their axis at the call, where the source demands it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from modules import shared_context
from onnx import TensorProto, helper
from onnx_models import model

import pyc_mlir
from pyc_mlir import Contract, PycError
from pyc_mlir.artifact.test_vectors import EDGES, make_inputs
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.util.index_ranges import IndexRange, ranges_text
from pyc_mlir.frontends.graph_report import graph_report
from pyc_mlir.frontends.onnx.importer import import_onnx
from pyc_mlir.frontends.signatures import signature_of
from pyc_mlir.runtime.array import to_device

W = np.arange(120, dtype=np.float32).reshape(30, 4)
Inputs = Mapping[str, tuple[Any, Sequence[Any]]]
IDS: Inputs = {"ids": (np.int64, ("b", 3))}


def node(op: str, *inputs: str, to: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [to], **attributes)


def of(nodes: Sequence[onnx.NodeProto], inputs: Inputs = IDS) -> onnx.ModelProto:
    weights = {"w": W, "steps": np.array([2]), "one": np.array([1]), "two": np.array([2])}
    return model(nodes, inputs, ["y"], weights)


def taking(*before: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Nodes that make `i` of the ids, and a Gather by it."""
    return [*before, node("Gather", "w", "i")]


def pairs(shape: Sequence[Any], values: Sequence[Any]) -> Inputs:
    return {"ids": (np.int64, shape), "x": (np.float32, values)}


# What is imported, the size below which indices must be, or (argument, axis), and the clamped ops.
CASES: dict[str, tuple[onnx.ModelProto, Any, int]] = {
    "Gather": (of([node("Gather", "w", "ids")]), 30, 0),
    "Gather along the last axis": (of([node("Gather", "w", "ids", axis=-1)]), 4, 0),
    "through casts, reshapes and transposes": (
        of(taking(
            helper.make_node("Cast", ["ids"], ["narrow"], to=TensorProto.INT32),
            node("Flatten", "narrow", to="flat"), node("Transpose", "flat", to="i"))),
        30, 0),
    "GatherElements": (of([node("GatherElements", "w", "ids", axis=1)]), 4, 0),
    "GatherND": (of([node("GatherND", "w", "ids")], pairs(("b", 1), (1,))), 30, 0),
    "GatherND of two axes": (of([node("GatherND", "w", "ids")], pairs((2, 2), (1,))), 30, 0),
    "ScatterElements": (
        of([node("ScatterElements", "w", "ids", "x", axis=1)], pairs((30, 3), (30, 3))), 4, 0),
    "ScatterND": (of([node("ScatterND", "w", "ids", "x")], pairs((2, 1), (2, 4))), 30, 0),
    "ScatterND of rows of an argument": (
        of([node("ScatterND", "x", "ids", "rows")],
           {**pairs((2, 1), ("n", 4)), "rows": (np.float32, (2, 4))}), (1, 0), 0),
    "GatherND of sizes known in a call": (
        of([node("GatherND", "x", "ids")], pairs((2, 2), ("n", 4))), None, 1),
    "a cast that wraps": (
        of(taking(
            helper.make_node("Cast", ["ids"], ["byte"], to=TensorProto.UINT8),
            helper.make_node("Cast", ["byte"], ["i"], to=TensorProto.INT64))),
        None, 1),
    "a cast of bytes": (
        of(taking(helper.make_node("Cast", ["ids"], ["i"], to=TensorProto.INT64)),
           {"ids": (np.uint8, ("b", 3))}), 30, 0),
    "an axis of an argument": (of([node("Gather", "x", "ids")], pairs((2,), ("n", 4))), (1, 0), 0),
    "computed": (of(taking(node("Add", "ids", "steps", to="i"))), None, 1),
    "a part": (of(taking(node("Slice", "ids", "one", "two", to="i")), IDS), None, 1),
    "constants": (of([node("Gather", "x", "steps")], pairs((1,), (9, 4))), None, 0),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_declared(case):
    proto, size, clamped = CASES[case]
    module = import_onnx(proto, context=shared_context())
    function = entry_function(module)
    of_axis, axis = size if isinstance(size, tuple) else (size, -1)
    wanted = () if size is None else (IndexRange(0, of_axis, axis),)
    assert signature_of(function).indices == wanted
    report = graph_report(function)
    assert report.clamped == clamped
    assert ("are clamped" in str(report)) == bool(clamped)


@pytest.fixture(scope="module")
def taken():
    return pyc_mlir.compile(of(taking(node("Flatten", "ids", to="i"))), cache=False)


@pytest.mark.parametrize("where", ["numpy", "device", "out", "loaded"])
def test_a_call_is_refused_and_counted(taken, where, tmp_path):
    taken.save(tmp_path / "taken.vmfb")
    program = pyc_mlir.load(tmp_path / "taken.vmfb") if where == "loaded" else taken
    out = np.zeros((2, 3, 4), np.float32) if where == "out" else None

    def call(ids: Any) -> np.ndarray:
        array = np.array(ids)
        return np.asarray(
            program(to_device(array, program.device) if where == "device" else array, out=out)
        )

    legal = [[0, -1, -30], [29, 1, 2]]
    np.testing.assert_array_equal(call(legal), W[legal])
    before = program.stats().guard_failures
    for wrong in (30, -31, 99_999_999, np.iinfo(np.int64).min):
        with pytest.raises(PycError, match=rf"argument `ids`: .*-30 to 29, got {wrong};") as caught:
            call([[0, 1, 2], [3, wrong, 5]])
        assert caught.value.code is ReasonCode.INDEX_OUT_OF_RANGE
    assert program.stats().guard_failures == before + 4
    assert next(g for g in program.guards() if g.name == "indices").fired == before + 4
    assert where == "out" or call(np.zeros((0, 3), np.int64)).shape == (0, 3, 4)
    np.testing.assert_array_equal(call(legal), W[legal])


def test_an_axis_that_the_call_brings():
    program = pyc_mlir.compile(CASES["an axis of an argument"][0], cache=False)
    assert program(np.array([4, -5]), np.ones((5, 4), np.float32)).shape == (2, 4)
    with pytest.raises(PycError, match="-4 to 3, got 4"):
        program(np.array([4, -4]), np.ones((4, 4), np.float32))


def test_the_option_leaves_it_out():
    program = pyc_mlir.compile(of([node("Gather", "w", "ids")]), guard_indices=False, cache=False)
    assert not program.signature.indices and not program.artifact.manifest.options.guard_indices
    np.testing.assert_array_equal(program(np.full((1, 3), 99))[0], W[[29] * 3])
    assert "indices" not in {g.name for g in program.guards()}


def test_samples_keep_the_range(taken):
    for seed in (0, 1, EDGES):
        (ids,) = make_inputs(taken.signature, seed, {"b": 40})
        assert -30 <= ids.min() < 0 and 20 < ids.max() < 30
    pyc_mlir.compile(of([node("Gather", "w", "ids")]), contract=Contract(max_error=1e-3))


def test_a_branch_that_may_not_run_declares_nothing():
    value = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    one = helper.make_graph([node("Gather", "w", "ids", to="z")], "one", [], [value])
    other = helper.make_graph([node("Gather", "w", "zeros", to="z")], "other", [], [value])
    nodes = [
        node("Sub", "ids", "ids", to="zeros"),
        node("If", "p", then_branch=one, else_branch=other),
    ]
    module = import_onnx(of(nodes, {**IDS, "p": (np.bool_, ())}), context=shared_context())
    assert not signature_of(entry_function(module)).indices


@pytest.mark.parametrize("range_", [(1, 3), (0, -3), (0, 0, 7), (0, 3, "x")])
def test_malformed_ranges_are_refused(range_):
    indices = json.dumps(ranges_text([IndexRange(*range_)]))
    text = f"""func.func @main(%i: tensor<3xi64>) -> tensor<3xi64>
        attributes {{pyc.indices = {indices}}} {{ return %i : tensor<3xi64> }}"""
    with shared_context(), pytest.raises(PycError) as caught:
        module = ir.Module.parse(text)
        signature_of(entry_function(module))
    assert caught.value.code is ReasonCode.INVALID_IR
