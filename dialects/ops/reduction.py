"""Reductions over listed axes, argmax, cumulative sums, and the order of elements.

Empty reductions give the identity of the operation.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OpDef, Trait
from pyc_mlir.dialects.ops.elementwise import FLOAT, NUMBER, require_dtype, wide
from pyc_mlir.dialects.ops.shapes import normalize_axes, normalize_axis, require
from pyc_mlir.dialects.types import (
    BOOL,
    I64,
    Shape,
    TensorType,
    accumulator,
    highest,
    is_float,
    lowest,
)


def reduced_shape(shape: Shape, axes: Sequence[int], keepdims: bool) -> Shape:
    """Return the shape after reducing `axes` (counted from 0)."""
    if keepdims:
        return tuple(1 if i in axes else d for i, d in enumerate(shape))
    return tuple(d for i, d in enumerate(shape) if i not in axes)


def reduced_axes(params: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the axes that an op with the trait REDUCES reduces: `axes`, or the one `axis`."""
    return params["axes"] if "axes" in params else (params["axis"],)


@dataclass(frozen=True)
class Combination:
    """An associative operation on two elements: numpy's function, the op of it, its identity."""

    ufunc: np.ufunc
    op: str
    identity: Callable[[np.dtype], Any]


COMBINATIONS: dict[str, Combination] = {
    "add": Combination(np.add, "add", lambda dtype: 0),
    "mul": Combination(np.multiply, "mul", lambda dtype: 1),
    "min": Combination(np.minimum, "minimum", highest),
    "max": Combination(np.maximum, "maximum", lowest),
}


class Reduction(OpDef, traits=Trait.REDUCES):
    """Base of reductions: `axes` are listed one by one; keepdims leaves dimensions of size 1."""

    flops_per_input = 1
    allowed = NUMBER
    # The key of `COMBINATIONS`; empty for a reduction that decomposes.
    combination = ""

    @classmethod
    def infer(cls, x: TensorType, *, axes: tuple[int, ...], keepdims: bool) -> TensorType:
        """Return the shape without the reduced axes."""
        require_dtype(x, cls.allowed, "operand 0")
        axes = normalize_axes(axes, x.rank)
        return x.with_shape(reduced_shape(x.shape, axes, keepdims))


def _reduction(name: str, combination: str, equation: str) -> None:
    made = COMBINATIONS[combination]

    def reference(x: np.ndarray, *, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
        data = x.astype(np.float64) if is_float(x.dtype) else x
        start = {} if made.ufunc.identity is not None else {"initial": made.identity(data.dtype)}
        return made.ufunc.reduce(data, axis=axes, dtype=data.dtype, keepdims=keepdims, **start)

    body = {
        "__doc__": equation,
        "__module__": __name__,
        "__annotations__": {"axes": tuple[int, ...], "keepdims": bool},
        "keepdims": False,
        "combination": combination,
        "reference": staticmethod(reference),
    }
    type(name.title(), (Reduction,), body, name=name, operands="x")  # type: ignore[call-overload]


_reduction("reduce_sum", "add", "out = the sum over `axes`; integers wrap.")
_reduction("reduce_prod", "mul", "out = the product over `axes`; integers wrap.")
_reduction("reduce_max", "max", "out = the maximum over `axes`; NaN if any is.")
_reduction("reduce_min", "min", "out = the minimum over `axes`; NaN if any is.")


class ReduceMean(Reduction, name="reduce_mean", operands="x", traits=Trait.WIDE):
    """out = the sum over `axes` divided by the number of elements summed."""

    allowed = FLOAT
    axes: tuple[int, ...]
    keepdims: bool = False

    @staticmethod
    def reference(x: np.ndarray, *, axes: tuple[int, ...], keepdims: bool) -> np.ndarray:
        """Compute the mean in f64."""
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

    flops_per_element = 1
    axis: int
    reduction: str = "add"

    @staticmethod
    def infer(x: TensorType, *, axis: int, reduction: str) -> TensorType:
        """Return the type of x."""
        require_dtype(x, NUMBER, "operand 0")
        normalize_axis(axis, x.rank)
        known = tuple(COMBINATIONS)
        require(reduction in known, f"`reduction`: expected one of {known}, got {reduction!r}")
        return x

    @staticmethod
    def reference(x: np.ndarray, *, axis: int, reduction: str) -> np.ndarray:
        """Return numpy's accumulate; floats in f64."""
        data = x.astype(np.float64) if is_float(x.dtype) else x
        return COMBINATIONS[reduction].ufunc.accumulate(data, axis=axis, dtype=data.dtype)


class Argmax(OpDef, name="argmax", operands="x", traits=Trait.REDUCES):
    """out = the index of the first maximum along `axis`, as i64; a NaN counts as the maximum."""

    flops_per_input = 1
    axis: int
    keepdims: bool = False

    @staticmethod
    def infer(x: TensorType, *, axis: int, keepdims: bool) -> TensorType:
        """Return i64 of the shape without `axis`."""
        require_dtype(x, NUMBER, "operand 0")
        axis = normalize_axis(axis, x.rank)
        require(x.shape[axis] != 0, f"`axis`: {axis} has no elements")
        return TensorType(reduced_shape(x.shape, (axis,), keepdims), I64)

    @staticmethod
    def reference(x: np.ndarray, *, axis: int, keepdims: bool) -> np.ndarray:
        """Return numpy's argmax."""
        return np.argmax(x, axis=axis, keepdims=keepdims)


class Argsort(OpDef, name="argsort", operands="x"):
    """out = the indices that sort x along `axis`, as i64; the first `count` of them (-1: all).

    The order is stable: of equal elements the earlier comes first, with `descending` too. A NaN
    counts as greater than all numbers.
    """

    axis: int = -1
    descending: bool = False
    count: int = -1

    @staticmethod
    def infer(x: TensorType, *, axis: int, descending: bool, count: int) -> TensorType:
        """Return i64 of the shape of x, with `count` elements along `axis`."""
        require_dtype(x, NUMBER | {BOOL}, "operand 0")
        axis = normalize_axis(axis, x.rank)
        size = x.shape[axis]
        fits = count >= -1 and (size is None or count <= size)
        require(fits, f"`count`: expected -1 or at most {size} elements, got {count}")
        shape = list(x.shape)
        shape[axis] = size if count == -1 else count
        return TensorType(tuple(shape), I64)

    @staticmethod
    def reference(x: np.ndarray, *, axis: int, descending: bool, count: int) -> np.ndarray:
        """Return numpy's stable argsort; for a descending order of the reversed array."""
        x = wide(np.moveaxis(x, axis, -1))
        size = x.shape[-1]
        if descending:
            order = size - 1 - np.argsort(x[..., ::-1], axis=-1, kind="stable")[..., ::-1]
        else:
            order = np.argsort(x, axis=-1, kind="stable")
        return np.moveaxis(order[..., : size if count == -1 else count], -1, axis)

    @classmethod
    def flops(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """Count as many comparisons of each element as its axis has bits."""
        size = inputs[0].shape[params["axis"]] or 0
        return inputs[0].elements * max(1, math.ceil(math.log2(max(size, 1))))
