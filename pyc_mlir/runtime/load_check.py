"""Check that a program may run here: kind of device, CPU features, runtime release.

What is certain to fail is refused before any of the program's code runs: an instruction that the
CPU lacks would end the process. IREE's runtime itself refuses bytecode and executables whose form
it does not know; a release that it accepts, though the program was made for another, is told with
RUNTIME_DIFFERS.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.target.cpu_features import TILE_FEATURES, may_use_tiles
from pyc_mlir.runtime.device import Device, host_cpu
from pyc_mlir.runtime.executable import Executable
from pyc_mlir.util.versions import RUNTIME, runtime_version

# Compilers are released with the runtime of the same number.
_MADE_FOR = (RUNTIME, "iree-base-compiler")
_LONGEST_VERSION = 40


def load(artifact: Artifact, device: Device) -> Executable:
    """Load the program on a device.

    Raises PycError: DEVICE_UNAVAILABLE when it needs another device, or CPU features that this
    machine lacks, and BAD_ARTIFACT for what IREE refuses.
    """
    manifest = artifact.manifest
    if manifest.device != device.runs:
        raise PycError(
            ReasonCode.DEVICE_UNAVAILABLE,
            f"program: expected a device of kind `{manifest.device}`, got {device!r}; compile for a "
            "target of that device, or pass another device",
        )
    if device.is_cpu:
        _check_cpu(manifest.features)
    try:
        return Executable(artifact.vmfb, device)
    except PycError as error:
        other = other_runtime(manifest.versions)
        if not other:
            raise
        message = f"{error.message}; it was {other}: compile it again, or install that one"
        raise PycError(error.code, message) from None


def other_runtime(versions: Mapping[str, Any]) -> str:
    """Return how the runtime differs from the one of a manifest's `versions`; '' if it does not."""
    made_for = str(next((versions[p] for p in _MADE_FOR if p in versions), "unknown"))
    here = runtime_version()
    if made_for == here:
        return ""
    return f"compiled for {RUNTIME} {made_for[:_LONGEST_VERSION]}, this is {here}"


def _check_cpu(features: Sequence[str]) -> None:
    # Linux names no x86 features on other machines; there IREE itself refuses the program.
    cpu = host_cpu()
    lacking = sorted(set(features) - cpu.features) if cpu is not None else []
    if lacking:
        refused = TILE_FEATURES.intersection(lacking) and not may_use_tiles()
        where = " or a system that does not let this process use tiles" if refused else ""
        raise PycError(
            ReasonCode.DEVICE_UNAVAILABLE,
            "program: expected a CPU with all features that it was compiled for, got one without "
            f"{', '.join(lacking)}{where}; compile for target `cpu` on this machine, or for one "
            "that needs less, as `cpu-avx2`",
        )
