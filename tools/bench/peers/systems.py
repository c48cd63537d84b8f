"""The systems and the settings under which each is tried: name -> settings, the usual one first.

A system is asked in a process of its own, whose thread settings and packages are its alone. All
compute in f32: OpenVINO and torch could choose less, and are told not to. A system whose package
is missing raises ModuleNotFoundError when it is imported.

    pyc            the default of `pyc_mlir.compile`, called as users call it, and nothing else
    iree           the linalg that PyC emits, by IREE alone under the settings of `candidates`: all
                   of them, or for programs of any size those that pay
    onnxruntime    the CPU provider, spinning or not, `run` or bound inputs and outputs
    openvino       latency hint, one stream, f32; `infer` with shared or bound tensors
    jax            XLA: one jitted function with the weights as arguments
    torch          eager, in inference mode, products with bias as `addmm`
    torch-compile  inductor, weights frozen

A process finds in its folder ``inputs.npz``, ``expected.npz`` and what its system reads: plain IREE
``linalg``, onnxruntime and OpenVINO ``model.onnx``, torch and jax ``graph``. Where PyC finds the
program is a matter of the suite: `SUITES` of the module that the process is told.
"""

import json
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.tools.bench.peers.prepared import REST_SECONDS, Named, PreparedWorkload, Spent
from pyc_mlir.tools.bench.report.tables import IREE, PYC, STATIC

_PEERS = "pyc_mlir.tools.bench.peers"
# The kinds of settings of plain IREE, of which the first is tried that compiles: by fusion, each
# without and with data tiling. A network takes it up to a minute to compile.
_IREE_FUSIONS = ("aggressive", "plain")
_IREE_TILINGS = ("no data tiling", "data tiling at global optimization")
_IREE_ALLOCATOR = ", caching allocator"
# Written by `rounds.store_types`.
COMPILED_FOR = "compiled_for"
_PROGRAM, _SPENT, _REFUSED = "model.vmfb", "compiled.json", "refused.txt"


def read_arrays(path: Path) -> list[np.ndarray]:
    """Read the arrays of a file that `np.savez` wrote, in order."""
    with np.load(path, allow_pickle=False) as stored:
        return [with_halves(stored[f"arr_{i}"]) for i in range(len(stored.files))]


def with_halves(array: np.ndarray) -> np.ndarray:
    """Return a stored array as it was: numpy stores bf16 as two bytes of no type."""
    return array.view(DTYPES["bf16"]) if array.dtype == np.dtype("V2") else array


@dataclass(frozen=True)
class SystemTask:
    """The task of a system's process: a program by name, its folder, and the number of threads.

    The system is that of a suite in the table `SUITES` of a module. `rounds` and `min_seconds` are
    those of the rounds that the process will be asked in.
    """

    name: str
    folder: Path
    threads: int
    tiny: bool = False
    rounds: int = 1
    min_seconds: float = 0.0
    module: str = __name__
    suite: str = ""
    system: str = ""

    @property
    def model(self) -> Path:
        """The program as an ONNX model."""
        return self.folder / "model.onnx"

    def inputs(self) -> list[np.ndarray]:
        """Read the arguments of the call."""
        return read_arrays(self.folder / "inputs.npz")

    def unpickle(self, name: str) -> Any:
        """Read the graph (``graph``) or IREE's input (``linalg``)."""
        return pickle.loads((self.folder / name).read_bytes())


@dataclass(frozen=True)
class System:
    """The modules that a system imports (no part of its cold start), its settings for a task.

    Settings are prepared when they are asked for; what comes before the first is not timed.
    `rest` is the pause in seconds before each sample while settings are compared.
    """

    imports: tuple[str, ...]
    settings: Callable[[SystemTask, Sequence[np.ndarray]], Named]
    rest: float = 0.0


def prepared_later(name: str, prepare: Callable[[], PreparedWorkload]) -> Named:
    """Yield one setting, prepared when it is asked for."""
    yield name, prepare()


