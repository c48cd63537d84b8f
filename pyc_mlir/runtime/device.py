"""A `Device`: one of IREE's devices under a driver of its own.

``local`` is IREE's ``local-sync``, whose calls run in the caller's thread, with the threads of
`pool.py` that help. ``local-task`` has IREE's own workers: for programs that PyC did not compile,
and for CPUs other than x86-64.

A driver of its own makes the memory statistics exact: IREE's peak only ever grows, per driver.
They are exact but for ``local-task``, which leaves the transients of its pool out.
Memory lives as long as the objects that refer to IREE's device; each `Array` does so itself,
because an array that outlived its device would end the process.
"""

import ctypes
import functools
import hashlib
import os
import re
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from iree import runtime as rt
from iree.runtime import _binding, flags
from iree.runtime.dtypes import map_dtype_to_hal_element_type

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.target.cost_constants import constant
from pyc_mlir.pipelines.target.cpu_features import TILE_FEATURES, may_use_tiles
from pyc_mlir.pipelines.target.target import CpuInfo, Target, available_cores, read_host_cpu
from pyc_mlir.runtime.pool import IS_SUPPORTED, POOL, usable_threads
from pyc_mlir.util.pages import LARGE_BYTES, advise_large
from pyc_mlir.util.threads import running, spread
from pyc_mlir.util.versions import runtime_version

CPU_KINDS = ("local", "local-sync", "local-task")
KINDS = (*CPU_KINDS, "cuda", "vulkan", "hip")
# Freed memory for the next request of the same size. Fresh pages of the system cost more than many
# kernels do: a result of 16 MiB takes 2 to 3 times as long without.
ALLOCATORS = {"caching": "caching", "recycling": "caching:*=512mib;512mib;4"}
DEFAULT_ALLOCATOR = "recycling"
_REMEDIES = {
    "cuda": "install NVIDIA's driver (libcuda.so), or run on `local`",
    "vulkan": "install a Vulkan loader and driver (Debian: mesa-vulkan-drivers), or run on `local`",
    "hip": "install AMD's ROCm runtime (libamdhip64.so), or run on `local`",
}
# The task topology is a flag of the whole process, read when a driver is created.
_TOPOLOGY = threading.Lock()
# What programs compute in; as plain numbers, since this is on the way of calls.
_MEMORY = int(rt.MemoryType.DEVICE_LOCAL)
_USAGE = int(rt.BufferUsage.DEFAULT)
# IREE's stubs leave out the one function that makes a driver which nobody shares.
_new_driver: Callable[[str], rt.HalDriver] = vars(_binding)["create_hal_driver"]


@dataclass(frozen=True)
class MemoryStatistics:
    """Bytes of device memory: the peak, those live now, and all that were ever allocated."""

    peak_bytes: int
    live_bytes: int
    allocated_bytes: int


_DEVICES: "weakref.WeakSet[Device]" = weakref.WeakSet()
# The process's own devices; those of CPUs by kind and by whether they recycle memory.
_CPUS: dict[tuple[str, bool], "Device"] = {}
_GPUS: "weakref.WeakValueDictionary[str, Device]" = weakref.WeakValueDictionary()
_DEFAULTS = threading.Lock()


def _mark_forked() -> None:
    """Mark a forked child, which has none of the devices' threads.

    To free a device, of any kind, is to wait for its threads: these are kept, beyond the end of the
    interpreter too. What the child loads gets a CPU device of its own.
    """
    global _TOPOLOGY, _DEFAULTS
    _TOPOLOGY, _DEFAULTS = threading.Lock(), threading.Lock()
    for device in _DEVICES:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(device.hal))
        device.forked = device.kind != "local-sync"
    for key in [key for key, device in _CPUS.items() if device.kind == "local-task"]:
        del _CPUS[key]


os.register_at_fork(after_in_child=_mark_forked)


