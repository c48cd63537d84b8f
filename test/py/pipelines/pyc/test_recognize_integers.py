"""pyc-recognize: ops on quantized tensors as ops on integers, exact, and near misses."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import pyc_mlir
from pyc_mlir.compilation.options import make_options
from pyc_mlir.pipelines.choices.contract import Contract

SX, SY = np.float32(0.03), np.float32(0.11)
SW = np.array([0.02, 0.015, 0.03, 0.011, 0.02, 0.007], np.float32)
ZX, ZY = 7, 120


def model(nodes, weights, image, results=("y",)):
    made = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, image)
    outs = [helper.make_tensor_value_info(n, t, None) for n, t in results]
    graph = helper.make_graph(nodes, "g", [x], outs, made)
    built = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    built.ir_version = 9
    return built


def quantized(
    kind="Conv",
    w_dtype: type = np.int8,
    relu=False,
    bias=True,
    scale_x=SX,
    more=(),
    results=(),
    groups=1,
    zero=0,
):
    """A product of quantized tensors in QDQ, and its weights and bias as integers."""
    values = np.random.default_rng(0)
    info = np.iinfo(w_dtype)
    filters = 5 if groups == 1 else 6
    shape = (filters, 6 // groups, 3, 3) if kind == "Conv" else (6, 5)
    sw = SW[:filters]
    w = values.integers(info.min, info.max + 1, shape).astype(w_dtype)
    axis = 0 if kind == "Conv" else 1
    shift = values.integers(-500, 500, filters).astype(np.int32)
    weights = {
        "sx": scale_x,
        "zx": np.uint8(ZX),
        "w": w,
        "sw": sw,
        "zw": np.full(filters, zero, w_dtype),
    }
    weights |= {
        "sy": SY,
        "zy": np.uint8(ZY),
        "b": shift,
        "sb": SX * sw,
        "zb": np.zeros(filters, np.int32),
    }
    dequantize, node = "DequantizeLinear", helper.make_node
    nodes = [
        node(dequantize, ["x", "sx", "zx"], ["xf"]),
        node(dequantize, ["w", "sw", "zw"], ["wf"], axis=axis),
        node(dequantize, ["b", "sb", "zb"], ["bf"], axis=0),
    ]
    if kind == "Conv":
        given = ["xf", "wf", "bf"][: 2 + bias]
        nodes.append(node("Conv", given, ["p"], pads=[1, 1, 1, 1], group=groups))
    else:
        nodes.append(node("MatMul", ["xf", "wf"], ["p0"]))
        nodes.append(node("Add", ["p0", "bf"], ["p"]))
    if relu:
        nodes.append(node("Relu", ["p"], ["r"]))
    nodes.append(node("QuantizeLinear", ["r" if relu else "p", "sy", "zy"], ["y"]))
    image = (2, 6, 7, 9) if kind == "Conv" else (3, 6)
    results = (("y", TensorProto.UINT8), *results)
    return model([*nodes, *more], weights, image, results), w, shift if bias else 0


def exact(x, w, shift, relu=False):
    """Sums of integers, one requantization by the scales of the model."""
    wide, weights = x.astype(np.int64) - ZX, w.astype(np.int64)
    if w.ndim == 4:
        padded = np.pad(wide, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        if w.shape[1] == 1:
            total = np.einsum("nchwij,cij->nhwc", windows, weights[:, 0]) + shift
        else:
            total = np.einsum("nchwij,fcij->nhwf", windows, weights) + shift
    else:
        total = wide @ weights + shift
    scaled = total.astype(np.float32) * ((SX * SW[: total.shape[-1]]) / SY)
    out = np.rint(np.maximum(scaled, 0) if relu else scaled) + ZY
    out = np.clip(out, 0, 255).astype(np.uint8)
    return out.transpose(0, 3, 1, 2) if w.ndim == 4 else out


def compiled(source, **options):
    return pyc_mlir.compile(source, cache=False, **options)


def composites(program):
    """What was made by pyc-recognize."""
    sites = [d for d in program.artifact.decisions if d.site.key.startswith("pyc-recognize")]
    return [d.chosen for d in sites if d.chosen != "keep"]


def image_of(source):
    dims = source.graph.input[0].type.tensor_type.shape.dim
    values = np.random.default_rng(1)
    return values.integers(0, 256, [d.dim_value for d in dims]).astype(np.uint8)


@pytest.mark.parametrize(
    "kind,relu,bias,groups,zero",
    [
        ("Conv", True, True, 1, None),
        ("Conv", False, False, 1, None),
        ("Conv", True, True, 6, None),
        ("MatMul", True, True, 1, None),
        ("Conv", True, True, 1, 132),
        ("Conv", True, True, 6, 132),
        ("MatMul", True, True, 1, 132),
    ],
)
def test_qdq_equals_sums_of_integers_in_every_bit(kind, relu, bias, groups, zero):
    """Weights of unsigned bytes and a zero point are two products of signed ones."""
    w_dtype = np.int8 if zero is None else np.uint8
    source, w, shift = quantized(kind, w_dtype, relu, bias, groups=groups, zero=zero or 0)
    w = w.astype(np.int32) - (zero or 0)
    program, x = compiled(source), image_of(source)
    assert composites(program) == [f"quantized {'conv2d' if kind == 'Conv' else 'matmul'}"]
    assert any(d.chosen.startswith("int8") for d in program.artifact.decisions)
    np.testing.assert_array_equal(np.asarray(program(x)), exact(x, w, shift, relu))


@pytest.mark.parametrize("target", ["cpu-avx2", "cpu-avx512"])
def test_a_target_without_dot_products_of_bytes_gets_none(target):
    source, _, _ = quantized()
    artifact = pyc_mlir.api.build(source, None, make_options(target=target))
    knobs = [str(d.alternatives) for d in artifact.decisions if "int8:" in d.chosen]
    assert knobs and all("vnni" not in text for text in knobs)


@pytest.mark.parametrize("zero", [np.int8(0), np.uint8(131)])
def test_products_of_integers_are_the_same_operations(zero):
    values, info = np.random.default_rng(0), np.iinfo(zero.dtype)
    w = values.integers(info.min, info.max + 1, (6, 5)).astype(zero.dtype)
    node = helper.make_node("MatMulInteger", ["x", "w", "zx", "zw"], ["y"])
    weights = {"w": w, "zx": np.uint8(ZX), "zw": zero}
    source = model([node], weights, (3, 6), (("y", TensorProto.INT32),))
    program, x = compiled(source), image_of(source)
    assert composites(program) == ["integer_matmul"]
    wide = x.astype(np.int32) - ZX
    np.testing.assert_array_equal(program(x), wide @ (w.astype(np.int32) - zero))


def microsoft(op, operands, weights, **attributes):
    """A model of one of onnxruntime's quantized ops, x [32, 64] -> y."""
    made = helper.make_node(op, operands.split(" "), ["y"], domain="com.microsoft", **attributes)
    source = model([made], weights, (32, 64), (("y", TensorProto.UINT8),))
    source.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return source


