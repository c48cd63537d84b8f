"""A budget is kept, measured on the device, or refused with the smallest one that can be."""

import math
import random
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from conftest import FULL
from stream_programs import LOOP, Program, bits, branches, chain, layered

from pyc_mlir.api import build, compile
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.compilation.build import PlannedProgram, plan_only
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.python.specs import TensorSpec
from pyc_mlir.iree.memory.budget import (
    BudgetNotKept,
    ByteBudget,
    NeedAtOnce,
    Shares,
    SmallestProgram,
    squeeze,
)
from pyc_mlir.pipelines.choices.choices import Decision, Recipe
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.tools.demo.digits import MODELS

WEIGHTS = np.arange(32, dtype=np.float32)
REFUSALS = (ReasonCode.BUDGET_IMPOSSIBLE, ReasonCode.BUDGET_NOT_FOUND)


def contract(total: int, **clauses) -> Contract:
    return Contract(memory_budget_bytes=total, **clauses)


@cache
def planned(code: bytes, mode: str) -> PlannedProgram:
    """The program's plan in a mode without a budget."""
    return plan_of(code.decode(), None, planner_mode=mode)


def plan_of(source: Any, inputs: Any, **asked: Any) -> PlannedProgram:
    """What a compile would plan."""
    options = make_options(**asked)
    return plan_only(lower(Job.of(source, inputs, options)), options)


def needed(program: Program, mode: str = "balanced") -> int:
    """Bytes that the program needs in a mode without a budget."""
    total = planned(program.code, mode).account.total()
    assert total is not None
    return total


def measured(program: Program, promise: Contract, mode: str = "") -> tuple[list[bytes], int]:
    """The results under a contract, and the peak of the device from load to the second call."""
    device = Device("local-sync")
    compiled = compile(program.code.decode(), contract=promise, device=device, planner_mode=mode)
    inputs = [to_device(a, device) for a in program.inputs()]
    for _ in range(2):
        found = bits(compiled(*inputs))
    return found, device.memory().peak_bytes


PROGRAMS = [branches(), branches(4, regions=2), chain(), *map(layered, range(8))]
PROGRAMS += [layered(seed, barriers=2, ops=16) for seed in range(4)]


@pytest.mark.parametrize("seed", range(60 if FULL else 2))
@pytest.mark.full
def test_a_budget_is_kept_or_refused_with_one_that_is_kept(seed):
    # Not in order: also a few seeds take programs of every kind.
    rng = random.Random(seed)
    program = PROGRAMS[seed * 4 % len(PROGRAMS)]
    total = int(needed(program) * rng.uniform(0.4, 1.2))
    try:
        kept = measured(program, contract(total))
    except BudgetNotKept as refused:
        assert refused.code in REFUSALS and refused.smallest > total
        # What the refusal names is kept.
        total, kept = refused.smallest, measured(program, contract(refused.smallest))
    results, peak = kept
    assert peak <= total
    plain = compile(program.code.decode(), device=Device("local-sync"), planner_mode="iree")
    assert results == bits(plain(*program.inputs()))


@pytest.mark.full
def test_concurrent_calls_count_an_arena_each():
    program = branches()
    one = planned(program.code, "").account
    assert one.transients
    total = one.total(2)
    assert total is not None and total == one.transients + (one.total() or 0)
    assert measured(program, contract(total, max_concurrency=2))[1] <= total
    with pytest.raises(BudgetNotKept, match=r"arena 2 x \d+; give it \d+ bytes"):
        measured(program, contract((one.total() or 0) - 1, max_concurrency=2))


def test_what_a_budget_costs_is_told_beside_further_modes_as_without():
    def slower(*also: str) -> float:
        options = make_options(contract=contract(100), planner_mode="memory_first", also_modes=also)
        with pytest.raises(BudgetNotKept) as caught:
            build(chain().code.decode(), None, options)
        return caught.value.need.slower

    assert slower("balanced") == pytest.approx(slower(), abs=1e-6)


def test_a_budget_that_does_not_hold_what_is_fixed_is_impossible():
    with pytest.raises(PycError) as caught:
        measured(branches(), contract(100))
    assert caught.value.code is ReasonCode.BUDGET_IMPOSSIBLE


