"""The systems and the settings under which each is tried: name -> settings, the usual one first.

A system is asked in a process of its own, whose thread settings and packages are its alone. All
compute in f32: OpenVINO and torch could choose less, and are told not to. A system whose package
is missing raises ModuleNotFoundError when it is imported.

    pyc            the default of `pyc_mlir.compile`, called as users call it, and nothing else:
                   where it finds the program is in each suite's own `SYSTEMS`
    iree           the linalg that PyC emits, by IREE alone under the settings of `candidates` that
                   pay for programs of any size
    onnxruntime    the CPU provider, spinning or not, `run` or bound inputs and outputs
    openvino       latency hint, one stream, f32; `infer` with shared or bound tensors
    jax            XLA: one jitted function with the weights as arguments
    torch          eager, in inference mode, products with bias as `addmm`
    torch-compile  inductor, weights frozen
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.tools.bench.peers import onnxruntime_session as peers_onnxruntime
from pyc_mlir.tools.bench.peers.prepared import REST_SECONDS, Named, PreparedWorkload

PYC = "pyc"
IREE = "iree"
# The kinds of settings of plain IREE, of which the first is tried that compiles: by fusion, each
# without and with data tiling. A network takes it up to a minute to compile.
_IREE_FUSIONS = ("aggressive", "plain")
_IREE_TILINGS = ("no data tiling", "data tiling at global optimization")
_IREE_ALLOCATOR = ", caching allocator"


def read_arrays(path: Path) -> list[np.ndarray]:
    """Read the arrays of a file that `np.savez` wrote, in order."""
    with np.load(path, allow_pickle=False) as stored:
        arrays = [stored[f"arr_{i}"] for i in range(len(stored.files))]
    # numpy stores bf16 as two bytes of no type.
    return [a.view(DTYPES["bf16"]) if a.dtype == np.dtype("V2") else a for a in arrays]


@dataclass(frozen=True)
class SystemTask:
    """The task of a system's process: the program's folder, and the number of threads."""

    name: str
    folder: Path
    threads: int
    tiny: bool

    def inputs(self) -> list[np.ndarray]:
        """Read the arguments of the call."""
        return read_arrays(self.folder / "inputs.npz")

    def unpickle(self, name: str) -> Any:
        """Read the graph (``graph``) or IREE's input (``linalg``)."""
        return pickle.loads((self.folder / name).read_bytes())


@dataclass(frozen=True)
class System:
    """How to import a system (not part of its cold start), and its settings for a task.

    `rest` is the pause in seconds before each sample while settings are compared.
    """

    load: Callable[[int], Any]
    settings: Callable[[SystemTask, Sequence[np.ndarray]], Named]
    rest: float = 0.0


def lazily(name: str, prepare: Callable[[], PreparedWorkload]) -> Named:
    """Yield one setting, prepared when it is asked for."""
    yield name, prepare()


def load_compiler(threads: int) -> None:
    """Import what compiles for PyC and for plain IREE."""
    from pyc_mlir.tools.bench.peers import candidates  # noqa: F401  (imports are not timed)


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


def _load_onnxruntime(threads: int) -> None:
    import onnxruntime  # noqa: F401  # pyright: ignore[reportMissingImports]


def _onnxruntime(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    from pyc_mlir.tools.bench.peers.onnxruntime_session import peak_bytes

    path = task.folder / "model.onnx"
    peak = partial(peak_bytes, path, inputs, task.threads)
    for name, prepared in peers_onnxruntime.settings(path.read_bytes(), inputs, task.threads):
        yield name, replace(prepared, peak_bytes=peak)


def _load_openvino(threads: int) -> None:
    import openvino  # noqa: F401  # pyright: ignore[reportMissingImports]


def _openvino(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    import openvino as ov  # pyright: ignore[reportMissingImports]

    config = {
        "INFERENCE_NUM_THREADS": task.threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
    }

    def settings() -> Named:
        core = ov.Core()
        compiled = core.compile_model(core.read_model(task.folder / "model.onnx"), "CPU", config)
        request = compiled.create_infer_request()
        tensors = [ov.Tensor(a, shared_memory=True) for a in inputs]
        feeds = dict(enumerate(inputs))

        def results() -> list[np.ndarray]:
            request.infer(feeds)
            outputs = range(len(compiled.outputs))
            return [np.array(request.get_output_tensor(i).data) for i in outputs]

        shared = partial(request.infer, feeds, share_inputs=True, share_outputs=True)
        yield "infer", PreparedWorkload(shared, results)
        for i, tensor in enumerate(tensors):
            request.set_input_tensor(i, tensor)

        def bound() -> None:
            request.start_async()
            request.wait()

        yield "bound tensors", PreparedWorkload(bound, results)

    return settings()


def _load_jax(threads: int) -> None:
    import jax  # noqa: F401  # pyright: ignore[reportMissingImports]

    from pyc_mlir.tools.bench.peers import jax_program  # noqa: F401


def _jax(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    import jax  # pyright: ignore[reportMissingImports]

    from pyc_mlir.tools.bench.peers.jax_program import jax_function

    program, constants = jax_function(task.unpickle("graph"))

    def prepare() -> PreparedWorkload:
        weights = [jax.numpy.asarray(c) for c in constants]
        arguments = [jax.numpy.asarray(a) for a in inputs]
        run = jax.jit(program)
        return PreparedWorkload(
            lambda: jax.block_until_ready(run(arguments, weights)),
            lambda: [np.asarray(r) for r in run(arguments, weights)],
        )

    return lazily("weights as arguments", prepare)


def _load_torch(threads: int) -> None:
    import torch  # pyright: ignore[reportMissingImports]

    from pyc_mlir.tools.bench.peers import torch_module as peers_torch  # noqa: F401

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision("highest")


def _torch(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    from pyc_mlir.tools.bench.peers.torch_module import torch_module

    graph = task.unpickle("graph")
    return lazily("eager", lambda: torch_prepared(torch_module(graph), inputs))


def torch_prepared(module: Any, inputs: Sequence[np.ndarray]) -> PreparedWorkload:
    """Prepare a module, compiled or not, called in inference mode; it gives a tensor or several."""
    import torch  # pyright: ignore[reportMissingImports]

    tensors = [torch.from_numpy(a) for a in inputs]

    def call() -> Any:
        with torch.inference_mode():
            return module(*tensors)

    def results() -> list[np.ndarray]:
        made = call()
        return [r.numpy() for r in (made if isinstance(made, tuple) else (made,))]

    return PreparedWorkload(call, results)


def _load_inductor(threads: int) -> None:
    _load_torch(threads)
    import torch._inductor.config as config  # pyright: ignore[reportMissingImports]

    config.freezing = True
    config.force_disable_caches = True


def _inductor(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    import torch  # pyright: ignore[reportMissingImports]

    from pyc_mlir.tools.bench.peers.torch_module import torch_module

    graph = task.unpickle("graph")
    dynamic = any(None in t.shape for t in graph.arguments)
    return lazily(
        "frozen",
        lambda: torch_prepared(torch.compile(torch_module(graph), dynamic=dynamic), inputs),
    )


SYSTEMS: Mapping[str, System] = {
    IREE: System(load_compiler, _iree),
    "onnxruntime": System(_load_onnxruntime, _onnxruntime, REST_SECONDS),
    "openvino": System(_load_openvino, _openvino),
    "jax": System(_load_jax, _jax),
    "torch": System(_load_torch, _torch),
    "torch-compile": System(_load_inductor, _inductor),
}
PEERS = tuple(SYSTEMS)
