"""TfIdfVectorizer of integers: counts of known sequences of tokens."""

from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES, I64
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import chain, expand_to
from pyc_mlir.frontends.onnx.shared.handler import MAX_WRITTEN, OnnxNode, node

_F32 = DTYPES["f32"]
# Comparisons of tokens that are written out.
_MAX_COMPARED = 1 << 20


@node("TfIdfVectorizer")
def tf_idf(n: OnnxNode) -> Any:
    """Count the occurrences of the pool's sequences in a row of tokens, with bounded gaps.

    Mode IDF: its weight if it occurs; TFIDF: its weight for each occurrence.
    """
    b, mode = n.b, n.attr("mode")
    least, most, gap = (
        n.attr(name) for name in ("min_gram_length", "max_gram_length", "max_skip_count")
    )
    if n.attr("pool_strings") is not None or n.type().rank > 2:
        raise unsupported("sequences of strings: expected integers, of one row or several")
    grams, places = _pool(n), list(n.attr("ngram_indexes"))
    size = n.type().shape[-1]
    if size is None or size > 1 << 16:
        raise unsupported("a dynamic number of tokens: expected a static one")
    if len(places) != sum(len(g) for g in grams) or sorted(set(places)) != sorted(places):
        raise PycError(ReasonCode.BAD_MODEL, "`ngram_indexes`: expected one for each sequence")
    weights = n.attr("weights") or [1.0] * len(places)
    if len(weights) != len(places) or not min(places, default=0) >= 0:
        raise PycError(ReasonCode.BAD_MODEL, "`weights`, `ngram_indexes`: expected as many, from 0")
    if max(places, default=0) >= MAX_WRITTEN:
        raise unsupported(f"a result of {max(places)} numbers: expected at most {MAX_WRITTEN}")
    x = b.convert(n.x(), I64)
    counts = [
        _occurrences(b, x, np.array(own, np.int64), size, gap)
        if least <= length <= most
        else _none(b, x, len(own))
        for length, own in enumerate(grams, start=1)
        if own
    ]
    total = chain(b, [*counts, _none(b, x, 1)], n.type().rank - 1)
    width = max(places, default=-1) + 1
    column = np.full(width, len(places), np.int64)
    column[places] = np.arange(len(places))
    out = b.gather(total, b.constant(column), axis=n.type().rank - 1)
    if mode == "TF":
        return out
    scale = np.ones(width, np.float32)
    scale[places] = weights
    factor = b.constant(scale)
    if mode == "IDF":
        return b.mul(b.minimum(out, b.scalar(1, out)), factor)
    return b.mul(out, factor)


def _pool(n: OnnxNode) -> list[list[list[int]]]:
    """Return the sequences of each length, from 1 on. Raises PycError (BAD_MODEL)."""
    pool, starts = list(n.attr("pool_int64s") or []), list(n.attr("ngram_counts"))
    if starts != sorted(starts) or not starts or not 0 <= starts[0] <= starts[-1] <= len(pool):
        raise PycError(ReasonCode.BAD_MODEL, "`ngram_counts`: expected places in the pool, rising")
    found = []
    for length, (start, stop) in enumerate(
        zip(starts, [*starts[1:], len(pool)], strict=True), start=1
    ):
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
        same = b.cast(b.compare(windows, b.constant(grams), predicate="eq"), dtype=_F32)
        whole = b.reduce_min(same, axes=(rank - 1,), keepdims=False)
        total = b.add(total, b.reduce_sum(whole, axes=(rank - 3,), keepdims=False))
    return total
