"""Random programs pass their own check, which has special values: no false refusal.

Their values leave the range of f16, become subnormal, NaN and infinite; steps are guards against
NaN, conversions to types that do not hold a number, composites that are spelled out, products with
large weights. Nothing is kept well behaved: the tolerances of the self-check must know what is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest
from compiled import OwnKernels
from conftest import FULL
from random_ops import draw_graph

from pyc_mlir import TensorSpec, nn
from pyc_mlir.api import build
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.types import DTYPES, INTEGERS

FLOATS = ("f16", "f16", "bf16", "bf16", "f32", "f64")
FACTORS = (2, 8, 32, 0.5, 0.01, -1, 255, 1000)
Step = Callable[[Any], Any]


@dataclass(frozen=True)
class Chain:
    """A function of one argument, the names of its steps in order."""

    kind: str
    names: tuple[str, ...]
    steps: tuple[Step, ...]
    spec: TensorSpec

    def __call__(self, x: Any) -> Any:
        """Go through the steps."""
        for step in self.steps:
            x = step(x)
        return x

    def __str__(self) -> str:
        return f"{self.spec}: {', '.join(self.names)}"


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _gated(x: Any) -> Any:
    return x * nn.sigmoid(x)


def _steps(random: Random, draw: np.random.Generator, kind: str, n: int) -> dict[str, Step]:
    """Every step, with constants that are drawn anew."""
    dtype = DTYPES[kind]
    zero, one = dtype.type(0), dtype.type(1)
    factor = dtype.type(random.choice(FACTORS))
    size = random.choice((1, 4, 16)) / np.sqrt(n)
    weight = (draw.standard_normal((n, n)) * size).astype(dtype)
    bias = draw.standard_normal(n).astype(dtype)
    integer = random.choice(sorted(INTEGERS, key=str))
    other = DTYPES[random.choice(FLOATS)]
    return {
        "product": lambda x: x @ weight,
        f"times {factor}": lambda x: x * factor,
        "bias": lambda x: x + bias,
        "sigmoid": lambda x: one / (one + np.exp(-x)),
        "silu": lambda x: x * (one / (one + np.exp(-x))),
        "nn.silu": nn.silu,
        "nn.gelu": nn.gelu,
        "nn.gelu of tanh": lambda x: nn.gelu(x, "tanh"),
        "gated product": lambda x: _gated(x @ weight),
        "softmax": _softmax,
        "nn.softmax": nn.softmax,
        "layer norm": lambda x: nn.layernorm(x, np.ones(n, dtype), bias),
        "rms": lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True) + dtype.type(1e-3)),
        "floor": np.floor,
        "ceil": np.ceil,
        "rint": np.rint,
        f"as {integer}": lambda x: x.astype(integer).astype(dtype),
        f"as {other}": lambda x: x.astype(other).astype(dtype),
        "x == x": lambda x: np.where(x == x, x, zero),
        "isnan": lambda x: np.where(np.isnan(x), one, x),
        "fmax": lambda x: np.fmax(x, zero),
        "maximum": lambda x: np.maximum(x, x.mean(-1, keepdims=True)),
        "condition": lambda x: np.where(x > dtype.type(0.5), x * dtype.type(2), -x),
        "exp": np.exp,
        "expm1": np.expm1,
        "tanh": np.tanh,
        "log": lambda x: np.log(np.abs(x) + one),
        "sqrt": lambda x: np.sqrt(np.abs(x)),
        "reciprocal": lambda x: one / x,
        "square": lambda x: x * x,
        "nn.relu": nn.relu,
    }


def draw_chain(seed: int) -> Chain:
    """A chain of two to seven steps; one in four has a dynamic number of rows."""
    random, draw = Random(seed), np.random.default_rng(seed)
    kind, n = random.choice(FLOATS), random.choice((8, 16, 33))
    chosen: list[tuple[str, Step]] = []
    for _ in range(random.randint(2, 7)):
        chosen.append(random.choice(list(_steps(random, draw, kind, n).items())))
    names, steps = tuple(name for name, _ in chosen), tuple(step for _, step in chosen)
    rows = "rows" if seed % 4 == 1 else random.choice((1, 4, 7))
    return Chain(kind, names, steps, TensorSpec(kind, rows, n))


COUNT = 240 if FULL else 3


def refusal(seed: int, source: Any, inputs: Any) -> str:
    """Return the self-check's complaint about a program, with PyC's own kernels now and then."""
    options = make_options(check=True, policy=OwnKernels() if seed % 3 == 0 else None)
    try:
        made = build(source, inputs, options)
    except PycError as error:
        return f"seed {seed}: {source}: {error}"
    assert made.checks is not None and made.checks.check is not None
    function = made.checks.check.function
    return "" if not function or "agrees with 3 of 3" in function else f"seed {seed}: {function}"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("batch", range(3))
def test_no_chain_is_refused(batch: int):
    chains = {seed: draw_chain(seed) for seed in range(batch, COUNT, 3)}
    found = [refusal(seed, chain, [chain.spec]) for seed, chain in chains.items()]
    assert not any(found), "\n".join(found)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("batch", range(3))
def test_no_graph_is_refused(batch: int):
    found = []
    with new_context(), ir.Location.unknown():
        for seed in range(batch, COUNT, 3):
            graph = draw_graph(Random(seed), dynamic=seed % 2 == 1)
            found.append(refusal(seed, graph.module(), None))
    assert not any(found), "\n".join(found)


def test_chains_have_every_step_and_type():
    chains = [draw_chain(seed) for seed in range(200)]
    assert {c.kind for c in chains} == {"f16", "bf16", "f32", "f64"}
    assert len({name for c in chains for name in c.names}) > 31
