"""Attention of opset 23: scaled dot products with heads, masks and a cache."""

import math
from functools import reduce
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.functions import sees_a_key
from pyc_mlir.dialects.types import BOOL, I64, accumulator
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import expand_to, merge, split, swap_last
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node

# FLOAT, FLOAT16, BFLOAT16.
_COMPUTED_IN_F32 = (1, 10, 16)


@node("Attention")
def attention(n: OnnxNode) -> Any:
    """pyc.attention on [batch, heads, length, depth].

    Operands of rank 3 are split into heads; fewer key heads than query heads are repeated; the
    outputs present_key and present_value are the cache with this call's keys and values. A query
    that sees no key gets 0 (pyc.attention gives NaN).
    """
    b = n.b
    if n.attr("softmax_precision", 1) not in _COMPUTED_IN_F32:
        raise unsupported("softmax_precision: expected at most f32")
    query = _heads(n, 0, "q_num_heads")
    key, value = (_cached(n, i, i + 3) for i in (1, 2))
    groups = _groups(b, query, key)
    full_key, full_value = (repeated(b, v, groups) for v in (key, value))
    depth = b.type_of(query).shape[-1]
    scale = n.attr("scale", 1 / math.sqrt(depth) if depth else None)
    if scale is None:
        raise unsupported("a dynamic depth without `scale`: expected one of the two")
    mask = _mask(n, query, key)
    cap = n.attr("softcap", 0.0)
    seen = None if mask is None else sees_a_key(b, mask)
    shown = None
    if cap or n.wants(3):
        # The scores of 16-bit floats may leave their range, weighted values do not.
        dtype = b.type_of(query).dtype
        wide = [b.convert(v, accumulator(dtype)) for v in (query, full_key, full_value)]
        if mask is not None and b.type_of(mask).dtype != BOOL:
            mask = b.convert(mask, accumulator(dtype))
        scores = _scores(b, wide[0], wide[1], scale, cap)
        out, shown = (b.convert(v, dtype) for v in _by_scores(n, scores, mask, seen, wide[2]))
    else:
        n.attr("qk_matmul_output_mode")
        given = () if mask is None else (mask,)
        out = b.attention(query, full_key, full_value, *given, scale=scale)
    if seen is not None:
        out = b.select(seen, out, b.scalar(0, out))
    if n.type(0).rank == 3:
        out = merge(b, b.transpose(out, permutation=(0, 2, 1, 3)), 2)
    return out, key, value, shown


def _scores(b: Any, query: Any, key: Any, scale: float, cap: float) -> Any:
    """Build products of queries and keys, through cap * tanh(score / cap) if there is one."""
    scores = b.matmul(b.mul(query, b.scalar(scale, query)), swap_last(b, key))
    if not cap:
        return scores
    limit = b.scalar(cap, query)
    return b.mul(b.tanh(b.div(scores, limit)), limit)


def _by_scores(n: OnnxNode, scores: Any, mask: Any, seen: Any, value: Any) -> tuple[Any, Any]:
    """Build the attention and the scores at the stage that `qk_matmul_output_mode` names.

    Stages: 0, 1 products, capped; 2 masked; 3 after the softmax.
    """
    b, mode = n.b, n.attr("qk_matmul_output_mode", 0)
    if mode == 0 and n.attr("softcap", 0.0) and n.wants(3):
        raise unsupported("qk_matmul_output_mode=0 with softcap: expected another mode")
    masked = scores
    if mask is not None and b.type_of(mask).dtype == BOOL:
        masked = b.select(mask, scores, b.scalar(-np.inf, scores))
    elif mask is not None:
        masked = b.add(scores, mask)
    weights = b.softmax(masked, axis=-1)
    if seen is not None:
        weights = b.select(seen, weights, b.scalar(0, weights))
    shown = {2: masked, 3: weights}.get(mode, scores)
    return b.matmul(weights, value), shown


