"""The environment of a measurement, as facts and as fingerprints.

Two kinds of stored numbers ask for it:

- Reports of suites (`Environment`, by `probe`) are compared when their `fingerprint`s are equal:
  processor, cores, vector features, memory, accelerators, operating system, Python and packages.
  The project's own version and commit stand beside it: comparing commits is what reports are for.
- Rows of evidence (`Environments`, by `current_place`) have three hashes, all equal for numbers
  that are comparable:

  - `hardware`: processor, features, caches, cores, memory, hypervisor, frequency governor; for
    devices that are no CPU the GPUs too. Another one: rows are a prior only.
  - `toolchain`: the source of PyC that makes code (passes, kernels, IREE's sessions), the versions
    of IREE and torch-mlir, flags, kernel families of other packages. Another one: rows are
    candidates that are measured again. Packages that PyC is compared with have no part in it.
  - `context`: how the program ran: device kind, threads, allocator, page policy, CPU quota.

  `machine` distinguishes machines of equal hardware.
"""

import functools
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import sha256
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.dialects.util.plugins import registered
from pyc_mlir.measure.hardware import cpu_quota, machine_id, nvidia_gpus, page_policy, sniff
from pyc_mlir.util import children
from pyc_mlir.util.checksum import digest
from pyc_mlir.util.source_files import SEEN, Files, source_digest
from pyc_mlir.util.versions import installed_version

PROJECT = "pyc-mlir"
# The packages that make code.
COMPILING_PACKAGES = ("iree-base-compiler", "iree-base-runtime", "torch-mlir")
PACKAGES = (
    *COMPILING_PACKAGES,
    "numpy",
    "ml_dtypes",
    "onnx",
    "onnxruntime",
    "openvino",
    "torch",
    "torchvision",
    "timm",
    "transformers",
    "onnxscript",
    "jax",
)
_NOT_COMPARED = ("version", "commit", "modified")
# Increase when facts are added or formatted differently: older rows are then separate rows.
HARDWARE, TOOLCHAIN, CONTEXT = "h1-", "t1-", "c1-"
# Names of modules whose source decides on code begin so.
_COMPILING = (
    "pyc_mlir.dialects/",
    "pyc_mlir.pipelines/",
    "pyc_mlir/compilation/",
    "pyc_mlir/iree/",
)
# `ENTRY_POINT_GROUP` of the registry, whose import needs a compiler.
FAMILIES_GROUP = "pyc_mlir.kernels"
_CPUS = ("local", "local-sync", "local-task")

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Environment:
    """Everything that a measurement depends on, without the machine's name or any path.

    `memory_gib` is rounded to whole GiB, `commit` is None outside a git checkout, `modified`
    tells that the checkout had changes that were not committed.
    """

    cpu: str
    cores: int
    features: tuple[str, ...]
    memory_gib: int
    accelerators: tuple[str, ...]
    system: str
    python: str
    packages: Mapping[str, str]
    version: str
    commit: str | None
    modified: bool

    @property
    def fingerprint(self) -> str:
        """16 hex digits; equal exactly when measurements may be compared."""
        compared = {k: v for k, v in to_data(self).items() if k not in _NOT_COMPARED}
        text = json.dumps(compared, sort_keys=True, ensure_ascii=True)
        return sha256(text.encode()).hexdigest()[:16]

    def differences(self, other: "Environment") -> list[str]:
        """Return what keeps two environments from being compared: ``cores: 2 / 8``; empty when
        equal.
        """
        mine, theirs = to_data(self), to_data(other)
        return [
            f"{key}: {mine[key]} / {theirs[key]}"
            for key in mine
            if key not in _NOT_COMPARED and mine[key] != theirs[key]
        ]


def probe(root: Path = Path("/"), source: Path = Path(__file__)) -> Environment:
    """Return the environment of this process.

    root: the folder that holds ``proc``. source: a file that may lie in a checkout.
    """
    hardware = sniff(root)
    commit, modified = git_state(source)
    return Environment(
        cpu=hardware.cpu or platform.machine(),
        cores=hardware.cores,
        features=hardware.features,
        memory_gib=hardware.memory_gib,
        accelerators=nvidia_gpus(root),
        system=f"{platform.system()} {platform.machine()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        packages=installed(PACKAGES),
        version=installed((PROJECT,)).get(PROJECT, "not installed"),
        commit=commit,
        modified=modified,
    )


def installed(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of those of the named packages that are installed."""
    found = {}
    for name in names:
        with suppress(PackageNotFoundError):
            found[name] = installed_version(name)
    return found


def git_state(source: Path) -> tuple[str | None, bool]:
    """Commit of the checkout that holds `source`, and whether tracked files were changed since.

    (None, False) outside a checkout, for a file that git does not track, or without git.
    """
    folder = str(source.resolve().parent)
    try:
        run = [_git(folder, "ls-files", "--error-unmatch", source.name)]
        run += [_git(folder, "rev-parse", "HEAD")]
        run += [_git(folder, "status", "--porcelain", "--untracked-files=no")]
    except (OSError, subprocess.SubprocessError):
        return None, False
    return run[1], bool(run[2])


def _git(folder: str, *arguments: str) -> str:
    command = ["git", "-C", folder, *arguments]
    done = children.run(command, timeout=20)
    done.check_returncode()
    return done.stdout.strip()


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
        """Return what two places differ in: ``hardware.cores: 2 / 8``; empty for equal ones."""
        mine, theirs = self.facts(), other.facts()
        return [
            f"{part}.{name}: {mine[part].get(name)} / {theirs[part].get(name)}"
            for part in mine
            for name in sorted({*mine[part], *theirs[part]})
            if mine[part].get(name) != theirs[part].get(name)
        ]

    def facts(self) -> dict[str, Facts]:
        """Return all facts as JSON data."""
        return {
            "hardware": self.hardware_facts,
            "toolchain": self.toolchain_facts,
            "context": self.context_facts,
        }

    @staticmethod
    def from_facts(facts: Mapping[str, Facts], machine: str) -> "Environments":
        """Return the places that `facts` gave. Raises KeyError where a part is missing."""
        return Environments(facts["hardware"], facts["toolchain"], facts["context"], machine)


def current_place(
    device: str = "local-sync",
    threads: int = 1,
    allocator: str = "",
    flags: Sequence[str] = (),
    root: Path = Path("/"),
) -> Environments:
    """Return the environment of this process.

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
        "packages": installed(COMPILING_PACKAGES),
        "families": _plugins(),
        "flags": list(flags),
    }


@functools.cache
def _hardware(with_gpus: bool, root: Path) -> Facts:
    """JSON data: what a database gives back is equal to what it was given."""
    return json.loads(json.dumps(asdict(sniff(root, with_gpus))))


@functools.cache
def _plugins() -> dict[str, str]:
    """Kernel families of other packages: package and version by name."""
    found = {}
    for point in registered(FAMILIES_GROUP):
        package = point.dist
        found[point.name] = f"{package.name} {package.version}" if package else point.value
    return found


def _compiling() -> Files:
    """Return those of PyC's modules that decide what code is made."""
    return tuple(file for file in SEEN if file[0].startswith(_COMPILING))
