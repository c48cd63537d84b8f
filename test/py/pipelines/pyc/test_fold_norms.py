"""pyc-fold-norms: scales behind convolutions go into their weights, within rounding."""

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
from compiled import add_function, assert_close
from conftest import FULL
from conv_nets import draw_network
from op_modules import computing as names

from pyc_mlir import nn
from pyc_mlir.api import compile
from pyc_mlir.artifact.test_vectors import ExpectedResult, compare
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.numerics.uncertain import interpret_uncertain
from pyc_mlir.dialects.types import TensorType, tensor
from pyc_mlir.pipelines.choices.choices import Choices, Recipe
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.pyc.fold_norms import FoldNorms
from pyc_mlir.runtime.device import Device

NETWORKS = 600 if FULL else 40
BEFORE = "pyc-decompose{only=batchnorm},pyc-canonicalize"
IMAGE = tensor("f32", None, 3, 8, 8)
rng = np.random.default_rng(0)
WEIGHTS = rng.normal(0, 1, (4, 3, 3, 3)).astype(np.float32)
SCALE, BIAS, MEAN = (rng.normal(0, 1, 4).astype(np.float32) for _ in "abc")
VARIANCE = rng.uniform(0.1, 2, 4).astype(np.float32)
FACTOR = SCALE.reshape(4, 1, 1)


@pytest.fixture(autouse=True)
def context():
    with new_context() as made, ir.Location.unknown():
        yield made


def module_of(body: Callable[..., Any], image: TensorType = IMAGE) -> ir.Module:
    module = ir.Module.create()
    add_function(module, "main", [image], body)
    run_pipeline(module, BEFORE, PassContext())
    return module


def folded(module: ir.Module) -> Choices:
    """Run the pass and say what it chose; the module stays valid."""
    choices = Choices()
    run_pipeline(module, "pyc-fold-norms", PassContext(choices=choices))
    assert module.operation.verify()
    return choices


def conv(b: Any, x: Any) -> Any:
    return b.conv2d(x, WEIGHTS)


def norm(b: Any, x: Any, axis: int = 1) -> Any:
    return b.batchnorm(x, SCALE, BIAS, MEAN, VARIANCE, axis=axis)


def last(b: Any, x: Any) -> Any:
    """The same in NHWC."""
    stored = b.transpose(x, permutation=(0, 2, 3, 1))
    return norm(b, b.conv2d(stored, WEIGHTS.transpose(2, 3, 1, 0), layout="NHWC"), axis=3)


def standardized(b: Any, x: Any) -> Any:
    """As some exporters write it, behind a bias."""
    biased = b.add(conv(b, x), BIAS.reshape(1, 4, 1, 1))
    deviation = np.sqrt(VARIANCE).reshape(1, 4, 1, 1)
    centered = b.div(b.sub(biased, MEAN.reshape(4, 1, 1)), deviation)
    return b.add(b.mul(centered, FACTOR), b.scalar(0.5, x))


FOLDED: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "batch norm": (lambda b, x: norm(b, conv(b, x)), ["conv2d", "add"]),
    "batch norm in NHWC": (last, ["transpose", "conv2d", "add"]),
    "written out": (standardized, ["conv2d", "add"]),
    "scale alone": (lambda b, x: b.mul(conv(b, x), b.scalar(3.0, x)), ["conv2d"]),
    "one minus": (
        lambda b, x: b.mul(b.sub(b.scalar(1.0, x), conv(b, x)), FACTOR),
        ["conv2d", "add"],
    ),
    "two in a row": (
        lambda b, x: norm(b, b.conv2d(norm(b, conv(b, x)), WEIGHTS[:, :1].repeat(4, 1))),
        ["conv2d", "add", "conv2d", "add"],
    ),
    "then an activation": (lambda b, x: b.relu(norm(b, conv(b, x))), ["conv2d", "add", "relu"]),
}


