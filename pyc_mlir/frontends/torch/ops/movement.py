"""Moving elements: views, joins, slices, pads."""

from itertools import pairwise
from typing import Any

import numpy as np

from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.ops.movement import START as BEGIN
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import (
    chain,
    expand_to,
    merge,
    reshape_to,
    split,
    take,
    vector,
    whole,
)
from pyc_mlir.frontends.importing.sizes import Extent, SymbolicSize
from pyc_mlir.frontends.torch.ops.indexing import diagonal_places
from pyc_mlir.frontends.torch.shared.handler import AtenCall, aten


@aten("alias.default", "clone.default", "contiguous.default", "detach.default",
      "lift_fresh_copy.default", "lift_fresh.default", "lift.default", "_conj.default",
      "positive.default")  # fmt: skip
def identity(n: AtenCall) -> Any:
    """out = x."""
    return n.x()


@aten("view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default",
      "squeeze.default", "squeeze.dim", "squeeze.dims", "flatten.using_ints",
      "unflatten.int", "view_as.default", "reshape_as.default")  # fmt: skip
def reshape(n: AtenCall) -> Any:
    """Reshape x to the shape of the result."""
    return reshape_to(n.b, n.x(), n.out_dims)


@aten("permute.default", "transpose.int", "t.default", "numpy_T.default", "movedim.int",
      "swapaxes.default")  # fmt: skip
def permute(n: AtenCall) -> Any:
    """Put the dimensions in another order."""
    rank = n.rank()
    if n.op == "permute":
        order = [int(d) % max(rank, 1) for d in n.static("dims")]
    elif n.op in ("t", "numpy_T"):
        order = list(range(rank))[::-1]
    elif n.op == "movedim":
        order = [a for a in range(rank) if a != n.axis("source")]
        order.insert(n.axis("destination"), n.axis("source"))
    else:
        order = list(range(rank))
        names = ("dim0", "dim1") if n.op == "transpose" else ("axis0", "axis1")
        first, second = (n.axis(name) for name in names)
        if rank:
            order[first], order[second] = order[second], order[first]
    return n.b.transpose(n.x(), permutation=tuple(order)) if rank else n.x()


@aten("expand.default", "expand_as.default", "broadcast_to.default")
def expand(n: AtenCall) -> Any:
    """x broadcast to the shape of the result."""
    return expand_to(n.b, n.x(), n.out_dims)


@aten("slice.Tensor")
def slice_(n: AtenCall) -> Any:
    """x[start:end:step] along `dim`; with bounds computed from dimensions, a gather."""
    axis, step = n.axis("dim", 0), n.static("step", 1)
    start, end = n.arg("start", 0), n.arg("end", END)
    size, length = n.dims()[axis], n.out_dims[axis]
    if length == size and step == 1:
        return n.x()
    if isinstance(start, SymbolicSize) or isinstance(end, SymbolicSize):
        return _window(n, axis, start, length, step)
    return take(n.b, n.x(), axis, int(start), END if end >= END else int(end), int(step))


def _window(n: AtenCall, axis: int, start: Extent, length: Extent, step: int) -> Any:
    """`length` elements of x from `start` along an axis."""
    b = n.b
    index = vector(b, length)
    if step != 1:
        index = b.mul(index, np.array(step, np.int64))
    if start != 0:
        index = b.add(
            index, b.extent(start) if isinstance(start, SymbolicSize) else np.array(start)
        )
    return b.gather(n.x(), index, axis=axis)


@aten("narrow.default")
def narrow(n: AtenCall) -> Any:
    """`length` elements from `start` along `dim`."""
    return _window(n, n.axis(), n.arg("start"), n.arg("length"), 1)


@aten("select.int")
def select(n: AtenCall) -> Any:
    """x at one index of `dim`."""
    index = n.arg("index")
    if isinstance(index, SymbolicSize):
        return n.b.gather(n.x(), n.b.extent(index), axis=n.axis())
    stop = END if index == -1 else index + 1
    piece = take(n.b, n.x(), n.axis(), index, stop)
    return reshape_to(n.b, piece, n.out_dims)


@aten("cat.default")
def concat(n: AtenCall) -> Any:
    """Join the tensors one after the other along `dim`; torch lets empty vectors among them."""
    values = n.xs("tensors", n.dtype)
    rank = max(n.b.type_of(v).rank for v in values)
    kept = [v for v in values if n.b.type_of(v).rank == rank]
    return chain(n.b, kept, n.static("dim", 0) % rank)