def test_transposed_weights_of_qgemm_are_columns_of_a_product_of_bytes():
    w = np.random.default_rng(0).integers(-128, 128, (6, 64)).astype(np.int8)
    points = {"zx": np.uint8(ZX), "zw": np.zeros(6, np.int8), "zy": np.uint8(ZY)}
    weights = {"w": w, "sx": SX, "sw": SW, "sy": SY, **points}
    # Two blanks: there is no bias.
    source = microsoft("QGemm", "x sx zx w sw zw  sy zy", weights, transB=1)
    program, x = compiled(source), image_of(source)
    assert composites(program) == ["integer_matmul"]
    assert any(d.chosen.startswith("int8:") for d in program.artifact.decisions)
    sums = (x.astype(np.int32) - ZX) @ w.astype(np.int32).T
    found = np.round(sums.astype(np.float32) * (SX * SW / SY)) + np.float32(ZY)
    np.testing.assert_array_equal(program(x), np.clip(found, 0, 255).astype(np.uint8))


def test_products_of_qlinear_mul_have_a_kernel():
    weights = {"sx": SX, "zx": np.uint8(ZX), "sy": SY, "zy": np.uint8(ZY)}
    weights["w"] = np.random.default_rng(0).integers(0, 256, (32, 64)).astype(np.uint8)
    source = microsoft("QLinearMul", "x sx zx w sx zx sy zy", weights)
    program, x = compiled(source), image_of(source)
    assert any(d.chosen.startswith("int8_elementwise:") for d in program.artifact.decisions)
    whole = (x.astype(np.int32) - ZX) * (weights["w"].astype(np.int32) - ZX)
    found = np.round(whole.astype(np.float32) * (SX * SX / SY) + np.float32(ZY))
    np.testing.assert_array_equal(program(x), np.clip(found, 0, 255).astype(np.uint8))


