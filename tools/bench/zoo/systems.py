"""How each system runs a network of the zoo; the settings are those of `peers/systems.py`.

A process finds ``model.onnx``, ``inputs.npz``, ``expected.npz`` and plain IREE's input ``linalg``
in its folder. onnxruntime and OpenVINO read the model; torch runs the module that it was exported
from, `torch-compile` compiles it as a part of its preparation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.tools.bench.peers import systems as peers
from pyc_mlir.tools.bench.peers.prepared import Named, PreparedWorkload
from pyc_mlir.tools.bench.peers.systems import IREE, PYC, System, SystemTask

# The kinds of settings of plain IREE, of which the first is tried that compiles: by fusion, each
# without and with data tiling. A network takes it up to a minute to compile.
_IREE_FUSIONS = ("aggressive", "plain")
_IREE_TILINGS = ("no data tiling", "data tiling at global optimization")
_IREE_ALLOCATOR = ", caching allocator"


def _pyc(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    from pyc_mlir.tools.bench.peers import candidates
    from pyc_mlir.tools.bench.workloads.workloads import BenchWorkload

    workload = BenchWorkload(task.name, task.folder / "model.onnx", tuple(inputs), list)
    yield "default", candidates.pyc_by_default(workload, task.threads)


def _iree(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    from pyc_mlir.tools.bench.peers import candidates

    linalg = task.unpickle("linalg")
    devices = candidates.devices_for(task.threads)
    name = next(name for name in devices if name.endswith(_IREE_ALLOCATOR))
    on = {name: devices[name]}

    def settings() -> Named:
        for fusion in _IREE_FUSIONS:
            names = [f"O3, {fusion} fusion, {tiling}" for tiling in _IREE_TILINGS]
            compiles = {name: candidates.IREE_COMPILES[name] for name in names}
            found = candidates.plain_settings(task.name, linalg, inputs, task.threads, compiles, on)
            if (first := next(found, None)) is not None:
                yield first
                yield from found
                return

    return settings()


def _onnxruntime(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    from pyc_mlir.tools.bench.zoo.arena import peak_bytes

    peak = partial(peak_bytes, task.folder / "model.onnx", inputs, task.threads)
    for name, prepared in peers.SYSTEMS["onnxruntime"].settings(task, inputs):
        yield name, replace(prepared, peak_bytes=peak)


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
    PYC: System(peers.SYSTEMS[PYC].load, _pyc),
    IREE: System(peers.SYSTEMS[IREE].load, _iree),
    "onnxruntime": replace(peers.SYSTEMS["onnxruntime"], settings=_onnxruntime),
    "openvino": peers.SYSTEMS["openvino"],
    "torch": replace(peers.SYSTEMS["torch"], settings=_torch),
    "torch-compile": replace(peers.SYSTEMS["torch-compile"], settings=_inductor),
}
