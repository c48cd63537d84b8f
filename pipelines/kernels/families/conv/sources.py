"""Images whose channels lie in several tensors, or in some of the channels of a larger one.

A window that reads a concatenation of channels reads its parts, one that reads a slice of channels
reads the tensor that the slice is of: neither is ever stored. `find_parts` finds the parts that a
group of ops begins with, `pieces` gives a kernel their memory. Images of f16 or bf16 of which
numbers are broadcast, which from a half takes several instructions, are widened to f32 first, row
by row, in vectors (`widen`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.ops.movement import END, START, python_slice
from pyc_mlir.dialects.types import Shape
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand
from pyc_mlir.pipelines.kernels.lang.language import HALVES, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.values import Index
from pyc_mlir.pipelines.target.work import Work, WorkOp

# The code of a kernel grows with them.
MOST_PARTS = 8


@dataclass(frozen=True)
class ChannelSlice:
    """`width` channels of a tensor that has `pitch` of them, from `first` on."""

    pitch: int
    first: int
    width: int


@dataclass(frozen=True)
class Piece:
    """The memory of a part; `start` is the number of its first channel in the images."""

    memory: Memory
    first: int
    start: int
    width: int


def channels_of(channels: int, parts: Sequence[ChannelSlice]) -> list[int]:
    """Return the channels of each tensor that images of `channels` lie in."""
    return [part.pitch for part in parts] or [channels]


def operands(
    shape: tuple[Dim, Dim, Dim], channels: int, parts: Sequence[ChannelSlice]
) -> list[Operand]:
    """Return the operands of images [*shape, channels]: x, or x0 and so on for parts."""
    if not parts:
        return [Operand("x", (*shape, channels))]
    return [Operand(f"x{i}", (*shape, part.pitch)) for i, part in enumerate(parts)]


def pieces(
    memory: Sequence[Memory], channels: int, parts: Sequence[ChannelSlice]
) -> tuple[Piece, ...]:
    """Return the parts in order, under the memory of `operands`."""
    if not parts:
        return (Piece(memory[0], 0, 0, channels),)
    starts = np.cumsum([0, *(p.width for p in parts)])
    found = zip(memory, parts, starts, strict=False)
    return tuple(Piece(m, p.first, int(start), p.width) for m, p, start in found)


def fits(channels: int, parts: Sequence[ChannelSlice]) -> bool:
    """Return whether the parts lie in their tensors and are all channels together."""
    inside = all(p.width > 0 and 0 <= p.first <= p.pitch - p.width for p in parts)
    return inside and (not parts or sum(p.width for p in parts) == channels)


@dataclass(frozen=True)
class MatchedSources:
    """The parts of the value that the first `covers` ops make, and the inputs that they are of."""

    covers: int
    values: tuple[int, ...]
    parts: tuple[ChannelSlice, ...]


def find_parts(work: Work) -> MatchedSources | None:
    """Find the concatenations and slices of channels that a group begins with; None without any.

    Only the op behind them reads their result, and nothing else reads what they make in between.
    """
    held: dict[int, list[tuple[int, ChannelSlice]]] = {}
    covers = 0
    for node in work.nodes[:-1]:
        made = _parts_of(work, node, held)
        if made is None:
            break
        held[work.number_of(covers)] = made
        covers += 1
    own = work.number_of(covers - 1)
    later = (v for n in work.nodes[covers + 1 :] for v in n.operands)
    if not covers or not work.closed(covers) or own in later:
        return None
    values, parts = zip(*held[own], strict=True)
    return MatchedSources(covers, values, parts) if len(parts) <= MOST_PARTS else None


def _parts_of(
    work: Work, node: WorkOp, held: dict[int, list[tuple[int, ChannelSlice]]]
) -> list[tuple[int, ChannelSlice]] | None:
    """Return the parts of an op's result; None for an op that does more than to take channels."""
    shapes = [work.type(v).shape for v in node.operands]
    if node.type.rank != 4 or not takes_channels(node.name, node.params, shapes, node.type.shape):
        return None
    found = [p for v, s in zip(node.operands, shapes, strict=True) for p in _held(v, s, held)]
    return found if node.name == "concat" else _taken(node, found)


