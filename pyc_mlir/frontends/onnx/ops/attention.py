"""Attention of opset 23 and of onnxruntime's domain: heads, masks, caches, rotary angles.

A mask of onnxruntime's MultiHeadAttention and Attention adds `mask_filter_value` to scores, not
minus infinity, so that a query that may see nothing takes the mean of all values.

The cache of GroupQueryAttention, which onnxruntime-genai's model builder writes, is [batch, heads,
places, depth]. Sequence i holds ``seqlens_k[i] + 1`` keys once those of this call are in it, one
after the other from place 0: sequences of different lengths end at different places. A first call
(as many new keys as `total_sequence_length`) starts at place 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.functions import accumulated, sees_a_key
from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.types import BOOL, I64, accumulator
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import (
    along,
    expand_to,
    extent_value,
    merge,
    product,
    reshape_to,
    split,
    swap_last,
    take,
    vector,
)
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize
from pyc_mlir.frontends.onnx.ops.contrib_layers import rotated
from pyc_mlir.frontends.onnx.ops.node import Maybe, OnnxNode, Operand, contrib, node

# FLOAT, FLOAT16, BFLOAT16.
_COMPUTED_IN_F32 = (1, 10, 16)


@dataclass(frozen=True)
class _Scores:
    """The attributes of an Attention. Sizes of windows below 0 are none."""

    q_num_heads: int = 0
    kv_num_heads: int = 0
    scale: float | None = None
    softcap: float = 0.0
    is_causal: int = 0
    left_window_size: int = -1
    right_window_size: int = -1
    softmax_precision: int = 1
    qk_matmul_output_mode: int = 0


@node("Attention")
def attention(
    n: OnnxNode, query: Any, key: Any, value: Any, mask: Any = None, past_key: Any = None,
    past_value: Any = None, nonpad: Any = None, *,
    form: _Scores,
) -> Any:  # fmt: skip
    """pyc.attention on [batch, heads, length, depth].

    Operands of rank 3 are split into heads; fewer key heads than query heads are repeated; the
    outputs present_key and present_value are the cache with this call's keys and values. A query
    that sees no key gets 0 (pyc.attention gives NaN).
    """
    b, joined = n.b, n.b.type_of(query).rank == 3
    if form.softmax_precision not in _COMPUTED_IN_F32:
        raise unsupported("softmax_precision: expected at most f32")
    query = _heads(b, query, form.q_num_heads, "q_num_heads")
    key, value = (
        fresh if past is None else b.concat(past, fresh, axis=2)
        for past, fresh in (
            (past, _heads(b, v, form.kv_num_heads, "kv_num_heads"))
            for past, v in ((past_key, key), (past_value, value))
        )
    )
    heads, depth = (b.type_of(query).shape[axis] for axis in (1, -1))
    full_key, full_value = (_repeated(b, v, heads) for v in (key, value))
    scale = form.scale if form.scale is not None or not depth else 1 / math.sqrt(depth)
    if scale is None:
        raise unsupported("a dynamic depth without `scale`: expected one of the two")
    mask = _mask(b, mask, _visible(b, query, key, past_key, nonpad, form), b.dims(key)[2])
    seen = None if mask is None else sees_a_key(b, mask)
    shown = None
    if form.softcap or n.wants(3):
        # The scores of 16-bit floats may leave their range, weighted values do not.
        dtype = b.type_of(query).dtype
        wide = [b.convert(v, accumulator(dtype)) for v in (query, full_key, full_value)]
        if mask is not None and b.type_of(mask).dtype != BOOL:
            mask = b.convert(mask, accumulator(dtype))
        scores = scores_of(b, wide[0], wide[1], scale, form.softcap)
        both = _by_scores(n, scores, mask, seen, wide[2], form)
        out, shown = (b.convert(v, dtype) for v in both)
    else:
        given = () if mask is None else (mask,)
        out = b.attention(query, full_key, full_value, *given, scale=scale)
    if seen is not None:
        out = b.select(seen, out, 0)
    return merge_heads(b, out) if joined else out, key, value, shown


def scores_of(b: Any, query: Any, key: Any, scale: float, cap: float) -> Any:
    """Build products of queries and keys, through cap * tanh(score / cap) if there is one."""
    scores = b.matmul(b.mul(query, scale), swap_last(b, key))
    if not cap:
        return scores
    limit = b.scalar(cap, query)
    return b.mul(b.tanh(b.div(scores, limit)), limit)


def _by_scores(
    n: OnnxNode, scores: Any, mask: Any, seen: Any, value: Any, form: _Scores
) -> tuple[Any, Any]:
    """Build the attention and the scores at the stage that `qk_matmul_output_mode` names.

    Stages: 0, 1 products, capped; 2 masked; 3 after the softmax.
    """
    b, mode = n.b, form.qk_matmul_output_mode
    if mode == 0 and form.softcap and n.wants(3):
        raise unsupported("qk_matmul_output_mode=0 with softcap: expected another mode")
    masked = scores
    if mask is not None and b.type_of(mask).dtype == BOOL:
        masked = b.select(mask, scores, -np.inf)
    elif mask is not None:
        masked = b.add(scores, mask)
    weights = b.softmax(masked, axis=-1)
    if seen is not None:
        weights = b.select(seen, weights, 0)
    shown = {2: masked, 3: weights}.get(mode, scores)
    return b.matmul(weights, value), shown


def split_heads(b: Any, x: Any, heads: int) -> Any:
    """[batch, length, heads * depth] as [batch, heads, length, depth]."""
    return b.transpose(split(b, x, 2, (heads, -1)), permutation=(0, 2, 1, 3))


def merge_heads(b: Any, x: Any) -> Any:
    """[batch, heads, length, depth] as [batch, length, heads * depth]."""
    return merge(b, b.transpose(x, permutation=(0, 2, 1, 3)), 2)


def _heads(b: Any, x: Any, count: int, attribute: str) -> Any:
    """`split_heads` of rank 3; rank 4 as it is."""
    rank = b.type_of(x).rank
    if rank != 4 and (rank != 3 or not count):
        raise PycError(ReasonCode.BAD_MODEL, f"expected rank 4, or rank 3 and `{attribute}`")
    return x if rank == 4 else split_heads(b, x, count)


def _repeated(b: Any, x: Any, heads: int | None) -> Any:
    """Repeat each key head in a row, so that they are as many as query heads."""
    few = b.type_of(x).shape[1]
    if heads is None or not few or heads % few:
        raise unsupported(f"{heads} query heads and {few} key heads: expected a static multiple")
    if heads == few:
        return x
    batch, _, length, depth = b.dims(x)
    apart = split(b, x, 1, (few, 1))
    return merge(b, expand_to(b, apart, (batch, few, heads // few, length, depth)), 1)


def _mask(b: Any, given: Any, visible: Any, length: Extent) -> Any:
    """Return the mask operand of pyc.attention, or None: the model's, and what queries see."""
    if given is None:
        return visible
    given = _widened(b, given, length)
    if visible is None:
        return given
    if b.type_of(given).dtype == BOOL:
        return b.and_(visible, given)
    return b.select(visible, given, -np.inf)


