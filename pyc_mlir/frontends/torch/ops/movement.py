"""Moving elements: views, joins, slices, pads."""

from typing import Any

import numpy as np

from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.ops.movement import START as BEGIN
from pyc_mlir.frontends.importing.shaping import (
    chain,
    cut,
    expand_to,
    merge,
    reshape_to,
    split,
    take,
    whole,
    window,
)
from pyc_mlir.frontends.importing.sizes import SymbolicSize
from pyc_mlir.frontends.torch.ops.handler import AtenCall, aten, promoted, static_size


@aten("alias.default", "clone.default", "contiguous.default", "detach.default",
      "lift_fresh_copy.default", "lift_fresh.default", "lift.default", "_conj.default",
      "positive.default")  # fmt: skip
def identity(b: Any, x: Any) -> Any:
    """out = x."""
    return x


@aten("view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default",
      "squeeze.default", "squeeze.dim", "squeeze.dims", "flatten.using_ints",
      "unflatten.int", "view_as.default", "reshape_as.default")  # fmt: skip
def reshape(n: AtenCall, x: Any) -> Any:
    """Reshape x to the shape of the result."""
    return reshape_to(n.b, x, n.out_dims)


@aten("permute.default")
def permute(b: Any, x: Any, dims: list[int]) -> Any:
    """Put the dimensions in another order."""
    return _ordered(b, x, [int(d) % max(len(dims), 1) for d in dims])


@aten("t.default", "numpy_T.default")
def reverse_dimensions(b: Any, x: Any) -> Any:
    """Put the dimensions in the reverse order."""
    return _ordered(b, x, list(range(b.type_of(x).rank))[::-1])


@aten("movedim.int")
def move_dimension(n: AtenCall, x: Any) -> Any:
    """Put one dimension to another place."""
    order = [a for a in range(n.rank()) if a != n.axis("source")]
    order.insert(n.axis("destination"), n.axis("source"))
    return _ordered(n.b, x, order)


@aten("transpose.int", "swapaxes.default")
def transpose(b: Any, x: Any, first: int, second: int) -> Any:
    """Exchange two dimensions."""
    order = list(range(b.type_of(x).rank))
    if order:
        order[first], order[second] = order[second], order[first]
    return _ordered(b, x, order)


def _ordered(b: Any, x: Any, order: list[int]) -> Any:
    return b.transpose(x, permutation=tuple(order)) if b.type_of(x).rank else x


@aten("expand.default", "expand_as.default", "broadcast_to.default")
def expand(n: AtenCall, x: Any) -> Any:
    """x broadcast to the shape of the result."""
    return expand_to(n.b, x, n.out_dims)


@aten("slice.Tensor")
def slice_(n: AtenCall, x: Any, *, step: int = 1) -> Any:
    """x[start:end:step] along `dim`; with bounds computed from dimensions, a gather."""
    axis = n.axis("dim", 0)
    start, end = n.arg("start", 0), n.arg("end", END)
    length = n.out_dims[axis]
    if length == n.dims()[axis] and step == 1:
        return x
    if isinstance(start, SymbolicSize) or isinstance(end, SymbolicSize):
        return window(n.b, x, axis, start, length, step)
    return take(n.b, x, axis, int(start), END if end >= END else int(end), int(step))


@aten("narrow.default")
def narrow(n: AtenCall, x: Any) -> Any:
    """`length` elements from `start` along `dim`."""
    return window(n.b, x, n.axis(), n.arg("start"), n.arg("length"))


@aten("select.int")
def select(n: AtenCall, x: Any) -> Any:
    """x at one index of `dim`."""
    index = n.arg("index")
    if isinstance(index, SymbolicSize):
        return n.b.gather(x, n.b.extent(index), axis=n.axis())
    piece = take(n.b, x, n.axis(), index, END if index == -1 else index + 1)
    return reshape_to(n.b, piece, n.out_dims)


@promoted("cat.default")
def concat(b: Any, values: list[Any], *, dim: int = 0) -> Any:
    """Join the tensors one after the other along `dim`; torch lets empty vectors among them."""
    rank = max(b.type_of(v).rank for v in values)
    return chain(b, [v for v in values if b.type_of(v).rank == rank], dim % rank)


@promoted("stack.default")
def stack(b: Any, values: list[Any], *, dim: int = 0) -> Any:
    """Join the tensors along a new dimension `dim`."""
    axis = dim % (b.type_of(values[0]).rank + 1)
    return chain(b, [b.expand_dims(v, axis) for v in values], axis)


@aten("split.Tensor", "split_with_sizes.default", "split.sizes", "unbind.int",
      "chunk.default", "tensor_split.sections")  # fmt: skip
def pieces(n: AtenCall, x: Any) -> Any:
    """Split into consecutive pieces along `dim`, of the results' sizes; unbind drops `dim`."""
    b, axis = n.b, n.axis("dim", 0)
    if n.op == "unbind":
        parts = [take(b, x, axis, i, i + 1) for i in range(len(n.results))]
        return tuple(b.squeeze(p, axis) for p in parts)
    return cut(b, x, axis, [n.dims_of(r.shape)[axis] for r in n.results])


