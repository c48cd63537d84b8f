"""Calls of a program under a selector: the arms of each cluster of shapes, timed and guarded.

The arms of a call are the plan that the guard picks, which is the owner's, the general plan, and
the plans of other modes. All have been compared with the references when the program was compiled.
An arm that fails is put in quarantine, and the owner's plan answers the call.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Any

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.runtime.array import Array, Spec
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.plans import Accepted, PlannedMode, Plans
from pyc_mlir.runtime.selection.selector import Route, Selector
from pyc_mlir.util.checksum import checksum

# Faults of an implementation, for which another one may answer.
_FAULTS = (ReasonCode.RUNTIME_FAILED, ReasonCode.OUT_OF_MEMORY, ReasonCode.ARENA_TOO_SMALL)
_MOST_SHAPES = 4096


@dataclass(frozen=True, slots=True)
class _Routed:
    route: Route
    arms: tuple[Accepted, ...]


class Adaptive:
    """The selector of one program."""

    __slots__ = ("_clock", "_plans", "_routed", "_run", "_with_modes", "selector")

    def __init__(
        self,
        selector: Selector,
        plans: Plans,
        device: Device,
        run: Callable[[PlannedMode, Sequence[Array]], Any],
        with_modes: bool,
    ) -> None:
        """Start without routes. `run` calls a plan without an arena."""
        self.selector, self._plans, self._run = selector, plans, run
        self._with_modes = with_modes
        self._routed: dict[tuple[Spec, ...], _Routed] = {}
        # The seconds of a call are those of this thread where no other one computes.
        self._clock = thread_time if device.kind == "local-sync" else perf_counter

    def call(
        self, specs: tuple[Spec, ...], mode: PlannedMode, own: Accepted, arrays: Sequence[Array]
    ) -> tuple[Any, PlannedMode]:
        """Call with arrays that passed the guards; return the results and the plan.

        mode: the one in use; own: the plan of its guard, and needs. Raises as the owner's plan.
        """
        routed = self._routed.get(specs)
        if routed is None or routed.arms[0][0] is not own[0]:
            routed = self._made(specs, mode, own, arrays)
        pull = routed.route.next()
        plan, needs = routed.arms[pull.arm]
        if not pull.timed:
            return self._answer(plan, needs, arrays), plan
        began = self._clock()
        try:
            values = self._answer(plan, needs, arrays)
        except PycError as error:
            if pull.arm == 0 or error.code not in _FAULTS:
                raise
            self.selector.remove(routed.route, pull.arm, f"{error.code.name}: {error.message}")
            plan, needs = own
            return self._answer(plan, needs, arrays), plan
        self.selector.observe(routed.route, pull, self._clock() - began)
        return values, plan

    def _answer(self, plan: PlannedMode, needs: Any, arrays: Sequence[Array]) -> Any:
        if plan.by_arena and plan.arena is not None:
            return plan.arena.call(arrays, needs)
        return self._run(plan, arrays)

    def _made(
        self, specs: tuple[Spec, ...], mode: PlannedMode, own: Accepted, arrays: Sequence[Array]
    ) -> _Routed:
        """Return what calls with these arguments may take."""
        others = [m for m in self._plans.modes.values() if self._with_modes or m is mode]
        shapes = [a.shape for a in arrays]
        plans = (own[0], mode, *others, *(m.serving(shapes) for m in others))
        arms = list({id(p): p for p in plans}.values())
        accepted = [own, *((p, _needs(p, arrays)) for p in arms[1:])]
        route = self.selector.route(_cluster(own[0], shapes), [p.name for p in arms])
        if len(route.arms) < len(accepted):
            accepted = accepted[: len(route.arms)]
        if len(self._routed) >= _MOST_SHAPES:
            self._routed.clear()
        made = self._routed[specs] = _Routed(route, tuple(accepted))
        return made


def _needs(plan: PlannedMode, arrays: Sequence[Array]) -> Any:
    return None if plan.arena is None else plan.arena.needs(arrays)


def _cluster(plan: PlannedMode, shapes: Sequence[tuple[int, ...]]) -> str:
    """Return the name of the shapes that learn together: a plan's, of one power of two."""
    elements = 0
    for shape in shapes:
        size = 1
        for dim in shape:
            size *= dim
        elements += size
    return f"{plan.name or 'plain'}, 2^{elements.bit_length()}"


def identity_of(artifact: Artifact) -> str:
    """Return the name under which a program's selector keeps what it learns."""
    return checksum(artifact.vmfb)
