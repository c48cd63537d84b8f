"""Ops of detectors: NonMaxSuppression of boxes that the model computes, and RoiAlign."""

from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import I64
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.indexing import extent_value
from pyc_mlir.frontends.importing.shaping import product, reshape_to, take
from pyc_mlir.frontends.importing.suppression import suppressed
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node

_MAX_SAMPLES = 16


def boxes_left(n: OnnxNode) -> tuple[Any, Any]:
    """i64 rows (image, class, box) of a buffer of fixed size, and how many of them count.

    boxes: [images, boxes, 4], scores: [images, classes, boxes].
    """
    b, boxes, scores = n.b, n.x(0), n.x(1)
    keep = min(int(n.scalar(2, "max_output_boxes_per_class")) if n.has(2) else 0, 2**31)
    overlap = float(n.scalar(3, "iou_threshold")) if n.has(3) else 0.0
    least = b.reshape(n.x(4), shape=()) if n.has(4) else None
    size, centered = n.type(0).shape[1], bool(n.attr("center_point_box", 0))
    keep = keep if size is None else min(keep, size)
    if keep <= 0:
        return b.constant(np.zeros((0, 3), np.int64)), b.constant(np.array(0, np.int64))
    corners = [
        reshape_to(b, take(b, boxes, 2, i, i + 1), (n.dims(0)[0], 1, n.dims(0)[1]))
        for i in range(4)
    ]
    if centered:
        x, y, width, height = corners
        half = b.scalar(0.5, x)
        edges = tuple(
            step(at, b.mul(side, half))
            for at, side in ((y, height), (x, width))
            for step in (b.sub, b.add)
        )
    else:
        edges = tuple(
            pick(corners[i], corners[i + 2]) for i in (0, 1) for pick in (b.minimum, b.maximum)
        )
    return suppressed(b, (edges[0], edges[1], edges[2], edges[3]), scores, keep, overlap, least)


@node("RoiAlign")
def roi_align(n: OnnxNode) -> Any:
    """Build the mean, or the maximum, of bilinear samples in each bin of each region.

    x: [n, c, h, w], rois: [regions, 4] of x1, y1, x2, y2; out: [regions, c, rows, columns]. He et
    al., 2017.
    """
    b = n.b
    rows, columns = n.attr("output_height", 1), n.attr("output_width", 1)
    samples, mode = n.attr("sampling_ratio", 0), n.attr("mode", "avg")
    if min(rows, columns) < 1 or mode not in ("avg", "max"):
        raise PycError(ReasonCode.BAD_MODEL, "expected one row and column or more, avg or max")
    if not 0 < samples <= _MAX_SAMPLES or max(rows, columns) > 1 << 10:
        raise unsupported(
            f"sampling_ratio={samples}, which depends on each region's size, or bins of "
            f"{rows} x {columns}: expected 1 to {_MAX_SAMPLES}, and 1024 at most"
        )
    half = n.attr("coordinate_transformation_mode", "half_pixel") == "half_pixel"
    edges = [b.reshape(take(b, n.x(1), 1, i, i + 1), shape=(-1, 1)) for i in range(4)]
    scale, shift = n.number(n.attr("spatial_scale", 1.0), 1), n.number(0.5 if half else 0, 1)
    x1, y1, x2, y2 = (b.sub(b.mul(e, scale), shift) for e in edges)
    dims = n.dims(0)
    ys = _samples(n, y1, y2, rows, samples, half)
    xs = _samples(n, x1, x2, columns, samples, half)
    image = b.transpose(n.x(0), permutation=(0, 2, 3, 1))
    image = reshape_to(b, image, (product((dims[0], dims[2], dims[3])), dims[1]))
    batch = b.reshape(b.convert(n.x(2), I64), shape=(-1, 1, 1))
    out = _read(n, image, batch, ys, xs, mode)
    regions = b.dims(out)[0]
    out = reshape_to(b, out, (regions, rows, samples, columns, samples, dims[1]))
    reduce = b.reduce_mean if mode == "avg" else b.reduce_max
    return b.transpose(reduce(out, axes=(2, 4), keepdims=False), permutation=(0, 3, 1, 2))


def _samples(n: OnnxNode, low: Any, high: Any, count: int, samples: int, half: bool) -> Any:
    """[regions, count * samples]: where each bin is sampled along one axis."""
    b = n.b
    size = b.sub(high, low)
    if not half:
        size = b.maximum(size, b.scalar(1, size))
    places = (np.arange(count * samples) + 0.5) / samples
    step = b.div(size, b.scalar(count, size))
    steps = b.constant(places.astype(b.type_of(low).dtype)[None])
    return b.add(low, b.mul(step, steps))


def _read(n: OnnxNode, image: Any, batch: Any, ys: Any, xs: Any, mode: str) -> Any:
    """[regions, rows, columns, channels] of image [n * h * w, channels], bilinearly.

    More than a pixel outside of the image there is 0. The maximum is that of each corner's share.
    """
    b, dims = n.b, n.dims(0)
    (top, bottom, down, inside_y), (left, right, across, inside_x) = (
        _corners(b, at, dims[axis]) for at, axis in ((ys, 2), (xs, 3))
    )
    height, width = extent_value(b, dims[2]), extent_value(b, dims[3])

    def corner(y: Any, x: Any, wy: Any, wx: Any) -> Any:
        row = b.mul(b.add(b.mul(batch, height), b.expand_dims(y, 2)), width)
        value = b.gather(image, b.add(row, b.expand_dims(x, 1)), axis=0)
        weight = b.mul(b.expand_dims(wy, 2), b.expand_dims(wx, 1))
        return b.mul(value, b.expand_dims(weight, 3))

    one = b.scalar(1, down)
    up, back = b.sub(one, down), b.sub(one, across)
    parts = [
        corner(top, left, up, back), corner(top, right, up, across),
        corner(bottom, left, down, back), corner(bottom, right, down, across),
    ]  # fmt: skip
    join = b.add if mode == "avg" else b.maximum
    out = join(join(parts[0], parts[1]), join(parts[2], parts[3]))
    inside = b.and_(b.expand_dims(inside_y, 2), b.expand_dims(inside_x, 1))
    return b.select(b.expand_dims(inside, 3), out, b.scalar(0, out))


def _corners(b: Any, at: Any, size: Any) -> tuple[Any, Any, Any, Any]:
    """Return the pixels before and after a coordinate, the share of the second, and if it is
    inside."""
    dtype = b.type_of(at).dtype
    last = b.cast(b.sub(extent_value(b, size), np.array(1, np.int64)), dtype=dtype)
    inside = b.and_(
        b.compare(at, b.scalar(-1, at), predicate="ge"),
        b.compare(at, b.add(last, b.scalar(1, at)), predicate="le"),
    )
    at = b.minimum(b.maximum(at, b.scalar(0, at)), last)
    low = b.floor(at)
    share = b.sub(at, low)
    high = b.minimum(b.add(low, b.scalar(1, at)), last)
    return b.cast(low, dtype=I64), b.cast(high, dtype=I64), share, inside