def _widened(b: Any, mask: Any, length: Extent) -> Any:
    """Pad a mask that is narrower than the keys so that it hides the others."""
    width = b.dims(mask)[-1]
    if width in (1, length):
        return mask
    if isinstance(width, SymbolicSize) or isinstance(length, SymbolicSize):
        raise unsupported("attn_mask that is narrower than the keys: expected an entry for each")
    none = (0,) * (b.type_of(mask).rank - 1)
    hidden = 0.0 if b.type_of(mask).dtype == BOOL else -np.inf
    return b.pad(mask, low=(*none, 0), high=(*none, length - width), value=hidden)


def _places(b: Any, query: Any, key: Any, first: Any = None) -> tuple[Any, Any]:
    """i64 places of queries [queries, 1], after `first`, and of keys [1, keys]."""
    rows = b.reshape(b.iota_like(query, 2), shape=(-1, 1))
    columns = b.reshape(b.iota_like(key, 2), shape=(1, -1))
    return rows if first is None else b.add(rows, first), columns


def _visible(b: Any, query: Any, key: Any, past: Any, nonpad: Any, form: _Scores) -> Any:
    """i1, or None: the causal triangle, a window around each query, and what is no padding.

    ONNX aligns queries to the cache: query i stands at the place i + length of the cache, or the
    last query at the end of the keys that ``nonpad_kv_seqlen`` marks as no padding.
    """
    left, right = form.left_window_size, form.right_window_size
    first = lengths = None
    if past is not None:
        first = b.size(past, 2)
    elif nonpad is not None:
        lengths = b.reshape(b.convert(nonpad, I64), shape=(-1, 1, 1, 1))
        first = b.sub(lengths, b.size(query, 2))
    rows, columns = _places(b, query, key, first)
    behind = b.sub(rows, columns)
    tests: Sequence[tuple[Any, int, bool]] = (
        (b.ge, 0, bool(form.is_causal)), (b.le, left, left >= 0), (b.ge, -right, right >= 0)
    )  # fmt: skip
    parts = [test(behind, bound) for test, bound, applies in tests if applies]
    if lengths is not None:
        parts.append(b.lt(columns, lengths))
    return reduce(b.and_, parts) if parts else None


