"""Attention of encoders in onnxruntime's domain: what its transformer optimizer writes.

A mask there adds `mask_filter_value` to scores, not minus infinity, so that a query that may see
nothing takes the mean of all values.
"""

import math
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import I64
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.indexing import extent_value
from pyc_mlir.frontends.importing.shaping import merge, reshape_to, split, take
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, contrib

END = 2**63 - 1


def apart(b: Any, x: Any, heads: int) -> Any:
    """[batch, length, heads * depth] as [batch, heads, length, depth]."""
    return b.transpose(split(b, x, 2, (heads, -1)), permutation=(0, 2, 1, 3))


def together(b: Any, x: Any) -> Any:
    """[batch, heads, length, depth] as [batch, length, heads * depth]."""
    return merge(b, b.transpose(x, permutation=(0, 2, 1, 3)), 2)


def scale_of(n: OnnxNode, query: Any) -> float:
    """Return the factor of the products; 1/sqrt(depth) if the node omits it or gives 0."""
    given, depth = n.attr("scale", 0.0), n.b.type_of(query).shape[-1]
    if not given and not depth:
        raise unsupported("a dynamic depth without `scale`: expected one of the two")
    return given or 1 / math.sqrt(depth)


def whole_heads(n: OnnxNode, size: int | None, heads: int) -> int:
    """Return the depth of each of `heads` heads. Raises PycError (BAD_MODEL)."""
    if size is None:
        raise unsupported("a dynamic number of channels: expected a static one")
    if heads < 1 or size % heads:
        raise PycError(ReasonCode.BAD_MODEL, f"{size} channels: expected a multiple of {heads}")
    return size // heads


@contrib("MultiHeadAttention")
def multi_head_attention(n: OnnxNode) -> Any:
    """pyc.attention of heads, whose operands lie apart or packed, with a bias and a cache.

    query: [batch, length, hidden], or [batch, length, heads, 3, depth] with keys and values; key,
    value: [batch, length, hidden], [batch, heads, length, depth], or one [.., heads, 2, depth].
    """
    b, heads = n.b, n.stated("num_heads")
    if n.has(8) or n.has(9) or n.wants(3):
        raise unsupported("a cache of fixed size, `cache_indirection` or `qk`: expected none")
    query, key, value = _operands(n, heads)
    fresh = key
    if n.has(6):
        key, value = (b.concat(n.x(i), v, axis=2) for i, v in ((6, key), (7, value)))
    mask = _total(b, _filter(n, 4, query, key), n.x(5) if n.has(5) else None)
    mask = _total(b, mask, _causal(n, query, key, fresh))
    given = () if mask is None else (mask,)
    out = b.attention(query, key, value, *given, scale=scale_of(n, query))
    return together(b, out), key, value


def _operands(n: OnnxNode, heads: int) -> tuple[Any, Any, Any]:
    """Return queries, keys and values as [batch, heads, length, depth], with their bias."""
    b = n.b
    if n.type(0).rank == 5:
        return _parts(b, n.x(0), 3, n.x(3) if n.has(3) else None)
    bias = n.x(3) if n.has(3) else None
    hidden = heads * whole_heads(n, n.type(0).shape[-1], heads)
    if n.type(0).rank != 3 or not n.has(1):
        raise PycError(ReasonCode.BAD_MODEL, "`query`: expected rank 3 with `key`, or rank 5")
    query = n.x(0) if bias is None else b.add(n.x(0), take(b, bias, 0, 0, hidden))
    query = apart(b, query, heads)
    if n.type(1).rank == 5:
        packed = None if bias is None else take(b, bias, 0, hidden, END)
        return query, *_parts(b, n.x(1), 2, packed)
    if n.type(1).rank == 4:
        if n.has(6) or bias is not None:
            raise unsupported("keys of rank 4 with a bias or a cache: expected rank 3")
        return query, n.x(1), n.x(2)
    key, value = n.x(1), n.x(2)
    if bias is not None:
        key = b.add(key, take(b, bias, 0, hidden, 2 * hidden))
        value = b.add(value, take(b, bias, 0, 2 * hidden, END))
    return query, apart(b, key, heads), apart(b, value, heads)


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


def _total(b: Any, left: Any, right: Any) -> Any:
    """Add two masks that scores are added to, either of which may be None."""
    if left is None or right is None:
        return right if left is None else left
    return b.add(left, right)


