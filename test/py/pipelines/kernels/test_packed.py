"""Weights of few bits stay packed in a program, and their products are those of the model."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyc_mlir

DEPTH, COLUMNS, BLOCK = 256, 320, 32


def model(rows, points, bits=4, level=0):
    """A product of few bits, and its weights as numbers."""
    values = np.random.default_rng(5)
    blocks, held = DEPTH // BLOCK, BLOCK * bits // 8
    packed = values.integers(0, 256, (COLUMNS, blocks, held)).astype(np.uint8)
    scale = values.random((COLUMNS, blocks)).astype(np.float32)
    numbers = np.stack([packed & 15, packed >> 4], -1) if bits == 4 else packed
    point = values.integers(0, 256, (COLUMNS, blocks * bits // 8)).astype(np.uint8)
    each = np.stack([point & 15, point >> 4], -1) if bits == 4 else point
    zero = each.reshape(COLUMNS, blocks, 1).astype(float) if points else 1 << (bits - 1)
    weights = (numbers.reshape(COLUMNS, blocks, -1).astype(float) - zero) * scale[..., None]
    stored = {"q": packed, "s": scale, **({"p": point} if points else {})}
    node = helper.make_node(
        "MatMulNBits", ["x", *stored], ["y"], domain="com.microsoft",
        K=DEPTH, N=COLUMNS, bits=bits, block_size=BLOCK, accuracy_level=level,
    )  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, DEPTH])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, COLUMNS])
    made = [numpy_helper.from_array(a, n) for n, a in stored.items()]
    graph = helper.make_graph([node], "g", [x], [y], made)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    built = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return built, weights.reshape(COLUMNS, DEPTH)


@pytest.mark.parametrize("points,bits", [(False, 4), (True, 4), (True, 8)])
def test_a_program_holds_the_packed_weights_alone(points, bits):
    source, weights = model("m", points, bits)
    program = pyc_mlir.compile(source, cache=False)
    assert any(d.chosen.startswith("packed:") for d in program.artifact.decisions)
    packed = sum(len(t.raw_data) for t in source.graph.initializer)
    constants = program.artifact.account.constants
    assert constants is not None and constants <= 1.15 * packed
    for rows in (1, 2, 15):
        x = np.random.default_rng(rows).normal(size=(rows, DEPTH)).astype(np.float32)
        exact = x.astype(np.float64) @ weights.T
        np.testing.assert_allclose(np.asarray(program(x)), exact, atol=1e-5 * np.abs(exact).max())


def test_rows_are_rounded_where_the_model_allows_it():
    source, weights = model("m", False, level=4)
    program = pyc_mlir.compile(source, target="cpu", cache=False)
    x = np.random.default_rng(0).normal(size=(30, DEPTH)).astype(np.float32)
    exact = x.astype(np.float64) @ weights.T
    greatest = np.abs(exact).max()
    for rows in (1, 2, 12):
        np.testing.assert_allclose(
            np.asarray(program(x[:rows])), exact[:rows], atol=0.02 * greatest
        )
    np.testing.assert_allclose(np.asarray(program(x)), exact, atol=0.02 * greatest)
    x[3, 5], x[20, 200] = np.inf, np.nan
    found = np.asarray(program(x))
    assert not np.isfinite(found[[3, 20]]).any()
    assert np.isfinite(np.delete(found, [3, 20], axis=0)).all()