def _heads(n: OnnxNode, index: int, attribute: str) -> Any:
    """[batch, length, heads * depth] as [batch, heads, length, depth]; rank 4 as it is."""
    count = n.attr(attribute)
    if n.type(index).rank == 4:
        return n.x(index)
    if n.type(index).rank != 3 or not count:
        raise PycError(ReasonCode.BAD_MODEL, f"expected rank 4, or rank 3 and `{attribute}`")
    parts = split(n.b, n.x(index), 2, (count, -1))
    return n.b.transpose(parts, permutation=(0, 2, 1, 3))


def _cached(n: OnnxNode, index: int, past: int) -> Any:
    """Return keys or values, after those of the cache."""
    fresh = _heads(n, index, "kv_num_heads")
    return n.b.concat(n.x(past), fresh, axis=2) if n.has(past) else fresh


def _groups(b: Any, query: Any, key: Any) -> int:
    """Query heads for each key head."""
    many, few = b.type_of(query).shape[1], b.type_of(key).shape[1]
    if many is None or not few or many % few:
        raise unsupported(f"{many} query heads and {few} key heads: expected a static multiple")
    return many // few


def repeated(b: Any, x: Any, groups: int) -> Any:
    """Repeat each head `groups` times in a row."""
    if groups == 1:
        return x
    batch, heads, length, depth = b.dims(x)
    apart = split(b, x, 1, (heads, 1))
    return merge(b, expand_to(b, apart, (batch, heads, groups, length, depth)), 1)


def _mask(n: OnnxNode, query: Any, key: Any) -> Any:
    """Return the mask operand of pyc.attention, or None: the model's, and what queries see by
    place.

    ONNX aligns queries to the cache: query i stands at the place i + length of the cache, or the
    last query at the end of the keys that ``nonpad_kv_seqlen`` marks as no padding.
    """
    b = n.b
    given = n.x(3) if n.has(3) else None
    if given is not None:
        given = _widened(b, given, b.dims(key)[2])
    visible = _visible(n, query, key)
    if given is None or visible is None:
        return visible if given is None else given
    if b.type_of(given).dtype == BOOL:
        return b.and_(visible, given)
    return b.select(visible, given, b.scalar(-np.inf, given))


def _widened(b: Any, mask: Any, length: Extent) -> Any:
    """Pad a mask that is narrower than the keys so that it hides the others."""
    width = b.dims(mask)[-1]
    if width in (1, length):
        return mask
    if isinstance(width, SymbolicSize) or isinstance(length, SymbolicSize):
        raise unsupported("attn_mask that is narrower than the keys: expected an entry for each")
    pads = (0,) * (b.type_of(mask).rank - 1)
    high = (*pads, length - width)
    if b.type_of(mask).dtype == BOOL:
        return b.pad(mask, low=(*pads, 0), high=high, value=0.0)
    return b.pad(mask, low=(*pads, 0), high=high, value=-np.inf)


def _visible(n: OnnxNode, query: Any, key: Any) -> Any:
    """i1, or None: the causal triangle, a window around each query, and what is no padding."""
    b = n.b
    causal = n.attr("is_causal", 0)
    left, right = (n.attr(f"{side}_window_size", -1) for side in ("left", "right"))
    rows = b.reshape(b.iota_like(query, 2), shape=(-1, 1))
    columns = b.reshape(b.iota_like(key, 2), shape=(1, -1))
    lengths = None
    if n.has(4):
        rows = b.add(rows, b.size(n.x(4), 2))
    elif n.has(6):
        lengths = b.reshape(b.convert(n.x(6), I64), shape=(-1, 1, 1, 1))
        rows = b.add(rows, b.sub(lengths, b.size(query, 2)))
    behind = b.sub(rows, columns)
    tests = [("ge", 0)] if causal else []
    tests += [("le", left)] if left >= 0 else []
    tests += [("ge", -right)] if right >= 0 else []
    parts = [b.compare(behind, np.array(v, np.int64), predicate=p) for p, v in tests]
    if lengths is not None:
        parts.append(b.compare(columns, lengths, predicate="lt"))
    return reduce(b.and_, parts) if parts else None
