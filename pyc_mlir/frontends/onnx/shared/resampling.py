"""Resize as a product with a matrix of weights along each axis, for what pyc.resize lacks.

Cubic interpolation, antialiasing, and a region of interest: each axis of a static size is
multiplied by a constant matrix [size, result], whose columns hold the weights of ONNX's definition.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.ops.resize import COORDINATES, coordinates_of
from pyc_mlir.dialects.types import accumulator, is_float
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode

_MAX_ENTRIES = 1 << 22
_CROP = "tf_crop_and_resize"


@dataclass(frozen=True)
class ResampledAxis:
    """The target of a resized axis: its size (-1: a dynamic one times the scale), the scale."""

    size: int
    scale: float


def needs_matrices(n: OnnxNode, mode: str) -> bool:
    """Return whether pyc.resize lacks the form of a node."""
    how = n.attr("coordinate_transformation_mode", "half_pixel")
    return mode == "cubic" or bool(n.attr("antialias", 0)) or how == _CROP


def by_matrices(n: OnnxNode, mode: str, targets: Mapping[int, ResampledAxis]) -> Any:
    """x with each axis of `targets` multiplied by its matrix, in f32 at least."""
    b, dtype = n.b, n.type().dtype
    if not is_float(dtype) or mode == "nearest":
        raise unsupported(f"mode={mode} of {dtype} with this: expected floats, linear or cubic")
    how = n.attr("coordinate_transformation_mode", "half_pixel")
    if how not in (*COORDINATES, _CROP):
        raise unsupported(f"coordinates {how}: expected one of {', '.join(COORDINATES)}")
    wide = accumulator(dtype)
    x, rank = b.convert(n.x(), wide), n.type().rank
    outside = None
    targets = dict(targets)
    if how == _CROP:
        axes = [a % rank for a in n.attr("axes", range(rank))]
        for axis in axes:
            targets.setdefault(axis, ResampledAxis(n.type().shape[axis] or -1, 1.0))
    for axis, target in sorted(targets.items()):
        size = n.type().shape[axis]
        if size is None or not 0 < size * target.size <= _MAX_ENTRIES:
            raise unsupported("a dynamic, empty or too large axis: expected static sizes")
        u = _places(n, how, axis, size, target)
        matrix = _matrix(n, mode, u, size, target.scale)
        if how == _CROP:
            beyond = (u < 0) | (u > size - 1)
            shape = [-1 if i == axis else 1 for i in range(rank)]
            column = beyond.reshape(shape)
            outside = column if outside is None else outside | column
        x = _multiplied(b, x, axis, matrix.astype(wide))
    if outside is not None:
        value = b.scalar(n.attr("extrapolation_value", 0.0), x)
        x = b.select(b.constant(np.ascontiguousarray(outside)), value, x)
    return b.convert(x, dtype)


def _places(n: OnnxNode, how: str, axis: int, size: int, target: ResampledAxis) -> np.ndarray:
    """Return the coordinate of each element of the result."""
    index = np.arange(target.size, dtype=np.float64)
    if how != _CROP:
        return coordinates_of(index, size, target.size, target.scale, how)
    rank = n.type().rank
    axes = [a % rank for a in n.attr("axes", range(rank))]
    region = n.known(1, "roi").reshape(-1).astype(np.float64)
    start, end = region[axes.index(axis)], region[len(axes) + axes.index(axis)]
    if target.size == 1:
        return np.full(1, 0.5 * (start + end) * (size - 1))
    return start * (size - 1) + index * (end - start) * (size - 1) / (target.size - 1)


def _matrix(n: OnnxNode, mode: str, u: np.ndarray, size: int, scale: float) -> np.ndarray:
    """[size, result]: weights of neighbours at distances from u, spread where it shrinks."""
    stretch = min(scale, 1.0) if n.attr("antialias", 0) else 1.0
    reach = 1 if mode == "linear" else 2
    below = np.floor(u).astype(np.int64)
    width = math.ceil(reach / stretch)
    steps = np.arange(1 - width, width + 1)
    places = below[None, :] + steps[:, None]
    distance = np.abs(places - u[None, :]) * stretch
    weights = _linear(distance) if mode == "linear" else _cubic(distance, n)
    if n.attr("exclude_outside", 0):
        weights = np.where((places >= 0) & (places < size), weights, 0)
    if n.attr("exclude_outside", 0) or stretch < 1:
        weights = weights / weights.sum(0)
    matrix = np.zeros((size, len(u)))
    columns = np.broadcast_to(np.arange(len(u)), places.shape)
    np.add.at(matrix, (np.clip(places, 0, size - 1), columns), weights)
    return matrix


def _linear(distance: np.ndarray) -> np.ndarray:
    return np.maximum(1 - distance, 0)


def _cubic(distance: np.ndarray, n: OnnxNode) -> np.ndarray:
    """Weigh by cubic convolution. Keys, 1981."""
    a, d = n.attr("cubic_coeff_a", -0.75), distance
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _multiplied(b: Any, x: Any, axis: int, matrix: np.ndarray) -> Any:
    rank = b.type_of(x).rank
    order = (*(i for i in range(rank) if i != axis), axis)
    out = b.matmul(b.transpose(x, permutation=order), b.constant(matrix))
    return b.transpose(out, permutation=tuple(order.index(i) for i in range(rank)))
