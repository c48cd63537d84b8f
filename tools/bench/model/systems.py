"""How each system runs a user's model.

A process finds in its folder ``inputs.npz``, ``expected.npz`` and what its system reads: plain IREE
``linalg``, onnxruntime and OpenVINO ``model.onnx``, torch and jax ``graph``. PyC reads the model
itself, whose name is the task's; it compiles in a child, so that the process that runs the program
holds what a deployment holds, the runtime and no compiler.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial

import numpy as np

from pyc_mlir.artifact.artifact import read, to_bytes
from pyc_mlir.artifact.signature import flat
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import default_device
from pyc_mlir.runtime.program import Program
from pyc_mlir.tools.bench.peers import systems as peers
from pyc_mlir.tools.bench.peers.footprint import footprint
from pyc_mlir.tools.bench.peers.prepared import Named, PreparedWorkload, Spent
from pyc_mlir.tools.bench.peers.systems import IREE, PYC, System, SystemTask
from pyc_mlir.tools.cli.guarded import run_guarded

_PROGRAM, _SPENT, _REFUSED = "model.vmfb", "compiled.json", "refused.txt"


def _load_pyc(threads: int) -> None:
    """Import nothing: what runs the program is imported already."""


def _pyc(task: SystemTask, inputs: Sequence[np.ndarray]) -> Named:
    ended = run_guarded(lambda _: _compile(task, inputs))
    if ended != 0:
        refused = task.folder / _REFUSED
        got = refused.read_text() if refused.is_file() else str(ended)
        raise PycError(
            ReasonCode.TARGET_COMPILE_FAILED, where="compile", expected="a program", got=got
        )
    artifact = read(task.folder / _PROGRAM)
    program = Program(artifact, default_device(task.threads, artifact.manifest.seconds))
    arrays = [to_device(a, program.device) for a in inputs]

    def results() -> list[np.ndarray]:
        return [r.numpy() for r in flat(program(*arrays))]

    yield (
        "default",
        PreparedWorkload(
            partial(program, *arrays),
            results,
            lambda: footprint(artifact, inputs).peak_bytes,
            Spent(**json.loads((task.folder / _SPENT).read_text())),
            to_data(artifact.account),
            str(artifact.prediction or ""),
        ),
    )


def _compile(task: SystemTask, inputs: Sequence[np.ndarray]) -> int:
    """Compile in this process with the defaults; write the program and what that took."""
    from pyc_mlir.api import build
    from pyc_mlir.compilation.options import make_options
    from pyc_mlir.frontends.sources import allow_bytecode
    from pyc_mlir.tools.cli.model_source import read_model

    allow_bytecode()
    source = read_model(task.name, sys.stdin.buffer)
    start = Spent.so_far()
    try:
        artifact = build(source, inputs, make_options())
    except PycError as error:
        (task.folder / _REFUSED).write_text(str(error))
        return 1
    spent = Spent.so_far().since(start)
    (task.folder / _SPENT).write_text(json.dumps(asdict(spent)))
    (task.folder / _PROGRAM).write_bytes(to_bytes(artifact))
    return 0


SYSTEMS: Mapping[str, System] = {
    PYC: System(_load_pyc, _pyc),
    **peers.SYSTEMS,
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
