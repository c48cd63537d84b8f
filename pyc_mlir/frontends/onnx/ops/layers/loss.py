"""Losses: the negative log likelihood. SoftmaxCrossEntropyLoss is a function of it in ONNX."""

from typing import Any

import numpy as np

from pyc_mlir.dialects.functions import accumulated
from pyc_mlir.dialects.types import I64
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.indexing import take_along
from pyc_mlir.frontends.importing.shaping import expand_to
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node


@node("NegativeLogLikelihoodLoss")
def negative_log_likelihood(n: OnnxNode) -> Any:
    """loss[n, d] = -x[n, target[n, d], d] * weight[target]; its sum, or its weighted mean.

    Targets of `ignore_index` count nothing.
    """
    b, x = n.b, n.x(0)
    target = b.convert(n.x(1), I64)
    ignored = n.attr("ignore_index")
    if ignored is not None:
        skip = b.compare(target, np.array(ignored, np.int64), predicate="eq")
        target = b.select(skip, np.array(0, np.int64), target)
    else:
        b.declare_indices(target, n.dims(0)[1])
    taken = b.squeeze(take_along(b, x, b.expand_dims(target, 1), 1), 1)
    zero, one = n.number(0), n.number(1)
    weight = b.gather(n.x(2), target, axis=0) if n.has(2) else expand_to(b, one, b.dims(taken))
    if ignored is not None:
        weight, taken = (b.select(skip, zero, v) for v in (weight, taken))
    reduction = n.attr("reduction", "mean")
    if reduction not in ("none", "sum", "mean"):
        raise unsupported(f"reduction={reduction}: expected none, sum or mean")
    axes = tuple(range(b.type_of(taken).rank))

    def formula(taken: Any, weight: Any) -> Any:
        loss = b.mul(b.neg(taken), weight)
        if reduction == "none":
            return loss
        total = b.reduce_sum(loss, axes=axes)
        return total if reduction == "sum" else b.div(total, b.reduce_sum(weight, axes=axes))

    return accumulated(b, taken, formula, weight)
