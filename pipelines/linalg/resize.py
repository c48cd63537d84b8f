"""Resizing images: an axis at a time, each element from its taps along that axis.

Taps are tables. For a size that is known they hold indices into x, for a dynamic one the distances
of a phase's taps from its element (see dialects/ops/resize.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ops.convolution import spatial
from pyc_mlir.dialects.ops.resize import Taps, axis_taps, phase_taps, resized
from pyc_mlir.dialects.types import accumulator
from pyc_mlir.pipelines.linalg import scalar
from pyc_mlir.pipelines.linalg.functions import read
from pyc_mlir.pipelines.linalg.lowering import LoweredDim, LoweredTensor, Lowering, lowers
from pyc_mlir.pipelines.linalg.products import rounded
from pyc_mlir.pipelines.linalg.structured import pointwise, reshape


@dataclass(frozen=True, eq=False)
class ResizeStage:
    """One axis: its taps, the size that they make, and the factor of a dynamic size."""

    axis: int
    taps: Taps
    out: LoweredDim
    factor: int | None

    def growth(self, size: LoweredDim) -> float:
        """Return the elements that one of an axis of `size` becomes."""
        if self.factor is not None:
            return self.factor
        return (self.out.static or 0) / max(size.static or 1, 1)

    def repeats(self, size: LoweredDim) -> int | None:
        """Return how often each element of an axis of `size` repeats in a row; None otherwise."""
        if self.taps.weights is not None:
            return None
        (indices,) = self.taps.indices
        if self.factor is not None:
            return None if indices.any() else self.factor
        known = size.static or 1
        times = len(indices) // known
        same = np.array_equal(indices, np.repeat(np.arange(known), times))
        return times if same and times else None


@lowers("resize")
def resize(
    b: Lowering,
    x: LoweredTensor,
    *,
    sizes: tuple[int, ...],
    scales: tuple[float, ...],
    layout: str,
    mode: str,
    coordinates: str,
    rounding: str,
) -> LoweredTensor:
    """Repeat elements, or add weighted elements gathered along each axis in turn.

    The axis that makes less of x comes first; of two that make the same, the later one, whose
    neighbours are harder to gather.
    """
    stages = []
    for i, axis in enumerate(spatial(layout)):
        size, how = x.dims[axis], (mode, coordinates, rounding)
        scale = scales[i] if scales else None
        if size.static is None:
            factor = int(scales[i])
            stages.append(
                ResizeStage(axis, phase_taps(factor, *how), size * LoweredDim(factor), factor)
            )
        else:
            out = resized(size.static, sizes[i], scale) or 0
            stages.append(
                ResizeStage(axis, axis_taps(size.static, out, scale, *how), LoweredDim(out), None)
            )
    if LoweredDim(0) in (*x.dims, *(stage.out for stage in stages)):
        dims = list(x.dims)
        for stage in stages:
            dims[stage.axis] = stage.out
        return b.empty(dims, x.dtype)
    times = [stage.repeats(x.dims[stage.axis]) for stage in stages]
    if times == [1, 1]:
        return x
    if None not in times:
        return _repeated(b, x, stages, [t or 1 for t in times])
    out, dtype = x, x.dtype if mode == "nearest" else accumulator(x.dtype)
    for stage in sorted(stages, key=lambda s: (s.growth(x.dims[s.axis]), -s.axis)):
        if stage.repeats(x.dims[stage.axis]) != 1:
            out = _gathered(b, out, stage, dtype)
    return rounded(b, out, x.dtype)


def _repeated(
    b: Lowering, x: LoweredTensor, stages: Sequence[ResizeStage], times: Sequence[int]
) -> LoweredTensor:
    """Return each element `times` times along each axis: a broadcast and a reshape."""
    dims: list[LoweredDim] = []
    loops = []
    for axis, size in enumerate(x.dims):
        loops.append(len(dims))
        dims.append(size)
        for stage, count in zip(stages, times, strict=True):
            if stage.axis == axis and count > 1:
                dims.append(LoweredDim(count))
    apart = pointwise(b, [(x, loops)], dims, x.dtype, lambda v, _: v)
    out = list(x.dims)
    for stage in stages:
        out[stage.axis] = stage.out
    return reshape(b, apart, out)


def _gathered(b: Lowering, x: LoweredTensor, stage: ResizeStage, dtype: np.dtype) -> LoweredTensor:
    """Return one axis resized: loops of x with that axis as positions, or as (element, phase)."""
    axis = stage.axis
    own = [stage.out] if stage.factor is None else [x.dims[axis], LoweredDim(stage.factor)]
    dims = [*x.dims[:axis], *own, *x.dims[axis + 1 :]]
    place = axis + len(own) - 1
    count = len(stage.taps.indices)
    tables = [b.constant(t.astype(np.int32)) for t in stage.taps.indices]
    weights = [] if stage.taps.weights is None else [w.astype(dtype) for w in stage.taps.weights]
    source, size = b.value(x), b.count(x.dims[axis])

    def taken(index: ir.Value) -> ir.Value:
        at = b.at(index)
        if stage.factor is not None:
            last = size - 1
            at = (b.loop(axis) + at).at_least(0).at_most(last)
        behind = b.loops(place + 1, place + x.rank - axis)
        value = read(source, *b.loops(0, axis), at, *behind).value
        return value if x.dtype == dtype else scalar.widen(value, x.dtype)

    def body(*values: ir.Value) -> ir.Value:
        parts = [taken(v) for v in values[:count]]
        for i, weight in enumerate(values[count : count + len(weights)]):
            parts[i] = scalar.combine("mul", dtype)(parts[i], weight)
        out = parts[0]
        for part in parts[1:]:
            out = scalar.combine("add", dtype)(out, part)
        return out

    inputs = [(t, (place,)) for t in (*tables, *map(b.constant, weights))]
    out = pointwise(b, inputs, dims, dtype, body)
    return reshape(b, out, [*x.dims[:axis], stage.out, *x.dims[axis + 1 :]])
