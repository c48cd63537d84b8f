"""The planner: order, reuse, recomputation and offsets together, for a mode or a budget.

Comes in: a `PlanningProblem`. Goes out: a validated `SchedulePlan`, never with a larger arena than
the problem's own order needs at the same concurrency. An order is searched for, results take over
dying operands, storages are packed; where the arena stays above the live bytes, other choices of
reuse and orders of the same peak are packed too. Recomputation starts from the best order, lowers
its peak step by step, and the longer sequence is ordered and packed again. All searches stop on
work limits, so the same arguments give the same plan; more work only adds candidates."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import fsum

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.memory.planner.place import numbered, of_plan, place
from pyc_mlir.pipelines.memory.planner.problem import (
    Expansion,
    Instance,
    PlanningProblem,
    SchedulePlan,
)
from pyc_mlir.pipelines.memory.planner.remat import Recomputed, peak_of, sweep, taken_back
from pyc_mlir.pipelines.memory.planner.schedule import Schedule, schedule, schedules
from pyc_mlir.pipelines.memory.planner.storage import (
    choose_reuse,
    group,
    profile,
    storages,
    tied_groups,
    wave_profile,
)
from pyc_mlir.pipelines.memory.planner.validate import validate

# Work by default: this, and more for more than 500 tasks.
DEFAULT_WORK = 160_000
WORK_PER_TASK = DEFAULT_WORK // 500
# Work of the order searches: those up to the limit run, so more work keeps every candidate.
RUNGS = (1, 10_000, 40_000, 160_000, 640_000, 2_560_000)
# The rungs whose orders recomputation starts from, how many expansions each sweep may evaluate,
# and the work of ordering the steps again.
RECOMPUTE_RUNGS = (1, 40_000, 640_000)
EVALUATIONS = 80
REORDER_WORK = 40_000
ROUNDS = 3
# Packing every candidate, those that may still become the best, and at last the best one.
QUICK_WORK = 10_000
PACK_WORK = 40_000
LAST_WORK = 400_000
FRONTIER_POINTS = 16


@dataclass(frozen=True)
class PlannerMode:
    """The trade-off of a planner.

    overlap: "full" fills waves within what the problem's own order needs as a sequence without
        reuse, "free" only where the arena does not grow, "none" makes a sequence.
    slowdown: added seconds that recomputation may cost without a budget, as a share.
    """

    name: str
    overlap: str
    slowdown: float = 0.0

    def rank(self, plan: SchedulePlan) -> tuple[float, float]:
        """Return the key that the mode minimizes."""
        if self.overlap == "full":
            return plan.seconds, plan.arena_bytes
        return plan.arena_bytes, plan.seconds


MODES = {
    mode.name: mode
    for mode in (
        PlannerMode("latency_first", overlap="full"),
        PlannerMode("balanced", overlap="free"),
        PlannerMode("memory_first", overlap="none", slowdown=0.08),
    )
}


class BudgetRefused(PycError):
    """No plan within the budget: `smallest` bytes were possible, at `seconds` predicted.

    The code says whether that no plan exists has been proven.
    """

    def __init__(self, budget: int, smallest: SchedulePlan, bound: int, slowdown: float) -> None:
        proven = budget < bound
        self.smallest, self.seconds, self.bound = smallest.arena_bytes, smallest.seconds, bound
        super().__init__(
            ReasonCode.BUDGET_IMPOSSIBLE if proven else ReasonCode.BUDGET_NOT_FOUND,
            f"memory plan: expected an arena of at most {budget} bytes"
            + (f" at most {slowdown:.0%} slower, " if slowdown < float("inf") else ", ")
            + (f"got a program that needs {bound}" if proven else "found none")
            + f"; the smallest budget found to be kept is {self.smallest} bytes, "
            f"at {self.seconds:.3g} s predicted",
        )


def plan(
    problem: PlanningProblem,
    *,
    mode: str | PlannerMode = "balanced",
    budget: int | None = None,
    slowdown: float | None = None,
    work_limit: int | None = None,
) -> SchedulePlan:
    """Plan `problem` as `mode` prefers, with an arena of at most `budget` bytes if one is given.

    A budget is kept at the fewest added seconds found: first without recomputation, then with it,
    whatever the mode. `slowdown` bounds the added seconds as a share (0.1: at most 10% more than
    every task once); without it a mode's own bound holds, and a budget knows none. A unit of work
    is one task looked at, about two microseconds.
    Raises BudgetRefused, or PycError (BAD_ARGUMENT) for a malformed problem or argument.
    """
    found = _Planner(problem, mode_named(mode), slowdown, work_limit)
    answer = found.best() if budget is None else found.within(budget)
    validate(problem, answer)
    return answer


def plan_in_waves(problem: PlanningProblem, waves: Sequence[Sequence[int]]) -> SchedulePlan:
    """Plan reuse and offsets for a given schedule, waves of task numbers.

    Raises PycError (BAD_ARGUMENT) for a malformed problem or waves that are none of it.
    """
    problem.check()
    expansion = Expansion.of(problem, [t for wave in waves for t in wave])
    places = numbered(waves)
    reused = choose_reuse(expansion.derived, places)
    found = place(expansion, places, reused, work_limit=LAST_WORK)
    validate(problem, found)
    return found


def frontier(
    problem: PlanningProblem,
    *,
    mode: str | PlannerMode = "balanced",
    work_limit: int | None = None,
) -> list[tuple[int, float]]:
    """(arena bytes, predicted seconds) of the plans that no other one beats, fewest bytes first."""
    return _Planner(problem, mode_named(mode), None, work_limit).frontier()


def mode_named(mode: str | PlannerMode) -> PlannerMode:
    """Return the mode of that name. Raises PycError (BAD_ARGUMENT) listing all of them."""
    if isinstance(mode, PlannerMode):
        return mode
    if mode not in MODES:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"planner mode: expected one of {sorted(MODES)}, got {mode!r}"
            f"{did_you_mean(mode, MODES)}",
        )
    return MODES[mode]


class _Planner:
    def __init__(
        self,
        problem: PlanningProblem,
        mode: PlannerMode,
        slowdown: float | None,
        work_limit: int | None,
    ) -> None:
        problem.check()
        if slowdown is not None and slowdown < 0:
            raise PycError(
                ReasonCode.BAD_ARGUMENT, f"slowdown: expected a share of 0 or more, got {slowdown}"
            )
        self.problem, self.mode, self.slowdown = problem, mode, slowdown
        scaled = max(DEFAULT_WORK, WORK_PER_TASK * len(problem.tasks))
        self.work_limit = scaled if work_limit is None else work_limit
        self.start = Expansion.of(problem)
        plain = storages(problem, reuse=False)
        self.plain_peak = profile(plain, range(len(problem.tasks))).peak
        self.bound = storages(problem).lower_bound
        self.plans: list[SchedulePlan] = []
        self.orders = list(self._orders())
        if not any(t.recomputable for t in problem.tasks):
            self.bound = max(self.bound, *(s.lower_bound for _, s in self.orders))

    def best(self) -> SchedulePlan:
        """Return the plan that the mode ranks first."""
        for _, found in reversed(self.orders):
            self._arrange(found)
        slowdown = self.mode.slowdown if self.slowdown is None else self.slowdown
        if slowdown > 0:
            for points in self._sweeps(slowdown):
                *_, last = [None, *points]
                if last:
                    self._take_back(last)
        return self._marked(min(self.plans, key=self.mode.rank))

    def within(self, budget: int) -> SchedulePlan:
        """Return the fastest plan found within `budget` bytes. Raises BudgetRefused without one."""
        self._without_recomputation(budget)
        if not self._fitting(budget):
            for points in self._sweeps(self._free_slowdown()):
                for point in points:
                    if point.peak <= budget:
                        self._take_back(point, budget)
                        self._take_back(point)
                        if self._fitting(budget):
                            break
        if not self._fitting(budget):
            self._spread()
            smallest = self._marked(min(self.plans, key=lambda p: (p.arena_bytes, p.seconds)))
            if smallest.arena_bytes <= budget:
                return smallest
            raise BudgetRefused(budget, smallest, self.bound, self._free_slowdown())
        return self._marked(min(self._fitting(budget), key=lambda p: (p.seconds, p.arena_bytes)))

    def _fitting(self, budget: int) -> list[SchedulePlan]:
        return [p for p in self.plans if p.arena_bytes <= budget]

    def frontier(self) -> list[tuple[int, float]]:
        """Return the points that no other one beats."""
        self._without_recomputation()
        self._spread()
        best: list[tuple[int, float]] = []
        for arena, seconds in sorted((p.arena_bytes, p.seconds) for p in self.plans):
            if not best or seconds < best[-1][1]:
                best.append((arena, seconds))
        return best

    def _spread(self) -> None:
        for points in self._sweeps(self._free_slowdown()):
            found = list(points)
            every = max(1, len(found) // FRONTIER_POINTS)
            for point in found[::-every]:
                self._take_back(point)

    def _free_slowdown(self) -> float:
        return float("inf") if self.slowdown is None else self.slowdown

    def _orders(self) -> Iterator[tuple[int, Schedule]]:
        """(work, order) to start from: the problem's own, then ever smaller peaks."""
        peak = profile(storages(self.problem), range(len(self.problem.tasks))).peak
        yield 0, Schedule(tuple(range(len(self.problem.tasks))), peak, self.bound)
        rungs = [work for work in RUNGS if work <= max(self.work_limit, RUNGS[0])]
        yield from zip(rungs, schedules(self.problem, rungs), strict=True)

    def _without_recomputation(self, budget: int | None = None) -> None:
        for _, found in reversed(self.orders):
            expansion = Expansion.of(self.problem, found.order)
            self._arrange(found)
            self._pack(expansion, found.peak)
            if budget is not None and found.peak <= budget:
                self._overlap(expansion, budget)

    def _arrange(self, found: Schedule) -> None:
        expansion = Expansion.of(self.problem, found.order)
        if self.mode.overlap == "full" and self.problem.concurrency > 1:
            self._overlap(expansion, max(found.peak, self.plain_peak))
        else:
            self._pack(expansion, found.peak)
            self._overlap(expansion, found.peak)

    def _overlap(self, expansion: Expansion, limit: int) -> None:
        """Plan a sequence in waves within `limit` live bytes, which it keeps itself."""
        concurrency = 1 if self.mode.overlap == "none" else self.problem.concurrency
        model = storages(expansion.derived)
        if concurrency > 1:
            waves = group(model, range(len(expansion.steps)), concurrency=concurrency, limit=limit)
            self._pack(expansion, max(wave_profile(model, waves), default=0), waves)

    def _pack(
        self,
        expansion: Expansion,
        peak: int,
        waves: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Plan one schedule: all reuse, and less of it where the offsets do not fit well.

        Left out is what cannot be better than a plan that we have: its live bytes are a bound.
        """
        waves = [(i,) for i in range(len(expansion.steps))] if waves is None else waves
        derived = expansion.derived
        seconds = fsum(max(derived.tasks[i].seconds for i in wave) for wave in waves)
        if self._beaten(peak, seconds):
            return
        found: list[tuple[SchedulePlan, dict[int, int]]] = []
        # All reuse, the reuse that the peak needs, none.
        for above in (None, peak, math.inf):
            reused = choose_reuse(derived, waves, above=above)
            plan = self._placed(expansion, waves, reused, QUICK_WORK)
            found.append((plan, reused))
            if plan.arena_bytes <= peak:
                break
        if not self._beaten(peak, seconds):
            _, reused = min(found, key=lambda item: item[0].arena_bytes)
            self._placed(expansion, waves, reused, PACK_WORK)

    def _placed(
        self,
        expansion: Expansion,
        waves: Sequence[Sequence[int]],
        reused: dict[int, int],
        work: int,
    ) -> SchedulePlan:
        plan = place(expansion, waves, reused, work_limit=work, strict=True)
        self.plans.append(plan)
        return plan

    def _beaten(self, peak: int, seconds: float) -> bool:
        return any(p.arena_bytes <= peak and p.seconds <= seconds for p in self.plans)

    def _sweeps(self, slowdown: float) -> Iterator[Iterator[Recomputed]]:
        """Yield ever smaller peaks by recomputation for some of the orders."""
        reached = None
        for work, found in self.orders:
            if work in RECOMPUTE_RUNGS and (reached is None or found.peak < reached):
                reached = found.peak
                yield self._sweep(Expansion.of(self.problem, found.order), slowdown)

    def _sweep(self, expansion: Expansion, slowdown: float) -> Iterator[Recomputed]:
        """Recompute until nothing helps, order the steps again, and go on."""
        limit = self.start.seconds * (1 + slowdown) if slowdown < float("inf") else slowdown
        work = EVALUATIONS * max(500, len(self.problem.tasks))
        for _ in range(ROUNDS):
            last = None
            for last in sweep(expansion, max_seconds=limit, floor=self.bound, work_limit=work):
                yield last
            if last is None:
                return
            again = schedule(last.expansion.derived, work_limit=REORDER_WORK)
            if again.peak >= last.peak:
                return
            expansion = last.expansion.reordered(again.order).tidied()
            yield Recomputed(expansion, peak_of(expansion), 0)

    def _take_back(self, point: Recomputed, budget: int | None = None) -> None:
        """Plan the steps of a point without those that its peak, or the budget, does not need."""
        peak = point.peak if budget is None else budget
        expansion = taken_back(point.expansion, budget=peak)
        self._pack(expansion, peak_of(expansion))
        self._overlap(expansion, peak)

    def _marked(self, found: SchedulePlan) -> SchedulePlan:
        """Pack the plan once more at length; it says whether no other one could be smaller."""
        if found.arena_bytes > max(found.lower_bound, self.bound):
            packed = of_plan(self.problem, found)
            again = place(*packed, work_limit=LAST_WORK)
            found = min(found, again, key=lambda p: p.arena_bytes)
        return replace(found, proven=found.arena_bytes <= self.bound)


class SharedPlans:
    """Plans as `planner.plan` and `plan_in_waves` make them, remembered by what they depend on."""

    def __init__(self) -> None:
        self._known: dict[Hashable, SchedulePlan | BudgetRefused] = {}

    def plan(
        self,
        problem: PlanningProblem,
        *,
        mode: str | PlannerMode = "balanced",
        budget: int | None = None,
    ) -> SchedulePlan:
        """Return a plan of `problem` in a mode, or within a budget. Raises as `planner.plan`."""
        key = (mode, budget)
        return self._carried(problem, key, lambda p: plan(p, mode=mode, budget=budget))

    def in_waves(self, problem: PlanningProblem, waves: Sequence[Sequence[int]]) -> SchedulePlan:
        """Plan reuse and offsets for a given schedule. Raises as `plan_in_waves`."""
        key = tuple(map(tuple, waves))
        return self._carried(problem, key, lambda p: plan_in_waves(p, waves))

    def _carried(
        self,
        problem: PlanningProblem,
        key: Hashable,
        planned: Callable[[PlanningProblem], SchedulePlan],
    ) -> SchedulePlan:
        problem.check()
        reduced = ReducedProblem.of(problem)
        if (reduced.problem, key) not in self._known:
            try:
                found: SchedulePlan | BudgetRefused = planned(reduced.problem)
            except BudgetRefused as refused:
                found = refused
            self._known[reduced.problem, key] = found
        known = self._known[reduced.problem, key]
        if isinstance(known, BudgetRefused):
            raise known.with_traceback(None)
        carried = reduced.carried(known)
        validate(problem, carried)
        return carried


@dataclass(frozen=True)
class ReducedProblem:
    """`problem` has the tasks of the given one; `buffers` are its buffers' numbers there."""

    problem: PlanningProblem
    buffers: tuple[int, ...]

    @staticmethod
    def of(problem: PlanningProblem) -> "ReducedProblem":
        """Leave out what lies outside the arena, and what no task touches."""
        of = tied_groups(problem)
        pinned = {of[b] for b, buffer in enumerate(problem.buffers) if buffer.pinned}
        outside = {b for b in range(len(problem.buffers)) if of[b] in pinned}
        touched = {b for t in problem.tasks for b in (*t.reads, *t.writes)}
        buffers = tuple(sorted(touched - outside))
        number = {b: i for i, b in enumerate(buffers)}
        # A second run would read what an update left outside.
        updated = outside & {read for task in problem.tasks for _, read in task.tied}

        def kept(pairs: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
            return tuple((number[w], number[r]) for w, r in pairs if {w, r} <= number.keys())

        tasks = [
            replace(
                task,
                reads=tuple(number[b] for b in task.reads if b in number),
                writes=tuple(number[b] for b in task.writes if b in number),
                recomputable=task.recomputable
                and not (outside.intersection(task.writes) or updated.intersection(task.reads)),
                in_place=kept(task.in_place),
                tied=kept(task.tied),
                after=(),
            )
            for task in problem.tasks
        ]
        reduced = PlanningProblem(
            tuple(tasks), tuple(problem.buffers[b] for b in buffers), problem.concurrency
        )
        # What has to come first although the buffers that are left do not say so.
        needed = zip(problem.predecessors, reduced.predecessors, strict=True)
        tasks = [
            replace(task, after=tuple(sorted(before - implied)))
            for task, (before, implied) in zip(tasks, needed, strict=True)
        ]
        return ReducedProblem(replace(reduced, tasks=tuple(tasks)), buffers)

    def carried(self, plan: SchedulePlan) -> SchedulePlan:
        """Carry a plan of the reduced problem over to the given one: as good, and as legal."""
        named = self.buffers
        return replace(
            plan,
            offsets={self._instance(i): offset for i, offset in plan.offsets.items()},
            sources={(step, named[b]): copy for (step, b), copy in plan.sources.items()},
            reused={self._instance(w): self._instance(r) for w, r in plan.reused.items()},
        )

    def _instance(self, instance: Instance) -> Instance:
        return self.buffers[instance[0]], instance[1]
