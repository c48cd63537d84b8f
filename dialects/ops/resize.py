"""Resizing images by interpolation along height and width.

Along an axis, position i of the result lies at the coordinate ``u(i)`` of x, which has a size of
`size` and becomes `out`, with the scale s (ONNX's Resize, opset 19):

| `coordinates` | u(i) |
|---|---|
| half_pixel | (i + 1/2) / s - 1/2 |
| pytorch_half_pixel | the same; 0 if out is 1 |
| half_pixel_symmetric | the same, plus size / 2 * (1 - out / (s * size)) |
| align_corners | i * (size - 1) / (out - 1); 0 if out is 1 |
| asymmetric | i / s |

s * size need not be whole; where only the length of the result counts, it is `out`, as in
onnxruntime and torch. (onnx's reference evaluator takes s * size.)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.opdef import OpDef
from pyc_mlir.dialects.ops.convolution import LAYOUTS, spatial
from pyc_mlir.dialects.ops.elementwise import FLOAT, NUMBER, require_dtype
from pyc_mlir.dialects.ops.shapes import require, show
from pyc_mlir.dialects.types import TensorType, is_float

COORDINATES = (
    "half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric"
)  # fmt: skip
ROUNDINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round_prefer_floor": lambda u: np.ceil(u - 0.5),
    "round_prefer_ceil": lambda u: np.floor(u + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@dataclass(frozen=True, eq=False)
class Taps:
    """The reads of an axis of the result: out[i] = sum over k of weights[k, i] * x[indices[k, i]].

    Indices outside x mean its border. `weights` are None for one tap of weight 1.
    """

    indices: np.ndarray
    weights: np.ndarray | None


def coordinates_of(
    places: np.ndarray, size: int, out: int, scale: float, coordinates: str
) -> np.ndarray:
    """u(i) of the table above for positions i of the result, in f64."""
    if coordinates in ("align_corners", "pytorch_half_pixel") and out == 1:
        return np.zeros(places.shape)
    if coordinates == "align_corners":
        return places * (size - 1) / (out - 1)
    if coordinates == "asymmetric":
        return places / scale
    shift = size / 2 * (1 - out / (scale * size)) if coordinates == "half_pixel_symmetric" else 0.0
    return shift + (places + 0.5) / scale - 0.5


def taps_at(u: np.ndarray, mode: str, rounding: str) -> Taps:
    """Return the nearest element, or the two neighbours with weights that fall off linearly."""
    below = np.floor(u)
    part = u - below
    if mode == "linear" and part.any():
        return Taps(np.stack([below, below + 1]).astype(np.int64), np.stack([1 - part, part]))
    nearest = below if mode == "linear" else ROUNDINGS[rounding](u)
    return Taps(nearest.astype(np.int64)[None], None)


def axis_taps(
    size: int, out: int, scale: float | None, mode: str, coordinates: str, rounding: str
) -> Taps:
    """Return the taps of an axis of `size` that becomes `out`; indices lie inside it.

    Without a scale it is out / size.
    """
    scale = out / max(size, 1) if scale is None else scale
    u = coordinates_of(np.arange(out, dtype=np.float64), size, out, scale, coordinates)
    taps = taps_at(u, mode, rounding)
    return Taps(np.clip(taps.indices, 0, max(size - 1, 0)), taps.weights)


def phase_taps(factor: int, mode: str, coordinates: str, rounding: str) -> Taps:
    """Return the taps of positions 0 ... factor - 1 of an axis of any size and an integer scale.

    Position ``factor * t + p`` reads what position p does, t elements further.
    """
    u = coordinates_of(np.arange(factor, dtype=np.float64), 2, 2 * factor, factor, coordinates)
    return taps_at(u, mode, rounding)


class Resize(OpDef, name="resize", operands="x"):
    """out[n, c, i, j] = x[n, c] interpolated at row u(i) and column u(j), borders repeated.

    `sizes` are the result's rows and columns; -1 is floor(scale * size of x). `scales` (default:
    result / x) are s in the table of coordinates above. `nearest` rounds u by `rounding`, and takes
    integers too; `linear` is bilinear, with the 16-bit floats computed in f32 and rounded once; an
    infinite element makes NaN where its weight is 0. A dynamic size takes -1 and an integer scale,
    with any coordinates but align_corners.
    """

    sizes: tuple[int, ...]
    scales: tuple[float, ...] = ()
    mode: str = "nearest"
    coordinates: str = "half_pixel"
    rounding: str = "round_prefer_floor"
    layout: str = "NCHW"

    @staticmethod
    def infer(
        x: TensorType,
        *,
        sizes: tuple[int, ...],
        scales: tuple[float, ...],
        mode: str,
        coordinates: str,
        rounding: str,
        layout: str,
    ) -> TensorType:
        """Return x with the two sizes replaced."""
        require(x.rank == 4, f"expected an operand of rank 4, got {show(x.shape)}")
        for name, value, known in (
            ("layout", layout, LAYOUTS),
            ("mode", mode, ("nearest", "linear")),
            ("coordinates", coordinates, COORDINATES),
            ("rounding", rounding, tuple(ROUNDINGS)),
        ):
            require(value in known, f"`{name}`: expected one of {known}, got {value!r}")
        require_dtype(x, FLOAT if mode == "linear" else NUMBER, "operand 0")
        require(len(sizes) == 2 and min(sizes) >= -1, "`sizes`: expected two sizes or -1")
        legal = len(scales) in (0, 2) and all(0 < s < np.inf for s in scales)
        require(legal, f"`scales`: expected two numbers > 0 or none, got {scales}")
        require(bool(scales) or min(sizes) >= 0, "`sizes`: -1 takes `scales`, got none")
        shape = list(x.shape)
        for i, axis in enumerate(spatial(layout)):
            shape[axis] = resized(shape[axis], sizes[i], scales[i] if scales else None)
            dynamic = shape[axis] is None and coordinates == "align_corners"
            require(not dynamic, "align_corners: expected static sizes")
        return x.with_shape(tuple(shape))

    @staticmethod
    def reference(
        x: np.ndarray, *, sizes: tuple[int, ...], scales: tuple[float, ...], layout: str, **how: Any
    ) -> np.ndarray:
        """Return weighted sums of rows, then of columns; floats in f64."""
        out = x.astype(np.float64 if is_float(x.dtype) else x.dtype)
        for i, axis in enumerate(spatial(layout)):
            size, scale = x.shape[axis], scales[i] if scales else None
            wanted = resized(size, sizes[i], scale)
            assert wanted is not None
            out = _weighted(out, axis_taps(size, wanted, scale, **how), axis)
        return out

    @classmethod
    def flops(cls, inputs: Sequence[TensorType], out: TensorType, **params: Any) -> int:
        """Count three for each interpolation: the columns of all rows of x, then the rows."""
        if params["mode"] == "nearest":
            return 0
        rows, _ = spatial(params["layout"])
        height = out.shape[rows] or 0
        between = out.elements // max(height, 1) * (inputs[0].shape[rows] or 0)
        return 3 * (between + out.elements)


def resized(size: int | None, entry: int, scale: float | None) -> int | None:
    """Return a size of the result. Raises VerificationError."""
    if size is None:
        exact = scale is not None and scale >= 1 and scale == int(scale)
        require(
            entry == -1 and exact, "a dynamic size: expected -1 in `sizes` and an integer scale"
        )
        return None
    assert entry >= 0 or scale is not None
    if entry >= 0:
        out = entry
    else:
        assert scale is not None
        out = size * int(scale) if scale == int(scale) else int(np.floor(size * scale))
    require(size > 0 or out == 0, f"expected rows and columns to make {out} of, got none")
    return out


def _weighted(x: np.ndarray, taps: Taps, axis: int) -> np.ndarray:
    """Return the sum over k of weights[k] * x taken at indices[k] along `axis`."""
    if taps.weights is None:
        return np.take(x, taps.indices[0], axis=axis)
    along = [-1 if i == axis else 1 for i in range(x.ndim)]
    (low, high), (near, far) = taps.indices, (w.reshape(along) for w in taps.weights)
    return np.take(x, low, axis=axis) * near + np.take(x, high, axis=axis) * far