@aten("stack.default")
def stack(n: AtenCall) -> Any:
    """Join the tensors along a new dimension `dim`."""
    values = n.xs("tensors", n.dtype)
    axis = n.static("dim", 0) % (n.b.type_of(values[0]).rank + 1)
    return chain(n.b, [n.b.expand_dims(v, axis) for v in values], axis)


@aten("split.Tensor", "split_with_sizes.default", "split.sizes", "unbind.int",
      "chunk.default", "tensor_split.sections")  # fmt: skip
def pieces(n: AtenCall) -> Any:
    """Split into consecutive pieces along `dim`, of the results' sizes; unbind drops `dim`."""
    axis = n.axis("dim", 0)
    if n.op == "unbind":
        parts = [take(n.b, n.x(), axis, i, i + 1) for i in range(len(n.results))]
        return tuple(n.b.squeeze(p, axis) for p in parts)
    sizes = [n.dims_of(r.shape)[axis] for r in n.results]
    if any(isinstance(s, SymbolicSize) for s in sizes):
        return _dynamic_pieces(n, axis, sizes)
    bounds = np.cumsum([0, *(int(s) for s in sizes)])  # pyright: ignore[reportArgumentType]
    return tuple(take(n.b, n.x(), axis, int(a), int(b)) for a, b in pairwise(bounds))


def _dynamic_pieces(n: AtenCall, axis: int, sizes: list[Extent]) -> tuple[Any, ...]:
    """Split into pieces of which the last may be dynamic."""
    if any(isinstance(s, SymbolicSize) for s in sizes[:-1]):
        raise unsupported("pieces of dynamic sizes: expected static ones before the last")
    bounds = np.cumsum([0, *(int(s) for s in sizes[:-1])])  # pyright: ignore[reportArgumentType]
    parts = [take(n.b, n.x(), axis, int(a), int(b)) for a, b in pairwise(bounds)]
    return *parts, take(n.b, n.x(), axis, int(bounds[-1]), END)


@aten("repeat.default", "tile.default")
def repeat(n: AtenCall) -> Any:
    """x repeated along each dimension, new leading ones included."""
    b, counts = n.b, list(n.arg("repeats" if n.op == "repeat" else "dims"))
    rank = n.rank()
    counts = [1] * (rank - len(counts)) + counts
    x = reshape_to(b, n.x(), (*(1,) * (len(counts) - rank), *n.dims()))
    for axis, count in enumerate(counts):
        if count == 1:
            continue
        dims = b.dims(x)
        if dims[axis] == 1:
            x = expand_to(b, x, (*dims[:axis], count, *dims[axis + 1 :]))
            continue
        apart = split(b, x, axis, (1, dims[axis]))
        x = merge(b, expand_to(b, apart, (*dims[:axis], count, *dims[axis:])), axis)
    return x


@aten("constant_pad_nd.default")
def constant_pad(n: AtenCall) -> Any:
    """pyc.pad; negative pads cut."""
    return padded(n.b, n.x(), n.ints("pad"), n.static("value", 0))


def padded(b: Any, x: Any, pads: tuple[int, ...], value: float) -> Any:
    """x with (low, high) pads from the last dimension on, as torch lists them."""
    rank = b.type_of(x).rank
    low, high = [0] * rank, [0] * rank
    for i in range(len(pads) // 2):
        axis = rank - 1 - i
        low[axis], high[axis] = pads[2 * i], pads[2 * i + 1]
    starts, stops, steps = (list(v) for v in whole(rank))
    for axis in range(rank):
        starts[axis] = max(0, -low[axis])
        stops[axis] = high[axis] if high[axis] < 0 else END
    if any(starts) or any(s != END for s in stops):
        x = b.slice(x, starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))
    low, high = [max(0, v) for v in low], [max(0, v) for v in high]
    if not any(low) and not any(high):
        return x
    if b.type_of(x).dtype == bool:
        value = bool(value)
    return b.pad(x, low=tuple(low), high=tuple(high), value=float(value))


@aten(*(f"{kind}_pad{rank}d.default" for kind in ("reflection", "replication")
        for rank in (1, 2, 3)))  # fmt: skip
