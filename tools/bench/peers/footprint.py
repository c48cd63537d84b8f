"""Programs of PyC's ready to be called, and device memory of one call, on a fresh device.

Comes in: an artifact of PyC's or of plain IREE's, and its arguments. Goes out: the `Footprint`.
Peaks are read from the allocator of `local-sync`, where IREE's statistics count everything, and
less what inputs and constants take: what is left is the arena and the fresh results of one call.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.signature import flat
from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Executable
from pyc_mlir.runtime.program import Program
from pyc_mlir.tools.bench.peers.prepared import PreparedWorkload


@dataclass(frozen=True)
class Footprint:
    """Bytes of one call (transients and fresh results), those of the results, and the results."""

    peak_bytes: int
    output_bytes: int
    results: tuple[np.ndarray, ...]

    @property
    def transient_bytes(self) -> int:
        """The peak without the results."""
        return self.peak_bytes - self.output_bytes


def footprint(artifact: Artifact, arrays: Sequence[np.ndarray]) -> Footprint:
    """Run once with `arrays` on the device and read the allocator's peak.

    An arena that the program keeps from its start counts as transients.
    """
    constants = _constant_bytes(artifact)
    device = Device("local-sync")
    program = Program(artifact, device)
    loaded = device.memory().live_bytes
    inputs = [to_device(array, device) for array in arrays]
    before = device.memory()
    pinned = constants + before.live_bytes - loaded
    # The peak only ever grows. Ballast makes sure that the call's own peak is a new one, although
    # loading may have needed more for a moment.
    spare = before.peak_bytes - before.live_bytes
    ballast = to_device(np.zeros(spare, np.int8), device) if spare else None
    pinned += spare
    results = flat(program(*inputs))
    peak = device.memory().peak_bytes - pinned
    del ballast
    copies = tuple(np.array(result.numpy()) for result in results)
    return Footprint(peak, sum(copy.nbytes for copy in copies), copies)


def _constant_bytes(artifact: Artifact) -> int:
    """Return the loaded module's device memory; nothing if constants are mapped from the file."""
    device = Device("local-sync")
    module = Executable(artifact.vmfb, device)
    live = device.memory().live_bytes
    del module
    return live


def prepared_program(program: Program, inputs: Sequence[np.ndarray]) -> PreparedWorkload:
    """Prepare a program of PyC's with arrays on its device."""
    arrays = [to_device(a, program.device) for a in inputs]
    return PreparedWorkload(
        partial(program, *arrays),
        lambda: [r.numpy() for r in flat(program(*arrays))],
        lambda: footprint(program.artifact, inputs).peak_bytes,
        account=to_data(program.artifact.account),
        prediction=str(program.artifact.prediction or ""),
    )