@aten("repeat.default", "tile.default")
def repeat(n: AtenCall, x: Any) -> Any:
    """x repeated along each dimension, new leading ones included."""
    b, rank, counts = n.b, n.rank(), list(n.arg("repeats" if n.op == "repeat" else "dims"))
    counts = [1] * (rank - len(counts)) + counts
    x = reshape_to(b, x, (*(1,) * (len(counts) - rank), *n.dims()))
    for axis, count in enumerate(counts):
        dims = b.dims(x)
        if count == 1:
            continue
        if dims[axis] == 1:
            x = expand_to(b, x, (*dims[:axis], count, *dims[axis + 1 :]))
        else:
            apart = split(b, x, axis, (1, dims[axis]))
            x = merge(b, expand_to(b, apart, (*dims[:axis], count, *dims[axis:])), axis)
    return x


@aten("constant_pad_nd.default")
def constant_pad(b: Any, x: Any, pads: list[int], value: float = 0) -> Any:
    """pyc.pad; negative pads cut. `pads` are (low, high) from the last dimension on."""
    rank = b.type_of(x).rank
    low, high = [0] * rank, [0] * rank
    for i, side in enumerate(pads):
        (high if i % 2 else low)[rank - 1 - i // 2] = int(side)
    starts = tuple(max(0, -v) for v in low)
    stops = tuple(v if v < 0 else END for v in high)
    if any(starts) or any(s != END for s in stops):
        x = b.slice(x, starts=starts, stops=stops, steps=(1,) * rank)
    low, high = [max(0, v) for v in low], [max(0, v) for v in high]
    if not any(low) and not any(high):
        return x
    if b.type_of(x).dtype == bool:
        value = bool(value)
    return b.pad(x, low=tuple(low), high=tuple(high), value=float(value))


@aten(*(f"{kind}_pad{rank}d.default" for kind in ("reflection", "replication")
        for rank in (1, 2, 3)))  # fmt: skip
def mirrored_pad(n: AtenCall, x: Any, pads: list[int]) -> Any:
    """Repeat the border, or reflect x about it: gathers of known indices."""
    b, rank = n.b, n.rank()
    for i in range(len(pads) // 2):
        axis = rank - 1 - i
        size = static_size(b, x, axis, f"{n.op} of a dynamic dimension")
        places = np.arange(-pads[2 * i], size + pads[2 * i + 1])
        if n.op.startswith("reflection"):
            period = max(2 * (size - 1), 1)
            places = np.abs((places + size - 1) % period - (size - 1))
        x = b.gather(x, b.constant(np.clip(places, 0, size - 1).astype(np.int64)), axis=axis)
    return x


@aten("roll.default")
def roll(n: AtenCall, x: Any, shifts: list[int], dims: list[int]) -> Any:
    """x shifted along `dims`, what leaves at one end enters at the other."""
    if not dims:
        flat = _rolled(n.b, n.b.reshape(x, shape=(-1,)), 0, shifts[0])
        return reshape_to(n.b, flat, n.out_dims)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(n.b, x, dim % n.rank(), shift)
    return x


def _rolled(b: Any, x: Any, axis: int, shift: int) -> Any:
    if not shift:
        return x
    size = static_size(b, x, axis, "a roll along a dynamic dimension")
    shift %= max(size, 1)
    if not shift:
        return x
    parts = take(b, x, axis, size - shift, END), take(b, x, axis, 0, size - shift)
    return b.concat(*parts, axis=axis)


@aten("pixel_shuffle.default")
def pixel_shuffle(n: AtenCall, x: Any, factor: int) -> Any:
    """[..., c r r, h, w] as [..., c, h r, w r]. Shi et al., 2016."""
    b, rank = n.b, n.rank()
    channels = static_size(b, x, rank - 3, "a dynamic number of channels")
    x = split(b, x, rank - 3, (channels // factor**2, factor, factor))
    order = (*range(rank - 2), rank, rank - 2, rank + 1, rank - 1)
    return reshape_to(b, b.transpose(x, permutation=order), n.out_dims)


@aten("tril.default", "triu.default")
def triangle(n: AtenCall, x: Any, diagonal: int = 0) -> Any:
    """x where column <= row + diagonal (>= for triu), 0 elsewhere."""
    b, rank = n.b, n.rank()
    rows, columns = b.iota_like(x, rank - 2), b.iota_like(x, rank - 1)
    bound = b.add(rows, b.constant(np.array(diagonal, np.int64)))
    kept = b.compare(columns, bound, predicate="le" if n.op == "tril" else "ge")
    return b.select(kept, x, b.constant(np.zeros((), n.dtype)))


@aten("unfold.default")
def unfold(n: AtenCall, x: Any, *, size: int, step: int) -> Any:
    """Gather windows of `size` every `step` along `dimension`, elements as the last dimension."""
    b, rank, axis = n.b, n.rank(), n.axis("dimension")
    length = static_size(b, x, axis, "windows along a dynamic dimension")
    count = (length - size) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(size)
    x = b.gather(x, b.constant(places.astype(np.int64)), axis=axis)
    order = (a for a in range(rank + 1) if a != axis + 1)
    return b.transpose(x, permutation=(*order, axis + 1))


@aten("flip.default")
def flip(b: Any, x: Any, dims: list[int]) -> Any:
    """x with the order along `dims` reversed."""
    rank = b.type_of(x).rank
    starts, stops, steps = (list(v) for v in whole(rank))
    for axis in {int(a) % rank for a in dims} if rank else ():
        starts[axis], stops[axis], steps[axis] = END, BEGIN, -1
    return b.slice(x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))
