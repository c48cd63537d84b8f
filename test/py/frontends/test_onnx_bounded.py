"""Results whose sizes depend on data: suppressed boxes, places, selections, computed lengths."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from modules import shared_context
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_models import model, node_model

import pyc_mlir
from pyc_mlir.dialects.errors import ReasonCode
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


@pytest.mark.parametrize("keep", [1, 3, BOXES, 1 << 40])
def test_rows_are_those_of_the_definition(keep: int) -> None:
    boxes, scores = drawn()
    module = import_onnx(detector((), ["taken"], keep), context=shared_context())
    (rows,) = interpret(module, [boxes, scores])
    np.testing.assert_array_equal(rows, expected(boxes, scores, keep))


def test_without_a_least_score_all_boxes_may_be_taken() -> None:
    boxes, scores = drawn()
    model = detector((), ["taken"], BOXES, least=False)
    (rows,) = interpret(import_onnx(model, context=shared_context()), [boxes, -scores])
    np.testing.assert_array_equal(rows, expected(boxes, -scores, BOXES, -np.inf))


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
        (rows,) = interpret(module, [boxes, scores])
        np.testing.assert_array_equal(rows, expected(boxes, scores, 3))


def answers(model: onnx.ModelProto, *calls: Sequence[np.ndarray]) -> None:
    """Compare the compiled program with ONNX's reference: shapes and elements."""
    peer = ReferenceEvaluator(model)
    program = pyc_mlir.compile(model, device=pyc_mlir.Device("local-sync"), cache=False)
    names = [i.name for i in model.graph.input]
    for call in calls:
        wanted = peer.run(None, dict(zip(names, call, strict=True)))
        found = program(*call)
        for f, w in zip(found if len(wanted) > 1 else (found,), wanted, strict=True):
            np.testing.assert_array_equal(f, w)


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("ReduceMax", ["taken"], ["y"], axes=[1], keepdims=0),
        helper.make_node("Shape", ["taken"], ["y"]),
        helper.make_node("Concat", ["taken", "taken"], ["y"], axis=0),
        helper.make_node("Add", ["taken", "one"], ["y"]),
        helper.make_node("Transpose", ["taken"], ["y"], perm=[1, 0]),
    ],
    ids=lambda node: node.op_type,
)
def test_any_op_may_follow(node: onnx.NodeProto) -> None:
    boxes, scores = drawn(2)
    answers(detector([node], ["y"], free=True), (boxes, scores), (boxes[:1], scores[:1] * 0))


def test_a_detector_ends_with_the_boxes_that_it_took() -> None:
    boxes, scores = drawn()
    answers(detector(ROWS, ["found"]), (boxes, scores), (boxes, scores / 3), (boxes, scores * 0))


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 0, 3), (40, 9, 4)])
def test_places_of_computed_elements_that_are_not_zero(shape: Sequence[int]) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"]),
        helper.make_node("NonZero", ["positive"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"], perm=[1, 0]),
        helper.make_node("GatherND", ["x", "rows"], ["values"]),
        helper.make_node("Shape", ["values"], ["count"]),
    ]
    made = model(
        nodes,
        {"x": (np.float32, shape)},
        ["places", "values", "count"],
    )
    x = np.random.default_rng(4).normal(size=shape).astype(np.float32)
    answers(made, (x,), (-np.abs(x),), (np.abs(x),))


@pytest.mark.parametrize("axis", [0, 1, None])
def test_a_computed_condition_selects_slices(axis: int | None) -> None:
    attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
    nodes = [
        helper.make_node("Greater", ["c", "least"], ["where"]),
        helper.make_node("Compress", ["x", "where"], ["y"], **attributes),
    ]
    inputs = {"x": (np.float32, ("n", "n")), "c": (np.float32, ("n",))}
    made = model(nodes, inputs, ["y"], {"least": np.array(0, np.float32)})
    rng = np.random.default_rng(5)
    for n in (1, 6, 33):
        x, c = rng.normal(size=(n, n)).astype(np.float32), rng.normal(size=n).astype(np.float32)
        answers(made, (x, c), (x, -np.abs(c)), (x, np.abs(c)))


def test_the_greatest_of_a_computed_number() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["size"]),
        helper.make_node("Concat", ["size", "most"], ["both"], axis=0),
        helper.make_node("ReduceMin", ["both"], ["k"], keepdims=1),
        helper.make_node("TopK", ["x", "k"], ["values", "places"]),
    ]
    made = model(nodes, {"x": (np.float32, ("n",))}, ["values", "places"], {"most": np.array([9])})
    rng = np.random.default_rng(6)
    answers(
        made, *((rng.normal(size=n).astype(np.float32),) for n in (0, 1, 2, 9, 10, 64, 65, 700))
    )


