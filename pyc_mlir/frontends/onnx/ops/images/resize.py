"""Resize: images along height and width in one op, other axes one at a time.

Interpolation is separable, so that any axes can be resized in turn. Upsample of opset 7 to 9 and
Resize of opset 10 come here converted, with `asymmetric` coordinates and `SIMPLE` rounding.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ops.resize import COORDINATES, ROUNDINGS
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import product, reshape_to
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize, Untracked, quotient
from pyc_mlir.frontends.onnx.shared.handler import SIMPLE, OnnxNode, node
from pyc_mlir.frontends.onnx.shared.resampling import ResampledAxis, by_matrices, needs_matrices

# Exporters write these beside modes that do not read them too.
_OF_SOME_FORMS = (
    "antialias", "cubic_coeff_a", "exclude_outside", "extrapolation_value",
    "nearest_mode",
)  # fmt: skip


@node("Resize")
def resize(n: OnnxNode) -> Any:
    """pyc.resize along height and width, NCHW or NHWC; of other axes one after the other."""
    if n.has(1):
        n.x(1)  # `roi` is read with tf_crop_and_resize alone.
    mode = n.attr("mode", "nearest")
    for name in _OF_SOME_FORMS:
        n.attr(name)
    if needs_matrices(n, mode):
        return by_matrices(n, mode, _targets(n))
    if mode not in ("nearest", "linear"):
        raise unsupported(f"mode={mode}: expected nearest or linear")
    coordinates = n.attr("coordinate_transformation_mode", "half_pixel")
    if coordinates not in COORDINATES:
        raise unsupported(f"coordinates {coordinates}: expected one of {', '.join(COORDINATES)}")
    targets = _targets(n)
    rounding = _rounding(n, targets)
    how = {"mode": mode, "coordinates": coordinates, "rounding": rounding}
    x, rank = n.x(), n.type().rank
    for layout, spatial in (("NCHW", (2, 3)), ("NHWC", (1, 2))):
        if rank == 4 and set(targets) <= set(spatial):
            return _images(n.b, x, spatial, targets, layout=layout, **how)
    for axis, target in sorted(targets.items(), key=lambda item: item[1].scale):
        x = _one_axis(n.b, x, axis, target, **how)
    return x


def _rounding(n: OnnxNode, targets: dict[int, ResampledAxis]) -> str:
    mode = n.attr("nearest_mode", "round_prefer_floor")
    if mode == SIMPLE:
        kinds = {"floor" if t.scale >= 1 else "ceil" for t in targets.values()}
        if len(kinds) > 1:
            raise unsupported(
                "opset 10 with an axis enlarged and another shrunk: expected one kind"
            )
        return kinds.pop() if kinds else "floor"
    if mode not in ROUNDINGS:
        raise PycError(ReasonCode.BAD_MODEL, f"`nearest_mode`: expected an ONNX mode, got {mode}")
    return mode


def _targets(n: OnnxNode) -> dict[int, ResampledAxis]:
    """Return the axes that change, from `scales` or `sizes`."""
    dims = n.dims()
    rank = len(dims)
    axes = [a % rank for a in n.attr("axes", range(rank))]
    given = [i for i in (2, 3) if n.has(i) and not _is_empty(n, i)]
    if len(given) != 1:
        raise PycError(ReasonCode.BAD_MODEL, "expected either `scales` or `sizes`")
    if given == [2]:
        values: Sequence[Any] = [float(s) for s in n.known(2, "scales").reshape(-1)]
    else:
        values = n.extents(3, "sizes")
    if len(values) != len(axes) or len(set(axes)) < len(axes):
        raise PycError(ReasonCode.BAD_MODEL, f"expected a value for each of {rank} axes")
    pairs = list(zip(axes, values, strict=True))
    if given == [2]:
        found = {a: _scaled(dims[a], s) for a, s in pairs}
    elif (policy := n.attr("keep_aspect_ratio_policy", "stretch")) == "stretch":
        found = {a: _sized(dims[a], s) for a, s in pairs}
    else:
        found = _kept_ratio(policy, [(a, dims[a], s) for a, s in pairs])
    return {a: t for a, t in found.items() if t is not None}


def _is_empty(n: OnnxNode, index: int) -> bool:
    """Return True for an empty tensor, which means none, as a missing input does."""
    value = n.operands[index]
    return isinstance(value, np.ndarray) and value.size == 0


def _scaled(size: Extent, scale: float) -> ResampledAxis | None:
    if not 0 < scale < np.inf:
        raise PycError(ReasonCode.BAD_MODEL, f"`scales`: expected numbers > 0, got {scale}")
    if scale == 1:
        return None
    if not isinstance(size, SymbolicSize):
        # In f32, as ONNX multiplies: 10 * 0.7 is 7, of which the exact product falls short.
        return ResampledAxis(int(np.float32(size) * np.float32(scale)), scale)
    if scale != int(scale):
        raise unsupported(f"scale {scale} of a dynamic dimension: expected an integer")
    return ResampledAxis(-1, scale)


def _sized(size: Extent, wanted: Extent) -> ResampledAxis | None:
    if size == wanted:
        return None
    if not isinstance(size, SymbolicSize) and not isinstance(wanted, SymbolicSize):
        return ResampledAxis(wanted, wanted / max(size, 1))
    try:
        factor = quotient(wanted, size)
    except Untracked:
        factor = size
    if isinstance(factor, SymbolicSize):
        raise unsupported(f"a size {wanted} of {size}: expected static ones, or a multiple of it")
    return ResampledAxis(-1, float(factor))


def _kept_ratio(
    policy: str, axes: Sequence[tuple[int, Extent, Extent]]
) -> dict[int, ResampledAxis]:
    """Apply the least or the greatest scale to all axes."""
    if policy not in ("not_larger", "not_smaller"):
        known = "stretch, not_larger or not_smaller"
        raise PycError(ReasonCode.BAD_MODEL, f"`keep_aspect_ratio_policy`: expected {known}")
    known_sizes = [(a, i, o) for a, i, o in axes if isinstance(i, int) and isinstance(o, int)]
    if len(known_sizes) < len(axes):
        raise unsupported("keep_aspect_ratio_policy with dynamic dimensions: expected static ones")
    ratios = [o / max(i, 1) for _, i, o in known_sizes]
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return {a: ResampledAxis(int(scale * i + 0.5), scale) for a, i, _ in known_sizes}


def _images(
    b: Any, x: Any, spatial: Sequence[int], targets: dict[int, ResampledAxis], **how: str
) -> Any:
    """Resize height and width at once. A scale that is result / x is not stated."""
    sizes, scales, stated = [], [], False
    for axis in spatial:
        size = b.type_of(x).shape[axis]
        target = targets.get(axis, ResampledAxis(-1 if size is None else size, 1.0))
        sizes.append(target.size)
        scales.append(target.scale)
        stated |= size is None or target.scale != target.size / max(size, 1)
    if not targets:
        return x
    return b.resize(x, sizes=tuple(sizes), scales=tuple(scales) if stated else (), **how)


def _one_axis(b: Any, x: Any, axis: int, target: ResampledAxis, **how: str) -> Any:
    """x as [1, all before, axis, all after] and back."""
    dims = b.dims(x)
    flat = reshape_to(b, x, (1, product(dims[:axis]), dims[axis], product(dims[axis + 1 :])))
    out = _images(b, flat, (2, 3), {2: target}, layout="NCHW", **how)
    return reshape_to(b, out, (*dims[:axis], b.dims(out)[2], *dims[axis + 1 :]))
