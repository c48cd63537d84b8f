"""Greedy suppression of overlapping boxes, into a buffer of fixed size with a count.

Each class of each image takes its best box left, `keep` times at most, and strikes out those that
overlap with it. Equal scores: the earlier box first (onnxruntime, torchvision).
"""

from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES, I64
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.indexing import extent_value
from pyc_mlir.frontends.importing.shaping import chain, expand_to, reshape_to

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
    if least is None:
        alive = b.compare(scores, b.scalar(-np.inf, scores), predicate="ge")
    else:
        alive = b.compare(scores, least, predicate="gt")
    taken, valid = [], []
    for _ in range(keep):
        left = b.select(alive, scores, b.scalar(-np.inf, scores))
        best = b.argmax(left, axis=2, keepdims=True)
        held = b.reduce_max(b.cast(alive, dtype=DTYPES["i8"]), axes=(2,), keepdims=True)
        near = _overlapping(b, edges, best, overlap)
        near = b.or_(near, b.compare(places, best, predicate="eq"))
        alive = b.and_(alive, b.not_(near))
        taken.append(best)
        valid.append(b.compare(held, b.scalar(0, held), predicate="gt"))
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
    solid = b.and_(b.compare(area, zero, predicate="gt"), b.compare(own, zero, predicate="gt"))
    return b.and_(solid, b.compare(ratio, b.scalar(overlap, ratio), predicate="gt"))


def _packed(b: Any, taken: Any, valid: Any) -> tuple[Any, Any]:
    """[images, classes, keep] as rows, those that are valid first, and how many those are."""
    dims = b.dims(taken)
    parts = [b.iota_like(taken, 0), b.iota_like(taken, 1), taken]
    columns = [b.reshape(expand_to(b, p, dims), shape=(-1, 1)) for p in parts]
    rows = chain(b, columns, 1)
    flags = b.reshape(valid, shape=(-1,))
    order = b.argsort(b.cast(b.not_(flags), dtype=DTYPES["i8"]), axis=0)
    count = b.reduce_sum(b.cast(flags, dtype=I64), axes=(0,), keepdims=False)
    first = b.compare(b.iota_like(order, 0), count, predicate="lt")
    packed = b.gather(rows, order, axis=0)
    return b.select(reshape_to(b, first, (*b.dims(first), 1)), packed, b.scalar(-1, packed)), count
