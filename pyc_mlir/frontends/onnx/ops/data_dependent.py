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
from pyc_mlir.frontends.onnx.ops.images.detection import boxes_left
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node


@node("NonMaxSuppression")
def non_max_suppression(n: OnnxNode) -> Any:
    """Build the rows (image, class, box) of boxes that overlap with no better one; their number."""
    rows, count = boxes_left(n)
    return (rows, count) if n.emits else rows[: int(count)]


@node("Unique")
def unique(n: OnnxNode) -> Any:
    """Return distinct values or slices, in order or as they come; first places, ranks, counts."""
    x, axis = n.known(0, "x"), n.attr("axis")
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    if not n.attr("sorted", 1):
        order = np.argsort(first)
        values = np.take(values, order, axis=axis or 0)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    return values, *(v.reshape(-1).astype(np.int64) for v in (first, inverse, counts))


@node("NonZero", "MelWeightMatrix")
def by_reference(n: OnnxNode) -> Any:
    """Return the array that ONNX's reference computes for known inputs."""
    given = {name: n.known(index, name) for index, name in enumerate(n.proto.input)}
    n.attributes()
    try:
        (found,) = onnx.reference.ReferenceEvaluator(n.proto).run(None, given)
    except Exception as error:
        raise PycError(
            ReasonCode.BAD_MODEL, f"expected inputs that ONNX computes with, got: {error!r}"
        ) from error
    return np.asarray(found)
