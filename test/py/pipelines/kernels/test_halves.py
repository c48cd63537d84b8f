"""Programs in f16 and bf16 under PyC's kernels: rounded where the model rounds, half the bytes."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from kernel_runs import targets
from kernel_works import layer

from pyc_mlir import Tensor, compile, nn
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.pipelines.kernels.families.batch import BatchGemm
from pyc_mlir.pipelines.kernels.families.rows import WIDENED
from pyc_mlir.pipelines.kernels.lang.pointwise import in_halves
from pyc_mlir.pipelines.kernels.match import Contraction
from pyc_mlir.pipelines.target.target import Target

TYPES = {"f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16)}
UNITS = {"f16": 2.0**-11, "bf16": 2.0**-8}
HALF, FLOAT, ANY = "f16", "f32", "n"
BOTH = pytest.mark.parametrize("name", list(TYPES))


def draw(name, *shape, scale=1.0, seed=0):
    return (np.random.default_rng(seed).normal(size=shape) * scale).astype(TYPES[name])


def chosen(program):
    return {d.chosen for d in program.artifact.decisions if d.site.pass_name.endswith("kernels")}


def near(got, exact, name, roundings=2):
    """Within so many roundings of the type, of the largest number of each row."""
    got, exact = np.asarray(got).astype(np.float64), np.asarray(exact).astype(np.float64)
    scale = np.abs(exact).max(axis=-1, keepdims=True)
    assert (np.abs(got - exact) <= roundings * 2 * UNITS[name] * scale + 2.0**-24).all()


def rounded(x, name):
    return np.asarray(x).astype(TYPES[name]).astype(np.float64)


@BOTH
@pytest.mark.parametrize("target", targets(__name__), ids=lambda t: t.name)
@pytest.mark.parametrize("rows", [1, 5, 50])
def test_a_layer_rounds_after_each_op(name, rows, target):
    w, b = draw(name, 70, 100, scale=70**-0.5, seed=1), draw(name, 100, seed=2)

    def model(x: Tensor[name, rows, 70]):
        return np.tanh(x @ w + b)

    program = compile(model, target=target)
    assert "half_gemm:matmul+add+tanh" in chosen(program)
    x = draw(name, rows, 70)
    wide = [a.astype(np.float64) for a in (x, w, b)]
    product = rounded(wide[0] @ wide[1], name)
    near(program(x), np.tanh(rounded(product + wide[2], name)), name)


@BOTH
def test_attention_and_norms_have_kernels(name):
    scale, shift = draw(name, 48, seed=3), draw(name, 48, seed=4)

    def model(q: Tensor[name, 2, 24, 48], k: Tensor[name, 2, 24, 48], v: Tensor[name, 2, 24, 48]):
        mixed = nn.softmax(q @ np.transpose(k, (0, 2, 1)) * 0.125, axis=-1) @ v
        return nn.layernorm(mixed + q, scale, shift)

    program = compile(model)
    families = {c.partition(":")[0] for c in chosen(program)}
    assert {"batch_gemm", "rows"} <= families
    arrays = [draw(name, 2, 24, 48, seed=s) for s in range(3)]
    q, k, v = (a.astype(np.float64) for a in arrays)
    scores = q @ k.transpose(0, 2, 1) * 0.125
    power = np.exp(scores - scores.max(-1, keepdims=True))
    x = power / power.sum(-1, keepdims=True) @ v + q
    far = x - x.mean(-1, keepdims=True)
    exact = far / np.sqrt((far**2).mean(-1, keepdims=True) + 1e-5)
    near(program(*arrays), exact * scale.astype(float) + shift.astype(float), name, 8)


@BOTH
@pytest.mark.parametrize("kind", ["3x3", "1x1", "stride", "groups", "depthwise"])
def test_convolutions_and_pooling_have_kernels(kind, name):
    channels = 24
    shapes = {
        "1x1": (1, 1, channels, 40),
        "groups": (3, 3, 6, 40),
        "depthwise": (3, 3, 1, channels),
    }
    w = draw(name, *shapes.get(kind, (3, 3, channels, 40)), scale=0.1, seed=1)
    groups = {"groups": 4, "depthwise": channels}.get(kind, 1)
    stride = 2 if kind == "stride" else 1
    pad = 0 if kind == "1x1" else 1
    options = {"strides": (stride, stride), "pads": (pad,) * 4, "groups": groups}

    def model(x: Tensor[name, 2, 13, 15, channels]):
        y = np.maximum(nn.conv2d(x, w, layout="NHWC", **options), 0)
        return nn.max_pool2d(y, (2, 2), layout="NHWC")

    program = compile(model)
    families = {c.partition(":")[0] for c in chosen(program)}
    family = {"1x1": "half_gemm", "depthwise": "depthwise"}.get(kind, "conv")
    assert {family, "pool"} <= families
    x = draw(name, 2, 13, 15, channels)
    exact = np.asarray(model(x))  # pyright: ignore[reportArgumentType]
    near(np.asarray(program(x)).reshape(2, -1), exact.reshape(2, -1), name, 1)


@BOTH
def test_what_is_beyond_the_range_is_infinite_and_nan_stays(name):
    w = np.eye(16, dtype=TYPES[name])

    def model(x: Tensor[name, 8, 16]):
        return (x @ w) * x

    program = compile(model)
    x = np.ones((8, 16), TYPES[name])
    x[0, 1], x[2, 3], x[4, 5], x[6, 7] = np.nan, np.inf, 1e4, 3e38 if name == "bf16" else 6e4
    got = np.asarray(program(x)).astype(np.float64)
    assert np.isnan(got[0]).all() and np.isnan(got[2]).sum() == 15 and got[2, 3] == np.inf
    assert got[6, 7] == np.inf and (got[4, 5] == np.inf) == (name == "f16")
    assert (got[1] == 1).all()


def test_small_numbers_of_f16_are_kept():
    w = np.eye(16, dtype=np.float16)

    def model(x: Tensor[HALF, 8, 16]):
        return x @ w

    x = (np.arange(128).reshape(8, 16) * 2.0**-24).astype(np.float16)
    np.testing.assert_array_equal(compile(model)(x), x)


@BOTH
def test_weights_take_half_the_bytes(name):
    def constants(dtype):
        w = np.random.default_rng(0).normal(size=(256, 256)).astype(dtype)
        element = name if dtype != np.float32 else "f32"

        def model(x: Tensor[element, 64, 256]):
            return x @ w

        found = compile(model).artifact.account.constants
        assert found is not None
        return found

    assert constants(TYPES[name]) <= 0.51 * constants(np.float32)


def test_mixed_types_are_left_to_iree():
    w = draw("f16", 32, 32)

    def model(x: Tensor[HALF, 16, 32], y: Tensor[FLOAT, 16, 32]):
        return (x @ w).astype(np.float32) + y

    program = compile(model)
    x, y = draw("f16", 16, 32), np.ones((16, 32), np.float32)
    near(program(x, y), rounded(x.astype(float) @ w.astype(float), "f16") + 1, "f16")


AVX2 = Target.named("cpu-avx2")
DEEP = Contraction((), 8, 8, 64, "mk", "kn", "mn")


def test_a_program_rounds_once_after_each_op():
    program = in_halves(layer(bias=True, activation="relu", residual=True), "f16")
    assert [s.op for s in program.steps] == ["to_f16", "add", "to_f16", "relu", "add"]
    assert in_halves(layer(), "f16").steps == ()
    kept = in_halves(layer(bias=True), "bf16", summed=False, stored=False)
    assert [s.op for s in kept.steps] == ["add", "to_bf16"]


def test_depths_that_no_panel_holds_are_left_to_iree():
    target = Target.named("cpu-avx512")
    narrow = BatchGemm.on(target, replace(DEEP, right="nk", depth=400), dtype="f16")
    assert (narrow.panel, narrow.depth_block, narrow.local) == (16, 400, True)
    with pytest.raises(PycError, match="a local panel of at most"):
        BatchGemm.on(target, replace(DEEP, right="nk", depth=600), dtype="f16")

    def model(x: Tensor[HALF, 8, 600], y: Tensor[HALF, 8, 600]):
        return x @ np.transpose(y)

    program = compile(model, target=target)
    assert chosen(program) == {"iree"}


LONG_ROWS = {
    "softmax": nn.softmax,
    "log_softmax": nn.log_softmax,
    "layernorm": lambda x, s, b: nn.layernorm(x, s, b),
    "rmsnorm": lambda x, s, b: nn.rmsnorm(x, s),
}


def exact_rows(operation, x, s, b):
    x, s, b = (a.astype(np.float64) for a in (x, s, b))
    if "softmax" in operation:
        power = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
        y = power / power.sum(-1, keepdims=True)
        return np.log(y) if operation == "log_softmax" else y
    centred = x - x.mean(-1, keepdims=True) if operation == "layernorm" else x
    unit = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return unit * s + b if operation == "layernorm" else unit * s


@BOTH
@pytest.mark.parametrize("operation", LONG_ROWS)
def test_rows_of_unknown_length_are_kept_or_computed_again(name, operation):
    """The same kernel for rows that the stack holds, and for longer ones."""
    function = LONG_ROWS[operation]
    weights = [] if "softmax" in operation else [TensorSpec(name, "n")] * 2
    program = compile(function, [TensorSpec(name, "m", "n"), *weights])
    assert any(c.startswith(f"rows:{operation}") for c in chosen(program))
    for rows, length in ((3, 1), (2, 37), (1, WIDENED), (2, WIDENED + 9), (0, 5)):
        x, (s, b) = draw(name, rows, length), (draw(name, length, seed=n) for n in (1, 2))
        given = (x, s, b)[: 1 + len(weights)]
        near(program(*given), exact_rows(operation, x, s, b), name)


@BOTH
def test_known_rows_that_the_stack_does_not_hold(name):
    x = draw(name, 3, WIDENED + 40)
    program = compile(lambda x: nn.softmax(x), [x])
    assert "rows:softmax" in chosen(program)
    near(program(x), exact_rows("softmax", x, x, x), name)


def test_a_mask_of_booleans_joins_scores_of_heads_in_halves():
    def model(x, y, mask):
        return np.where(mask, x @ np.transpose(y, (0, 1, 3, 2)), np.float16(-9))

    specs = [TensorSpec("f16", None, 3, None, 16)] * 2 + [TensorSpec("i1", None, 1, None, None)]
    program = compile(model, specs)
    assert "batch_gemm:transpose+matmul+select" in chosen(program)
    x, y = draw("f16", 2, 3, 7, 16), draw("f16", 2, 3, 20, 16, seed=1)
    mask = np.random.default_rng(2).random((2, 1, 7, 20)) > 0.5
    exact = x.astype(np.float64) @ y.astype(np.float64).swapaxes(2, 3)
    near(program(x, y, mask), np.where(mask, exact, -9.0), "f16")