@pytest.mark.parametrize("groups", [1, 6])
def test_convolutions_of_unsigned_weights_are_those_of_their_parts(groups):
    """As `quantize_dynamic` makes them: 0, 255 and the zero point are among the weights."""
    w = np.random.default_rng(0).integers(0, 256, (6, 6 // groups, 3, 3)).astype(np.uint8)
    w.reshape(-1)[:3] = 0, 255, 132
    node = helper.make_node("ConvInteger", ["x", "w", "zx", "zw"], ["y"], group=groups)
    weights = {"w": w, "zx": np.uint8(ZX), "zw": np.uint8(132)}
    source = model([node], weights, (2, 6, 9, 11), (("y", TensorProto.INT32),))
    program, x = compiled(source), image_of(source)
    assert composites(program) == ["integer_conv2d"]
    windows = np.lib.stride_tricks.sliding_window_view(x.astype(np.int32) - ZX, (3, 3), (2, 3))
    windows = windows.reshape(2, groups, 6 // groups, *windows.shape[2:])
    filters = (w.astype(np.int32) - 132).reshape(groups, 6 // groups, 6 // groups, 3, 3)
    expected = np.einsum("ngchwij,gfcij->ngfhw", windows, filters)
    np.testing.assert_array_equal(program(x), expected.reshape(2, 6, *expected.shape[3:]))


def test_a_bound_on_the_error_keeps_the_floats():
    source, _, _ = quantized()
    assert composites(compiled(source, contract=Contract(max_error="rounding"))) == []


NEAR_MISSES = {
    "weights beyond two bytes with a sign": {"w_dtype": np.uint8},
    "the product is needed in f32": {"results": (("p", TensorProto.FLOAT),)},
    "groups of two channels": {"groups": 3},
    "a scale that is not positive": {"scale_x": np.float32(-0.03)},
}


@pytest.mark.parametrize("miss", NEAR_MISSES)
def test_near_misses_stay_floats(miss):
    source, _, _ = quantized(**NEAR_MISSES[miss])
    assert composites(compiled(source)) == []


def pooled(scale: Any = SX, result=True):
    """The largest of dequantized bytes, quantized again by another scale if `result`."""
    weights = {"sx": scale, "zx": np.uint8(ZX), "sy": SY, "zy": np.uint8(ZY)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "sx", "zx"], ["xf"]),
        helper.make_node(
            "MaxPool", ["xf"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
        ),
        helper.make_node("QuantizeLinear", ["p", "sy", "zy"], ["y"]),
    ]
    last = ("y", TensorProto.UINT8) if result else ("p", TensorProto.FLOAT)
    return model(nodes[: 2 + result], weights, (2, 40, 7, 9), (last,))


@pytest.mark.parametrize("result", [True, False])
def test_the_largest_of_dequantized_bytes_is_that_of_the_bytes(result):
    source = pooled(result=result)
    program, x = compiled(source), image_of(source)
    assert composites(program) == ["quantized max_pool2d"]
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, ::2, ::2]
    floats = (windows.max((-1, -2)).astype(np.int32) - ZX).astype(np.float32) * SX
    expected = np.clip(np.rint(floats / SY) + ZY, 0, 255) if result else floats
    np.testing.assert_array_equal(np.asarray(program(x)), expected)


def test_bytes_of_negative_or_many_scales_are_pooled_as_floats():
    assert composites(compiled(pooled(scale=-SX))) == []
    several = pooled(scale=np.linspace(0.1, 0.2, 40, dtype=np.float32))
    several.graph.initializer[1].CopyFrom(numpy_helper.from_array(np.full(40, ZX, np.uint8), "zx"))
    assert composites(compiled(several)) == []