class Device:
    """A device to run on, chosen once and shared by programs and arrays.

    `kind` is one of `KINDS`; `threads` is how many work on a call of ``local`` or ``local-task``
    (None: PYC_THREADS, or one a core that this process may use, within its CPU quota; workers of
    ``local-task`` for every core stay on their own); `allocator` None is IREE's, ``caching`` keeps
    freed memory for the next call, and ``recycling`` keeps at most four pieces and 512 MiB of it.
    `name` is what IREE calls a GPU; CPUs have none.
    Raises PycError: BAD_ARGUMENT, or DEVICE_UNAVAILABLE with a remedy.
    """

    __slots__ = ("__weakref__", "allocator", "forked", "hal", "kind", "name", "threads")

    def __init__(
        self, kind: str = "local", threads: int | None = None, allocator: str | None = None
    ) -> None:
        _check(kind, threads, allocator)
        self.kind = kind
        # True in a child process that was forked from the device's own: its threads are not there.
        self.forked = False
        if kind == "local":
            threads = (threads or usable_threads()) if IS_SUPPORTED else 1
        self.threads = 1 if kind == "local-sync" else threads
        self.allocator = allocator
        allocators: Any = None if allocator is None else [ALLOCATORS[allocator]]
        with _TOPOLOGY:
            if kind == "local-task":
                flags.parse_flags(f"--task_topology_group_count={threads or 0}")
            before = running()
            try:
                driver = _new_driver("local-sync" if kind == "local" else kind)
                self.hal = driver.create_default_device(allocators=allocators)
            except (RuntimeError, ValueError) as error:
                raise PycError(
                    ReasonCode.DEVICE_UNAVAILABLE,
                    f"device `{kind}`: expected a driver and a device, got: "
                    f"{_reason(error)}; {_REMEDIES.get(kind, 'see `pyc-doctor`')}",
                ) from None
            if kind == "local-task" and threads is not None:
                spread(before, threads)
        self.name = "" if self.is_cpu else _first_name(driver)
        _DEVICES.add(self)

    def __repr__(self) -> str:
        return f"Device({self.kind!r}, threads={self.threads}, allocator={self.allocator!r})"

    @staticmethod
    def default_for(
        target: Target | str, seconds: float | None = None, recycles: bool = True
    ) -> "Device":
        """Return the process's own device for a target, or for a device kind (``Target.device``).

        The same object every time, so that arrays go from program to program. Results of CPU
        programs go into recycled memory unless told otherwise: what is kept for later is in no
        account. A GPU's lasts as long as programs and arrays hold it: IREE has threads that wait
        for an open one, and with Mesa's software Vulkan device they poll, two cores' worth.
        """
        device = target if isinstance(target, str) else target.device
        if device == "local" and not IS_SUPPORTED:
            device = Device.cpu_kind(available_cores(), seconds)
        with _DEFAULTS:
            if device in CPU_KINDS:
                key = device, recycles
                if key not in _CPUS:
                    _CPUS[key] = Device(device, allocator=DEFAULT_ALLOCATOR if recycles else None)
                return _CPUS[key]
            return _GPUS.get(device) or _GPUS.setdefault(device, Device(device))

    @staticmethod
    def cpu_kind(cores: int, seconds: float | None = None) -> str:
        """Return IREE's kind for a CPU with so many cores: ``local-task`` if waking pays."""
        small = seconds is not None and seconds < constant("waking.worth_seconds")
        return "local-sync" if small or cores == 1 else "local-task"

    def revive(self) -> bool:
        """Start the threads of a forked child; return whether the device can be used there."""
        if self.kind == "local":
            POOL.start()
            self.forked = False
        return not self.forked

    @property
    def is_cpu(self) -> bool:
        """True when device memory is host memory."""
        return self.kind in CPU_KINDS

    @property
    def runs(self) -> str:
        """The `Target.device` of the programs that run here."""
        return "local" if self.is_cpu else self.kind

    def memory(self) -> MemoryStatistics:
        """Return the device memory of everything on this device since it was created.

        Zeros for a device that keeps no count.
        """
        counts: Mapping[str, int] = self.hal.allocator.statistics
        peak, allocated, freed = (
            counts.get(f"device_bytes_{name}", 0) for name in ("peak", "allocated", "freed")
        )
        return MemoryStatistics(peak, allocated - freed, allocated)

    def allocate(self, size: int) -> rt.HalBuffer:
        """Allocate `size` bytes of undefined contents for programs to work in.

        Raises PycError (RUNTIME_FAILED) when the device has none.
        """
        try:
            memory = self.hal.allocator.allocate_buffer(_MEMORY, _USAGE, size)
        except (RuntimeError, ValueError, MemoryError) as error:
            raise PycError(
                ReasonCode.RUNTIME_FAILED,
                f"device `{self.kind}`: expected {size} bytes of memory, got: {_reason(error)}",
            ) from None
        if size >= LARGE_BYTES and self.is_cpu:
            advise_large(_bytes_of(memory).ctypes.data, size)
        return memory

    def upload(self, array: np.ndarray) -> rt.HalBufferView:
        """Copy a numpy array of any layout to the device; return IREE's buffer view.

        Raises PycError (UNSUPPORTED_DTYPE) for an element type that IREE has no name for.
        """
        element_type = map_dtype_to_hal_element_type(array.dtype)
        if element_type is None:
            raise PycError(
                ReasonCode.UNSUPPORTED_DTYPE,
                f"device `{self.kind}`: expected an element type of IREE, got {array.dtype}",
            )
        packed = np.asarray(array, order="C")
        if packed.nbytes >= LARGE_BYTES and self.is_cpu:
            memory = self.allocate(packed.nbytes)
            _bytes_of(memory)[...] = packed.reshape(-1).view(np.uint8)
            return rt.HalBufferView(memory, packed.shape, element_type)
        view: Any = self.hal.allocator.allocate_buffer_copy(
            memory_type=rt.MemoryType.DEVICE_LOCAL,
            allowed_usage=rt.BufferUsage.DEFAULT,
            device=self.hal,
            buffer=packed,
            element_type=element_type,
        )
        return view

    def download(self, view: rt.HalBufferView, dtype: np.dtype) -> np.ndarray:
        """Copy a buffer to a fresh numpy array, by way of a buffer that the host can map."""
        if view.byte_length == 0:
            return np.empty(view.shape, dtype)
        source = view.get_buffer()
        staging = self.hal.allocator.allocate_buffer(
            memory_type=int(rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE),
            allowed_usage=int(rt.BufferUsage.TRANSFER_TARGET | rt.BufferUsage.MAPPING_SCOPED),
            allocation_size=source.byte_length(),
        )
        self.copy(source, staging)
        return np.array(staging.map().asarray(view.shape, dtype))

    def copy(self, source: rt.HalBuffer, target: rt.HalBuffer) -> None:
        """Copy one buffer of this device into another, and wait for it."""
        done = self.hal.create_semaphore(0)
        self.hal.queue_copy(
            source,
            target,
            wait_semaphores=rt.HalFence.create_at(done, 0),
            signal_semaphores=rt.HalFence.create_at(done, 1),
        )
        rt.HalFence.create_at(done, 1).wait()