def mirrored_pad(n: AtenCall) -> Any:
    """Repeat the border, or reflect x about it: gathers of known indices."""
    b, x, pads = n.b, n.x(), n.ints("padding")
    rank = n.rank()
    for i in range(len(pads) // 2):
        axis = rank - 1 - i
        size = b.type_of(x).shape[axis]
        if size is None:
            raise unsupported(f"{n.op} of a dynamic dimension: expected a static one")
        places = np.arange(-pads[2 * i], size + pads[2 * i + 1])
        if n.op.startswith("reflection"):
            period = max(2 * (size - 1), 1)
            places = np.abs((places + size - 1) % period - (size - 1))
        x = b.gather(x, b.constant(np.clip(places, 0, size - 1).astype(np.int64)), axis=axis)
    return x


@aten("roll.default")
def roll(n: AtenCall) -> Any:
    """x shifted along `dims`, what leaves at one end enters at the other."""
    shifts, dims, x = n.ints("shifts"), n.ints("dims", ()), n.x()
    if not dims:
        flat = _rolled(n.b, n.b.reshape(x, shape=(-1,)), 0, shifts[0])
        return reshape_to(n.b, flat, n.out_dims)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(n.b, x, dim % n.rank(), shift)
    return x


def _rolled(b: Any, x: Any, axis: int, shift: int) -> Any:
    size = b.type_of(x).shape[axis]
    if size is not None:
        shift %= max(size, 1)
    if not shift or not size:
        if shift and size is None:
            raise unsupported("a roll along a dynamic dimension: expected a static one")
        return x
    parts = take(b, x, axis, size - shift, END), take(b, x, axis, 0, size - shift)
    return b.concat(*parts, axis=axis)


@aten("pixel_shuffle.default")
def pixel_shuffle(n: AtenCall) -> Any:
    """[..., c r r, h, w] as [..., c, h r, w r]. Shi et al., 2016."""
    factor, rank = n.static("upscale_factor"), n.rank()
    channels = n.type().shape[rank - 3]
    if channels is None:
        raise unsupported("a dynamic number of channels: expected a static one")
    x = split(n.b, n.x(), rank - 3, (channels // factor**2, factor, factor))
    order = (*range(rank - 2), rank, rank - 2, rank + 1, rank - 1)
    return reshape_to(n.b, n.b.transpose(x, permutation=order), n.out_dims)


@aten("tril.default", "triu.default")
def triangle(n: AtenCall) -> Any:
    """x where column <= row + diagonal (>= for triu), 0 elsewhere."""
    b, x = n.b, n.x()
    rank = n.rank()
    rows, columns = b.iota_like(x, rank - 2), b.iota_like(x, rank - 1)
    bound = b.add(rows, b.constant(np.array(n.static("diagonal", 0), np.int64)))
    kept = b.compare(columns, bound, predicate="le" if n.op == "tril" else "ge")
    return b.select(kept, x, b.constant(np.zeros((), n.dtype)))


@aten("diagonal.default")
def diagonal(n: AtenCall) -> Any:
    """Take a diagonal of two dimensions as the last dimension: by linear index."""
    b, x = n.b, n.x()
    rank = n.rank()
    first, second = n.axis("dim1", 0), n.axis("dim2", 1)
    rest = [a for a in range(rank) if a not in (first, second)]
    x = b.transpose(x, permutation=(*rest, first, second))
    rows, columns = b.type_of(x).shape[-2:]
    if rows is None or columns is None:
        raise unsupported("a diagonal of dynamic dimensions: expected static ones")
    places = diagonal_places(rows, columns, n.static("offset", 0))
    return b.gather(merge(b, x, len(rest)), b.constant(places), axis=len(rest))


@aten("unfold.default")
def unfold(n: AtenCall) -> Any:
    """Gather windows of `size` every `step` along `dimension`, elements as the last dimension."""
    b, x = n.b, n.x()
    axis, size, step = n.axis("dimension"), n.static("size"), n.static("step")
    length = n.type().shape[axis]
    if length is None:
        raise unsupported("windows along a dynamic dimension: expected a static one")
    count = (length - size) // step + 1
    places = np.arange(count)[:, None] * step + np.arange(size)
    x = b.gather(x, b.constant(places.astype(np.int64)), axis=axis)
    rank = b.type_of(x).rank
    order = [a for a in range(rank) if a != axis + 1]
    return b.transpose(x, permutation=(*order, axis + 1))


@aten("flip.default")
def flip(n: AtenCall) -> Any:
    """x with the order along `dims` reversed."""
    starts, stops, steps = (list(v) for v in whole(n.rank()))
    for axis in {int(a) % n.rank() for a in n.static("dims")} if n.rank() else ():
        starts[axis], stops[axis], steps[axis] = END, BEGIN, -1
    return n.b.slice(n.x(), starts=tuple(starts), stops=tuple(stops), steps=tuple(steps))
