"""Guesses of softmax and its logarithm, from a sum of exponentials."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.pipelines.pyc.recognize.anchors import followers, peeled, stages
from pyc_mlir.pipelines.pyc.recognize.candidates import Candidate
from pyc_mlir.pipelines.pyc.terms.nodes import TermGraph, TermNode


def softmaxes(anchor: TermNode, graph: TermGraph) -> Iterator[Candidate]:
    """exp(x - max x) / sum, and what takes the logarithm of that; the last root first."""
    if anchor.name in ("softmax", "log"):
        yield from _logarithms(anchor, graph)
        return
    if anchor.name != "reduce_sum" or len(anchor.params["axes"]) != 1:
        return
    power = peeled(anchor.operands[0])
    if power.name != "exp":
        return
    shifted = peeled(power.operands[0])
    if shifted.name not in ("add", "sub"):
        return
    axis = anchor.params["axes"][0] % anchor.operands[0].type.rank
    inputs = [x for operand in shifted.operands for x in stages(operand)]
    for root in followers(anchor, graph):
        for x in inputs:
            yield from _both(root, x, axis)
    return


def _logarithms(anchor: TermNode, graph: TermGraph) -> Iterator[Candidate]:
    """log(softmax(x)) where the softmax is a composite already."""
    if anchor.name != "log":
        return
    inner = peeled(anchor.operands[0], Trait.CONVERTS)
    if inner.name == "softmax":
        for root in (anchor, *graph.of(anchor)):
            yield from _both(root, inner.operands[0], inner.params["axis"])


def _both(root: TermNode, x: TermNode, axis: int) -> Iterator[Candidate]:
    if x.type.shape != root.type.shape or x.type.dtype != root.type.dtype:
        return
    axis = axis - x.type.rank if axis % x.type.rank == x.type.rank - 1 and axis >= 0 else axis
    name = "softmax" if root.name in ("div", "mul") else "log_softmax"
    yield Candidate(name, root, (x,), partial(_build, name, axis))


def _build(name: str, axis: int, b: Any, x: Any) -> Any:
    return getattr(b, name)(x, axis=axis)
