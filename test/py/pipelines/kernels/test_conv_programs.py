"""Small convolutional networks, compiled as users compile them: kernels, layouts and contracts."""

import numpy as np
import pytest
from kernel_runs import any_target

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
    assert families(program).count("conv") == 4
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


def test_images_of_any_size_with_a_stride_are_left_to_iree():
    def strided(x):
        return nn.conv2d(x, WIDE, strides=(2, 2), pads=(2, 2, 2, 2))

    program = compile(strided, [spec("f32", (1, 3, "h", "w"))], device=Device("local-sync"))
    assert families(program) == ["iree"]
    layout = [d.chosen for d in program.artifact.decisions if d.site.pass_name == "pyc-layout"]
    assert layout == ["keep"]


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
