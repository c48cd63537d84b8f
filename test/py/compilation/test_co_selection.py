"""Kernels and parts chosen together: within the budget, no slower than chosen alone, replayed."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest

from pyc_mlir import nn
from pyc_mlir.api import build, compile
from pyc_mlir.artifact.artifact import Artifact, to_bytes
from pyc_mlir.artifact.compile_log import read_compile_log
from pyc_mlir.compilation.options import make_options
from pyc_mlir.debug.replay import replay
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.iree.memory.budget import BudgetNotKept
from pyc_mlir.pipelines.choices.choices import FirstIsBest, Recipe
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program

KERNELS = "pyc-select-kernels"
# Winograd's kernels need vectors of 8 numbers or more.
TARGET = "cpu-avx2"


@dataclass(frozen=True)
class Alone(FirstIsBest):
    """As the default, with kernels chosen alone under a budget too."""

    name: str = "alone"
    co_selects: ClassVar[bool] = False


@cache
def network() -> tuple[Callable[[Any], Any], np.ndarray]:
    """Five 3x3 convolutions on few pixels, and a product that pads its panel."""
    rng, sizes = np.random.default_rng(0), (16, 16, 16, 16, 24, 24)
    weights = [
        rng.normal(0, (9 * a) ** -0.5, (3, 3, a, b)).astype(np.float32) for a, b in pairwise(sizes)
    ]
    last = rng.normal(0, 0.1, (24, 10)).astype(np.float32)

    def net(x: Any) -> Any:
        for w in weights:
            x = nn.relu(nn.conv2d(x, w, pads=1, layout="NHWC"))
        return x.reshape(-1, 24) @ last

    return net, rng.normal(size=(1, 12, 12, 16)).astype(np.float32)


@cache
def built(total: int | None = None, alone: bool = False, kernels: str = "all") -> Artifact:
    net, x = network()
    contract = Contract(memory_budget_bytes=total)
    policy = Alone() if alone else None
    options = make_options(target=TARGET, contract=contract, policy=policy, kernels=kernels)
    return build(net, [x], options)


def needed(artifact: Artifact) -> int:
    total = artifact.account.total()
    assert total is not None
    return total


@cache
def budgets() -> tuple[int, ...]:
    """Between the least that is known to do and what the quickest kernels take."""
    small, large = needed(built(kernels="iree")), needed(built())
    assert small < large
    return tuple(small + (large - small) * i // 4 for i in (1, 2, 3))


def seconds(artifact: Artifact) -> float:
    """The sum over the sites of what was chosen there."""
    found = 0.0
    for decision in artifact.decisions:
        if decision.site.pass_name == KERNELS:
            costs = {a.name: a.cost for a in decision.alternatives}
            cost = costs[decision.chosen]
            assert cost is not None
            found += cost.seconds
    return found


def way(artifact: Artifact) -> str:
    return next(d.chosen for d in artifact.decisions if d.site.key == "budget:module")


@pytest.mark.parametrize("number", range(3))
@pytest.mark.full
def test_within_the_budget_and_no_slower_than_alone(number):
    total = budgets()[number]
    kept, alone = built(total), built(total, alone=True)
    assert way(kept) == "co-selected" and way(alone) != "co-selected"
    assert needed(kept) <= total and needed(alone) <= total
    assert seconds(kept) <= seconds(alone)
    if number == 2:
        assert seconds(kept) < 0.95 * seconds(alone)


def test_the_device_never_holds_more():
    net, x = network()
    total = budgets()[1]
    device = Device("local-sync")
    contract = Contract(memory_budget_bytes=total)
    made = {"target": TARGET, "contract": contract}
    program = compile(net, [x], device=device, cache=False, **made)
    given = to_device(x, device)
    for _ in range(2):
        found = np.asarray(program(given))
    assert device.memory().peak_bytes <= total
    expected = np.asarray(Program(built(kernels="iree"), Device("local-sync"))(x))
    assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.full
def test_the_log_says_what_was_given_up():
    kept = built(budgets()[1])
    changed = [d for d in kept.decisions if d.decided_by == "co-selection"]
    assert changed and all(
        any("bytes of constants" in str(fact) for fact in d.grounds) for d in changed
    )
    decision = next(d for d in kept.decisions if d.site.key == "budget:module")
    assert any("a megabyte worth" in str(fact) for fact in decision.grounds)


@pytest.mark.full
def test_equal_compiles_and_replays_have_equal_bytes(tmp_path):
    total, (net, x) = budgets()[1], network()
    kept = built(total)
    contract = Contract(memory_budget_bytes=total)
    make = partial(make_options, target=TARGET, contract=contract)
    assert to_bytes(build(net, [x], make())) == to_bytes(kept)
    again = build(net, [x], make(recipe=Recipe.from_log(kept.decisions)))
    assert to_bytes(again) == to_bytes(kept)
    path = tmp_path / "net.vmfb"
    path.write_bytes(to_bytes(kept))
    assert to_bytes(replay(net, [x], read_compile_log(path))) == to_bytes(kept)


@pytest.mark.full
def test_a_budget_that_nothing_keeps_is_refused_with_one_that_is_kept():
    with pytest.raises(BudgetNotKept) as caught:
        built(needed(built(kernels="iree")) // 2)
    assert needed(built(caught.value.smallest)) <= caught.value.smallest


@pytest.mark.full
def test_a_contract_that_bounds_the_error_gets_no_other_sums():
    """Minimal filtering adds other numbers than the plain form."""
    net, x = network()
    contract = Contract(memory_budget_bytes=budgets()[2], max_error=1e-3)
    kept = build(net, [x], make_options(target=TARGET, contract=contract))
    assert not any(d.chosen.startswith("winograd") for d in kept.decisions)


@pytest.mark.full
def test_dynamic_sizes_are_kept_by_the_other_ways():
    weights = np.ones((784, 10), np.float32)

    def made(total: int | None, kernels: str = "all") -> Artifact:
        contract = Contract(memory_budget_bytes=total)
        options = make_options(
            target=TARGET,
            contract=contract,
            kernels=kernels,
            dims={"n": (1, 8)},
        )
        return build(lambda x: x @ weights, [TensorSpec("f32", "n", 784)], options)

    padded, plain = (made(None, k).account.total() or 0 for k in ("all", "iree"))
    kept = made((plain + padded) // 2)
    assert way(kept) == "memory_first, IREE's code"


def test_nothing_is_searched_where_a_recipe_decides():
    kept = built(budgets()[1])
    recipe = Recipe.from_log(kept.decisions)
    wrong = {k: v for k, v in recipe.choices.items() if k != "budget:module"}
    net, x = network()
    contract = Contract(memory_budget_bytes=1 << 30)
    with pytest.raises(PycError):
        options = make_options(target=TARGET, contract=contract, recipe=Recipe({"no": "site"}))
        build(net, [x], options)
    free = make_options(target=TARGET, contract=contract, recipe=Recipe(wrong, tolerant=True))
    assert way(build(net, [x], free)) == "balanced"
