"""GridSample: images, or volumes, read at the coordinates of a grid. AffineGrid makes grids."""

from collections.abc import Sequence
from itertools import product as all_pairs
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import I64, accumulator
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.indexing import gather_nd
from pyc_mlir.frontends.importing.shaping import chain, expand_to, product, reshape_to, take
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node

_MODES = {"bilinear": "linear", "bicubic": "cubic"}
# Of cubic convolution (Keys, 1981), as torch and ONNX have it.
_CUBIC = -0.75


@node("GridSample")
def grid_sample(n: OnnxNode) -> Any:
    """out[n, c, p] = x[n, c] interpolated at grid[n, p]. Jaderberg et al., 2015.

    x: [n, c, sizes...]; grid: [n, places..., axes], the last axis of x first, in [-1, 1].
    """
    b = n.b
    sizes = n.type(0).shape[2:]
    if None in sizes or 0 in sizes:
        raise unsupported("images of dynamic or no size: expected static sizes")
    mode = _MODES.get(n.attr("mode", "linear"), n.attr("mode", "linear"))
    padding = n.attr("padding_mode", "zeros")
    if mode not in ("linear", "nearest", "cubic") or padding not in _PADDINGS:
        raise unsupported(f"mode={mode}, padding_mode={padding}")
    aligned = bool(n.attr("align_corners", 0))
    wide = accumulator(n.type(0).dtype)
    grid = b.convert(n.x(1), wide)
    batch, *places, _ = b.dims(grid)
    axes = []
    for axis, size in enumerate(sizes):
        at = len(sizes) - 1 - axis
        u = reshape_to(b, take(b, grid, len(places) + 1, at, at + 1), (batch, product(places)))
        axes.append(_taps(b, _placed(b, u, size or 1, aligned), size or 1, mode, padding, aligned))
    channels = b.dims(n.x(0))[1]
    flat = reshape_to(b, n.x(0), (batch, channels, product(n.dims(0)[2:])))
    rows = b.convert(b.transpose(flat, permutation=(0, 2, 1)), wide)
    total = read_at(b, rows, axes, [s or 1 for s in sizes])
    out = b.convert(b.transpose(total, permutation=(0, 2, 1)), n.type(0).dtype)
    return reshape_to(b, out, (batch, channels, *places))


@node("AffineGrid")
def affine_grid(n: OnnxNode) -> Any:
    """out[n, p] = theta[n] @ (p, 1) for each place p of images of `size`, in [-1, 1].

    theta: [n, axes, axes + 1], the last axis of images first. With align_corners, the one place of
    an axis of size 1 is 0, as in torch; ONNX's definition divides by zero.
    """
    b, sizes = n.b, n.ints(1, "size")[2:]
    rank, batch = len(sizes), n.dims(0)[0]
    theta = n.x(0)
    aligned = bool(n.attr("align_corners", 0))

    def entry(row: int, column: int) -> Any:
        one = take(b, take(b, theta, 1, row, row + 1), 2, column, column + 1)
        return reshape_to(b, one, (batch, *(1 for _ in sizes)))

    bases = []
    for axis, size in reversed(list(enumerate(sizes))):
        step = 2 / max(size - aligned, 1)
        places = (np.arange(size) - (size - 1) / 2) * step
        shape = [-1 if i == axis else 1 for i in range(rank)]
        bases.append(places.reshape(shape).astype(n.type(0).dtype))
    rows = []
    for row in range(rank):
        total = entry(row, rank)
        for column, base in enumerate(bases):
            total = b.add(total, b.mul(entry(row, column), base))
        rows.append(b.expand_dims(total, rank + 1))
    return chain(b, rows, rank + 1)


def taps_of(b: Any, u: Any, size: int) -> "list[Tap]":
    """Return the two elements that a coordinate reads bilinearly; 0 outside."""
    return _taps(b, u, size, "linear", "zeros", True)


def read_at(b: Any, rows: Any, axes: "Sequence[Sequence[Tap]]", sizes: Sequence[int]) -> Any:
    """[n, places, c]: the weighted sum over all taps of rows [n, product of sizes, c]."""
    total = None
    for chosen in all_pairs(*axes):
        term = _read(b, rows, chosen, sizes)
        total = term if total is None else b.add(total, term)
    return total


