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


def run(
    op: str, inputs: list, constants: list, attributes: dict, opset: int = 17, **given: bool
) -> np.ndarray:
    proto = node_model(op, inputs, constants, attributes, opset=opset, **given)
    return interpret(import_onnx(proto), inputs)[0]


# What onnx's reference evaluator computes otherwise than the specification, or not at all.

X234, ONES = f32(2, 3, 4), np.ones((1, 5, 5), np.float32)
ONES[0, 0, 0], ONES[0, 1, 4] = np.inf, np.nan
NORM = [np.abs(f32(3)) for _ in range(4)]
REGION = [np.array([[1, 1, 4, 4]], np.float32), np.array([0])]
ROI = {"output_height": 1, "output_width": 1, "sampling_ratio": 1}
THIRDS = {"kernel_shape": [3, 1], "strides": [3, 1], "ceil_mode": 1}
HALVES = {**THIRDS, "pads": [1, 0, 1, 0], "count_include_pad": 1}
THETA = np.array([[[1, 0, 0.5], [0, 1, 0.25]]], np.float32)
WHOLE = np.array([[3, 200, 7, 0], [1, 2, 3, 4]])
LOSS = np.array([[0, 1, 2], [-np.inf, 1, 0]], np.float32)


def column(*values: float) -> np.ndarray:
    return np.array(values).reshape(1, 1, -1, 1)


def neighbours(x: np.ndarray) -> np.ndarray:
    wide = np.pad(x, ((0, 0), (1, 1), (0, 0), (0, 0)))
    return wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]


def trailing_hardmax(x: np.ndarray) -> np.ndarray:
    flat = x.reshape(len(x), -1)
    return (flat == flat.max(1, keepdims=True)).reshape(x.shape)


def normalized(x: np.ndarray) -> np.ndarray:
    scale, bias, mean, variance = (v[:, None] for v in NORM)
    return (x - mean) / np.sqrt(variance + 1e-5) * scale + bias


def in_place(x: np.ndarray) -> np.ndarray:
    """An infinite column stays in its place."""
    wanted = np.ones((1, 1, 5, 5))
    wanted[0, 0, 0, 0], wanted[0, 0, 4, 1] = np.inf, np.nan
    return wanted


# Op, opset, inputs, constants, attributes, what is computed.
OTHERWISE: list[tuple[str, int, list, list, dict, Any]] = [
    ("Mean", 17, [f32(3), f32(2, 3)], [], {}, lambda a, c: (a + c) / 2),
    ("LpNormalization", 17, [f32(3, 4)], [], {"axis": 0, "p": 1}, lambda x: x / np.abs(x).sum(0)),
    ("LRN", 17, [f32(2, 4, 3, 1)], [], {"size": 3, "alpha": 0.5},
     lambda x: x / (1 + 0.5 / 3 * neighbours(x**2)) ** 0.75),
    ("Pad", 17, [f32(4, 5)], [np.array([-1, 2, 1, -2])], {},
     lambda x: np.pad(x[1:, :-2], ((0, 1), (2, 0)))),
    # The last partial window counts; of pads those that are stated.
    ("AveragePool", 17, [f32(1, 1, 7, 1)], [], THIRDS,
     lambda x: column(x[..., 0:3, 0].mean(), x[..., 3:6, 0].mean(), x[0, 0, 6, 0])),
    ("AveragePool", 17, [f32(1, 1, 5, 1)], [], HALVES,
     lambda x: column(x[..., :2, 0].sum() / 3, x[..., 2:, 0].sum() / 3)),
    # Before opset 13 the trailing dimensions too, before 16 no half pixel.
    ("Softmax", 11, [X234], [], {"axis": 1},
     lambda x: np.exp(x) / np.exp(x).sum((1, 2), keepdims=True)),
    *(("Hardmax", opset, [X234], [], {"axis": 1}, trailing_hardmax) for opset in (1, 11, 12)),
    ("Hardmax", 12, [X234], [], {}, trailing_hardmax),
    ("Hardmax", 13, [X234], [], {}, lambda x: x == x.max(2, keepdims=True)),
    *(("RoiAlign", opset, [column(*range(36)).astype(np.float32).reshape(1, 1, 6, 6)], REGION, ROI,
       lambda x, wanted=wanted: column(wanted))
      for opset, wanted in ((10, 17.5), (13, 17.5), (15, 17.5), (16, 14.0))),
    ("BatchNormalization", 9, [X234], NORM, {}, normalized),
    ("Col2Im", 18, [ONES], [np.array([5, 5]), np.array([1, 5])], {}, in_place),
    # Of integers, cut to whole numbers: onnxruntime's way.
    *((f"Reduce{name}", 17, [WHOLE.astype(dtype)], [], {"axes": [1], "keepdims": 0},
       lambda x, f=f: f(x.astype(np.float64)).astype(x.dtype))
      for dtype in (np.int32, np.uint64) for name, f in (
          ("LogSumExp", lambda x: np.log(np.exp(x).sum(1))), ("LogSum", lambda x: np.log(x.sum(1))),
          ("L2", lambda x: np.sqrt((x * x).sum(1))))),
    # The one place of an aligned grid is the centre, as in torch; ONNX divides by zero.
    *(("AffineGrid", 20, [THETA], [np.array(size)], {"align_corners": 1},
       lambda x, wanted=wanted: np.array([wanted]))
      for size, wanted in (((1, 1, 1, 1), [[[0.5, 0.25]]]),
                           ((1, 1, 2, 1), [[[0.5, -0.75]], [[0.5, 1.25]]]))),
    # The loss of a target of probability 0 is infinite.
    *((op, 17, [LOSS], [np.array([1, 0])], {}, lambda x: np.array(np.inf, np.float32))
      for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("op", "opset", "inputs", "constants", "attributes", "formula"), OTHERWISE, ids=label
)
def test_by_definition(
    op: str, opset: int, inputs: list, constants: list, attributes: dict, formula: Any
) -> None:
    found, wanted = run(op, inputs, constants, attributes, opset), formula(*inputs)
    assert found.shape == wanted.shape
    tolerance = (1e-5, 1e-6) if inputs[0].dtype == np.float32 else (0, 0)
    np.testing.assert_allclose(found, wanted, *tolerance)


def test_grouped_transposed_convolution() -> None:
    x, weight = f32(2, 4, 5, 6), f32(4, 3, 3, 3)
    plain = {"strides": [2, 2], "output_padding": [1, 1]}
    halves = [
        run("ConvTranspose", [x[:, part]], [weight[part]], plain)
        for part in (slice(0, 2), slice(2, 4))
    ]
    whole = run("ConvTranspose", [x], [weight], {"group": 2, **plain})
    np.testing.assert_allclose(whole, np.concatenate(halves, 1), 1e-5, 1e-6)


@pytest.mark.parametrize("op", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_losses_of_other_targets_stay_finite(op: str) -> None:
    found = run(op, [LOSS], [np.array([1, 0])], {"reduction": "none"})
    assert found[1] == np.inf and np.isfinite(found[0])


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("reverse", [0, 1])
def test_exclusive_sums_of_nothing(reverse: int, dynamic: bool) -> None:
    x, attributes = np.zeros((2, 0), np.float32), {"exclusive": 1, "reverse": reverse}
    assert run("CumSum", [x], [np.array(1)], attributes, dynamic=dynamic).shape == x.shape


@pytest.mark.parametrize("shape", [(1, 4, 0, 2), (0, 4, 2, 2), (2, 0, 4, 2)])
def test_blocks_of_empty_images(shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    check(node_model("SpaceToDepth", [x], [], {"blocksize": 2}), {"x0": x})