def _pyc_deployed(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    """Compile a user's model, which is the task's name, in a child; for `STATIC` for the inputs.

    So the process that runs the program holds what a deployment holds, the runtime and no compiler.
    """
    from pyc_mlir.artifact.artifact import read
    from pyc_mlir.runtime.device import DEFAULT_ALLOCATOR, Device
    from pyc_mlir.runtime.program import Program
    from pyc_mlir.tools.bench.peers.footprint import prepared_program
    from pyc_mlir.tools.cli.guarded import run_guarded

    def prepare() -> PreparedWorkload:
        ended = run_guarded(lambda _: _compile(task, inputs))
        if ended != 0:
            refused = task.folder / _REFUSED
            got = refused.read_text() if refused.is_file() else str(ended)
            raise PycError(
                ReasonCode.TARGET_COMPILE_FAILED, where="compile", expected="a program", got=got
            )
        artifact = read(task.folder / _PROGRAM)
        program = Program(artifact, Device("local", task.threads, DEFAULT_ALLOCATOR))
        compiled = Spent(**json.loads((task.folder / _SPENT).read_text()))
        return replace(prepared_program(program, inputs), compiled=compiled)

    return prepared_later("default", prepare)


def _compile(task: SystemTask, inputs: Sequence[np.ndarray]) -> int:
    """Compile in this process with the defaults; write the program and what that took."""
    from pyc_mlir.api import build
    from pyc_mlir.artifact.artifact import to_bytes
    from pyc_mlir.cache.cache import choose
    from pyc_mlir.compilation.options import make_options
    from pyc_mlir.frontends.sources import allow_bytecode
    from pyc_mlir.tools.cli.model_source import read_model

    allow_bytecode()
    source = read_model(task.name, sys.stdin.buffer)
    start = Spent.so_far()
    try:
        specs, ranges, folder = task.unpickle(COMPILED_FOR)
        specs, ranges = (inputs, None) if task.system == STATIC else (specs, ranges)
        cache = choose(folder or False, {})
        artifact = build(source, specs, make_options(dims=ranges), cache=cache)
    except PycError as error:
        (task.folder / _REFUSED).write_text(str(error))
        return 1
    spent = json.dumps(asdict(Spent.so_far().since(start)))
    if artifact.cached is not None:
        # What is kept took its time when it was made.
        kept = Path(folder, f"{artifact.cached.key}.seconds")
        spent = kept.read_text() if kept.is_file() else spent
        kept.write_text(spent)
    (task.folder / _SPENT).write_text(spent)
    (task.folder / _PROGRAM).write_bytes(to_bytes(artifact))
    return 0


def iree_everything(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    """Try all settings of plain IREE."""
    from pyc_mlir.tools.bench.peers import candidates

    compiles = {**candidates.IREE_COMPILES, **candidates.IREE_MORE}
    linalg = task.unpickle("linalg")
    return candidates.plain_settings(task.name, linalg, inputs, task.threads, compiles)


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
    from pyc_mlir.tools.bench.peers.onnxruntime_session import peak_bytes, settings

    peak = partial(peak_bytes, task.model, inputs, task.threads)
    for name, prepared in settings(task.model.read_bytes(), inputs, task.threads):
        yield name, replace(prepared, peak_bytes=peak)


def openvino_request(model: Path, threads: int) -> Any:
    """Compile a model for OpenVINO's CPU device in f32; return what is called."""
    import openvino as ov  # pyright: ignore[reportMissingImports]

    config = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,
    }
    core = ov.Core()
    return core.compile_model(core.read_model(model), "CPU", config).create_infer_request()


def _openvino(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    import openvino as ov  # pyright: ignore[reportMissingImports]

    request, feeds = openvino_request(task.model, task.threads), dict(enumerate(inputs))

    def results() -> list[np.ndarray]:
        request.infer(feeds)
        return [np.array(tensor.data) for tensor in request.output_tensors]

    shared = partial(request.infer, feeds, share_inputs=True, share_outputs=True)
    yield "infer", PreparedWorkload(shared, results)
    for i, array in enumerate(inputs):
        request.set_input_tensor(i, ov.Tensor(array, shared_memory=True))

    def bound() -> None:
        request.start_async()
        request.wait()

    yield "bound tensors", PreparedWorkload(bound, results)


def _jax(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    import jax  # pyright: ignore[reportMissingImports]

    from pyc_mlir.tools.bench.peers.translators import jax_function

    program, constants = jax_function(task.unpickle("graph"))

    def prepare() -> PreparedWorkload:
        weights = [jax.numpy.asarray(c) for c in constants]
        arguments = [jax.numpy.asarray(a) for a in inputs]
        run = jax.jit(program)
        return PreparedWorkload(
            lambda: jax.block_until_ready(run(arguments, weights)),
            lambda: [np.asarray(r) for r in run(arguments, weights)],
        )

    return prepared_later("weights as arguments", prepare)


def _torch(task: SystemTask, inputs: Sequence[np.ndarray], inductor: bool = False) -> Named:
    from pyc_mlir.tools.bench.peers.translators import torch_module

    graph = task.unpickle("graph")
    dynamic = any(None in t.shape for t in graph.arguments)
    return torch_settings(task, inputs, inductor, partial(torch_module, graph), dynamic)


def torch_settings(
    task: SystemTask,
    inputs: Sequence[np.ndarray],
    inductor: bool,
    make: Callable[[], Any],
    dynamic: bool = False,
) -> Named:
    """Run a module eagerly, or compiled, which is no part of its first call.

    `dynamic`: it has sizes that are not known. It gives a tensor or several.
    """
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(task.threads)
    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision("highest")

    def prepare() -> PreparedWorkload:
        module, tensors = make(), [torch.from_numpy(a) for a in inputs]
        if inductor:
            import torch._inductor.config as config  # pyright: ignore[reportMissingImports]

            config.freezing = config.force_disable_caches = True
            module = torch.compile(module, dynamic=dynamic)

        def call() -> Any:
            with torch.inference_mode():
                return module(*tensors)

        def results() -> list[np.ndarray]:
            made = call()
            return [r.numpy() for r in (made if isinstance(made, tuple) else (made,))]

        if inductor:
            call()
        return PreparedWorkload(call, results)

    return prepared_later("frozen" if inductor else "eager", prepare)


COMPILER = (f"{_PEERS}.candidates",)
_TORCH = ("torch", f"{_PEERS}.translators")
SYSTEMS: Mapping[str, System] = {
    IREE: System(COMPILER, _iree),
    "onnxruntime": System(("onnxruntime",), _onnxruntime, REST_SECONDS),
    "openvino": System(("openvino",), _openvino),
    "jax": System(("jax", f"{_PEERS}.translators"), _jax),
    "torch": System(_TORCH, _torch),
    "torch-compile": System(_TORCH, partial(_torch, inductor=True)),
}
PEERS = tuple(SYSTEMS)
_DEPLOYED = System((f"{_PEERS}.footprint",), _pyc_deployed)
# By suite; those of workloads of a checkout are with these.
SUITES: Mapping[str, Mapping[str, System]] = {
    "model": {PYC: _DEPLOYED, **SYSTEMS},
    "dynamic-zoo": {
        PYC: _DEPLOYED,
        STATIC: _DEPLOYED,
        **{name: SYSTEMS[name] for name in ("onnxruntime", "openvino")},
    },
}
# A module that each system needs, and the extra that installs it.
NEEDS: Mapping[str, tuple[str, str]] = {
    IREE: ("iree.compiler", "compile"),
    "onnxruntime": ("onnxruntime", "onnxruntime"),
    "openvino": ("openvino", "bench"),
    "torch": ("torch", "torch"),
    "torch-compile": ("torch", "torch"),
    "jax": ("jax", "jax"),
}
