"""Discrete Fourier transforms as products with constant matrices."""

from typing import Any

import numpy as np

from pyc_mlir.dialects.types import accumulator
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import reshape_to, take
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node

_MAX_LENGTH = 1 << 11


@node("DFT")
def dft(n: OnnxNode) -> Any:
    """out[k] = sum over j of x[j] * exp(-2 pi i j k / length) along an axis.

    x: [..., 1] real or [..., 2] complex; the result is complex, or real for an inverse onesided
    transform, which reads the first half of a conjugate symmetric x.
    """
    b, rank = n.b, n.type().rank
    # The attribute of opset 17 has the default 1, the input of opset 20 that of -2.
    axis = int(n.scalar(2, "axis")) if n.has(2) else n.attr("axis", -2)
    axis %= rank
    size, parts = n.type().shape[axis], n.type().shape[-1]
    inverse, half = bool(n.attr("inverse", 0)), bool(n.attr("onesided", 0))
    length = int(n.scalar(1, "dft_length")) if n.has(1) else size
    if size is None or length is None or not 0 < length <= _MAX_LENGTH or axis == rank - 1:
        raise unsupported(f"a length of {length}: expected 1 to {_MAX_LENGTH}, static")
    if inverse and half and not n.has(1):
        length = 2 * (size - 1)
    used = min(size, length // 2 + 1 if inverse and half else length)
    wide = accumulator(n.type().dtype)
    x = b.convert(take(b, n.x(), axis, 0, used), wide)
    order = (*(i for i in range(rank - 1) if i != axis), axis, rank - 1)
    x = b.transpose(x, permutation=order)
    rows = _rows(length, used, parts or 1, inverse, half)
    dims = b.dims(x)
    flat = reshape_to(b, x, (*dims[:-2], used * (parts or 1)))
    out = b.matmul(flat, b.constant(rows.reshape(used * (parts or 1), -1).astype(wide)))
    out = reshape_to(b, out, (*dims[:-2], *rows.shape[2:]))
    return b.convert(b.transpose(out, permutation=_inverse_of(order)), n.type().dtype)


@node("STFT")
def short_time_dft(n: OnnxNode) -> Any:
    """Build the DFT of each frame of `frame_length` samples, `frame_step` apart, under a window."""
    b = n.b
    step = int(n.scalar(1, "frame_step"))
    size, parts = n.type().shape[1], n.type().shape[2] or 1
    width = int(n.scalar(3, "frame_length")) if n.has(3) else n.type(2).shape[0]
    if size is None or width is None or not 0 < width <= min(size, _MAX_LENGTH) or step < 1:
        raise unsupported(f"frames of {width}: expected 1 to {_MAX_LENGTH}, static")
    starts = np.arange(0, size - width + 1, step)
    index = (starts[:, None] + np.arange(width)[None, :]).astype(np.int64)
    frames = b.gather(n.x(0), b.constant(index), axis=1)
    if n.has(2):
        frames = b.mul(frames, b.reshape(n.x(2), shape=(width, 1)))
    rows = _rows(width, width, parts, False, bool(n.attr("onesided", 1)))
    batch = b.dims(frames)[0]
    flat = reshape_to(b, frames, (batch, len(starts), width * parts))
    matrix = rows.reshape(width * parts, -1).astype(n.type().dtype)
    out = b.matmul(flat, b.constant(matrix))
    return reshape_to(b, out, (batch, len(starts), *rows.shape[2:]))


def _inverse_of(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(i) for i in range(len(order)))


def _rows(length: int, used: int, parts: int, inverse: bool, half: bool) -> np.ndarray:
    """Return the DFT's matrix: [used, parts of x, made, parts of the result].

    An entry is the weight of an element of x in an element of the result.
    """
    real = inverse and half
    made = length // 2 + 1 if half and not inverse else length
    angle = 2 * np.pi * (np.outer(np.arange(used), np.arange(made)) % length) / length
    sine = np.sin(angle) if inverse else -np.sin(angle)
    cosine = np.cos(angle)
    out = np.zeros((used, parts, made, 1 if real else 2))
    out[:, 0, :, 0] = cosine
    if not real:
        out[:, 0, :, 1] = sine
    if parts == 2:
        out[:, 1, :, 0] = -sine
        if not real:
            out[:, 1, :, 1] = cosine
    if real:
        # Elements that stand for their conjugates too.
        twice = [j for j in range(1, used) if 2 * j != length]
        out[twice] *= 2
    return out / length if inverse else out
