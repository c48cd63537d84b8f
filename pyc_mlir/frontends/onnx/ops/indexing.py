"""Gathers and scatters by tensors of indices, TopK, and what selects by known positions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import BOOL, DTYPES, I64
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.indexing import (
    gather_nd,
    scatter_along,
    scatter_nd,
    take_along,
    top_k,
)
from pyc_mlir.frontends.importing.shaping import expand_to, product, reshape_to
from pyc_mlir.frontends.importing.sizes import Extent
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node


@node("GatherElements")
def gather_elements(n: OnnxNode) -> Any:
    """out[i, j, ...] = x[indices[i, j, ...], j, ...] for axis 0."""
    axis = n.attr("axis", 0) % n.type().rank
    n.b.declare_indices(n.x(1), n.dims(0)[axis])
    return take_along(n.b, n.x(0), n.x(1), axis)


@node("GatherND")
def gather_vectors(n: OnnxNode) -> Any:
    """out[i, ...] = x[indices[i]]: the last dimension of `indices` holds vectors of indices."""
    depth, batch = _depth(n), n.attr("batch_dims", 0)
    _declare_vectors(n, n.dims(0)[batch : batch + depth])
    return gather_nd(n.b, n.x(0), n.x(1), depth, batch)


def _declare_vectors(n: OnnxNode, sizes: Sequence[Extent]) -> None:
    """Declare the range of vectors of indices: that of the largest size, where it is known."""
    known = [s for s in sizes if isinstance(s, int)]
    if len(known) == len(sizes):
        n.b.declare_indices(n.x(1), max(known))
    else:
        # Of one size, that size; several have no range that an argument's axis tells.
        n.b.declare_indices(n.x(1), product(sizes))


def _depth(n: OnnxNode) -> int:
    """Return the length of the vectors of indices."""
    depth = n.type(1).shape[-1] if n.type(1).rank else None
    if depth is None:
        raise unsupported("index vectors of dynamic length: expected a static one")
    if not 0 < depth <= n.type().rank - n.attr("batch_dims", 0):
        raise PycError(
            ReasonCode.BAD_MODEL,
            f"`indices`: expected vectors of 1 to {n.type().rank} indices, got {depth}",
        )
    return depth


def _scattered(n: OnnxNode, scatter: Any, *how: int) -> Any:
    """Build the scatter; i1 goes by way of i8, which has reductions."""
    reduction = n.attr("reduction", "none")
    if n.type().dtype != BOOL:
        return scatter(n.b, n.x(0), n.x(1), n.x(2), *how, reduction)
    x, updates = (n.b.cast(n.x(i), dtype=DTYPES["i8"]) for i in (0, 2))
    names = {"add": "max", "mul": "min"}
    out = scatter(n.b, x, n.x(1), updates, *how, names.get(reduction, reduction))
    return n.b.cast(out, dtype=BOOL)


@node("ScatterElements", "Scatter")
def scatter_elements(n: OnnxNode) -> Any:
    """x with elements at `indices` along `axis` replaced, or combined with the updates."""
    axis = n.attr("axis", 0) % n.type().rank
    n.b.declare_indices(n.x(1), n.dims(0)[axis])
    return _scattered(n, scatter_along, axis)


@node("ScatterND")
def scatter_vectors(n: OnnxNode) -> Any:
    """x with slices at vectors of indices replaced, or combined with the updates."""
    _declare_vectors(n, n.dims(0)[: _depth(n)])
    return _scattered(n, scatter_nd, _depth(n))


@node("TopK")
def topk(n: OnnxNode) -> Any:
    """Build the k greatest or least elements along `axis`, in order, and their indices."""
    count = int(n.scalar(1, "k"))
    n.attr("sorted")  # In order they are in any order.
    axis = n.attr("axis", -1) % n.type().rank
    size = n.type().shape[axis]
    if count < 0 or (size is not None and count > size):
        raise PycError(ReasonCode.BAD_MODEL, f"`k`: expected 0 to {size}, got {count}")
    return top_k(n.b, n.x(), count, axis, bool(n.attr("largest", 1)))


@node("TensorScatter")
def tensor_scatter(n: OnnxNode) -> Any:
    """Write the rows of `update` into a cache from write_indices[batch] on, along `axis`."""
    b, axis = n.b, n.attr("axis", -2) % n.type().rank
    rank = n.type().rank
    places = b.iota_like(n.x(1), axis)
    if n.has(2):
        places = b.add(places, b.align(b.convert(n.x(2), I64), 0, rank))
    if n.attr("mode", "linear") == "circular":
        places = b.rem(places, b.size(n.x(0), axis))
    return scatter_along(b, n.x(0), expand_to(b, places, n.dims(1)), n.x(1), axis)


@node("Compress")
def compress(n: OnnxNode) -> Any:
    """Select slices along `axis`, or elements of the flattened x, by a known condition."""
    chosen = np.flatnonzero(n.known(1, "condition")).astype(np.int64)
    axis, x = n.attr("axis"), n.x()
    if axis is None:
        x, axis = n.b.reshape(x, shape=(-1,)), 0
    return n.b.gather(x, n.b.constant(chosen), axis=axis)


@node("ReverseSequence")
def reverse_sequence(n: OnnxNode) -> Any:
    """Reverse the first sequence_lens[i] steps of sequence i; the rest stay as they are."""
    b, time, batch = n.b, n.attr("time_axis", 0), n.attr("batch_axis", 1)
    rank = n.type().rank
    lengths = b.align(b.convert(n.x(1), I64), batch, rank)
    step = b.iota_like(n.x(), time)
    one = b.constant(np.array(1, np.int64))
    inside = b.compare(step, lengths, predicate="lt")
    index = b.select(inside, b.sub(b.sub(lengths, one), step), step)
    order = (batch, time, *(i for i in range(rank) if i not in (batch, time)))
    x = b.transpose(n.x(), permutation=order)
    flat = b.transpose(index, permutation=order)
    dims = b.dims(x)
    rows = reshape_to(b, flat, (dims[0], dims[1], 1))
    out = gather_nd(b, x, rows, 1, 1)
    return b.transpose(out, permutation=tuple(order.index(i) for i in range(rank)))
