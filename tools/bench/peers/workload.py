"""A program to measure, its arguments, and how to judge what it computes."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.frontends.python.specs import leaves, map_leaves
from pyc_mlir.tools.bench.peers.graph import PeerGraph, read_graph
from pyc_mlir.tools.bench.peers.prepared import relative_error


@dataclass(frozen=True, eq=False)
class Workload:
    """A program for `compile(source, specs)` and its arguments, arrays or trees of them.

    `source` is a function in numpy style, which on float64 arrays is its own reference, or the path
    of an ONNX model. `tolerance` is the largest error (see `relative_error`) that counts as
    correct; `kind` is the class of programs that it belongs to.
    """

    name: str
    source: Any
    inputs: tuple[Any, ...]
    kind: str = ""
    tolerance: float = 1e-4
    # What the compiler is told of the arguments where that is less than they are (dynamic sizes).
    types: tuple[Any, ...] | None = None
    # Computes the results in float64, where the program does not itself.
    reference: Callable[[], Sequence[np.ndarray]] | None = None

    @functools.cached_property
    def arrays(self) -> list[np.ndarray]:
        """The arguments of a call, in the program's order."""
        return [leaf for _, leaf in leaves(self.inputs)]

    @property
    def specs(self) -> tuple[Any, ...]:
        """The specs that a program is compiled for: `types`, else the inputs themselves."""
        given = self.inputs if callable(self.source) else tuple(self.arrays)
        return given if self.types is None else self.types

    @property
    def input_bytes(self) -> int:
        """Bytes of all arguments."""
        return sum(array.nbytes for array in self.arrays)

    @functools.cached_property
    def expected(self) -> Sequence[np.ndarray]:
        """The results in float64, computed once."""
        if self.reference is not None:
            return self.reference()
        if isinstance(self.source, Path):
            return evaluate_wide(self.source, self.arrays)
        wide = map_leaves(lambda a: a.astype(np.float64), self.inputs)
        return [np.asarray(result) for _, result in leaves(self.source(*wide))]

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

    def graph(self) -> PeerGraph:
        """Return the program at the sizes of its inputs, unless it is compiled for dynamic ones."""
        graph = read_graph(self.source, self.specs)
        if self.types is not None:
            return graph
        return replace(graph, arguments=tuple(TensorType(a.shape, a.dtype) for a in self.arrays))


def evaluate_wide(model: bytes | Path, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Run an ONNX model in float64 by ONNX's reference evaluator (numpy): float32 becomes float64.

    Weights, constants and casts of the main graph are widened. Raises what ONNX raises.
    """
    import onnx
    from onnx import TensorProto
    from onnx.reference import ReferenceEvaluator

    wide = onnx.load(model) if isinstance(model, Path) else onnx.load_from_string(model)
    weights = {tensor.name for tensor in wide.graph.initializer}
    names = [value.name for value in wide.graph.input if value.name not in weights]
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
    arrays = [a.astype(np.float64) if a.dtype == np.float32 else a for a in inputs]
    feeds = dict(zip(names, arrays, strict=True))
    return [np.asarray(r) for r in ReferenceEvaluator(wide).run(None, feeds)]


def _widen(tensor: Any) -> None:
    """Make a `TensorProto` of float32 one of float64, in place."""
    from onnx import TensorProto, numpy_helper

    if tensor.data_type == TensorProto.FLOAT:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
