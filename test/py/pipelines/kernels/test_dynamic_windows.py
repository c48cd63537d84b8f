"""Two windows in a row over images of sizes known in a call only, compiled with the self-check."""

from itertools import product
from random import Random

import numpy as np
import pytest
from kernel_runs import name_of, targets
from onnx import TensorProto, helper
from onnx_models import model
from random_images import Network

from pyc_mlir import compile

IMAGES = {
    "high": (2, 5, "H", 12),
    "wide": (2, 5, 12, "W"),
    "both": (1, 5, "H", "W"),
    "batch": ("n", 5, 12, 12),
    "all": ("n", 5, "H", "W"),
}


def conv(net, size, filters, stride=1, groups=1):
    c = net.shape[1]
    weights = net.normal(filters, c // groups, size, size, scale=(c // groups) ** -0.5 / size)
    pads = [size // 2] * 4
    net.x = net.add("Conv", net.x, weights, strides=[stride] * 2, pads=pads, group=groups)
    net.shape[1] = filters


def residual(net):
    begin = net.x
    conv(net, 1, net.shape[1])
    net.x = net.add("Add", begin, net.x)


def transposed(net):
    weights = net.normal(net.shape[1], 6, 2, 2, scale=net.shape[1] ** -0.5)
    net.x = net.add("ConvTranspose", net.x, weights, strides=[2, 2])
    net.shape[1] = 6


def pool(net, kind, stride):
    net.x = net.add(kind, net.x, kernel_shape=[3, 3], strides=[stride] * 2, pads=[1] * 4)


def in_bytes(net, size):
    c, filters = net.shape[1], 9
    weights = np.random.default_rng(size).integers(-127, 128, (filters, c, size, size))
    names = [f"{net.x}_{kind}" for kind in ("bytes", "scale", "zero")]
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", [net.x], names))
    given = [names[0], net.constant(weights.astype(np.int8)), names[2]]
    sums = net.add("Cast", net.add("ConvInteger", *given, pads=[size // 2] * 4), to=1)
    scale = net.add("Mul", names[1], net.constant(np.array(0.01 / size, np.float32)))
    net.x, net.shape[1] = net.add("Mul", sums, scale), filters


LAYERS = {
    "1x1": lambda net: conv(net, 1, 7),
    "3x3": lambda net: conv(net, 3, 8),
    "strided": lambda net: conv(net, 3, 8, stride=2),
    "depthwise": lambda net: conv(net, 3, net.shape[1], groups=net.shape[1]),
    "residual": residual,
    "maximum": lambda net: pool(net, "MaxPool", 1),
    "mean": lambda net: pool(net, "AveragePool", 2),
    "transposed": transposed,
    "bytes 1x1": lambda net: in_bytes(net, 1),
    "bytes 3x3": lambda net: in_bytes(net, 3),
}


def checked(layers, images, target):
    """Compile layers in a row; the self-check refuses what differs from the references."""
    net = Network(Random(0), list(IMAGES[images]), "image")
    for layer in layers:
        LAYERS[layer](net)
    check = compile(net.model(IMAGES[images]), target=target, check=True).stats().check
    assert check is not None and check.done > 0, check


@pytest.mark.parametrize("target", targets(__name__), ids=name_of)
def test_an_image_that_is_read_as_it_lies_lends_no_sizes_to_the_result(target):
    """The first convolution's input has channels where its result has rows."""
    checked(("1x1", "3x3"), "high", target)


@pytest.mark.parametrize("images", IMAGES)
@pytest.mark.parametrize("layers", list(product(LAYERS, LAYERS)), ids="-".join)
@pytest.mark.parametrize("target", targets(__name__), ids=name_of)
@pytest.mark.sampled(2)
def test_two_layers_over_images_of_unknown_size(target, layers, images):
    checked(layers, images, target)


@pytest.mark.parametrize(("size", "images"), [(1, "high"), (3, "both")])
@pytest.mark.parametrize("target", targets(__name__), ids=name_of)
def test_a_mask_of_places_joins_a_convolution_over_images_of_unknown_size(target, size, images):
    """One number for each place of the image, for all channels."""
    n, _, *sizes = IMAGES[images]
    net = Network(Random(0), list(IMAGES[images]), "image")
    conv(net, size, 8)
    net.x = net.add("Mul", net.x, "mask")
    made = net.model(IMAGES[images])
    mask = helper.make_tensor_value_info("mask", TensorProto.FLOAT, (n, 1, *sizes))
    made.graph.input.append(mask)
    check = compile(made, target=target, check=True).stats().check
    assert check is not None and check.done > 0, check


@pytest.mark.parametrize("batch", [("n",), (3, "n"), ("n", "s"), (2, "n", "s")], ids=str)
@pytest.mark.parametrize("target", targets(__name__), ids=name_of)
@pytest.mark.sampled(1)
def test_a_product_in_bytes_of_unknown_rows_before_a_residual(target, batch):
    """The kernel sees the rows as one dimension of several, whatever the rank."""
    values = np.random.default_rng(3)
    weights = {
        "w": values.integers(-127, 128, (64, 64)).astype(np.int8),
        "scale": np.float32(0.001),
        "bias": values.normal(size=64).astype(np.float32),
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["floats"], to=1),
        helper.make_node("Mul", ["s", "scale"], ["each"]),
        helper.make_node("Mul", ["floats", "each"], ["product"]),
        helper.make_node("Add", ["bias", "product"], ["sum"]),
        helper.make_node("Add", ["x", "sum"], ["y"]),
    ]
    made = model(nodes, {"x": (np.float32, (*batch, 64))}, ["y"], weights)
    check = compile(made, target=target, check=True).stats().check
    assert check is not None and check.done > 0, check
