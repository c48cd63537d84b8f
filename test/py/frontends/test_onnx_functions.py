"""Functions of an ONNX model's own: written out, with the attributes that a call gives."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx_models import node_model

from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.frontends.onnx.importer import import_onnx

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
