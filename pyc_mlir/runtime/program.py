"""A compiled program on a device: guarded, counted, and able to be saved.

    program(a, b)  ->  results

Arguments are numpy arrays, our `Array`s, IREE's device arrays, anything with DLPack (torch's
tensors, say), Python numbers and lists of them; by position, by name, or in the trees of tuples,
lists and dicts that the compiled function takes. The rule for results: if any argument was on a
device, results are `Array`s on the program's device, else numpy arrays. They come as the compiled
function returns them, in lists, tuples and dicts (a named tuple as a tuple); of other models one
result comes alone, several as a tuple. Guards run before anything else.

    program(a, b, out=c)  ->  c

writes into an array of the caller, of the device or of numpy. Scratch comes from a pool of arenas
that the program owns, one for each call that the contract lets overlap; further calls wait.

`use_mode` takes another plan, `switch_below` when memory is short; `adapt` has a selector choose.
Under `max_error` answers are compared with the reference (monitor.py). `log` tells the rest.
"""

import statistics
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.contract_status import Counts, current_report
from pyc_mlir.artifact.signature import PLAIN, decode, filled
from pyc_mlir.artifact.verification import Verification
from pyc_mlir.dialects.errors import PycError, ReasonCode, out_of_memory
from pyc_mlir.pipelines.choices.log import Event
from pyc_mlir.runtime.array import Array, is_on_device, readable, to_device
from pyc_mlir.runtime.counts import check_memory
from pyc_mlir.runtime.device import ALLOCATORS, Device, host_cpu
from pyc_mlir.runtime.events import LOAD, ProgramStats, few
from pyc_mlir.runtime.executable import other_runtime
from pyc_mlir.runtime.monitor import Code, Monitor, compare_every
from pyc_mlir.runtime.outputs import check_outputs, donated_memory, donors, fill, no_entry, on_host
from pyc_mlir.runtime.plans import Accepted, PlannedMode, Run, Serving
from pyc_mlir.runtime.pool import POOL
from pyc_mlir.runtime.selection.adaptive import Adaptive
from pyc_mlir.runtime.selection.selector import Selector
from pyc_mlir.util.html import facts_table

if TYPE_CHECKING:
    from pyc_mlir.pipelines.target.calibration import Calibration
    from pyc_mlir.profile.guards import GuardTable
    from pyc_mlir.profile.profile import Profile

# The number of call times behind the median.
_RECENT_CALLS = 1024
_KEEP_ALL: tuple[int, ...] = ()
_NO_HOSTS: Mapping[int, Any] = MappingProxyType({})
_spec_of = attrgetter("spec")  # in C, as is all that can be on the way of every call


