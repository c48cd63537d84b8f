"""Scaled dot-product attention, by torch's own rules for masks and the causal triangle."""

import math
from typing import Any

import numpy as np

from pyc_mlir.dialects.functions import sees_a_key
from pyc_mlir.dialects.types import BOOL, accumulator
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import expand_to, merge, split, swap_last
from pyc_mlir.frontends.torch.ops.handler import AtenCall, aten


@aten("scaled_dot_product_attention.default", "_scaled_dot_product_flash_attention_for_cpu.default",
      "_scaled_dot_product_attention_math.default")  # fmt: skip
def attention(
    n: AtenCall, query: Any, key: Any, value: Any, *,
    dropout_p: float = 0, scale: float | None = None, is_causal: bool = False,
) -> Any:  # fmt: skip
    """pyc.attention; fewer key heads are repeated; a query that sees no key gets 0.

    torch aligns the causal triangle at the top left: query i sees keys j <= i.
    """
    b = n.b
    if dropout_p:
        n.seed()
    key, value = (_repeated(b, v, b.type_of(query).shape) for v in (key, value))
    rank, depth = b.type_of(query).rank, b.type_of(query).shape[-1]
    if scale is None and not depth:
        raise unsupported("a dynamic depth without `scale`: expected one of the two")
    scale = _scale(scale, depth)
    mask = n.x("attn_mask") if n.has("attn_mask") else None
    square = b.dims(query)[-2] == b.dims(key)[-2]
    if is_causal and not square:
        ramps = b.iota_like(query, rank - 2), b.iota_like(key, rank - 2)
        rows, columns = b.reshape(ramps[0], shape=(-1, 1)), b.reshape(ramps[1], shape=(1, -1))
        mask = b.compare(columns, rows, predicate="le")
    if n.wants(1):
        return _with_sums(b, query, key, value, mask, scale, is_causal and square)
    masks = () if mask is None else (mask,)
    out = b.attention(query, key, value, *masks, scale=scale, is_causal=is_causal and square)
    if mask is not None and not (is_causal or _all_see(n)):
        out = b.select(sees_a_key(b, mask), out, b.scalar(0, out))
    return out if n.op == "scaled_dot_product_attention" else (out, None)


def _scale(given: float | None, depth: int | None) -> float:
    return given if given is not None else 1 / math.sqrt(depth) if depth else 1.0


def _repeated(b: Any, x: Any, query: tuple[int | None, ...]) -> Any:
    """Repeat each head once for each of its query heads."""
    dims = b.dims(x)
    if len(dims) < 3 or dims[-3] == query[-3] or dims[-3] == 1:
        return x
    axis, heads, many = len(dims) - 3, dims[-3], query[-3]
    if many is None or not isinstance(heads, int) or many % heads:
        raise unsupported(f"{many} query heads and {heads} key heads: expected a static multiple")
    apart = split(b, x, axis, (heads, 1))
    spread = expand_to(b, apart, (*dims[:axis], heads, many // heads, *dims[axis + 1 :]))
    return merge(b, spread, axis)


def _all_see(n: AtenCall) -> bool:
    """Return whether a mask that is known at import leaves each query some key."""
    known = n.known("attn_mask")
    if known is None:
        return False
    seen = known if known.dtype == bool else known != -np.inf
    return bool(seen.any(axis=-1).all())


def _scores(b: Any, query: Any, key: Any, mask: Any, scale: float, causal: bool) -> Any:
    """query @ key^T * scale with its mask, in f32 at least."""
    wide = accumulator(b.type_of(query).dtype)
    query, key = (b.convert(v, wide) for v in (query, key))
    scores = b.matmul(query, swap_last(b, key))
    scores = b.mul(scores, b.scalar(scale, scores))
    nothing = b.scalar(-np.inf, scores)
    if mask is not None and b.type_of(mask).dtype == BOOL:
        scores = b.select(mask, scores, nothing)
    elif mask is not None:
        scores = b.add(scores, b.convert(mask, wide))
    if causal:
        rank = b.type_of(scores).rank
        rows, columns = b.iota_like(scores, rank - 2), b.iota_like(scores, rank - 1)
        scores = b.select(b.compare(columns, rows, predicate="le"), scores, nothing)
    return scores


def _with_sums(
    b: Any, query: Any, key: Any, value: Any, mask: Any, scale: float, causal: bool
) -> tuple[Any, Any]:
    """Build attention, and the log of each row's sum of exponentials, which the gradient needs."""
    scores = _scores(b, query, key, mask, scale, causal)
    axis = b.type_of(scores).rank - 1
    top = b.reduce_max(scores, axes=(axis,), keepdims=True)
    # A row that sees nothing: all weights are 0.
    finite = b.compare(top, b.scalar(-np.inf, top), predicate="gt")
    top = b.select(finite, top, b.scalar(0, top))
    weights = b.exp(b.sub(scores, top))
    total = b.reduce_sum(weights, axes=(axis,), keepdims=True)
    safe = b.select(finite, total, b.scalar(1, total))
    out = b.matmul(b.div(weights, safe), b.convert(value, b.type_of(scores).dtype))
    sums = b.add(b.log(total), top)
    return b.convert(out, b.type_of(query).dtype), b.squeeze(sums, axis)


@aten("_scaled_dot_product_flash_attention_for_cpu_backward.default")
def attention_backward(
    n: AtenCall, grad: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, *,
    scale: float | None = None, is_causal: bool = False,
) -> Any:  # fmt: skip
    """Build the gradients of query, key and value, from the saved log of the sums.

    Dao et al., "FlashAttention", 2022, appendix B: P = exp(S - L), dS = P * (dO V^T - D) with D =
    sum(dO * O).
    """
    b, dtype = n.b, n.b.type_of(query).dtype
    scale = _scale(scale, b.type_of(query).shape[-1])
    mask = n.x("attn_mask") if n.has("attn_mask") else None
    scores = _scores(b, query, key, mask, scale, is_causal)
    wide = b.type_of(scores).dtype
    query, key, value, out, grad = (b.convert(v, wide) for v in (query, key, value, out, grad))
    axis = b.type_of(scores).rank - 1
    sums = b.expand_dims(b.convert(logsumexp, wide), axis)
    seen = b.compare(sums, b.scalar(-np.inf, sums), predicate="gt")
    weights = b.exp(b.sub(scores, b.select(seen, sums, b.scalar(0, sums))))
    shares = b.reduce_sum(b.mul(grad, out), axes=(axis,), keepdims=True)
    inner = b.sub(b.matmul(grad, swap_last(b, value)), shares)
    inner = b.mul(b.mul(weights, inner), b.scalar(scale, weights))
    gradients = (
        b.matmul(inner, key),
        b.matmul(swap_last(b, inner), query),
        b.matmul(swap_last(b, weights), grad),
    )
    return tuple(b.convert(g, dtype) for g in gradients)
