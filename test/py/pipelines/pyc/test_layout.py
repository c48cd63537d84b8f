"""pyc-layout: what is stored otherwise computes the same; transposes stand at boundaries only."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest
from compiled import add_function, assert_close, compile_and_load, run_function
from conftest import FULL
from conv_nets import TO_FIRST, TO_LAST, draw_network
from op_modules import computing as names
from op_modules import ops_of
from random_graphs import Graph as Network

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.ops.movement import copied
from pyc_mlir.dialects.types import DTYPES, TensorType, tensor
from pyc_mlir.pipelines.choices.choices import Alternative, Choices, Recipe, Site
from pyc_mlir.pipelines.driver.base import KernelRules, PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.pyc.layout import CHANNELS_LAST, KEEP, Layout
from pyc_mlir.pipelines.pyc.orders import between, moves
from pyc_mlir.pipelines.target.target import Target

NETWORKS = 1500 if FULL else 60
COMPILED = 60 if FULL else 4
IMAGE = tensor("f32", 1, 16, 28, 28)
ANY_IMAGE = tensor("f32", None, 16, None, None)
WEIGHTS = np.random.default_rng(0).normal(0, 0.1, (16, 16, 3, 3)).astype(np.float32)
VECTOR = np.linspace(-1, 1, 16, dtype=np.float32)


@dataclass(frozen=True)
class ChannelsLast:
    """NHWC wherever it is offered."""

    name: str = "channels-last"

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        names = [a.name for a in alternatives]
        return CHANNELS_LAST if CHANNELS_LAST in names else names[0]


@pytest.fixture(autouse=True)
def context():
    with new_context() as made, ir.Location.unknown():
        yield made


def module_of(body: Callable[..., Any], *types: TensorType) -> ir.Module:
    module = ir.Module.create()
    add_function(module, "main", types or [IMAGE], body)
    return module


def laid_out(module: ir.Module, policy: Any = None) -> Choices:
    """Run the pass and say what it chose; the module stays valid."""
    choices = Choices(policy or ChannelsLast())
    run_pipeline(module, "pyc-layout", PassContext(choices=choices))
    assert module.operation.verify()
    return choices


def check(body: Callable[..., Any], *types: TensorType, sizes: int = 9) -> list[str]:
    """Results are equal bit by bit (what is summed may be so in another order); the ops."""
    module = module_of(body, *types)
    rng = np.random.default_rng(1)
    shapes = [[sizes if d is None else d for d in t.shape] for t in types or [IMAGE]]
    arrays = [rng.normal(0, 1, shape).astype(np.float32) for shape in shapes]
    want = interpret(module, arrays)
    laid_out(module)
    for got, expected in zip(interpret(module, arrays), want, strict=True):
        assert_close(got, expected, str(module))
    return names(module)


def conv(b: Any, x: Any, **params: Any) -> Any:
    return b.conv2d(x, WEIGHTS, **{"pads": (1, 1, 1, 1), **params})


def affine(b: Any, x: Any) -> Any:
    return b.relu(b.add(x, VECTOR.reshape(1, 16, 1, 1)))


BOTH_ENDS = ("transpose", "conv2d", "add", "relu", "conv2d", "transpose")


@pytest.mark.parametrize("image", [IMAGE, ANY_IMAGE], ids=["static", "dynamic"])
def test_only_the_boundary_is_transposed(image):
    def body(b, x):
        return conv(b, affine(b, conv(b, x)), strides=(2, 2))

    assert check(body, image) == list(BOTH_ENDS)


@pytest.mark.parametrize("seed", range(0, NETWORKS, NETWORKS // 15))
def test_random_networks_compute_the_reference(seed):
    for number in range(seed, seed + NETWORKS // 15):
        network = draw_network(Random(number), dynamic=number % 2 == 1)
        module = network.module()
        laid_out(module)
        network.check(interpret(module, network.inputs), f"seed {number}")
        once = str(module)
        laid_out(module)
        assert str(module) == once, f"seed {number}"


@pytest.mark.full
def test_compiled_networks_compute_the_reference():
    networks: list[Network] = [
        draw_network(Random(seed), dynamic=seed % 2 == 1) for seed in range(COMPILED)
    ]
    module = ir.Module.create()
    for i, network in enumerate(networks):
        network.add_to(module, f"f{i}")
    assert any(d.chosen == CHANNELS_LAST for d in laid_out(module).log)
    executable = compile_and_load(module)
    for i, network in enumerate(networks):
        types = [v.declared for v in network.returned]
        network.check(run_function(executable, f"f{i}", network.inputs, types), f"seed {i}")


def excite(b, x):
    mean = b.reduce_mean(x, axes=(2, 3), keepdims=True)
    scale = b.sigmoid(b.conv2d(mean, WEIGHTS[:, :, :1, :1]))
    return b.mul(x, scale)


def excite_by_product(b, x):
    mixed = b.matmul(b.reduce_mean(x, axes=(2, 3)), WEIGHTS[:, :, 0, 0])
    return b.mul(x, b.reshape(mixed, shape=(copied(0), 16, 1, 1)))


def layer_norm(b, x):
    last = b.transpose(x, permutation=TO_LAST)
    out = b.gelu(b.matmul(b.layernorm(last, VECTOR, VECTOR), WEIGHTS[:, :, 0, 0]))
    return b.add(b.transpose(out, permutation=TO_FIRST), x)


def shuffle(b, x):
    parted = b.reshape(x, shape=(1, 4, 4, 28, 28))
    moved = b.transpose(parted, permutation=(0, 2, 1, 3, 4))
    return b.reshape(moved, shape=(1, 16, 28, 28))


def upsample(b, x):
    parted = b.reshape(x, shape=(1, 4, 2, 2, 28, 28))
    moved = b.transpose(parted, permutation=(0, 1, 4, 2, 5, 3))
    out = b.reshape(moved, shape=(1, 4, 56, 56))
    return b.concat(b.concat(out, out, axis=1), b.concat(out, out, axis=1), axis=1)


def split(b, x):
    whole = {"starts": (0, 0, 0, 0), "stops": (1, 8, 28, 28), "steps": (1, 1, 1, 1)}
    first = b.slice(x, **whole)
    second = b.slice(x, **{**whole, "starts": (0, 8, 0, 0), "stops": (1, 16, 28, 28)})
    return b.concat(second, b.silu(first), axis=-3)


def padded(b, x):
    return b.pad(x, low=(0, 0, 1, 2), high=(0, 0, 3, 0), value=-1.0)


def scores(b, x):
    return b.softmax(x, axis=1)


def norm(b, x):
    return b.batchnorm(x, VECTOR, VECTOR, VECTOR, np.abs(VECTOR) + 1, axis=1)


def pools(b, x):
    first = b.max_pool2d(x, kernel=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    return b.avg_pool2d(first, kernel=(2, 2))


def clipped(b, x):
    low = b.compare(x, b.scalar(0, x), predicate="lt")
    return b.clip(b.select(low, b.mul(x, VECTOR.reshape(16, 1, 1)), x), b.scalar(-1, x), VECTOR[:1])


def columns(b, x):
    """A vector along the width, which lies in the middle then."""
    return b.add(x, np.arange(28, dtype=np.float32))


MEMBERS: dict[str, tuple[Callable[..., Any], int]] = {
    "excite": (excite, 0),
    "excite by a product": (excite_by_product, 0),
    "layer norm between transposes": (layer_norm, 0),
    "shuffle": (shuffle, 1),
    "upsample": (upsample, 1),
    "split": (split, 0),
    "pad": (padded, 0),
    "softmax": (scores, 0),
    "batchnorm": (norm, 0),
    "pools": (pools, 0),
    "clip and select": (clipped, 0),
    "columns": (columns, 0),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_between_convolutions_nothing_else_is_transposed(name):
    member, own = MEMBERS[name]
    left = check(lambda b, x: conv(b, member(b, conv(b, x))))
    assert left.count("transpose") == 2 + own, left
    assert left[:2] == ["transpose", "conv2d"] and left[-2:] == ["conv2d", "transpose"]


HEADS: dict[str, Callable[..., Any]] = {
    "mean": lambda b, x: b.reduce_mean(x, axes=(2, 3)),
    "mean, kept": lambda b, x: b.reduce_mean(x, axes=(2, 3), keepdims=True),
    "flattened": lambda b, x: b.reshape(
        b.reduce_max(x, axes=(-1, -2), keepdims=True), shape=(copied(0), 16)
    ),
    "sum over channels": lambda b, x: b.reduce_sum(x, axes=(1,)),
    "argmax": lambda b, x: b.argmax(x, axis=1),
    "patches": lambda b, x: b.transpose(b.reshape(x, shape=(1, 16, -1)), permutation=(0, 2, 1)),
    "size": lambda b, x: b.size(x, 1, 3),
}


@pytest.mark.parametrize("name", HEADS)
def test_a_head_needs_no_transpose(name):
    image = replace(IMAGE, shape=(None, 16, None, None)) if name == "size" else IMAGE
    left = check(lambda b, x: HEADS[name](b, conv(b, x)), image)
    assert left.count("transpose") == 1, left


def test_a_value_is_converted_once_for_all_who_need_it():
    def body(b, x):
        y = conv(b, x)
        z = conv(b, b.relu(y))
        return b.add(conv(b, x), z), b.matmul(y, np.ones((28, 3), np.float32)), y

    left = check(body)
    assert left.count("transpose") == 3, left


def test_the_transpose_of_the_input_stands_before_its_convolution():
    def body(b, x):
        normed = b.mul(x, np.ones((3, 1, 1), np.float32) / 2)
        return conv(b, b.conv2d(normed, WEIGHTS[:, :3]))

    assert check(body, tensor("f32", 1, 3, 30, 30))[:3] == ["mul", "transpose", "conv2d"]


def test_computed_weights_are_transposed_too():
    def body(b, x, w):
        return conv(b, b.conv2d(conv(b, x), w))

    left = check(body, IMAGE, tensor("f32", 16, 16, 1, 1))
    assert left.count("transpose") == 3, left


def test_arguments_and_results_keep_their_types():
    module = module_of(lambda b, x: (conv(b, x), x))
    before = str(ops_of(module)[-1].operands[0].type)
    laid_out(module)
    assert [str(v.type) for v in ops_of(module)[-1].operands] == [before, str(IMAGE)]


def test_a_layout_of_ones_own_stays():
    """A convolution that is NHWC already reads its operand as the program has it."""

    def body(b, x):
        last = b.transpose(conv(b, x), permutation=TO_LAST)
        return b.conv2d(last, WEIGHTS.transpose(2, 3, 1, 0), layout="NHWC")

    assert check(body) == ["transpose", "conv2d", "conv2d"]


def test_other_functions_and_groups_stay():
    module = module_of(lambda b, x: b.max_pool2d(b.relu(x), kernel=(2, 2)))
    before = str(module)
    assert laid_out(module).log == () and str(module) == before
    module = module_of(lambda b, x: b.relu(conv(b, x)))
    run_pipeline(module, "pyc-fuse", PassContext())
    before = str(module)
    assert laid_out(module).log == () and str(module) == before


def test_transposes_that_vanish_need_no_convolution():
    def body(b, x):
        return b.transpose(b.exp(b.transpose(x, permutation=TO_LAST)), permutation=TO_FIRST)

    assert check(body) == ["exp"]
    assert check(lambda b, x: b.exp(b.transpose(x, permutation=TO_LAST))) == ["transpose", "exp"]


def test_marks_and_places_are_kept():
    text = """
