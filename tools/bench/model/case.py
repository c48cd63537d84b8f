"""A user's model at given sizes: what it is called with, what it should answer, what peers read.

In: the MODEL argument of `pyc-bench model` and sizes of its dynamic dimensions. Out: a `ModelCase`,
and by `store` the folder that the processes of the systems work from.

What a model should answer is computed in float64 where that can be, else by onnxruntime: `onnx` is
ONNX's own reference evaluator on the model with its weights in float64, `numpy` are the references
of PyC's ops in float64, `onnxruntime` its CPU provider in the model's own types without
optimizations. `auto` is the first of them that answers; none of the first two is what is measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.artifact.signature import Ranges, Signature
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import evaluate
from pyc_mlir.dialects.types import TensorType, is_float
from pyc_mlir.frontends.signatures import signature_of
from pyc_mlir.frontends.sources import OnnxFile, Source
from pyc_mlir.tools.bench.peers.graph import LeastWork, PeerGraph, read_graph
from pyc_mlir.tools.bench.peers.onnxruntime_session import run_unoptimized
from pyc_mlir.tools.bench.peers.rounds import store_arrays, store_graph, store_linalg, store_types
from pyc_mlir.tools.bench.peers.translators import onnx_model
from pyc_mlir.tools.bench.peers.workload import evaluate_wide
from pyc_mlir.tools.bench.report.suite import note
from pyc_mlir.tools.bench.report.tables import IREE
from pyc_mlir.tools.cli.run_inputs import read_inputs, seeded_inputs

AUTO = "auto"
REFERENCES = (AUTO, "onnx", "numpy", "onnxruntime")
_REASON_CHARACTERS = 200
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
class Reference:
    """The expected results, and how they were computed."""

    how: str
    results: tuple[np.ndarray, ...]


@dataclass(frozen=True, eq=False)
class ModelCase:
    """A model with the arrays that it is called with; `model` is the command line's word for it.

    It is compiled with its dynamic dimensions, of which `ranges` may tell the least and the largest
    size and `declared` the types; with ``None`` for the sizes of the arrays.
    """

    model: str
    source: Any
    signature: Signature
    sizes: Mapping[str, int]
    inputs: tuple[np.ndarray, ...]
    declared: Sequence[Any] | None = None
    ranges: Ranges | None = None

    @staticmethod
    def of(
        model: str,
        source: Any,
        signature: Signature,
        sizes: Mapping[str, int],
        given: Sequence[str] = (),
        seed: int = 0,
        declared: Sequence[Any] | None = None,
        ranges: Ranges | None = None,
    ) -> "ModelCase":
        """Draw the inputs; `given` are values of `--input` that take the place of random ones.

        Raises PycError (BAD_ARGUMENT) for a dynamic dimension without a size, and as `read_inputs`.
        """
        drawn = seeded_inputs(signature.inputs, sizes, seed)
        arrays = read_inputs(given, signature.inputs, drawn)
        signature.check([(a.shape, a.dtype) for a in arrays])
        return ModelCase(model, source, signature, sizes, tuple(arrays), declared, ranges)

    @property
    def specs(self) -> Sequence[Any] | None:
        """The inputs as a compile takes them: arrays of the sizes, or the model's own types."""
        if self.ranges is None:
            return self.inputs
        return self.declared

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

    def reference(self, kind: str) -> Reference:
        """Compute what the model should answer; `kind` is one of `REFERENCES`.

        Raises PycError (RUNTIME_FAILED) where nothing answers, with each reason.
        """
        ways: dict[str, tuple[str, Callable[[], Sequence[np.ndarray]]]] = {
            "numpy": ("the numpy references of PyC's ops in float64", self._widely)
        }
        if (path := self.path) is not None:
            by_onnx = lambda: evaluate_wide(path, self.inputs)  # noqa: E731
            plainly = lambda: run_unoptimized(path, self.inputs)  # noqa: E731
            ways = {"onnx": ("ONNX's reference evaluator in float64", by_onnx), **ways}
            ways["onnxruntime"] = ("onnxruntime, not optimized", plainly)
        failed = {}
        for name in ways if kind == AUTO else (kind,):
            if name not in ways:
                failed[name] = "it reads ONNX models only"
                continue
            how, compute = ways[name]
            try:
                return Reference(how, tuple(np.asarray(r) for r in compute()))
            except Exception as error:  # noqa: BLE001  (other packages' own; the reason is kept)
                failed[name] = f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS]
                note(f"no reference by {how}: {failed[name]}")
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            "reference: expected one way to compute what the model should answer, got none ("
            + "; ".join(f"{name}: {reason}" for name, reason in failed.items())
            + ")",
        )

    def _widely(self) -> list[np.ndarray]:
        """Evaluate the ops' numpy references with every float in float64."""

        def wide(value: Any) -> Any:
            if isinstance(value, np.ndarray):
                return value.astype(np.float64) if is_float(value.dtype) else value
            return (
                np.dtype(np.float64) if isinstance(value, np.dtype) and is_float(value) else value
            )

        graph = self.graph
        arrays = (*enumerate(self.inputs), *graph.constants.items())
        values = {number: wide(array) for number, array in arrays}
        for step in graph.steps:
            params = {name: wide(value) for name, value in step.params.items()}
            operands = [values[n] for n in step.operands]
            values[step.result] = evaluate(step.definition, operands, **params)
        return [values[n] for n in graph.results]


def store(
    case: ModelCase,
    expected: Sequence[np.ndarray],
    folder: Path,
    systems: Sequence[str],
    cache: Path | None = None,
) -> tuple[LeastWork, Mapping[str, str]]:
    """Write what the processes are given; what the model does at least, who cannot read it."""
    store_arrays(folder, case.inputs, expected)
    store_types(case.specs, case.ranges, folder, cache)
    if IREE in systems:
        store_linalg(case.source, case.specs, folder)
    if set(systems) & set(_READS_GRAPH):
        store_graph(case.graph, folder)
    reading = set(systems) & set(_READS_ONNX)
    unread: dict[str, str] = {}
    try:
        if reading and case.path is None:
            (folder / "model.onnx").write_bytes(onnx_model(case.graph))
        elif reading and case.path is not None:
            _write(case.path, case, folder / "model.onnx")
    except PycError as error:
        unread = dict.fromkeys(reading, f"{error.code.name}: {error.message}")
    return case.graph.least_work(case.inputs), unread


def _write(path: Path, case: ModelCase, target: Path) -> None:
    """Write a copy of an ONNX model whose inputs have the sizes that it is compiled for."""
    import onnx

    model = onnx.load(path)
    weights = {tensor.name for tensor in model.graph.initializer}
    arguments = [value for value in model.graph.input if value.name not in weights]
    sized = zip(arguments, case.inputs, strict=True) if case.ranges is None else ()
    for value, array in sized:
        for dim, size in zip(value.type.tensor_type.shape.dim, array.shape, strict=True):
            dim.dim_value = size
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    onnx.save(model, target, save_as_external_data=size > _LARGEST_FILE)
