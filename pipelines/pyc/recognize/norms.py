"""Guesses of layer norms and RMS norms, from the root of a variance."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.types import is_float
from pyc_mlir.pipelines.pyc.recognize.anchors import followers, number, peeled, stages, walk
from pyc_mlir.pipelines.pyc.recognize.candidates import REGION, Candidate
from pyc_mlir.pipelines.pyc.terms.nodes import VIEWS, TermGraph, TermNode

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
    if not is_root(anchor):
        return
    found = _statistics(anchor)
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
    return _Statistics(tuple(_normalized(base)), axes[0], added[0] if added else 0.0)


def _squared(node: TermNode) -> TermNode | None:
    """Return the value whose square a node is."""
    node = peeled(node)
    if node.name == "mul" and node.operands[0] is node.operands[1]:
        return node.operands[0]
    return node.operands[0] if node.name == "pow" and node.operands[1].number == 2 else None


def _normalized(base: TermNode) -> Iterator[TermNode]:
    """Yield the values that may be normalized: `base`, what it is centered from, as cast."""
    inner = peeled(base)
    values = stages(base)
    if inner.name in ("add", "sub"):
        wide = [o for o in inner.operands if o.type.shape == inner.type.shape]
        values = [*(v for o in wide for v in stages(o)), *values]
    # Values in their first type come first: the composite takes them as they are.
    yield from dict.fromkeys(sorted(values, key=lambda n: n.type.dtype.itemsize))


def _with_parameters(root: TermNode, x: TermNode, found: _Statistics) -> Iterator[Candidate]:
    """Yield the norms of x that may end at `root`, by the other values that it depends on."""
    others = _parameters(root, x)
    sizes = x.type.shape[found.axis :]
    # The composite takes parameters in the type of x, which must not round them.
    if len(others) > 2 or None in sizes or any(_rounds(p, x) for p in others):
        return
    fits = [p for p in others if _fits(p, sizes)]
    if len(fits) != len(others):
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
    for name, order in orders[len(others)]:
        if not (large and any(isinstance(which, float) for which in order)):
            yield _norm(name, root, x, found, order, fits)


def _norm(
    name: str,
    root: TermNode,
    x: TermNode,
    found: _Statistics,
    order: tuple[int | float, ...],
    parameters: list[TermNode],
) -> Candidate:
    axis = found.axis - x.type.rank
    build = partial(_build, name, order, {"axis": axis, "epsilon": found.epsilon})
    return Candidate(name, root, (x, *parameters), build)


def _build(
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


def _fits(parameter: TermNode, sizes: tuple[int | None, ...]) -> bool:
    """Return whether a value has the sizes of a parameter, behind dimensions of 1."""
    shape = parameter.type.shape
    return is_float(parameter.type.dtype) and shape in (
        sizes,
        (*(1,) * (len(shape) - len(sizes)), *sizes),
    )


def _parameters(root: TermNode, x: TermNode) -> list[TermNode]:
    """Return the values beside x, and numbers, that a root needs, without views of them."""
    depends = _dependents(root, x)
    found: dict[TermNode, None] = {}
    for node in depends:
        for operand in node.operands if node is not x else ():
            if operand in depends or operand.number is not None:
                continue
            found[_core(operand)] = None
    return [n for n in found if n.number is None and n.name != "size"]


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
    """Return the nodes from x to `root`."""
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
