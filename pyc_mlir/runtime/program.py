"""What a compile returns: a program on a device, guarded, counted, and able to be saved.

    program(a, b)  ->  results

Arguments are numpy arrays, our `Array`s, IREE's device arrays or anything with DLPack. The rule
for results: if any argument was on a device, results are `Array`s on the program's device, else
numpy arrays. One result comes alone, several as a tuple. Guards run before anything else.

    program(a, b, out=c)  ->  c

writes into an array of the caller. Scratch comes from a pool of arenas that the program owns, one
for each call that the contract lets overlap; further calls wait.

    program.use_mode("memory_first")

takes another plan of the artifact from now on, and `switch_below` does so when memory is short.
Under a contract with `max_error` answers are compared with the reference (watch.py). `log` tells
what happened besides answering: refused calls, fallbacks, switches (run_log.py).
"""

import statistics
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.account import Account
from pyc_mlir.artifact.artifact import MAIN, Artifact
from pyc_mlir.artifact.cache_record import CacheRecord
from pyc_mlir.artifact.contract_status import Counts, so_far
from pyc_mlir.artifact.import_report import ImportReport
from pyc_mlir.artifact.verification import Verdict
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.choices import Decision
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.contract_report import ContractReport
from pyc_mlir.runtime import load_check as placement
from pyc_mlir.runtime.arenas import ArenaCall, ArenaPool, Launch
from pyc_mlir.runtime.array import Array, is_on_device, readable, to_device
from pyc_mlir.runtime.device import Device, MemoryStatistics
from pyc_mlir.runtime.events import FALLBACK, LOAD, RunLog
from pyc_mlir.runtime.executable import ResultType
from pyc_mlir.runtime.monitor import Code, Fallback, Watch, Ways
from pyc_mlir.runtime.outputs import NUMBERS, check_outputs, donated_memory, donors
from pyc_mlir.runtime.plans import ModeSwitch, PlannedMode, Plans, gated, planned_modes

# Verdicts of the guards that are remembered, and call times that the median is taken from.
_MAX_VERDICTS = 4096
_RECENT_CALLS = 1024
_NOTHING = Launch(0, ())
# In C, as is all that can be on the way of every call.
_spec_of = attrgetter("spec")


@dataclass(frozen=True)
class ProgramStats:
    """What a program did. Times are seconds of whole calls, guards and conversions included;
    the median is that of the last 1,024 calls; memory is that of the whole device.

    `account` is what the program needs by its manifest, `arena_bytes` what its arenas hold now,
    and `arena_waits` counts the calls that found all arenas in use. `mode` names the plan in use,
    `mode_switches` counts the changes of it, and `switches` are the latest. `contract` tells of
    each clause; `comparisons` counts calls that were compared with the reference (which is no part
    of their times), `wrong_results` samples and calls that differed, and `fallbacks` are those that
    were taken. `imported` is how much of the program PyC compiles, `cache` what the compile cache
    did for it, if it was asked. `other_runtime` says which release of IREE's runtime the program
    was compiled for, if this is another one (RUNTIME_DIFFERS)."""

    calls: int
    guard_failures: int
    seconds_total: float
    seconds_last: float | None
    seconds_median: float | None
    memory: MemoryStatistics
    artifact_bytes: int
    constants_bytes: int
    account: Account
    arena_bytes: int
    arena_waits: int
    mode: str
    mode_switches: int
    switches: tuple[ModeSwitch, ...]
    contract: ContractReport
    comparisons: int
    wrong_results: int
    fallbacks: tuple[Fallback, ...]
    imported: ImportReport
    cache: CacheRecord | None = None
    other_runtime: str = ""


