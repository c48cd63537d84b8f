"""Rules of pyc-layout: how each op works on operands whose dimensions are stored in another order.

A value x is stored in the order o when the program holds ``transpose(x, o)`` in its place; None
stands for its own order. Comes in: an op as `Work`, and the order that each operand is stored in.
Goes out: an `OrderedOp`, or None where the op reads and makes everything in its own order. A family
is entered in `RULES`, elementwise ops and reductions by their base class; what is not entered is
left as it is. After transpose sinking (OpenVINO's TransposeSinking, XLA's layout
assignment).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

from pyc_mlir.dialects.opdef import OPS, Trait
from pyc_mlir.dialects.ops.movement import copied
from pyc_mlir.dialects.ops.reduction import reduced_axes
from pyc_mlir.dialects.types import Shape
from pyc_mlir.pipelines.target.work import Work, nominal

Order = tuple[int, ...]
NHWC: Order = (0, 2, 3, 1)
# Weights [f, c/groups, kh, kw] as [kh, kw, c/groups, f].
FILTERS: Order = (2, 3, 1, 0)
# Parameters with an entry for each dimension of the result.
_BY_DIMENSION = ("starts", "stops", "steps", "low", "high", "shape")
# Mersenne primes in place of dynamic sizes: a product has their factors only if it has theirs.
_STAND_INS = tuple(2**k - 1 for k in (61, 89, 107, 127))


@dataclass(frozen=True)
class OrderedOp:
    """An op on stored values: the order of each operand and of the result, and the parameters.

    A need is of the result's rank: an operand of a lower one gets dimensions of size 1 in front.
    Without parameters nothing is computed: the result is stored as operand 0 is.
    """

    needs: tuple[Order | None, ...]
    out: Order | None
    params: Mapping[str, Any] | None


def step_of(work: Work, orders: Sequence[Order | None]) -> OrderedOp | None:
    """Return the step of a lone op whose operands are stored in these orders."""
    definition = OPS[work.nodes[0].name]
    if definition.has(Trait.ANY_ORDER):
        return _aligned(work, orders)
    if definition.has(Trait.REDUCES):
        return _reduced(work, orders)
    found = RULES.get(definition.name)
    return None if found is None else found(work, orders)


def normal(order: Sequence[int]) -> Order | None:
    """Return the order; None for that of the program."""
    return None if list(order) == list(range(len(order))) else tuple(order)


def between(have: Order | None, need: Order | None, rank: int) -> Order:
    """Return the permutation from one stored order to another."""
    source = widened(have, rank)
    return tuple(source.index(d) for d in need or range(rank))


def widened(order: Order | None, rank: int) -> Order:
    """Return the order where dimensions of size 1 are put in front, up to `rank`."""
    lead = 0 if order is None else rank - len(order)
    return (*range(lead), *(lead + d for d in order or range(rank)))


def moves(shape: Shape, permutation: Order) -> bool:
    """Return whether a transpose of a tensor of this shape changes the order of its elements."""
    kept = [p for p in permutation if shape[p] != 1]
    return 0 not in shape and any(a > b for a, b in pairwise(kept))


def stored_shape(shape: Shape, order: Order | None) -> Shape:
    """Return the shape of what is stored."""
    return shape if order is None else tuple(shape[d] for d in order)


def _reordered(params: Mapping[str, Any], order: Order) -> dict[str, Any]:
    """Return parameters that name dimensions, for operands stored in `order`."""
    found, rank = dict(params), len(order)
    for name, value in params.items():
        if name == "axis":
            found[name] = order.index(value % rank)
        elif name == "axes":
            found[name] = tuple(order.index(a % rank) for a in value)
        elif name in _BY_DIMENSION:
            found[name] = tuple(value[d] for d in order)
    return found


def _window(work: Work, orders: Sequence[Order | None]) -> OrderedOp | None:
    """Ask for NHWC, whatever the operand is stored in."""
    node = work.nodes[0]
    if node.params["layout"] != "NCHW":
        return None
    needs = (NHWC, FILTERS, None)[: len(node.operands)]
    return OrderedOp(needs, NHWC, {**node.params, "layout": "NHWC"})


def _aligned(work: Work, orders: Sequence[Order | None]) -> OrderedOp | None:
    """Give all operands, aligned at the last dimension, the order of most of their bytes."""
    node = work.nodes[0]
    # Computed operands of full rank count; of equals not the program's own.
    votes: dict[Order | None, int] = {None: 0}
    for v, have in zip(node.operands, orders, strict=True):
        type_ = work.type(v)
        if type_.rank == node.type.rank and not work.is_constant(v):
            votes[have] = votes.get(have, 0) + nominal(type_.shape) * type_.dtype.itemsize
    order = max(votes, key=lambda order: (votes[order], order is not None))
    if order is None:
        return None
    # The parameters of a batchnorm are vectors.
    count = 1 if node.name == "batchnorm" else len(node.operands)
    needs = [
        None if have != order and set(work.type(v).shape) <= {1} else order
        for v, have in zip(node.operands[:count], orders, strict=False)
    ]
    needs += [None] * (len(node.operands) - count)
    return OrderedOp(tuple(needs), order, _reordered(node.params, order))


def _reduced(work: Work, orders: Sequence[Order | None]) -> OrderedOp | None:
    node, order = work.nodes[0], orders[0]
    if order is None:
        return None
    out: Order | None = order
    if not node.params["keepdims"]:
        rank = len(order)
        gone = {a % rank for a in reduced_axes(node.params)}
        rest = [d for d in order if d not in gone]
        out = normal([sorted(rest).index(d) for d in rest])
    return OrderedOp((order,), out, _reordered(node.params, order))


def _size(work: Work, orders: Sequence[Order | None]) -> OrderedOp | None:
    """Multiply the same dimensions; nothing is read."""
    order = orders[0]
    if order is None:
        return None
    return OrderedOp((order,), None, _reordered(work.nodes[0].params, order))


def _transpose(work: Work, orders: Sequence[Order | None]) -> OrderedOp | None:
    """Move nothing: the result is stored as the operand is, until somebody needs it otherwise."""
    permutation = work.nodes[0].params["permutation"]
    have = orders[0] or range(len(permutation))
    return OrderedOp((orders[0],), normal([permutation.index(d) for d in have]), None)


def _reshape(work: Work, orders: Sequence[Order | None]) -> OrderedOp | None:
    """Keep dimensions that are split or merged stored side by side, in their own order.

    Where they are not, they are brought together if that leaves the channels last, as after a
    shuffle of channels.
    """
    node, have = work.nodes[0], orders[0]
    x = work.type(node.operands[0])
    groups = reshape_groups(x.shape, node.params["shape"])
    if have is None or not groups or len(node.operands) > 1:
        return None
    groups = sorted(groups, key=lambda g: min(have.index(d) for d in g[0]))
    need = tuple(d for source, _ in groups for d in source)
    out = tuple(d for _, target in groups for d in target)
    gathers = moves(stored_shape(x.shape, have), between(have, need, x.rank))
    if gathers and (len(out) < 4 or out != (0, *range(2, len(out)), 1)):
        return None
    entries = [node.params["shape"][d] for d in out]
    shape = tuple(copied(need.index(-2 - e)) if e <= -2 else e for e in entries)
    return OrderedOp((normal(need),), normal(out), {"shape": shape})


def reshape_groups(shape: Shape, entries: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return groups of dimensions of a reshape's operand and result with the same elements.

    Empty where they cannot be told apart.
    """
    if any(-2 - e >= len(shape) for e in entries):
        # Sizes of another value.
        return []
    dynamic = [d for d, size in enumerate(shape) if size is None]
    stand_in = dict(zip(dynamic, _STAND_INS, strict=False))
    sizes = [stand_in.get(d, 0) if s is None else s for d, s in enumerate(shape)]
    target = [sizes[-2 - e] if e <= -2 else e for e in entries]
    if -1 in target and (rest := -prod(target)):
        target[target.index(-1)] = prod(sizes) // rest
    if not sizes or 0 in sizes or prod(sizes) != prod(target):
        return []
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(sizes) or j < len(target):
        own, made = sizes[i : i + 1], target[j : j + 1]
        if groups and made == [1] != own:
            groups[-1][1].append(j)
            j += 1
        elif own == [1] and made != [1]:
            groups.append(([i], []))
            i += 1
        else:
            first = i, j
            left, right = sizes[i], target[j]
            i, j = i + 1, j + 1
            while left != right:
                if left < right:
                    left, i = left * sizes[i], i + 1
                else:
                    right, j = right * target[j], j + 1
            groups.append((list(range(first[0], i)), list(range(first[1], j))))
    return groups


Rule = Callable[[Work, Sequence[Order | None]], OrderedOp | None]
RULES: dict[str, Rule] = {
    **dict.fromkeys(("conv2d", "integer_conv2d", "max_pool2d", "avg_pool2d", "resize"), _window),
    "size": _size,
    "transpose": _transpose,
    "reshape": _reshape,
}
