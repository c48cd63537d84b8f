"""Reductions over listed axes, argmax, and cumulative sums.

Empty reductions give the identity of the operation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OpDef, Trait
from pyc_mlir.dialects.ops.elementwise import FLOAT, NUMBER, require_dtype
from pyc_mlir.dialects.ops.shapes import normalize_axes, normalize_axis, require
from pyc_mlir.dialects.types import I64, Shape, TensorType, accumulator, is_float


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """The shape after reducing `axes` (counted from 0)."""
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def reduced_axes(params: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the axes that an op with the trait REDUCES reduces: `axes`, or the one `axis`."""
    return params["axes"] if "axes" in params else (params["axis"],)


def lowest(dtype: np.dtype) -> Any:
    """The identity of max: -inf, or the smallest integer."""
    return -np.inf if is_float(dtype) else np.iinfo(dtype).min


def highest(dtype: np.dtype) -> Any:
    """The identity of min: +inf, or the greatest integer."""
    return np.inf if is_float(dtype) else np.iinfo(dtype).max


CUMULATIVE: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
}


class Reduction(OpDef, traits=Trait.REDUCES):
    """Base of reductions: `axes` are listed one by one; keepdims leaves dimensions of size 1."""

    allowed = NUMBER

    @classmethod
    def infer(cls, x: TensorType, *, axes: tuple[int, ...], keepdims: bool) -> TensorType:
        """The shape without the reduced axes."""
        require_dtype(x, cls.allowed, "operand 0")
        axes = normalize_axes(axes, x.rank)
        return x.with_shape(reduced_shape(x.shape, axes, keepdims))

    @classmethod
    def flops(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """One operation for each element read."""
        return inputs[0].elements


def _reduction(name: str, equation: str, function: Callable[..., np.ndarray]) -> type[Reduction]:
    def reference(x: np.ndarray, *, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
        data = x.astype(np.float64) if is_float(x.dtype) else x
        return function(data, axis=axes, keepdims=keepdims)

    body = {
        "__doc__": equation,
        "__module__": __name__,
        "__annotations__": {"axes": tuple[int, ...], "keepdims": bool},
        "keepdims": False,
        "reference": staticmethod(reference),
    }
    return type(name.title(), (Reduction,), body, name=name, operands="x")  # type: ignore[call-overload]


def _sum(x: np.ndarray, **kw: Any) -> np.ndarray:
    return np.sum(x, dtype=x.dtype, **kw)


def _prod(x: np.ndarray, **kw: Any) -> np.ndarray:
    return np.prod(x, dtype=x.dtype, **kw)


def _max(x: np.ndarray, **kw: Any) -> np.ndarray:
    return np.max(x, initial=lowest(x.dtype), **kw)


def _min(x: np.ndarray, **kw: Any) -> np.ndarray:
    return np.min(x, initial=highest(x.dtype), **kw)


ReduceSum = _reduction("reduce_sum", "out = the sum over `axes`; integers wrap.", _sum)
ReduceProd = _reduction("reduce_prod", "out = the product over `axes`; integers wrap.", _prod)
ReduceMax = _reduction("reduce_max", "out = the maximum over `axes`; NaN if any is.", _max)
ReduceMin = _reduction("reduce_min", "out = the minimum over `axes`; NaN if any is.", _min)


class ReduceMean(Reduction, name="reduce_mean", operands="x", traits=Trait.WIDE):
    """out = the sum over `axes` divided by the number of elements summed."""

    allowed = FLOAT
    axes: tuple[int, ...]
    keepdims: bool = False

    @staticmethod
    def reference(x: np.ndarray, *, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
        """The mean in f64."""
        total = np.sum(x.astype(np.float64), axis=axes, keepdims=keepdims)
        return total / math.prod(x.shape[a] for a in axes)

    @staticmethod
    def decompose(b: Any, x: Any, *, axes: tuple[int, ...], keepdims: bool) -> Any:
        """div(reduce_sum(x), count); in f32 for the 16-bit floats, whose sums may overflow."""
        dtype = b.type_of(x).dtype
        x = b.convert(x, accumulator(dtype))
        total = b.reduce_sum(x, axes=axes, keepdims=keepdims)
        return b.convert(b.div(total, b.count(x, axes)), dtype)


class Cumulative(OpDef, name="cumulative", operands="x"):
    """out[i] = x[0] o x[1] o ... o x[i] along `axis`, o being add, mul, min or max.

    Integers wrap; a NaN stays in all that follow it.
    """

    axis: int
    reduction: str = "add"

    @staticmethod
    def infer(x: TensorType, *, axis: int, reduction: str) -> TensorType:
        """The type of x."""
        require_dtype(x, NUMBER, "operand 0")
        normalize_axis(axis, x.rank)
        known = tuple(CUMULATIVE)
        require(reduction in known, f"`reduction`: expected one of {known}, got {reduction!r}")
        return x

    @staticmethod
    def reference(x: np.ndarray, *, axis: int, reduction: str) -> np.ndarray:
        """numpy's accumulate; floats in f64."""
        data = x.astype(np.float64) if is_float(x.dtype) else x
        return CUMULATIVE[reduction].accumulate(data, axis=axis, dtype=data.dtype)

    @classmethod
    def flops(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """One operation for each element."""
        return out.elements


class Argmax(OpDef, name="argmax", operands="x", traits=Trait.REDUCES):
    """out = the index of the first maximum along `axis`, as i64; a NaN counts as the maximum."""

    axis: int
    keepdims: bool = False

    @staticmethod
    def infer(x: TensorType, *, axis: int, keepdims: bool) -> TensorType:
        """i64 of the shape without `axis`."""
        require_dtype(x, NUMBER, "operand 0")
        axis = normalize_axis(axis, x.rank)
        require(x.shape[axis] != 0, f"`axis`: {axis} has no elements")
        return TensorType(reduced_shape(x.shape, (axis,), keepdims), I64)

    @staticmethod
    def reference(x: np.ndarray, *, axis: int, keepdims: bool) -> np.ndarray:
        """numpy's argmax."""
        return np.argmax(x, axis=axis, keepdims=keepdims)

    @classmethod
    def flops(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """One comparison for each element read."""
        return inputs[0].elements