def _placed(b: Any, u: Any, size: int, aligned: bool) -> Any:
    """Return coordinates in [-1, 1] as places of elements."""
    one, half = b.scalar(1, u), b.scalar(0.5, u)
    if aligned:
        return b.mul(b.mul(b.add(u, one), half), b.scalar(size - 1, u))
    return b.mul(b.sub(b.mul(b.add(u, one), b.scalar(size, u)), one), half)


def _zeros(b: Any, u: Any, size: int, aligned: bool) -> Any:
    return u


def _border(b: Any, u: Any, size: int, aligned: bool) -> Any:
    return b.clip(u, b.scalar(0, u), b.scalar(size - 1, u))


def _reflected(b: Any, u: Any, size: int, aligned: bool) -> Any:
    """u mirrored at the centres of the outer elements, or at their outer edges."""
    low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
    span = high - low
    if span <= 0:
        return expand_to(b, b.scalar(0, u), b.dims(u))
    away = b.abs(b.sub(u, b.scalar(low, u)))
    period = b.scalar(2 * span, u)
    rest = b.sub(away, b.mul(b.floor(b.div(away, period)), period))
    mirrored = b.minimum(rest, b.sub(period, rest))
    return b.add(mirrored, b.scalar(low, u))


_PADDINGS = {"zeros": _zeros, "border": _border, "reflection": _reflected}

# An i64 index, a weight or None for 1, and i1 for what lies inside (None: everything).
Tap = tuple[Any, Any, Any]


def _taps(b: Any, u: Any, size: int, mode: str, padding: str, aligned: bool) -> list[Tap]:
    """Return the elements that an axis reads, with their weights."""
    pad = _PADDINGS[padding]
    if mode == "nearest":
        return [_tap(b, b.round(pad(b, u, size, aligned)), None, size, padding, aligned)]
    u = u if mode == "cubic" else pad(b, u, size, aligned)
    below = b.floor(u)
    t = b.sub(u, below)
    if mode == "linear":
        weights = {0: b.sub(b.scalar(1, t), t), 1: t}
    else:
        weights = {k: _cubic(b, b.abs(b.sub(t, b.scalar(k, t))), k) for k in (-1, 0, 1, 2)}
    return [
        _tap(b, b.add(below, b.scalar(k, u)), w, size, padding, aligned) for k, w in weights.items()
    ]


def _cubic(b: Any, d: Any, place: int) -> Any:
    """Return the weight at distance d: below 1 for places 0 and 1, else from 1 to 2."""
    a = _CUBIC
    near, far = (a + 2, -(a + 3), 0.0, 1.0), (a, -5 * a, 8 * a, -4 * a)
    powers = near if place in (0, 1) else far
    out = b.mul(d, b.scalar(powers[0], d))
    for c in powers[1:-1]:
        out = b.mul(b.add(out, b.scalar(c, d)), d)
    return b.add(out, b.scalar(powers[-1], d))


def _tap(b: Any, place: Any, weight: Any, size: int, padding: str, aligned: bool) -> Tap:
    last = b.scalar(size - 1, place)
    inside = None
    if padding == "zeros":
        above = b.compare(place, b.scalar(0, place), predicate="ge")
        inside = b.and_(above, b.compare(place, last, predicate="le"))
    elif padding == "reflection":
        place = b.round(_reflected(b, place, size, aligned))
    index = b.cast(b.clip(place, b.scalar(0, place), last), dtype=I64)
    return index, weight, inside


def _read(b: Any, rows: Any, chosen: tuple[Tap, ...], sizes: Sequence[int]) -> Any:
    """[n, places, c]: one element of each axis, weighted."""
    linear, weight, inside = None, None, None
    for (index, own, fits), size in zip(chosen, sizes, strict=True):
        step = b.constant(np.array(size, np.int64))
        linear = index if linear is None else b.add(b.mul(linear, step), index)
        if own is not None:
            weight = own if weight is None else b.mul(weight, own)
        if fits is not None:
            inside = fits if inside is None else b.and_(inside, fits)
    batch, places = b.dims(linear)
    out = gather_nd(b, rows, reshape_to(b, linear, (batch, places, 1)), 1, 1)
    if inside is not None:
        out = b.select(b.expand_dims(inside, 2), out, b.scalar(0, out))
    return out if weight is None else b.mul(out, b.expand_dims(weight, 2))
