"""Guesses of composites: walks from an anchor to the values that it computes from, and up.

Comes in: an anchor, an op that few composites hold, and its graph. Goes out: `Candidate`s, the
largest first: softmax from a sum of exponentials, norms from the root of a variance, activations
from erf, tanh, exp and maxima, attention from a softmax between two products. A guess may be wrong.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations, product
from math import prod
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.types import is_float
from pyc_mlir.pipelines.pyc.equivalence.algebra import likely
from pyc_mlir.pipelines.pyc.equivalence.nodes import MOVED, VIEWS, TermGraph, TermNode

# Ops between the leaves and the root of a composite, at most.
REGION = 64


@dataclass(frozen=True)
class Candidate:
    """`name` of `leaves`, in place of `root`; `build` makes it from a builder and the leaves.

    `guard` makes of the builder, the composite and the leaves what the program's guard against NaN
    does, for all operands; None where there is none, or it cannot be kept.
    """

    name: str
    root: TermNode
    leaves: tuple[TermNode, ...]
    build: Callable[..., Any]
    guard: Callable[..., Any] | None = None


# How many ops a walk visits.
_REACH = 24


def peeled(node: TermNode, through: Trait = VIEWS) -> TermNode:
    """Return the node without conversions and views around it."""
    return stages(node, through)[-1]


def stages(node: TermNode, through: Trait = VIEWS) -> list[TermNode]:
    """Return the node, and what is left as each conversion and view around it goes."""
    found = [node]
    while found[-1].has(through):
        found.append(found[-1].operands[0])
    return found


def unscaled(node: TermNode) -> tuple[TermNode, float]:
    """Return the node without conversions and factors that are one number, and the factor."""
    factor = 1.0
    while True:
        numbers = [number(o) for o in node.operands]
        if node.name == "cast" and is_float(node.operands[0].type.dtype):
            node = node.operands[0]
        elif node.name == "neg":
            node, factor = node.operands[0], -factor
        elif node.name == "mul" and (numbers[1] is not None or numbers[0] is not None):
            at = 0 if numbers[1] is not None else 1
            factor *= numbers[1 - at] or 0.0
            node = node.operands[at]
        elif node.name == "div" and numbers[1]:
            factor /= numbers[1]
            node = node.operands[0]
        else:
            return node, factor


def number(node: TermNode) -> float | None:
    """Return the number that a constant means; None for what is none."""
    return None if node.number is None else likely(node.number, node.type.dtype)


def followers(anchor: TermNode, graph: TermGraph) -> list[TermNode]:
    """Return the ops that compute from an anchor, last first, as far as one composite may reach."""
    found: dict[TermNode, None] = {}
    pending = list(graph.of(anchor))
    while pending and len(found) < _REACH:
        node = pending.pop(0)
        if node in found or not node.has(Trait.ELEMENTWISE | VIEWS):
            continue
        found[node] = None
        pending.extend(graph.of(node))
    return graph.ordered(found)[::-1]


def arguments(node: TermNode) -> Iterator[TermNode]:
    """Yield the values that alone, with numbers, determine an argument; the nearest first."""
    walked = [n for n in walk(node, Trait.ARITHMETIC, _REACH) if n.number is None]
    for cut in walked:
        if is_float(cut.type.dtype) and _depends_only_on(node, cut):
            yield cut


def walk(node: TermNode, through: Trait, limit: int, also: tuple[str, ...] = ()) -> list[TermNode]:
    """Return `node` and what such ops compute it from, nearest first, at most `limit`."""
    found: dict[TermNode, None] = {}
    pending = [node]
    while pending and len(found) < limit:
        top = pending.pop(0)
        if top in found:
            continue
        found[top] = None
        if top.has(through) or top.name in also:
            pending.extend(top.operands)
    return list(found)


def _depends_only_on(node: TermNode, cut: TermNode) -> bool:
    """Return whether arithmetic of `cut` and of numbers gives `node`; each op is looked at once."""
    seen: set[TermNode] = set()
    pending = [node]
    while pending:
        top = pending.pop()
        if top is cut or top.number is not None or top in seen:
            continue
        if len(seen) == _REACH or not top.has(Trait.ARITHMETIC):
            return False
        seen.add(top)
        pending.extend(top.operands)
    return True


_FUNCTIONS = {
    "erf": (("gelu", {"approximate": "none"}),),
    "tanh": (("gelu", {"approximate": "tanh"}),),
    "exp": (("silu", {}), ("sigmoid", {}), ("gelu", {"approximate": "tanh"})),
    "sigmoid": (("silu", {}), ("gelu", {"approximate": "tanh"})),
    "maximum": (("relu", {}),),
}
_ARGUMENTS = 6


def activations(anchor: TermNode, graph: TermGraph) -> Iterator[Candidate]:
    """Yield the largest composites around a function of one value first."""
    kinds = _FUNCTIONS.get(anchor.name, ())
    if not kinds:
        return
    if anchor.name == "maximum":
        x = next((o for o in anchor.operands if o.number is None), None)
        if x is not None and 0.0 in [o.number for o in anchor.operands]:
            yield _of_one("relu", anchor, x)
        return
    (argument,) = anchor.operands
    found = [x for _, x in zip(range(_ARGUMENTS), arguments(argument), strict=False)]
    # Those that several ops read, as in x * sigmoid(x), also behind moves: else a long chain of
    # activations would be compared at each of its ops.
    forks = set()
    for x in found:
        readers = graph.of(x)
        while len(readers) == 1 and readers[0].has(MOVED):
            readers = graph.of(readers[0])
        if len(readers) > 1:
            forks.add(id(x))
    for root in followers(anchor, graph):
        for x in found:
            if root.type.shape == x.type.shape and root.type.dtype == x.type.dtype:
                for name, params in kinds:
                    if name == "sigmoid" or id(x) in forks:
                        yield _of_one(name, root, x, **params)


def _of_one(name: str, root: TermNode, x: TermNode, **params: Any) -> Candidate:
    return Candidate(name, root, (x,), lambda b, x: getattr(b, name)(x, **params))


def softmaxes(anchor: TermNode, graph: TermGraph) -> Iterator[Candidate]:
    """exp(x - max x) / sum, and what takes the logarithm of that; the last root first."""
    if anchor.name == "log":  # Of a softmax that is a composite already.
        inner = peeled(anchor.operands[0], Trait.CONVERTS)
        if inner.name == "softmax":
            for root in (anchor, *graph.of(anchor)):
                yield from _both(root, inner.operands[0], inner.params["axis"])
    if anchor.name != "reduce_sum" or len(anchor.params["axes"]) != 1:
        return
    power = peeled(anchor.operands[0])
    if power.name != "exp" or (shifted := peeled(power.operands[0])).name not in ("add", "sub"):
        return
    axis = anchor.params["axes"][0] % anchor.operands[0].type.rank
    inputs = [x for operand in shifted.operands for x in stages(operand)]
    for root in followers(anchor, graph):
        for x in inputs:
            yield from _both(root, x, axis)


def _both(root: TermNode, x: TermNode, axis: int) -> Iterator[Candidate]:
    if x.type.shape != root.type.shape or x.type.dtype != root.type.dtype:
        return
    axis = axis - x.type.rank if axis % x.type.rank == x.type.rank - 1 and axis >= 0 else axis
    name = "softmax" if root.name in ("div", "mul") else "log_softmax"
    yield _of_one(name, root, x, axis=axis)


_SUMS = ("reduce_mean", "reduce_sum")
# Elements of a parameter that the program lacks, at most: kernels read it for every row.
_MADE = 4096


@dataclass(frozen=True)
class _Statistics:
    """The facts of a root: the values that it may normalize, the first axis, the epsilon."""

    values: tuple[TermNode, ...]
    axis: int
    epsilon: float


def norms(anchor: TermNode, graph: TermGraph) -> Iterator[Candidate]:
    """Yield norms whose root of a variance is `anchor`, with scale and bias first."""
    found = _statistics(anchor) if is_root(anchor) else None
    if found is None:
        return
    for root in followers(anchor, graph):
        for x in found.values:
            if root.type.shape == x.type.shape and root.type.dtype == x.type.dtype:
                yield from _with_parameters(root, x, found)


def is_root(node: TermNode) -> bool:
    """Return whether an op takes a square root, or its inverse."""
    if node.name in ("rsqrt", "sqrt"):
        return True
    return node.name == "pow" and node.operands[1].number in (0.5, -0.5)


def _statistics(anchor: TermNode) -> _Statistics | None:
    """Return the statistics; None where no square is summed, or over other axes than the last."""
    below = walk(anchor.operands[0], Trait.ARITHMETIC | VIEWS, REGION, also=("maximum",))
    squares = [n for n in below if n.name in _SUMS and _squared(n.operands[0]) is not None]
    if not squares:
        return None
    total = squares[0]
    rank = total.operands[0].type.rank
    axes = sorted(a % rank for a in total.params["axes"])
    if axes != list(range(axes[0], rank)):
        return None
    added = [
        e for n in below if n.name == "add" for o in n.operands if (e := number(o)) is not None
    ]
    base = _squared(total.operands[0])
    assert base is not None
    inner, values = peeled(base), stages(base)
    if inner.name in ("add", "sub"):  # what it is centered from
        wide = [o for o in inner.operands if o.type.shape == inner.type.shape]
        values = [*(v for o in wide for v in stages(o)), *values]
    # Values in their first type come first: the composite takes them as they are.
    values = dict.fromkeys(sorted(values, key=lambda n: n.type.dtype.itemsize))
    return _Statistics(tuple(values), axes[0], added[0] if added else 0.0)


def _squared(node: TermNode) -> TermNode | None:
    node = peeled(node)
    if node.name == "mul" and node.operands[0] is node.operands[1]:
        return node.operands[0]
    return node.operands[0] if node.name == "pow" and node.operands[1].number == 2 else None


def _with_parameters(root: TermNode, x: TermNode, found: _Statistics) -> Iterator[Candidate]:
    """Yield the norms of x that may end at `root`, by the other values that it depends on."""
    depends, sizes = _dependents(root, x), x.type.shape[found.axis :]
    read = (o for n in depends if n is not x for o in n.operands if o not in depends)
    cores = dict.fromkeys(_core(o) for o in read if o.number is None)
    others = [n for n in cores if n.number is None and n.name != "size"]
    # The composite takes parameters in the type of x, which must not round them.
    if len(others) > 2 or None in sizes or any(_rounds(p, x) for p in others):
        return
    for parameter in others:
        shape = parameter.type.shape  # perhaps behind dimensions of 1
        lead = (1,) * (len(shape) - len(sizes))
        if not is_float(parameter.type.dtype) or shape != (*lead, *sizes):
            return
    # A bias of one number, as zeros of untrained models are, is no value of its own.
    numbers = [float(n) for o in root.operands if root.name == "add" and (n := number(o))]
    bias = numbers[0] if numbers else 0.0
    orders: dict[int, tuple[tuple[str, tuple[int | float, ...]], ...]] = {
        0: (("rmsnorm", (1.0,)), ("layernorm", (1.0, bias))),
        1: (("rmsnorm", (0,)), ("layernorm", (0, bias)), ("layernorm", (1.0, 0))),
        2: (("layernorm", (0, 1)), ("layernorm", (1, 0))),
    }
    large = prod(d or 0 for d in sizes) > _MADE
    params = {"axis": found.axis - x.type.rank, "epsilon": found.epsilon}
    for name, order in orders[len(others)]:
        if not (large and any(isinstance(which, float) for which in order)):
            build = partial(_norm_of, name, order, params)
            yield Candidate(name, root, (x, *others), build)


def _norm_of(
    name: str, order: tuple[int | float, ...], params: dict[str, Any], b: Any, x: Any, *given: Any
) -> Any:
    """Return the norm; a parameter is a given value, by its position, or one number throughout."""
    type_ = b.type_of(x)
    sizes = type_.shape[params["axis"] :]
    vectors = []
    for which in order:
        if isinstance(which, float):
            fill = np.array(which).astype(type_.dtype)
            vectors.append(b.constant(np.broadcast_to(fill, sizes)))
            continue
        vector = b.convert(given[which], type_.dtype)
        if b.type_of(vector).shape != sizes:
            vector = b.reshape(vector, shape=sizes)
        vectors.append(vector)
    return getattr(b, name)(x, *vectors, **params)


def _core(node: TermNode) -> TermNode:
    """Return a vector without the views that make it broadcast, and without exact conversions."""
    while node.has(VIEWS):
        before = node.operands[0]
        if _rounds(before, node):
            break
        if prod(d or 0 for d in before.type.shape) != prod(d or 0 for d in node.type.shape) and (
            node.name != "broadcast_to"
        ):
            break
        node = before
    return node


def _rounds(node: TermNode, like: TermNode) -> bool:
    """Return whether a value in the type of another one may be rounded."""
    own, other = node.type.dtype, like.type.dtype
    return own != other and own.itemsize >= other.itemsize


def _dependents(root: TermNode, x: TermNode) -> set[TermNode]:
    memo: dict[TermNode, bool] = {x: True}
    budget = [REGION]

    def visit(node: TermNode) -> bool:
        if node in memo:
            return memo[node]
        budget[0] -= 1
        memo[node] = False
        if budget[0] > 0:
            # Every operand is visited: a generator would stop at the first one.
            memo[node] = any([visit(o) for o in node.operands])
        return memo[node]

    visit(root)
    return {node for node, does in memo.items() if does}


_IMAGES = 32


def batch_norms(anchor: TermNode, graph: TermGraph) -> Iterator[Candidate]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias of vectors, the last root first."""
    if not is_root(anchor):
        return
    for root in followers(anchor, graph):
        walked = walk(root, Trait.ARITHMETIC | VIEWS, _IMAGES)[1:]
        numbers = list(dict.fromkeys(v for n in walked if (v := number(n)) is not None))
        computed = [n for n in walked if number(n) is None]
        images = [n for n in computed if n.type == root.type]
        plain = [n for n in computed if n.type.rank == 1 and not n.has(Trait.ARITHMETIC)]
        vectors = [n for n in plain if n.type != root.type]
        if len(vectors) > 4:
            continue
        for x, variance, epsilon in product(images, vectors, numbers):
            others = [v for v in vectors if v is not variance]
            length, rank = variance.type.shape[0], x.type.rank
            if not others or length is None or any(o.type != variance.type for o in others):
                continue
            # By the axis along which all vary, and the place of each other vector.
            axes = [a for a in (1, rank - 1) if 0 < a < rank and x.type.shape[a] == length]
            for axis in dict.fromkeys(axes):
                for places in permutations(("scale", "bias", "mean"), len(others)):
                    build = partial(_batch_norm, places, {"axis": axis, "epsilon": epsilon})
                    yield Candidate("batchnorm", root, (x, variance, *others), build)


