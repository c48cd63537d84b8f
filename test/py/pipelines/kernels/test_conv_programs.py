"""Convolutional networks as users compile them: kernels, layouts, contracts, images of any size."""

from itertools import product
from random import Random

import numpy as np
import pytest
from kernel_runs import any_target, name_of, targets
from onnx import TensorProto, helper
from onnx_models import model
from random_images import Network

from pyc_mlir import Contract, compile, nn, spec
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.choices.evidence import NotOffered
from pyc_mlir.runtime.device import Device

RANDOM = np.random.default_rng(11)


def weights(*shape):
    return RANDOM.normal(size=shape, scale=0.2).astype(np.float32)


STEM, BODY, DEEP, POINT, HEAD = (
    weights(64, 3, 3, 3),
    weights(64, 64, 3, 3),
    weights(64, 1, 5, 5),
    weights(32, 64, 1, 1),
    weights(32, 8, 3, 3),
)


def network(x):
    """A stem with a stride, a residual, a depthwise, a grouped convolution, and pooling.

    The residual has 64 channels: of fewer, minimal filtering does not pay on every target.
    """
    x = nn.relu(nn.conv2d(x, STEM, strides=(2, 2), pads=(1, 1, 1, 1)))
    x = nn.relu(nn.conv2d(x, BODY, pads=(1, 1, 1, 1)) + x)
    x = nn.conv2d(x, DEEP, pads=(2, 2, 2, 2), groups=64)
    x = nn.conv2d(x, POINT)
    x = nn.conv2d(x, HEAD, pads=(1, 1, 1, 1), groups=4)
    return nn.max_pool2d(x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))


def families(program):
    return [
        d.chosen.split(":")[0]
        for d in program.artifact.decisions
        if d.site.pass_name == "pyc-select-kernels"
    ]


@pytest.fixture(scope="module")
def image():
    any_target()
    return RANDOM.normal(size=(2, 3, 40, 44)).astype(np.float32)


@pytest.fixture(scope="module")
def expected(image):
    """What IREE's code answers."""
    return compile(network, [image], kernels="iree", device=Device("local-sync"))(image)


@pytest.mark.parametrize("threads", ["local-sync", "local-task"])
@pytest.mark.full
def test_a_network_runs_on_generated_kernels(image, expected, threads):
    program = compile(network, [image], device=Device(threads))
    assert {"conv", "winograd", "depthwise", "pool", "transpose"} <= set(families(program))
    got = program(image)
    assert np.abs(np.asarray(got) - np.asarray(expected)).max() < 1e-4
    assert np.array_equal(np.asarray(program(image)), np.asarray(got))


@pytest.mark.full
def test_a_contract_that_bounds_the_error_takes_sums_as_they_are_written(image):
    program = compile(
        network, [image], contract=Contract(max_error=1e-4), device=Device("local-sync")
    )
    assert "winograd" not in families(program)
    reported = [
        e for d in program.artifact.decisions for e in d.evidence if isinstance(e, NotOffered)
    ]
    assert any("winograd:conv2d" in str(t) for t in reported)


@pytest.mark.full
def test_what_rounding_allows_is_enough_for_minimal_filtering(image):
    program = compile(
        network, [image], contract=Contract(max_error="rounding"), device=Device("local-sync")
    )
    assert "winograd" in families(program)


@pytest.mark.full
def test_batches_of_any_size(image, expected):
    program = compile(network, [spec("f32", ("n", 3, 40, 44))], device=Device("local-sync"))
    assert "winograd" in families(program)
    for n in (1, 2):
        got = np.asarray(program(image[:n]))
        assert np.abs(got - np.asarray(expected)[:n]).max() < 1e-4


@pytest.mark.full
def test_little_memory_takes_weights_as_they_are(image):
    program = compile(network, [image], planner_mode="memory_first", device=Device("local-sync"))
    assert "winograd" not in families(program)


def test_an_infinity_stays_within_the_tiles_that_read_it():
    """Outputs that a direct sum would keep finite are NaN, at most m + 2 away (docs/kernels.md)."""
    x = RANDOM.normal(size=(1, 40, 40, 64)).astype(np.float32)
    w = weights(3, 3, 64, 64)
    program = compile(
        lambda x: nn.conv2d(x, w, pads=1, layout="NHWC"), [x], device=Device("local-sync")
    )
    assert families(program).count("winograd") == 1
    x[0, 20, 21, 3] = np.inf
    lost = np.argwhere(~np.isfinite(np.asarray(program(x))).all((0, 3)))
    assert len(lost) >= 9 and np.abs(lost - (20, 21)).max() <= 5


RESIDUALS = {
    "winograd": (weights(32, 32, 3, 3), {"pads": (1, 1, 1, 1)}),
    "conv": (weights(32, 32, 3, 3), {"pads": (2, 2, 2, 2), "dilations": (2, 2)}),
    "depthwise": (weights(32, 1, 3, 3), {"pads": (1, 1, 1, 1), "groups": 32}),
}


