"""Gathers and scatters by tensors of indices, TopK, and what selects by positions; TfIdfVectorizer.

Results whose sizes depend on data (Unique, NonZero, MelWeightMatrix) are computed at import where
all inputs are known, and refused otherwise (UNSUPPORTED_ATTRIBUTE): cut the model before such a
node. NonMaxSuppression of computed boxes fills a buffer of fixed size (importer.py). TopK with a
mask says the same in a fixed size.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnx.reference

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.functions import accumulated
from pyc_mlir.dialects.types import BOOL, DTYPES, I64
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
)
from pyc_mlir.frontends.onnx.ops.node import MAX_WRITTEN, Known, Number, OnnxNode, Operand, node


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
def topk(b: Any, x: Any, k: Number, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> Any:
    """Build the k greatest or least elements along `axis`, in order, and their indices."""
    count, axis = int(k), axis % b.type_of(x).rank
    size = b.type_of(x).shape[axis]
    if count < 0 or (size is not None and count > size):
        raise PycError(ReasonCode.BAD_MODEL, f"`k`: expected 0 to {size}, got {count}")
    return top_k(b, x, count, axis, bool(largest))


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
def compress(b: Any, x: Any, condition: Known, *, axis: int | None = None) -> Any:
    """Select slices along `axis`, or elements of the flattened x, by a known condition."""
    chosen = np.flatnonzero(condition).astype(np.int64)
    if axis is None:
        x, axis = b.reshape(x, shape=(-1,)), 0
    return b.gather(x, b.constant(chosen), axis=axis)


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
    n: OnnxNode, boxes: Any, scores: Any, max_output_boxes_per_class: Number = 0,
    iou_threshold: Number = 0.0, score_threshold: Any = None, *,
    center_point_box: int = 0,
) -> Any:  # fmt: skip
    """Build the rows (image, class, box) of boxes that overlap with no better one; their number.

    The rows, i64, are a buffer of fixed size. boxes: [images, boxes, 4], scores: [images, classes,
    boxes].
    """
    b, keep, size = n.b, min(int(max_output_boxes_per_class), 2**31), n.b.type_of(boxes).shape[1]
    least = None if score_threshold is None else b.reshape(score_threshold, shape=())
    keep = keep if size is None else min(keep, size)
    if keep <= 0:
        rows, count = b.constant(np.zeros((0, 3), np.int64)), b.constant(np.array(0, np.int64))
    else:
        edges = _edges(b, boxes, bool(center_point_box))
        rows, count = suppressed(b, edges, scores, keep, float(iou_threshold), least)
    return (rows, count) if n.emits else rows[: int(count)]


def _edges(b: Any, boxes: Any, centered: bool) -> tuple[Any, ...]:
    """Return the lower and upper rows, then columns, of boxes, each [images, 1, boxes]."""
    dims = b.dims(boxes)
    corners = [reshape_to(b, take(b, boxes, 2, i, i + 1), (dims[0], 1, dims[1])) for i in range(4)]
    if not centered:
        picks = (b.minimum, b.maximum)
        return tuple(pick(corners[i], corners[i + 2]) for i in (0, 1) for pick in picks)
    x, y, width, height = corners
    half = b.scalar(0.5, x)
    return tuple(
        step(at, b.mul(side, half)) for at, side in ((y, height), (x, width))
        for step in (b.sub, b.add)
    )  # fmt: skip


@node("Unique")
def unique(b: Any, x: Known, *, axis: int | None = None, sorted: int = 1) -> Any:
    """Return distinct values or slices, in order or as they come; first places, ranks, counts."""
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    if not sorted:
        order = np.argsort(first)
        values = np.take(values, order, axis=axis or 0)
        first, counts, inverse = first[order], counts[order], np.argsort(order)[inverse]
    return values, *(v.reshape(-1).astype(np.int64) for v in (first, inverse, counts))


@node("NonZero", "MelWeightMatrix")
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


# Each box taken is a few dozen operations of the program.
MAX_KEPT = 300


def suppressed(
    b: Any, edges: tuple[Any, Any, Any, Any], scores: Any, keep: int, overlap: float, least: Any
) -> tuple[Any, Any]:
    """Return taken boxes as i64 rows (image, class, box), [images * classes * keep, 3]; the count.

    edges: the lower and upper rows, then columns, of boxes, each [images, 1, boxes]. scores:
    [images, classes, boxes]; those of boxes that are taken are greater than `least`, unless that is
    None. overlap: the ratio of intersection to union above which a box is struck out. Rows after
    those taken are -1. Raises PycError for more than MAX_KEPT.
    """
    if keep > MAX_KEPT:
        raise unsupported(f"{keep} boxes of each class: expected at most {MAX_KEPT}")
    places = b.iota_like(scores, 2)
    alive = b.ge(scores, -np.inf) if least is None else b.gt(scores, least)
    taken, valid = [], []
    for _ in range(keep):
        left = b.select(alive, scores, -np.inf)
        best = b.argmax(left, axis=2, keepdims=True)
        held = b.reduce_max(b.cast(alive, dtype=DTYPES["i8"]), axes=(2,), keepdims=True)
        near = _overlapping(b, edges, best, overlap)
        near = b.or_(near, b.eq(places, best))
        alive = b.and_(alive, b.not_(near))
        taken.append(best)
        valid.append(b.gt(held, 0))
    return _packed(b, chain(b, taken, 2), chain(b, valid, 2))


def _overlapping(b: Any, edges: tuple[Any, Any, Any, Any], best: Any, overlap: float) -> Any:
    """i1 [images, classes, boxes]: boxes that overlap with the one at `best` too much."""
    low_y, high_y, low_x, high_x = edges
    boxes = b.dims(low_y)[2]
    start = b.mul(b.iota_like(best, 0), extent_value(b, boxes))
    index = b.add(best, start)
    mine = [b.gather(b.reshape(e, shape=(-1,)), index, axis=0) for e in edges]
    height = b.sub(b.minimum(high_y, mine[1]), b.maximum(low_y, mine[0]))
    width = b.sub(b.minimum(high_x, mine[3]), b.maximum(low_x, mine[2]))
    zero = b.scalar(0, height)
    shared = b.mul(b.maximum(height, zero), b.maximum(width, zero))
    area = b.mul(b.sub(high_y, low_y), b.sub(high_x, low_x))
    own = b.mul(b.sub(mine[1], mine[0]), b.sub(mine[3], mine[2]))
    ratio = b.div(shared, b.sub(b.add(area, own), shared))
    solid = b.and_(b.gt(area, zero), b.gt(own, zero))
    return b.and_(solid, b.gt(ratio, overlap))


def _packed(b: Any, taken: Any, valid: Any) -> tuple[Any, Any]:
    """[images, classes, keep] as rows, those that are valid first, and how many those are."""
    dims = b.dims(taken)
    parts = [b.iota_like(taken, 0), b.iota_like(taken, 1), taken]
    columns = [b.reshape(expand_to(b, p, dims), shape=(-1, 1)) for p in parts]
    rows = chain(b, columns, 1)
    flags = b.reshape(valid, shape=(-1,))
    order = b.argsort(b.cast(b.not_(flags), dtype=DTYPES["i8"]), axis=0)
    count = b.reduce_sum(b.cast(flags, dtype=I64), axes=(0,), keepdims=False)
    first = b.lt(b.iota_like(order, 0), count)
    packed = b.gather(rows, order, axis=0)
    return b.select(reshape_to(b, first, (*b.dims(first), 1)), packed, -1), count
