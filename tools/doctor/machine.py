"""The facts about a machine and an installation that decide what PyC can do there.

`examine` collects them once, as frozen data; `pyc_mlir.tools.doctor.checks` judges them.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires

from pyc_mlir.iree.inventory import Driver, compiler_targets, runtime_drivers
from pyc_mlir.measure.environment import (
    PROJECT,
    Environment,
    Environments,
    current_place,
    installed,
    probe,
)

# What PyC calls a target, IREE's back end that compiles for it and the driver kinds that run it.
TARGETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "cpu": ("llvm-cpu", ("local-sync", "local-task")),
    "cuda": ("cuda", ("cuda",)),
    "vulkan": ("vulkan-spirv", ("vulkan",)),
}


@dataclass(frozen=True)
class Machine:
    """All facts that the checks look at.

    `place` is what evidence is keyed by, with GPUs if there are any.

    `pins` are the versions that PyC is tested with, `extra_pins` those of optional packages,
    `versions` what is installed of both; `free_bytes` is the space for temporary files; `asked` is
    PYC_THREADS.
    """

    environment: Environment
    place: Environments
    pins: Mapping[str, str]
    extra_pins: Mapping[str, str]
    versions: Mapping[str, str]
    targets: tuple[str, ...]
    drivers: tuple[Driver, ...]
    free_bytes: int
    asked: str = ""

    @property
    def compiles_for(self) -> list[str]:
        """PyC's kinds of targets that the installed compiler has a back end for."""
        has_mlir = "torch-mlir" in self.versions
        return [name for name, (end, _) in TARGETS.items() if has_mlir and end in self.targets]

    @property
    def runs(self) -> list[str]:
        """PyC's kinds of targets with a device on this machine."""
        alive = {d.name for d in self.drivers if d.devices}
        return [name for name, (_, kinds) in TARGETS.items() if alive.intersection(kinds)]

    def driver(self, name: str) -> Driver:
        """Return the runtime's driver of that name; one with a problem where it is lacking."""
        missing = Driver(name, problem="the installed runtime has no such driver")
        return next((d for d in self.drivers if d.name == name), missing)


def examine() -> Machine:
    """Collect the facts about this machine and installation."""
    pins, extra_pins = read_pins()
    return Machine(
        environment=probe(),
        place=current_place(device="all"),
        pins=pins,
        extra_pins=extra_pins,
        versions=installed((*pins, *extra_pins)),
        targets=compiler_targets(),
        drivers=runtime_drivers(),
        free_bytes=_free_bytes(),
        asked=os.environ.get("PYC_THREADS", ""),
    )


def _free_bytes() -> int:
    """Return the free bytes for temporary files; 0 where none can be written."""
    try:
        return shutil.disk_usage(tempfile.gettempdir()).free
    except OSError:
        return 0


_NOT_USED = ("dev", "lowest", "newest")


def read_pins() -> tuple[dict[str, str], dict[str, str]]:
    """Read the versions that the installed PyC pins: what it needs, and its optional packages.

    Tools for developing PyC and the ends of ranges are left out; without PyC's metadata both are
    empty.
    """
    try:
        requirements = requires(PROJECT) or []
    except PackageNotFoundError:
        return {}, {}
    pins: dict[str, str] = {}
    extra_pins: dict[str, str] = {}
    always = {m[0] for r in requirements if "extra ==" not in r and (m := re.match(r"[\w.-]+", r))}
    for text in requirements:
        found = re.match(r"([\w.-]+)==([^;\s]+)(?:.*extra == ['\"](\w+))?", text)
        if found and found[3] not in _NOT_USED:
            (extra_pins if found[3] else pins)[found[1]] = found[2]
    return pins, {k: v for k, v in extra_pins.items() if k not in always}
