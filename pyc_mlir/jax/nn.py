"""Layers that stay whole on the way into PyC: JAX composites with the names that PyC knows.

In JAX they compute what `jax.nn` and the papers say, since each carries its decomposition; imported
by PyC (a jaxpr, or StableHLO from `jax.export`) each is one op. Gradients are those of the
decomposition.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
from jax.custom_batching import custom_vmap  # pyright: ignore[reportMissingImports]


def _composite(name: str, decomposition: Callable[..., Any], **attributes: Any) -> Any:
    """Make a composite with its decomposition's gradient and batches; JAX gives it neither."""
    plain = partial(decomposition, **attributes)

    @custom_vmap
    def whole(*arrays: Any) -> Any:
        return jax.lax.composite(decomposition, name=name)(*arrays, **attributes)

    @whole.def_vmap
    def _(axis_size: int, batched: Sequence[bool], *arrays: Any) -> Any:
        axes = [0 if b else None for b in batched]
        return jax.vmap(plain, in_axes=axes, axis_size=axis_size)(*arrays), True

    @jax.custom_jvp
    def call(*arrays: Any) -> Any:
        return whole(*arrays)

    @call.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        return jax.jvp(plain, primals, tangents)

    return call


def _layer_norm(x: Any, scale: Any, bias: Any, *, epsilon: float) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred * centred).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + epsilon) * scale + bias


def _rms_norm(x: Any, scale: Any, *, epsilon: float) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + epsilon) * scale


def _attention(
    query: Any, key: Any, value: Any, mask: Any = None, *, scale: float, is_causal: bool
) -> Any:
    scores = jnp.einsum("...sd,...td->...st", query, key) * scale
    if is_causal:
        rows, columns = scores.shape[-2:]
        seen = jnp.arange(columns) <= jnp.arange(rows)[:, None] + columns - rows
        scores = jnp.where(seen, scores, -jnp.inf)
    if mask is not None:
        allowed = mask.dtype == jnp.bool_
        scores = jnp.where(mask, scores, -jnp.inf) if allowed else scores + mask
    return jnp.einsum("...st,...te->...se", jax.nn.softmax(scores, axis=-1), value)


def softmax(x: Any, axis: int = -1) -> Any:
    """exp(x - max(x)) / sum(exp(x - max(x))) along `axis`."""
    return _composite("pyc.softmax", jax.nn.softmax, axis=axis)(x)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """log(softmax(x)) along `axis`."""
    return _composite("pyc.log_softmax", jax.nn.log_softmax, axis=axis)(x)


def layer_norm(x: Any, scale: Any, bias: Any, epsilon: float = 1e-5) -> Any:
    """(x - mean) / sqrt(var + epsilon) * scale + bias over the last dimension (Ba et al., 2016)."""
    return _composite("pyc.layer_norm", _layer_norm, epsilon=epsilon)(x, scale, bias)


def rms_norm(x: Any, scale: Any, epsilon: float = 1e-6) -> Any:
    """x / sqrt(mean(x^2) + epsilon) * scale over the last dimension (Zhang, Sennrich, 2019)."""
    return _composite("pyc.rms_norm", _rms_norm, epsilon=epsilon)(x, scale)


def gelu(x: Any, approximate: bool = True) -> Any:
    """x/2 * (1 + erf(x/sqrt 2)), or its tanh formula (Hendrycks, Gimpel, 2016)."""
    return _composite("pyc.gelu", jax.nn.gelu, approximate=approximate)(x)


def dot_product_attention(
    query: Any, key: Any, value: Any, mask: Any = None, *,
    scale: float | None = None, is_causal: bool = False,
) -> Any:  # fmt: skip
    """softmax(query @ key^T * scale + mask) @ value, per head (Vaswani et al., 2017).

    query [batch, length, heads, depth], key and value [batch, length, key heads, depth], as
    `jax.nn.dot_product_attention` takes them; heads are a multiple of key heads. mask broadcasts to
    [batch, heads, query length, key length]: i1 keeps where true, floats are added. scale is
    1/sqrt(depth) by default.
    """
    groups = query.shape[2] // key.shape[2]
    if groups > 1:
        key, value = (jnp.repeat(x, groups, axis=2) for x in (key, value))
    heads_first = [jnp.swapaxes(x, 1, 2) for x in (query, key, value)]
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    call = _composite("pyc.attention", _attention, scale=factor, is_causal=is_causal)
    out = call(*heads_first) if mask is None else call(*heads_first, mask)
    return jnp.swapaxes(out, 1, 2)
