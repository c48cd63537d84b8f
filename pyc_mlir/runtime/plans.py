"""The code and the plans of a loaded program, and the change from one to another.

An artifact may hold several plans of one program, each behind an entry of its own: the planner's
modes (`compile(..., also_modes=...)`), and plans for certain shapes (`plans=...`), which calls of
the first mode take by their shapes alone. A mode is switched by hand or by a rule on the free
memory of the device. Arenas of the mode that was left are let go as soon as no call works in them.
Other code (a fallback) may take the place of all plans.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import numpy as np

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.manifest import ARENA, MAIN, EntryPoint, ShapeEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.shapes.plan import ShapePlan
from pyc_mlir.runtime.arenas import ArenaCall, ArenaPool, CallNeeds
from pyc_mlir.runtime.array import Array, Spec, readable, require_unchanged, to_device
from pyc_mlir.runtime.counts import COUNTED, Approximations, Faults, TakeCounts, takers
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.events import FALLBACK, MODE, RunLog
from pyc_mlir.runtime.executable import Executable, ResultType, load_checked
from pyc_mlir.runtime.outputs import matched
from pyc_mlir.util.pages import LARGE_BYTES

FreeMemory = Callable[[], int]
Run = Callable[[Sequence[Array]], list[Array]]
# The same from and to numpy, by the names of a plan and of an entry.
Ways = Mapping[tuple[str, str], Callable[[Sequence[np.ndarray]], list[np.ndarray]]]
_MEMINFO = Path("/proc/meminfo")
_AVAILABLE = "MemAvailable:"
_RECENT_SWITCHES = 64


@dataclass
class PlannedMode:
    """One plan of a program, as calls need it.

    arena: its entry; None where calls only have `main`. by_arena: whether calls without `out` go
    there too. accepted: argument lists that passed the guards (shape, element type and device of
    each argument), the plan that serves them, and what a call with them needs. stand_in: the
    fallback that answers, if any. of_shapes: plans for certain shapes, in the order in which the
    guard asks them. run: the code without an arena, None for the program's. places: by (input,
    axis) the sizes of a plan for certain shapes. function: that of `run`. calls: those it served.
    """

    name: str
    arena: ArenaCall | None
    by_arena: bool
    accepted: "dict[tuple[Spec, ...], Accepted]" = field(default_factory=dict)
    stand_in: str = ""
    of_shapes: "tuple[PlannedMode, ...]" = ()
    run: "Run | None" = None
    places: tuple[tuple[int, int, int, int], ...] = ()
    function: str = ""
    calls: int = 0

    def serving(self, arrays: Sequence[Any]) -> "PlannedMode":
        """Return the plan that serves calls with these arrays: the first that covers them."""
        shapes = [a.shape for a in arrays] if self.of_shapes else []
        for plan in self.of_shapes:
            if all([low <= shapes[i][axis] <= high for i, axis, low, high in plan.places]):
                return plan
        return self

    def accept(self, arrays: Sequence[Array], specs: tuple[Spec, ...] | None = None) -> "Accepted":
        """Return what serves arrays that passed the guards; remember it by `specs` if given."""
        plan = self.serving(arrays)
        accepted = plan, _NOTHING if plan.arena is None else plan.arena.needs(arrays)
        if specs is not None:
            if len(self.accepted) >= _MAX_ACCEPTED:
                self.accepted.clear()
            self.accepted[specs] = accepted
        return accepted


# The plan that serves calls with certain arguments, and what these need.
Accepted = tuple[PlannedMode, CallNeeds]
_NOTHING = CallNeeds(0, ())
# The number of accepted shapes that guards remember.
_MAX_ACCEPTED = 4096


@dataclass(frozen=True)
class ModeSwitch:
    """One change of mode: from which to which, and why, in words with the numbers."""

    before: str
    after: str
    why: str
    code: ReasonCode = ReasonCode.MODE_SWITCHED


@dataclass(frozen=True)
class MemoryRule:
    """The mode `below` while fewer than `limit` bytes are free, else `otherwise`.

    `free` returns the free bytes of the device's memory. The program's own arenas count as free,
    since either mode releases or uses them again. Otherwise following the answer could change the
    next one, and the mode would alternate.
    """

    limit: int
    below: str
    otherwise: str
    free: FreeMemory

    def answer(self, held: int) -> tuple[str, str]:
        """Return the mode to use, and why; `held` are bytes of the program's arenas."""
        free = self.free() + held
        low = free < self.limit
        message = f"{free} bytes free, {'below' if low else 'not below'} the limit of {self.limit}"
        return (self.below if low else self.otherwise), message


