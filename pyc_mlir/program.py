"""What a compile returns: a program on a device, guarded, counted, and able to be saved.

    program(a, b)  ->  results

Arguments are numpy arrays, our `Array`s, IREE's device arrays or anything with DLPack. The rule
for results: if any argument was on a device, results are `Array`s on the program's device, else
numpy arrays. One result comes alone, several as a tuple. Guards run before anything else.
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
from pyc_mlir.artifact import Artifact
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.array import Array, Spec, is_on_device, readable, to_device
from pyc_mlir.iree.device import Device, MemoryStatistics, host_cpu
from pyc_mlir.iree.executable import Executable, ResultType

# Verdicts of the guards that are remembered, and call times that the median is taken from.
_MAX_VERDICTS = 4096
_RECENT_CALLS = 1024
# In C, as is all that can be on the way of every call.
_spec_of = attrgetter("spec")


@dataclass(frozen=True)
class ProgramStats:
    """What a program did. Times are seconds of whole calls, guards and conversions included;
    the median is that of the last 1,024 calls; memory is that of the whole device."""

    calls: int
    guard_failures: int
    seconds_total: float
    seconds_last: float | None
    seconds_median: float | None
    memory: MemoryStatistics
    artifact_bytes: int
    constants_bytes: int


class Program:
    """A compiled program on a device. Several threads may call it."""

    __slots__ = (
        "_accepted",
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
        function = manifest["entries"]["main"]["function"]
        self._entry = Executable(artifact.vmfb, self.device).entry(function, results)
        # A bound method is called sooner than an object.
        self._run = self._entry.__call__
        # Argument lists that passed the guards: shapes, element types and device of each.
        self._accepted: set[tuple[Spec, ...]] = set()
        self._lock = threading.Lock()
        self._calls = 0
        self._guard_failures = 0
        self._seconds = 0.0
        self._recent: deque[float] = deque(maxlen=_RECENT_CALLS)

    def __call__(self, *args: Any) -> Any:
        """Run the program. Raises PycError before anything runs when the arguments do not fit:

        ARGUMENT_COUNT, ARGUMENT_DTYPE, ARGUMENT_SHAPE, DIMENSION_MISMATCH or BAD_ARGUMENT; and
        RUNTIME_FAILED when the device refuses or fails.
        """
        began = perf_counter()
        # The way of calls with arrays of this device that were seen before is the short one.
        try:
            known = tuple(map(_spec_of, args)) in self._accepted
        except (AttributeError, TypeError):
            known = False
        arrays, on_device = (args, True) if known else self._admit(args)
        results = self._run(arrays)
        values = results if on_device else [r.host() for r in results]
        seconds = perf_counter() - began
        with self._lock:
            self._calls += 1
            self._seconds += seconds
            self._recent.append(seconds)
        return values[0] if len(values) == 1 else tuple(values)

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
        admitted, _ = self._admit(arrays)
        return self._entry.bare_call(admitted)

    def _admit(self, args: Sequence[Any]) -> tuple[Sequence[Array], bool]:
        """Check the guards, then bring what is elsewhere to the device.

        Returns the arrays, and whether any argument was on a device.
        """
        on_device = any(is_on_device(a) for a in args)
        try:
            sources = [readable(a, self.device) for a in args]
            specs = tuple((tuple(s.shape), s.dtype, self.device) for s in sources)
            if specs not in self._accepted:
                self.signature.check([spec[:2] for spec in specs])
                self._remember(specs)
        except PycError:
            with self._lock:
                self._guard_failures += 1
            raise
        return [to_device(s, self.device) for s in sources], on_device

    def _remember(self, specs: tuple[Spec, ...]) -> None:
        if len(self._accepted) >= _MAX_VERDICTS:
            self._accepted.clear()
        self._accepted.add(specs)


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