def _filter(n: OnnxNode, index: int, query: Any, key: Any) -> Any:
    """Return the addend of scores for a mask of keys, or None.

    The mask is [batch] lengths, [2 * batch] ends and then starts, [batch, keys] or [batch, queries,
    keys]; 0 hides a key.
    """
    b = n.b
    value = n.attr("mask_filter_value", -10000.0)
    if not n.has(index):
        return None
    mask, rank = n.x(index), n.type(index).rank
    batch, width = b.dims(query)[0], b.dims(key)[2]
    given = b.dims(mask)[-1]
    if rank == 1:
        if given not in (batch, batch * 2):
            raise unsupported(f"a mask of {given} entries: expected {batch}, or twice as many")
        places = b.reshape(b.iota_like(key, 2), shape=(1, -1))
        ends = b.convert(mask, I64)
        starts = None
        if given != batch:
            bounds = reshape_to(b, ends, (2, batch))
            ends, starts = take(b, bounds, 0, 0, 1), take(b, bounds, 0, 1, 2)
        shown = b.compare(places, b.reshape(ends, shape=(-1, 1)), predicate="lt")
        if starts is not None:
            begun = b.compare(places, b.reshape(starts, shape=(-1, 1)), predicate="ge")
            shown = b.and_(shown, begun)
    elif all(isinstance(d, int) for d in (given, width)) and given != width:
        raise unsupported("a mask of another length than the keys: expected an entry for each")
    else:
        shown = b.compare(mask, b.scalar(0, mask), predicate="gt")
    if rank not in (1, 2, 3):
        raise unsupported(f"a mask of rank {rank}: expected 1 to 3")
    shown = b.expand_dims(b.expand_dims(shown, 1), 1) if rank < 3 else b.expand_dims(shown, 1)
    return b.select(shown, b.scalar(0, query), b.scalar(value, query))


def _causal(n: OnnxNode, query: Any, key: Any, fresh: Any) -> Any:
    """-inf for keys after each query, the first of which stands at the first fresh key; or None."""
    b = n.b
    if not n.attr("unidirectional", 0):
        return None
    new = b.dims(query)[2], b.dims(fresh)[2]
    if all(isinstance(size, int) for size in new) and new[0] != new[1]:
        raise unsupported("unidirectional attention to another number of keys: expected as many")
    past = b.sub(extent_value(b, b.dims(key)[2]), extent_value(b, b.dims(fresh)[2]))
    rows = b.add(b.reshape(b.iota_like(query, 2), shape=(-1, 1)), past)
    columns = b.reshape(b.iota_like(key, 2), shape=(1, -1))
    shown = b.compare(columns, rows, predicate="le")
    return b.select(shown, b.scalar(0, query), b.scalar(-np.inf, query))


@contrib("Attention")
def attention(n: OnnxNode) -> Any:
    """pyc.attention of x @ weights + bias, [batch, length, query | key | value channels].

    past, present: [2, batch, heads, length, depth], keys and values.
    """
    b = n.b
    packed = b.matmul(n.x(0), n.x(1))
    packed = b.add(packed, n.x(2)) if n.has(2) else packed
    return attended(n, packed, mask=3, past=4, bias=5)


def attended(n: OnnxNode, packed: Any, *, mask: int, past: int, bias: int | None) -> Any:
    """Build attention over one projection to queries, keys and values, all of them inputs."""
    b, heads = n.b, n.stated("num_heads")
    if n.attr("do_rotary", 0) or n.attr("past_present_share_buffer", 0):
        raise unsupported("do_rotary, past_present_share_buffer: expected 0")
    n.attr("rotary_embedding_dim")
    width = b.type_of(packed).shape[-1]
    if width is None:
        raise unsupported("weights of dynamic size: expected static ones")
    sizes = n.attr("qkv_hidden_sizes", []) or [whole_heads(n, width, 3)] * 3
    if len(sizes) != 3 or sum(sizes) != width or min(sizes) < 1 or sizes[0] != sizes[1]:
        raise PycError(ReasonCode.BAD_MODEL, f"`qkv_hidden_sizes`: expected {width} channels")
    places = np.cumsum([0, *sizes])
    query, key, value = (
        apart(b, take(b, packed, 2, int(places[i]), int(places[i + 1])), heads)
        for i in range(3)
        if whole_heads(n, sizes[i], heads)
    )
    fresh = key
    if n.has(past):
        old = [_half(b, n.x(past), i) for i in range(2)]
        key, value = (b.concat(o, v, axis=2) for o, v in zip(old, (key, value), strict=True))
    added = n.x(bias) if bias is not None and n.has(bias) else None
    total = _total(b, _total(b, _filter(n, mask, query, key), added), _causal(n, query, key, fresh))
    out = b.attention(
        query, key, value, *(() if total is None else (total,)), scale=scale_of(n, query)
    )
    if not n.wants(1):
        return together(b, out)
    return together(b, out), b.concat(b.expand_dims(key, 0), b.expand_dims(value, 0), axis=0)


def _half(b: Any, x: Any, index: int) -> Any:
    """x[index], along the first dimension."""
    return reshape_to(b, take(b, x, 0, index, index + 1), b.dims(x)[1:])