class Program:
    """A compiled program on a device. Several threads may call it."""

    __slots__ = (
        "_adaptive",
        "_calls",
        "_guard_failures",
        "_lock",
        "_log",
        "_monitor",
        "_other_runtime",
        "_plans",
        "_recent",
        "_results",
        "_seconds",
        "_serving",
        "artifact",
        "device",
        "signature",
    )

    def __init__(
        self,
        artifact: Artifact,
        device: Device | None = None,
        verification: Verification | None = None,
    ) -> None:
        """Load `artifact` on `device` (None: the process's own for the artifact's target).

        verification: the record of an earlier load under `max_error`; if it is of this machine,
        nothing is compared again.

        Raises PycError: BAD_ARTIFACT, DEVICE_UNAVAILABLE when the program needs another device, or
        CPU features that this machine lacks, and WRONG_RESULT when it fails its comparison.
        """
        manifest = artifact.manifest
        self.artifact = artifact
        self.signature = artifact.signature
        self._results = decode(self.signature.results, len(self.signature.outputs))
        contract = manifest.contract
        # A budget counts what a call holds, not what an allocator keeps of earlier ones.
        recycles = contract.memory_budget_bytes is None
        self.device = device or Device.default_for(manifest.device, manifest.seconds, recycles)
        self._serving = Serving(artifact, self.device, contract)
        self._plans, self._log = self._serving.plans, self._serving.log
        self._lock = threading.Lock()
        graph = manifest.graph_id or "none"
        self._log.add(LOAD, repr(self.device), f"graph {graph}, mode {self.mode or 'none'}")
        self._other_runtime = other_runtime(manifest.versions)
        if self._other_runtime:
            self._log.differs(self._other_runtime)
        self._adaptive: Adaptive | None = None
        self._calls = 0
        self._guard_failures = 0
        self._seconds = 0.0
        self._recent: deque[float] = deque(maxlen=_RECENT_CALLS)
        self._monitor: Monitor | None = None
        if contract.compares:
            self._monitor = Monitor(self._serving, contract, _stand_in)
            self._monitor.check_samples(verification)

    def __call__(
        self, /, *args: Any, out: Any = None, donate: Sequence[int] = _KEEP_ALL, **named: Any
    ) -> Any:
        """Run the program. Raises PycError before anything runs when the arguments do not fit:

        ARGUMENT_COUNT, ARGUMENT_DTYPE, ARGUMENT_SHAPE, DIMENSION_MISMATCH or BAD_ARGUMENT; and
        RUNTIME_FAILED when the device refuses or fails, OUT_OF_MEMORY.

        args, named: one array for each input, or trees of them, as `Signature.arranged` says.
        out: an `Array` of this device or an array of numpy for the result, or a sequence with one
            for each result (None: a fresh one); they are written and returned. Memory of an
            `Array` must not be an input's or another output's (OUTPUT_OVERLAP), and NO_ARENA_ENTRY
            where the program cannot; results are copied into arrays of numpy.
        donate: numbers of inputs whose memory a result of as many bytes takes; an `Array` given
            there cannot be used afterwards. Refused (DONATION_UNSAFE) unless the plan proves
            that the input was read before the result is written.
        """
        began = perf_counter()
        monitor = self._monitor
        # Read before the mode: what answers later than a fallback is told by it.
        generation = 0 if monitor is None else monitor.generation
        plans = self._plans
        mode = plans.current if plans.rule is None else plans.by_rule()
        # The way of calls with arrays of this device that were seen before is the short one.
        try:
            accepted = mode.accepted.get(tuple(map(_spec_of, args)))
        except (AttributeError, TypeError):
            accepted = None
        try:
            if accepted is None or named or out is not None or donate is not _KEEP_ALL:
                found = self._general(args, named, out, donate, mode, generation, began)
                values, seconds, plan = found
            else:
                if self.signature.indices:
                    with self._guards():
                        self.signature.check_indices(args)
                values, plan = self._answered(mode, accepted, args)
                seconds = perf_counter() - began
                if monitor is not None:
                    values = monitor.checked(args, values, Code(generation, mode.name, into=False))
        except Exception as error:
            memory = None if isinstance(error, PycError) else out_of_memory(error)
            raised = memory or error
            if isinstance(raised, PycError):
                self._log.refused(raised)
            if memory is None:
                raise
            raise memory from None
        with self._lock:
            self._calls += 1
            plan.calls += 1
            self._seconds += seconds
            self._recent.append(seconds)
        return structured(self, values)

    def _general(
        self,
        args: Sequence[Any],
        named: Mapping[str, Any],
        out: Any,
        donate: Sequence[int],
        mode: PlannedMode,
        generation: int,
        began: float,
    ) -> tuple[Sequence[Any], float, PlannedMode]:
        """Call with any arguments; return the results, the seconds that it took, and the plan."""
        arrays, accepted, on_device = self._admit(args, named, mode)
        memory, hosts = None, _NO_HOSTS
        if out is not None or donate is not _KEEP_ALL:
            with self._guards():
                donate = donors(donate)
                memory, hosts = on_host(out, self.signature)
        if memory is not None or donate:
            values = self._into(mode, arrays, accepted, memory, donate)
            if memory is None and not on_device:
                values = [r.own() for r in values]
            return fill(hosts, values), perf_counter() - began, accepted[0]
        values, plan = self._answered(mode, accepted, arrays)
        if not on_device:
            values = [r.own() for r in values]
        seconds = perf_counter() - began
        if self._monitor is not None:
            code = Code(generation, mode.name, into=False)
            values = self._monitor.checked(arrays, values, code)
        return (fill(hosts, values) if hosts else values), seconds, plan

    def _answered(
        self, mode: PlannedMode, accepted: Accepted, arrays: Sequence[Array]
    ) -> tuple[Sequence[Any], PlannedMode]:
        if self._adaptive is not None:
            return self._adaptive.call(mode, accepted, arrays)
        plan, needs = accepted
        if plan.by_arena and plan.arena is not None:
            return plan.arena.call(arrays, needs), plan
        return (plan.run or self._serving.run)(arrays), plan

    def _into(
        self,
        mode: PlannedMode,
        arrays: Sequence[Array],
        accepted: Accepted,
        out: Any,
        donate: Sequence[int],
        again: bool = False,
    ) -> Sequence[Array]:
        """Call with memory of the caller. Raises PycError, as `__call__` says.

        What is due to be compared is computed in other memory first.
        """
        plan, needs = accepted
        monitor, arena = self._monitor, plan.arena
        with self._guards():
            if donate and monitor is not None and monitor.compares_calls:
                raise PycError(
                    ReasonCode.DONATION_UNSAFE,
                    "donate: expected a contract without `max_error`, got one whose reference "
                    "reads the inputs after the call; call without `donate`",
                )
            if arena is None:
                raise no_entry("donate" if donate else "out", mode.stand_in)
            known = needs, arrays, self.signature, arena
            donated = donated_memory(donate, out, *known) if donate else {}
            memory = check_outputs(out, *known, donated)
        if monitor is not None:
            code = Code(monitor.generation, mode.name, into=True)
            if not monitor.approves(arrays, code, partial(arena.call, arrays, needs), again):
                now = self._plans.current
                return self._into(now, arrays, now.accept(arrays), out, donate, again=True)
        # Whatever becomes of the call, the inputs may be overwritten.
        for number, _ in donated.values():
            arrays[number].give_away()
        return arena.call(arrays, needs, memory)

    @contextmanager
    def _guards(self) -> Iterator[None]:
        """Count the PycError of a check that a call does not pass."""
        try:
            yield
        except PycError:
            with self._lock:
                self._guard_failures += 1
            raise

    def log(self) -> tuple[Event, ...]:
        """List the latest events with their codes, and a last line that counts.

        What the compile cache did comes first, if it was asked. `choices.log.write_log` writes it.
        """
        return self._log.events(self.stats())

    def guards(self) -> "GuardTable":
        """Return the guards: what each checks, its cost on this machine, how often it fired."""
        from pyc_mlir.profile.guards import guards_of

        return guards_of(self.artifact, self._log.fired())

    def profile(
        self,
        /,
        *args: Any,
        calls: int | None = None,
        calibration: "Calibration | str | Path | None" = None,
        **named: Any,
    ) -> "Profile":
        """Measure where the time of a call with these arguments goes: a row for each dispatch.

        calls: how many are profiled; None: as many as take two seconds, 9 to 90.
        calibration: figures of this machine, or their file; rooflines rest on them.
        Raises PycError as `__call__`, CANNOT_PROFILE on devices without IREE's profiling.
        """
        # Measuring takes what calls do not need.
        from pyc_mlir.profile import build

        device, mode = self.device, self._plans.current
        arrays, accepted, _ = self._admit(args, named, mode)
        function, storage = self._serving.entry_by_name(*accepted)
        # Calls keep their arena; the plain entry in its place would get new pages in each call.
        kept = "caching" if accepted[0].by_arena and not storage else device.allocator or ""
        allocator = ALLOCATORS.get(kept, "")
        # IREE's tools know nothing of helpers; its one worker records entries with arenas too.
        kind, threads, helped = device.kind, device.threads or 0, 1
        if kind == "local":
            kind, threads, helped = "local-task", 1, threads
        how = build.TimerSettings(kind, threads, allocator=allocator)

        def own() -> None:
            self._answered(mode, mode.accepted.get(tuple(map(_spec_of, arrays)), accepted), arrays)

        model = build.model_of(self.artifact, host_cpu(), how.threads, calibration)
        values, record = [a.numpy() for a in arrays], partial(POOL.record, own)
        call = build.ProfiledCall(function, values, storage, record, helped)
        return build.measure(self.artifact, call, how, model, calls)

    def compare_every(self, calls: int) -> None:
        """Compare every so many calls with the reference too, besides the first of each shape.

        Raises PycError (NO_ORACLE) where none can be asked: without `max_error` in the contract,
        or in another process than the one that compiled; BAD_ARGUMENT for no number above 0.
        """
        compare_every(self._monitor, calls)

    def check_memory(self, every: float | None = None) -> None:
        """Compare weights and code in memory with what was loaded: `counts.check_memory`."""
        check_memory(self._serving.faults, every)

    @property
    def verification(self) -> Verification | None:
        """The comparison of the samples, to be stored with the artifact; None if not asked for."""
        return None if self._monitor is None else self._monitor.verification

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

    @property
    def shape_plans(self) -> tuple[str, ...]:
        """The sizes of the plans for certain shapes, in the order in which the guard asks them."""
        return tuple(plan.name for mode in self._plans.modes.values() for plan in mode.of_shapes)

    def adapt(
        self,
        selector: Selector | None,
        *,
        modes: bool = True,
        builds: "Mapping[str, Program] | None" = None,
    ) -> None:
        """Let a selector choose in service among the plans of the program; None ends that.

        modes: other modes' plans may be taken too; all share arenas that hold the largest of them.
        builds: by any names, other builds and the same on other threads, compared with it first.
        Results may differ in their last bits. Raises PycError: CONTRACT_CONFLICT under strict
        determinism and `max_error`, BAD_ARGUMENT and WRONG_RESULT for what is of another program.
        """
        others = {name: build._serving for name, build in (builds or {}).items()}
        self._adaptive = selector and Adaptive(selector, self._serving, modes, others)

    def donatable(self, inputs: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of those `inputs` that a call may donate together, in every mode.

        As many as there are results proven to fit; none under a contract with `max_error`.
        """
        return () if self._monitor is not None else self._plans.donatable(inputs)

    def use_mode(self, name: str) -> None:
        """Let calls that begin from now on take the plan of another mode; ends a rule.

        Raises PycError (BAD_ARGUMENT) for a mode that the artifact has no plan of.
        """
        self._plans.take(name, "asked for", ReasonCode.MODE_SWITCHED)

    def switch_below(
        self, free_bytes: int, mode: str, free: Callable[[], int] | None = None
    ) -> None:
        """Take `mode` in calls that find fewer than `free_bytes` of device memory free.

        Otherwise calls take the mode in use now, or that of the rule which this one replaces. What
        arenas hold counts as free. `free` tells the free bytes; without it Linux is asked, on CPUs.
        Raises PycError (BAD_ARGUMENT) for an unknown mode, and where nothing tells what is free.
        """
        self._plans.follow(free_bytes, mode, free, self.device)

    def __repr__(self) -> str:
        inputs = few([f"{a.name}: {a}" for a in self.signature.inputs])
        outputs = few([str(a) for a in self.signature.outputs])
        return f"Program({inputs}) -> ({outputs}) on {self.device!r}"

    def _repr_html_(self) -> str:
        rows = {
            "inputs": few([f"{a.name}: {a}" for a in self.signature.inputs]),
            "outputs": few([f"{a.name}: {a}" for a in self.signature.outputs]),
            "device": repr(self.device),
            "mode": self.mode or "none",
            "memory": self.artifact.memory_line,
            "calls": str(self.stats().calls),
        }
        return facts_table("Program", rows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the bytes of the artifact alone; loading takes its target's default device."""
        return _unpickled, (artifacts.to_bytes(self.artifact),)

    def stats(self) -> ProgramStats:
        """Return what the program did so far."""
        with self._lock:
            recent = list(self._recent)
            calls, failures, total = self._calls, self._guard_failures, self._seconds
        switches, switch_count = self._plans.latest_switches()
        counts = Counts() if self._monitor is None else self._monitor.counts()
        adaptive, serving = self._adaptive, self._serving
        return ProgramStats(
            calls=calls,
            guard_failures=failures,
            seconds_total=total,
            seconds_last=recent[-1] if recent else None,
            seconds_median=statistics.median(recent) if recent else None,
            memory=self.artifact.account,
            device_memory=self.device.memory(),
            artifact_bytes=len(self.artifact.vmfb),
            arena_bytes=serving.pool.bytes,
            arena_waits=serving.pool.waits,
            mode=self.mode,
            mode_switches=switch_count,
            switches=switches,
            contract=current_report(self.artifact, counts, recent, self._other_runtime),
            comparisons=counts.compared,
            wrong_results=0 if self._monitor is None else self._monitor.wrong,
            fallbacks=() if self._monitor is None else tuple(self._monitor.taken),
            imported=self.artifact.imported,
            cache=self.artifact.cached,
            check=None if self.artifact.checks is None else self.artifact.checks.check,
            served={**self._plans.served(), **({} if adaptive is None else adaptive.served())},
            routes=() if adaptive is None else adaptive.selector.counts(),
            other_runtime=self._other_runtime,
            faults=serving.faults and serving.faults.counts,
            approximations=serving.approximations and serving.approximations.counts,
        )

    def trim(self) -> None:
        """Let go of what no call works in: arenas, and memory that the device keeps for later."""
        self._serving.pool.trim()
        self.device.hal.allocator.trim()

    def save(self, path: str | Path) -> None:
        """Write the artifact; `pyc_mlir.runtime.load.load` and `iree-run-module` read it.

        A file that is there is replaced whole. Raises PycError (FILE_ACCESS).
        """
        artifacts.write(self.artifact, path)

    def _admit(
        self, args: Sequence[Any], named: Mapping[str, Any], mode: PlannedMode
    ) -> tuple[Sequence[Array], Accepted, bool]:
        """Check the guards, then bring what is elsewhere to the device.

        Returns the arrays, what the call needs, and whether any argument was on a device.
        """
        with self._guards():
            if named or any(isinstance(a, PLAIN) for a in args):
                args = self.signature.arranged(args, named)
            on_device = any(map(is_on_device, args))
            sources = [readable(a, self.device) for a in args]
            specs = tuple((tuple(s.shape), s.dtype, self.device) for s in sources)
            accepted = mode.accepted.get(specs)
            if accepted is None:
                self.signature.check([spec[:2] for spec in specs])
            self.signature.check_indices(sources)
        arrays = [to_device(s, self.device) for s in sources]
        if accepted is None:
            accepted = mode.accept(arrays, specs)
        return arrays, accepted, on_device


def serving(program: Program) -> Serving:
    """Return what answers behind the guards of a program, for checks and measurements of PyC."""
    return program._serving


def structured(program: Program, values: Sequence[Any]) -> Any:
    """Return results as a call of the program does: in the structure of the compiled function."""
    if program._results is not None:
        return filled(program._results, list(values))
    return values[0] if len(values) == 1 else tuple(values)


def _unpickled(data: bytes) -> Program:
    return Program(artifacts.from_bytes(data, "pickle"))


def _stand_in(artifact: Artifact, device: Device) -> Run:
    return Program(artifact.unbound, device)._serving.run
