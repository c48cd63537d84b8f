"""The loops of a direct convolution over quads of bytes, and what follows its sums."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyc_mlir.pipelines.kernels.families.conv.direct import ConvRow, Direct, FilterPanel, _Found
from pyc_mlir.pipelines.kernels.families.conv.sources import Piece
from pyc_mlir.pipelines.kernels.families.conv.window import Segment
from pyc_mlir.pipelines.kernels.families.int8.dot import QUAD, Dot, IntVector
from pyc_mlir.pipelines.kernels.families.int8.narrow import BOUNDS
from pyc_mlir.pipelines.kernels.families.int8.weights import TapRanges, quad_starts
from pyc_mlir.pipelines.kernels.lang.language import Build, Memory
from pyc_mlir.pipelines.kernels.lang.values import Index, Vector, int_vector, vector
from pyc_mlir.pipelines.streams.ir import ir


def zero_point(k: Build, zero: Memory | None, more: int) -> IntVector:
    """Return the zero point in each lane, plus the number that bytes are stored larger by."""
    constant = IntVector.of(more, k.lanes)
    if zero is None:
        return constant
    i32 = ir.IntegerType.get_signless(32)
    one = zero.load_as(ir.VectorType.get([1], i32), 0)
    whole = vector.broadcast(int_vector(k.lanes), vector.extract(one, [], [0]))
    return IntVector(whole) + constant if more else IntVector(whole)


@dataclass(frozen=True)
class DirectBytes(Direct):
    """The loops of `Direct` over quads of bytes; `zero` has the zero point, if any.

    `knobs` are a `ByteConv`, whose module imports this one.
    """

    knobs: Any
    sums_of_taps: Memory | None = None
    bias: Memory | None = None
    zero: list[IntVector] = field(default_factory=list)

    def _tile(
        self,
        panel: FilterPanel,
        row: ConvRow,
        segments: Sequence[Segment | _Found],
        start: Index,
        width: int,
    ) -> None:
        """Compute one register tile: outputs `start` and on of a row, by the filters of a panel."""
        k = self.k
        places = self.places(panel)
        zeros = [IntVector.of(0, k.lanes) for _ in range(width * len(places))]

        def over(tap: Index, *sums: IntVector) -> list[Any]:
            kept: list[Any] = list(sums)
            for segment in segments:
                kept = self._segment(panel, row, tap, start, segment, kept)
            return kept

        sums = k.loop(*row.taps, 1, zeros)(over)
        made: dict[tuple[Any, int], IntVector] = {}
        for p in range(width):
            met = [s.taps for s in segments if p in s.outputs]
            for v, at in enumerate(places):
                n = p * len(places) + v
                key = (_run_key(met), v)
                if key not in made:
                    made[key] = self.offset(row, met, at)
                if made[key] is not None:
                    sums[n] = sums[n] + made[key]
        if self.knobs.result == "i32":
            floats: list[Any] = sums
        else:
            floats = [total.to_float() for total in sums]
        self._finish(panel, row, start, width, floats)

    def _finish(
        self, panel: FilterPanel, row: ConvRow, start: Index, width: int, sums: list[Any]
    ) -> None:
        """Store what the epilogue makes of the sums, bytes by whole registers."""
        if self.knobs.result not in BOUNDS:
            super()._finish(panel, row, start, width, sums)
            return
        k, knobs, places = self.k, self.knobs, self.places(panel)
        high, wide = knobs.output_dims
        first = (row.image * k.size(high) + row.number) * k.size(wide) + start
        vectors = len(places)

        def pixel(p: Index, values: Sequence[Vector]) -> None:
            apply = self.epilogue.row(first + p)
            made = [apply(value, at) for value, at in zip(values, places, strict=True)]
            head = (row.image, row.number, start + p)
            count = knobs.panels.columns - knobs.panels.edge if panel.last else None
            knobs.narrow.store(k, self.y, made, head, panel.filter, count)

        if not self.sums:
            for p in range(width):
                pixel(Index.of(p), sums[p * vectors : (p + 1) * vectors])
            return
        (kept,) = self.sums
        for n, value in enumerate(sums):
            kept.store(value, Index.of(n * k.lanes))
        with k.range(width) as p:
            pixel(p, [kept.load((p * vectors + v) * k.lanes) for v in range(vectors)])

    def offset(self, row: ConvRow, met: list[Any], at: Any) -> Any:
        """Return the addend of a pixel's sums: the bias, less the zero point's share."""
        kind = int_vector(self.k.lanes)
        offset = None if self.bias is None else IntVector(self.bias.load_as(kind, at))
        if self.sums_of_taps is None:
            return offset
        knobs = self.knobs
        along = TapRanges.of(knobs.columns)
        number = _number(TapRanges.of(knobs.rows), *row.taps) * along.count
        if not met:
            number = number + _number(along, Index.of(0), Index.of(0))
        elif isinstance(met[0], range):
            number = number + _number(along, Index.of(met[0].start), Index.of(met[-1].stop))
        else:
            number = number + _number(along, *met[0])
        place = replace(at, start=number * knobs.filters + at.start)
        share = IntVector(self.sums_of_taps.load_as(kind, place)) * self.zero[0]
        return (IntVector.of(0, self.k.lanes) if offset is None else offset) - share

    def _channels(
        self,
        panel: FilterPanel,
        piece: Piece,
        place: tuple[Index, Index, Index],
        weights: Index,
        outputs: int,
        sums: list[Any],
    ) -> list[Any]:
        """Add all quads under one tap, at `place` for the first of the outputs."""
        k, knobs = self.k, self.knobs
        dot = Dot(k, knobs.form, knobs.signed)
        vectors = len(sums) // outputs
        image, y, x = place
        kind = int_vector(k.lanes)
        starts = quad_starts(knobs.channels)

        def quad(number: Index, channel: Index, kept: list[Any]) -> list[Any]:
            start = weights + number * (panel.width * dot.words)
            loaded = [
                [
                    IntVector(self.w.load_as(kind, start + (w * panel.width + v * k.lanes)))
                    for w in range(dot.words)
                ]
                for v in range(vectors)
            ]
            for p in range(outputs):
                spot = (image, y, x + p * knobs.columns.stride, channel)
                own = dot.load(piece.memory, *spot)
                for v in range(vectors):
                    n = p * vectors + v
                    kept[n] = dot.add(kept[n], own, loaded[v])
            return kept

        def step(unroll: int) -> Callable[..., list[Any]]:
            def steps(at: Index, *kept: Any) -> list[Any]:
                made = list(kept)
                for u in range(unroll):
                    made = quad(at + u, (at + u) * QUAD, made)
                return made

            return steps

        whole = knobs.channels // QUAD
        edge = whole // knobs.unroll * knobs.unroll
        kept = k.loop(0, edge, knobs.unroll, sums)(step(knobs.unroll))
        kept = k.loop(edge, whole, 1, kept)(step(1))
        if len(starts) > whole:
            kept = quad(Index.of(whole), Index.of(starts[-1]), list(kept))
        return kept


def _run_key(met: list[Any]) -> Any:
    return tuple(str(m) if isinstance(m, range) else id(m) for m in met)


def _number(ranges: TapRanges, first: Index, end: Index) -> Index:
    """Return the number of the run of taps from `first` to before `end`."""
    if ranges.count == 1:
        return Index.of(0)
    return first * ranges.ends + (end - ranges.least)