@dataclass(frozen=True)
class _Heads:
    """The attributes that all attention of encoders has."""

    num_heads: int
    scale: float = 0.0
    mask_filter_value: float = -10000.0
    unidirectional: int = 0


@dataclass(frozen=True)
class Form(_Heads):
    """The attributes of attention of encoders over one projection."""

    qkv_hidden_sizes: Sequence[int] = ()
    do_rotary: int = 0
    rotary_embedding_dim: Any = None
    past_present_share_buffer: int = 0


def _encoded(
    b: Any, query: Any, key: Any, value: Any, fresh: Any, masks: tuple[Any, Any], form: _Heads
) -> Any:
    """Build attention, [batch, length, channels]. masks: of keys, and an addend of scores.

    fresh: the keys of this call.
    """
    added = [_filter(b, masks[0], form.mask_filter_value, query, key), masks[1]]
    added.append(_causal(b, query, key, fresh) if form.unidirectional else None)
    given = [mask for mask in added if mask is not None]
    total = [reduce(b.add, given)] if given else []
    scale = _scale_of(b, form.scale, query)
    return merge_heads(b, b.attention(query, key, value, *total, scale=scale))


def _scale_of(b: Any, given: float, query: Any) -> float:
    """Return the factor of the products; 1/sqrt(depth) if the node omits it or gives 0."""
    depth = b.type_of(query).shape[-1]
    if not given and not depth:
        raise unsupported("a dynamic depth without `scale`: expected one of the two")
    return given or 1 / math.sqrt(depth)


def _whole_heads(size: int | None, heads: int) -> int:
    """Return the depth of each of `heads` heads. Raises PycError (BAD_MODEL)."""
    if size is None:
        raise unsupported("a dynamic number of channels: expected a static one")
    if heads < 1 or size % heads:
        raise PycError(ReasonCode.BAD_MODEL, f"{size} channels: expected a multiple of {heads}")
    return size // heads


@contrib("MultiHeadAttention")
def multi_head_attention(
    b: Any, query: Any, key: Any = None, value: Any = None, bias: Any = None, mask: Any = None,
    added: Any = None, past_key: Any = None, past_value: Any = None, *, form: _Heads,
) -> Any:  # fmt: skip
    """pyc.attention of heads, whose operands lie apart or packed, with a bias and a cache.

    query: [batch, length, hidden], or [batch, length, heads, 3, depth] with keys and values; key,
    value: [batch, length, hidden], [batch, heads, length, depth], or one [.., heads, 2, depth].
    """
    cached = past_key is not None
    query, key, value = _operands(b, (query, key, value), bias, form.num_heads, cached)
    fresh = key
    if cached:
        key, value = b.concat(past_key, key, axis=2), b.concat(past_value, value, axis=2)
    return _encoded(b, query, key, value, fresh, (mask, added), form), key, value