def _bytes_of(memory: rt.HalBuffer) -> np.ndarray:
    return memory.map().asarray([memory.byte_length()], np.dtype(np.uint8))


def _first_name(driver: rt.HalDriver) -> str:
    """Return IREE's name of a driver's first device, the default one; empty if unknown."""
    try:
        first = next(iter(driver.query_available_devices()), {})
    except (RuntimeError, ValueError):
        return ""
    return " ".join(str(first[key]) for key in ("name", "path") if first.get(key))


@functools.cache
def host_cpu() -> CpuInfo | None:
    """Return this machine's CPU, with the cores that this process may use, read once.

    It has tile registers only where this process may use them. None where the system does not tell.
    """
    cpu = read_host_cpu()
    if cpu is None:
        return None
    features = cpu.features
    if features & TILE_FEATURES and not may_use_tiles():
        features -= TILE_FEATURES
    return replace(cpu, cores=min(cpu.cores, available_cores()), features=features)


def _check(kind: str, threads: int | None, allocator: str | None) -> None:
    if kind not in KINDS:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"device: expected one of {', '.join(KINDS)}, got {kind!r}{did_you_mean(kind, KINDS)}",
        )
    if threads is not None and (threads < 1 or kind not in ("local", "local-task")):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"device `{kind}`: expected threads of `local` or `local-task`, at least 1, "
            f"got {threads!r}",
        )
    if allocator is not None and allocator not in ALLOCATORS:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"device `{kind}`: expected allocator None or one of {', '.join(ALLOCATORS)}, "
            f"got {allocator!r}",
        )


def _reason(error: Exception) -> str:
    """Return the first line of what IREE says, without the source file that says it."""
    line = (str(error).splitlines() or [""])[0]
    return re.sub(r"^.*?\.c:\d+: ", "", line).strip(" :")


_GPU_DRIVER = Path("/proc/driver/nvidia/version")


def environment_of(device: Device, driver: Path = _GPU_DRIVER) -> dict[str, str]:
    """Return the environment of a verification record: runtime, device kind, CPU, GPU, driver.

    driver: where the system's GPU driver tells its release, if it does.
    """
    cpu = host_cpu()
    found = {
        "runtime": runtime_version(),
        "device": device.runs,
        "cpu": cpu.model if cpu else "",
        "features": hashlib.sha256(
            " ".join(sorted(cpu.features if cpu else ())).encode()
        ).hexdigest()[:16],
    }
    if device.is_cpu:
        return found
    try:
        release = driver.read_text(errors="replace").partition("\n")[0]
    except OSError:
        release = ""
    return {**found, "gpu": device.name, "driver": release}