@pytest.mark.parametrize("family", RESIDUALS)
@pytest.mark.full
def test_a_residual_of_another_batch_is_refused(family):
    any_target()
    kernel, params = RESIDUALS[family]

    def residual(x, y):
        return nn.relu(nn.conv2d(x, kernel, **params)) + y

    dims = [spec("f32", (n, 32, 20, 20)) for n in ("n", "m")]
    program = compile(residual, dims, device=Device("local-sync"))
    assert family in families(program)
    x = weights(3, 32, 20, 20)
    assert np.asarray(program(x, x)).shape == x.shape
    for other in (1, 2, 4):
        with pytest.raises(PycError, match="expected dynamic dimensions that fit together"):
            program(x, x[:1].repeat(other, 0))


WIDE, CLOSE, FLAT, SPREAD = (
    weights(32, 3, 5, 5),
    weights(32, 32, 3, 3),
    weights(24, 64, 1, 1),
    weights(12, 24, 3, 3),
)


def alike(x):
    """Convolutions with as many outputs as positions: a residual, a 1x1 one, a dilated one."""
    x = nn.relu(nn.conv2d(x, WIDE, pads=(2, 2, 2, 2)))
    y = nn.relu(nn.conv2d(x, CLOSE, pads=(1, 1, 1, 1))) + x
    y = nn.silu(nn.conv2d(np.concatenate([x, y], 1), FLAT))
    return nn.conv2d(y, SPREAD, pads=(2, 2, 2, 2), dilations=(2, 2))


@pytest.mark.parametrize("shape", [("n", 3, "h", "w"), (1, 3, 20, "w"), (2, 3, "h", 15)])
@pytest.mark.sampled(1)
def test_images_of_any_size(shape):
    any_target()
    dims = [spec("f32", shape)]
    program = compile(alike, dims, device=Device("local-sync"))
    assert sum(f in ("conv", "winograd") for f in families(program)) == 4
    plain = compile(alike, dims, kernels="iree", device=Device("local-sync"))
    sizes = ((1, 1, 1), (3, 2, 15), (2, 33, 57), (1, 20, 31), (1, 20, 14), (2, 5, 15), (2, 40, 15))
    fitting = [
        s
        for s in sizes
        if all(isinstance(d, str) or d == g for d, g in zip((shape[0], *shape[2:]), s, strict=True))
    ]
    assert len(fitting) > 1
    for batch, high, wide in fitting:
        image = weights(batch, 3, high, wide)
        got, want = np.asarray(program(image)), np.asarray(plain(image))
        assert got.shape == want.shape and np.abs(got - want).max() < 1e-4


def test_a_residual_of_another_size_is_refused():
    any_target()

    def residual(x, y):
        x = nn.relu(nn.conv2d(x, WIDE, pads=(2, 2, 2, 2)))
        return nn.conv2d(x, CLOSE, pads=(1, 1, 1, 1)) + y

    dims = [spec("f32", (1, 3, "h", "w")), spec("f32", (1, 32, "a", "b"))]
    program = compile(residual, dims, device=Device("local-sync"))
    assert "conv" in families(program)
    assert np.asarray(program(weights(1, 3, 9, 8), weights(1, 32, 9, 8))).shape == (1, 32, 9, 8)
    for high, wide in ((8, 9), (9, 1), (18, 4), (1, 1)):
        with pytest.raises(PycError, match="expected dynamic dimensions that fit together"):
            program(weights(1, 3, 9, 8), weights(1, 32, high, wide))


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