def _operands(
    b: Any, given: tuple[Any, Any, Any], bias: Any, heads: int, cached: bool
) -> tuple[Any, ...]:
    """Return queries, keys and values as [batch, heads, length, depth], with their bias."""
    query, key, value = given
    type_ = b.type_of(query)
    if type_.rank == 5:
        return _parts(b, query, 3, bias)
    hidden = heads * _whole_heads(type_.shape[-1], heads)
    if type_.rank != 3 or key is None:
        raise PycError(ReasonCode.BAD_MODEL, "`query`: expected rank 3 with `key`, or rank 5")

    def biased(x: Any, first: int, last: int) -> Any:
        return x if bias is None else b.add(x, take(b, bias, 0, first, last))

    query = split_heads(b, biased(query, 0, hidden), heads)
    if b.type_of(key).rank == 5:
        return query, *_parts(b, key, 2, None if bias is None else take(b, bias, 0, hidden, END))
    if value is None:
        raise PycError(ReasonCode.BAD_MODEL, "expected an input 2, got none")
    if b.type_of(key).rank == 4:
        if cached or bias is not None:
            raise unsupported("keys of rank 4 with a bias or a cache: expected rank 3")
        return query, key, value
    key, value = biased(key, hidden, 2 * hidden), biased(value, 2 * hidden, END)
    return query, split_heads(b, key, heads), split_heads(b, value, heads)


def _parts(b: Any, packed: Any, count: int, bias: Any) -> tuple[Any, ...]:
    """[batch, length, heads, count, depth] as `count` times [batch, heads, length, depth].

    bias: [count * heads * depth], or None.
    """
    _, _, heads, _, depth = b.type_of(packed).shape
    out = []
    for i in range(count):
        part = b.squeeze(take(b, packed, 3, i, i + 1), 3)
        if bias is not None:
            width = heads * depth
            own = take(b, bias, 0, i * width, (i + 1) * width)
            part = b.add(part, b.reshape(own, shape=(heads, depth)))
        out.append(b.transpose(part, permutation=(0, 2, 1, 3)))
    return tuple(out)


def _filter(b: Any, mask: Any, value: float, query: Any, key: Any) -> Any:
    """Return the addend of scores for a mask of keys, or None.

    The mask is [batch] lengths, [2 * batch] ends and then starts, [batch, keys] or [batch, queries,
    keys]; 0 hides a key.
    """
    if mask is None:
        return None
    rank = b.type_of(mask).rank
    batch, width = b.dims(query)[0], b.dims(key)[2]
    given = b.dims(mask)[-1]
    if rank == 1:
        if given not in (batch, batch * 2):
            raise unsupported(f"a mask of {given} entries: expected {batch}, or twice as many")
        places, ends = b.reshape(b.iota_like(key, 2), shape=(1, -1)), b.convert(mask, I64)
        if given == batch:
            shown = b.lt(places, b.reshape(ends, shape=(-1, 1)))
        else:
            bounds = reshape_to(b, ends, (2, batch))
            end, start = (b.reshape(take(b, bounds, 0, i, i + 1), shape=(-1, 1)) for i in (0, 1))
            shown = b.and_(b.lt(places, end), b.ge(places, start))
    elif all(isinstance(d, int) for d in (given, width)) and given != width:
        raise unsupported("a mask of another length than the keys: expected an entry for each")
    else:
        shown = b.gt(mask, 0)
    if rank not in (1, 2, 3):
        raise unsupported(f"a mask of rank {rank}: expected 1 to 3")
    shown = b.expand_dims(b.expand_dims(shown, 1), 1) if rank < 3 else b.expand_dims(shown, 1)
    return b.select(shown, b.scalar(0, query), b.scalar(value, query))


