"""Where a measurement was taken, in three hashes: hardware, toolchain, context.

    place = current_place(threads=1)
    place.hardware, place.toolchain, place.context      # "h1-...", "t1-...", "c1-..."

- `hardware`: processor, features, caches, cores, memory, hypervisor, frequency governor; for
  devices that are no CPU the GPUs too. Another one: rows are a prior only.
- `toolchain`: the source of PyC that makes code (passes, kernels, IREE's sessions), the versions of
  IREE and torch-mlir, flags, kernel families of other packages. Another one: rows are candidates
  that are measured again. Packages that PyC is compared with have no part in it.
- `context`: how the program ran: device kind, threads, allocator, page policy, CPU quota.

`machine` distinguishes machines of equal hardware. A number is comparable to another one where all
three hashes are equal.
"""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

from pyc_mlir.dialects.util.plugins import registered
from pyc_mlir.measure.hardware import (
    cpu_quota,
    machine_id,
    page_policy,
    sniff,
)
from pyc_mlir.util.source_files import SEEN, Files, source_digest
from pyc_mlir.util.versions import installed_version

# Increase when facts are added or formatted differently: older rows are then separate rows.
HARDWARE, TOOLCHAIN, CONTEXT = "h1-", "t1-", "c1-"
PACKAGES = ("iree-base-compiler", "iree-base-runtime", "torch-mlir")
# Names of modules whose source decides on code begin so.
_COMPILING = (
    "pyc_mlir.dialects/",
    "pyc_mlir.pipelines/",
    "pyc_mlir/compilation/",
    "pyc_mlir/iree/",
)
# `ENTRY_POINT_GROUP` of the registry, whose import needs a compiler.
FAMILIES_GROUP = "pyc_mlir.kernels"
_CPUS = ("local-sync", "local-task")

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Environments:
    """The facts of a measurement's environment as JSON data, by hash."""

    hardware_facts: Facts
    toolchain_facts: Facts
    context_facts: Facts
    machine: str

    @cached_property
    def hardware(self) -> str:
        """The hash of what the machine is made of."""
        return HARDWARE + digest(self.hardware_facts)

    @cached_property
    def toolchain(self) -> str:
        """The hash of what makes code."""
        return TOOLCHAIN + digest(self.toolchain_facts)

    @cached_property
    def context(self) -> str:
        """The hash of how programs run."""
        return CONTEXT + digest(self.context_facts)

    @cached_property
    def id(self) -> str:
        """The hash of all of it."""
        return digest([self.hardware, self.toolchain, self.context, self.machine])

    def differences(self, other: "Environments") -> list[str]:
        """What two places differ in: ``hardware.cores: 2 / 8``; empty for equal ones."""
        mine, theirs = self.facts(), other.facts()
        return [
            f"{part}.{name}: {mine[part].get(name)} / {theirs[part].get(name)}"
            for part in mine
            for name in sorted({*mine[part], *theirs[part]})
            if mine[part].get(name) != theirs[part].get(name)
        ]

    def facts(self) -> dict[str, Facts]:
        """All facts as JSON data."""
        return {
            "hardware": self.hardware_facts,
            "toolchain": self.toolchain_facts,
            "context": self.context_facts,
        }

    @staticmethod
    def from_facts(facts: Mapping[str, Facts], machine: str) -> "Environments":
        """What `facts` gave. Raises KeyError where a part is missing."""
        return Environments(facts["hardware"], facts["toolchain"], facts["context"], machine)


def current_place(
    device: str = "local-sync",
    threads: int = 1,
    allocator: str = "",
    flags: Sequence[str] = (),
    root: Path = Path("/"),
) -> Environments:
    """The environment of this process.

    device: the kind of device that runs programs. allocator: a name, empty for the device's own.
    flags: for IREE and LLVM beside those of the target, whose table is part of PyC's source.
    """
    context = {
        "device": device,
        "threads": threads,
        "allocator": allocator,
        "pages": page_policy(root),
        "cpu_quota": cpu_quota(root),
    }
    hardware = _hardware(device not in _CPUS, root)
    return Environments(hardware, _toolchain(flags), context, machine_id(root))


def current_hashes() -> tuple[str, str]:
    """`hardware` and `toolchain` of `current_place()`: all that a compile by wisdom waits for."""
    return HARDWARE + digest(_hardware(False, Path("/"))), TOOLCHAIN + digest(_toolchain(()))


def _toolchain(flags: Sequence[str]) -> Facts:
    return {
        "source": source_digest(_compiling()),
        "packages": _versions(),
        "families": _plugins(),
        "flags": list(flags),
    }


@functools.cache
def _hardware(with_gpus: bool, root: Path) -> Facts:
    """JSON data: what a database gives back is equal to what it was given."""
    return json.loads(json.dumps(asdict(sniff(root, with_gpus))))


def _versions() -> dict[str, str]:
    """Versions of those packages that make code and are installed."""
    found = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = installed_version(name)
    return found


@functools.cache
def _plugins() -> dict[str, str]:
    """Kernel families of other packages: package and version by name."""
    found = {}
    for point in registered(FAMILIES_GROUP):
        package = point.dist
        found[point.name] = f"{package.name} {package.version}" if package else point.value
    return found


def _compiling() -> Files:
    """Those of PyC's modules that decide what code is made."""
    return tuple(file for file in SEEN if file[0].startswith(_COMPILING))


def canonical(data: Any) -> str:
    """JSON data as text: equal data have equal texts. Raises ValueError for NaN and infinities."""
    return json.dumps(
        data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def digest(data: Any) -> str:
    """SHA-256 of `canonical`, in hex."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()