def _batch_norm(
    places: tuple[str, ...], params: dict[str, Any], b: Any, x: Any, variance: Any, *given: Any
) -> Any:
    """Return the norm, with ones and zeros for the vectors that it lacks."""
    by_name = dict(zip(places, given, strict=True))
    type_ = b.type_of(variance)
    vectors = []
    for name, fill in (("scale", 1), ("bias", 0), ("mean", 0)):
        number = np.broadcast_to(np.array(fill).astype(type_.dtype), type_.shape)
        vectors.append(by_name[name] if name in by_name else b.constant(number))
    return b.batchnorm(x, *vectors, variance, **params)


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
    roots: list[tuple[TermNode, Guard | None]] = []
    for reader in dict.fromkeys(graph.of(anchor)):
        if reader.name == "matmul":
            roots.append((reader, None))
        elif reader.name == "select" and anchor in reader.operands[1:]:
            roots += [(r, _guarded) for r in graph.of(reader) if r.name == "matmul"]
    # A condition may be the causal one.
    forms = [(scores, False)]
    for condition in reversed(scores.conditions):
        if peeled(condition[0]).name in ("compare", "constant", "not"):
            rest = tuple(c for c in scores.conditions if c is not condition)
            forms.insert(0, (replace(scores, conditions=rest), True))
    for root, guard in roots:
        for form, causal in forms:
            yield from (replace(c, guard=guard) for c in _with_keys(root, form, causal))


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
    build = partial(_attention, {"scale": factor, "is_causal": causal}, signs)
    others = (root.operands[1], *masks)
    if moved is not keys and moved.type.shape == wanted:
        leaves = (query, moved, *others)
        yield Candidate("attention", root, leaves, partial(build, False))
    yield Candidate("attention", root, (query, keys, *others), partial(build, True))


