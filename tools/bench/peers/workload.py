"""A program to measure, its arguments, and how to judge what it computes."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode


@dataclass(frozen=True, eq=False)
class BenchWorkload:
    """A program for `compile(source, inputs)`, its arguments, and how to judge what it computes.

    `reference` gives the results in float64; `tolerance` is the largest error (see
    `relative_error`) that counts as correct.
    """

    name: str
    source: Any
    inputs: tuple[np.ndarray, ...]
    reference: Callable[[], Sequence[np.ndarray]]
    tolerance: float = 1e-4
    # What the compiler is told of the arguments where that is less than they are (dynamic sizes).
    types: tuple[Any, ...] | None = None

    @property
    def specs(self) -> tuple[Any, ...]:
        """The specs that a program is compiled for: `types`, else the inputs themselves."""
        return self.inputs if self.types is None else self.types

    def check(self, results: Sequence[np.ndarray], candidate: str) -> float:
        """Return the largest relative error of `results`.

        Raises PycError (WRONG_RESULT) above the tolerance: a wrong program has no latency.
        """
        error = relative_error(results, self.expected)
        if not error <= self.tolerance:
            raise PycError(
                ReasonCode.WRONG_RESULT,
                f"{self.name}: expected {candidate} to be within {self.tolerance:g} of the float64 "
                f"reference, got an error of {error:.2g}",
            )
        return error

    @functools.cached_property
    def expected(self) -> Sequence[np.ndarray]:
        """The reference's results, computed once."""
        return self.reference()


def relative_error(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """max |got - expected| / max |expected|, the largest over all results; inf where shapes differ.

    Relative to the largest element: where elements cancel to nearly 0, a ratio says nothing.
    """
    if [r.shape for r in results] != [e.shape for e in expected]:
        return float("inf")
    errors = [0.0]
    for got, wanted in zip(results, expected, strict=True):
        if wanted.size:
            scale = float(np.max(np.abs(wanted))) or 1.0
            errors.append(float(np.max(np.abs(got.astype(np.float64) - wanted))) / scale)
    return float("nan") if np.isnan(errors).any() else max(errors)


def evaluate_wide(model: bytes | Path, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Run an ONNX model in float64 by ONNX's reference evaluator (numpy): float32 becomes float64.

    Weights, constants and casts of the main graph are widened. Raises what ONNX raises.
    """
    import onnx
    from onnx import TensorProto
    from onnx.reference import ReferenceEvaluator

    wide = onnx.load(model) if isinstance(model, Path) else onnx.load_from_string(model)
    for tensor in wide.graph.initializer:
        _widen(tensor)
    for node in wide.graph.node:
        for attribute in node.attribute:
            _widen(attribute.t)
            if (node.op_type, attribute.name, attribute.i) == ("Cast", "to", TensorProto.FLOAT):
                attribute.i = TensorProto.DOUBLE
    for value in (*wide.graph.input, *wide.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    feeds = {
        name: array.astype(np.float64) if array.dtype == np.float32 else array
        for name, array in inputs.items()
    }
    return [np.asarray(r) for r in ReferenceEvaluator(wide).run(None, feeds)]


def _widen(tensor: Any) -> None:
    """Make a `TensorProto` of float32 one of float64, in place."""
    from onnx import TensorProto, numpy_helper

    if tensor.data_type == TensorProto.FLOAT:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
