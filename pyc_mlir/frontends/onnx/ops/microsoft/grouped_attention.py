"""GroupQueryAttention: the decoders of transformers and of onnxruntime-genai's model builder.

The cache is [batch, heads, places, depth]. Sequence i holds ``seqlens_k[i] + 1`` keys once those of
this call are in it, one after the other from place 0: sequences of different lengths end at
different places. A first call (as many new keys as `total_sequence_length`) starts at place 0.
"""

from functools import reduce
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.functions import accumulated
from pyc_mlir.dialects.types import I64
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.indexing import along, extent_value
from pyc_mlir.frontends.importing.shaping import expand_to, product, reshape_to, swap_last, take
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize
from pyc_mlir.frontends.onnx.ops.layers.attention import repeated
from pyc_mlir.frontends.onnx.ops.microsoft.attention import apart, scale_of, together, whole_heads
from pyc_mlir.frontends.onnx.ops.microsoft.layers import rotated
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, contrib

_NEITHER = {
    "k_quant_type": "NONE",
    "v_quant_type": "NONE",
    "qk_output": 0,
    "sliding_window_cache": 0,
    "kv_cache_bit_width": 0,
}


@contrib("GroupQueryAttention")
def group_query_attention(n: OnnxNode) -> Any:
    """pyc.attention with fewer key heads than query heads, rotary angles and a cache.

    The results' cache has `total_sequence_length` places, or those of the given one if that is
    static and larger; places that no key has yet are 0. onnxruntime keeps a longer past longer
    where sizes are dynamic, and leaves there what was there.
    """
    b, heads, few = n.b, n.stated("num_heads"), n.stated("kv_num_heads")
    for name, only in _NEITHER.items():
        if n.attr(name, only) != only:
            raise unsupported(f"`{name}`: expected {only}")
    if n.wants(3) or any(n.has(i) for i in (12, 13, 14, 15)):
        raise unsupported("quantized caches, norms of keys, `output_qk`: expected none")
    for name in ("qk_norm_epsilon", "rotary_interleaved"):
        n.attr(name)  # Of what this node may lack.
    if few < 1 or heads % few:
        raise PycError(ReasonCode.BAD_MODEL, f"{heads} heads: expected a multiple of {few}")
    query, key, value = _projections(n, heads, few)
    past = _past_lengths(n, query)
    if n.attr("do_rotary", 0):
        query, key = (_turned(n, x, past) for x in (query, key))
    full_key, full_value = (_appended(n, v, i, past) for v, i in ((key, 3), (value, 4)))
    groups = heads // few
    out = _attended(n, query, repeated(b, full_key, groups), repeated(b, full_value, groups), past)
    return together(b, out), full_key, full_value


def _projections(n: OnnxNode, heads: int, few: int) -> list[Any]:
    """Return queries, keys and values as [batch, heads, length, depth], packed or apart."""
    b, width = n.b, n.type(0).shape[-1]
    counts = (heads, few, few)
    if n.has(1) and n.has(2):
        return [apart(b, n.x(i), count) for i, count in enumerate(counts)]
    depth = whole_heads(n, width, sum(counts))
    places = np.cumsum([0, *(depth * c for c in counts)])
    return [
        apart(b, take(b, n.x(0), 2, int(places[i]), int(places[i + 1])), count)
        for i, count in enumerate(counts)
    ]


def _past_lengths(n: OnnxNode, query: Any) -> Any:
    """i64 [batch, 1]: the keys of each sequence in the cache before this call."""
    b = n.b
    ends = b.add(b.reshape(b.convert(n.x(5), I64), shape=(-1, 1)), np.array(1, np.int64))
    if not n.has(3):
        return b.mul(ends, np.array(0, np.int64))
    fresh = extent_value(b, b.dims(query)[2])
    total = b.reshape(b.convert(n.x(6), I64), shape=())
    before = b.maximum(b.sub(ends, fresh), np.array(0, np.int64))
    first = b.compare(total, fresh, predicate="eq")
    return b.select(first, np.array(0, np.int64), before)


def _turned(n: OnnxNode, x: Any, past: Any) -> Any:
    """x turned by the angles of its places: those given, or those after the past."""
    b = n.b
    places = n.x(9) if n.has(9) else b.add(past, b.reshape(b.iota_like(x, 2), shape=(1, -1)))
    b.declare_indices(places, n.dims(7)[0])
    cosine, sine = (b.expand_dims(b.gather(n.x(i), places, axis=0), 1) for i in (7, 8))
    return rotated(b, x, cosine, sine, bool(n.attr("rotary_interleaved", 0)))


def _places(n: OnnxNode, new: Extent) -> Extent:
    """Return the number of places of the resulting cache. Raises unsupported if it is unknown."""
    total = n.extents(6, "total_sequence_length")
    if len(total) != 1:
        raise PycError(ReasonCode.BAD_MODEL, "`total_sequence_length`: expected one element")
    old = n.b.dims(n.x(3))[2] if n.has(3) else 0
    whole = total[0]
    if isinstance(whole, SymbolicSize) and isinstance(old, int) and old:
        raise unsupported("a past of static length with a dynamic total: expected both of one kind")
    if isinstance(whole, SymbolicSize) or isinstance(old, SymbolicSize):
        return whole
    least = new if isinstance(new, int) else 0
    return max(whole, old, least)