@pytest.mark.parametrize("name", FOLDED)
def test_scales_go_into_the_weights(name):
    body, left = FOLDED[name]
    module = module_of(body)
    x = rng.normal(0, 1, (2, 3, 8, 8)).astype(np.float32)
    (want,) = interpret(module, [x])
    assert all(d.chosen == "fold" for d in folded(module).log)
    assert names(module) == left
    (got,) = interpret(module, [x])
    assert_close(got, want, name, scale=4.0)
    assert FoldNorms().run(module, PassContext()) == {"folded": 0}


def twice(b: Any, x: Any) -> Any:
    y = conv(b, x)
    return b.add(norm(b, y), y)


TINY = np.full((4, 1, 1), 1e-38, np.float32)
KEPT: dict[str, Callable[..., Any]] = {
    "sums only": lambda b, x: b.sub(b.add(conv(b, x), FACTOR), b.scalar(1.0, x)),
    "a norm before": lambda b, x: conv(
        b, b.batchnorm(x, *(np.ones(3, np.float32) * 0.5 for _ in range(4)), axis=1)
    ),
    "needed elsewhere": twice,
    "a factor along the width": lambda b, x: b.mul(conv(b, x), np.arange(6, dtype=np.float32)),
    "a computed factor": lambda b, x: b.mul(
        conv(b, x), b.reduce_mean(conv(b, x), axes=(2, 3), keepdims=True)
    ),
    "a quotient": lambda b, x: b.div(b.scalar(1.0, x), conv(b, x)),
    "weights that vanish": lambda b, x: b.mul(conv(b, x), TINY),
    "weights that overflow": lambda b, x: b.mul(conv(b, x), np.full((4, 1, 1), 3e38, np.float32)),
    "an activation between": lambda b, x: norm(b, b.relu(conv(b, x))),
}


@pytest.mark.parametrize("name", KEPT)
def test_what_is_not_exact_or_needed_elsewhere_stays(name):
    module = module_of(KEPT[name])
    before = str(module)
    assert folded(module).log == () and str(module) == before


def test_weights_of_16_bits_stay():
    module = module_of(
        lambda b, x: b.mul(b.conv2d(x, WEIGHTS.astype(np.float16)), b.scalar(2.0, x)),
        tensor("f16", 1, 3, 8, 8),
    )
    assert folded(module).log == ()


def test_a_recipe_may_refuse_it():
    module, kept = (module_of(lambda b, x: norm(b, conv(b, x))) for _ in "ab")
    (decision,) = folded(module).log
    assert [(a.name, a.reason) for a in decision.alternatives] == [
        ("fold", "products are rounded before the sum"),
        ("keep", "mul+add behind the convolution"),
    ]
    before = str(kept)
    choices = Choices(recipe=Recipe({decision.site.key: "keep"}))
    run_pipeline(kept, "pyc-fold-norms", PassContext(choices=choices))
    assert str(kept) == before


def test_differences_are_within_the_tolerance_of_rounding():
    """What `max_error = rounding` allows, element by element."""
    count = 0
    for seed in range(NETWORKS):
        network = draw_network(Random(seed))
        module = network.module()
        run_pipeline(module, BEFORE, PassContext())
        known = interpret_uncertain(module, network.inputs)
        count += len(folded(module).log)
        got = interpret(module, network.inputs)
        expected = [ExpectedResult(u.value, u.tolerance) for u in known]
        assert compare(got, expected).worst <= 1, f"seed {seed}"
    assert count >= NETWORKS // 10


def test_a_compile_that_compares_with_the_reference_folds():
    def model(x):
        y = nn.batchnorm(nn.conv2d(x, WEIGHTS), SCALE, BIAS, MEAN, VARIANCE)
        return nn.relu(y)

    x = rng.normal(0, 1, (1, 3, 8, 8)).astype(np.float32)
    contract = Contract(max_error="rounding")
    program = compile(model, [x], device=Device("local-sync"), contract=contract)
    chosen = {d.site.pass_name: d.chosen for d in program.artifact.decisions}
    assert chosen["pyc-fold-norms"] == "fold" and "pyc-layout" in chosen
    assert np.asarray(program(x)).shape == (1, 4, 6, 6)
