"""Calls of a program under a selector: the arms of each cluster of shapes, timed and guarded.

The arms of a call are the plan that the guard picks, which is the owner's, the general plan, the
plans of other modes, and other builds of the program that the owner names: other artifacts, or the
same one on other threads. Plans have been compared with the references when they were compiled;
builds are also compared with the program itself before they become arms. An arm that fails is put
in quarantine, and the owner's plan answers the call.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from threading import get_ident
from time import perf_counter, thread_time
from typing import TYPE_CHECKING, Any

import numpy as np
from ml_dtypes import finfo

from pyc_mlir.artifact.signature import require_same
from pyc_mlir.artifact.test_vectors import ExpectedResult, compare, make_inputs
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import is_float
from pyc_mlir.pipelines.choices.contract import conflict
from pyc_mlir.runtime.selection.selector import Route, Selector, SelectorEvent
from pyc_mlir.util.checksum import checksum

if TYPE_CHECKING:
    from pyc_mlir.runtime.array import Array, Spec
    from pyc_mlir.runtime.plans import Accepted, PlannedMode, Serving

# Faults of an implementation, for which another one may answer.
_FAULTS = (ReasonCode.RUNTIME_FAILED, ReasonCode.OUT_OF_MEMORY, ReasonCode.ARENA_TOO_SMALL)
_MOST_SHAPES = 4096
# The greatest difference of a build's floats, as a share of the greatest element; more where the
# results' own type is coarser. Dimensions are as large as their least sizes, and as this.
_MOST_ERROR, _STEPS, _SIZE = 1e-4, 4, 64
_LARGEST = float(np.finfo(np.float64).max)
# The event in a program's log.
_ARM = "arm"


@dataclass(slots=True)
class _Build:
    """Another build's code, and the plan that stands for it in counts."""

    serving: "Serving"
    counted: "PlannedMode"


@dataclass(frozen=True, slots=True)
class _Arm:
    """A plan and what calls need; build: whose code it is, None for the program's own."""

    accepted: "Accepted"
    build: _Build | None = None


@dataclass(frozen=True, slots=True)
class _Routed:
    route: Route
    arms: tuple[_Arm, ...]


