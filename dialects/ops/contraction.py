"""Matrix products."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OpDef
from pyc_mlir.dialects.ops.elementwise import NUMBER, require_dtype
from pyc_mlir.dialects.ops.shapes import agree, broadcast_shapes, require, same_dtype, show
from pyc_mlir.dialects.types import TensorType, is_float

_any_order: ContextVar[bool] = ContextVar("any_order", default=False)


@contextmanager
def any_order() -> Iterator[None]:
    """Let references add products in any order, for results that are compared and not kept.

    BLAS, which numpy's matmul calls, adds in an order that depends on its threads and on the CPU.
    It takes a tenth of the time or less.
    """
    token = _any_order.set(True)
    try:
        yield
    finally:
        _any_order.reset(token)


def product(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
    """``lhs @ rhs``; its bits follow from the operands alone, except of floats under `any_order`.

    Sums of integers wrap around, so they are the same in any order.
    """
    if _any_order.get() and is_float(lhs.dtype):
        return np.matmul(lhs, rhs)
    left = "...ik" if lhs.ndim > 1 else "k"
    right = "...kj" if rhs.ndim > 1 else "k"
    out = f"...{'i' * (lhs.ndim > 1)}{'j' * (rhs.ndim > 1)}"
    return np.einsum(f"{left},{right}->{out}", lhs, rhs)


class Matmul(OpDef, name="matmul", operands="lhs rhs"):
    """out[..., m, n] = sum_k lhs[..., m, k] * rhs[..., k, n]; numpy's rules for rank 1 and batches.

    The 16-bit floats are accumulated in f32 and rounded once.
    """

    anchor = "contraction"
    cost_family = "gemm"

    @staticmethod
    def infer(lhs: TensorType, rhs: TensorType) -> TensorType:
        """Broadcast the leading dimensions, contract the inner ones."""
        require_dtype(lhs, NUMBER, "operand 0")
        same_dtype(lhs, rhs)
        require(lhs.rank > 0 and rhs.rank > 0, "expected operands of rank 1 or more")
        left = lhs.shape if lhs.rank > 1 else (1, *lhs.shape)
        right = rhs.shape if rhs.rank > 1 else (*rhs.shape, 1)
        require(
            agree(left[-1], right[-2]),
            f"inner dimensions differ: {show(lhs.shape)} @ {show(rhs.shape)}",
        )
        rows = left[-2:-1] if lhs.rank > 1 else ()
        columns = right[-1:] if rhs.rank > 1 else ()
        batch = broadcast_shapes(left[:-2], right[:-2])
        return TensorType((*batch, *rows, *columns), lhs.dtype)

    @staticmethod
    def reference(lhs: np.ndarray, rhs: np.ndarray) -> np.ndarray:
        """Return numpy's matmul; floats are accumulated in f64, in a fixed order."""
        wide = np.float64 if is_float(lhs.dtype) else lhs.dtype
        return product(lhs.astype(wide, copy=False), rhs.astype(wide, copy=False))

    @staticmethod
    def decompose(b: Any, lhs: Any, rhs: Any) -> Any:
        """Rank 1 becomes rank 2; other forms are primitive (None)."""
        left, right = b.type_of(lhs), b.type_of(rhs)
        if left.rank > 1 and right.rank > 1:
            return None
        if left.rank == 1:
            lhs = b.expand_dims(lhs, 0)
        if right.rank == 1:
            rhs = b.expand_dims(rhs, 1)
        out = b.matmul(lhs, rhs)
        rank = b.type_of(out).rank
        if left.rank == 1:
            out = b.squeeze(out, rank - 2)
        return b.squeeze(out, b.type_of(out).rank - 1) if right.rank == 1 else out

    @classmethod
    def flops(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """2 m n k for each batch entry."""
        depth = inputs[0].shape[-1]
        assert depth is not None
        return 2 * math.prod(d for d in out.shape if d is not None) * depth
