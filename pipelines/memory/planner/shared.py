"""The plans of one compile: a problem is planned once, whoever has it.

A compiled module has several entries that differ in what their callers own, and it may be tried in
several ways. So problems are compared reduced to what a plan depends on (reduced.py), and a plan
that is there is carried over to the problem at hand, and checked against it.
"""

from collections.abc import Callable, Hashable, Sequence

from pyc_mlir.pipelines.memory.planner.planner import (
    BudgetRefused,
    PlannerMode,
    plan,
    plan_in_waves,
)
from pyc_mlir.pipelines.memory.planner.problem import Plan, Problem
from pyc_mlir.pipelines.memory.planner.reduced import Reduced
from pyc_mlir.pipelines.memory.planner.validate import validate


class SharedPlans:
    """Plans as `planner.plan` and `plan_in_waves` make them, remembered by what they depend on."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Plan | BudgetRefused] = {}

    def plan(
        self, problem: Problem, *, mode: str | PlannerMode = "balanced", budget: int | None = None
    ) -> Plan:
        """A plan of `problem` in a mode, or within a budget. Raises as `planner.plan`."""
        key = (mode, budget)
        return self._carried(problem, key, lambda p: plan(p, mode=mode, budget=budget))

    def in_waves(self, problem: Problem, waves: Sequence[Sequence[int]]) -> Plan:
        """A given schedule with reuse and offsets. Raises as `plan_in_waves`."""
        key = tuple(map(tuple, waves))
        return self._carried(problem, key, lambda p: plan_in_waves(p, waves))

    def _carried(self, problem: Problem, key: Hashable, planned: Callable[[Problem], Plan]) -> Plan:
        problem.check()
        reduced = Reduced.of(problem)
        known = self._known.get((reduced.problem, key))
        if known is None:
            known = self._known[reduced.problem, key] = _outcome(reduced.problem, planned)
        if isinstance(known, BudgetRefused):
            raise known.with_traceback(None)
        carried = reduced.carried(known)
        validate(problem, carried)
        return carried


def _outcome(problem: Problem, planned: Callable[[Problem], Plan]) -> Plan | BudgetRefused:
    try:
        return planned(problem)
    except BudgetRefused as refused:
        return refused
