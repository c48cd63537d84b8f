"""Maxima, reductions, products and windows over a field."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from pyc_mlir.dialects.ops.convolution import from_nchw, padded, taps, to_nchw
from pyc_mlir.dialects.ops.shapes import normalize_axes
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.pipelines.pyc.equivalence.fields import lanes as hashes
from pyc_mlir.pipelines.pyc.equivalence.fields import towers
from pyc_mlir.pipelines.pyc.equivalence.fields.arithmetic import negated
from pyc_mlir.pipelines.pyc.equivalence.fields.elements import stretched
from pyc_mlir.pipelines.pyc.equivalence.fields.interpreter import (
    EMPTY,
    Field,
    Residues,
    flags_of,
    require_finite,
    rule,
)
from pyc_mlir.pipelines.pyc.equivalence.fields.lanes import Lanes
from pyc_mlir.pipelines.pyc.equivalence.fields.programs import NotComparable
from pyc_mlir.pipelines.pyc.terms.nodes import TermNode

_U64 = np.uint64


@rule("maximum")
def _maximum(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    shape = tuple(d or 0 for d in node.type.shape)
    stacked = [stretched(p.lanes, node.type) for p in parts]
    levels = [_pair(p, shape) for p in parts]
    return _greatest(field, node.type, np.stack(stacked, -1), levels)


def _pair(x: Residues, shape: tuple[int, ...]) -> Residues:
    minus = np.broadcast_to(flags_of(x), shape)
    levels = tuple(EMPTY if i < x.depth else np.broadcast_to(level, shape)
                   for i, level in enumerate(x.levels))  # fmt: skip
    return Residues(x.type.with_shape(shape), levels, x.depth, minus)


def _greatest(field: Field, type_: TensorType, lanes: Lanes, parts: Sequence[Residues]) -> Residues:
    """Return the maximum of the last axis of lanes, whose entries are `parts`.

    A random function of the multiset of what is finite; of a single element, itself.
    """
    flags = np.stack([flags_of(p) for p in parts], -1)
    finite = (~flags).sum(-1)
    same = np.logical_and.reduce(
        [(lanes[0, ..., 0] == lanes[0, ..., i]) & (lanes[1, ..., 0] == lanes[1, ..., i])
         for i in range(lanes.shape[-1])]
    )  # fmt: skip
    with np.errstate(over="ignore"):
        total = np.where(flags, _U64(0), hashes.mixed(lanes)).sum(-1, dtype=_U64)
    out = field.random(type_, hashes.combined("max", (total,)))
    single = (finite == 1) | same
    depth = max(p.depth for p in parts) if single.any() else 0
    levels = []
    for i, level in enumerate(out.levels):
        if i < depth:
            levels.append(EMPTY)
            continue
        own = parts[0].levels[i]
        for p in parts[1:]:
            own = np.where(flags_of(p), own, p.levels[i])
        levels.append(np.where(single, own, level))
    minus = finite == 0
    return Residues(type_, tuple(levels), depth, minus if minus.any() else None)


@rule("minimum")
def _minimum(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    """min(a, b) = -max(-a, -b)."""
    shape = tuple(d or 0 for d in node.type.shape)
    require_finite(node, parts)
    turned = [negated(field, o, (p,)) for o, p in zip(node.operands, parts, strict=True)]
    stacked = np.stack([stretched(p.lanes, node.type) for p in turned], -1)
    found = _greatest(field, node.type, stacked, [_pair(p, shape) for p in turned])
    return negated(field, node, (found,))


@rule("reduce_sum")
def _reduce_sum(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    axes, keep = _axes(node)
    x = parts[0]
    minus = None if x.minus is None else np.asarray(x.minus.any(axis=axes, keepdims=keep))

    def modulo(a: np.ndarray, q: int) -> np.ndarray:
        return a.sum(axis=axes, keepdims=keep, dtype=_U64) % _U64(q)

    return field.mapped(node, parts, modulo, minus)


@rule("reduce_mean")
def _reduce_mean(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    axes, _ = _axes(node)
    count = prod(parts[0].type.shape[a] or 0 for a in axes)
    total = _reduce_sum(field, node, parts)

    def modulo(a: np.ndarray, q: int) -> np.ndarray:
        return a * _U64(pow(count, -1, q)) % _U64(q)

    if not count:
        raise ZeroDivisionError
    return field.mapped(node, (total,), modulo, total.minus)


@rule("reduce_prod")
def _reduce_prod(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    require_finite(node, parts)
    axes, _ = _axes(node)
    rank = parts[0].type.rank
    order = [d for d in range(rank) if d not in axes] + list(axes)
    shape = tuple(d or 0 for d in node.type.shape)

    def modulo(a: np.ndarray, q: int) -> np.ndarray:
        rows = a.transpose(order).reshape(*[a.shape[d] for d in order[: rank - len(axes)]], -1)
        out = np.ones(rows.shape[:-1], _U64)
        for i in range(rows.shape[-1]):
            out = towers.product(out, rows[..., i], q)
        return out.reshape(shape)

    return field.mapped(node, parts, modulo)


@rule("reduce_max")
def _reduce_max(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    axes, _ = _axes(node)
    x = parts[0]
    if not prod(x.type.shape[a] or 0 for a in axes):
        raise NotComparable(f"{node.name}: nothing to reduce")
    rank = x.type.rank
    order = [d for d in range(rank) if d not in axes] + list(axes)
    rows = [d for d in order if d not in axes]
    shape = tuple(d or 0 for d in node.type.shape)
    kept = tuple(x.type.shape[d] or 0 for d in rows)

    def flat(a: np.ndarray) -> np.ndarray:
        return a.transpose(order).reshape(*kept, -1)

    lanes = np.stack([flat(lane) for lane in x.lanes])
    flags = flat(flags_of(x))
    if lanes.shape[-1] == 1:
        return field.mapped(node, parts, lambda a, q: a.reshape(shape), _reshaped(x.minus, shape))
    with np.errstate(over="ignore"):
        total = np.where(flags, _U64(0), hashes.mixed(lanes)).sum(-1, dtype=_U64)
    out = field.random(node.type, hashes.combined("max", (total,)).reshape(2, *shape))
    finite = (~flags).sum(-1).reshape(shape)
    single = finite == 1
    depth = x.depth if single.any() else 0
    levels = []
    for i, level in enumerate(out.levels):
        if i < depth:
            levels.append(EMPTY)
            continue
        if not single.any():
            levels.append(level)
            continue
        own = np.where(flags, _U64(0), flat(x.levels[i])).sum(-1, dtype=_U64).reshape(shape)
        levels.append(np.where(single, own, level))
    minus = finite == 0
    return Residues(node.type, tuple(levels), depth, minus if minus.any() else None)


def _reshaped(array: np.ndarray | None, shape: tuple[int, ...]) -> np.ndarray | None:
    return None if array is None else array.reshape(shape)


@rule("reduce_min")
def _reduce_min(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    turned = negated(field, node.operands[0], parts)
    return negated(field, node, (_reduce_max(field, node, (turned,)),))


def _axes(node: TermNode) -> tuple[tuple[int, ...], bool]:
    axes = normalize_axes(node.params["axes"], node.operands[0].type.rank)
    return tuple(axes), node.params["keepdims"]


@rule("matmul")
def _matmul(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    require_finite(node, parts)
    return field.mapped(node, parts, towers.matmul)


@rule("conv2d")
def _conv2d(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    require_finite(node, parts)
    params = node.params
    layout, groups = params["layout"], params["groups"]

    def modulo(x: np.ndarray, weight: np.ndarray, q: int) -> np.ndarray:
        data = padded(to_nchw(x, layout), params["pads"], _U64(0))
        filters = weight if layout == "NCHW" else weight.transpose(3, 2, 0, 1)
        f, depth, *kernel = filters.shape
        filters = filters.reshape(groups, f // groups, depth, *kernel)
        total: Any = _U64(0)
        rows = columns = 0
        for i, j, view in taps(data, kernel, params["strides"], params["dilations"]):
            n, _, rows, columns = view.shape
            blocks = view.reshape(n, groups, depth, rows * columns)
            total = (total + towers.matmul(filters[..., i, j], blocks, q)) % _U64(q)
        return from_nchw(total.reshape(x.shape[0], f, rows, columns), layout)

    return field.mapped(node, parts, modulo)


@rule("avg_pool2d")
def _avg_pool2d(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    require_finite(node, parts)
    params = node.params
    layout, kernel, strides = params["layout"], params["kernel"], params["strides"]

    def modulo(x: np.ndarray, q: int) -> np.ndarray:
        data = to_nchw(x, layout)
        ones = np.ones_like(data[:1, :1])
        beyond = _U64(params["count_include_pad"])
        total = count = _U64(0)
        for _, _, view in taps(padded(data, params["pads"], _U64(0)), kernel, strides, (1, 1)):
            total = (total + view) % _U64(q)
        for _, _, view in taps(padded(ones, params["pads"], beyond), kernel, strides, (1, 1)):
            count = count + view
        counts = towers.inverse(np.asarray(count), q)
        return from_nchw(towers.product(np.asarray(total), counts, q), layout)

    return field.mapped(node, parts, modulo)


@rule("max_pool2d")
def _max_pool2d(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues:
    """Return the maximum of the multiset of each window."""
    require_finite(node, parts)
    params, (x,) = node.params, parts
    layout, kernel = params["layout"], params["kernel"]
    window = kernel, params["strides"], params["dilations"]
    inside = np.ones(to_nchw(x.levels[-1], layout).shape, bool)
    lanes: list[np.ndarray] = []
    with np.errstate(over="ignore"):
        for lane in hashes.mixed(x.lanes):
            views = taps(padded(to_nchw(lane, layout), params["pads"], _U64(0)), *window)
            lanes.append(np.asarray(sum((view for _, _, view in views), _U64(0))))
    counts = sum(
        view.astype(np.int64) for _, _, view in taps(padded(inside, params["pads"], False), *window)
    )
    if not np.asarray(counts > 1).all():
        return field.random(node.type, field.hashed(node, [x.lanes]))
    total = np.stack([from_nchw(lane, layout) for lane in lanes])
    return field.random(node.type, hashes.combined("max", (total,)))


@rule("cumulative")
def _cumulative(field: Field, node: TermNode, parts: Sequence[Residues]) -> Residues | None:
    if node.params["reduction"] != "add":
        return None
    require_finite(node, parts)

    def modulo(a: np.ndarray, q: int) -> np.ndarray:
        return np.cumsum(a, axis=node.params["axis"], dtype=_U64) % _U64(q)

    return field.mapped(node, parts, modulo)
