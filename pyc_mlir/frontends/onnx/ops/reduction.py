"""Reductions, ArgMax and ArgMin, CumSum."""

from collections.abc import Callable
from typing import Any

import numpy as np

from pyc_mlir.dialects.functions import accumulated
from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.ops.movement import START as BEGIN
from pyc_mlir.dialects.types import BOOL, DTYPES, is_float
from pyc_mlir.frontends.importing.shaping import take
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node


def axes_of(n: OnnxNode) -> tuple[int, ...]:
    """Return the axes to reduce, from the input (opset 18; ReduceSum 13) or the attribute; else
    all."""
    rank = n.type().rank
    axes = n.ints(1, "axes") if n.has(1) else tuple(n.attr("axes", ()))
    stays = n.attr("noop_with_empty_axes", 0)
    if not axes:
        return () if stays else tuple(range(rank))
    return tuple(sorted(a % rank for a in axes))


def _reduce(n: OnnxNode, op: str, x: Any, axes: tuple[int, ...]) -> Any:
    """Build one pyc reduction with the node's `keepdims`; nothing to do without axes."""
    keepdims = bool(n.attr("keepdims", 1))
    return getattr(n.b, op)(x, axes=axes, keepdims=keepdims) if axes else x


@node("ReduceSum", "ReduceProd")
def reduce_plain(n: OnnxNode) -> Any:
    """Build one pyc reduction."""
    return _reduce(
        n, {"ReduceSum": "reduce_sum", "ReduceProd": "reduce_prod"}[n.op], n.x(), axes_of(n)
    )


@node("ReduceMax", "ReduceMin")
def reduce_extreme(n: OnnxNode) -> Any:
    """Build one pyc reduction; i1 goes by way of i8."""
    op = {"ReduceMax": "reduce_max", "ReduceMin": "reduce_min"}[n.op]
    if n.type().dtype != BOOL:
        return _reduce(n, op, n.x(), axes_of(n))
    wide = n.b.cast(n.x(), dtype=DTYPES["i8"])
    # The identities of i8 are not 0 and 1: an empty maximum is false, an empty minimum true.
    zero = n.b.constant(np.array(0, np.int8))
    return n.b.compare(_reduce(n, op, wide, axes_of(n)), zero, predicate="gt")


@node("ReduceMean")
def reduce_mean(n: OnnxNode) -> Any:
    """Build the mean; of integers, rounded toward zero."""
    axes = axes_of(n)
    if is_float(n.type().dtype) or not axes:
        return _reduce(n, "reduce_mean", n.x(), axes)
    return n.b.div(_reduce(n, "reduce_sum", n.x(), axes), n.b.count(n.x(), axes))


def _in_float(b: Any, x: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function of floats; integers go by way of f64, and the result is truncated."""
    dtype = b.type_of(x).dtype
    if is_float(dtype):
        return accumulated(b, x, function)
    return b.convert(function(b.cast(x, dtype=DTYPES["f64"])), dtype)


@node("ReduceL1")
def reduce_l1(n: OnnxNode) -> Any:
    """out = sum |x|."""
    return _reduce(n, "reduce_sum", n.b.abs(n.x()), axes_of(n))


@node("ReduceL2")
def reduce_l2(n: OnnxNode) -> Any:
    """out = sqrt(sum x^2)."""
    b, axes = n.b, axes_of(n)
    return _in_float(b, n.x(), lambda x: b.sqrt(_reduce(n, "reduce_sum", b.mul(x, x), axes)))


@node("ReduceSumSquare")
def reduce_sum_square(n: OnnxNode) -> Any:
    """out = sum x^2."""
    b, axes = n.b, axes_of(n)
    return accumulated(b, n.x(), lambda x: _reduce(n, "reduce_sum", b.mul(x, x), axes))


@node("ReduceLogSum")
def reduce_log_sum(n: OnnxNode) -> Any:
    """out = ln(sum x)."""
    axes = axes_of(n)
    return _in_float(n.b, n.x(), lambda x: n.b.log(_reduce(n, "reduce_sum", x, axes)))


@node("ReduceLogSumExp")
def reduce_log_sum_exp(n: OnnxNode) -> Any:
    """out = m + ln(sum e^(x - m)) with m = max(x), or 0 where that is infinite."""
    b, axes = n.b, axes_of(n)
    keeps = n.attr("keepdims", 1)

    def compute(x: Any) -> Any:
        top = b.reduce_max(x, axes=axes, keepdims=True)
        finite = b.compare(b.abs(top), b.scalar(np.inf, x), predicate="lt")
        top = b.select(finite, top, b.scalar(0, x))
        total = b.reduce_sum(b.exp(b.sub(x, top)), axes=axes, keepdims=True)
        out = b.add(b.log(total), top)
        # Dimensions of size 1: any reduction drops them.
        return out if keeps else b.reduce_max(out, axes=axes)

    return _in_float(b, n.x(), compute) if axes else n.x()


@node("ArgMax", "ArgMin")
def arg_extreme(n: OnnxNode) -> Any:
    """pyc.argmax; the minimum's is that of -x (~x for integers); the last one's of x reversed."""
    b, x, rank = n.b, n.x(), n.type().rank
    axis = n.attr("axis", 0) % rank
    last = bool(n.attr("select_last_index", 0))
    if n.op == "ArgMin":
        x = b.neg(x) if is_float(n.type().dtype) else b.not_(x)
    if last:
        x = take(b, x, axis, END, BEGIN, -1)
    index = b.argmax(x, axis=axis, keepdims=bool(n.attr("keepdims", 1)))
    if not last:
        return index
    return b.sub(b.sub(b.size(x, axis), np.array(1, np.int64)), index)


@node("CumSum", "CumProd")
def cumulative(n: OnnxNode) -> Any:
    """Build running sums or products along `axis`, from the end with `reverse`."""
    b, rank = n.b, n.type().rank
    axis = int(n.scalar(1, "axis")) % rank
    sums = n.op == "CumSum"
    x = take(b, n.x(), axis, END, BEGIN, -1) if n.attr("reverse", 0) else n.x()
    exclusive = n.attr("exclusive", 0)
    if exclusive:
        # The last one falls off only behind, so that an axis of size 0 stays so.
        low = tuple(int(i == axis) for i in range(rank))
        x = b.pad(x, low=low, high=(0,) * rank, value=0.0 if sums else 1.0)
    out = b.cumulative(x, axis=axis, reduction="add" if sums else "mul")
    if exclusive:
        out = take(b, out, axis, 0, -1)
    return take(b, out, axis, END, BEGIN, -1) if n.attr("reverse", 0) else out
