"""A user's model at given sizes: what it is called with, what it should answer, what peers read.

In: the MODEL argument of `pyc-bench model` and sizes of its dynamic dimensions. Out: a `ModelCase`,
and by `store` the folder that the processes of the systems work from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.artifact.signature import Signature
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.frontends.signatures import signature_of
from pyc_mlir.frontends.sources import OnnxFile, Source
from pyc_mlir.tools.bench.model.reference import Reference, reference
from pyc_mlir.tools.bench.peers.graph import LeastWork, PeerGraph, count_work, read_graph
from pyc_mlir.tools.bench.peers.onnx_model import onnx_model
from pyc_mlir.tools.bench.peers.rounds import store_graph, store_linalg
from pyc_mlir.tools.bench.peers.systems import IREE
from pyc_mlir.tools.cli.run_inputs import read_inputs, seeded_inputs

# What the systems read, beside the arrays.
_READS_ONNX = ("onnxruntime", "openvino")
_READS_GRAPH = ("torch", "torch-compile", "jax")
# Protocol buffers hold less than 2 GiB; what is larger lies beside the model.
_LARGEST_FILE = 1_900_000_000


def read_signature(source: Any, specs: Sequence[Any] | None) -> Signature:
    """Return a model's signature. Raises PycError (BAD_MODEL) for what enters at IREE."""
    with new_context() as context, ir.Location.unknown():
        loaded = Source.of(source).load(specs, context)
        if loaded.module is None:
            raise PycError(
                ReasonCode.BAD_MODEL,
                f"{loaded.name}: expected a model that PyC imports as a whole, so that other "
                "systems can be given the same, got one that enters at IREE",
                remedy="time it with `pyc-compile` and `pyc-run --repeat`",
            )
        return signature_of(entry_function(loaded.module))


@dataclass(frozen=True, eq=False)
class ModelCase:
    """A model with the arrays that it is called with; `model` is the command line's word for it."""

    model: str
    source: Any
    signature: Signature
    sizes: Mapping[str, int]
    inputs: tuple[np.ndarray, ...]

    @staticmethod
    def of(
        model: str,
        source: Any,
        signature: Signature,
        sizes: Mapping[str, int],
        given: Sequence[str] = (),
        seed: int = 0,
    ) -> "ModelCase":
        """Draw the inputs; `given` are values of `--input` that take the place of random ones.

        Raises PycError (BAD_ARGUMENT) for a dynamic dimension without a size, and as `read_inputs`.
        """
        drawn = seeded_inputs(signature.inputs, sizes, seed)
        arrays = read_inputs(given, signature.inputs, drawn)
        signature.check([(a.shape, a.dtype) for a in arrays])
        return ModelCase(model, source, signature, sizes, tuple(arrays))

    @property
    def workload(self) -> str:
        """The sizes, as records name them; the model's name where it has no dynamic ones."""
        sizes = ", ".join(f"{name}={size}" for name, size in self.sizes.items())
        return sizes or Path(self.model.partition(":")[0]).name

    @property
    def rows(self) -> int:
        """The size of a leading dynamic dimension that all inputs share: rows of a batch."""
        leading = {a.shape[:1] for a in self.signature.inputs}
        shared = len(leading) == 1 and not all(isinstance(d, int) for d in next(iter(leading)))
        return self.inputs[0].shape[0] if shared else 1

    @property
    def path(self) -> Path | None:
        """The file of an ONNX model; None for another kind."""
        return self.source.path if isinstance(self.source, OnnxFile) else None

    @cached_property
    def graph(self) -> PeerGraph:
        """The imported program at the sizes of the inputs, as any peer can be handed it."""
        graph = read_graph(self.source, self.inputs)
        types = tuple(TensorType(a.shape, a.dtype) for a in self.inputs)
        return replace(graph, arguments=types)

    @cached_property
    def work(self) -> LeastWork:
        """The operations and bytes of a call."""
        return count_work(self.graph, self.inputs)

    def reference(self, kind: str) -> Reference:
        """Return what the model should answer; `kind` is one of `reference.KINDS`."""
        return reference(kind, self.path, self.graph, self.signature, self.inputs)


def store(
    case: ModelCase, expected: Sequence[np.ndarray], folder: Path, systems: Sequence[str]
) -> dict[str, str]:
    """Write what the processes are given; return the systems that cannot read it, with reasons."""
    np.savez(folder / "inputs.npz", *case.inputs)
    np.savez(folder / "expected.npz", *expected)
    if IREE in systems:
        store_linalg(case.source, case.inputs, folder)
    if set(systems) & set(_READS_GRAPH):
        store_graph(case.graph, folder)
    if not set(systems) & set(_READS_ONNX):
        return {}
    try:
        if case.path is None:
            (folder / "model.onnx").write_bytes(onnx_model(case.graph))
        else:
            _write_sized(case.path, case, folder / "model.onnx")
    except PycError as error:
        return dict.fromkeys(_READS_ONNX, f"{error.code.name}: {error.message}")
    return {}


def _write_sized(path: Path, case: ModelCase, target: Path) -> None:
    """Write a copy of an ONNX model whose inputs have the sizes of the arrays."""
    import onnx

    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    arguments = [value for value in model.graph.input if value.name not in weights]
    for value, array in zip(arguments, case.inputs, strict=True):
        for dim, size in zip(value.type.tensor_type.shape.dim, array.shape, strict=True):
            dim.dim_value = size
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    onnx.save(model, target, save_as_external_data=size > _LARGEST_FILE)
