"""Calls of a program under a selector: the arms of each cluster of shapes, timed and guarded.

The arms of a call are the plan that the guard picks, which is the owner's, the general plan, and
the plans of other modes. All have been compared with the references when the program was compiled.
An arm that fails is put in quarantine, and the owner's plan answers the call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import conflict
from pyc_mlir.runtime.selection.selector import Route, Selector, SelectorEvent
from pyc_mlir.util.checksum import checksum

if TYPE_CHECKING:
    from pyc_mlir.runtime.array import Array, Spec
    from pyc_mlir.runtime.plans import Accepted, PlannedMode, Serving

# Faults of an implementation, for which another one may answer.
_FAULTS = (ReasonCode.RUNTIME_FAILED, ReasonCode.OUT_OF_MEMORY, ReasonCode.ARENA_TOO_SMALL)
_MOST_SHAPES = 4096
# The event in a program's log.
_ARM = "arm"


@dataclass(frozen=True, slots=True)
class _Routed:
    route: Route
    arms: "tuple[Accepted, ...]"


class Adaptive:
    """The selector of one program."""

    __slots__ = ("_clock", "_routed", "_serving", "_with_modes", "selector")

    def __init__(self, selector: Selector, serving: "Serving", with_modes: bool) -> None:
        """Begin without routes. Raises PycError: CONTRACT_CONFLICT, BAD_ARGUMENT."""
        contract = serving.artifact.manifest.contract
        if contract.is_strict:
            raise conflict("determinism='strict'", "adapt", "equal shapes would take other code")
        if contract.compares:
            raise conflict("max_error", "adapt", "each plan would have to be compared at each call")
        self.selector, self._serving, self._with_modes = selector, serving, with_modes
        self._routed: dict[tuple[Spec, ...], _Routed] = {}
        # The seconds of a call are those of this thread where no other one computes.
        self._clock = thread_time if serving.device.kind == "local-sync" else perf_counter
        selector.attach(checksum(serving.artifact.vmfb), self._report)
        if with_modes:
            serving.plans.share_arenas()

    def _report(self, event: SelectorEvent) -> None:
        why = f"{event.route} ({event.context}): {event.kind}, {event.why}"
        self._serving.log.add(_ARM, event.after, why, ReasonCode.ARM_CHANGED, event.before)

    def call(
        self, mode: "PlannedMode", own: "Accepted", arrays: "Sequence[Array]"
    ) -> "tuple[Sequence[Any], PlannedMode]":
        """Call with arrays that passed the guards; return the results and the plan.

        mode: the one in use; own: the plan of its guard, and needs. Raises as the owner's plan.
        """
        specs = tuple([a.spec for a in arrays])
        routed = self._routed.get(specs)
        if routed is None or routed.arms[0][0] is not own[0]:
            routed = self._made(specs, mode, own, arrays)
        pull = routed.route.next()
        if not pull.timed:
            return self._answer(routed.arms[pull.arm], arrays)
        began = self._clock()
        try:
            answered = self._answer(routed.arms[pull.arm], arrays)
        except PycError as error:
            if pull.arm == 0 or error.code not in _FAULTS:
                raise
            self.selector.remove(routed.route, pull.arm, f"{error.code.name}: {error.message}")
            return self._answer(own, arrays)
        self.selector.observe(routed.route, pull, self._clock() - began)
        return answered

    def _answer(
        self, accepted: "Accepted", arrays: "Sequence[Array]"
    ) -> "tuple[Sequence[Any], PlannedMode]":
        plan, needs = accepted
        if plan.by_arena and plan.arena is not None:
            return plan.arena.call(arrays, needs), plan
        return (plan.run or self._serving.run)(arrays), plan

    def _made(
        self,
        specs: "tuple[Spec, ...]",
        mode: "PlannedMode",
        own: "Accepted",
        arrays: "Sequence[Array]",
    ) -> _Routed:
        """Return what calls with these arguments may take."""
        modes = self._serving.plans.modes.values()
        others = [m for m in modes if self._with_modes or m is mode]
        plans = (own[0], mode, *others, *(m.serving(arrays) for m in others))
        arms = list({id(p): p for p in plans}.values())
        elements = sum(prod(a.shape) for a in arrays)
        cluster = f"{own[0].name or 'plain'}, 2^{elements.bit_length()}"
        route = self.selector.route(cluster, [p.name for p in arms])
        accepted = [own]
        for plan in arms[1 : len(route.arms)]:
            # Without an arena nothing is needed, as the owner's plan says of itself.
            accepted.append((plan, own[1] if plan.arena is None else plan.arena.needs(arrays)))
        if len(self._routed) >= _MOST_SHAPES:
            self._routed.clear()
        made = self._routed[specs] = _Routed(route, tuple(accepted))
        return made
