"""Guesses of attention: two products around a softmax."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.pipelines.pyc.recognize.anchors import peeled, unscaled
from pyc_mlir.pipelines.pyc.recognize.candidates import Candidate
from pyc_mlir.pipelines.pyc.terms.nodes import TermGraph, TermNode

_MOVES = Trait.VIEW | Trait.PERMUTES | Trait.CONVERTS
_LAYERS = 8
Guard = Callable[..., Any]


@dataclass(frozen=True)
class _Scores:
    """The scores under a softmax: the product of queries and keys, its factor, and its mask.

    Scores stay where each condition has the value beside it.
    """

    product: TermNode
    factor: float
    conditions: tuple[tuple[TermNode, bool], ...] = ()
    added: TermNode | None = None


def attentions(anchor: TermNode, graph: TermGraph) -> Iterator[Candidate]:
    """Yield the attention whose softmax is `anchor`."""
    if anchor.name != "softmax" or anchor.params["axis"] % anchor.type.rank != anchor.type.rank - 1:
        return
    scores = _scores(anchor.operands[0])
    if scores is None:
        return
    for root, guard in _products(anchor, graph):
        for causal in (True, False):
            yield from (replace(c, guard=guard) for c in _candidates(root, scores, causal))


def _products(probabilities: TermNode, graph: TermGraph) -> Iterator[tuple[TermNode, Guard | None]]:
    """Yield the products of the softmax, and of a guard behind it, with values."""
    for reader in dict.fromkeys(graph.of(probabilities)):
        if reader.name == "matmul":
            yield reader, None
        elif reader.name == "select" and probabilities in reader.operands[1:]:
            yield from ((r, _guarded) for r in graph.of(reader) if r.name == "matmul")


def _scores(node: TermNode, left: int = _LAYERS) -> _Scores | None:
    """Walk down from the operand of a softmax to a product; None where there is none."""
    node, factor = unscaled(node)
    if node.name == "matmul" and min(o.type.rank for o in node.operands) > 1:
        return _Scores(node, factor)
    if left == 0:
        return None
    if node.name == "add":
        # Scores have the sizes of the sum, masks often fewer.
        full = [o for o in node.operands if o.type.shape == node.type.shape]
        found = [(s, o) for o in full if (s := _scores(o, left - 1)) and s.added is None]
        if not found:
            return None
        inner, side = found[0]
        mask = node.operands[1 - node.operands.index(side)]
        return replace(inner, factor=inner.factor * factor, added=mask)
    hidden = [o.number == -np.inf for o in node.operands]
    if node.name == "select" and hidden[1] != hidden[2]:
        inner = _scores(node.operands[1 if hidden[2] else 2], left - 1)
        condition = (node.operands[0], hidden[2])
        return inner and replace(
            inner, factor=inner.factor * factor, conditions=(condition, *inner.conditions)
        )
    return None


def _candidates(root: TermNode, scores: _Scores, causal: bool) -> Iterator[Candidate]:
    """Yield candidates by the condition that may be causal, and the way to read the keys."""
    if causal:
        for condition in scores.conditions:
            if peeled(condition[0]).name in ("compare", "constant", "not"):
                rest = tuple(c for c in scores.conditions if c is not condition)
                yield from _with_keys(root, replace(scores, conditions=rest), True)
        return
    yield from _with_keys(root, scores, False)


def _with_keys(root: TermNode, scores: _Scores, causal: bool) -> Iterator[Candidate]:
    if scores.conditions and scores.added is not None:
        return
    masks = (*(c for c, _ in scores.conditions), *([] if scores.added is None else [scores.added]))
    query, first = unscaled(scores.product.operands[0])
    keys, second = unscaled(scores.product.operands[1])
    factor = scores.factor * first * second
    shape = keys.type.shape
    moved, wanted = keys, (*shape[:-2], shape[-1], shape[-2])
    while moved.has(_MOVES) and (moved is keys or moved.type.shape != wanted):
        moved = moved.operands[0]
    signs = tuple(kept for _, kept in scores.conditions)
    build = partial(_build, {"scale": factor, "is_causal": causal}, signs)
    others = (root.operands[1], *masks)
    if moved is not keys and moved.type.shape == wanted:
        leaves = (query, moved, *others)
        yield Candidate("attention", root, leaves, partial(build, False))
    yield Candidate("attention", root, (query, keys, *others), partial(build, True))


def _build(
    params: dict[str, Any],
    signs: tuple[bool, ...],
    swap: bool,
    b: Any,
    query: Any,
    key: Any,
    value: Any,
    *masks: Any,
) -> Any:
    if swap:
        rank = b.type_of(key).rank
        key = b.transpose(key, permutation=(*range(rank - 2), rank - 1, rank - 2))
    return b.attention(query, key, value, *_joined(b, masks, signs), **params)


def _joined(b: Any, masks: Sequence[Any], signs: tuple[bool, ...]) -> list[Any]:
    """Return one mask: all conditions must be what `signs` say; without signs the mask is added."""
    if not masks:
        return []
    wanted = list(masks)
    for i, sign in enumerate(signs):
        wanted[i] = masks[i] if sign else b.not_(masks[i])
    mask = wanted[0]
    for other in wanted[1:]:
        mask = b.and_(other, mask)
    return [mask]


def _guarded(b: Any, out: Any, query: Any, key: Any, value: Any, *masks: Any) -> Any:
    """Return the guarded result: 0 in place of probabilities in rows that are NaN.

    A row of probabilities is NaN throughout or nowhere. Zeros times values are 0, or NaN where a
    value is infinite or NaN; so is ``sum(0 value)``, for all rows alike.
    """
    zeros = b.mul(value, b.scalar(0, value))
    nothing = b.reduce_sum(zeros, axes=(b.type_of(value).rank - 2,), keepdims=True)
    return b.select(b.compare(out, out, predicate="ne"), nothing, out)
