"""Images read between their elements (GridSample, RoiAlign, DeformConv, Resize); DFTs of signals.

Resize: images along height and width in one op, other axes one at a time, since interpolation is
separable. Upsample of opset 7 to 9 and Resize of opset 10 come here converted, with `asymmetric`
coordinates and `SIMPLE` rounding. What pyc.resize lacks (cubic interpolation, antialiasing, a
region of interest) is a product with a constant matrix [size, result] along each axis, whose
columns hold the weights of ONNX's definition.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial, reduce
from itertools import product as all_of
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ops.resize import COORDINATES, ROUNDINGS, coordinates_of
from pyc_mlir.dialects.types import DTYPES, I64, accumulator, is_float
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import (
    chain,
    expand_to,
    extent_value,
    gather_nd,
    product,
    reshape_to,
    take,
    vector,
)
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize, Untracked, divided, quotient
from pyc_mlir.frontends.onnx.ops.convolution import Sliding
from pyc_mlir.frontends.onnx.ops.node import SIMPLE, Ints, Number, OnnxNode, Operand, node

_MODES = {"bilinear": "linear", "bicubic": "cubic"}
# Of cubic convolution (Keys, 1981), as torch and ONNX have it.
_CUBIC = -0.75
_MAX_SAMPLES, _MAX_LENGTH = 16, 1 << 11

# An i64 index, a weight or None for 1, and i1 for what lies inside (None: everything).
Tap = tuple[Any, Any, Any]


@dataclass(frozen=True)
class _Axis:
    """An axis of an image that is read at computed coordinates."""

    size: int
    mode: str = "linear"
    padding: str = "zeros"
    aligned: bool = True

    def placed(self, b: Any, u: Any) -> Any:
        """Return coordinates in [-1, 1] as places of elements."""
        if self.aligned:
            return b.mul(b.mul(b.add(u, 1), 0.5), self.size - 1)
        return b.mul(b.sub(b.mul(b.add(u, 1), self.size), 1), 0.5)

    def taps(self, b: Any, u: Any) -> list[Tap]:
        """Return the elements that are read at u, with their weights."""
        if self.mode == "nearest":
            return [self._tap(b, b.round(self._padded(b, u)), None)]
        u = u if self.mode == "cubic" else self._padded(b, u)
        below = b.floor(u)
        t = b.sub(u, below)
        if self.mode == "linear":
            weights = {0: b.sub(1, t), 1: t}
        else:
            weights = {k: _cubic(b, b.abs(b.sub(t, k)), k) for k in (-1, 0, 1, 2)}
        return [self._tap(b, b.add(below, k), w) for k, w in weights.items()]

    def _padded(self, b: Any, u: Any) -> Any:
        if self.padding == "border":
            return b.clip(u, 0, self.size - 1)
        return self._reflected(b, u) if self.padding == "reflection" else u

    def _reflected(self, b: Any, u: Any) -> Any:
        """u mirrored at the centres of the outer elements, or at their outer edges."""
        low, high = (0.0, self.size - 1.0) if self.aligned else (-0.5, self.size - 0.5)
        span = high - low
        if span <= 0:
            return expand_to(b, b.scalar(0, u), b.dims(u))
        away = b.abs(b.sub(u, low))
        rest = b.sub(away, b.mul(b.floor(b.div(away, 2 * span)), 2 * span))
        return b.add(b.minimum(rest, b.sub(2 * span, rest)), low)

    def _tap(self, b: Any, place: Any, weight: Any) -> Tap:
        inside = None
        if self.padding == "zeros":
            inside = b.and_(b.ge(place, 0), b.le(place, self.size - 1))
        elif self.padding == "reflection":
            place = b.round(self._reflected(b, place))
        return b.cast(b.clip(place, 0, self.size - 1), dtype=I64), weight, inside


def _cubic(b: Any, d: Any, place: int) -> Any:
    """Return the weight at distance d: below 1 for places 0 and 1, else from 1 to 2."""
    a = _CUBIC
    highest, *powers = (
        (a + 2, -(a + 3), 0.0, 1.0) if place in (0, 1) else (a, -5 * a, 8 * a, -4 * a)
    )
    out = b.mul(d, highest)
    for c in powers[:-1]:
        out = b.mul(b.add(out, c), d)
    return b.add(out, powers[-1])


def _read_at(b: Any, rows: Any, axes: Sequence[Sequence[Tap]], sizes: Sequence[int]) -> Any:
    """[n, places, c]: the weighted sum over all taps of rows [n, product of sizes, c]."""
    return reduce(b.add, (_read(b, rows, chosen, sizes) for chosen in all_of(*axes)))


def _read(b: Any, rows: Any, chosen: tuple[Tap, ...], sizes: Sequence[int]) -> Any:
    """[n, places, c]: one element of each axis, weighted."""
    linear, weight, inside = None, None, None
    for (index, own, fits), size in zip(chosen, sizes, strict=True):
        linear = index if linear is None else b.add(b.mul(linear, size), index)
        if own is not None:
            weight = own if weight is None else b.mul(weight, own)
        if fits is not None:
            inside = fits if inside is None else b.and_(inside, fits)
    batch, places = b.dims(linear)
    out = gather_nd(b, rows, reshape_to(b, linear, (batch, places, 1)), 1, 1)
    if inside is not None:
        out = b.select(b.expand_dims(inside, 2), out, 0)
    return out if weight is None else b.mul(out, b.expand_dims(weight, 2))


@node("GridSample")
def grid_sample(
    b: Any, x: Any, grid: Any, *,
    mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0,
) -> Any:  # fmt: skip
    """out[n, c, p] = x[n, c] interpolated at grid[n, p]. Jaderberg et al., 2015.

    x: [n, c, sizes...]; grid: [n, places..., axes], the last axis of x first, in [-1, 1].
    """
    type_, dims = b.type_of(x), b.dims(x)
    sizes = type_.shape[2:]
    if None in sizes or 0 in sizes:
        raise unsupported("images of dynamic or no size: expected static sizes")
    mode = _MODES.get(mode, mode)
    known = mode in ("linear", "nearest", "cubic")
    if not known or padding_mode not in ("zeros", "border", "reflection"):
        raise unsupported(f"mode={mode}, padding_mode={padding_mode}")
    wide = accumulator(type_.dtype)
    grid = b.convert(grid, wide)
    batch, *places, _ = b.dims(grid)
    axes = []
    for number, size in enumerate(sizes):
        axis, at = _Axis(size, mode, padding_mode, bool(align_corners)), len(sizes) - 1 - number
        u = reshape_to(b, take(b, grid, len(places) + 1, at, at + 1), (batch, product(places)))
        axes.append(axis.taps(b, axis.placed(b, u)))
    flat = reshape_to(b, x, (batch, dims[1], product(dims[2:])))
    rows = b.convert(b.transpose(flat, permutation=(0, 2, 1)), wide)
    total = _read_at(b, rows, axes, sizes)
    out = b.convert(b.transpose(total, permutation=(0, 2, 1)), type_.dtype)
    return reshape_to(b, out, (batch, dims[1], *places))


@node("AffineGrid")
def affine_grid(b: Any, theta: Any, size: Ints, *, align_corners: int = 0) -> Any:
    """out[n, p] = theta[n] @ (p, 1) for each place p of images of `size`, in [-1, 1].

    theta: [n, axes, axes + 1], the last axis of images first. With align_corners, the one place of
    an axis of size 1 is 0, as in torch; ONNX's definition divides by zero.
    """
    sizes = size[2:]
    rank, batch = len(sizes), b.dims(theta)[0]

    def entry(row: int, column: int) -> Any:
        one = take(b, take(b, theta, 1, row, row + 1), 2, column, column + 1)
        return reshape_to(b, one, (batch, *(1 for _ in sizes)))

    bases = []
    for axis, count in reversed(list(enumerate(sizes))):
        step = 2 / max(count - bool(align_corners), 1)
        places = (np.arange(count) - (count - 1) / 2) * step
        shape = [-1 if i == axis else 1 for i in range(rank)]
        bases.append(places.reshape(shape).astype(b.type_of(theta).dtype))
    rows = []
    for row in range(rank):
        total = entry(row, rank)
        for column, base in enumerate(bases):
            total = b.add(total, b.mul(entry(row, column), base))
        rows.append(b.expand_dims(total, rank + 1))
    return chain(b, rows, rank + 1)


@node("DeformConv")
def deformable(
    b: Any, x: Any, weight: Any, offset: Any, bias: Any = None, mask: Any = None, *,
    group: int = 1, offset_group: int = 1, sliding: Sliding,
) -> Any:  # fmt: skip
    """Build a convolution whose taps are moved by offsets, read bilinearly. Zhu et al., 2019."""
    types = [b.type_of(v) for v in (x, weight, offset)]
    if types[0].rank != 4 or any(None in t.shape for t in types):
        raise unsupported("expected images and weights of static sizes")
    (batch, channels, height, width), dtype = types[0].shape, types[0].dtype
    filters, inner, *kernel = types[1].shape
    _, _, rows, columns = types[2].shape
    sets, taps, spots = offset_group, math.prod(kernel), rows * columns
    strides, dilations = (v if v != () else [1, 1] for v in (sliding.strides, sliding.dilations))
    pads = sliding.pads if sliding.pads != () else [0] * 4
    offsets = b.reshape(offset, shape=(batch * sets, taps, 2, spots))
    axes = []
    for axis, size in enumerate((height, width)):
        grid = np.arange((rows, columns)[axis]) * strides[axis] - pads[axis]
        grid = np.broadcast_to(grid[:, None] if axis == 0 else grid[None, :], (rows, columns))
        reach = np.array([k[axis] for k in all_of(*(range(k) for k in kernel))]) * dilations[axis]
        fixed = (reach[:, None] + grid.reshape(-1)[None, :]).astype(dtype)
        moved = b.slice(
            offsets, starts=(0, 0, axis, 0), stops=(batch * sets, taps, axis + 1, spots),
            steps=(1, 1, 1, 1),
        )  # fmt: skip
        u = b.add(b.reshape(moved, shape=(batch * sets, taps, spots)), b.constant(fixed))
        axes.append(_Axis(size).taps(b, b.reshape(u, shape=(batch * sets, taps * spots))))
    own = channels // sets
    image = b.reshape(x, shape=(batch * sets, own, height * width))
    read = _read_at(b, b.transpose(image, permutation=(0, 2, 1)), axes, (height, width))
    read = b.reshape(read, shape=(batch, sets, taps, spots, own))
    if mask is not None:
        read = b.mul(read, b.reshape(mask, shape=(batch, sets, taps, spots, 1)))
    unfolded = b.transpose(read, permutation=(0, 1, 4, 2, 3))
    unfolded = b.reshape(unfolded, shape=(batch, group, inner * taps, spots))
    weight = b.reshape(weight, shape=(group, filters // group, inner * taps))
    out = b.reshape(b.matmul(weight, unfolded), shape=(batch, filters, rows, columns))
    return out if bias is None else b.add(out, b.align(bias, 1, 4))


@dataclass(frozen=True)
class _Regions:
    output_height: int = 1
    output_width: int = 1
    sampling_ratio: int = 0
    spatial_scale: float = 1.0
    mode: str = "avg"
    coordinate_transformation_mode: str = "half_pixel"


@node("RoiAlign")
def roi_align(b: Any, x: Any, regions: Any, batches: Any, *, form: _Regions) -> Any:
    """Build the mean, or the maximum, of bilinear samples in each bin of each region.

    x: [n, c, h, w], rois: [regions, 4] of x1, y1, x2, y2; out: [regions, c, rows, columns]. He et
    al., 2017.
    """
    rows, columns, samples = form.output_height, form.output_width, form.sampling_ratio
    if min(rows, columns) < 1 or form.mode not in ("avg", "max"):
        raise PycError(ReasonCode.BAD_MODEL, "expected one row and column or more, avg or max")
    if not 0 < samples <= _MAX_SAMPLES or max(rows, columns) > 1 << 10:
        raise unsupported(
            f"sampling_ratio={samples}, which depends on each region's size, or bins of {rows} x "
            f"{columns}: expected 1 to {_MAX_SAMPLES}, and 1024 at most"
        )
    half = form.coordinate_transformation_mode == "half_pixel"
    edges = [b.reshape(take(b, regions, 1, i, i + 1), shape=(-1, 1)) for i in range(4)]
    x1, y1, x2, y2 = (b.sub(b.mul(e, form.spatial_scale), 0.5 if half else 0) for e in edges)
    dims = b.dims(x)
    ys = _samples(b, y1, y2, rows, samples, half)
    xs = _samples(b, x1, x2, columns, samples, half)
    image = b.transpose(x, permutation=(0, 2, 3, 1))
    image = reshape_to(b, image, (product((dims[0], dims[2], dims[3])), dims[1]))
    batch = b.reshape(b.convert(batches, I64), shape=(-1, 1, 1))
    out = _bilinear(b, image, dims, batch, ys, xs, b.add if form.mode == "avg" else b.maximum)
    out = reshape_to(b, out, (b.dims(out)[0], rows, samples, columns, samples, dims[1]))
    fold = b.reduce_mean if form.mode == "avg" else b.reduce_max
    return b.transpose(fold(out, axes=(2, 4), keepdims=False), permutation=(0, 3, 1, 2))


def _samples(b: Any, low: Any, high: Any, count: int, samples: int, half: bool) -> Any:
    """[regions, count * samples]: where each bin is sampled along one axis."""
    size = b.sub(high, low)
    if not half:
        size = b.maximum(size, 1)
    places = (np.arange(count * samples) + 0.5) / samples
    steps = b.constant(places.astype(b.type_of(low).dtype)[None])
    return b.add(low, b.mul(b.div(size, count), steps))


def _bilinear(
    b: Any, image: Any, dims: Sequence[Any], batch: Any, ys: Any, xs: Any, join: Any
) -> Any:
    """[regions, rows, columns, channels] of image [n * h * w, channels], bilinearly.

    More than a pixel outside of the image there is 0. join: the shares of the four corners.
    """
    (top, bottom, down, inside_y), (left, right, across, inside_x) = (
        _corners(b, at, dims[axis]) for at, axis in ((ys, 2), (xs, 3))
    )
    height, width = extent_value(b, dims[2]), extent_value(b, dims[3])

    def corner(y: Any, x: Any, wy: Any, wx: Any) -> Any:
        row = b.mul(b.add(b.mul(batch, height), b.expand_dims(y, 2)), width)
        value = b.gather(image, b.add(row, b.expand_dims(x, 1)), axis=0)
        weight = b.mul(b.expand_dims(wy, 2), b.expand_dims(wx, 1))
        return b.mul(value, b.expand_dims(weight, 3))

    up, back = b.sub(1, down), b.sub(1, across)
    out = join(
        join(corner(top, left, up, back), corner(top, right, up, across)),
        join(corner(bottom, left, down, back), corner(bottom, right, down, across)),
    )
    inside = b.and_(b.expand_dims(inside_y, 2), b.expand_dims(inside_x, 1))
    return b.select(b.expand_dims(inside, 3), out, 0)


def _corners(b: Any, at: Any, size: Any) -> tuple[Any, Any, Any, Any]:
    """Return the pixels before and after a coordinate, the share of the second, whether inside."""
    dtype = b.type_of(at).dtype
    last = b.cast(b.sub(extent_value(b, size), 1), dtype=dtype)
    inside = b.and_(
        b.ge(at, -1),
        b.le(at, b.add(last, 1)),
    )
    at = b.minimum(b.maximum(at, 0), last)
    low = b.floor(at)
    share = b.sub(at, low)
    high = b.minimum(b.add(low, 1), last)
    return b.cast(low, dtype=I64), b.cast(high, dtype=I64), share, inside


@node("DFT")
def dft(
    b: Any, x: Any, dft_length: Number = None, axis: Number = None, *,
    axis_: int = -2, inverse: int = 0, onesided: int = 0,
) -> Any:  # fmt: skip
    """out[k] = sum over j of x[j] * exp(-2 pi i j k / length) along an axis.

    x: [..., 1] real or [..., 2] complex; the result is complex, or real for an inverse onesided
    transform, which reads the first half of a conjugate symmetric x.
    """
    type_, half = b.type_of(x), bool(onesided)
    # The attribute of opset 17 has the default 1, the input of opset 20 that of -2.
    axis = int(axis_ if axis is None else axis) % type_.rank
    size, parts = type_.shape[axis], type_.shape[-1] or 1
    length = size if dft_length is None else int(dft_length)
    if size is None or length is None or not 0 < length <= _MAX_LENGTH or axis == type_.rank - 1:
        raise unsupported(f"a length of {length}: expected 1 to {_MAX_LENGTH}, static")
    if inverse and half and dft_length is None:
        length = 2 * (size - 1)
    used = min(size, length // 2 + 1 if inverse and half else length)
    wide = accumulator(type_.dtype)
    x = b.convert(take(b, x, axis, 0, used), wide)
    order = (*(i for i in range(type_.rank - 1) if i != axis), axis, type_.rank - 1)
    x = b.transpose(x, permutation=order)
    rows = _rows(length, used, parts, bool(inverse), half)
    dims = b.dims(x)
    flat = reshape_to(b, x, (*dims[:-2], used * parts))
    out = b.matmul(flat, b.constant(rows.reshape(used * parts, -1).astype(wide)))
    out = reshape_to(b, out, (*dims[:-2], *rows.shape[2:]))
    back = tuple(order.index(i) for i in range(type_.rank))
    return b.convert(b.transpose(out, permutation=back), type_.dtype)


@node("STFT")
def short_time_dft(
    b: Any, x: Any, frame_step: Number, window: Any = None, frame_length: Number = None, *,
    onesided: int = 1,
) -> Any:  # fmt: skip
    """Build the DFT of each frame of `frame_length` samples, `frame_step` apart, under a window."""
    step, (_, size, parts) = int(frame_step), b.type_of(x).shape
    parts = parts or 1
    if window is None and frame_length is None:
        raise PycError(ReasonCode.BAD_MODEL, "expected an input 2, got none")
    width = b.type_of(window).shape[0] if frame_length is None else int(frame_length)
    if size is None or width is None or not 0 < width <= min(size, _MAX_LENGTH) or step < 1:
        raise unsupported(f"frames of {width}: expected 1 to {_MAX_LENGTH}, static")
    starts = np.arange(0, size - width + 1, step)
    index = (starts[:, None] + np.arange(width)[None, :]).astype(np.int64)
    frames = b.gather(x, b.constant(index), axis=1)
    if window is not None:
        frames = b.mul(frames, b.reshape(window, shape=(width, 1)))
    rows = _rows(width, width, parts, False, bool(onesided))
    batch = b.dims(frames)[0]
    flat = reshape_to(b, frames, (batch, len(starts), width * parts))
    matrix = rows.reshape(width * parts, -1).astype(b.type_of(x).dtype)
    out = b.matmul(flat, b.constant(matrix))
    return reshape_to(b, out, (batch, len(starts), *rows.shape[2:]))


def _rows(length: int, used: int, parts: int, inverse: bool, half: bool) -> np.ndarray:
    """Return the DFT's matrix: [used, parts of x, made, parts of the result].

    An entry is the weight of an element of x in an element of the result.
    """
    real = inverse and half
    made = length // 2 + 1 if half and not inverse else length
    angle = 2 * np.pi * (np.outer(np.arange(used), np.arange(made)) % length) / length
    cosine, sine = np.cos(angle), np.sin(angle) if inverse else -np.sin(angle)
    # The real part of x, and the imaginary one.
    shares = [np.stack([cosine, sine], -1), np.stack([-sine, cosine], -1)][:parts]
    out = np.stack(shares, 1)[..., : 1 if real else 2]
    if real:
        # Elements that stand for their conjugates too.
        out[[j for j in range(1, used) if 2 * j != length]] *= 2
    return out / length if inverse else out


_MAX_ENTRIES = 1 << 22
# Scales that are fractions of less make sizes of integers alone.
_MAX_DENOMINATOR = 1 << 8
_CROP = "tf_crop_and_resize"


@dataclass(frozen=True)
class _Target:
    """The target of a resized axis: its size (-1: a dynamic one times the scale), the scale.

    No scale is result / x. What becomes of other dynamic sizes is computed (`_along`).
    """

    size: Extent
    scale: float | None


@dataclass(frozen=True)
class _Resizing:
    """The attributes of a Resize; exporters write some beside modes that do not read them."""

    mode: str = "nearest"
    coordinate_transformation_mode: str = "half_pixel"
    nearest_mode: str = "round_prefer_floor"
    antialias: int = 0
    cubic_coeff_a: float = -0.75
    exclude_outside: int = 0
    extrapolation_value: float = 0.0
    keep_aspect_ratio_policy: str = "stretch"
    axes: Sequence[int] | None = None


@node("Resize")
def resize(
    n: OnnxNode, x: Any, roi: Operand = None, scales: Operand = None, sizes: Operand = None,
    *, form: _Resizing,
) -> Any:  # fmt: skip
    """pyc.resize along height and width, NCHW or NHWC; of other axes one after the other."""
    b, mode, coordinates = n.b, form.mode, form.coordinate_transformation_mode
    rank = b.type_of(x).rank
    axes = [a % rank for a in (range(rank) if form.axes is None else form.axes)]
    if mode == "cubic" or form.antialias or coordinates == _CROP:
        return _by_matrices(n, x, _targets(n, x, axes, form), axes, form)
    if mode not in ("nearest", "linear"):
        raise unsupported(f"mode={mode}: expected nearest or linear")
    if coordinates not in COORDINATES:
        raise unsupported(f"coordinates {coordinates}: expected one of {', '.join(COORDINATES)}")
    targets = _targets(n, x, axes, form)
    rounding = _rounding(form.nearest_mode, targets)
    dims = b.dims(x)
    computed = (a for a, t in targets.items() if SymbolicSize in map(type, (t.size, dims[a])))
    for axis in [a for a in computed if targets[a].size != -1]:
        x = _along(b, x, axis, targets.pop(axis), form, rounding)
    how = {"mode": mode, "coordinates": coordinates, "rounding": rounding}
    for layout, spatial in (("NCHW", (2, 3)), ("NHWC", (1, 2))):
        if rank == 4 and set(targets) <= set(spatial):
            return _images(b, x, spatial, targets, layout=layout, **how)
    for axis, target in sorted(targets.items(), key=lambda item: item[1].scale or 1):
        # As [1, all before, axis, all after] and back.
        dims = b.dims(x)
        flat = reshape_to(b, x, (1, product(dims[:axis]), dims[axis], product(dims[axis + 1 :])))
        out = _images(b, flat, (2, 3), {2: target}, layout="NCHW", **how)
        x = reshape_to(b, out, (*dims[:axis], b.dims(out)[2], *dims[axis + 1 :]))
    return x


def _rounding(mode: str, targets: Mapping[int, _Target]) -> str:
    if mode == SIMPLE:
        kinds = {"floor" if t.scale and t.scale >= 1 else "ceil" for t in targets.values()}
        if len(kinds) > 1 or None in (t.scale for t in targets.values()):
            raise unsupported(
                "opset 10 with an axis enlarged and another shrunk: expected one kind"
            )
        return kinds.pop() if kinds else "floor"
    if mode not in ROUNDINGS:
        raise PycError(ReasonCode.BAD_MODEL, f"`nearest_mode`: expected an ONNX mode, got {mode}")
    return mode


def _targets(n: OnnxNode, x: Any, axes: Sequence[int], form: _Resizing) -> dict[int, _Target]:
    """Return the axes that change, from `scales` or `sizes`; an empty tensor means none."""
    dims, values = n.b.dims(x), n.operands[2:]
    given = [
        i
        for i, v in enumerate(values, start=2)
        if v is not None and not (isinstance(v, np.ndarray) and v.size == 0)
    ]
    if len(given) != 1:
        raise PycError(ReasonCode.BAD_MODEL, "expected either `scales` or `sizes`")
    if given == [2]:
        wanted: Sequence[Any] = [float(s) for s in n.known(2, "scales").reshape(-1)]
    else:
        wanted = n.extents(3, "sizes")
    if len(wanted) != len(axes) or len(set(axes)) < len(axes):
        raise PycError(ReasonCode.BAD_MODEL, f"expected a value for each of {len(dims)} axes")
    triples = [(a, dims[a], v) for a, v in zip(axes, wanted, strict=True)]
    if given == [3] and form.keep_aspect_ratio_policy != "stretch":
        return _kept_ratio(form.keep_aspect_ratio_policy, triples)
    aligned = form.coordinate_transformation_mode == "align_corners"
    of = partial(_scaled, n.b, aligned) if given == [2] else _sized
    found = {axis: of(size, value) for axis, size, value in triples}
    return {axis: target for axis, target in found.items() if target is not None}


def _scaled(b: Any, aligned: bool, size: Extent, scale: float) -> _Target | None:
    if not 0 < scale < np.inf:
        raise PycError(ReasonCode.BAD_MODEL, f"`scales`: expected numbers > 0, got {scale}")
    if scale == 1:
        return None
    if not isinstance(size, SymbolicSize):
        # In f32, as ONNX multiplies: 10 * 0.7 is 7, of which the exact product falls short.
        return _Target(int(np.float32(size) * np.float32(scale)), scale)
    if scale == int(scale) and not aligned:
        return _Target(-1, scale)
    exact = Fraction(scale)
    if exact.denominator <= _MAX_DENOMINATOR:
        return _Target(divided(exact.numerator * size, exact.denominator)[0], scale)
    product = b.mul(b.cast(b.extent(size), dtype=DTYPES["f32"]), scale)
    return _Target(b.numbers(b.cast(product, dtype=I64)).entries.item(), scale)


def _sized(size: Extent, wanted: Extent) -> _Target | None:
    if size == wanted:
        return None
    if not isinstance(size, SymbolicSize) and not isinstance(wanted, SymbolicSize):
        return _Target(wanted, wanted / max(size, 1))
    if isinstance(size, SymbolicSize):
        with suppress(Untracked):
            if isinstance(factor := quotient(wanted, size), int):
                return _Target(-1, float(factor))
    return _Target(wanted, None)


def _along(b: Any, x: Any, axis: int, target: _Target, form: _Resizing, rounding: str = "") -> Any:
    """x resized along one axis to a size known at run time: gathers, weighted but for `nearest`.

    The coordinates are those of dialects/ops/resize.py, in f64.
    """
    coordinates, rank, size = (
        form.coordinate_transformation_mode,
        b.type_of(x).rank,
        b.dims(x)[axis],
    )
    wide = DTYPES["f64"]
    before, after = (b.cast(extent_value(b, d), dtype=wide) for d in (size, target.size))
    place = b.cast(vector(b, target.size), dtype=wide)
    ratio = b.div(after, b.maximum(before, 1.0))
    scale = ratio if target.scale is None else b.constant(np.array(target.scale, wide))
    if coordinates == "align_corners":
        u = b.div(b.mul(place, b.sub(before, 1.0)), b.maximum(b.sub(after, 1.0), 1.0))
    elif coordinates == "asymmetric":
        u = b.div(place, scale)
    else:
        u = b.sub(b.div(b.add(place, 0.5), scale), 0.5)
    if coordinates == "half_pixel_symmetric":
        u = b.add(u, b.mul(b.div(before, 2.0), b.sub(1.0, b.div(ratio, scale))))
    if coordinates == "pytorch_half_pixel":
        u = b.select(b.compare(after, 1.0, predicate="le"), b.mul(u, 0.0), u)

    def taken(places: Any) -> Any:
        inside = b.minimum(b.maximum(places, 0.0), b.sub(before, 1.0))
        return b.gather(x, b.cast(inside, dtype=I64), axis=axis)

    if form.mode == "nearest":
        return taken(_ROUNDED[rounding](b, u))
    below = b.floor(u)
    acc = accumulator(b.type_of(x).dtype)
    part = b.align(b.cast(b.sub(u, below), dtype=acc), axis, rank)
    shares = {0.0: b.sub(1.0, part), 1.0: part}
    if form.mode == "cubic":
        a, shares = form.cubic_coeff_a, {}
        for step in (-1.0, 0.0, 1.0, 2.0):
            d = b.abs(b.sub(part, step))
            terms = (a, -5 * a, 8 * a, -4 * a) if step in (-1.0, 2.0) else (a + 2, -a - 3, 0.0, 1.0)
            shares[step] = reduce(lambda y, term: b.add(b.mul(y, d), term), terms[1:], terms[0])
    parts = (b.mul(b.convert(taken(b.add(below, s)), acc), w) for s, w in shares.items())
    return b.convert(reduce(b.add, parts), b.type_of(x).dtype)


_ROUNDED: dict[str, Callable[[Any, Any], Any]] = {
    "round_prefer_floor": lambda b, u: b.ceil(b.sub(u, 0.5)),
    "round_prefer_ceil": lambda b, u: b.floor(b.add(u, 0.5)),
    "floor": lambda b, u: b.floor(u),
    "ceil": lambda b, u: b.ceil(u),
}


def _kept_ratio(policy: str, axes: Sequence[tuple[int, Extent, Extent]]) -> dict[int, _Target]:
    """Apply the least or the greatest scale to all axes."""
    if policy not in ("not_larger", "not_smaller"):
        known = "stretch, not_larger or not_smaller"
        raise PycError(ReasonCode.BAD_MODEL, f"`keep_aspect_ratio_policy`: expected {known}")
    known_sizes = [(a, i, o) for a, i, o in axes if isinstance(i, int) and isinstance(o, int)]
    if len(known_sizes) < len(axes):
        raise unsupported("keep_aspect_ratio_policy with dynamic dimensions: expected static ones")
    ratios = [o / max(i, 1) for _, i, o in known_sizes]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return {a: _Target(int(scale * i + 0.5), scale) for a, i, _ in known_sizes}


def _images(
    b: Any, x: Any, spatial: Sequence[int], targets: Mapping[int, _Target], **how: str
) -> Any:
    """Resize height and width at once. A scale that is result / x is not stated."""
    if not targets:
        return x
    sizes, scales, stated = [], [], False
    for axis in spatial:
        size = b.type_of(x).shape[axis]
        target = targets.get(axis, _Target(-1 if size is None else size, 1.0))
        sizes.append(target.size)
        scales.append(target.scale)
        stated |= size is None or target.scale != target.size / max(size, 1)
    return b.resize(x, sizes=tuple(sizes), scales=tuple(scales) if stated else (), **how)


def _by_matrices(
    n: OnnxNode, x: Any, targets: dict[int, _Target], axes: Sequence[int], form: _Resizing
) -> Any:
    """x with each axis of `targets` multiplied by its matrix, in f32 at least."""
    b, type_, how = n.b, n.b.type_of(x), form.coordinate_transformation_mode
    if not is_float(type_.dtype) or form.mode == "nearest":
        raise unsupported(
            f"mode={form.mode} of {type_.dtype} with this: expected floats, linear or cubic"
        )
    if how not in (*COORDINATES, _CROP):
        raise unsupported(f"coordinates {how}: expected one of {', '.join(COORDINATES)}")
    wide = accumulator(type_.dtype)
    out, outside = b.convert(x, wide), None
    if how == _CROP:
        for axis in axes:
            targets.setdefault(axis, _Target(type_.shape[axis] or -1, 1.0))
    for axis, target in sorted(targets.items()):
        size, out_size, scale = type_.shape[axis], target.size, target.scale
        known = isinstance(size, int) and isinstance(out_size, int)
        if not (known or form.antialias or form.exclude_outside or how == _CROP):
            made = int(scale or 0) * b.dims(out)[axis] if out_size == -1 else out_size
            out = _along(b, out, axis, _Target(made, scale), form)
            continue
        if not known or scale is None or not 0 < size * out_size <= _MAX_ENTRIES:
            raise unsupported("a dynamic, empty or too large axis: expected static sizes")
        u = _places(n, how, axes, axis, size, target)
        if how == _CROP:
            beyond = (u < 0) | (u > size - 1)
            column = beyond.reshape([-1 if i == axis else 1 for i in range(type_.rank)])
            outside = column if outside is None else outside | column
        matrix = b.constant(_matrix(form, u, size, scale).astype(wide))
        order = (*(i for i in range(type_.rank) if i != axis), axis)
        back = tuple(order.index(i) for i in range(type_.rank))
        out = b.transpose(b.matmul(b.transpose(out, permutation=order), matrix), permutation=back)
    if outside is not None:
        value = b.scalar(form.extrapolation_value, out)
        out = b.select(b.constant(np.ascontiguousarray(outside)), value, out)
    return b.convert(out, type_.dtype)


def _places(
    n: OnnxNode, how: str, axes: Sequence[int], axis: int, size: int, target: _Target
) -> np.ndarray:
    """Return the coordinate of each element of the result."""
    assert isinstance(target.size, int) and target.scale is not None
    index = np.arange(target.size, dtype=np.float64)
    if how != _CROP:
        return coordinates_of(index, size, target.size, target.scale, how)
    region = n.known(1, "roi").reshape(-1).astype(np.float64)
    start, end = region[axes.index(axis)], region[len(axes) + axes.index(axis)]
    if target.size == 1:
        return np.full(1, 0.5 * (start + end) * (size - 1))
    return start * (size - 1) + index * (end - start) * (size - 1) / (target.size - 1)


def _matrix(form: _Resizing, u: np.ndarray, size: int, scale: float) -> np.ndarray:
    """[size, result]: weights of neighbours at distances from u, spread where it shrinks."""
    stretch = min(scale, 1.0) if form.antialias else 1.0
    width = math.ceil((1 if form.mode == "linear" else 2) / stretch)
    steps = np.arange(1 - width, width + 1)
    places = np.floor(u).astype(np.int64)[None, :] + steps[:, None]
    d, a = np.abs(places - u[None, :]) * stretch, form.cubic_coeff_a
    if form.mode == "linear":
        weights = np.maximum(1 - d, 0)
    else:
        # Cubic convolution. Keys, 1981.
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        weights = np.where(d <= 1, near, np.where(d < 2, far, 0))
    if form.exclude_outside:
        weights = np.where((places >= 0) & (places < size), weights, 0)
    if form.exclude_outside or stretch < 1:
        weights = weights / weights.sum(0)
    matrix = np.zeros((size, len(u)))
    columns = np.broadcast_to(np.arange(len(u)), places.shape)
    np.add.at(matrix, (np.clip(places, 0, size - 1), columns), weights)
    return matrix