# What the window does over images of unknown height and width: the op, its taps, strides, pads and
# dilations; families that it must find.
OPEN = [
    ("conv2d", (3, 3), (2, 2), (1, 1, 1, 1), (1, 1)),
    ("conv2d", (1, 1), (2, 2), (0, 0, 0, 0), (1, 1)),
    ("conv2d", (7, 7), (2, 2), (3, 3, 3, 3), (1, 1)),
    ("conv2d", (3, 3), (1, 1), (0, 0, 0, 0), (1, 1)),
    ("conv2d", (2, 4), (3, 1), (1, 0, 0, 2), (2, 1)),
    ("conv2d", (3, 3), (2, 3), (0, 1, 1, 0), (1, 2)),
    ("winograd", (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    ("winograd", (3, 3), (1, 1), (0, 1, 0, 0), (1, 1)),
    ("depthwise", (3, 3), (1, 1), (1, 1, 1, 1), (1, 1)),
    ("depthwise", (5, 5), (2, 2), (2, 2, 2, 2), (1, 1)),
    ("depthwise", (3, 3), (2, 1), (0, 1, 1, 0), (1, 2)),
    ("max_pool2d", (3, 3), (2, 2), (1, 1, 1, 1), None),
    ("max_pool2d", (5, 5), (1, 1), (2, 2, 2, 2), None),
    ("avg_pool2d", (3, 3), (2, 2), (1, 1, 0, 0), None),
    ("avg_pool2d", (2, 2), (2, 2), (0, 0, 0, 0), None),
]


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("case", OPEN, ids=lambda c: "-".join(map(str, c[:3])))
@pytest.mark.sampled(8)
def test_windows_over_images_of_unknown_size(case, dtype):
    op, kernel, strides, pads, dilations = case
    kind = np.dtype({"f32": "float32", "f16": "float16"}[dtype])
    channels = 64 if op == "winograd" else 20
    depth = 1 if op == "depthwise" else channels
    w = RANDOM.normal(size=(channels, depth, *kernel), scale=0.1).astype(kind)
    others = {"strides": strides, "pads": pads}
    around = RANDOM.normal(size=(20, 20, 3, 3), scale=0.1).astype(kind)

    def window(x):
        if "pool" in op:
            return nn.conv2d(getattr(nn, op)(nn.conv2d(x, around), kernel=kernel, **others), around)
        groups = 20 if op == "depthwise" else 1
        return nn.relu(nn.conv2d(x, w, groups=groups, dilations=dilations, **others))

    x = spec(dtype, ("n", channels, "h", "w"))
    made = compile(window, [x], device=Device("local-sync"))
    convolutions = {"conv", "winograd"} if op != "winograd" or dtype == "f16" else {"winograd"}
    wanted = {"depthwise": {"depthwise"}}.get(op, {"pool"} if "pool" in op else convolutions)
    assert wanted & set(families(made))
    plain = compile(window, [x], kernels="iree", device=Device("local-sync"), check=False)
    for n, high, wide in ((1, 9, 12), (2, 12, 9), (1, 40, 33), (3, 13, 61)):
        image = RANDOM.normal(size=(n, channels, high, wide)).astype(kind)
        got, wanted = np.asarray(made(image)), np.asarray(plain(image))
        assert got.shape == wanted.shape
        assert np.abs(got.astype("f") - wanted).max() < (1e-4 if dtype == "f32" else 2e-2)


def test_windows_in_the_padding_alone_are_zero():
    """Minimal filtering would leave what rounding makes of the tile."""
    program = compile(
        lambda x: nn.conv2d(x, BODY, pads=(3, 0, 0, 3)), [spec("f32", (1, 64, "h", 20))],
        device=Device("local-sync"), check=True,
    )  # fmt: skip
    assert "conv" in families(program) and "winograd" not in families(program)


@pytest.mark.parametrize("groups", [1, 24])
@pytest.mark.parametrize(("stride", "pad"), [(1, 1), (2, 1), (2, 0)])
def test_byte_windows_over_images_of_unknown_size(stride, pad, groups):
    values = np.random.default_rng(5)
    kernel = values.integers(-127, 128, (24, 24 // groups, 3, 3)).astype(np.int8)
    constants = {
        "w": kernel, "xs": np.float32(0.02), "xz": np.uint8(131), "ws": np.float32(0.01),
        "wz": np.int8(0), "ys": np.float32(0.2), "yz": np.uint8(120),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        helper.make_node("Conv", ["xd", "wd"], ["c"], strides=[stride] * 2, pads=[pad] * 4,
                         group=groups),
        helper.make_node("QuantizeLinear", ["c", "ys", "yz"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "ys", "yz"], ["y"]),
    ]  # fmt: skip
    made = model(nodes, {"x": (np.float32, ("n", 24, "h", "w"))}, ["y"], constants)
    program = compile(made, device=Device("local-sync"), check=True)
    assert ("int8" if groups == 1 else "int8_depthwise") in families(program)
    for n, high, wide in ((1, 9, 12), (2, 33, 20), (1, 3, 3)):
        x = values.normal(size=(n, 24, high, wide)).astype(np.float32)
        plain = compile(made, [x], kernels="iree", device=Device("local-sync"), check=False)
        assert np.abs(np.asarray(program(x)) - np.asarray(plain(x))).max() <= 0.2 + 1e-5


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_same_padding_of_images_of_unknown_size(mode):
    """Windows that move by one have the same pads at every size."""
    w = RANDOM.normal(size=(8, 8, 2, 4)).astype(np.float32)
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad=mode, dilations=[1, 2])
    made = model([node], {"x": (np.float32, (1, 8, "h", "w"))}, ["y"], {"w": w})
    program = compile(made, device=Device("local-sync"), check=True)
    x = RANDOM.normal(size=(1, 8, 9, 14)).astype(np.float32)
    known = compile(made, [x], device=Device("local-sync"))
    assert np.allclose(program(x), known(x), atol=1e-5)
