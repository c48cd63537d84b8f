"""Normalizations, in the form that inference uses."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from pyc_mlir.dialects.functions import accumulated
from pyc_mlir.dialects.types import DTYPES, accumulator, is_float
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import reshape_to, split, take
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node

# Each neighbour is an addition in the program.
_MAX_NEIGHBOURS = 1024


@node("BatchNormalization")
def batch_norm(n: OnnxNode) -> Any:
    """pyc.batchnorm over dimension 1; in training by the batch's own mean and variance."""
    if n.attr("training_mode", 0):
        return _batch_norm_training(n)
    x, *vectors = n.all()
    norm = partial(n.b.batchnorm, axis=1, epsilon=n.attr("epsilon", 1e-5))
    same = all(n.b.type_of(v).dtype == n.type().dtype for v in vectors)
    return norm(x, *vectors) if same else accumulated(n.b, x, norm, *vectors)


def _batch_norm_training(n: OnnxNode) -> tuple[Any, Any, Any]:
    """Normalize by the batch; also return the running statistics. Ioffe and Szegedy, 2015."""
    b, rank, wide = n.b, n.type().rank, accumulator(n.type().dtype)
    axes = tuple(i for i in range(rank) if i != 1)
    x = b.convert(n.x(), wide)
    mean = b.reduce_mean(x, axes=axes)
    centered = b.sub(x, b.align(mean, 1, rank))
    variance = b.reduce_mean(b.mul(centered, centered), axes=axes)
    keep = n.attr("momentum", 0.9)
    running = []

    def moved(old: Any, new: Any) -> Any:
        return b.add(b.mul(old, b.scalar(keep, old)), b.mul(new, b.scalar(1 - keep, new)))

    for index, now in ((3, mean), (4, variance)):
        running.append(accumulated(b, n.x(index), moved, now))
    vectors = [b.convert(n.x(i), wide) for i in (1, 2)]
    out = b.batchnorm(x, *vectors, mean, variance, axis=1, epsilon=n.attr("epsilon", 1e-5))
    return b.convert(out, n.type().dtype), *running


def normalized(n: OnnxNode, x: Any, axes: Sequence[int], *, center: bool = True) -> tuple[Any, ...]:
    """(x - mean) / sqrt(var + epsilon) over `axes` in at least f32, with the mean and the inverse.

    Without `center` the mean is taken as 0 and not returned.
    """
    b, axes = n.b, tuple(axes)
    wide = _stash(n)
    value = b.cast(x, dtype=wide) if wide != b.type_of(x).dtype else x
    mean = b.reduce_mean(value, axes=axes, keepdims=True) if center else None
    centered = b.sub(value, mean) if center else value
    variance = b.reduce_mean(b.mul(centered, centered), axes=axes, keepdims=True)
    inverse = b.rsqrt(b.add(variance, b.scalar(n.attr("epsilon", 1e-5), value)))
    out = b.mul(centered, inverse)
    dtype = b.type_of(x).dtype
    return (out if wide == dtype else b.cast(out, dtype=dtype)), mean, inverse


def _stash(n: OnnxNode) -> Any:
    """Return the type that statistics are kept in (`stash_type`; f32 by default)."""
    dtype = n.type().dtype
    narrow = is_float(dtype) and dtype.itemsize < 4 and n.attr("stash_type", 1) == 1
    return DTYPES["f32"] if narrow else dtype


@node("LayerNormalization")
def layer_norm(n: OnnxNode) -> Any:
    """pyc.layernorm; as a composition where the statistics are wanted or parameters broadcast."""
    b, rank = n.b, n.type().rank
    axis = n.attr("axis", -1) % rank
    shape = n.type(0).shape[axis:]
    plain = not (n.wants(1) or n.wants(2)) and n.has(2)
    if plain and n.type(1).shape == shape and n.type(2).shape == shape:
        return b.layernorm(n.x(0), n.x(1), n.x(2), axis=axis, epsilon=n.attr("epsilon", 1e-5))
    out, mean, inverse = normalized(n, n.x(0), range(axis, rank))
    out = b.mul(out, n.x(1))
    return b.add(out, n.x(2)) if n.has(2) else out, mean, inverse


