"""How each system runs a network of the zoo; peers' settings are those of `peers/systems.py`.

onnxruntime and OpenVINO read the model; torch runs the module that it was exported from,
`torch-compile` compiles it as a part of its preparation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pyc_mlir.tools.bench.peers import systems as peers
from pyc_mlir.tools.bench.peers.prepared import Named, PreparedWorkload
from pyc_mlir.tools.bench.peers.systems import IREE, PYC, System, SystemTask, lazily


def _pyc(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    from pyc_mlir.tools.bench.peers import candidates
    from pyc_mlir.tools.bench.peers.workload import BenchWorkload

    workload = BenchWorkload(task.name, task.folder / "model.onnx", tuple(inputs), list)
    return lazily("default", lambda: candidates.pyc_by_default(workload, task.threads))


def _torch(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    module = _module(task)
    return iter((("eager", peers.torch_prepared(module, inputs)),))


def _inductor(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    import torch  # pyright: ignore[reportMissingImports]

    module = _module(task)

    def prepare() -> PreparedWorkload:
        prepared = peers.torch_prepared(torch.compile(module, dynamic=False), inputs)
        prepared.call()  # which compiles
        return prepared

    return ((name, prepare()) for name in ("frozen",))


def _module(task: SystemTask) -> Any:
    from pyc_mlir.tools.bench.zoo.networks import NETWORKS, make

    return make(NETWORKS[task.name])


SYSTEMS: Mapping[str, System] = {
    PYC: System(peers.load_compiler, _pyc),
    **{name: peers.SYSTEMS[name] for name in (IREE, "onnxruntime", "openvino")},
    "torch": replace(peers.SYSTEMS["torch"], settings=_torch),
    "torch-compile": replace(peers.SYSTEMS["torch-compile"], settings=_inductor),
}
