"""The expected results of a model: in float64 where that can be computed, else by onnxruntime.

`onnx` is ONNX's own reference evaluator on the model with its weights in float64, `numpy` are the
references of PyC's ops in float64, `onnxruntime` its CPU provider in the model's own types without
optimizations. `auto` is the first of them that answers; none of the first two is what is measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.artifact.signature import Signature
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.opdef import evaluate
from pyc_mlir.dialects.types import is_float
from pyc_mlir.tools.bench.peers.graph import PeerGraph
from pyc_mlir.tools.bench.peers.workload import evaluate_wide
from pyc_mlir.tools.bench.report.suite import note

AUTO = "auto"
KINDS = (AUTO, "onnx", "numpy", "onnxruntime")
_REASON_CHARACTERS = 200


@dataclass(frozen=True, eq=False)
class Reference:
    """The expected results, and how they were computed."""

    how: str
    results: tuple[np.ndarray, ...]


def reference(
    kind: str,
    path: Path | None,
    graph: PeerGraph,
    signature: Signature,
    inputs: Sequence[np.ndarray],
) -> Reference:
    """Compute the expected results; `path` is that of an ONNX model.

    Raises PycError (RUNTIME_FAILED) where nothing answers, with each reason.
    """
    named = dict(zip((a.name for a in signature.inputs), inputs, strict=True))
    ways: Mapping[str, tuple[str, Callable[[], Sequence[np.ndarray]]]] = {
        "numpy": ("the numpy references of PyC's ops in float64", lambda: _widely(graph, inputs)),
    }
    if path is not None:
        ways = {
            "onnx": (
                "ONNX's reference evaluator in float64",
                lambda: evaluate_wide(path, named),
            ),
            **ways,
            "onnxruntime": ("onnxruntime, not optimized", lambda: _by_onnxruntime(path, inputs)),
        }
    failed = {}
    for name in ways if kind == AUTO else (kind,):
        if name not in ways:
            failed[name] = "it reads ONNX models only"
            continue
        how, compute = ways[name]
        try:
            return Reference(how, tuple(np.asarray(r) for r in compute()))
        except Exception as error:  # noqa: BLE001  (other packages' own errors; the reason is kept)
            failed[name] = f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS]
            note(f"no reference by {how}: {failed[name]}")
    raise PycError(
        ReasonCode.RUNTIME_FAILED,
        "reference: expected one way to compute what the model should answer, got none ("
        + "; ".join(f"{name}: {reason}" for name, reason in failed.items())
        + ")",
    )


def _widely(graph: PeerGraph, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Evaluate the ops' numpy references with every float in float64."""
    values = {n: _wide(a) for n, a in (*enumerate(inputs), *graph.constants.items())}
    for step in graph.steps:
        params = {name: _wide_param(value) for name, value in step.params.items()}
        values[step.result] = evaluate(
            step.definition, [values[n] for n in step.operands], **params
        )
    return [values[n] for n in graph.results]


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if is_float(array.dtype) else array


def _wide_param(value: Any) -> Any:
    return np.dtype(np.float64) if isinstance(value, np.dtype) and is_float(value) else value


def _by_onnxruntime(path: Path, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    import onnxruntime  # pyright: ignore[reportMissingImports]

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = dict(zip((i.name for i in session.get_inputs()), inputs, strict=True))
    return [np.asarray(r) for r in session.run(None, feeds)]
