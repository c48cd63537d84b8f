"""Products and convolutions of 8-bit integers: exact sums in i32. Products with packed weights.

What follows the sums (a bias, scales, the requantization) is written in elementwise ops.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OpDef
from pyc_mlir.dialects.ops.contraction import Matmul
from pyc_mlir.dialects.ops.convolution import Conv2d
from pyc_mlir.dialects.ops.shapes import require, show
from pyc_mlir.dialects.types import DTYPES, TensorType, dtype_name

_F32, _I32 = DTYPES["f32"], DTYPES["i32"]
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


ACCURACIES = ("f32", "int8")


class BlockMatmul(OpDef, name="block_matmul", operands="x weight scale point"):
    """out[..., n] = sum_k x[..., k] * ((q[n, k] - point[n, b]) * scale[n, b]) with b = k / block.

    weight[n, blocks, bytes] holds the q of `bits` bits (4 or 8), the lowest bits first; a block has
    8 bytes / bits of them, the last one may have more than x. Each weight is rounded once to f32.
    Under the accuracy ``int8`` x may be rounded, block by block, to multiples of its greatest size
    over 127.
    """

    bits: int = 4
    accuracy: str = "f32"
    anchor = "contraction"

    @staticmethod
    def infer(
        x: TensorType,
        weight: TensorType,
        scale: TensorType,
        point: TensorType,
        *,
        bits: int,
        accuracy: str,
    ) -> TensorType:
        """Return the type of x with n in the place of its last dimension."""
        require(bits in (4, 8), f"bits: expected 4 or 8, got {bits}")
        require(accuracy in ACCURACIES, f"accuracy: expected one of {ACCURACIES}, got {accuracy!r}")
        require(x.rank > 0 and x.dtype == _F32, f"x: expected f32 of rank 1 or more, got {x}")
        require(scale.dtype == _F32, f"scale: expected f32, got {dtype_name(scale.dtype)}")
        names = dtype_name(weight.dtype), dtype_name(point.dtype)
        require(set(names) == {"ui8"}, f"weight, point: expected ui8, got {' and '.join(names)}")
        require(weight.rank == 3 and weight.is_static, f"weight: got {show(weight.shape)}")
        rows, blocks, held = (d or 0 for d in weight.shape)
        shapes = scale.shape, point.shape
        expected = f"expected {show((rows, blocks))}, got {show(shapes[0])} and {show(shapes[1])}"
        require(set(shapes) == {(rows, blocks)}, f"scale, point: {expected}")
        block, depth = 8 * held // bits, x.shape[-1]
        fits = depth is not None and (blocks - 1) * block < depth <= blocks * block
        require(fits, f"x: expected {blocks} blocks of {block}, got {show(x.shape)}")
        return TensorType((*x.shape[:-1], rows), _F32)

    @staticmethod
    def reference(
        x: np.ndarray,
        weight: np.ndarray,
        scale: np.ndarray,
        point: np.ndarray,
        *,
        bits: int,
        accuracy: str,
    ) -> np.ndarray:
        """Return the product with the weights, sums in f64; x is not rounded."""
        matrix = block_weights(weight, scale, point, bits)[:, : x.shape[-1]]
        return Matmul.reference(x, matrix.T)

    @staticmethod
    def decompose(
        b: Any, x: Any, weight: Any, scale: Any, point: Any, *, bits: int, accuracy: str
    ) -> Any:
        """Unpack the weights, and multiply; x is not rounded."""
        rows, blocks, held = b.type_of(weight).shape
        block, depth = 8 * held // bits, b.type_of(x).shape[-1]
        if bits == 4:
            low = b.and_(weight, b.constant(np.array(15, np.uint8)))
            high = b.shift_right(weight, b.constant(np.array(4, np.uint8)))
            parts = [b.reshape(part, shape=(rows, blocks, held, 1)) for part in (low, high)]
            weight = b.reshape(b.concat(*parts, axis=3), shape=(rows, blocks, block))
        shifts, scales = (b.reshape(v, shape=(rows, blocks, 1)) for v in (point, scale))
        whole = b.sub(b.cast(weight, dtype=_F32), b.cast(shifts, dtype=_F32))
        matrix = b.reshape(b.mul(whole, scales), shape=(rows, blocks * block))
        if blocks * block > depth:
            matrix = b.slice(matrix, starts=(0, 0), stops=(rows, depth), steps=(1, 1))
        return b.matmul(x, b.transpose(matrix, permutation=(1, 0)))

    @classmethod
    def flops(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """2 m n k."""
        return 2 * out.elements * (inputs[0].shape[-1] or 1)


def block_weights(
    weight: np.ndarray, scale: np.ndarray, point: np.ndarray, bits: int
) -> np.ndarray:
    """Return the numbers [n, k] that packed weights stand for, in f32."""
    if bits == 4:
        weight = np.stack([weight & 15, weight >> 4], -1).reshape(*weight.shape[:2], -1)
    whole = weight.astype(np.float32) - point[..., None].astype(np.float32)
    return (whole * scale[..., None]).reshape(weight.shape[0], -1)
