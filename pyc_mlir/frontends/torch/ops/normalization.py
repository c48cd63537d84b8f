"""Normalizations."""

from typing import Any

import numpy as np

from pyc_mlir.dialects.types import accumulator
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import product, reshape_to
from pyc_mlir.frontends.torch.shared.handler import AtenCall, aten


@aten("layer_norm.default", "native_layer_norm.default")
def layer_norm(n: AtenCall) -> Any:
    """pyc.layernorm; with the mean and 1/deviation in the native form."""
    b, x = n.b, n.x("input")
    shape = n.ints("normalized_shape")
    rank = n.rank("input")
    axis, epsilon = rank - len(shape), n.static("eps", 1e-5)
    scale = n.x("weight") if n.has("weight") else b.constant(np.ones(shape, b.type_of(x).dtype))
    bias = n.x("bias") if n.has("bias") else b.constant(np.zeros(shape, b.type_of(x).dtype))
    out = b.layernorm(x, scale, bias, axis=axis, epsilon=epsilon)
    if n.op == "layer_norm" or not n.wants(1, 2):
        return out
    _, mean, inverse = statistics(b, x, tuple(range(axis, rank)), epsilon)
    return out, mean, inverse


def statistics(b: Any, x: Any, axes: tuple[int, ...], epsilon: float) -> tuple[Any, Any, Any]:
    """x - mean, the mean, and 1 / sqrt(variance + epsilon), in the type that sums are kept in."""
    x = b.convert(x, accumulator(b.type_of(x).dtype))
    mean = b.reduce_mean(x, axes=axes, keepdims=True)
    centered = b.sub(x, mean)
    variance = b.reduce_mean(b.mul(centered, centered), axes=axes, keepdims=True)
    return centered, mean, b.rsqrt(b.add(variance, b.scalar(epsilon, x)))


@aten("rms_norm.default")
def rms_norm(n: AtenCall) -> Any:
    """pyc.rmsnorm; without `eps` that of the element type."""
    b, x = n.b, n.x("input")
    shape = n.ints("normalized_shape")
    dtype = b.type_of(x).dtype
    epsilon = n.static("eps")
    if epsilon is None:
        epsilon = float(np.finfo(accumulator(dtype)).eps)
    scale = n.x("weight") if n.has("weight") else b.constant(np.ones(shape, dtype))
    return b.rmsnorm(x, scale, axis=n.rank("input") - len(shape), epsilon=epsilon)


@aten("batch_norm.default", "_native_batch_norm_legit_no_training.default")
def batch_norm(n: AtenCall) -> Any:
    """pyc.batchnorm, by the running statistics. Ioffe and Szegedy, 2015."""
    b, x = n.b, n.x("input")
    if n.arg("training", False):
        raise unsupported(
            "batch norm in train mode: expected a model in eval mode; call `.eval()` before the "
            "export, or train by `torch.compile(model, backend='pyc')`"
        )
    dtype, channels = b.type_of(x).dtype, b.type_of(x).shape[1]
    if channels is None:
        raise unsupported("a dynamic number of channels: expected a static one")
    scale = n.x("weight", dtype) if n.has("weight") else b.constant(np.ones(channels, dtype))
    bias = n.x("bias", dtype) if n.has("bias") else b.constant(np.zeros(channels, dtype))
    mean, variance = n.x("running_mean", dtype), n.x("running_var", dtype)
    out = b.batchnorm(x, scale, bias, mean, variance, axis=1, epsilon=n.static("eps", 1e-5))
    return out if n.op == "batch_norm" else (out, None, None)


@aten("group_norm.default", "native_group_norm.default")
def group_norm(n: AtenCall) -> Any:
    """Normalize each group of channels of each sample by itself. Wu and He, 2018."""
    b, x = n.b, n.x("input")
    dims, dtype = b.dims(x), b.type_of(x).dtype
    groups = n.static("num_groups") if n.op == "group_norm" else n.static("group")
    channels = dims[1]
    if not isinstance(channels, int):
        raise unsupported("a dynamic number of channels: expected a static one")
    grouped = reshape_to(b, x, (dims[0], groups, product((channels // groups, *dims[2:]))))
    centered, mean, inverse = statistics(b, grouped, (2,), n.static("eps", 1e-5))
    wide = b.type_of(centered).dtype
    out = reshape_to(b, b.mul(centered, inverse), dims)
    if n.has("weight"):
        out = b.mul(out, b.align(n.x("weight", wide), 1, len(dims)))
    if n.has("bias"):
        out = b.add(out, b.align(n.x("bias", wide), 1, len(dims)))
    out = b.convert(out, dtype)
    if n.op == "group_norm":
        return out
    return out, *(reshape_to(b, v, (dims[0], groups)) for v in (mean, inverse))