@pytest.mark.full
def test_a_budget_that_one_mode_refuses_is_kept_with_the_parts_of_another():
    """`pyc-chunk` cuts the network's images into groups, in `memory_first` into smaller ones."""

    def built(total: int, mode: str = "", recipe: Recipe | None = None) -> Artifact:
        options = make_options(contract=contract(total), planner_mode=mode, recipe=recipe)
        return build(MODELS["cnn"], [(64, 1, 8, 8)], options)

    def needs(mode: str) -> int:
        return plan_of(MODELS["cnn"], [(64, 1, 8, 8)], planner_mode=mode).account.total() or 0

    small, large = needs("memory_first"), needs("balanced")
    assert small < large
    kept = built((small + large) // 2)
    assert (kept.account.total() or 0) <= (small + large) // 2
    decision = next(d for d in kept.decisions if d.site.key == "budget:module")
    assert (decision.chosen, decision.decided_by) == ("memory_first", "fallback")
    again = built((small + large) // 2, recipe=Recipe.from_log(kept.decisions))
    assert (again.vmfb, again.decisions) == (kept.vmfb, kept.decisions)
    with pytest.raises(BudgetNotKept) as caught:
        built(kept.account.constants or 0)
    assert caught.value.smallest <= small and caught.value.need.slower > 0
    assert built(caught.value.smallest).account.total() == caught.value.smallest


@pytest.mark.full
def test_a_budget_without_room_for_padded_weights_is_kept_by_irees_code():
    """The kernels' panels pad 10 columns to 16, IREE's code takes the weights as they are."""
    weights = np.ones((784, 10), np.float32)

    source, inputs = lambda x: x @ weights, [TensorSpec("f32", 8, 784)]

    def built(total: int) -> Artifact:
        return build(source, inputs, make_options(contract=contract(total)))

    padded, plain = (
        plan_of(source, inputs, kernels=k).account.total() or 0 for k in ("all", "iree")
    )
    assert plain < padded
    kept = built((plain + padded) // 2)
    assert (kept.account.total() or 0) <= (plain + padded) // 2
    decision = next(d for d in kept.decisions if d.site.key == "budget:module")
    assert decision.chosen == "memory_first, IREE's code"
    with pytest.raises(BudgetNotKept) as caught:
        built(plain - 1)
    assert caught.value.smallest <= plain


def test_unknown_sizes_are_refused_by_name():
    with pytest.raises(PycError, match=r"got none of `arg0\[0\]` .*static shapes") as caught:
        build(branches(rows=None).code.decode(), None, make_options(contract=contract(1 << 30)))
    assert caught.value.code is ReasonCode.BUDGET_NOT_FOUND


def test_a_budget_needs_a_planner():
    with pytest.raises(PycError, match=r"planner mode of .*balanced.*, got 'iree'"):
        make_options(contract=contract(1 << 20), planner_mode="iree")


def test_the_allowance_is_what_the_fixed_parts_leave():
    budget = ByteBudget(1000, inputs=100, concurrency=3)
    assert budget.allowance(100, 200) == 200
    assert budget.needed(SmallestProgram(100, 200, 200, 1.0, 1.0)) == 1000
    with pytest.raises(PycError, match="unknown constants"):
        budget.allowance(None, 200)
    assert replace(budget, total=300).allowance(100, 200) < 0


def test_regions_share_and_the_largest_is_squeezed_first():
    shares, requested = Shares(100, {0: 30, 1: 90, 2: 40}), []

    def within(region: int, size: int) -> int:
        requested.append((region, size))
        return max(size, 45)

    squeeze(shares, [0, 1, 2], within)
    assert requested == [(1, 30), (2, 25), (0, 15)]
    assert shares.smallest == {0: 30, 1: 45, 2: 40} and shares.spare == -15
    fits = Shares(100, {0: 30, 1: 90})
    squeeze(fits, [0, 1], lambda region, size: size)
    assert fits.smallest == {0: 30, 1: 70} and fits.allowed(0) == 30
    fits.take(0, 20)
    assert fits.allowed(1) == 80


def test_regions_that_are_not_there_at_once_share_nothing():
    times = (
        NeedAtOnce(10, frozenset({0})),
        NeedAtOnce(25, frozenset({1})),
        NeedAtOnce(0, frozenset()),
    )
    shares, requested = Shares(100, {0: 80, 1: 90}, times), []
    assert shares.needed == 115 and shares.spare == -15
    assert shares.allowed(0) == 90 and shares.allowed(1) == 75

    def within(region: int, size: int) -> int:
        requested.append((region, size))
        return size

    squeeze(shares, [0, 1], within)
    assert requested == [(1, 75)] and shares.spare == 0
    assert Shares(100, {}, (NeedAtOnce(-20, frozenset()),)).needed == 0


@pytest.mark.parametrize("regions", [2, 3])
@pytest.mark.full
def test_regions_one_after_the_other_are_counted_by_what_is_there_at_once(regions):
    """The arenas of all regions would be about twice what one call ever has at once."""
    program = branches(4, regions=regions)
    total = needed(program)
    plans = [a for d in compile_decisions(program) for a in d.alternatives if a.name == d.chosen]
    arenas = sum(plan.cost.workspace_bytes for plan in plans if plan.cost is not None)
    results, peak = measured(program, contract(total))
    assert peak <= total < sum(4 * math.prod(s) for s in program.shapes) + arenas
    plain = compile(program.code.decode(), device=Device("local-sync"), planner_mode="iree")
    assert results == bits(plain(*program.inputs()))
    with pytest.raises(BudgetNotKept) as caught:
        measured(program, contract(total // 2))
    smallest = caught.value.smallest
    assert total // 2 < smallest <= total
    assert measured(program, contract(smallest))[1] <= smallest
    with pytest.raises(BudgetNotKept):
        measured(program, contract(smallest - 1))


def compile_decisions(program: Program) -> list[Decision]:
    """What was decided for each region of `main`."""
    made = planned(program.code, "").decisions
    return [d for d in made if d.site.pass_name == "plan-memory"]


@pytest.mark.full
def test_regions_at_once_are_squeezed_until_they_fit():
    """The larger region alone decides, and the others keep their plans."""
    program = branches(4, regions=2)
    few, many = (needed(program, mode) for mode in ("memory_first", "iree"))
    for total in (few, (few + many) // 2, many):
        assert measured(program, contract(total), "latency_first")[1] <= total


def test_what_control_flow_allocates_is_refused():
    with pytest.raises(PycError, match="control flow decides") as caught:
        build(LOOP.decode(), None, make_options(contract=contract(1 << 30)))
    assert caught.value.code is ReasonCode.BUDGET_NOT_FOUND


def test_copies_of_what_was_there_before_the_call_are_counted():
    """The input itself, and a constant."""

    def same(x):
        return x, x + 1, WEIGHTS

    account = plan_of(same, [TensorSpec("f32", 64)]).account
    assert account.outputs == 2 * 256 + WEIGHTS.nbytes
    total = account.total() or 0
    device = Device("local-sync")
    program = compile(same, [TensorSpec("f32", 64)], contract=contract(total), device=device)
    x = to_device(np.ones(64, np.float32), device)
    for _ in range(2):
        program(x)
    assert device.memory().peak_bytes <= total


@pytest.mark.full
def test_what_is_returned_in_several_shapes_is_counted_as_often():
    def twice(x, y):
        sum_ = x.T + y
        product = sum_ @ y
        return product, product.reshape(256), sum_, product.reshape(4, 64)

    specs = [TensorSpec("f32", 16, 16)] * 2
    account = plan_of(twice, specs, kernels="iree").account
    assert account.outputs == 4 * 1024
    with pytest.raises(BudgetNotKept) as refused:
        build(twice, specs, make_options(contract=contract(1)))
    device = Device("local-sync")
    total = refused.value.smallest
    program = compile(twice, specs, contract=contract(total), device=device)
    inputs = [to_device(np.ones((16, 16), np.float32), device) for _ in specs]
    for _ in range(2):
        program(*inputs)
    assert device.memory().peak_bytes <= total == account.total()


@pytest.mark.full
def test_results_do_not_depend_on_the_mode():
    program = layered(3)
    outputs = {
        mode: measured(program, Contract(), mode)[0]
        for mode in ("latency_first", "balanced", "memory_first", "iree")
    }
    assert len({tuple(o) for o in outputs.values()}) == 1
    assert all(np.frombuffer(o, np.float32).size for o in outputs["iree"])
