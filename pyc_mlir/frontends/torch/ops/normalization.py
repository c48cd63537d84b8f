"""Normalizations.

Parameters and statistics may be wider than x, as autocast makes them: nothing is rounded before the
result, which has the type of x.
"""

from typing import Any

import numpy as np

from pyc_mlir.dialects.types import accumulator
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import product, reshape_to
from pyc_mlir.frontends.torch.shared.dtypes import pyc_dtype
from pyc_mlir.frontends.torch.shared.handler import AtenCall, aten


def _computed(n: AtenCall, *names: str) -> np.dtype:
    """Return the type to compute in: of x, or of its sums where a parameter has another type."""
    own = n.type("input").dtype
    others = {n.type(name).dtype for name in names if n.has(name)} - {own}
    return accumulator(own) if others else own


def _parameter(n: AtenCall, name: str, fill: float, shape: Any, dtype: np.dtype) -> Any:
    """Return a parameter as `dtype`, or one number throughout where none is given."""
    return n.x(name, dtype) if n.has(name) else n.b.constant(np.full(shape, fill, dtype))


def _with_statistics(n: AtenCall, *results: Any) -> tuple[Any, ...]:
    """Return a native form's results in the types that torch gives them."""
    dtypes = [pyc_dtype(r.dtype) for r in n.results]
    return tuple(n.b.convert(r, d) for r, d in zip(results, dtypes, strict=True))


@aten("layer_norm.default", "native_layer_norm.default")
def layer_norm(n: AtenCall) -> Any:
    """pyc.layernorm; with the mean and 1/deviation in the native form."""
    b, x = n.b, n.x("input")
    shape = n.ints("normalized_shape")
    rank = n.rank("input")
    axis, epsilon = rank - len(shape), n.static("eps", 1e-5)
    dtype = _computed(n, "weight", "bias")
    vectors = (_parameter(n, v, fill, shape, dtype) for v, fill in (("weight", 1), ("bias", 0)))
    out = b.layernorm(b.convert(x, dtype), *vectors, axis=axis, epsilon=epsilon)
    out = b.convert(out, n.dtype)
    if n.op == "layer_norm" or not n.wants(1, 2):
        return out
    _, mean, inverse = statistics(b, x, tuple(range(axis, rank)), epsilon)
    return _with_statistics(n, out, mean, inverse)


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
    dtype = _computed(n, "weight")
    epsilon = n.static("eps")
    if epsilon is None:
        epsilon = float(np.finfo(accumulator(dtype)).eps)
    scale, axis = _parameter(n, "weight", 1, shape, dtype), n.rank("input") - len(shape)
    return b.convert(b.rmsnorm(b.convert(x, dtype), scale, axis=axis, epsilon=epsilon), n.dtype)


@aten("batch_norm.default", "_native_batch_norm_legit_no_training.default")
def batch_norm(n: AtenCall) -> Any:
    """pyc.batchnorm, by the running statistics. Ioffe and Szegedy, 2015."""
    b, x = n.b, n.x("input")
    if n.arg("training", False):
        raise unsupported(
            "batch norm in train mode: expected a model in eval mode; call `.eval()` before the "
            "export, or train by `torch.compile(model, backend='pyc')`"
        )
    dtype = _computed(n, "weight", "bias", "running_mean", "running_var")
    channels = b.type_of(x).shape[1]
    if channels is None:
        raise unsupported("a dynamic number of channels: expected a static one")
    fills = {"weight": 1, "bias": 0, "running_mean": 0, "running_var": 1}
    vectors = (_parameter(n, name, fill, channels, dtype) for name, fill in fills.items())
    out = b.batchnorm(b.convert(x, dtype), *vectors, axis=1, epsilon=n.static("eps", 1e-5))
    out = b.convert(out, n.dtype)
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
    return _with_statistics(n, out, *(reshape_to(b, v, (dims[0], groups)) for v in (mean, inverse)))
