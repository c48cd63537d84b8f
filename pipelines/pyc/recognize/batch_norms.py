"""Guesses of batch norms whose statistics are computed or given, from the root of a variance.

Constant statistics are folded before, into a product and a sum: `pyc-fold-norms` has those.
"""

from collections.abc import Iterator
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.pipelines.pyc.recognize.anchors import followers, number
from pyc_mlir.pipelines.pyc.recognize.candidates import Candidate
from pyc_mlir.pipelines.pyc.recognize.norms import is_root
from pyc_mlir.pipelines.pyc.terms.nodes import VIEWS, TermGraph, TermNode

_REACH = 32


def batch_norms(anchor: TermNode, graph: TermGraph) -> Iterator[Candidate]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias of vectors, the last root first."""
    if not is_root(anchor):
        return
    for root in followers(anchor, graph):
        images, vectors, numbers = _read(root)
        for x in images:
            for variance in vectors:
                others = [v for v in vectors if v is not variance]
                for epsilon in numbers:
                    yield from _norms(root, x, variance, others, epsilon)


def _read(root: TermNode) -> tuple[list[TermNode], list[TermNode], list[float]]:
    """What a root is computed from: values of its type, nearest first, vectors, and numbers."""
    images: list[TermNode] = []
    vectors: list[TermNode] = []
    numbers: dict[float, None] = {}
    pending, seen = list(root.operands), {root}
    while pending and len(seen) < _REACH:
        node = pending.pop(0)
        if node in seen:
            continue
        seen.add(node)
        if (value := number(node)) is not None:
            numbers[value] = None
        elif node.type == root.type:
            images.append(node)
        elif node.type.rank == 1 and not node.has(Trait.ARITHMETIC):
            vectors.append(node)
        if node.has(Trait.ARITHMETIC | VIEWS):
            pending.extend(node.operands)
    return images, vectors if len(vectors) <= 4 else [], list(numbers)


def _norms(
    root: TermNode, x: TermNode, variance: TermNode, others: list[TermNode], epsilon: float
) -> Iterator[Candidate]:
    """By the place of each other vector, and the axis along which all vary."""
    length = variance.type.shape[0]
    if not others or length is None or any(o.type != variance.type for o in others):
        return
    axes = [a for a in (1, x.type.rank - 1) if 0 < a < x.type.rank and x.type.shape[a] == length]
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
