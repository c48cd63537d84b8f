"""16-bit floats whose sums, squares and statistics leave the range though the results do not."""

from typing import Any

import numpy as np
import onnx
import pytest
from f16_ranges import difference
from modules import shared_context
from onnx import TensorProto, helper
from onnx_models import node_model

from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.frontends.onnx.importer import import_onnx

F, H = np.float32, np.float16
RNG = np.random.default_rng(0)
POOL = {"kernel_shape": [2, 2]}


def large(*shape: int) -> np.ndarray:
    return RNG.uniform(300, 500, shape).astype(F)


# (op, inputs, constants, attributes): results within the range of f16.
CASES: list[tuple[str, list[np.ndarray], list[Any], dict[str, Any]]] = [
    *((op, [large(2, 64)], [], {"axes": [1]})
      for op in ("ReduceL1", "ReduceL2", "ReduceLogSumExp", "ReduceMean")),
    ("ReduceLogSum", [large(2, 512)], [], {"axes": [1]}),
    ("ReduceSumSquare", [np.full((1, 512), 2e-4, F)], [], {"axes": [1]}),
    ("ReduceLogSumExp", [np.zeros((1, 1 << 17), F)], [], {"axes": [1]}),
    *(("LpNormalization", [large(2, 512)], [], {"p": p}) for p in (1, 2)),
    ("LRN", [large(1, 8, 4, 4)], [], {"size": 5, "alpha": 0.5}),
    ("LpPool", [large(1, 2, 4, 4)], [], POOL),
    ("LpPool", [large(1, 2, 8, 8)], [], {**POOL, "p": 3}),
    ("GlobalLpPool", [large(1, 2, 4, 4)], [], {}),
    *((op, [np.full((2, 3), v, F) for v in (5e4, 4e4, -5e4)], [], {}) for op in ("Sum", "Mean")),
    ("AveragePool", [large(1, 2, 32, 32)], [], {"kernel_shape": [16, 16], "dilations": [2, 2]}),
    ("AveragePool", [large(1, 2, 32, 32)], [], {"kernel_shape": [16, 16]}),
    ("BatchNormalization", [large(1, 2, 4, 4) * 20],
     [np.full(2, v, F) for v in (1, 1, 7e3, 0.01)], {}),
    ("Gemm", [large(3, 8)], [large(8, 4)], {"alpha": 0.01}),
    ("Det", [np.array([[300, 290], [301, 290.5]], F)], [], {}),
    ("NegativeLogLikelihoodLoss", [-large(512, 3)], [np.zeros(512, np.int64)], {}),
    ("SoftmaxCrossEntropyLoss", [large(512, 3) * [1, 0.5, 0.1]], [np.full(512, 2)], {}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "inputs", "constants", "attributes"), CASES)
def test_intermediates_beyond_f16(op: str, inputs: list, constants: list, attributes: dict) -> None:
    opset = 22 if "dilations" in attributes else 17
    inputs = [v.astype(F) for v in inputs]
    model = node_model(op, inputs, constants, attributes, opset=opset)
    assert difference(model, inputs, 1.0, shared_context()) == ""


def test_statistics_of_f32_are_not_rounded() -> None:
    x = np.full((1, 1, 2), 300.5, H)
    statistics = [np.array([v], F) for v in (1, 0.125, 300.4, 1e-6)]
    model = node_model("BatchNormalization", [x], statistics, {"epsilon": 1e-5})
    wanted = (300.5 - np.float64(F(300.4))) / np.sqrt(1.1e-5) + 0.125
    np.testing.assert_allclose(interpret(import_onnx(model), [x])[0], wanted, 1e-3)


@pytest.mark.parametrize("simplified", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_skips_are_added_in_the_wider_type(simplified: bool, bias: bool) -> None:
    x, skip = (np.array([[[4e4, 3e4, 5e4, 2e4]]], H) for _ in range(2))
    names = ["x", "s", "g", *([] if simplified else [""]), *(["b"] if bias else [])]
    op = "SkipSimplifiedLayerNormalization" if simplified else "SkipLayerNormalization"
    node = helper.make_node(op, names, ["y"], domain="com.microsoft", epsilon=1e-5)
    info = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT16, [1, 1, 4]) for n in ("x", "s", "y")
    ]
    weights = [onnx.numpy_helper.from_array(np.full(4, v, H), k) for k, v in (("g", 1), ("b", 3e4))]
    graph = helper.make_graph([node], "g", info[:2], info[2:], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    total = x.astype(float) + skip + (3e4 if bias else 0)
    centered = total if simplified else total - total.mean()
    wanted = centered / np.sqrt((centered**2).mean())
    np.testing.assert_allclose(interpret(import_onnx(model), [x, skip])[0], wanted, 0, 5e-3)
