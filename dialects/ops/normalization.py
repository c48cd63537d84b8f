"""Softmax and the normalizations of inference. All are composite."""

from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OpDef, Trait
from pyc_mlir.dialects.ops.elementwise import FLOAT, TRANSCENDENTAL_FLOPS, require_dtype
from pyc_mlir.dialects.ops.shapes import agree, normalize_axis, require, same_dtype, show
from pyc_mlir.dialects.types import TensorType, accumulator


def _f64(*arrays: np.ndarray) -> list[np.ndarray]:
    return [a.astype(np.float64) for a in arrays]


class RowWise(OpDef, traits=Trait.OVERWRITES | Trait.WIDE):
    """Base of ops that compute each row, along the last dimensions or `axis`, by itself."""

    anchor = "row"
    cost_family = "rows"


class Softmax(RowWise, name="softmax", operands="x", traits=Trait.ALIGNED | Trait.ANY_ORDER):
    """out = exp(x - max(x)) / sum(exp(x - max(x))) along `axis`."""

    flops_per_element = TRANSCENDENTAL_FLOPS + 4
    axis: int = -1

    @staticmethod
    def infer(x: TensorType, *, axis: int) -> TensorType:
        """Return the type of x."""
        require_dtype(x, FLOAT, "operand 0")
        normalize_axis(axis, x.rank)
        return x

    @staticmethod
    def reference(x: np.ndarray, *, axis: int) -> np.ndarray:
        """Compute in f64, shifted by the maximum."""
        (x,) = _f64(x)
        e = np.exp(x - np.max(x, axis=axis, keepdims=True, initial=-np.inf))
        return e / np.sum(e, axis=axis, keepdims=True)

    @staticmethod
    def decompose(b: Any, x: Any, *, axis: int) -> Any:
        """Keep the dimension of reductions; in f32 for 16-bit floats, whose sums may overflow."""
        wide = b.convert(x, accumulator(b.type_of(x).dtype))
        e = b.exp(b.sub(wide, b.reduce_max(wide, axes=(axis,), keepdims=True)))
        out = b.div(e, b.reduce_sum(e, axes=(axis,), keepdims=True))
        return b.convert(out, b.type_of(x).dtype)


class LogSoftmax(RowWise, name="log_softmax", operands="x", traits=Trait.ALIGNED | Trait.ANY_ORDER):
    """out = x - max(x) - log(sum(exp(x - max(x)))) along `axis`."""

    axis: int = -1
    infer = Softmax.infer
    flops_per_element = Softmax.flops_per_element

    @staticmethod
    def reference(x: np.ndarray, *, axis: int) -> np.ndarray:
        """Compute in f64, shifted by the maximum."""
        (x,) = _f64(x)
        shifted = x - np.max(x, axis=axis, keepdims=True, initial=-np.inf)
        return shifted - np.log(np.sum(np.exp(shifted), axis=axis, keepdims=True))

    @staticmethod
    def decompose(b: Any, x: Any, *, axis: int) -> Any:
        """Return the equation in primitive ops; in f32 for 16-bit floats, as softmax."""
        wide = b.convert(x, accumulator(b.type_of(x).dtype))
        shifted = b.sub(wide, b.reduce_max(wide, axes=(axis,), keepdims=True))
        total = b.reduce_sum(b.exp(shifted), axes=(axis,), keepdims=True)
        return b.convert(b.sub(shifted, b.log(total)), b.type_of(x).dtype)


def _check_trailing(x: TensorType, axis: int, **vectors: TensorType) -> int:
    """Check that parameters have the shape of x from `axis` on; return the axis from 0."""
    require_dtype(x, FLOAT, "operand 0")
    axis = normalize_axis(axis, x.rank)
    same_dtype(x, *vectors.values())
    for name, type_ in vectors.items():
        fits = type_.rank == x.rank - axis
        fits = fits and all(agree(a, c) for a, c in zip(type_.shape, x.shape[axis:], strict=True))
        require(fits, f"`{name}`: expected shape {show(x.shape[axis:])}, got {show(type_.shape)}")
    return axis


class Layernorm(RowWise, name="layernorm", operands="x scale bias", traits=Trait.ALIGNED):
    """out = (x - mean(x)) / sqrt(var(x) + epsilon) * scale + bias over the dimensions from `axis`.

    Ba, Kiros and Hinton, 2016. `scale` and `bias` have the shape ``x.shape[axis:]``.
    """

    flops_per_element = 8
    axis: int = -1
    epsilon: float = 1e-5

    @staticmethod
    def infer(
        x: TensorType, scale: TensorType, bias: TensorType, *, axis: int, epsilon: float
    ) -> TensorType:
        """Return the type of x."""
        _check_trailing(x, axis, scale=scale, bias=bias)
        return x

    @staticmethod
    def reference(
        x: np.ndarray, scale: np.ndarray, bias: np.ndarray, *, axis: int, epsilon: float
    ) -> np.ndarray:
        """Compute in f64, two passes."""
        x, scale, bias = _f64(x, scale, bias)
        axes = tuple(range(axis % x.ndim, x.ndim))
        centered = x - np.mean(x, axis=axes, keepdims=True)
        variance = np.mean(centered**2, axis=axes, keepdims=True)
        return centered / np.sqrt(variance + epsilon) * scale + bias

    @staticmethod
    def decompose(b: Any, x: Any, scale: Any, bias: Any, *, axis: int, epsilon: float) -> Any:
        """Compute in two passes: the variance of the centered values; in f32 for 16-bit floats."""
        rank, dtype = b.type_of(x).rank, b.type_of(x).dtype
        x, scale, bias = (b.convert(v, accumulator(dtype)) for v in (x, scale, bias))
        axes = tuple(range(axis % rank, rank))
        centered = b.sub(x, b.reduce_mean(x, axes=axes, keepdims=True))
        variance = b.reduce_mean(b.mul(centered, centered), axes=axes, keepdims=True)
        inverse = b.rsqrt(b.add(variance, b.scalar(epsilon, x)))
        return b.convert(b.add(b.mul(b.mul(centered, inverse), scale), bias), dtype)


