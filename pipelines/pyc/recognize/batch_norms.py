"""Guesses of batch norms whose statistics are computed or given, from the root of a variance.

Constant statistics are folded before, into a product and a sum: `pyc-fold-norms` has those.
"""

from collections.abc import Iterator
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from pyc_mlir.pipelines.pyc.recognize.anchors import followers, peeled, stages
from pyc_mlir.pipelines.pyc.recognize.candidates import Candidate
from pyc_mlir.pipelines.pyc.recognize.graph import Graph, Node
from pyc_mlir.pipelines.pyc.recognize.norms import is_root, parameters


def batch_norms(anchor: Node, graph: Graph) -> Iterator[Candidate]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias of vectors, the last root first."""
    if not is_root(anchor):
        return
    sides = anchor.operands[0].operands if peeled(anchor.operands[0]).name == "add" else ()
    given = [o for o in sides if o.number is None]
    numbers = [o.number for o in sides if o.number is not None]
    if len(given) != 1 or not numbers:
        return
    variances = [n for n in stages(given[0]) if n.type.rank == 1]
    for root in followers(anchor, graph):
        for variance in variances:
            for x in _images(root, anchor):
                yield from _norms(root, x, variance, float(numbers[0] or 0.0))


def _images(root: Node, anchor: Node) -> Iterator[Node]:
    """The values of the root's type that it is computed from beside the anchor, nearest first."""
    pending, seen = [root], set()
    while pending:
        node = pending.pop(0)
        for operand in node.operands:
            if operand in seen or operand is anchor:
                continue
            seen.add(operand)
            if operand.type == root.type and operand.number is None:
                yield operand
            if node.name in ("add", "sub", "mul", "div") and len(seen) < 12:
                pending.append(operand)


def _norms(root: Node, x: Node, variance: Node, epsilon: float) -> Iterator[Candidate]:
    """By the place of each other vector, and the axis along which all vary."""
    length = variance.type.shape[0]
    others = [p for p in parameters(root, x) if p is not variance]
    if not 1 <= len(others) <= 3 or length is None or x.type.rank < 2:
        return
    if any(o.type != variance.type for o in others):
        return
    axes = [a for a in (1, x.type.rank - 1) if x.type.shape[a] == length]
    for axis in dict.fromkeys(axes):
        for places in permutations(("scale", "bias", "mean"), len(others)):
            build = partial(_build, places, {"axis": axis, "epsilon": epsilon})
            yield Candidate("batchnorm", root, (x, variance, *others), build)


def _build(
    places: tuple[str, ...], params: dict[str, Any], b: Any, x: Any, variance: Any, *given: Any
) -> Any:
    """The norm, with ones and zeros for the vectors that it lacks."""
    by_name = dict(zip(places, given, strict=True))
    type_ = b.type_of(variance)
    vectors = []
    for name, fill in (("scale", 1), ("bias", 0), ("mean", 0)):
        number = np.broadcast_to(np.array(fill).astype(type_.dtype), type_.shape)
        vectors.append(by_name[name] if name in by_name else b.constant(number))
    return b.batchnorm(x, *vectors, variance, **params)