class Plans:
    """The plans of one program, which of them calls take, and the rule that may change that.

    Several threads may ask, switch and drop at once. `current` and `rule` are on the way of calls,
    which read them without the lock; `modes` is replaced, never changed.
    """

    __slots__ = ("_lock", "_log", "_pool", "current", "modes", "rule", "switch_count", "switches")

    def __init__(self, modes: Mapping[str, PlannedMode], pool: ArenaPool, log: RunLog) -> None:
        """Start with the first one."""
        self.modes = dict(modes)
        self.current = next(iter(self.modes.values()))
        self.rule: MemoryRule | None = None
        self.switches: deque[ModeSwitch] = deque(maxlen=_RECENT_SWITCHES)
        self.switch_count = 0
        self._pool, self._log = pool, log
        self._lock = threading.Lock()
        self._take_arenas()

    def take(self, name: str, why: str, code: ReasonCode, drop: str | None = None) -> None:
        """Take a plan, for a reason with this code; ends a rule.

        drop: a mode that there is no plan of from then on; no other thread can take it in between.
        Raises PycError (BAD_ARGUMENT) where there is no plan `name`, or none any more.
        """
        with self._lock:
            after = self.modes[known_mode(name, self.modes)]
            self.rule = None
            self._switch(after, why, code)
            self._drop(drop)

    def drop(self, name: str) -> None:
        """Have no plan of that mode any more. One in use is left by `take`: ValueError."""
        with self._lock:
            if name == self.current.name:
                raise ValueError(f"expected a plan that is not in use, got {name!r}")
            self._drop(name)

    def replace(self, plan: PlannedMode, put: Callable[[], None]) -> None:
        """Have this plan alone, after `put` has put its code in place."""
        with self._lock:
            put()
            self.rule, self.modes, self.current = None, {plan.name: plan}, plan
            self._take_arenas()

    def follow(self, limit: int, mode: str, free: FreeMemory | None, device: Device) -> None:
        """Set a rule, as `memory_rule` makes it. Raises PycError (BAD_ARGUMENT)."""
        with self._lock:
            known_mode(mode, self.modes)
            otherwise = self.current.name if self.rule is None else self.rule.otherwise
            self.rule = memory_rule(limit, mode, otherwise, free, device)

    def by_rule(self) -> PlannedMode:
        """Return the plan to use, after the rule was asked if there is one."""
        rule = self.rule
        if rule is None:
            return self.current
        name, why = rule.answer(self._pool.bytes)
        if name != self.current.name:
            with self._lock:
                # What was taken or dropped meanwhile has ended the rule.
                if self.rule is rule:
                    self._switch(self.modes[name], why, ReasonCode.MODE_SWITCHED)
        return self.current

    def donatable(self, inputs: Sequence[int]) -> tuple[int, ...]:
        """Return those inputs that a call may donate together, in every mode."""
        arenas = [mode.arena for mode in self.modes.values()]
        if not arenas or None in arenas:
            return ()
        proven = [set(arena.facts.donations) for arena in arenas if arena is not None]
        receivers = matched(inputs, sorted(set.intersection(*proven)))
        return tuple(number for number in inputs if number in receivers)

    def share_arenas(self) -> None:
        """Let all modes work in the same arenas, which hold the largest: calls go to and fro."""
        with self._lock:
            arenas = [m.arena for m in self.modes.values() if m.arena is not None]
            for arena in arenas:
                arena.tag = arenas[0].tag
            self._take_arenas()

    def served(self) -> dict[str, int]:
        """Return the calls that each plan has served; plans for shapes stand behind their mode."""
        plans = (p for mode in self.modes.values() for p in (mode, *mode.of_shapes))
        return {plan.name or plan.stand_in: plan.calls for plan in plans}

    def latest_switches(self) -> tuple[tuple[ModeSwitch, ...], int]:
        """Return the latest switches, and their number."""
        with self._lock:
            return tuple(self.switches), self.switch_count

    def _switch(self, after: PlannedMode, why: str, code: ReasonCode) -> None:
        before = self.current
        if before is after:
            return
        self.current = after
        self.switch_count += 1
        self.switches.append(ModeSwitch(before.name, after.name, why, code))
        self._log.add(MODE, after.name, why, code, before.name)
        self._take_arenas()

    def _drop(self, name: str | None) -> None:
        self.modes = {n: mode for n, mode in self.modes.items() if n != name}
        if self.rule is not None and name in (self.rule.below, self.rule.otherwise):
            self.rule = None

    def _take_arenas(self) -> None:
        arena = self.current.arena
        self._pool.use("" if arena is None else arena.tag)


