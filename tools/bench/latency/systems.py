"""How each system runs a CPU workload: PyC traces it anew, plain IREE tries all its settings."""

from collections.abc import Mapping, Sequence

import numpy as np

from pyc_mlir.tools.bench.peers import systems as peers
from pyc_mlir.tools.bench.peers.prepared import Named
from pyc_mlir.tools.bench.peers.systems import IREE, PYC, System, SystemTask, lazily


def _load(threads: int) -> None:
    from pyc_mlir.tools.bench.workloads import cpu  # noqa: F401  (imports are not timed)

    peers.load_compiler(threads)


def _pyc(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    from pyc_mlir.tools.bench.peers import candidates
    from pyc_mlir.tools.bench.workloads import cpu

    workload = cpu.make(task.name, task.tiny)
    return lazily("default", lambda: candidates.pyc_by_default(workload, task.threads))


def _iree(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    from pyc_mlir.tools.bench.peers import candidates

    compiles = {**candidates.IREE_COMPILES, **candidates.IREE_MORE}
    linalg = task.unpickle("linalg")
    return candidates.plain_settings(task.name, linalg, inputs, task.threads, compiles)


SYSTEMS: Mapping[str, System] = {
    **peers.SYSTEMS,
    PYC: System(_load, _pyc),
    IREE: System(peers.load_compiler, _iree),
}