def test_branches_of_two_lengths() -> None:
    """As exporters write it: nothing where there is nothing to suppress."""
    longer = helper.make_graph(
        [helper.make_node("Concat", ["x", "x"], ["yes"], axis=0)], "yes", [],
        [helper.make_tensor_value_info("yes", TensorProto.FLOAT, None)],
    )  # fmt: skip
    empty = numpy_helper.from_array(np.zeros((0, 3), np.float32))
    none = helper.make_graph(
        [helper.make_node("Constant", [], ["no"], value=empty)],
        "no", [], [helper.make_tensor_value_info("no", TensorProto.FLOAT, [0, 3])],
    )  # fmt: skip
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "least"], ["some"]),
        helper.make_node("If", ["some"], ["y"], then_branch=longer, else_branch=none),
    ]
    made = model(nodes, {"x": (np.float32, ("n", 3))}, ["y"], {"least": np.array(0, np.float32)})
    x = np.random.default_rng(7).normal(size=(4, 3)).astype(np.float32)
    answers(made, (x,), (-np.abs(x),))


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
    assert "gather" not in names
    for n, m in ((1, 5), (3, 2), (4, 4)):
        x = values.normal(size=(n, m, 8)).astype(np.float32)
        flat = x @ weights["w"] + weights["c"]
        wanted = {"Relu": np.maximum(flat, 0), "Add": flat + flat}.get(last)
        wanted = pyc_mlir.nn.softmax(flat) if wanted is None else wanted
        assert np.allclose(program(x), wanted, atol=1e-5)


def test_an_inferred_size_stands_beside_sizes_that_are_0() -> None:
    """Sizes that pass through a reshape have no part in the one that is left over."""
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2)
    made = model([node], {"x": (np.float32, ("n", 3, "h", "w"))}, ["y"])
    module = import_onnx(made, context=shared_context())
    program = pyc_mlir.compile(made, device=pyc_mlir.Device("local-sync"), cache=False)
    for n, height, width in ((2, 4, 6), (0, 4, 6), (1, 0, 2), (0, 0, 0)):
        x = np.ones((n, 3, height, width), np.float32)
        (read,) = interpret(module, [x])
        assert program(x).shape == read.shape == (n, 12, height // 2, width // 2)


def test_a_budget_says_that_values_decide_a_size() -> None:
    """Static shapes, which it is given, are no remedy."""
    node = helper.make_node("Compress", ["x", "keep"], ["y"], axis=0)
    made = model([node], {"x": (np.float32, (4, 3)), "keep": (np.bool_, (4,))}, ["y"])
    with pytest.raises(pyc_mlir.PycError, match=r"values .* decide .* leave the budget out"):
        pyc_mlir.compile(made, cache=False, contract=pyc_mlir.Contract(memory_budget_bytes=1 << 20))


def test_a_condition_of_another_length_selects_as_far_as_both_go() -> None:
    node = helper.make_node("Compress", ["x", "keep"], ["y"], axis=0)
    made = model([node], {"x": (np.float32, ("n", 2)), "keep": (np.bool_, ("m",))}, ["y"])
    program = pyc_mlir.compile(made, device=pyc_mlir.Device("local-sync"), cache=False)
    for n, m in ((2, 5), (5, 2), (3, 3), (0, 4), (4, 0)):
        x, keep = np.arange(2.0 * n, dtype=np.float32).reshape(n, 2), np.arange(m) % 2 == 0
        assert np.array_equal(program(x, keep), x[:m][keep[:n]])


def test_parts_that_do_not_make_the_whole_are_an_error() -> None:
    node = helper.make_node("Split", ["x", "parts"], ["y", "z"])
    made = model([node], {"x": (np.float32, ("n", 2))}, ["y", "z"], {"parts": np.array([2, 3])})
    program = pyc_mlir.compile(made, device=pyc_mlir.Device("local-sync"), cache=False)
    assert [part.shape for part in program(np.ones((5, 2), np.float32))] == [(2, 2), (3, 2)]
    for n in (0, 3, 7):
        with pytest.raises(pyc_mlir.PycError) as caught:
            program(np.ones((n, 2), np.float32))
        assert caught.value.code is ReasonCode.DIMENSION_MISMATCH


@pytest.mark.parametrize("rows", [40, "rows"])
def test_repeated_indices_replace_whole_rows(rows):
    """As an exporter writes x[places] = updates: no comparison of elements, none of all rows."""
    nodes = [
        helper.make_node("Shape", ["u"], ["shape"]),
        helper.make_node("Unsqueeze", ["i", "last"], ["column"]),
        helper.make_node("Expand", ["column", "shape"], ["places"]),
        helper.make_node("ScatterElements", ["x", "places", "u"], ["y"], axis=0),
        helper.make_node("GatherElements", ["y", "places"], ["back"], axis=0),
    ]
    inputs = {
        "x": (np.float32, (rows, 3)), "i": (np.int64, ("n",)), "u": (np.float32, ("n", 3)),
    }  # fmt: skip
    made = model(nodes, inputs, ["y", "back"], {"last": np.array([1])})
    with shared_context():
        text = str(import_onnx(made))
    # Both by a vector of rows.
    assert text.count("tensor<?xi64>, tensor<?x3xf32>) ->") == 1, text
    assert text.count("x3xf32>, tensor<?xi64>) ->") == 1, text
    values = np.random.default_rng(4)
    program = pyc_mlir.compile(made, device=pyc_mlir.Device("local-sync"), cache=False)
    sizes = ((40, 0), (40, 1), (40, 33), (40, 40)) if rows == 40 else ((40, 7), (1, 1), (0, 0))
    for size, count in sizes:
        x, u = (values.normal(size=(n, 3)).astype(np.float32) for n in (size, count))
        i = values.permutation(size)[:count] - size * (np.arange(count) % 2)
        wanted = x.copy()
        wanted[i] = u
        y, back = program(x, i, u)
        assert np.array_equal(y, wanted) and np.array_equal(back, u)