class Serving:
    """The code and the plans that answer for one program, without guards and counts.

    `run` is the code of calls without an arena.
    """

    __slots__ = (
        "_counts",
        "_gate",
        "approximations",
        "artifact",
        "device",
        "entry",
        "executable",
        "faults",
        "log",
        "plans",
        "pool",
        "run",
    )

    def __init__(self, artifact: Artifact, device: Device, contract: Contract) -> None:
        """Load `artifact` on `device`. Raises PycError (BAD_ARTIFACT, DEVICE_UNAVAILABLE)."""
        self.artifact, self.device = artifact, device
        signature, entries = artifact.signature, artifact.manifest.entries
        results = [ResultType(o.dtype, o.static_shape) for o in signature.outputs]
        executable = load_checked(artifact, device)
        self.executable = executable
        self.log = RunLog()
        self.faults = Faults(self.log, executable.memory) if contract.detect_faults else None
        approximates = "approximations" in artifact.manifest.counts
        self.approximations = Approximations() if approximates else None
        self._counts = takers(self.faults, self.approximations)
        more = [ResultType(*COUNTED)] * len(self._counts)
        executable.require(entries[MAIN].function, signature, more)
        results += more
        self.entry = executable.entry(entries[MAIN].function, results, self._counts)
        # Calls without an arena wait for each other only where something counts on it.
        counted = {"max_concurrency", "memory_budget_bytes"} & set(contract.given())
        most = contract.max_concurrency if counted else None
        self._gate = None if most is None else BoundedSemaphore(most)
        self.run: Run = gated(self.entry.__call__, self._gate)
        self.pool = ArenaPool(device, contract.max_concurrency)
        modes = planned_modes(entries, executable, results, self.pool, contract, self._counts)
        for plan in modes.values():
            if plan.arena is not None:
                plan.arena.require_inputs([len(a.shape) for a in signature.inputs])
        first = next(iter(modes.values()))
        entries_of = artifact.manifest.shape_plans
        first.of_shapes = tuple(self._of_shapes(e, results, more, first) for e in entries_of)
        # The plan of the mode that the program was compiled for comes first.
        self.plans = Plans(modes, self.pool, self.log)

    @property
    def mode(self) -> str:
        """The mode whose plan calls take now."""
        return self.plans.current.name

    def _of_shapes(
        self,
        entry: ShapeEntry,
        results: Sequence[ResultType],
        more: Sequence[ResultType],
        first: PlannedMode,
    ) -> PlannedMode:
        """Return a plan for certain shapes. Raises PycError (BAD_ARTIFACT)."""
        signature, plan = self.artifact.signature, ShapePlan(entry.ranges)
        settled = signature.settled(plan.exact)
        self.executable.require(entry.function, settled, more, inputs_only=True)
        code = self.executable.entry(entry.function, results, self._counts)
        arena = None
        if first.arena is not None and entry.arena:
            # Its arenas are those of the first mode, which hold the largest call of all plans.
            tag = first.arena.tag
            arena = ArenaCall(self.executable, entry.arena, results, self.pool, self._counts, tag)
            arena.require_inputs([len(a.shape) for a in signature.inputs])
            _require_arena(entry.arena, entry.arena_bytes, arena)
        scratch = arena is not None and self.device.is_cpu and arena.facts.arena_bytes != 0
        return PlannedMode(
            str(plan),
            arena,
            arena is not None and (first.by_arena or scratch),
            run=gated(code.__call__, self._gate),
            places=tuple((*p, *ends) for p, ends in signature.places_of(entry.ranges).items()),
            function=entry.function,
        )

    def answer(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Compute by the plan in use."""
        mode = self.plans.current.serving(inputs)
        return self._answer(mode, mode.arena if mode.by_arena else None, inputs)

    def entry_by_name(self, mode: PlannedMode, needs: CallNeeds) -> tuple[str, tuple[int, ...]]:
        """Return the function that calls in a mode take, and bytes of the buffers after its inputs.

        For IREE's own tools, whose profiles hold nothing of an entry with an arena on local-sync:
        there it is the plain entry, which has the plan of the first mode.
        Raises PycError (CANNOT_PROFILE) where no function of the artifact stands for the calls.
        """
        entries, arena = self.artifact.manifest.entries, mode.arena
        if mode.stand_in:
            raise _cannot_profile("the program's own code", f"the fallback `{mode.stand_in}`", "")
        if self.device.kind != "local-sync" and mode.by_arena and arena is not None:
            return arena.name, (needs.arena_bytes, *(size for _, _, size in needs.outputs))
        if mode.function:
            return mode.function, ()
        if arena is not None and arena.name != entries[ARENA].function:
            remedy = "; load the program on `local-task`, with threads=1 for one thread"
            raise _cannot_profile("the first mode on `local-sync`", f"mode `{mode.name}`", remedy)
        return entries[MAIN].function, ()

    def ways(self, inputs: Sequence[np.ndarray]) -> Ways:
        """Return the code that calls may take, by mode and entry; the plan in use comes first."""
        found = {}
        modes, current = self.plans.modes, self.plans.current
        for mode in sorted(modes.values(), key=lambda m: m is not current):
            served = mode.serving(inputs)
            for plan in (served,) if served is mode else (served, mode):
                if not (plan.by_arena and plan.arena is not None):
                    found[mode.name, plan.function or MAIN] = partial(self._answer, plan, None)
                if plan.arena is not None:
                    way = partial(self._answer, plan, plan.arena)
                    found[mode.name, plan.arena.name] = way
        return found

    def _answer(
        self, mode: PlannedMode, arena: ArenaCall | None, inputs: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        arrays = [to_device(a, self.device) for a in inputs]
        run = mode.run or self.run
        results = run(arrays) if arena is None else arena.call(arrays, arena.needs(arrays))
        require_unchanged(arrays, inputs)
        return [r.numpy() for r in results]

    def take_code(self, name: str, run: Run) -> None:
        """Let the fallback `name` answer from now on; it has no plans."""

        def put() -> None:
            self.run = gated(run, self._gate)

        self.plans.replace(PlannedMode("", None, False, stand_in=name), put)

    def report_fallback(self, name: str, why: str, code: ReasonCode) -> None:
        """Log a fallback that was taken, or refused."""
        self.log.add(FALLBACK, name, why, code, "the program")

    def bare_call(self, *arrays: Any) -> Callable[[], None]:
        """Prepare a function that invokes with these arrays and does nothing else, to time.

        Raises PycError for arrays that do not fit.
        """
        sources = [readable(a, self.device) for a in arrays]
        self.artifact.signature.check([(tuple(s.shape), s.dtype) for s in sources])
        return self.entry.bare_call([to_device(s, self.device) for s in sources])


def _cannot_profile(expected: str, got: str, remedy: str) -> PycError:
    return PycError(ReasonCode.CANNOT_PROFILE, f"profile: expected {expected}, got {got}{remedy}")


def planned_modes(
    entries: Mapping[str, EntryPoint],
    executable: Executable,
    results: Sequence[ResultType],
    pool: ArenaPool,
    contract: Contract,
    counts: Sequence[TakeCounts] = (),
) -> dict[str, PlannedMode]:
    """Return the plans of an artifact by the name of their mode, that of `main` first."""
    found = {}
    for name in sorted(n for n in entries if n.startswith(ARENA)):
        entry = entries[name]
        arena = ArenaCall(executable, entry.function, results, pool, counts)
        _require_arena(name, entry.arena_bytes, arena)
        # `main` has the plan of the first one only.
        pays = name != ARENA or _arena_pays(arena, contract, executable.device)
        found[entry.mode] = PlannedMode(entry.mode, arena, pays)
    return found or {"": PlannedMode("", None, False)}


def _require_arena(name: str, declared: int | None, arena: ArenaCall) -> None:
    if declared != arena.facts.arena_bytes:
        raise PycError(
            ReasonCode.BAD_ARTIFACT,
            f"vmfb: expected an arena of {declared} bytes for `{name}`, as the "
            f"manifest says, got {arena.facts.arena_bytes}; compile it again",
        )


def _arena_pays(arena: ArenaCall, contract: Contract, device: Device) -> bool:
    """Return whether calls go through the arena: for scratch, or a result on large pages.

    Else `main` is as good. On GPUs, where a fresh output from the allocator may cost more than one
    in IREE's own queue, only under a budget, which counts the arenas.
    """
    if device.is_cpu:
        return arena.facts.arena_bytes != 0 or arena.largest_output >= LARGE_BYTES
    return arena.facts.arena_bytes != 0 and contract.memory_budget_bytes is not None


def gated(run: Run, gate: BoundedSemaphore | None) -> Run:
    """`run` for at most so many callers at once, further ones wait; None: for all."""
    if gate is None:
        return run

    def one_of_them(arrays: Sequence[Array]) -> list[Array]:
        with gate:
            return run(arrays)

    return one_of_them


def known_mode(name: str, modes: Mapping[str, Any]) -> str:
    """`name`, if it is one of the program's modes. Raises PycError (BAD_ARGUMENT)."""
    if name not in modes:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"mode: expected one of the program's, {', '.join(modes)}, got {name!r}; compile with "
            "`also_modes` to have more",
        )
    return name


