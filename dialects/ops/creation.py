"""Operations that make tensors from nothing: constants and index ramps."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OpDef, Trait
from pyc_mlir.dialects.ops.shapes import normalize_axes, normalize_axis, require
from pyc_mlir.dialects.types import DTYPES, I64, TensorType, is_float, is_integer


class Constant(OpDef, name="constant", traits=Trait.CREATES):
    """out = value."""

    value: np.ndarray

    @staticmethod
    def infer(*, value: np.ndarray) -> TensorType:
        """Return the shape and element type of the value."""
        return TensorType(value.shape, value.dtype)

    @staticmethod
    def reference(*, value: np.ndarray) -> np.ndarray:
        """Return the value itself."""
        return value


class Iota(
    OpDef,
    name="iota",
    optional="like",
    traits=Trait.CREATES | Trait.INDEXED | Trait.ANY_ORDER,
):
    """out[..., i, ...] = i, counted along `axis`; -1 in `shape` is that dimension of `like`."""

    shape: tuple[int, ...]
    axis: int = 0
    dtype: np.dtype = DTYPES["i64"]

    @staticmethod
    def infer(*like: TensorType, shape: tuple[int, ...], axis: int, dtype: np.dtype) -> TensorType:
        """Return `shape` with the dimensions that `like` provides."""
        normalize_axis(axis, len(shape))
        require(is_float(dtype) or is_integer(dtype), "`dtype`: expected a number type, got i1")
        if like:
            require(like[0].rank == len(shape), "`like`: expected the rank of `shape`")
        require(bool(like) or -1 not in shape, "`shape`: -1 needs the operand `like`")
        dims = [like[0].shape[i] if d == -1 else d for i, d in enumerate(shape)]
        require(all(d is None or d >= 0 for d in dims), "`shape`: expected sizes >= 0 or -1")
        return TensorType(tuple(dims), dtype)

    @staticmethod
    def reference(
        *like: np.ndarray, shape: tuple[int, ...], axis: int, dtype: np.dtype
    ) -> np.ndarray:
        """Return numpy's arange, broadcast to the shape."""
        dims = [like[0].shape[i] if d == -1 else d for i, d in enumerate(shape)]
        axis = axis % len(shape)
        ramp = np.arange(dims[axis]).astype(dtype)
        column = ramp.reshape([-1 if i == axis else 1 for i in range(len(dims))])
        return np.broadcast_to(column, dims)


class Size(OpDef, name="size", operands="x", traits=Trait.CREATES):
    """out = the product of the sizes of `axes` of x, as a rank-0 i64; the elements are not read."""

    axes: tuple[int, ...]

    @staticmethod
    def infer(x: TensorType, *, axes: tuple[int, ...]) -> TensorType:
        """Return a rank-0 i64."""
        normalize_axes(axes, x.rank)
        return TensorType((), I64)

    @staticmethod
    def reference(x: np.ndarray, *, axes: tuple[int, ...]) -> np.ndarray:
        """Compute the size from the array's shape."""
        return np.array(math.prod(x.shape[a] for a in axes), np.int64)

    @classmethod
    def traffic(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """Count the result alone."""
        return out.nbytes
