"""The rows of op_cases for `resize`: layouts, coordinates, roundings, sizes and scales."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from pyc_mlir.dialects.ops.convolution import LAYOUTS

MODES = ("nearest", "linear")
# Images [n, c, h, w] and parameters.
STATIC: tuple[tuple[tuple[int, int, int, int], dict[str, Any]], ...] = (
    ((2, 3, 4, 5), {"sizes": (8, 15)}),
    ((1, 2, 6, 7), {"sizes": (4, 9), "rounding": "floor", "coordinates": "asymmetric"}),
    ((1, 2, 5, 5), {"sizes": (-1, -1), "scales": (1.5, 0.6), "rounding": "ceil"}),
    ((1, 3, 4, 6), {"sizes": (1, 6), "coordinates": "pytorch_half_pixel"}),
    ((1, 2, 5, 4), {"sizes": (7, 9), "coordinates": "align_corners"}),
    ((1, 2, 5, 3), {"sizes": (-1, 3), "scales": (1.3, 1.0), "coordinates": "half_pixel_symmetric"}),
    ((1, 2, 1, 3), {"sizes": (0, 3), "rounding": "round_prefer_ceil"}),
)
# Integer scales, which dynamic sizes take too.
GROWING: tuple[dict[str, Any], ...] = (
    {"scales": (2.0, 3.0)},
    {"scales": (1.0, 4.0), "rounding": "ceil", "coordinates": "asymmetric"},
    {"scales": (3.0, 2.0), "rounding": "floor", "coordinates": "half_pixel_symmetric"},
)
Row = tuple[str, tuple[int, ...], str, bool, dict[str, Any]]


def resizes(floats: Sequence[str], integers: Sequence[str]) -> Iterator[Row]:
    """Element type, shape, kind of values, whether sizes may be dynamic, parameters."""
    for (shape, params), mode, layout in product(STATIC, MODES, LAYOUTS):
        n, c, h, w = shape
        image = shape if layout == "NCHW" else (n, h, w, c)
        yield "f32", image, "plain", False, {"mode": mode, "layout": layout, **params}
    for params, mode, layout in product(GROWING, MODES, LAYOUTS):
        given = {"sizes": (-1, -1), "mode": mode, "layout": layout, **params}
        yield "f32", (2, 3, 4, 5), "plain", True, given
    for dtype in (*floats[1:], *integers):
        for mode in MODES if dtype in floats else MODES[:1]:
            shape, params = STATIC[1]
            yield dtype, shape, "plain", False, {"mode": mode, **params}
    for mode in MODES:
        given = {"sizes": (-1, -1), "scales": (2.0, 2.0), "mode": mode}
        yield "f32", (1, 2, 6, 7), "special", True, given
