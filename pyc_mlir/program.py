"""What a compile returns: a program on a device, guarded, counted, and able to be saved.

    program(a, b)  ->  results

Arguments are numpy arrays, our `Array`s, IREE's device arrays or anything with DLPack. The rule
for results: if any argument was on a device, results are `Array`s on the program's device, else
numpy arrays. One result comes alone, several as a tuple. Guards run before anything else.

    program(a, b, out=c)  ->  c

writes into an array of the caller. Scratch comes from a pool of arenas that the program owns, one
for each call that the contract lets overlap; further calls wait.
"""

import statistics
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from time import perf_counter
from typing import Any

from pyc_mlir import artifact as artifacts
from pyc_mlir.account import Account
from pyc_mlir.artifact import ARENA, MAIN, Artifact
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.arena_call import ArenaCall, Launch
from pyc_mlir.iree.arenas import ArenaPool
from pyc_mlir.iree.array import Array, Spec, is_on_device, readable, to_device
from pyc_mlir.iree.device import Device, MemoryStatistics, host_cpu
from pyc_mlir.iree.executable import Executable, ResultType
from pyc_mlir.outputs import check_outputs, refuse_donation
from pyc_mlir.pipelines.contract import Contract

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
    and `arena_waits` counts the calls that found all arenas in use."""

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


class Program:
    """A compiled program on a device. Several threads may call it."""

    __slots__ = (
        "_accepted",
        "_arena",
        "_by_arena",
        "_calls",
        "_entry",
        "_guard_failures",
        "_lock",
        "_recent",
        "_run",
        "_seconds",
        "artifact",
        "device",
        "signature",
    )

    def __init__(self, artifact: Artifact, device: Device | None = None) -> None:
        """Load `artifact` on `device` (None: the process's own for the artifact's target).

        Raises PycError: BAD_ARTIFACT, or DEVICE_UNAVAILABLE when the program needs another
        device, or CPU features that this machine lacks.
        """
        manifest = artifact.manifest
        self.artifact = artifact
        self.signature = artifact.signature
        self.device = Device.default_for(manifest["device"]) if device is None else device
        _check_device(manifest["device"], manifest["features"], self.device)
        results = [ResultType(o.dtype, o.static_shape) for o in self.signature.outputs]
        entries, contract = manifest["entries"], Contract.from_json(manifest["contract"])
        executable = Executable(artifact.vmfb, self.device)
        self._entry = executable.entry(entries[MAIN]["function"], results)
        # A bound method is called sooner than an object.
        self._run = self._entry.__call__
        self._arena: ArenaCall | None = None
        if ARENA in entries:
            pool = ArenaPool(self.device, contract.max_concurrency)
            self._arena = ArenaCall(executable, entries[ARENA]["function"], results, pool)
        self._by_arena = _arena_pays(self._arena, contract, self.device)
        # Argument lists that passed the guards (shapes, element types and device of each), and
        # what a call with them needs.
        self._accepted: dict[tuple[Spec, ...], Launch] = {}
        self._lock = threading.Lock()
        self._calls = 0
        self._guard_failures = 0
        self._seconds = 0.0
        self._recent: deque[float] = deque(maxlen=_RECENT_CALLS)

    def __call__(self, *args: Any, out: Any = None, donate: Sequence[int] = ()) -> Any:
        """Run the program. Raises PycError before anything runs when the arguments do not fit:

        ARGUMENT_COUNT, ARGUMENT_DTYPE, ARGUMENT_SHAPE, DIMENSION_MISMATCH or BAD_ARGUMENT; and
        RUNTIME_FAILED when the device refuses or fails.

        out: an `Array` of this device for the result, or a sequence with one for each result
            (None: a fresh one); they are written and returned. Their memory must not be an
            input's or each other's (OUTPUT_OVERLAP); NO_ARENA_ENTRY where the program cannot.
        donate: numbers of inputs whose memory may be overwritten. Refused (DONATION_UNSAFE):
            nothing proves yet that an input was read before an output is written there.
        """
        began = perf_counter()
        # The way of calls with arrays of this device that were seen before is the short one.
        try:
            launch = self._accepted.get(tuple(map(_spec_of, args)))
        except (AttributeError, TypeError):
            launch = None
        arrays, on_device = args, True
        if launch is None:
            arrays, launch, on_device = self._admit(args)
        if out is not None or donate:
            values = self._into(arrays, launch, out, donate)
        else:
            arena = self._arena
            if self._by_arena and arena is not None:
                values = arena.call(arrays, launch)
            else:
                values = self._run(arrays)
            if not on_device:
                values = [r.host() for r in values]
        seconds = perf_counter() - began
        with self._lock:
            self._calls += 1
            self._seconds += seconds
            self._recent.append(seconds)
        return values[0] if len(values) == 1 else tuple(values)

    def _into(
        self, arrays: Sequence[Array], launch: Launch, out: Any, donate: Sequence[int]
    ) -> Sequence[Array]:
        """Call with memory of the caller. Raises PycError, as `__call__` says."""
        try:
            refuse_donation(donate, self.signature)
            given = check_outputs(out, launch, arrays, self.signature, self._arena)
        except PycError:
            with self._lock:
                self._guard_failures += 1
            raise
        assert self._arena is not None
        return self._arena.call(arrays, launch, given)

    def __repr__(self) -> str:
        inputs = ", ".join(f"{a.name}: {a}" for a in self.signature.inputs)
        outputs = ", ".join(str(a) for a in self.signature.outputs)
        return f"Program({inputs}) -> ({outputs}) on {self.device!r}"

    def stats(self) -> ProgramStats:
        """What the program did so far."""
        with self._lock:
            recent = list(self._recent)
            calls, failures, total = self._calls, self._guard_failures, self._seconds
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
            arena_bytes=0 if self._arena is None else self._arena.pool.bytes,
            arena_waits=0 if self._arena is None else self._arena.pool.waits,
        )

    def save(self, path: str | Path) -> None:
        """Write the artifact; `pyc_mlir.runtime.load` and `iree-run-module` read it.

        Raises PycError (BAD_ARGUMENT) where no file can be written at `path`.
        """
        try:
            artifacts.write(self.artifact, path)
        except OSError as error:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"save: expected the path of a file to write, got {str(path)!r}: {error.strerror}",
            ) from None

    def bare_call(self, *arrays: Array) -> Any:
        """A function that invokes with these arrays and does nothing else: to measure against."""
        admitted, _, _ = self._admit(arrays)
        return self._entry.bare_call(admitted)

    def _admit(self, args: Sequence[Any]) -> tuple[Sequence[Array], Launch, bool]:
        """Check the guards, then bring what is elsewhere to the device.

        Returns the arrays, what the call needs, and whether any argument was on a device.
        """
        on_device = any(is_on_device(a) for a in args)
        try:
            sources = [readable(a, self.device) for a in args]
            specs = tuple((tuple(s.shape), s.dtype, self.device) for s in sources)
            launch = self._accepted.get(specs)
            if launch is None:
                self.signature.check([spec[:2] for spec in specs])
        except PycError:
            with self._lock:
                self._guard_failures += 1
            raise
        arrays = [to_device(s, self.device) for s in sources]
        if launch is None:
            launch = _NOTHING if self._arena is None else self._arena.needs(arrays)
            self._remember(specs, launch)
        return arrays, launch, on_device

    def _remember(self, specs: tuple[Spec, ...], launch: Launch) -> None:
        if len(self._accepted) >= _MAX_VERDICTS:
            self._accepted.clear()
        self._accepted[specs] = launch


def _arena_pays(arena: ArenaCall | None, contract: Contract, device: Device) -> bool:
    """Whether calls go through the arena: not without scratch, where `main` is as good.

    On GPUs, where a fresh output from the allocator may cost more than one in IREE's own queue,
    only under a budget, which counts the arenas.
    """
    if arena is None or arena.facts.arena_bytes == 0:
        return False
    return device.is_cpu or contract.memory_budget_bytes is not None


def _check_device(needed: str, features: Sequence[str], device: Device) -> None:
    if needed != device.runs:
        raise PycError(
            ReasonCode.DEVICE_UNAVAILABLE,
            f"program: expected a device of kind `{needed}`, got {device!r}; compile for a "
            "target of that device, or pass another device",
        )
    cpu = host_cpu() if device.is_cpu else None
    # Linux names no x86 features on other machines; there IREE itself refuses the program.
    lacking = sorted(set(features) - cpu.features) if cpu is not None else []
    if lacking:
        raise PycError(
            ReasonCode.DEVICE_UNAVAILABLE,
            f"program: expected a CPU with {', '.join(sorted(features))}, got one without "
            f"{', '.join(lacking)}; compile for target `cpu` on this machine",
        )