def _causal(b: Any, query: Any, key: Any, fresh: Any) -> Any:
    """-inf for keys after each query, the first of which stands at the first fresh key."""
    new = b.dims(query)[2], b.dims(fresh)[2]
    if all(isinstance(size, int) for size in new) and new[0] != new[1]:
        raise unsupported("unidirectional attention to another number of keys: expected as many")
    past = b.sub(extent_value(b, b.dims(key)[2]), extent_value(b, b.dims(fresh)[2]))
    rows, columns = _places(b, query, key, past)
    return b.select(b.le(columns, rows), b.scalar(0, query), b.scalar(-np.inf, query))


@contrib("Attention")
def encoder_attention(
    n: OnnxNode, x: Any, weight: Any, bias: Any = None, mask: Any = None, past: Any = None,
    added: Any = None, *,
    form: Form,
) -> Any:  # fmt: skip
    """pyc.attention of x @ weights + bias, [batch, length, query | key | value channels].

    past, present: [2, batch, heads, length, depth], keys and values.
    """
    packed = n.b.matmul(x, weight)
    packed = packed if bias is None else n.b.add(packed, bias)
    return attended(n, packed, mask, past, added, form)


def attended(n: OnnxNode, packed: Any, mask: Any, past: Any, added: Any, form: Form) -> Any:
    """Build attention over one projection to queries, keys and values, all of them inputs."""
    b, heads = n.b, form.num_heads
    if form.do_rotary or form.past_present_share_buffer:
        raise unsupported("do_rotary, past_present_share_buffer: expected 0")
    width = b.type_of(packed).shape[-1]
    if width is None:
        raise unsupported("weights of dynamic size: expected static ones")
    sizes = form.qkv_hidden_sizes or [_whole_heads(width, 3)] * 3
    if len(sizes) != 3 or sum(sizes) != width or min(sizes) < 1 or sizes[0] != sizes[1]:
        raise PycError(ReasonCode.BAD_MODEL, f"`qkv_hidden_sizes`: expected {width} channels")
    query, key, value = _cut(b, packed, sizes, (heads,) * 3)
    fresh = key
    if past is not None:
        key, value = (
            b.concat(reshape_to(b, take(b, past, 0, i, i + 1), b.dims(past)[1:]), v, axis=2)
            for i, v in enumerate((key, value))
        )
    out = _encoded(b, query, key, value, fresh, (mask, added), form)
    if not n.wants(1):
        return out
    return out, b.concat(b.expand_dims(key, 0), b.expand_dims(value, 0), axis=0)


def _cut(b: Any, packed: Any, sizes: Sequence[int], heads: Sequence[int]) -> list[Any]:
    """Return queries, keys and values of a packed projection, each by `split_heads`."""
    places = np.cumsum([0, *sizes])
    return [
        split_heads(b, take(b, packed, 2, int(places[i]), int(places[i + 1])), count)
        for i, count in enumerate(heads)
        if _whole_heads(sizes[i], count)
    ]


@dataclass(frozen=True)
class _Grouped:
    """The attributes of a GroupQueryAttention."""

    scale: float = 0.0
    softcap: float = 0.0
    smooth_softmax: int = 0
    causal: int = 1
    local_window_size: int = -1
    do_rotary: int = 0
    rotary_interleaved: int = 0
    qk_norm_epsilon: Any = None
    k_quant_type: str = "NONE"
    v_quant_type: str = "NONE"
    qk_output: int = 0
    sliding_window_cache: int = 0
    kv_cache_bit_width: int = 0

    def require_plain(self) -> None:
        """Raise unsupported for forms of the cache that PyC lacks."""
        none = _Grouped()
        for name in ("k_quant_type", "v_quant_type", "qk_output", "sliding_window_cache",
                     "kv_cache_bit_width"):  # fmt: skip
            if getattr(self, name) != getattr(none, name):
                raise unsupported(f"`{name}`: expected {getattr(none, name)}")


