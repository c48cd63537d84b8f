"""Forms of ONNX ops that its own node tests lack, static and dynamic, against onnx's reference."""

from typing import Any

import numpy as np
import pytest
from onnx_models import check, node_model

from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.frontends.onnx.importer import import_onnx

RNG = np.random.default_rng(0)


def f32(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def i64(*shape: int, low: int = -5, high: int = 6) -> np.ndarray:
    return RNG.integers(low, high, shape)


def nonzero(*shape: int) -> np.ndarray:
    return RNG.choice([-3, -2, -1, 1, 2, 3], shape)


X4 = f32(2, 4, 7, 6)
KERNEL = {"kernel_shape": [3, 2]}
X56 = f32(5, 6)
LAST = {"select_last_index": 1, "keepdims": 0}

# (op, inputs, constants, attributes); a row marked `D` also imports with dynamic dimensions.
D, S = True, False
CASES: list[tuple[bool, str, list[np.ndarray], list[Any], dict[str, Any]]] = [
    *((D, op, [f32(2, 3), f32(3)], [], {}) for op in ("Add", "Mul", "Sub")),
    (D, "Div", [i64(4, 5), nonzero(4, 5)], [], {}),
    *((D, "Mod", [i64(4, 5), nonzero(4, 5)], [], {"fmod": v}) for v in (0, 1)),
    *((D, "Pow", [i64(3, 4)], [np.int64(v)], {}) for v in (5, 1, 0)),
    (D, "Pow", [f32(3, 4)], [np.int64(3)], {}),
    *((D, op, [f32(3), f32(2, 3), f32(1, 3)], [], {}) for op in ("Max", "Min", "Sum")),
    *((D, "Cast", [f32(3, 4) * 4], [], {"to": to}) for to in (1, 6, 7, 9, 10, 11)),
    # Products.
    (D, "MatMul", [f32(2, 3, 4, 5), f32(5, 6)], [], {}),
    (D, "MatMul", [f32(5), f32(2, 5, 6)], [], {}),
    (D, "Gemm", [f32(4, 3), f32(5, 4), f32(5)], [],
     {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    (D, "Gemm", [f32(3, 4)], [f32(4, 5), f32(3, 1)], {}),
    (D, "Einsum", [f32(2, 3, 4, 5), f32(2, 3, 6, 5)], [], {"equation": "bhid,bhjd->bhij"}),
    (D, "Einsum", [f32(2, 7, 3, 5), f32(2, 6, 3, 5)], [], {"equation": "bihd,bjhd->bhij"}),
    (S, "Einsum", [f32(2, 3, 4, 5), f32(4, 5, 6)], [], {"equation": "abcd,cde->abe"}),
    (D, "Einsum", [f32(3), f32(4)], [], {"equation": "i,j"}),
    # Windows.
    (D, "Conv", [X4], [f32(5, 4, 3, 3)], {}),
    (D, "Conv", [X4], [f32(6, 2, 3, 2), f32(6)],
     {"group": 2, "strides": [2, 1], "pads": [1, 0, 2, 1]}),
    (D, "Conv", [X4], [f32(4, 1, 3, 3)], {"group": 4, "dilations": [2, 1]}),
    (S, "Conv", [X4], [f32(5, 4, 3, 3)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    (S, "Conv", [X4], [f32(5, 4, 2, 2)], {"auto_pad": "SAME_LOWER"}),
    (D, "Conv", [X4], [f32(5, 4, 2, 2)], {"auto_pad": "VALID"}),
    (D, "Conv", [f32(2, 3, 9)], [f32(4, 3, 3), f32(4)], {"strides": [2], "pads": [1, 0]}),
    (D, "ConvTranspose", [X4], [f32(4, 3, 3, 3), f32(3)],
     {"strides": [2, 3], "pads": [1, 0, 1, 2]}),
    (D, "ConvTranspose", [f32(1, 2, 5)], [f32(2, 3, 3)], {"dilations": [2]}),
    (D, "MaxPool", [X4], [], {**KERNEL, "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    (S, "MaxPool", [X4], [], {**KERNEL, "strides": [2, 2], "ceil_mode": 1, "dilations": [2, 1]}),
    (S, "MaxPool", [X4], [], {**KERNEL, "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    (D, "MaxPool", [f32(2, 3, 9)], [], {"kernel_shape": [3], "strides": [2]}),
    (D, "AveragePool", [X4], [], {**KERNEL, "strides": [2, 1], "pads": [1, 0, 1, 1]}),
    (D, "AveragePool", [X4], [], {**KERNEL, "pads": [1, 0, 1, 1], "count_include_pad": 1}),
    # Reductions.
    (D, "ReduceMax", [i64(3, 4)], [], {"axes": [1]}),
    *((D, op, [i64(3, 4, high=-2)], [], {"axis": 1}) for op in ("ArgMax", "ArgMin")),
    *((D, op, [i64(5, 4)], [], LAST) for op in ("ArgMax", "ArgMin")),
    # Movement.
    (D, "Squeeze", [f32(2, 1, 3, 1)], [np.array([1, -1])], {}),
    (S, "Squeeze", [f32(2, 1, 3, 1)], [], {}),
    (D, "Expand", [f32(3, 1)], [np.array([2, 1, 4])], {}),
    (D, "Slice", [f32(5, 6)], [np.array([1]), np.array([2**31 - 1]), np.array([1]), np.array([2])],
     {}),
    (D, "Slice", [f32(5, 6)], [np.array([-1]), np.array([-(2**63)]), np.array([0]), np.array([-1])],
     {}),
    (S, "Slice", [X56], [np.array([2**63 - 1]), np.array([-9]), np.array([1]), np.array([-2])],
     {}),
    (S, "Slice", [f32(5, 6)], [np.array([-(2**63)]), np.array([3])], {}),
    (D, "Pad", [f32(2, 3)], [np.array([1, 0, 2, 1]), np.float32(7)], {}),
    *((D, "Pad", [i64(2, 3)], [np.array([1, 0, 2, 1]), np.int64(v)], {})
      for v in (2**53, 2**53 + 1, 2**63 - 1, -(2**63))),
    (D, "Pad", [i64(2, 3).astype(np.uint64)], [np.array([1, 0, 2, 1]), np.uint64(2**64 - 1)], {}),
    *((S, "Pad", [f32(4, 5)], [np.array([1, 2, 0, 3])], {"mode": m}) for m in ("edge", "reflect")),
    (D, "Gather", [f32(4, 5)], [np.int64(-1)], {"axis": 1}),
    (D, "GatherElements", [f32(4, 3), i64(2, 3, low=-4, high=4)], [], {"axis": 0}),
    (D, "OneHot", [i64(2, 3, low=-4, high=4)], [np.int64(4), f32(2)], {"axis": 1}),
    (D, "EyeLike", [f32(3, 4)], [], {"k": -1}),
]  # fmt: skip


def label(value: Any) -> str | None:
    return value if isinstance(value, str) else None


@pytest.mark.parametrize(("dynamic", "op", "inputs", "constants", "attributes"), CASES, ids=label)
def test_op(dynamic: bool, op: str, inputs: list, constants: list, attributes: dict) -> None:
    arrays = {f"x{i}": a for i, a in enumerate(inputs)}
    for named in (False, True)[: 1 + dynamic]:
        weights_first = op in ("Conv", "ConvTranspose")
        proto = node_model(op, inputs, constants, attributes, dynamic=named)
        if named and weights_first:
            # The channels are those of the weights.
            proto.graph.input[0].type.tensor_type.shape.dim[1].dim_value = inputs[0].shape[1]
        check(proto, arrays, rtol=2e-5, atol=2e-6)


# Opset, op, inputs, constants, attributes as they were before opset 13.
OLD = [
    (11, "Squeeze", [f32(2, 1, 3)], [], {"axes": [1]}),
    (11, "Unsqueeze", [f32(2, 3)], [], {"axes": [0, 3]}),
    (12, "ReduceSum", [f32(2, 3)], [], {"axes": [1], "keepdims": 0}),
    (11, "Split", [f32(4, 3)], [], {"split": [1, 3]}),
    (9, "Slice", [f32(4, 5)], [], {"starts": [1], "ends": [3], "axes": [0]}),
    (8, "Gemm", [f32(2, 3), f32(3, 4), f32(4)], [], {}),
    (7, "Dropout", [f32(2, 3)], [], {}),
    (10, "Clip", [f32(2, 3)], [], {"min": -0.5, "max": 0.5}),
]


@pytest.mark.parametrize(("opset", "op", "inputs", "constants", "attributes"), OLD, ids=label)
def test_older_opsets(opset: int, op: str, inputs: list, constants: list, attributes: dict) -> None:
    outputs = 2 if op == "Split" else 1
    proto = node_model(op, inputs, constants, attributes, outputs=outputs, opset=opset)
    check(proto, {f"x{i}": a for i, a in enumerate(inputs)})


def run(op: str, x: np.ndarray, constants: list, attributes: dict, opset: int = 17) -> np.ndarray:
    proto = node_model(op, [x], constants, attributes, opset=opset)
    return interpret(import_onnx(proto), [x])[0]


# What onnx's reference evaluator computes otherwise than the specification, or not at all.


def test_mean_of_unequal_shapes() -> None:
    proto = node_model("Mean", [f32(3), f32(2, 3)], [], {})
    a, c = f32(3), f32(2, 3)
    np.testing.assert_allclose(interpret(import_onnx(proto), [a, c])[0], (a + c) / 2, 1e-6)


def test_lp_normalization_takes_absolute_values() -> None:
    x = f32(3, 4)
    expected = x / np.abs(x).sum(0)
    np.testing.assert_allclose(run("LpNormalization", x, [], {"axis": 0, "p": 1}), expected, 1e-5)


def test_local_response_normalization() -> None:
    x = f32(2, 4, 3)
    square = np.pad(x**2, ((0, 0), (1, 1), (0, 0)))
    total = square[:, :-2] + square[:, 1:-1] + square[:, 2:]
    found = run("LRN", x[..., None], [], {"size": 3, "alpha": 0.5})[..., 0]
    np.testing.assert_allclose(found, x / (1 + 0.5 / 3 * total) ** 0.75, 1e-5)


def test_negative_pads_cut() -> None:
    x = f32(4, 5)
    expected = np.pad(x[1:, :-2], ((0, 1), (2, 0)))
    np.testing.assert_array_equal(run("Pad", x, [np.array([-1, 2, 1, -2])], {}), expected)


def test_average_pool_counts_the_last_partial_window() -> None:
    x = f32(1, 1, 7, 1)
    attributes = {"kernel_shape": [3, 1], "strides": [3, 1], "ceil_mode": 1}
    expected = [x[0, 0, 0:3, 0].mean(), x[0, 0, 3:6, 0].mean(), x[0, 0, 6, 0]]
    found = run("AveragePool", x, [], attributes)
    np.testing.assert_allclose(found.reshape(-1), expected, 1e-5, 1e-6)


def test_average_pool_counts_stated_pads_only() -> None:
    x = f32(1, 1, 5, 1)
    attributes = {
        "kernel_shape": [3, 1], "strides": [3, 1], "pads": [1, 0, 1, 0],
        "ceil_mode": 1, "count_include_pad": 1,
    }  # fmt: skip
    expected = [x[0, 0, :2, 0].sum() / 3, x[0, 0, 2:, 0].sum() / 3]
    found = run("AveragePool", x, [], attributes).reshape(-1)
    np.testing.assert_allclose(found, expected, 1e-5, 1e-6)


def test_grouped_transposed_convolution() -> None:
    x, weight = f32(2, 4, 5, 6), f32(4, 3, 3, 3)
    plain = {"strides": [2, 2], "output_padding": [1, 1]}
    halves = [
        run("ConvTranspose", x[:, part], [weight[part]], plain)
        for part in (slice(0, 2), slice(2, 4))
    ]
    whole = run("ConvTranspose", x, [weight], {"group": 2, **plain})
    np.testing.assert_allclose(whole, np.concatenate(halves, 1), 1e-5, 1e-6)


def test_softmax_before_opset_13_spans_the_trailing_dimensions() -> None:
    x = f32(2, 3, 4)
    e = np.exp(x)
    expected = e / e.sum((1, 2), keepdims=True)
    np.testing.assert_allclose(run("Softmax", x, [], {"axis": 1}, opset=11), expected, 1e-5)


def test_hardmax_before_opset_13_spans_the_trailing_dimensions() -> None:
    x = f32(2, 3, 4)
    expected = np.zeros((2, 12), np.float32)
    expected[[0, 1], x.reshape(2, 12).argmax(1)] = 1
    for opset in (1, 11, 12):
        found = run("Hardmax", x, [], {"axis": 1}, opset=opset)
        np.testing.assert_array_equal(found, expected.reshape(2, 3, 4))
    np.testing.assert_array_equal(run("Hardmax", x, [], {}, opset=12), expected.reshape(2, 3, 4))
    last = (x == x.max(2, keepdims=True)).astype(np.float32)
    np.testing.assert_array_equal(run("Hardmax", x, [], {}, opset=13), last)


def test_regions_before_opset_16_have_no_half_pixel() -> None:
    x = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)
    given = [np.array([[1, 1, 4, 4]], np.float32), np.array([0], np.int64)]
    attributes = {"output_height": 1, "output_width": 1, "sampling_ratio": 1}
    for opset, wanted in ((10, 17.5), (13, 17.5), (15, 17.5), (16, 14.0)):
        assert run("RoiAlign", x, given, attributes, opset=opset).item() == wanted


@pytest.mark.parametrize("op", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_the_loss_of_a_target_of_probability_0_is_infinite(op: str) -> None:
    x = np.array([[0, 1, 2], [-np.inf, 1, 0]], np.float32)
    found = run(op, x, [np.array([1, 0])], {"reduction": "none"})
    assert found[1] == np.inf and np.isfinite(found[0])
    assert run(op, x, [np.array([1, 0])], {}) == np.inf


def test_an_infinite_column_stays_in_its_place() -> None:
    x = np.ones((1, 5, 5), np.float32)
    x[0, 0, 0], x[0, 1, 4] = np.inf, np.nan
    found = run("Col2Im", x, [np.array([5, 5]), np.array([1, 5])], {}, opset=18)
    wanted = np.ones((5, 5))
    wanted[0, 0], wanted[4, 1] = np.inf, np.nan
    np.testing.assert_array_equal(found[0, 0], wanted)


def test_batch_normalization_of_opset_9() -> None:
    x = f32(2, 3, 4)
    scale, bias, mean, variance = (np.abs(f32(3)) for _ in range(4))
    found = run("BatchNormalization", x, [scale, bias, mean, variance], {}, opset=9)
    columns = [v[:, None] for v in (scale, bias, mean, variance)]
    expected = (x - columns[2]) / np.sqrt(columns[3] + 1e-5) * columns[0] + columns[1]
    np.testing.assert_allclose(found, expected, 1e-5, 1e-6)


@pytest.mark.parametrize("dtype", [np.int32, np.uint64])
def test_reductions_of_integers_are_cut_to_whole_numbers(dtype: type) -> None:
    """onnxruntime's way; onnx's reference fails."""
    x = np.array([[3, 200, 7, 0], [1, 2, 3, 4]], dtype)
    wide = x.astype(np.float64)
    wanted = {
        "ReduceLogSumExp": np.log(np.exp(wide).sum(1)),
        "ReduceLogSum": np.log(wide.sum(1)),
        "ReduceL2": np.sqrt((wide * wide).sum(1)),
    }
    for op, value in wanted.items():
        module = import_onnx(node_model(op, [x], [], {"axes": [1], "keepdims": 0}))
        np.testing.assert_array_equal(interpret(module, [x])[0], value.astype(dtype))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("reverse", [0, 1])
def test_exclusive_sums_of_nothing(reverse: int, dynamic: bool) -> None:
    x = np.zeros((2, 0), np.float32)
    attributes = {"exclusive": 1, "reverse": reverse}
    proto = node_model("CumSum", [x], [np.array(1)], attributes, dynamic=dynamic)
    assert interpret(import_onnx(proto), [x])[0].shape == x.shape


@pytest.mark.parametrize("shape", [(1, 4, 0, 2), (0, 4, 2, 2), (2, 0, 4, 2)])
def test_blocks_of_empty_images(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    check(node_model("SpaceToDepth", [x], [], {"blocksize": 2}), {"x0": x})


def test_the_one_place_of_an_aligned_grid_is_the_centre() -> None:
    """As in torch; ONNX's definition divides by zero, its reference and onnxruntime differ."""
    theta = np.array([[[1, 0, 0.5], [0, 1, 0.25]]], np.float32)
    cases = {(1, 1, 1, 1): [[[0.5, 0.25]]], (1, 1, 2, 1): [[[0.5, -0.75]], [[0.5, 1.25]]]}
    for size, wanted in cases.items():
        given = node_model("AffineGrid", [theta], [np.array(size)], {"align_corners": 1}, opset=20)
        np.testing.assert_allclose(interpret(import_onnx(given), [theta])[0], [wanted], 1e-6)
