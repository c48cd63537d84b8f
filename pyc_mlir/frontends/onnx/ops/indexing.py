"""Gathers and scatters by tensors of indices, TopK, and what selects by positions; TfIdfVectorizer.

Results whose sizes depend on data have the size at hand, like dynamic dimensions: of NonZero,
Compress and NonMaxSuppression, the host reads how many elements there are. Unique and
MelWeightMatrix are computed at import where all inputs are known, and refused otherwise.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnx.reference

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.functions import accumulated
from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.types import BOOL, DTYPES, I64, lowest
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import (
    chain,
    expand_to,
    extent_value,
    gather_nd,
    product,
    reshape_to,
    scatter_along,
    scatter_nd,
    take,
    take_along,
    top_k,
    true_places,
    window,
)
from pyc_mlir.frontends.importing.sizes import SymbolicSize, bounds, extremum
from pyc_mlir.frontends.onnx.ops.node import (
    MAX_WRITTEN,
    Extents,
    Number,
    OnnxNode,
    Operand,
    node,
)


@node("GatherElements")
def gather_elements(b: Any, x: Any, indices: Any, *, axis: int = 0) -> Any:
    """out[i, j, ...] = x[indices[i, j, ...], j, ...] for axis 0."""
    axis %= b.type_of(x).rank
    b.declare_indices(indices, b.dims(x)[axis])
    return take_along(b, x, indices, axis)


@node("GatherND")
def gather_vectors(b: Any, x: Any, indices: Any, *, batch_dims: int = 0) -> Any:
    """out[i, ...] = x[indices[i]]: the last dimension of `indices` holds vectors of indices."""
    most = min(b.type_of(x).rank, b.type_of(indices).rank) - 1
    if not 0 <= batch_dims <= most:
        raise PycError(
            ReasonCode.BAD_MODEL, f"`batch_dims`: expected 0 to {most}, got {batch_dims}"
        )
    return gather_nd(b, x, indices, _vectors(b, x, indices, batch_dims), batch_dims)


def _vectors(b: Any, x: Any, indices: Any, batch: int = 0) -> int:
    """Return the length of the vectors of indices, and declare their range.

    That is the largest size, where it is known; of one dynamic size, that size. Several have no
    range that an argument's axis tells.
    """
    most, shape = b.type_of(x).rank, b.type_of(indices).shape
    depth = shape[-1] if shape else None
    if depth is None:
        raise unsupported("index vectors of dynamic length: expected a static one")
    if not 0 < depth <= most - batch:
        raise PycError(
            ReasonCode.BAD_MODEL,
            f"`indices`: expected vectors of 1 to {most} indices, got {depth}",
        )
    sizes = b.dims(x)[batch : batch + depth]
    known = [s for s in sizes if isinstance(s, int)]
    b.declare_indices(indices, max(known) if len(known) == len(sizes) else product(sizes))
    return depth


def _scattered(b: Any, scatter: Any, x: Any, indices: Any, updates: Any, how: int, by: str) -> Any:
    """Build the scatter; i1 goes by way of i8, which has reductions."""
    if b.type_of(x).dtype != BOOL:
        return scatter(b, x, indices, updates, how, by)
    x, updates = (b.cast(v, dtype=DTYPES["i8"]) for v in (x, updates))
    by = {"add": "max", "mul": "min"}.get(by, by)
    return b.cast(scatter(b, x, indices, updates, how, by), dtype=BOOL)


@node("ScatterElements", "Scatter")
def scatter_elements(
    b: Any, x: Any, indices: Any, updates: Any, *, axis: int = 0, reduction: str = "none"
) -> Any:
    """x with elements at `indices` along `axis` replaced, or combined with the updates."""
    axis %= b.type_of(x).rank
    b.declare_indices(indices, b.dims(x)[axis])
    return _scattered(b, scatter_along, x, indices, updates, axis, reduction)


@node("ScatterND")
def scatter_vectors(b: Any, x: Any, indices: Any, updates: Any, *, reduction: str = "none") -> Any:
    """x with slices at vectors of indices replaced, or combined with the updates."""
    return _scattered(b, scatter_nd, x, indices, updates, _vectors(b, x, indices), reduction)


@node("TopK")
def topk(
    n: OnnxNode, x: Any, k: Extents, *, axis: int = -1, largest: int = 1, sorted: int = 1
) -> Any:
    """Build the k greatest or least elements along `axis`, in order, and their indices."""
    (count,), b, axis = k, n.b, axis % n.b.type_of(x).rank
    size = b.dims(x)[axis]
    if bounds(count)[1] < 0 or bounds(size - count)[1] < 0:
        raise PycError(ReasonCode.BAD_MODEL, f"`k`: expected 0 to {size}, got {count}")
    if isinstance(count, SymbolicSize):
        count = extremum("min", (count, size))
        if b.type_of(x).rank == 1 and largest:
            places = _likely(b, x, b.extent(count))
            places = b.gather(places, b.argsort(b.gather(x, places), descending=True))
            places = window(b, places, 0, 0, count)
            return b.gather(x, places), places
    return top_k(b, x, count, axis, bool(largest))


# Elements of a group of which the greatest is looked at.
_GROUP = 64


def _likely(b: Any, x: Any, count: Any) -> Any:
    """Return places, in order, with those of the `count` greatest elements of a vector.

    No element below the `count`-th of the greatest ones of all groups is among them.
    """
    last = b.sub(b.size(x, 0), 1)
    groups = b.div(b.add(last, _GROUP), _GROUP)
    places = b.minimum(b.range(b.mul(groups, _GROUP)), last)
    most = b.reduce_max(b.reshape(b.gather(x, places), shape=(-1, _GROUP)), axes=(1,))
    most = b.gather(most, b.argsort(most, descending=True))
    none = b.constant(np.full(1, lowest(b.type_of(x).dtype), b.type_of(x).dtype))
    at = b.select(b.le(count, groups), b.sub(count, 1), groups)
    bound = b.gather(b.concat(most, none, axis=0), at)
    return b.nonzero(b.not_(b.lt(x, bound)))


@node("TensorScatter")
def tensor_scatter(
    b: Any, x: Any, update: Any, first: Any = None, *, axis: int = -2, mode: str = "linear"
) -> Any:
    """Write the rows of `update` into a cache from write_indices[batch] on, along `axis`."""
    rank = b.type_of(x).rank
    axis %= rank
    places = b.iota_like(update, axis)
    if first is not None:
        places = b.add(places, b.align(b.convert(first, I64), 0, rank))
    if mode == "circular":
        places = b.rem(places, b.size(x, axis))
    return scatter_along(b, x, expand_to(b, places, b.dims(update)), update, axis)


@node("Compress")
def compress(b: Any, x: Any, condition: Any, *, axis: int | None = None) -> Any:
    """Select slices along `axis`, or elements of the flattened x, as far as a condition goes."""
    if axis is None:
        x, axis = reshape_to(b, x, (-1,)), 0
    if b.dims(x)[axis] != b.dims(condition)[0]:
        condition = b.and_(condition, b.lt(b.iota_like(condition, 0), b.size(x, axis)))
    return b.gather(x, b.nonzero(condition), axis=axis)


@node("NonZero")
def nonzero(b: Any, x: Any) -> Any:
    """Return the indices of the elements that are not 0, [rank, number of them]."""
    mask = x if b.type_of(x).dtype == BOOL else b.ne(x, 0)
    if not b.dims(x):
        return take(b, b.expand_dims(b.nonzero(b.reshape(mask, shape=(-1,))), 0), 0, 0, 0)
    return chain(b, [b.expand_dims(row, 0) for row in true_places(b, mask)], 0)


@node("ReverseSequence")
def reverse_sequence(
    b: Any, x: Any, lengths: Any, *, time_axis: int = 0, batch_axis: int = 1
) -> Any:
    """Reverse the first sequence_lens[i] steps of sequence i; the rest stay as they are."""
    rank = b.type_of(x).rank
    lengths = b.align(b.convert(lengths, I64), batch_axis, rank)
    step = b.iota_like(x, time_axis)
    index = b.select(b.lt(step, lengths), b.sub(b.sub(lengths, 1), step), step)
    first = (batch_axis, time_axis)
    order = (*first, *(i for i in range(rank) if i not in first))
    x, flat = (b.transpose(v, permutation=order) for v in (x, index))
    dims = b.dims(x)
    out = gather_nd(b, x, reshape_to(b, flat, (dims[0], dims[1], 1)), 1, 1)
    return b.transpose(out, permutation=tuple(order.index(i) for i in range(rank)))


@node("NegativeLogLikelihoodLoss")
def negative_log_likelihood(
    b: Any, x: Any, target: Any, weight: Any = None, *,
    ignore_index: int | None = None, reduction: str = "mean",
) -> Any:  # fmt: skip
    """loss[n, d] = -x[n, target[n, d], d] * weight[target]; its sum, or its weighted mean.

    Targets of `ignore_index` count nothing. SoftmaxCrossEntropyLoss is a function of it in ONNX.
    """
    if reduction not in ("none", "sum", "mean"):
        raise unsupported(f"reduction={reduction}: expected none, sum or mean")
    target, skip = b.convert(target, I64), None
    if ignore_index is not None:
        skip = b.eq(target, ignore_index)
        target = b.select(skip, 0, target)
    else:
        b.declare_indices(target, b.dims(x)[1])
    taken = b.squeeze(take_along(b, x, b.expand_dims(target, 1), 1), 1)
    if weight is None:
        weight = expand_to(b, b.scalar(1, x), b.dims(taken))
    else:
        weight = b.gather(weight, target, axis=0)
    if skip is not None:
        weight, taken = (b.select(skip, 0, v) for v in (weight, taken))
    axes = tuple(range(b.type_of(taken).rank))

    def formula(taken: Any, weight: Any) -> Any:
        loss = b.mul(b.neg(taken), weight)
        if reduction == "none":
            return loss
        total = b.reduce_sum(loss, axes=axes)
        return total if reduction == "sum" else b.div(total, b.reduce_sum(weight, axes=axes))

    return accumulated(b, taken, formula, weight)


@node("NonMaxSuppression")
def non_max_suppression(
    b: Any, boxes: Any, scores: Any, max_output_boxes_per_class: Number = 0,
    iou_threshold: Number = 0.0, score_threshold: Any = None, *,
    center_point_box: int = 0,
) -> Any:  # fmt: skip
    """Build the rows (image, class, box) of boxes that overlap with no better one.

    boxes: [images, boxes, 4], scores: [images, classes, boxes].
    """
    keep = int(max_output_boxes_per_class)
    if keep <= 0:
        return b.constant(np.zeros((0, 3), np.int64))
    _, classes, size = (extent_value(b, d) for d in b.dims(scores))
    flat = b.reshape(scores, shape=(-1,))
    if score_threshold is None:
        places = b.nonzero(b.ge(flat, -np.inf))
    else:
        places = b.nonzero(b.gt(flat, b.reshape(score_threshold, shape=())))
    # By images and classes, the best ones first.
    places = b.gather(places, b.argsort(b.gather(flat, places), descending=True), axis=0)
    places = b.gather(places, b.argsort(b.div(places, size)), axis=0)
    groups, box = b.div(places, size), b.rem(places, size)
    image = b.div(groups, classes)
    rows = b.reshape(boxes, shape=(-1, 4))
    rows = b.gather(rows, b.add(b.mul(image, size), box), axis=0)
    edges = _edges(b, rows, bool(center_point_box))
    stays = b.suppress(edges, groups, overlap=float(iou_threshold))
    known = b.dims(scores)[2]
    if not isinstance(known, int) or keep < known:
        stays = b.and_(stays, b.lt(_number_in_group(b, stays, groups), keep))
    taken = b.nonzero(stays)
    columns = [b.gather(v, taken, axis=0) for v in (image, b.rem(groups, classes), box)]
    return chain(b, [b.expand_dims(c, 1) for c in columns], 1)


def _edges(b: Any, rows: Any, centered: bool) -> Any:
    """Return the lower and upper row, then column, of boxes, [boxes, 4]."""
    parts = [take(b, rows, 1, i, i + 1) for i in range(4)]
    if not centered:
        picks = (b.minimum, b.maximum)
        return chain(b, [pick(parts[i], parts[i + 2]) for i in (0, 1) for pick in picks], 1)
    x, y, width, height = parts
    half = b.scalar(0.5, x)
    sides = ((y, b.mul(height, half)), (x, b.mul(width, half)))
    return chain(b, [step(at, side) for at, side in sides for step in (b.sub, b.add)], 1)


def _number_in_group(b: Any, stays: Any, groups: Any) -> Any:
    """i64: how many earlier boxes of the same group stay; equal groups lie side by side."""
    held = b.cast(stays, dtype=I64)
    before = b.sub(b.cumulative(held, axis=0), held)
    previous = b.gather(groups, b.maximum(b.sub(b.iota_like(groups, 0), 1), 0), axis=0)
    first = b.select(b.ne(groups, previous), before, 0)
    return b.sub(before, b.cumulative(first, axis=0, reduction="max"))


@node("Unique")
def unique(n: OnnxNode, x: Operand, *, axis: int | None = None, sorted: int = 1) -> Any:
    """Return distinct values or slices, in order or as they come; first places, ranks, counts."""
    if not isinstance(x, np.ndarray):
        return _unique(n.b, n.x(0), axis, bool(sorted))
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    if not sorted:
        order = np.argsort(first)
        values = np.take(values, order, axis=axis or 0)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    return values, *(v.reshape(-1).astype(np.int64) for v in (first, inverse, counts))


def _unique(b: Any, x: Any, axis: int | None, ordered: bool) -> Any:
    """Find the same of a vector that the program computes: where a sorted one changes."""
    if not ordered or (axis is not None and b.type_of(x).rank != 1):
        raise unsupported(
            "slices, or `sorted` = 0, of what is computed: expected elements in order"
        )
    x = b.reshape(x, shape=(-1,))
    order = b.argsort(x)
    values, place = b.gather(x, order), b.iota_like(order, 0)
    before = b.gather(values, b.maximum(b.sub(place, 1), 0))
    new = b.or_(b.eq(place, 0), b.ne(values, before))
    starts, ranks = b.nonzero(new), b.sub(b.cumulative(b.cast(new, dtype=I64), axis=0), 1)
    ends = b.concat(starts, b.reshape(b.size(x, 0), shape=(1,)), axis=0)
    counts = b.sub(take(b, ends, 0, 1, END), starts)
    firsts = b.gather(order, starts)
    return b.gather(values, starts), firsts, b.scatter(ranks, order, ranks), counts


@node("MelWeightMatrix")
def by_reference(n: OnnxNode, *inputs: Operand, output_datatype: int = 1) -> Any:
    """Return the array that ONNX's reference computes for known inputs."""
    given = {name: n.known(index, name) for index, name in enumerate(n.proto.input)}
    try:
        (found,) = onnx.reference.ReferenceEvaluator(n.proto).run(None, given)
    except Exception as error:
        raise PycError(
            ReasonCode.BAD_MODEL, f"expected inputs that ONNX computes with, got: {error!r}"
        ) from error
    return np.asarray(found)


