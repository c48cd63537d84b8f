"""Products and convolutions of 8-bit integers: exact sums in i32.

What follows (a bias, scales, the requantization) is written in elementwise ops.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OpDef
from pyc_mlir.dialects.ops.contraction import Matmul
from pyc_mlir.dialects.ops.convolution import Conv2d
from pyc_mlir.dialects.ops.shapes import require, show
from pyc_mlir.dialects.types import DTYPES, TensorType, dtype_name

_I32 = DTYPES["i32"]
BYTES = frozenset({DTYPES["i8"], DTYPES["ui8"]})


def widens_weights(name: str, x: TensorType) -> bool:
    """Return whether an op converts bytes that may be quantized weights: none folds it early.

    Zero points, which vary along one dimension at most, are none.
    """
    return name == "cast" and x.dtype in BYTES and sum(d != 1 for d in x.shape) > 1


def _wide(x: TensorType, weight: TensorType, zero: TensorType) -> tuple[TensorType, TensorType]:
    """Return both operands as i32. Raises VerificationError for other types than the op has."""
    names = dtype_name(x.dtype), dtype_name(weight.dtype), dtype_name(zero.dtype)
    require(x.dtype in BYTES, f"x: expected i8 or ui8, got {names[0]}")
    require(weight.dtype == DTYPES["i8"], f"weight: expected i8, got {names[1]}")
    require(zero.dtype == _I32, f"zero: expected i32, got {names[2]}")
    require(zero.rank == 0, f"zero: expected one number, got {show(zero.shape)}")
    return x.with_dtype(_I32), weight.with_dtype(_I32)


class IntegerMatmul(OpDef, name="integer_matmul", operands="x weight zero"):
    """out[..., m, n] = sum_k (x[..., m, k] - zero) * weight[k, n], in i32."""

    anchor = "contraction"

    @staticmethod
    def infer(x: TensorType, weight: TensorType, zero: TensorType) -> TensorType:
        """Return the type of `matmul`; weights are a matrix."""
        require(weight.rank == 2, f"weight: expected a matrix, got {show(weight.shape)}")
        require(x.rank >= 2, f"x: expected rank 2 or more, got {show(x.shape)}")
        return Matmul.infer(*_wide(x, weight, zero))

    @staticmethod
    def reference(x: np.ndarray, weight: np.ndarray, zero: np.ndarray) -> np.ndarray:
        """numpy's matmul of integers."""
        return Matmul.reference(x.astype(_I32) - zero, weight.astype(_I32))

    @staticmethod
    def decompose(b: Any, x: Any, weight: Any, zero: Any) -> Any:
        """Build the product in i32."""
        return b.matmul(b.sub(b.cast(x, dtype=_I32), zero), b.cast(weight, dtype=_I32))

    @classmethod
    def flops(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """2 m n k."""
        return Matmul.flops(inputs, out)


class IntegerConv2d(OpDef, name="integer_conv2d", operands="x weight zero"):
    """out = conv2d(x - zero, weight), in i32; what the window reads beyond the image adds 0."""

    strides: tuple[int, ...] = (1, 1)
    pads: tuple[int, ...] = (0, 0, 0, 0)
    dilations: tuple[int, ...] = (1, 1)
    groups: int = 1
    layout: str = "NCHW"
    anchor = "contraction"

    @staticmethod
    def infer(x: TensorType, weight: TensorType, zero: TensorType, **window: Any) -> TensorType:
        """Return the type of `conv2d`."""
        return Conv2d.infer(*_wide(x, weight, zero), **window)

    @staticmethod
    def reference(x: np.ndarray, weight: np.ndarray, zero: np.ndarray, **window: Any) -> np.ndarray:
        """Compute the convolution of integers."""
        return Conv2d.reference(x.astype(_I32) - zero, weight.astype(_I32), **window)

    @staticmethod
    def decompose(b: Any, x: Any, weight: Any, zero: Any, **window: Any) -> Any:
        """Build the convolution in i32."""
        shifted = b.sub(b.cast(x, dtype=_I32), zero)
        return b.conv2d(shifted, b.cast(weight, dtype=_I32), **window)

    @classmethod
    def flops(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """Count as `conv2d`."""
        return Conv2d.flops(inputs[:2], out, **params)

    @classmethod
    def evaluation_work(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """Count as `conv2d`."""
        return Conv2d.evaluation_work(inputs[:2], out, **params)