class Rmsnorm(RowWise, name="rmsnorm", operands="x scale", traits=Trait.ALIGNED):
    """out = x / sqrt(mean(x^2) + epsilon) * scale over the dimensions from `axis`.

    Zhang and Sennrich, 2019. `scale` has the shape ``x.shape[axis:]``.
    """

    flops_per_element = 4
    axis: int = -1
    epsilon: float = 1e-5

    @staticmethod
    def infer(x: TensorType, scale: TensorType, *, axis: int, epsilon: float) -> TensorType:
        """Return the type of x."""
        _check_trailing(x, axis, scale=scale)
        return x

    @staticmethod
    def reference(x: np.ndarray, scale: np.ndarray, *, axis: int, epsilon: float) -> np.ndarray:
        """Compute in f64."""
        x, scale = _f64(x, scale)
        axes = tuple(range(axis % x.ndim, x.ndim))
        return x / np.sqrt(np.mean(x**2, axis=axes, keepdims=True) + epsilon) * scale

    @staticmethod
    def decompose(b: Any, x: Any, scale: Any, *, axis: int, epsilon: float) -> Any:
        """Return the equation in primitive ops; in f32 for 16-bit floats: squares may overflow."""
        rank, dtype = b.type_of(x).rank, b.type_of(x).dtype
        x, scale = (b.convert(v, accumulator(dtype)) for v in (x, scale))
        axes = tuple(range(axis % rank, rank))
        mean = b.reduce_mean(b.mul(x, x), axes=axes, keepdims=True)
        out = b.mul(b.mul(x, b.rsqrt(b.add(mean, b.scalar(epsilon, x)))), scale)
        return b.convert(out, dtype)


class Batchnorm(
    OpDef,
    name="batchnorm",
    operands="x scale bias mean variance",
    traits=Trait.OVERWRITES | Trait.ANY_ORDER | Trait.FINITE_OPERANDS | Trait.WIDE,
):
    """out = (x - mean) / sqrt(variance + epsilon) * scale + bias, each parameter indexed by `axis`.

    Ioffe and Szegedy, 2015, in its inference form: the statistics are inputs. Compiled, it is
    x * factor + offset, which is NaN where an infinite scale makes both infinite.
    """

    flops_per_element = 2
    axis: int = 1
    epsilon: float = 1e-5
    anchor = "elementwise"

    @staticmethod
    def infer(
        x: TensorType,
        scale: TensorType,
        bias: TensorType,
        mean: TensorType,
        variance: TensorType,
        *,
        axis: int,
        epsilon: float,
    ) -> TensorType:
        """Return the type of x; parameters are vectors of the length of `axis`."""
        require_dtype(x, FLOAT, "operand 0")
        axis = normalize_axis(axis, x.rank)
        vectors = {"scale": scale, "bias": bias, "mean": mean, "variance": variance}
        same_dtype(x, *vectors.values())
        for name, type_ in vectors.items():
            fits = type_.rank == 1 and agree(type_.shape[0], x.shape[axis])
            expected = show(x.shape[axis : axis + 1])
            require(fits, f"`{name}`: expected shape {expected}, got {show(type_.shape)}")
        return x

    @staticmethod
    def reference(x: np.ndarray, *parameters: np.ndarray, axis: int, epsilon: float) -> np.ndarray:
        """Compute in f64."""
        shape = [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]
        scale, bias, mean, variance = (p.reshape(shape) for p in _f64(*parameters))
        return (x.astype(np.float64) - mean) / np.sqrt(variance + epsilon) * scale + bias

    @staticmethod
    def decompose(b: Any, x: Any, *parameters: Any, axis: int, epsilon: float) -> Any:
        """Return one multiply and one add an element, in f32 for 16-bit floats, by two vectors."""
        rank, dtype = b.type_of(x).rank, b.type_of(x).dtype
        values = (b.convert(v, accumulator(dtype)) for v in (x, *parameters))
        x, scale, bias, mean, variance = values
        factor = b.mul(scale, b.rsqrt(b.add(variance, b.scalar(epsilon, x))))
        offset = b.sub(bias, b.mul(mean, factor))
        factor, offset = (b.align(v, axis % rank, rank) for v in (factor, offset))
        return b.convert(b.add(b.mul(x, factor), offset), dtype)
