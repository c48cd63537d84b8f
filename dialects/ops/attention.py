"""Scaled dot-product attention (Vaswani et al., 2017)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OpDef
from pyc_mlir.dialects.ops.contraction import product
from pyc_mlir.dialects.ops.elementwise import FLOAT, TRANSCENDENTAL_FLOPS, require_dtype
from pyc_mlir.dialects.ops.normalization import Softmax
from pyc_mlir.dialects.ops.shapes import agree, broadcast_shapes, require, same_dtype, show
from pyc_mlir.dialects.types import BOOL, TensorType


class Attention(OpDef, name="attention", operands="query key value", optional="mask"):
    """out = softmax(query @ key^T * scale + mask) @ value.

    query [..., s, d], key [..., t, d], value [..., t, e] -> [..., s, e]; the leading dimensions
    (batch and heads) broadcast. `mask` broadcasts to [..., s, t]: floats are added, i1 keeps
    where true. `is_causal` lets position i see j <= i + t - s. A row that sees nothing is NaN.
    """

    scale: float
    is_causal: bool = False
    anchor = "attention"

    @staticmethod
    def infer(
        query: TensorType,
        key: TensorType,
        value: TensorType,
        *mask: TensorType,
        scale: float,
        is_causal: bool,
    ) -> TensorType:
        """[..., s, e] of the query's element type."""
        require_dtype(query, FLOAT, "query")
        same_dtype(query, key, value)
        require(min(t.rank for t in (query, key, value)) >= 2, "expected operands of rank >= 2")
        shapes = f"query {show(query.shape)}, key {show(key.shape)}, value {show(value.shape)}"
        require(agree(query.shape[-1], key.shape[-1]), f"depths of query and key differ: {shapes}")
        require(agree(key.shape[-2], value.shape[-2]), f"lengths of key and value differ: {shapes}")
        scores = broadcast_shapes(query.shape[:-2], key.shape[:-2])
        if mask:
            require(mask[0].dtype in (BOOL, query.dtype), "`mask`: expected i1 or the query's type")
            full = (*scores, query.shape[-2], key.shape[-2])
            require(
                len(broadcast_shapes(full, mask[0].shape)) == len(full),
                f"`mask`: expected a shape that broadcasts to {show(full)}",
            )
            scores = broadcast_shapes(full, mask[0].shape)[:-2]
        batch = broadcast_shapes(scores, value.shape[:-2])
        return query.with_shape((*batch, query.shape[-2], value.shape[-1]))

    @staticmethod
    def reference(
        query: np.ndarray,
        key: np.ndarray,
        value: np.ndarray,
        *mask: np.ndarray,
        scale: float,
        is_causal: bool,
    ) -> np.ndarray:
        """Compute in f64."""
        q, k, v = (a.astype(np.float64) for a in (query, key, value))
        scores = product(q, np.swapaxes(k, -1, -2)) * scale
        if mask and mask[0].dtype == BOOL:
            scores = np.where(mask[0], scores, -np.inf)
        elif mask:
            scores = scores + mask[0].astype(np.float64)
        if is_causal:
            s, t = scores.shape[-2:]
            visible = np.arange(t) <= np.arange(s)[:, None] + (t - s)
            scores = np.where(visible, scores, -np.inf)
        return product(Softmax.reference(scores, axis=-1), v)

    @staticmethod
    def decompose(
        b: Any, query: Any, key: Any, value: Any, *mask: Any, scale: float, is_causal: bool
    ) -> Any:
        """matmul, mask, softmax, matmul.

        The scale belongs to the scores, as an epilogue of their product; with 16-bit floats, whose
        range the unscaled scores may leave, to the query.
        """
        rank = b.type_of(key).rank
        order = (*range(rank - 2), rank - 1, rank - 2)
        keys = b.transpose(key, permutation=order)
        if b.type_of(query).dtype.itemsize < 4:
            scores = b.matmul(b.mul(query, b.scalar(scale, query)), keys)
        else:
            scores = b.mul(b.matmul(query, keys), b.scalar(scale, query))
        nothing = b.scalar(-np.inf, query)
        if mask and b.type_of(mask[0]).dtype == BOOL:
            scores = b.select(mask[0], scores, nothing)
        elif mask:
            scores = b.add(scores, mask[0])
        if is_causal:
            scores = b.select(_causal(b, scores), scores, nothing)
        return b.matmul(b.softmax(scores, axis=-1), value)

    @classmethod
    def flops(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """Return two products and a softmax over the scores."""
        depth, length, width = inputs[0].shape[-1], inputs[1].shape[-2], out.shape[-1]
        assert depth is not None and length is not None and width is not None
        scores = out.with_shape(out.shape[:-1]).elements * length
        return scores * (2 * depth + 2 * width + TRANSCENDENTAL_FLOPS + 4)


def _causal(b: Any, scores: Any) -> Any:
    """Return i1 [..., s, t]: j + s <= i + t, with sizes taken from the scores."""
    rank = b.type_of(scores).rank
    ramp = b.iota_like(scores, rank - 2), b.iota_like(scores, rank - 1)
    s, t = b.size(scores, rank - 2), b.size(scores, rank - 1)
    return b.compare(b.add(ramp[1], s), b.add(ramp[0], t), predicate="le")
