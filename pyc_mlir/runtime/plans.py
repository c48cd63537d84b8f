"""The code and the plans of a loaded program, and the change from one to another.

An artifact may hold several plans of one program, each behind an entry of its own: the planner's
modes (`compile(..., also_modes=...)`). A mode is switched by hand or by a rule on the free memory
of the device. Arenas of the mode that was left are let go as soon as no call works in them. Other
code (a fallback) may take the place of all plans.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.artifact.artifact import ARENA, MAIN, Artifact
from pyc_mlir.artifact.manifest import EntryPoint
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.runtime import load_check
from pyc_mlir.runtime.arenas import ArenaCall, ArenaPool, CallNeeds
from pyc_mlir.runtime.array import Array, Spec, readable, to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.events import FALLBACK, MODE, RunLog
from pyc_mlir.runtime.executable import Executable, ReportFaults, ResultType
from pyc_mlir.runtime.faults import Faults, result_type
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
    each argument), and what a call with them needs. stand_in: the fallback that answers, if any.
    """

    name: str
    arena: ArenaCall | None
    by_arena: bool
    accepted: dict[tuple[Spec, ...], CallNeeds] = field(default_factory=dict)
    stand_in: str = ""


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

    `free` tells the free bytes of the device's memory. What the program's own arenas hold counts
    as free: whichever mode is taken, they are let go or used again, so that the answer does not
    turn about because it was followed.
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
        self._pool.use("" if arena is None else arena.name)


class Serving:
    """The code and the plans that answer for one program, without guards and counts.

    `run` is the code of calls without an arena.
    """

    __slots__ = (
        "_most_calls",
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
        executable = load_check.load(artifact, device)
        self.executable = executable
        self.log = RunLog()
        self.faults = Faults(self.log, executable.memory) if contract.detect_faults else None
        report = None if self.faults is None else self.faults.take
        more = [] if self.faults is None else [ResultType(*result_type())]
        executable.require(entries[MAIN].function, signature, more)
        results += more
        self.entry = executable.entry(entries[MAIN].function, results, report)
        # Calls without an arena wait for each other only where something counts on it.
        counted = {"max_concurrency", "memory_budget_bytes"} & set(contract.given())
        self._most_calls = contract.max_concurrency if counted else None
        # A bound method is called sooner than an object.
        self.run: Run = gated(self.entry.__call__, self._most_calls)
        self.pool = ArenaPool(device, contract.max_concurrency)
        modes = planned_modes(entries, executable, results, self.pool, contract, report)
        for plan in modes.values():
            if plan.arena is not None:
                plan.arena.require_inputs([len(a.shape) for a in signature.inputs])
        # The plan of the mode that the program was compiled for comes first.
        self.plans = Plans(modes, self.pool, self.log)

    @property
    def mode(self) -> str:
        """The mode whose plan calls take now."""
        return self.plans.current.name

    def answer(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Compute by the plan in use."""
        mode = self.plans.current
        return self._answer(mode.arena if mode.by_arena else None, inputs)

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
        if arena is not None and arena.name != entries[ARENA].function:
            remedy = "; load the program on `local-task`, with threads=1 for one thread"
            raise _cannot_profile("the first mode on `local-sync`", f"mode `{mode.name}`", remedy)
        return entries[MAIN].function, ()

    def ways(self) -> Ways:
        """Return all code that calls may take, by mode and entry, that of the plan in use first."""
        found = {}
        modes, current = self.plans.modes, self.plans.current
        for mode in sorted(modes.values(), key=lambda m: m is not current):
            if not (mode.by_arena and mode.arena is not None):
                found[mode.name, MAIN] = partial(self._answer, None)
            if mode.arena is not None:
                found[mode.name, mode.arena.name] = partial(self._answer, mode.arena)
        return found

    def _answer(self, arena: ArenaCall | None, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        arrays = [to_device(a, self.device) for a in inputs]
        if arena is None:
            return [r.numpy() for r in self.run(arrays)]
        return [r.numpy() for r in arena.call(arrays, arena.needs(arrays))]

    def take_code(self, name: str, run: Run) -> None:
        """Let the fallback `name` answer from now on; it has no plans."""

        def put() -> None:
            self.run = gated(run, self._most_calls)

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
    faults: ReportFaults | None = None,
) -> dict[str, PlannedMode]:
    """Return the plans of an artifact by the name of their mode, that of `main` first."""
    found = {}
    for name in sorted(n for n in entries if n.startswith(ARENA)):
        entry = entries[name]
        arena = ArenaCall(executable, entry.function, results, pool, faults)
        if entry.arena_bytes != arena.facts.arena_bytes:
            raise PycError(
                ReasonCode.BAD_ARTIFACT,
                f"vmfb: expected an arena of {entry.arena_bytes} bytes for `{name}`, as the "
                f"manifest says, got {arena.facts.arena_bytes}; compile it again",
            )
        # `main` has the plan of the first one only.
        pays = name != ARENA or _arena_pays(arena, contract, executable.device)
        found[entry.mode] = PlannedMode(entry.mode, arena, pays)
    return found or {"": PlannedMode("", None, False)}


def _arena_pays(arena: ArenaCall, contract: Contract, device: Device) -> bool:
    """Return whether calls go through the arena: for scratch, or a result on large pages.

    Else `main` is as good. On GPUs, where a fresh output from the allocator may cost more than one
    in IREE's own queue, only under a budget, which counts the arenas.
    """
    if device.is_cpu:
        return arena.facts.arena_bytes != 0 or arena.largest_output >= LARGE_BYTES
    return arena.facts.arena_bytes != 0 and contract.memory_budget_bytes is not None


def gated(run: Run, calls: int | None) -> Run:
    """`run` for at most so many callers at once, further ones wait; None: for all."""
    if calls is None:
        return run
    gate = threading.BoundedSemaphore(calls)

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
