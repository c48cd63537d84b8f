"""How the systems run the workloads of a checkout; peers' settings are those of `peers/systems.py`.

PyC traces a workload of the suite `latency` anew, where plain IREE tries all its settings. A
network of the zoo has no program for jax, and is in torch the module that it was exported from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from pyc_mlir.tools.bench.peers.prepared import Named
from pyc_mlir.tools.bench.peers.systems import (
    COMPILER,
    SYSTEMS,
    System,
    SystemTask,
    iree_everything,
    prepared_later,
    torch_settings,
)
from pyc_mlir.tools.bench.report.tables import IREE, PYC


def _pyc_row(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    """Trace a workload of the suite `latency` anew."""
    from pyc_mlir.tools.bench.peers.candidates import pyc_by_default
    from pyc_mlir.tools.bench.workloads import cpu

    workload = cpu.make(task.name, task.tiny)
    return prepared_later("default", lambda: pyc_by_default(workload, task.threads))


def _pyc_model(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    """Compile the ONNX model in this process."""
    from pyc_mlir.tools.bench.peers.candidates import pyc_by_default
    from pyc_mlir.tools.bench.peers.workload import Workload

    workload = Workload(task.name, task.model, tuple(inputs))
    return prepared_later("default", lambda: pyc_by_default(workload, task.threads))


def _network(task: SystemTask, inputs: Sequence[np.ndarray], inductor: bool = False) -> Named:
    from pyc_mlir.tools.bench.workloads.networks import BY_NAME, make

    module = make(BY_NAME[task.name])
    return torch_settings(task, inputs, inductor, lambda: module)


SUITES: Mapping[str, Mapping[str, System]] = {
    "latency": {
        **SYSTEMS,
        PYC: System((*COMPILER, "pyc_mlir.tools.bench.workloads.cpu"), _pyc_row),
        IREE: System(COMPILER, iree_everything),
    },
    "zoo": {
        PYC: System(COMPILER, _pyc_model),
        **{name: SYSTEMS[name] for name in (IREE, "onnxruntime", "openvino")},
        "torch": replace(SYSTEMS["torch"], settings=_network),
        "torch-compile": replace(SYSTEMS["torch"], settings=partial(_network, inductor=True)),
    },
}
