"""Suppression of boxes that a model computes: a buffer of fixed size with a count, or a refusal."""

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from modules import shared_context
from onnx import TensorProto, helper, numpy_helper
from onnx_models import model, node_model

import pyc_mlir
from pyc_mlir.artifact.import_report import UnsupportedModel
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.frontends.onnx.importer import import_onnx

BOXES, CLASSES = 12, 2


def detector(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[str],
    keep: int = 3,
    free: bool = False,
    least: bool = True,
) -> onnx.ModelProto:
    """Suppression of `boxes` and `scores` into `taken`, then these nodes."""
    batch = "batch" if free else 1
    inputs = [
        helper.make_tensor_value_info("boxes", TensorProto.FLOAT, [batch, BOXES, 4]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, CLASSES, BOXES]),
    ]
    weights = {
        "keep": np.array([keep]), "overlap": np.array([0.5], np.float32),
        "least": np.array([0.2], np.float32), "two": np.array([2]), "one": np.array([1]),
        "axis": np.array([1]), "zero": np.array([0]), "three": np.array([3]),
    }  # fmt: skip
    made = [numpy_helper.from_array(v, k) for k, v in weights.items()]
    names = ["boxes", "scores", "keep", "overlap", "least"]
    first = helper.make_node("NonMaxSuppression", names[: 5 if least else 4], ["taken"])
    # Of outputs onnx itself finds types and ranks.
    infos = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([first, *nodes], "detector", inputs, infos, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def drawn(batch: int = 1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(17)
    corners = rng.random((batch, BOXES, 2)).astype(np.float32)
    boxes = np.concatenate([corners, corners + rng.random((batch, BOXES, 2))], 2)
    return boxes.astype(np.float32), rng.random((batch, CLASSES, BOXES)).astype(np.float32)


def expected(
    boxes: np.ndarray, scores: np.ndarray, keep: int, least: float = 0.2, limit: float = 0.5
) -> np.ndarray:
    """ONNX's definition, box by box."""
    rows = []
    for image in range(len(boxes)):
        for kind in range(CLASSES):
            order = np.argsort(-scores[image, kind], kind="stable")
            taken: list[int] = []
            for i in order:
                if scores[image, kind, i] <= least or len(taken) == keep:
                    break
                if all(overlap(boxes[image, i], boxes[image, j]) <= limit for j in taken):
                    taken.append(int(i))
            rows += [(image, kind, i) for i in taken]
    return np.array(rows, np.int64).reshape(-1, 3)


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    shared = max(sides[0], 0) * max(sides[1], 0)
    areas = [(v[2] - v[0]) * (v[3] - v[1]) for v in (a, b)]
    return shared / (sum(areas) - shared)


# The box, its score and its class of each row, as exporters of detectors write it.
ROWS = (
    helper.make_node("Gather", ["taken", "two"], ["column"], axis=1),
    helper.make_node("Squeeze", ["column", "axis"], ["index"]),
    helper.make_node("Squeeze", ["boxes", "zero"], ["plain"]),
    helper.make_node("Gather", ["plain", "index"], ["kept"]),
    helper.make_node("Slice", ["taken", "one", "two", "axis"], ["kind"]),
    helper.make_node("Cast", ["kind"], ["label"], to=TensorProto.FLOAT),
    helper.make_node("Concat", ["kept", "label"], ["found"], axis=1),
)


def test_rows_are_those_of_the_definition_and_their_number_is_a_result() -> None:
    for keep in (1, 3, BOXES):
        model = detector((), ["taken"], keep)
        boxes, scores = drawn()
        rows, count = interpret(import_onnx(model, context=shared_context()), [boxes, scores])
        assert rows.shape == (CLASSES * keep, 3)
        np.testing.assert_array_equal(rows[: int(count)], expected(boxes, scores, keep))
        assert (rows[int(count) :] == -1).all()


def test_without_a_least_score_all_boxes_may_be_taken() -> None:
    boxes, scores = drawn()
    model = detector((), ["taken"], BOXES, least=False)
    rows, count = interpret(import_onnx(model, context=shared_context()), [boxes, -scores])
    wanted = expected(boxes, -scores, BOXES, -np.inf)
    np.testing.assert_array_equal(rows[: int(count)], wanted)


@pytest.mark.parametrize("left_out", [(), (4,), (3, 4), (2,), (2, 3, 4)])
def test_boxes_that_are_known_are_suppressed_at_import(left_out: Sequence[int]) -> None:
    """Without a number of boxes there are none; without an overlap any is too much."""
    boxes, scores = drawn()
    model = detector((), ["taken"])
    for name, value in (("boxes", boxes), ("scores", scores)):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    del model.graph.input[:]
    for index in left_out:
        model.graph.node[0].input[index] = ""
    (rows,) = interpret(import_onnx(model, context=shared_context()), [])
    keep = 0 if 2 in left_out else 3
    limit, least = (0.0 if 3 in left_out else 0.5), (-np.inf if 4 in left_out else 0.2)
    np.testing.assert_array_equal(rows, expected(boxes, scores, keep, least, limit))


def test_values_that_differ() -> None:
    """Of constants: in order or by first places, of elements or slices."""
    x = np.array([[3, 1, 3], [3, 1, 3], [0, 1, 0]])
    cases = {
        (1, None): ([0, 1, 3], [6, 1, 0], [2, 1, 2, 2, 1, 2, 0, 1, 0], [2, 3, 4]),
        (0, None): ([3, 1, 0], [0, 1, 6], [0, 1, 0, 0, 1, 0, 2, 1, 2], [4, 3, 2]),
        (0, 0): ([[3, 1, 3], [0, 1, 0]], [0, 2], [0, 0, 1], [2, 1]),
        (1, 0): ([[0, 1, 0], [3, 1, 3]], [2, 0], [1, 1, 0], [1, 2]),
        (0, 1): ([[3, 1], [3, 1], [0, 1]], [0, 1], [0, 1, 0], [2, 1]),
        (1, -1): ([[1, 3], [1, 3], [1, 0]], [1, 0], [1, 0, 1], [1, 2]),
    }
    for (in_order, axis), wanted in cases.items():
        attributes = {"sorted": in_order} | ({} if axis is None else {"axis": axis})
        model = node_model("Unique", [], [x], attributes, outputs=4)
        found = interpret(import_onnx(model, context=shared_context()), [])
        for f, w in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(f, w)


@pytest.mark.parametrize("x", [np.array([[0, 3], [1, 0]]), np.array(2.0), np.array(False)])
def test_places_that_are_not_zero(x: np.ndarray) -> None:
    model = node_model("NonZero", [], [x], {})
    (found,) = interpret(import_onnx(model, context=shared_context()), [])
    np.testing.assert_array_equal(found, np.argwhere(x).T)


def test_any_number_of_images() -> None:
    module = import_onnx(detector((), ["taken"], free=True), context=shared_context())
    for batch in (1, 3):
        boxes, scores = drawn(batch)
        rows, count = interpret(module, [boxes, scores])
        np.testing.assert_array_equal(rows[: int(count)], expected(boxes, scores, 3))


def test_what_keeps_rows_apart_may_follow() -> None:
    module = import_onnx(detector(ROWS, ["found"]), context=shared_context())
    boxes, scores = drawn()
    found, count = interpret(module, [boxes, scores])
    wanted = expected(boxes, scores, 3)
    np.testing.assert_array_equal(found[: int(count), :4], boxes[0][wanted[:, 2]])
    np.testing.assert_array_equal(found[: int(count), 4], wanted[:, 1])


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("ReduceMax", ["taken"], ["y"], axes=[0], keepdims=0),
        helper.make_node("Shape", ["taken"], ["y"]),
        helper.make_node("Gather", ["taken", "two"], ["y"], axis=0),
        helper.make_node("Concat", ["taken", "taken"], ["y"], axis=0),
        helper.make_node("Slice", ["taken", "one", "two", "zero"], ["y"]),
        helper.make_node("Unsqueeze", ["taken", "zero"], ["y"]),
        helper.make_node("Add", ["taken", "taken2"], ["y"]),
        helper.make_node("Transpose", ["taken"], ["y"]),
    ],
    ids=lambda node: node.op_type,
)
def test_what_mixes_rows_is_refused(node: onnx.NodeProto) -> None:
    if node.op_type == "Add":
        names = ["boxes", "scores", "two", "overlap"]
        other = helper.make_node("NonMaxSuppression", names, ["taken2"])
        nodes = (other, node)
    else:
        nodes = (node,)
    with pytest.raises(UnsupportedModel) as caught:
        import_onnx(detector(nodes, ["y"]), context=shared_context())
    assert [f.op for f in caught.value.findings] == [node.op_type]