class Program:
    """A compiled program on a device. Several threads may call it."""

    __slots__ = (
        "_calls",
        "_entry",
        "_guard_failures",
        "_lock",
        "_log",
        "_most_calls",
        "_other_runtime",
        "_plans",
        "_pool",
        "_recent",
        "_run",
        "_seconds",
        "_watch",
        "artifact",
        "device",
        "signature",
    )

    def __init__(
        self, artifact: Artifact, device: Device | None = None, verdict: Verdict | None = None
    ) -> None:
        """Load `artifact` on `device` (None: the process's own for the artifact's target).

        verdict: of an earlier load under `max_error`; if it was here, nothing is compared again.

        Raises PycError: BAD_ARTIFACT, DEVICE_UNAVAILABLE when the program needs another device, or
        CPU features that this machine lacks, and WRONG_RESULT when it fails its comparison.
        """
        manifest = artifact.manifest
        self.artifact = artifact
        self.signature = artifact.signature
        contract = Contract.from_json(manifest["contract"])
        # A budget counts what a call holds, not what an allocator keeps of earlier ones.
        recycles = contract.memory_budget_bytes is None
        self.device = device or Device.default_for(
            manifest["device"], manifest["seconds"], recycles
        )
        results = [ResultType(o.dtype, o.static_shape) for o in self.signature.outputs]
        entries = manifest["entries"]
        executable = placement.load(artifact, self.device)
        executable.require(entries[MAIN]["function"], self.signature)
        self._entry = executable.entry(entries[MAIN]["function"], results)
        # Calls without an arena wait for each other only where something counts on it.
        counted = {"max_concurrency", "memory_budget_bytes"} & set(contract.given())
        self._most_calls = contract.max_concurrency if counted else None
        # A bound method is called sooner than an object.
        self._run = gated(self._entry.__call__, self._most_calls)
        self._pool = ArenaPool(self.device, contract.max_concurrency)
        modes = planned_modes(entries, executable, results, self._pool, contract)
        for plan in modes.values():
            if plan.arena is not None:
                plan.arena.require_inputs([len(a.shape) for a in artifact.signature.inputs])
        self._lock = threading.Lock()
        self._log = RunLog()
        # The plan of the mode that the program was compiled for comes first.
        self._plans = Plans(modes, self._pool, self._log)
        graph = manifest["graph_id"] or "none"
        self._log.add(LOAD, repr(self.device), f"graph {graph}, mode {self.mode or 'none'}")
        self._other_runtime = placement.other_runtime(manifest["versions"])
        if self._other_runtime:
            self._log.differs(self._other_runtime)
        self._calls = 0
        self._guard_failures = 0
        self._seconds = 0.0
        self._recent: deque[float] = deque(maxlen=_RECENT_CALLS)
        self._watch: Watch | None = None
        if contract.compares:
            self._watch = Watch(self, contract, _stand_in)
            self._watch.judge(verdict)

    def __call__(self, *args: Any, out: Any = None, donate: Sequence[int] = ()) -> Any:
        """Run the program. Raises PycError before anything runs when the arguments do not fit:

        ARGUMENT_COUNT, ARGUMENT_DTYPE, ARGUMENT_SHAPE, DIMENSION_MISMATCH or BAD_ARGUMENT; and
        RUNTIME_FAILED when the device refuses or fails.

        out: an `Array` of this device for the result, or a sequence with one for each result
            (None: a fresh one); they are written and returned. Their memory must not be an
            input's or each other's (OUTPUT_OVERLAP); NO_ARENA_ENTRY where the program cannot.
        donate: numbers of inputs whose memory a result of as many bytes takes: an array given
            there holds that result afterwards. Refused (DONATION_UNSAFE) unless the plan proves
            that the input was read before the result is written.
        """
        began = perf_counter()
        watch = self._watch
        # Read before the mode: what answers later than a fallback is told by it.
        generation = 0 if watch is None else watch.generation
        plans = self._plans
        mode = plans.current if plans.rule is None else plans.by_rule()
        # The way of calls with arrays of this device that were seen before is the short one.
        try:
            launch = mode.accepted.get(tuple(map(_spec_of, args)))
        except (AttributeError, TypeError):
            launch = None
        arrays, on_device = args, True
        try:
            if launch is None:
                arrays, launch, on_device = self._admit(args, mode)
            if out is not None or not isinstance(donate, NUMBERS) or donate:
                values = self._into(mode, arrays, launch, out, donate)
                if out is None and not on_device:
                    values = [r.host() for r in values]
                watch = None
            else:
                arena = mode.arena
                if mode.by_arena and arena is not None:
                    values = arena.call(arrays, launch)
                else:
                    values = self._run(arrays)
                if not on_device:
                    values = [r.host() for r in values]
            seconds = perf_counter() - began
            if watch is not None and watch.due(
                arrays, code := Code(generation, mode.name, into=False)
            ):
                values = watch.compared(arrays, values, code)
        except PycError as error:
            self._log.refused(error)
            raise
        with self._lock:
            self._calls += 1
            self._seconds += seconds
            self._recent.append(seconds)
        return values[0] if len(values) == 1 else tuple(values)

    def _into(
        self,
        mode: PlannedMode,
        arrays: Sequence[Array],
        launch: Launch,
        out: Any,
        donate: Sequence[int],
        again: bool = False,
    ) -> Sequence[Array]:
        """Call with memory of the caller. Raises PycError, as `__call__` says.

        What is due to be compared is computed in other memory first.
        """
        watch = self._watch
        try:
            given = donors(donate)
            if given and watch is not None and watch.compares_calls:
                raise PycError(
                    ReasonCode.DONATION_UNSAFE,
                    "donate: expected a contract without `max_error`, got one whose reference "
                    "reads the inputs after the call; call without `donate`",
                )
            known = launch, arrays, self.signature, mode.arena
            donated = donated_memory(given, out, *known) if given else {}
            memory = check_outputs(out, *known, donated)
        except PycError:
            with self._lock:
                self._guard_failures += 1
            raise
        assert mode.arena is not None
        if watch is not None:
            code = Code(watch.generation, mode.name, into=True)
            if not watch.approves(arrays, code, partial(mode.arena.call, arrays, launch), again):
                now = self._plans.current
                needed = _NOTHING if now.arena is None else now.arena.needs(arrays)
                return self._into(now, arrays, needed, out, donate, again=True)
        return mode.arena.call(arrays, launch, memory)

    def log(self) -> tuple[Decision, ...]:
        """What happened so far: the latest events with their codes, and a last line that counts.

        What the compile cache did comes first, if it was asked. `choices.write_log` writes it.
        """
        return self._log.told(self.stats())

    def tell_refused(self, error: PycError) -> None:
        """Log a call that its caller gave up before it was made."""
        self._log.refused(error)

    def tell_fallback(self, name: str, why: str, code: ReasonCode) -> None:
        """Log a fallback that was taken, or refused."""
        self._log.add(FALLBACK, name, why, code, "the program")

    def answer(self, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Compute without guards, comparison and count, by the plan in use: for `Watch`."""
        mode = self._plans.current
        return self._answer(mode.arena if mode.by_arena else None, inputs)

    def ways(self) -> Ways:
        """All code that calls may take, by mode and entry, that of the plan in use first."""
        found = {}
        modes, current = self._plans.modes, self._plans.current
        for mode in sorted(modes.values(), key=lambda m: m is not current):
            if not (mode.by_arena and mode.arena is not None):
                found[mode.name, MAIN] = partial(self._answer, None)
            if mode.arena is not None:
                found[mode.name, mode.arena.name] = partial(self._answer, mode.arena)
        return found

    def _answer(self, arena: ArenaCall | None, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        arrays = [to_device(a, self.device) for a in inputs]
        if arena is None:
            return [r.numpy() for r in self._run(arrays)]
        return [r.numpy() for r in arena.call(arrays, arena.needs(arrays))]

    def take_plan(self, name: str, why: str, code: ReasonCode, drop: str | None = None) -> None:
        """Take the plan of another mode and drop one, as `Plans.take`."""
        self._plans.take(name, why, code, drop)

    def drop_plan(self, name: str) -> None:
        """Have no plan of that mode any more; it is not in use."""
        self._plans.drop(name)

    def take_code(self, run: Callable[[Sequence[Array]], list[Array]]) -> None:
        """Let `run` answer from now on; it has no plans."""

        def put() -> None:
            self._run = gated(run, self._most_calls)

        self._plans.replace(PlannedMode("", None, False), put)

    def compare_every(self, calls: int) -> None:
        """Compare every so many calls with the reference too, besides the first of each shape.

        Raises PycError (NO_ORACLE) where none can be asked: without `max_error` in the contract,
        or in another process than the one that compiled; BAD_ARGUMENT for no number above 0.
        """
        if type(calls) is not int or calls < 1:
            said = f"compare_every: expected a whole number above 0, got {calls!r}"
            raise PycError(ReasonCode.BAD_ARGUMENT, said)
        evidence = self.artifact.evidence
        if self._watch is None or evidence is None or evidence.oracle is None:
            raise PycError(
                ReasonCode.NO_ORACLE,
                "compare_every: expected a program compiled in this process under `max_error`, "
                "got one without a reference to ask",
            )
        self._watch.every = calls

    @property
    def verdict(self) -> Verdict | None:
        """How the samples compared, to be stored beside the artifact; None without `max_error`."""
        return None if self._watch is None else self._watch.verdict

    @property
    def mode(self) -> str:
        """The mode of the planner whose plan calls take now."""
        return self._plans.current.name

    @property
    def modes(self) -> dict[str, int | None]:
        """The modes of the artifact's plans, and bytes of each one's arena.

        None where they depend on the call, or where there is no entry that takes an arena.
        """
        found = self._plans.modes.items()
        return {n: None if m.arena is None else m.arena.facts.arena_bytes for n, m in found}

    def use_mode(self, name: str) -> None:
        """Let calls that begin from now on take the plan of another mode; ends a rule.

        Arenas of the old mode are let go when no call works in them. Raises PycError
        (BAD_ARGUMENT) for a mode that the artifact has no plan of.
        """
        self._plans.take(name, "asked for", ReasonCode.MODE_SWITCHED)

    def switch_below(
        self, free_bytes: int, mode: str, free: Callable[[], int] | None = None
    ) -> None:
        """Take `mode` in calls that find fewer than `free_bytes` of device memory free.

        Otherwise calls take the mode that is in use now, or that of the rule which this one
        replaces. What the program's arenas hold counts as free. `free` tells the free bytes of
        the device's memory; without it Linux is asked, on CPUs. `use_mode` ends the rule. Raises
        PycError (BAD_ARGUMENT) for an unknown mode, and where nothing tells what is free.
        """
        self._plans.follow(free_bytes, mode, free, self.device)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{a.name}: {a}" for a in self.signature.inputs)
        outputs = ", ".join(str(a) for a in self.signature.outputs)
        return f"Program({inputs}) -> ({outputs}) on {self.device!r}"

    def stats(self) -> ProgramStats:
        """What the program did so far."""
        with self._lock:
            recent = list(self._recent)
            calls, failures, total = self._calls, self._guard_failures, self._seconds
        switches, switch_count = self._plans.told()
        counts = Counts() if self._watch is None else self._watch.counts()
        return ProgramStats(
            calls=calls,
            guard_failures=failures,
            seconds_total=total,
            seconds_last=recent[-1] if recent else None,
            seconds_median=statistics.median(recent) if recent else None,
            memory=self.device.memory(),
            artifact_bytes=len(self.artifact.vmfb),
            constants_bytes=self.artifact.manifest["constants_bytes"],
            account=self.artifact.account,
            arena_bytes=self._pool.bytes,
            arena_waits=self._pool.waits,
            mode=self.mode,
            mode_switches=switch_count,
            switches=switches,
            contract=so_far(self.artifact, counts, recent, self._other_runtime),
            comparisons=counts.compared,
            wrong_results=0 if self._watch is None else self._watch.wrong,
            fallbacks=() if self._watch is None else tuple(self._watch.taken),
            imported=self.artifact.imported,
            cache=self.artifact.cached,
            other_runtime=self._other_runtime,
        )

    def save(self, path: str | Path) -> None:
        """Write the artifact; `pyc_mlir.runtime.load.load` and `iree-run-module` read it.

        A file that is there is replaced whole. Raises PycError (FILE_ACCESS).
        """
        artifacts.write(self.artifact, path)

    def bare_call(self, *arrays: Array) -> Any:
        """A function that invokes with these arrays and does nothing else: to measure against."""
        admitted, _, _ = self._admit(arrays, self._plans.current)
        return self._entry.bare_call(admitted)

    def _admit(
        self, args: Sequence[Any], mode: PlannedMode
    ) -> tuple[Sequence[Array], Launch, bool]:
        """Check the guards, then bring what is elsewhere to the device.

        Returns the arrays, what the call needs, and whether any argument was on a device.
        """
        on_device = any(is_on_device(a) for a in args)
        try:
            sources = [readable(a, self.device) for a in args]
            specs = tuple((tuple(s.shape), s.dtype, self.device) for s in sources)
            launch = mode.accepted.get(specs)
            if launch is None:
                self.signature.check([spec[:2] for spec in specs])
        except PycError:
            with self._lock:
                self._guard_failures += 1
            raise
        arrays = [to_device(s, self.device) for s in sources]
        if launch is None:
            launch = _NOTHING if mode.arena is None else mode.arena.needs(arrays)
            if len(mode.accepted) >= _MAX_VERDICTS:
                mode.accepted.clear()
            mode.accepted[specs] = launch
        return arrays, launch, on_device


def _stand_in(artifact: Artifact, device: Device) -> Callable[[Sequence[Array]], list[Array]]:
    """The code of another artifact of the same program."""
    program = Program(replace(artifact, manifest={**artifact.manifest, "contract": {}}), device)
    return program._run