@contrib("GroupQueryAttention")
def group_query_attention(
    n: OnnxNode, query: Any, key: Maybe, value: Maybe, past_key: Maybe, past_value: Maybe,
    lengths: Any, total: Operand, cosines: Any = None, sines: Any = None, places: Any = None,
    bias: Any = None, sink: Any = None, *,
    num_heads: int, kv_num_heads: int, form: _Grouped,
) -> Any:  # fmt: skip
    """pyc.attention with fewer key heads than query heads, rotary angles and a cache.

    The results' cache has `total_sequence_length` places, or those of the given one if that is
    static and larger; places that no key has yet are 0. onnxruntime keeps a longer past longer
    where sizes are dynamic, and leaves there what was there.
    """
    b, counts = n.b, (num_heads, kv_num_heads, kv_num_heads)
    form.require_plain()
    if kv_num_heads < 1 or num_heads % kv_num_heads:
        expected = f"{num_heads} heads: expected a multiple of {kv_num_heads}"
        raise PycError(ReasonCode.BAD_MODEL, expected)
    if key is not None and value is not None:
        query, key, value = (
            split_heads(b, v, c) for v, c in zip((query, key, value), counts, strict=True)
        )
    else:
        depth = _whole_heads(b.type_of(query).shape[-1], sum(counts))
        query, key, value = _cut(b, query, [depth * c for c in counts], counts)
    past = _past_lengths(n, query, lengths, past_key)
    if form.do_rotary:
        turns = places, cosines, sines
        query, key = (_turned(b, x, past, turns, form) for x in (query, key))
    full_key, full_value = (
        _appended(n, v, old, past) for v, old in ((key, past_key), (value, past_value))
    )
    keys, values = (_repeated(b, v, num_heads) for v in (full_key, full_value))
    out = _attended(b, query, keys, values, past, bias, sink, form)
    return merge_heads(b, out), full_key, full_value


def _past_lengths(n: OnnxNode, query: Any, lengths: Any, past_key: Any) -> Any:
    """i64 [batch, 1]: the keys of each sequence in the cache before this call."""
    b = n.b
    ends = b.add(b.reshape(b.convert(lengths, I64), shape=(-1, 1)), 1)
    if past_key is None:
        return b.mul(ends, 0)
    fresh = extent_value(b, b.dims(query)[2])
    total = b.reshape(b.convert(n.x(6), I64), shape=())
    before = b.maximum(b.sub(ends, fresh), 0)
    first = b.eq(total, fresh)
    return b.select(first, 0, before)


def _turned(b: Any, x: Any, past: Any, turns: tuple[Any, Any, Any], form: _Grouped) -> Any:
    """x turned by the angles of its places: those given, or those after the past."""
    places, cosines, sines = turns
    if cosines is None or sines is None:
        raise PycError(ReasonCode.BAD_MODEL, "`do_rotary`: expected cosines and sines with it")
    if places is None:
        places = b.add(past, b.reshape(b.iota_like(x, 2), shape=(1, -1)))
    b.declare_indices(places, b.dims(cosines)[0])
    cosine, sine = (b.expand_dims(b.gather(t, places, axis=0), 1) for t in (cosines, sines))
    return rotated(b, x, cosine, sine, bool(form.rotary_interleaved))


def _length(n: OnnxNode, old: Extent, new: Extent) -> Extent:
    """Return the number of places of the resulting cache. Raises unsupported if it is unknown."""
    total = n.extents(6, "total_sequence_length")
    if len(total) != 1:
        raise PycError(ReasonCode.BAD_MODEL, "`total_sequence_length`: expected one element")
    (whole,) = total
    if isinstance(whole, SymbolicSize) and isinstance(old, int) and old:
        raise unsupported("a past of static length with a dynamic total: expected both of one kind")
    if isinstance(whole, SymbolicSize) or isinstance(old, SymbolicSize):
        return whole
    return max(whole, old, new if isinstance(new, int) else 0)