def test_too_many_boxes_are_refused() -> None:
    model = detector((), ["taken"], keep=1000)
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 2000
    model.graph.input[1].type.tensor_type.shape.dim[2].dim_value = 2000
    with pytest.raises(UnsupportedModel, match="1000 boxes"):
        import_onnx(model, context=shared_context())


@pytest.mark.parametrize("last", ["Relu", "Add", "Softmax"])
def test_rows_of_several_dynamic_sizes_come_apart_again(last):
    """As exporters write a product: to rows and back to the sizes that the rows were made of."""
    values = np.random.default_rng(2)
    weights = {
        "w": values.normal(size=(8, 16)).astype(np.float32),
        "c": values.normal(size=16).astype(np.float32),
        "rows": np.array([-1, 8]),
        "width": np.array([16]),
    }
    nodes = [
        helper.make_node("Shape", ["x"], ["lead"], start=0, end=2),
        helper.make_node("Concat", ["lead", "width"], ["back"], axis=0),
        helper.make_node("Reshape", ["x", "rows"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w", "c"], ["made"]),
        helper.make_node(last, ["made", "made"][: 1 + (last == "Add")], ["after"]),
        helper.make_node("Reshape", ["after", "back"], ["y"]),
    ]
    made = model(nodes, {"x": (np.float32, ("n", "m", 8))}, ["y"], weights)
    program = pyc_mlir.compile(made, device=pyc_mlir.Device("local-sync"), cache=False)
    names = str(program.artifact.decisions)
    # A softmax works along rows, not number by number.
    assert ("gather" in names) == (last == "Softmax")
    for n, m in ((1, 5), (3, 2), (4, 4)):
        x = values.normal(size=(n, m, 8)).astype(np.float32)
        flat = x @ weights["w"] + weights["c"]
        wanted = {"Relu": np.maximum(flat, 0), "Add": flat + flat}.get(last)
        wanted = pyc_mlir.nn.softmax(flat) if wanted is None else wanted
        assert np.allclose(program(x), wanted, atol=1e-5)
