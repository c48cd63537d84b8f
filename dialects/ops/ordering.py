"""Sorting: the places of elements in order."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OpDef
from pyc_mlir.dialects.ops.elementwise import NUMBER, require_dtype, wide
from pyc_mlir.dialects.ops.shapes import normalize_axis, require
from pyc_mlir.dialects.types import BOOL, I64, TensorType


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
