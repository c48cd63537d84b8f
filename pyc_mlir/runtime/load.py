"""Load and run saved programs. Needs IREE's runtime and numpy, no compiler."""

from pathlib import Path

from pyc_mlir.artifact import artifact
from pyc_mlir.dialects.errors import memory_errors
from pyc_mlir.runtime.array import Array, to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.events import ProgramStats
from pyc_mlir.runtime.program import Program

__all__ = ["Array", "Device", "Program", "ProgramStats", "load", "to_device"]


@memory_errors()
def load(path: str | Path, device: Device | None = None) -> Program:
    """Load a program that `Program.save` wrote, on `device` or on the process's own.

    Raises PycError: FILE_ACCESS, BAD_ARTIFACT for a file that is none, DEVICE_UNAVAILABLE,
    OUT_OF_MEMORY.
    """
    return Program(artifact.read(path), device)
