"""XLA's dot_general as one matmul between transposes and reshapes; convolutions as conv2d."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import accumulator, is_float
from pyc_mlir.frontends.hlo.movement import pad_edges, reverse, transposed
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import product, reshape_to
from pyc_mlir.frontends.importing.sizes import Extent


@dataclass(frozen=True)
class DotDims:
    """Which dimensions of each operand are contracted, and which are batches, in pairs."""

    lhs_contract: tuple[int, ...]
    rhs_contract: tuple[int, ...]
    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]


def dot_general(b: Any, lhs: Any, rhs: Any, dims: DotDims, dtype: np.dtype) -> Any:
    """out[batch, free of lhs, free of rhs] = the sum over the contracted dimensions, as `dtype`."""
    wide = computed(b, lhs, rhs, dtype)
    lhs, rhs = b.convert(lhs, wide), b.convert(rhs, wide)
    left, right = b.dims(lhs), b.dims(rhs)
    free_left = _free(len(left), (*dims.lhs_batch, *dims.lhs_contract))
    free_right = _free(len(right), (*dims.rhs_batch, *dims.rhs_contract))
    batch = [left[d] for d in dims.lhs_batch]
    rows = [left[d] for d in free_left]
    columns = [right[d] for d in free_right]
    depth = product([left[d] for d in dims.lhs_contract])
    lhs = transposed(b, lhs, (*dims.lhs_batch, *free_left, *dims.lhs_contract))
    rhs = transposed(b, rhs, (*dims.rhs_batch, *dims.rhs_contract, *free_right))
    keeps_rows = rows and (not batch or len(rows) == 1)
    merged = rows if keeps_rows else [product(rows)]
    lhs = _reshaped(b, lhs, (*batch, *merged, depth))
    rhs = _reshaped(b, rhs, (*batch, depth, product(columns)))
    out = b.convert(b.matmul(lhs, rhs), dtype)
    return _reshaped(b, out, (*batch, *rows, *columns))


def computed(b: Any, lhs: Any, rhs: Any, dtype: np.dtype) -> np.dtype:
    """Return the type to multiply in, which rounds no operand; integers wrap, in `dtype` too."""
    own = [t for v in (lhs, rhs) if is_float(t := b.type_of(v).dtype)]
    widest = max((dtype, *own), key=lambda t: t.itemsize)
    if not is_float(dtype) or all(t == widest or t.itemsize < widest.itemsize for t in own):
        return widest if is_float(dtype) else dtype
    return accumulator(widest)


def _free(rank: int, taken: Sequence[int]) -> tuple[int, ...]:
    return tuple(d for d in range(rank) if d not in taken)


def _reshaped(b: Any, x: Any, target: Sequence[Extent]) -> Any:
    return x if tuple(b.dims(x)) == tuple(target) else reshape_to(b, x, target)


@dataclass(frozen=True)
class ConvDimensions:
    """The positions of the dimensions in a tensor of a convolution.

    outer, inner: batch and feature of an image, output and input feature of weights.
    """

    outer: int
    inner: int
    spatial: tuple[int, ...]

    def order(self, pattern: str) -> tuple[int, ...]:
        """Return the permutation to a layout that is written as "OIHW" or "HWIO"."""
        axes = {"O": (self.outer,), "I": (self.inner,), "S": self.spatial}
        return tuple(d for letter in pattern for d in axes[letter])


@dataclass(frozen=True)
class Convolution:
    """The parameters of XLA's convolution; `pads` has (low, high) for each spatial dimension."""

    image: ConvDimensions
    weight: ConvDimensions
    out: ConvDimensions
    strides: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    image_dilation: tuple[int, ...]
    weight_dilation: tuple[int, ...]
    groups: int = 1
    batch_groups: int = 1
    reversal: tuple[bool, ...] = ()


def convolution(b: Any, x: Any, weight: Any, c: Convolution, dtype: np.dtype) -> Any:
    """Build XLA's convolution over one or two spatial dimensions as pyc.conv2d.

    NCHW images with OIHW weights and NHWC images with HWIO weights are taken as they are, others
    are transposed to NHWC. Dilated images get zeros between their elements.
    """
    rank = len(c.strides)
    if rank not in (1, 2):
        raise unsupported(f"a convolution over {rank} dimensions: expected one or two")
    wide = computed(b, x, weight, dtype)
    x, weight = b.convert(x, wide), b.convert(weight, wide)
    flipped = [d for d, back in zip(c.weight.spatial, c.reversal, strict=False) if back]
    weight = reverse(b, weight, flipped) if flipped else weight
    first = c.image.order("OIS") == tuple(range(rank + 2))
    first = first and c.weight.order("OIS") == c.out.order("OIS") == tuple(range(rank + 2))
    orders = ("OIS", "OIS") if first else ("OSI", "SIO")
    x = transposed(b, x, c.image.order(orders[0]))
    weight = transposed(b, weight, c.weight.order(orders[1]))
    start = 2 if first else 1
    groups = c.groups
    if c.batch_groups > 1:
        x, groups = _batch_groups_as_features(b, x, c, 1 if first else rank + 1)
    for i, dilation in enumerate(c.image_dilation):
        x = pad_edges(b, x, start + i, 0, 0, 0.0, dilation - 1)
    pads = c.pads
    if rank == 1:
        x, weight = b.expand_dims(x, start), b.expand_dims(weight, 2 if first else 0)
        pads = ((0, 0), *pads)
    strides, dilations = (1, *c.strides)[-2:], (1, *c.weight_dilation)[-2:]
    for i, (low, high) in enumerate(pads):
        x = pad_edges(b, x, start + i, min(low, 0), min(high, 0), 0.0, 0)
    pads = [(max(low, 0), max(high, 0)) for low, high in pads]
    out = b.conv2d(
        x,
        weight,
        strides=strides,
        pads=(pads[0][0], pads[1][0], pads[0][1], pads[1][1]),
        dilations=dilations,
        groups=groups,
        layout="NCHW" if first else "NHWC",
    )
    out = b.convert(b.squeeze(out, start) if rank == 1 else out, dtype)
    return transposed(b, out, tuple(np.argsort(c.out.order(orders[0])).tolist()))


def _batch_groups_as_features(b: Any, x: Any, c: Convolution, feature: int) -> tuple[Any, int]:
    """Turn groups of the batch into groups of features: [g * n, ...] to [n, ..., g * c]."""
    if c.groups != 1:
        raise unsupported("groups of features and of batches: expected one of them")
    dims = b.dims(x)
    size, groups = dims[0], c.batch_groups
    if not isinstance(size, int):
        raise unsupported("groups of a dynamic batch: expected a static one")
    x = reshape_to(b, x, (groups, size // groups, *dims[1:]))
    before, after = range(2, feature + 1), range(feature + 2, len(dims) + 1)
    x = b.transpose(x, permutation=(1, *before, 0, feature + 1, *after))
    merged = list(b.dims(x))
    features = groups * dims[feature]
    return reshape_to(b, x, (*merged[:feature], features, *merged[feature + 2 :])), groups
