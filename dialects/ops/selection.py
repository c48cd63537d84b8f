"""Operations that select by values: how many elements they select is known when a program runs."""

import numpy as np

from pyc_mlir.dialects.opdef import OpDef, Trait
from pyc_mlir.dialects.ops.shapes import require
from pyc_mlir.dialects.types import BOOL, DTYPES, I64, TensorType


class Range(OpDef, name="range", operands="n", traits=Trait.INDEXED):
    """out[i] = i for i < n: a vector of a length that is computed; empty for n <= 0."""

    @staticmethod
    def infer(n: TensorType) -> TensorType:
        """Return a vector of unknown length."""
        require(n == TensorType((), I64), f"`n`: expected a rank-0 i64, got {n}")
        return TensorType((None,), I64)

    @staticmethod
    def reference(n: np.ndarray) -> np.ndarray:
        """Return numpy's arange."""
        return np.arange(int(n), dtype=I64)


class NonZero(OpDef, name="nonzero", operands="x"):
    """out = the places of the true elements of a vector, in order, as i64."""

    flops_per_input = 1

    @staticmethod
    def infer(x: TensorType) -> TensorType:
        """Return a vector of unknown length."""
        require(x.dtype == BOOL and x.rank == 1, f"expected a vector of i1, got {x}")
        return TensorType((None,), I64)

    @staticmethod
    def reference(x: np.ndarray) -> np.ndarray:
        """Return numpy's flatnonzero."""
        return np.flatnonzero(x).astype(I64)


class Suppress(OpDef, name="suppress", operands="boxes groups"):
    """out[i] = whether box i stays: no earlier box of its group that stays overlaps it too much.

    boxes: f32 [n, 4], lower row, upper row, lower column, upper column, the preferred ones first.
    groups: i64 [n], equal for boxes that may suppress each other. Two boxes overlap too much where
    both have an area and the ratio of intersection to union is above `overlap`.
    """

    element_work = 64
    overlap: float

    @staticmethod
    def infer(boxes: TensorType, groups: TensorType, *, overlap: float) -> TensorType:
        """Return an i1 for each box."""
        plain = boxes.dtype == DTYPES["f32"] and boxes.rank == 2 and boxes.shape[1] in (4, None)
        require(plain, f"`boxes`: expected f32 [n, 4], got {boxes}")
        wanted = groups.dtype == I64 and groups.rank == 1
        require(wanted, f"`groups`: expected a vector of i64, got {groups}")
        sizes = {s for s in (boxes.shape[0], groups.shape[0]) if s is not None}
        require(len(sizes) <= 1, f"`groups`: expected as many as boxes, got {groups}")
        return TensorType((boxes.shape[0],), BOOL)

    @staticmethod
    def reference(boxes: np.ndarray, groups: np.ndarray, *, overlap: float) -> np.ndarray:
        """Go through the boxes; each that stays suppresses later ones."""
        stays = np.ones(len(boxes), bool)
        low_y, high_y, low_x, high_x = boxes.T
        area = (high_y - low_y) * (high_x - low_x)
        for i in range(len(boxes)):
            if not stays[i]:
                continue
            height = np.minimum(high_y, high_y[i]) - np.maximum(low_y, low_y[i])
            width = np.minimum(high_x, high_x[i]) - np.maximum(low_x, low_x[i])
            shared = np.maximum(height, 0) * np.maximum(width, 0)
            union = area + area[i] - shared
            with np.errstate(divide="ignore", invalid="ignore"):
                near = shared / union > np.float32(overlap)
            solid = (area > 0) & (area[i] > 0)
            stays[i + 1 :] &= ~(near & solid & (groups == groups[i]))[i + 1 :]
        return stays