@node("RMSNormalization")
def rms_norm(n: OnnxNode) -> Any:
    """pyc.rmsnorm; as a composition where the scale broadcasts."""
    rank = n.type().rank
    axis = n.attr("axis", -1) % rank
    if n.type(1).shape == n.type(0).shape[axis:]:
        return n.b.rmsnorm(n.x(0), n.x(1), axis=axis, epsilon=n.attr("epsilon", 1e-5))
    out, _, _ = normalized(n, n.x(0), range(axis, rank), center=False)
    return n.b.mul(out, n.x(1))


@node("InstanceNormalization")
def instance_norm(n: OnnxNode) -> Any:
    """Normalize each channel of each sample by itself, then scale and bias by channel."""
    out, _, _ = normalized(n, n.x(), range(2, n.type().rank))
    return _by_channel(n, out)


@node("GroupNormalization")
def group_norm(n: OnnxNode) -> Any:
    """Normalize each group of channels of each sample by itself. Wu and He, 2018.

    Scale and bias have an entry for each channel (before opset 21 the op was deprecated).
    """
    b, groups = n.b, n.attr("num_groups")
    channels = n.type().shape[1]
    if channels is None or channels % groups:
        raise unsupported(f"{channels} channels in {groups} groups: expected a static multiple")
    grouped = split(b, n.x(), 1, (groups, channels // groups))
    out, _, _ = normalized(n, grouped, range(2, b.type_of(grouped).rank))
    return _by_channel(n, reshape_to(b, out, n.dims()))


def _by_channel(n: OnnxNode, x: Any) -> Any:
    """x * scale + bias, both varying along dimension 1."""
    rank = n.b.type_of(x).rank
    scale, bias = (n.b.align(n.x(i), 1, rank) for i in (1, 2))
    return n.b.add(n.b.mul(x, scale), bias)


@node("LpNormalization")
def lp_norm(n: OnnxNode) -> Any:
    """out = x / |x|_p along `axis`, p = 1 or 2; 0 where the norm is 0."""
    b, axes, p = n.b, (n.attr("axis", -1) % n.type().rank,), n.attr("p", 2)

    def formula(x: Any) -> Any:
        terms = b.abs(x) if p == 1 else b.mul(x, x)
        total = b.reduce_sum(terms, axes=axes, keepdims=True)
        norm = total if p == 1 else b.sqrt(total)
        empty = b.compare(norm, b.scalar(0, x), predicate="eq")
        return b.div(x, b.select(empty, b.scalar(1, x), norm))

    return accumulated(b, n.x(), formula)


@node("LRN")
def local_response_norm(n: OnnxNode) -> Any:
    """out = x / (bias + alpha/size * sum of x^2 over `size` neighbouring channels)^beta."""
    b, size, rank = n.b, n.attr("size"), n.type().rank
    channels = n.type().shape[1]
    if channels is None:
        raise unsupported("a dynamic number of channels: expected a static one")
    if not 0 < size <= _MAX_NEIGHBOURS:
        raise unsupported(f"size {size}: expected 1 to {_MAX_NEIGHBOURS}")
    low, high = (size - 1) // 2, size - 1 - (size - 1) // 2
    alpha, beta, bias = (n.attr(k, v) for k, v in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)))

    def around(amount: int) -> tuple[int, ...]:
        return tuple(amount if i == 1 else 0 for i in range(rank))

    def formula(x: Any) -> Any:
        padded = b.pad(b.mul(x, x), low=around(low), high=around(high))
        total = take(b, padded, 1, 0, channels)
        for offset in range(1, size):
            total = b.add(total, take(b, padded, 1, offset, offset + channels))
        base = b.add(b.mul(total, b.scalar(alpha / size, x)), b.scalar(bias, x))
        return b.mul(x, b.pow(base, b.scalar(-beta, x)))

    return accumulated(b, n.x(), formula)