_F32 = DTYPES["f32"]
# Comparisons of tokens that are written out.
_MAX_COMPARED = 1 << 20


@node("TfIdfVectorizer")
def tf_idf(
    b: Any, x: Any, *,
    mode: str, min_gram_length: int, max_gram_length: int, max_skip_count: int, ngram_counts: list,
    ngram_indexes: list, pool_int64s: Sequence[int] = (), pool_strings: Any = None,
    weights: Sequence[float] = (),
) -> Any:  # fmt: skip
    """Count the occurrences of the pool's sequences in a row of tokens, with bounded gaps.

    Mode IDF: its weight if it occurs; TFIDF: its weight for each occurrence.
    """
    rank, size, places = b.type_of(x).rank, b.type_of(x).shape[-1], ngram_indexes
    if pool_strings is not None or rank > 2:
        raise unsupported("sequences of strings: expected integers, of one row or several")
    grams = _pool(pool_int64s, ngram_counts)
    if size is None or size > 1 << 16:
        raise unsupported("a dynamic number of tokens: expected a static one")
    if len(places) != sum(len(g) for g in grams) or sorted(set(places)) != sorted(places):
        raise PycError(ReasonCode.BAD_MODEL, "`ngram_indexes`: expected one for each sequence")
    weights = weights or [1.0] * len(places)
    if len(weights) != len(places) or not min(places, default=0) >= 0:
        raise PycError(ReasonCode.BAD_MODEL, "`weights`, `ngram_indexes`: expected as many, from 0")
    if max(places, default=0) >= MAX_WRITTEN:
        raise unsupported(f"a result of {max(places)} numbers: expected at most {MAX_WRITTEN}")
    x = b.convert(x, I64)
    counts = [
        _occurrences(b, x, np.array(own, np.int64), size, max_skip_count)
        if min_gram_length <= length <= max_gram_length
        else _none(b, x, len(own))
        for length, own in enumerate(grams, start=1)
        if own
    ]
    total = chain(b, [*counts, _none(b, x, 1)], rank - 1)
    width = max(places, default=-1) + 1
    column = np.full(width, len(places), np.int64)
    column[places] = np.arange(len(places))
    out = b.gather(total, b.constant(column), axis=rank - 1)
    if mode == "TF":
        return out
    scale = np.ones(width, np.float32)
    scale[places] = weights
    factor = b.constant(scale)
    return b.mul(b.minimum(out, 1) if mode == "IDF" else out, factor)