def _appended(n: OnnxNode, fresh: Any, index: int, past: Any) -> Any:
    """Append this call's rows to the cache, after the past of each sequence.

    Each row is gathered from the past and fresh rows, so that nothing is written twice.
    """
    b = n.b
    batch, heads, new, depth = b.dims(fresh)
    length = _places(n, new)
    if not n.has(index) and length == new:
        return fresh
    old = b.dims(n.x(index))[2] if n.has(index) else 0
    rows = b.concat(n.x(index), fresh, axis=2) if n.has(index) else fresh
    places = b.reshape(_vector(b, length), shape=(1, -1))
    behind = b.sub(places, past)
    last = b.sub(extent_value(b, new), np.array(1, np.int64))
    zero = np.array(0, np.int64)
    taken = b.minimum(b.maximum(behind, zero), b.maximum(last, zero))
    taken = b.add(taken, extent_value(b, old))
    taken = b.select(b.compare(behind, zero, predicate="lt"), places, taken)
    taken = expand_to(b, b.expand_dims(taken, 1), (batch, heads, length))
    whole = b.dims(rows)[:3]
    flat = reshape_to(b, rows, (product(whole), depth))
    out = b.gather(flat, along(b, taken, whole, 2), axis=0)
    held = b.compare(behind, extent_value(b, new), predicate="lt")
    held = b.expand_dims(b.expand_dims(held, 1), 3)
    return b.select(held, out, b.scalar(0, out))


def _vector(b: Any, length: Extent) -> Any:
    if isinstance(length, SymbolicSize):
        return b.atom(length.atoms[0]) if length.factor == 1 == len(length.atoms) else _long(length)
    return b.iota(shape=(length,), axis=0, dtype=I64)


def _long(length: SymbolicSize) -> Any:
    raise unsupported(f"{length} places: expected one dimension")


def _attended(n: OnnxNode, query: Any, key: Any, value: Any, past: Any) -> Any:
    """Build attention of queries to the keys that they may see, by place, with caps and sinks."""
    b = n.b
    scale, cap = scale_of(n, query), n.attr("softcap", 0.0)
    bias = n.x(10) if n.has(10) else None
    seen = _seen(n, query, key, past)
    smooth = n.attr("smooth_softmax", 0) > 0
    if not cap and not smooth and not n.has(11):
        mask = seen if bias is None else b.select(seen, bias, b.scalar(-np.inf, bias))
        return b.attention(query, key, value, mask, scale=scale)

    def formula(query: Any, key: Any, value: Any, *bias: Any) -> Any:
        scores = b.matmul(b.mul(query, b.scalar(scale, query)), swap_last(b, key))
        if cap:
            limit = b.scalar(cap, scores)
            scores = b.mul(b.tanh(b.div(scores, limit)), limit)
        scores = b.add(scores, *bias) if bias else scores
        scores = b.select(seen, scores, b.scalar(-np.inf, scores))
        sink = smooth or n.has(11)
        return b.matmul(_with_sink(n, scores) if sink else b.softmax(scores, axis=-1), value)

    return accumulated(b, query, formula, key, value, *([] if bias is None else [bias]))


def _with_sink(n: OnnxNode, scores: Any) -> Any:
    """Build the softmax of scores and one more, which takes its share and has no value.

    The additional score is ``head_sink`` of each head, or 0 ("smooth softmax"; attention sinks:
    Xiao et al., 2023).
    """
    b = n.b
    batch, heads, rows, _ = b.dims(scores)
    sink = b.reshape(n.x(11), shape=(1, -1, 1, 1)) if n.has(11) else None
    sink = b.scalar(0, scores) if sink is None else b.convert(sink, b.type_of(scores).dtype)
    column = expand_to(b, b.reshape(sink, shape=(1, -1, 1, 1)), (batch, heads, rows, 1))
    weights = b.softmax(b.concat(scores, column, axis=3), axis=-1)
    return take(b, weights, 3, 0, -1)


def _seen(n: OnnxNode, query: Any, key: Any, past: Any) -> Any:
    """i1 [batch, 1, queries, keys]: keys up to each query, within the window before it."""
    b = n.b
    window = n.attr("local_window_size", -1)
    start = b.reshape(past, shape=(-1, 1, 1, 1))
    rows = b.add(start, b.reshape(b.iota_like(query, 2), shape=(-1, 1)))
    columns = b.reshape(b.iota_like(key, 2), shape=(1, -1))
    if n.attr("causal", 1):
        tests = [b.compare(columns, rows, predicate="le")]
    else:
        end = b.add(start, extent_value(b, b.dims(query)[2]))
        tests = [b.compare(columns, end, predicate="lt")]
    if window >= 0:
        behind = b.sub(rows, columns)
        tests.append(b.compare(behind, np.array(window, np.int64), predicate="lt"))
    return reduce(b.and_, tests)