class Adaptive:
    """The selector of one program."""

    __slots__ = ("_builds", "_clock", "_routed", "_serving", "_with_modes", "selector")

    def __init__(
        self,
        selector: Selector,
        serving: "Serving",
        with_modes: bool,
        builds: "Mapping[str, Serving] | None" = None,
    ) -> None:
        """Begin without routes. Raises PycError: CONTRACT_CONFLICT, BAD_ARGUMENT, WRONG_RESULT."""
        contract = serving.artifact.manifest.contract
        if contract.is_strict:
            raise conflict("determinism='strict'", "adapt", "equal shapes would take other code")
        if contract.compares:
            raise conflict("max_error", "adapt", "each plan would have to be compared at each call")
        self.selector, self._serving, self._with_modes = selector, serving, with_modes
        self._routed: dict[tuple[Spec, ...], _Routed] = {}
        self._builds: dict[str, _Build] = {}
        for given, build in (builds or {}).items():
            require_build(given, serving, build)
            # Other code under the same name is another arm, of which nothing was learned.
            name = f"{given}@{checksum(build.artifact.vmfb)[:8]}"
            self._builds[name] = _Build(build, replace(build.plans.current, name=name, calls=0))
        # The seconds of a call are those of this thread where no other one computes.
        kinds = {s.device.kind for s in (serving, *(b.serving for b in self._builds.values()))}
        self._clock = thread_time if kinds == {"local-sync"} else perf_counter
        selector.attach(checksum(serving.artifact.vmfb), self._report, serving.pool)
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
        if routed is None or routed.arms[0].accepted[0] is not own[0]:
            routed = self._made(specs, mode, own, arrays)
        trial = routed.route.next()
        latest = self.selector.latest
        if latest is not None:
            latest[get_ident()] = routed.route.arms[trial.arm], trial.arm == 0
        arm = routed.arms[trial.arm]
        if not trial.timed and trial.arm == 0:
            return self._answer(arm, arrays)
        began = self._clock()
        try:
            answered = self._answer(arm, arrays)
        except PycError as error:
            if trial.arm == 0 or error.code not in _FAULTS:
                raise
            self.selector.remove(routed.route, trial.arm, f"{error.code.name}: {error.message}")
            return self._answer(routed.arms[0], arrays)
        if trial.timed:
            self.selector.observe(routed.route, trial, self._clock() - began)
        return answered

    def _answer(self, arm: _Arm, arrays: "Sequence[Array]") -> "tuple[Sequence[Any], PlannedMode]":
        (plan, needs), build = arm.accepted, arm.build
        if build is not None:
            return self._elsewhere(plan, build, arrays), build.counted
        if plan.by_arena and plan.arena is not None:
            return plan.arena.call(arrays, needs), plan
        return (plan.run or self._serving.run)(arrays), plan

    def _elsewhere(
        self, plan: "PlannedMode", build: _Build, arrays: "Sequence[Array]"
    ) -> "list[Array]":
        """Call another build, on its device; return results on the program's own."""
        device = build.serving.device
        there = [a.on(device) for a in arrays]
        if plan.by_arena and plan.arena is not None:
            found = plan.arena.call(there, plan.arena.needs(there))
        else:
            found = (plan.run or build.serving.run)(there)
        return [r.on(self._serving.device) for r in found]

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
        plans = list({id(p): p for p in plans}.values())
        builds = {n: b for n, b in self._builds.items() if _takes(b.serving, specs)}
        elements = sum(prod(a.shape) for a in arrays)
        cluster = f"{own[0].name or 'plain'}, 2^{elements.bit_length()}"
        # Plans of one artifact have the same kernels, for all that is known.
        expected = [*([1.0] * len(plans)), *(self._expected(b.serving) for b in builds.values())]
        route = self.selector.route(cluster, [*(p.name for p in plans), *builds], expected)
        # Without an arena nothing is needed, as the owner's plan says of itself.
        needs = [own[1] if p.arena is None else p.arena.needs(arrays) for p in plans[1:]]
        arms = [_Arm(own), *(_Arm(a) for a in zip(plans[1:], needs, strict=True))]
        sizes = [n.arena_bytes for n in (own[1], *needs)]
        if min(sizes) < max(sizes):
            route.least = sizes.index(min(sizes))
        for build in builds.values():
            arms.append(_Arm((build.serving.plans.current.serving(arrays), own[1]), build))
        if len(self._routed) >= _MOST_SHAPES:
            self._routed.clear()
        # A route that is one too many has the owner's arm alone.
        made = self._routed[specs] = _Routed(route, tuple(arms[: len(route.arms)]))
        return made

    def _expected(self, build: "Serving") -> float:
        """Return a build's predicted seconds by those of the program; 0 where they are not known.

        Predictions hold for one thread, so that nothing is known of other devices.
        """
        mine, other = self._serving.artifact.prediction, build.artifact.prediction
        if mine is None or other is None or not mine.seconds or not other.seconds:
            return 0.0
        alike = mine.sizes == other.sizes and build.device is self._serving.device
        return other.seconds / mine.seconds if alike else 0.0

    def served(self) -> dict[str, int]:
        """Return the calls that each other build has answered."""
        return {name: build.counted.calls for name, build in self._builds.items()}


def _takes(serving: "Serving", specs: "tuple[Spec, ...]") -> bool:
    """Return whether a build takes arguments of these shapes: its ranges may be narrower."""
    try:
        serving.artifact.signature.check([spec[:2] for spec in specs])
    except PycError:
        return False
    return True


def require_build(name: str, now: "Serving", other: "Serving") -> None:
    """Raise PycError unless a build may answer calls of the program in place.

    BAD_ARGUMENT for another signature or sizes that are not declared, CONTRACT_CONFLICT for
    another contract, WRONG_RESULT where both answer inputs of a few sizes differently.
    """
    signature, where = now.artifact.signature, f"adapt: build {name!r}"
    require_same(signature, other.artifact.signature, where, "name builds of this program")
    mine, theirs = now.artifact.manifest.contract, other.artifact.manifest.contract
    if mine != theirs:
        raise conflict(str(mine), f"build {name!r}", f"it keeps another contract, {theirs}")
    if signature.undeclared:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            where=where,
            expected="declared ranges of all dimensions, to compare the build",
            got=", ".join(f"{n} ({place})" for n, place in signature.undeclared),
            remedy="compile both with `dims`",
        )
    floats = [o.dtype for o in signature.outputs if is_float(o.dtype)]
    limit = max([_MOST_ERROR, *(_STEPS * float(finfo(dtype).eps) for dtype in floats)])
    ranges = other.artifact.signature.ranges
    for size in (0, _SIZE):
        sizes = {n: min(max(low, size), high) for n, (low, high) in ranges.items()}
        inputs = make_inputs(signature, size, sizes)
        want = [
            ExpectedResult(v, np.full(v.shape, _LARGEST if is_float(v.dtype) else 0.0))
            for v in now.answer(inputs)
        ]
        found = compare(other.answer(inputs), want, limit)
        if found.wrong:
            raise PycError(
                ReasonCode.WRONG_RESULT,
                where=where,
                expected="the answers of the program in place",
                got=found.wrong,
                remedy="name builds of the same model with the same weights",
            )