def _pool(pool: Sequence[int], starts: list[int]) -> list[list[Sequence[int]]]:
    """Return the sequences of each length, from 1 on. Raises PycError (BAD_MODEL)."""
    if starts != sorted(starts) or not starts or not 0 <= starts[0] <= starts[-1] <= len(pool):
        raise PycError(ReasonCode.BAD_MODEL, "`ngram_counts`: expected places in the pool, rising")
    found = []
    for length, (start, stop) in enumerate(pairwise([*starts, len(pool)]), start=1):
        if (stop - start) % length:
            raise PycError(ReasonCode.BAD_MODEL, f"sequences of {length}: expected whole ones")
        found.append([pool[i : i + length] for i in range(start, stop, length)])
    return found


def _none(b: Any, x: Any, count: int) -> Any:
    """f32 zeros: `count` for each row of x."""
    return expand_to(b, b.constant(np.zeros((), np.float32)), (*b.dims(x)[:-1], count))


def _occurrences(b: Any, x: Any, grams: np.ndarray, size: int, gap: int) -> Any:
    """f32 [.., sequences]: how often each of grams [sequences, length] is in rows x [.., size]."""
    count, length = grams.shape
    total = _none(b, x, count)
    for skip in range(gap + 1 if length > 1 else 1):
        reach = (length - 1) * (skip + 1)
        if reach >= size:
            break
        if size * count * length * (skip + 1) > _MAX_COMPARED:
            raise unsupported(f"{count} sequences in {size} tokens: expected fewer")
        index = np.arange(size - reach)[:, None] + (skip + 1) * np.arange(length)
        windows = b.gather(x, b.constant(index.astype(np.int64)), axis=b.type_of(x).rank - 1)
        windows = b.expand_dims(windows, b.type_of(windows).rank - 1)
        rank = b.type_of(windows).rank
        same = b.cast(b.eq(windows, b.constant(grams)), dtype=_F32)
        whole = b.reduce_min(same, axes=(rank - 1,), keepdims=False)
        total = b.add(total, b.reduce_sum(whole, axes=(rank - 3,), keepdims=False))
    return total
