"""Attention of opset 23: scaled dot products with heads, masks and a cache."""

import math
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import BOOL, DTYPES
from pyc_mlir.frontends.frame.errors import unsupported
from pyc_mlir.frontends.frame.shaping import expand_to, merge, split, swap_last
from pyc_mlir.frontends.onnx.frame.handler import Node, node


@node("Attention")
def attention(n: Node) -> Any:
    """pyc.attention on [batch, heads, length, depth].

    Operands of rank 3 are split into heads; fewer key heads than query heads are repeated; the
    outputs present_key and present_value are the cache with this call's keys and values. A query
    that sees no key gets 0 (pyc.attention gives NaN).
    """
    b = n.b
    _refuse_others(n)
    query = _heads(n, 0, "q_num_heads")
    key, value = (_cached(n, i, i + 3) for i in (1, 2))
    groups = _groups(b, query, key)
    full_key, full_value = (_repeated(b, v, groups) for v in (key, value))
    depth = b.type_of(query).shape[-1]
    scale = n.attr("scale", 1 / math.sqrt(depth) if depth else None)
    if scale is None:
        raise unsupported("a dynamic depth without `scale`: expected one of the two")
    mask = _mask(n, query, key)
    cap = n.attr("softcap", 0.0)
    if cap:
        out = _capped(b, query, full_key, full_value, mask, scale, cap)
    else:
        out = b.attention(query, full_key, full_value, *mask, scale=scale)
    if n.has(3):
        out = b.select(_sees(b, mask[0]), out, b.scalar(0, out))
    if n.type(0).rank == 3:
        out = merge(b, b.transpose(out, permutation=(0, 2, 1, 3)), 2)
    return out, key, value


def _refuse_others(n: Node) -> None:
    if n.wants(3):
        raise unsupported("the output `qk_matmul_output`: expected only Y and the present cache")
    if n.attr("softmax_precision", 1) != 1:
        raise unsupported("softmax_precision: expected f32")


def _capped(
    b: Any, query: Any, key: Any, value: Any, mask: tuple[Any, ...], scale: float, cap: float
) -> Any:
    """Attention whose scores pass through cap * tanh(score / cap) before the mask."""
    scores = b.matmul(b.mul(query, b.scalar(scale, query)), swap_last(b, key))
    limit = b.scalar(cap, query)
    scores = b.mul(b.tanh(b.div(scores, limit)), limit)
    if mask and b.type_of(mask[0]).dtype == BOOL:
        scores = b.select(mask[0], scores, b.scalar(-np.inf, query))
    elif mask:
        scores = b.add(scores, mask[0])
    return b.matmul(b.softmax(scores, axis=-1), value)


def _sees(b: Any, mask: Any) -> Any:
    """i1 [..., s, 1]: the rows of a mask that leave some key visible."""
    axis = b.type_of(mask).rank - 1
    if b.type_of(mask).dtype != BOOL:
        best = b.reduce_max(mask, axes=(axis,), keepdims=True)
        return b.compare(best, b.scalar(-np.inf, mask), predicate="ne")
    best = b.reduce_max(b.cast(mask, dtype=DTYPES["i8"]), axes=(axis,), keepdims=True)
    return b.compare(best, b.scalar(0, best), predicate="gt")


def _heads(n: Node, index: int, attribute: str) -> Any:
    """[batch, length, heads * depth] as [batch, heads, length, depth]; rank 4 as it is."""
    if n.type(index).rank == 4:
        return n.x(index)
    count = n.attr(attribute)
    if n.type(index).rank != 3 or not count:
        raise PycError(ReasonCode.BAD_MODEL, f"expected rank 4, or rank 3 and `{attribute}`")
    parts = split(n.b, n.x(index), 2, (count, -1))
    return n.b.transpose(parts, permutation=(0, 2, 1, 3))


def _cached(n: Node, index: int, past: int) -> Any:
    """Keys or values, after those of the cache."""
    fresh = _heads(n, index, "kv_num_heads")
    return n.b.concat(n.x(past), fresh, axis=2) if n.has(past) else fresh


def _groups(b: Any, query: Any, key: Any) -> int:
    """Query heads for each key head."""
    many, few = b.type_of(query).shape[1], b.type_of(key).shape[1]
    if many is None or not few or many % few:
        raise unsupported(f"{many} query heads and {few} key heads: expected a static multiple")
    return many // few


def _repeated(b: Any, x: Any, groups: int) -> Any:
    """Each head `groups` times in a row."""
    if groups == 1:
        return x
    batch, heads, length, depth = b.dims(x)
    apart = split(b, x, 1, (heads, 1))
    return merge(b, expand_to(b, apart, (batch, heads, groups, length, depth)), 1)


def _mask(n: Node, query: Any, key: Any) -> tuple[Any, ...]:
    """The mask operand of pyc.attention: none, the model's, or with the causal triangle.

    ONNX aligns the triangle to the cache: query i sees keys j <= i + length of the cache.
    """
    b = n.b
    given = n.x(3) if n.has(3) else None
    if given is not None and b.dims(given)[-1] not in (1, b.dims(key)[2]):
        raise unsupported("attn_mask that is narrower than the keys: expected an entry for each")
    if not n.attr("is_causal", 0):
        return () if given is None else (given,)
    rows = b.reshape(b.iota_like(query, 2), shape=(-1, 1))
    columns = b.reshape(b.iota_like(key, 2), shape=(1, -1))
    if n.has(4):
        rows = b.add(rows, b.size(n.x(4), 2))
    visible = b.compare(columns, rows, predicate="le")
    if given is None:
        return (visible,)
    if b.type_of(given).dtype == BOOL:
        return (b.and_(visible, given),)
    return (b.select(visible, given, b.scalar(-np.inf, given)),)