def memory_rule(
    limit: int, below: str, otherwise: str, free: FreeMemory | None, device: Device
) -> MemoryRule:
    """Make a rule that can be asked. Raises PycError (BAD_ARGUMENT) if free memory is unknown.

    On CPUs Linux tells; IREE tells what it has allocated on a device, not what is left.
    """
    if type(limit) is not int or limit < 0:
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"free_bytes: expected bytes, not negative, got {limit!r}"
        )
    if free is None and device.is_cpu and _MEMINFO.exists():
        free = available_memory
    if free is None:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"free: expected a function that tells the free bytes of {device!r}, got none; the "
            "runtime does not know them there",
        )
    return MemoryRule(limit, below, otherwise, free)


def available_memory() -> int:
    """Return the bytes that Linux can give without swapping."""
    with _MEMINFO.open() as lines:
        return parse_available(lines)


def parse_available(lines: Iterable[str]) -> int:
    """Read the bytes from the text of `/proc/meminfo`. Raises PycError (RUNTIME_FAILED)."""
    for line in lines:
        if line.startswith(_AVAILABLE):
            return int(line.split()[1]) * 1024
    raise PycError(
        ReasonCode.RUNTIME_FAILED,
        f"{_MEMINFO}: expected a line `{_AVAILABLE}`, got none; give a function `free`",
    )