def _appended(n: OnnxNode, fresh: Any, cache: Any, past: Any) -> Any:
    """Append this call's rows to the cache, after the past of each sequence.

    Each row is gathered from the past and fresh rows, so that nothing is written twice.
    """
    b = n.b
    batch, heads, new, depth = b.dims(fresh)
    old = 0 if cache is None else b.dims(cache)[2]
    length = _length(n, old, new)
    if cache is None and length == new:
        return fresh
    rows = fresh if cache is None else b.concat(cache, fresh, axis=2)
    places = b.reshape(vector(b, length), shape=(1, -1))
    behind = b.sub(places, past)
    last = b.sub(extent_value(b, new), 1)
    zero = np.array(0, np.int64)
    taken = b.minimum(b.maximum(behind, zero), b.maximum(last, zero))
    taken = b.add(taken, extent_value(b, old))
    taken = b.select(b.lt(behind, zero), places, taken)
    taken = expand_to(b, b.expand_dims(taken, 1), (batch, heads, length))
    whole = b.dims(rows)[:3]
    flat = reshape_to(b, rows, (product(whole), depth))
    out = b.gather(flat, along(b, taken, whole, 2), axis=0)
    held = b.lt(behind, extent_value(b, new))
    held = b.expand_dims(b.expand_dims(held, 1), 3)
    return b.select(held, out, 0)


def _attended(
    b: Any, query: Any, key: Any, value: Any, past: Any, bias: Any, sink: Any, form: _Grouped
) -> Any:
    """Build attention of queries to the keys that they may see, by place, with caps and sinks."""
    scale = _scale_of(b, form.scale, query)
    seen = _seen(b, query, key, past, form)
    sinks = form.smooth_softmax > 0 or sink is not None
    if not form.softcap and not sinks:
        mask = seen if bias is None else b.select(seen, bias, -np.inf)
        return b.attention(query, key, value, mask, scale=scale)

    def formula(query: Any, key: Any, value: Any, *bias: Any) -> Any:
        scores = scores_of(b, query, key, scale, form.softcap)
        scores = b.add(scores, *bias) if bias else scores
        scores = b.select(seen, scores, -np.inf)
        weights = _with_sink(b, scores, sink) if sinks else b.softmax(scores, axis=-1)
        return b.matmul(weights, value)

    return accumulated(b, query, formula, key, value, *([] if bias is None else [bias]))


def _with_sink(b: Any, scores: Any, sink: Any) -> Any:
    """Build the softmax of scores and one more, which takes its share and has no value.

    The additional score is ``head_sink`` of each head, or 0 ("smooth softmax"; attention sinks:
    Xiao et al., 2023).
    """
    batch, heads, rows, _ = b.dims(scores)
    sink = None if sink is None else b.reshape(sink, shape=(1, -1, 1, 1))
    sink = b.scalar(0, scores) if sink is None else b.convert(sink, b.type_of(scores).dtype)
    column = expand_to(b, b.reshape(sink, shape=(1, -1, 1, 1)), (batch, heads, rows, 1))
    weights = b.softmax(b.concat(scores, column, axis=3), axis=-1)
    return take(b, weights, 3, 0, -1)


def _seen(b: Any, query: Any, key: Any, past: Any, form: _Grouped) -> Any:
    """i1 [batch, 1, queries, keys]: keys up to each query, within the window before it."""
    start = b.reshape(past, shape=(-1, 1, 1, 1))
    rows, columns = _places(b, query, key, start)
    if form.causal:
        tests = [b.le(columns, rows)]
    else:
        tests = [b.lt(columns, b.add(start, extent_value(b, b.dims(query)[2])))]
    if form.local_window_size >= 0:
        tests.append(b.lt(b.sub(rows, columns), form.local_window_size))
    return reduce(b.and_, tests)
