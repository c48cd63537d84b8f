"""What pyc.resize means, position by position."""

import math

import numpy as np


def _coordinate(i: int, size: int, out: int, scale: float, how: str) -> float:
    """ONNX's coordinate of position i of the result."""
    if how == "align_corners":
        return 0.0 if out == 1 else i * (size - 1) / (out - 1)
    if how == "asymmetric":
        return i / scale
    if how == "pytorch_half_pixel" and out == 1:
        return 0.0
    shift = size / 2 * (1 - out / (scale * size)) if how == "half_pixel_symmetric" else 0.0
    return shift + (i + 0.5) / scale - 0.5


def _parts_at(u: float, mode: str, rounding: str) -> list[tuple[int, float]]:
    """The elements that a coordinate reads, with their weights."""
    below = math.floor(u)
    if mode == "linear":
        return [(below, 1 - (u - below)), (below + 1, u - below)]
    up = {
        "floor": False, "ceil": u > below, "round_prefer_floor": u - below > 0.5,
        "round_prefer_ceil": u - below >= 0.5,
    }[rounding]  # fmt: skip
    return [(below + up, 1.0)]


def resized(
    x: np.ndarray, sizes, scales=(), mode="nearest", coordinates="half_pixel",
    rounding="round_prefer_floor", layout="NCHW",
) -> np.ndarray:  # fmt: skip
    out = x.astype(np.float64)
    for place, axis in enumerate((2, 3) if layout == "NCHW" else (1, 2)):
        size, wanted = x.shape[axis], sizes[place]
        wanted = math.floor(size * scales[place]) if wanted < 0 else wanted
        scale = scales[place] if scales else wanted / size
        rows, made = np.moveaxis(out, axis, 0), []
        places = [_coordinate(i, size, wanted, scale, coordinates) for i in range(wanted)]
        plain = all(u == math.floor(u) for u in places)
        for u in places:
            parts = _parts_at(u, mode, rounding)[: 1 if plain else 2]
            made.append(sum(w * rows[min(max(p, 0), size - 1)] for p, w in parts))
        out = np.moveaxis(np.array(made).reshape(wanted, *rows.shape[1:]), 0, axis)
    return out
