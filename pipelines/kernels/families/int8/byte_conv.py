"""Convolutions and products of bytes with constant weights: knobs and code of the family ``int8``.

A direct convolution as that of f32 (`families/conv/direct.py`), whose loops it has, on four
channels at a time: a quad of x is broadcast, and each lane adds its four products with the quad of
weights of one filter, exactly, in i32. Taps beyond the image are left out; what the zero point of x
adds follows from sums of the weights over the taps that are met, a table that is laid out with
them. Then a bias in i32, the numbers as f32, the epilogue, and the conversion to bytes. A product
is a convolution of one tap whose row of pixels is the matrix.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.kernels.families.conv.direct import (
    ConvRow,
    Direct,
    DirectConv,
    FilterPanel,
    _cut,
    _Found,
)
from pyc_mlir.pipelines.kernels.families.conv.sources import Piece
from pyc_mlir.pipelines.kernels.families.conv.window import (
    PIXELS_OF_RESULT,
    ConvAxis,
    Segment,
    pixels_of,
)
from pyc_mlir.pipelines.kernels.families.int8.dot import (
    DOTS,
    MADD,
    QUAD,
    VNNI,
    Dot,
    IntVector,
    best_dot,
)
from pyc_mlir.pipelines.kernels.families.int8.narrow import BOUNDS, NARROW, Narrow
from pyc_mlir.pipelines.kernels.families.int8.weights import (
    ByteFilters,
    TapRanges,
    TapSums,
    quad_starts,
)
from pyc_mlir.pipelines.kernels.families.packing import Panels
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import InKernel
from pyc_mlir.pipelines.kernels.lang.values import (
    Index,
    Vector,
    int_vector,
    vector,
)
from pyc_mlir.pipelines.kernels.shared.grid import cores_for
from pyc_mlir.pipelines.streams.ir import ir
from pyc_mlir.pipelines.target.target import Target

# Results: i32 sums, f32 after the epilogue, or bytes after it.
RESULTS = {"i32": "i32", "f32": "f32", "i8": "i8", "ui8": "i8"}


@dataclass(frozen=True)
class ByteConv(DirectConv):
    """The knobs of y = epilogue(f32(conv2d(x - zero, w) + bias)), as `DirectConv`.

    `signed`: x is of i8, else of ui8. `shifted`: x has a zero point that is not 0. `bias`: i32 for
    each filter. `result` is the type of y; that of i32 has no epilogue, one of bytes is made by
    `narrow`. `form` is how products are added.
    """

    signed: bool = False
    shifted: bool = False
    bias: bool = False
    result: str = "f32"
    form: str = MADD
    narrow: Narrow = NARROW

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        super().__post_init__()
        if self.groups > 1 or self.parts or self.planar or self.channels < QUAD:
            raise _refusal(f"NHWC images of {QUAD} channels or more without groups", self)
        if self.form not in DOTS or self.result not in RESULTS:
            raise _refusal(f"a form of {DOTS} and a result of {tuple(RESULTS)}", self)
        if self.result in BOUNDS and self.narrow.dtype != self.result:
            raise _refusal(f"a conversion to {self.result}", self.narrow)
        if self.result == "i32" and self.epilogue.steps:
            raise _refusal("no epilogue of i32", self.epilogue)

    @staticmethod
    def for_bytes(
        target: Target,
        images: Dim,
        axes: tuple[ConvAxis, ConvAxis],
        channels: int,
        filters: int,
        **others: Any,
    ) -> "ByteConv":
        """Return the knobs for a target's registers and cores; `others` are further fields."""
        form = best_dot(target)
        made = ByteConv(images, *axes, channels, filters, form=form)
        lanes = target.vector_bytes // 4
        vectors = 2 if target.vector_registers < 32 else 4
        spare = 2 if form == VNNI else 4 if target.vector_registers >= 32 else 3
        width = (target.vector_registers - spare - vectors) // vectors
        if made.columns.outputs < width and not made.columns.name:
            width = max(1, made.columns.outputs)
        panel = -(-vectors * lanes // 16) * 16
        made = replace(made, width=width, panel=panel)
        cores = cores_for(target, made.flops, float(made.weights))
        return replace(made, **{"workgroups": _cut(cores, made, panel), **others})

    @property
    def panels(self) -> Panels:
        """How the words of the weights are cut."""
        return self.filters_layout.panels

    @property
    def filters_layout(self) -> ByteFilters:
        """How the weights are laid out."""
        return ByteFilters(self.taps, self.channels, self.filters, self.panel, self.form)

    @property
    def corrects(self) -> bool:
        """True where a zero point, or that of bytes without a sign, is taken off the sums."""
        return self.shifted or (self.signed and self.form == VNNI)

    def kernel(self, name: str) -> Kernel:
        """Return the kernel `name`: operands x, w, [zero], [sums], [bias], the epilogue's, y."""
        sums = TapSums(self.rows, self.columns, self.channels, self.filters)
        taken = [
            Operand("x", (self.images, self.rows.dim, self.columns.dim, self.channels), dtype="i8"),
            Operand("w", (self.panels.size,), dtype="i32", layout=self.filters_layout),
        ]
        if self.shifted:
            taken.append(Operand("zero", (1,), dtype="i32"))
        if self.corrects:
            taken.append(Operand("sums", (sums.size,), dtype="i32", layout=sums))
        if self.bias:
            taken.append(Operand("bias", (self.filters,), dtype="i32"))
        matrix = pixels_of(self.images, self.output_dims)
        taken += self.epilogue.operands("e", matrix, self.filters)
        result = (self.images, *self.output_dims, self.filters)
        taken.append(Operand("y", result, "out", RESULTS[self.result]))
        return Kernel(
            name, tuple(taken), lambda size: self.workgroups, self._body, merged=PIXELS_OF_RESULT
        )

    def _body(self, k: Build, *memory: Memory) -> None:
        x, w, *rest = memory
        zero = rest.pop(0) if self.shifted else None
        sums = rest.pop(0) if self.corrects else None
        bias = rest.pop(0) if self.bias else None
        *reads, y = rest
        pieces = (Piece(x, 0, 0, self.channels),)
        epilogue = InKernel(k, self.epilogue, tuple(reads))
        made = DirectBytes(k, self, pieces, w, y, epilogue, sums_of_taps=sums, bias=bias)
        if zero is not None or sums is not None:
            made.zero.append(_zero_point(k, zero, 128 if self.signed and self.form == VNNI else 0))
        made.build()


def _zero_point(k: Build, zero: Memory | None, more: int) -> IntVector:
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
    """The loops of `Direct` over quads of bytes; `zero` has the zero point, if any."""

    knobs: ByteConv
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
        places = self._places(panel)
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
                    made[key] = self._offset(row, met, at)
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
        k, knobs, places = self.k, self.knobs, self._places(panel)
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

    def _offset(self, row: ConvRow, met: list[Any], at: Any) -> Any:
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


def _refusal(expected: str, came: object) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, f"int8 kernel: expected {expected}, got {came!r}")