func.func @main(%x: tensor<1x16x28x28xf32>, %w: tensor<16x16x1x1xf32>) -> tensor<1x16x28x28xf32> {
  %0 = "pyc.conv2d"(%x, %w) {pyc.mark = "here"} : (tensor<1x16x28x28xf32>, tensor<16x16x1x1xf32>) -> tensor<1x16x28x28xf32> loc("model.py":7:3)
  return %0 : tensor<1x16x28x28xf32>
}"""  # noqa: E501
    module = ir.Module.parse(text)
    laid_out(module)
    (made,) = [op for op in ops_of(module) if op.name == "pyc.conv2d"]
    assert ir.StringAttr(made.attributes["pyc.mark"]).value == "here"
    assert str(made.location) == 'loc("model.py":7:3)'


# The choice.


def decided(
    target: Target, dtype: str = "f32", kernels: tuple[str, ...] | None = None
) -> list[tuple[str, str]]:
    """What is chosen by default for two convolutions, and the alternatives."""
    weights = WEIGHTS.astype(DTYPES[dtype])
    image = replace(IMAGE, dtype=weights.dtype)
    module = module_of(lambda b, x: b.conv2d(b.conv2d(x, weights), weights), image)
    choices = Choices()
    Layout().run(
        module, PassContext(choices=choices, target=target, kernels=KernelRules(families=kernels))
    )
    return [(d.chosen, "+".join(a.name for a in d.alternatives)) for d in choices.log]


def test_channels_are_last_where_there_are_kernels():
    for name in ("cpu", "cpu-avx2", "cpu-avx512", "cpu-neon"):
        assert decided(Target.named(name)) == [(CHANNELS_LAST, "NHWC+keep")]
    narrow = replace(Target.named("cpu"), vector_bytes=16)
    for target in (Target.named("cuda"), Target.named("vulkan"), narrow):
        assert decided(target) == [(KEEP, "keep+NHWC")]
    assert decided(Target.named("cpu"), "f16") == [(CHANNELS_LAST, "NHWC+keep")]
    assert decided(Target.named("cpu"), "f64") == [(KEEP, "keep+NHWC")]
    for families in ((), ("gemm",)):
        assert decided(Target.named("cpu"), kernels=families) == [(KEEP, "keep+NHWC")]
    assert decided(Target.named("cpu"), kernels=("conv",)) == [(CHANNELS_LAST, "NHWC+keep")]


def test_a_cheap_convolution_between_large_images_is_kept():
    def body(b, x):
        return b.conv2d(x, np.ones((1, 3, 1, 1), np.float32))

    module = module_of(body, tensor("f32", 8, 3, 512, 512))
    assert [d.chosen for d in laid_out(module, Choices().policy).log] == [KEEP]


def test_choices_replay_and_reasons_are_told():
    def body(b, x):
        return b.matmul(conv(b, x), np.ones((28, 4), np.float32)), conv(b, b.relu(conv(b, x)))

    first, second, replay = module_of(body), module_of(body), module_of(body)
    log = laid_out(first).log
    assert laid_out(second).log == log
    assert {a.name: a.reason for a in log[0].alternatives} == {
        "NHWC": "1 convolutions and poolings, 2 transposes of 100352 bytes",
        "keep": "1 convolutions and poolings, 0 transposes of 0 bytes",
    }
    assert all(a.cost is not None and a.cost.seconds > 0 for d in log for a in d.alternatives)
    choices = Choices(recipe=Recipe.from_log(log))
    run_pipeline(replay, "pyc-layout", PassContext(choices=choices))
    choices.require_recipe_used()
    assert str(first) == str(second) == str(replay)


def test_a_target_of_the_pass_wins_and_must_exist():
    choices = Choices()
    run_pipeline(module_of(conv), "pyc-layout{target=vulkan}", PassContext(choices=choices))
    assert [d.chosen for d in choices.log] == [KEEP]
    with pytest.raises(PycError, match="expected one of") as caught:
        Layout(target="tpu")
    assert caught.value.code is ReasonCode.INVALID_PIPELINE


@pytest.mark.parametrize("seed", range(20))
def test_orders_compose(seed):
    random = Random(seed)
    have, need = (tuple(random.sample(range(4), 4)) for _ in "ab")
    x = np.arange(120).reshape(2, 3, 4, 5)
    permutation = between(have, need, 4)
    np.testing.assert_array_equal(x.transpose(have).transpose(permutation), x.transpose(need))
    thin = x[:, :1, :1]
    stored = thin.transpose(have)
    same = np.array_equal(stored.transpose(permutation).reshape(-1), stored.reshape(-1))
    assert moves(stored.shape, permutation) == (not same)