def _attention(
    params: dict[str, Any],
    signs: tuple[bool, ...],
    swap: bool,
    b: Any,
    query: Any,
    key: Any,
    value: Any,
    *masks: Any,
) -> Any:
    """Return attention under one mask: conditions must be what `signs` say; else it is added."""
    if swap:
        rank = b.type_of(key).rank
        key = b.transpose(key, permutation=(*range(rank - 2), rank - 1, rank - 2))
    wanted = list(masks)
    for i, sign in enumerate(signs):
        wanted[i] = masks[i] if sign else b.not_(masks[i])
    mask = wanted[:1]
    for other in wanted[1:]:
        mask = [b.and_(other, mask[0])]
    return b.attention(query, key, value, *mask, **params)


def _guarded(b: Any, out: Any, query: Any, key: Any, value: Any, *masks: Any) -> Any:
    """Return the guarded result: 0 in place of probabilities in rows that are NaN.

    A row of probabilities is NaN throughout or nowhere. Zeros times values are 0, or NaN where a
    value is infinite or NaN; so is ``sum(0 value)``, for all rows alike.
    """
    zeros = b.mul(value, b.scalar(0, value))
    nothing = b.reduce_sum(zeros, axes=(b.type_of(value).rank - 2,), keepdims=True)
    return b.select(b.compare(out, out, predicate="ne"), nothing, out)
