"""Results whose sizes depend on data: Unique, NonZero, NonMaxSuppression; and MelWeightMatrix.

Where all inputs are known, they are computed at import. Where an input is computed when the model
runs, NonMaxSuppression fills a buffer of fixed size (bounded.py); the others are refused
(UNSUPPORTED_ATTRIBUTE): cut the model before such a node. TopK with a mask says the same in a fixed
size.
"""

from typing import Any

import numpy as np
import onnx
import onnx.reference

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.onnx.ops.images.detection import boxes_left
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node

_MAX_ELEMENTS = 1 << 14


@node("NonMaxSuppression")
def non_max_suppression(n: OnnxNode) -> Any:
    """Build the rows (image, class, box) of boxes that overlap with no better one; their number."""
    rows, count = boxes_left(n)
    return (rows, count) if n.emits else rows[: int(count)]


@node("Unique")
def unique(n: OnnxNode) -> Any:
    """Return the values of x that differ, where each is first, its place for each x, its count.

    In order, or by their first places with sorted=0; of slices along `axis` if it is given.
    """
    x, axis = _known(n, "x"), n.attr("axis")
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    if not n.attr("sorted", 1):
        order = np.argsort(first)
        values = np.take(values, order, axis=axis or 0)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    return values, *(v.reshape(-1).astype(np.int64) for v in (first, inverse, counts))


@node("NonZero")
def nonzero(n: OnnxNode) -> Any:
    """Return the indices of the elements that are not 0, i64 [rank of x, their number]."""
    x = _known(n, "x")
    return np.argwhere(x).T.astype(np.int64)


def _known(n: OnnxNode, what: str) -> np.ndarray:
    """Return input 0, known at import and not large."""
    x = n.known(0, what)
    if x.size > _MAX_ELEMENTS:
        raise unsupported(f"known inputs: expected at most {_MAX_ELEMENTS} elements")
    return x


@node("MelWeightMatrix")
def by_reference(n: OnnxNode) -> Any:
    """Return the arrays that ONNX's reference computes for known inputs."""
    given = {}
    for index, name in enumerate(n.proto.input):
        if n.has(index):
            given[name] = n.known(index, name)
    n.attributes()
    untyped = onnx.TypeProto()
    inputs = [onnx.helper.make_value_info(name, untyped) for name in given]
    outputs = [onnx.helper.make_value_info(name, untyped) for name in n.proto.output if name]
    graph = onnx.helper.make_graph([n.proto], "node", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 22)])
    try:
        found = iter(onnx.reference.ReferenceEvaluator(model).run(None, given))
    except Exception as error:
        raise PycError(
            ReasonCode.BAD_MODEL, f"expected inputs that ONNX computes with, got: {error!r}"
        ) from error
    return tuple(np.asarray(next(found)) if name else None for name in n.proto.output)