def takes_channels(
    name: str, params: Mapping[str, Any], shapes: Sequence[Shape], result: Shape
) -> bool:
    """Return whether an op joins images [n, h, w, c] along c, or takes neighbouring channels."""
    if name not in ("concat", "slice") or len(result) != 4 or not result[3]:
        return False
    if any(s[:3] != result[:3] or not s[3] for s in shapes):
        return False
    if name == "concat":
        return params["axis"] % 4 == 3
    *sides, (_, _, step) = zip(*(params[n] for n in ("starts", "stops", "steps")), strict=True)
    # Sizes that are known are the same behind the slice: with step 1 it then takes all.
    whole = (
        along == 1 and (size is not None or (start in (0, START) and stop == END))
        for (start, stop, along), size in zip(sides, result, strict=False)
    )
    return step == 1 and all(whole)


def _held(
    value: int, shape: Shape, held: dict[int, list[tuple[int, ChannelSlice]]]
) -> list[tuple[int, ChannelSlice]]:
    channels = shape[3]
    assert channels is not None
    return held.get(value, [(value, ChannelSlice(channels, 0, channels))])


def _taken(node: WorkOp, parts: list[tuple[int, ChannelSlice]]) -> list[tuple[int, ChannelSlice]]:
    """Return the parts that a slice of channels takes."""
    bounds = python_slice(*(node.params[n][3] for n in ("starts", "stops", "steps")))
    taken = range(sum(p.width for _, p in parts))[bounds]
    found, start = [], 0
    for value, part in parts:
        low, high = max(taken.start - start, 0), min(taken.stop - start, part.width)
        if low < high:
            found.append((value, ChannelSlice(part.pitch, part.first + low, high - low)))
        start += part.width
    return found


def scratch_of(knobs: Any) -> tuple[Operand, ...]:
    """Return the memory of each workgroup for the rows of x under the taps; none for f32.

    `knobs` are those of a `DirectConv`, whose module imports this one.
    """
    if knobs.dtype not in HALVES:
        return ()
    count, pixel = knobs.workgroups[0] * knobs.workgroups[1], (knobs.columns.dim, knobs.channels)
    row = pixel[::-1] if knobs.planar else pixel
    return (Operand("scratch", (count * knobs.rows.kernel, *row), "out"),)


def first_held(k: Build, knobs: Any) -> Index:
    """Return the number of this workgroup's first row in the scratch memory."""
    number = k.workgroup(0) * knobs.workgroups[1] + k.workgroup(1)
    return number * knobs.rows.kernel


def widen(
    k: Build,
    knobs: Any,
    x: Sequence[Piece],
    row: Any,
    under: Callable[[Index], Index],
    held: Memory,
) -> None:
    """Write the rows of x under the taps of an output `row` to `held`.

    `under(tap)` is the number of the row of x. Parts of x lie one after the other.
    """
    wide, own = k.size(knobs.columns.dim), first_held(k, knobs)
    with k.range(*row.taps) as down:
        y, to = under(down), own + down
        if knobs.planar:
            with k.range(knobs.channels) as channel:

                @k.each(wide)
                def _(at: Lanes) -> None:
                    held.store(x[0].memory.load(row.image, channel, y, at), to, channel, at)

            return
        with k.range(wide) as column:
            for piece in x:

                @k.each(piece.width)
                def _(at: Lanes, piece: Piece = piece) -> None:
                    place = Lanes(at.start + piece.first, at.mask)
                    value = piece.memory.load(row.image, y, column, place)
                    held.store(value, to, column, Lanes(at.start + piece.start, at.mask))
