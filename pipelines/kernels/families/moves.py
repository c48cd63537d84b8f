"""The kernel families that move numbers: ``transpose``, ``resize`` and ``concat``.

``transpose`` is y[b, j, i] = x[b, i, j], or the same for rows of numbers: `x` is [batch, rows,
columns], or [batch, rows, columns, inner] where the last dimension stays. Single numbers go through
registers: as many rows of a square block as a vector has lanes are loaded, transposed by shuffles
and stored as rows. Blocks are walked in tiles, so that pages and lines are used up before others
are opened. Rows of `inner` numbers are copied in the order of y.

``resize`` makes images grow by whole factors, nearest or bilinear. An output lies in one of
`factor` phases along each axis; all outputs of a phase read elements at the same distances, with
the same weights (`Phases`, after dialects/ops/resize.py). In NHWC vectors run over channels. In
NCHW they run along a row of x, and the two phases of a doubled width are interleaved; IREE's code
stores numbers one by one there.

``concat`` is y = program(parts side by side, reads...), in one pass. A row of the result is a row
of each part in turn. IREE copies each part by a dispatch of its own and reads the result again for
what follows; here every number is read once and written once, also where a norm and an activation
follow the concatenation (DenseNet).
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, product
from math import prod
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.ops.convolution import spatial
from pyc_mlir.dialects.ops.resize import axis_taps, phase_taps
from pyc_mlir.dialects.types import Shape
from pyc_mlir.pipelines.kernels.knobs import UNROLLS, KernelKnobs, knob, known, parts_of, shares
from pyc_mlir.pipelines.kernels.lang import values as ops
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index, Vector
from pyc_mlir.pipelines.kernels.match import Feed, KernelOffer, MatrixView, longest
from pyc_mlir.pipelines.kernels.nest import cores_for, share
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, is_f32, nominal, sizes

_WIDEST = 16  # f32 in the widest vector, and in a cache line
_SHARE = 4096  # numbers that are worth a workgroup
_TILES = (16, 32, 64, 128, 256)  # sides to try
_LEAST_INNER = 8
_MOST_OUTPUTS, _LARGEST_DISTANCE = 16, 2
# Numbers of a workgroup where the number of rows is not known, and those that one core does alone.
_PART, _ALONE = 1 << 16, 1 << 15
# A dispatch of IREE's has at most 64 constants of 32 bits, of which each operand takes two.
_MOST_PARTS = 28


@dataclass(frozen=True)
class Transpose(KernelKnobs, family="transpose"):
    """The knobs of an exchange of `rows` and `columns`.

    A workgroup has a tile of `tile_rows` by `tile_columns` of `batches`
    matrices and goes down x, or (`down` is false) along its rows first. `streaming` writes past
    the caches, for a result far larger than they are: what lies together in y must be known, in
    whole cache lines.
    """

    batch: Dim
    rows: Dim
    columns: Dim
    inner: Dim = 1
    tile_rows: int = knob(256, _TILES, multiple=_WIDEST)
    tile_columns: int = knob(256, _TILES, multiple=_WIDEST)
    batches: int = knob(1, lambda k, _: () if k.batch == 1 else (1, 4, 16))
    down: bool = knob(True, (False, True))
    streaming: bool = knob(False, (False, True))

    def _misfit(self) -> str:
        together = self.rows if self.inner == 1 else self.inner
        wrong = self.streaming and (isinstance(together, str) or together % _WIDEST)
        return f"rows or inner in multiples of {_WIDEST} for streaming" if wrong else ""

    @staticmethod
    def on(target: Target, batch: Dim, rows: Dim, columns: Dim, inner: Dim = 1) -> "Transpose":
        """Choose the knobs for a target's caches.

        Blocks go down the longer side; of rows that are copied, the shorter side is the inner
        loop, so that few streams are open. A result beyond the last cache is streamed.
        """
        shape = (batch, rows, columns, inner)
        known = [d for d in shape if isinstance(d, int)]
        if len(known) < len(shape):
            return Transpose(*shape)
        together = known[1] if inner == 1 else known[3]
        large = 4 * prod(known) > target.l3_bytes and together % _WIDEST == 0
        others = {"streaming": large, "batches": max(1, _SHARE // prod(known[1:]))}
        if inner == 1:
            tile, down = (64 if large else 256, 256), large or known[1] >= known[2]
        else:
            down = known[1] < known[2]
            tile = (_WIDEST, 256) if down else (256, _WIDEST)
        return Transpose(*shape, tile_rows=tile[0], tile_columns=tile[1], down=down, **others)

    def operands(self) -> tuple[Operand, ...]:
        """Return x and y."""
        inner = () if self.inner == 1 else (self.inner,)
        x = Operand("x", (self.batch, self.rows, self.columns, *inner))
        return x, Operand("y", (self.batch, self.columns, self.rows, *inner), "out")

    def refusal(self, target: Target) -> str:
        """Refuse blocks that are mostly empty and copies of less than a vector: no gain."""
        lanes = target.vector_bytes // 4
        sides = (self.rows, self.columns) if self.inner == 1 else ()
        if any(isinstance(side, int) and side < lanes for side in sides):
            return f"transpose: expected sides of at least {lanes}, got {sides}"
        if isinstance(self.inner, int) and 1 < self.inner < _LEAST_INNER:
            return f"transpose: expected rows of at least {_LEAST_INNER}, got {self.inner}"
        return ""

    def _grid(self, size: Callable[[Dim], Index]) -> tuple[Index, Index]:
        """Return tiles across, and down all matrices: IREE's third dimension has 16 bits."""
        down = size(self.rows).ceildiv(self.tile_rows)
        across = size(self.columns).ceildiv(self.tile_columns)
        return across, down * size(self.batch).ceildiv(self.batches)

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        x, y = memory["x"], memory["y"]

        def work(streaming: bool) -> None:
            down = x.shape[1].ceildiv(self.tile_rows)
            first = k.workgroup(1) // down * self.batches
            row = k.workgroup(1) % down * self.tile_rows
            with k.range(first, ops.least(first + self.batches, x.shape[0])) as b:
                tile = TransposeTile(k, self, x, y, b, row, streaming)
                tile.blocks() if self.inner == 1 else tile.copies()

        k.streaming(y, self.streaming, work)


@dataclass(frozen=True)
class TransposeTile:
    """This workgroup's tile of matrix `b`, whose first row is `row`."""

    k: Build
    knobs: Transpose
    x: Memory
    y: Memory
    b: Index
    row: Index
    streaming: bool

    def copies(self) -> None:
        """Copy rows of `inner` numbers, as they lie in y (`down`) or in x."""
        spans = [self._span(2), self._span(1)][:: 1 if self.knobs.down else -1]
        with self.k.range(*spans[0]) as first, self.k.range(*spans[1]) as second:
            i, j = (second, first) if self.knobs.down else (first, second)

            @self.k.each(self.x.shape[3])
            def _(at: Lanes) -> None:
                self._put(self.x.load(self.b, i, j, at), j, i, at)

    def blocks(self) -> None:
        """Turn whole blocks, then those at the bottom, at the right and in the corner."""
        lanes = self.k.lanes
        (top, bottom), (left, right) = self._span(1), self._span(2)
        low, side = (self.x.shape[d] // lanes * lanes for d in (1, 2))
        under, beside = low < bottom, side < right
        along, across = (top, ops.least(bottom, low)), (left, ops.least(right, side))
        outer, inner = (across, along) if self.knobs.down else (along, across)
        with self._walk(*outer) as first, self._walk(*inner) as second:
            i, j = (second, first) if self.knobs.down else (first, second)
            block = [self.x.load(self.b, i + r, j) for r in range(lanes)]
            for c, column in enumerate(ops.transposed(block)):
                self._put(column, j + c, i)
        if self._ragged(1):
            with self.k.when(under), self._walk(*across) as j:
                self._edge(low, j)
        if self._ragged(2):
            with self.k.when(beside), self._walk(*along) as i:
                self._edge(i, side)
        if self._ragged(1) and self._ragged(2):
            with self.k.when(under & beside):
                self._edge(low, side)

    def _span(self, dimension: int) -> tuple[Index, Index]:
        """Return the start and the end of the tile in rows (1) or columns (2)."""
        size = self.x.shape[dimension]
        step = self.knobs.tile_rows if dimension == 1 else self.knobs.tile_columns
        if size.number is not None and size.number <= step:
            return Index.of(0), size
        first = self.row if dimension == 1 else self.k.workgroup(0) * step
        return first, ops.least(first + step, size)

    def _ragged(self, dimension: int) -> bool:
        size = self.x.shape[dimension].number
        return size is None or size % self.k.lanes > 0

    def _walk(self, low: Index, high: Index) -> AbstractContextManager[Index]:
        return self.k.range(low, high, self.k.lanes)

    def _edge(self, i: Index, j: Index) -> None:
        """Move a block of which rows or columns may be missing.

        What is loaded for a missing row is never stored: the last row will do.
        """
        k, (rows, columns) = self.k, self.x.shape[1:3]
        height, width = (rows - i).number, (columns - j).number
        across, along = k.tail(j, columns), k.tail(i, rows)
        block = [k.vector(0.0)] * k.lanes
        for r in range(min(k.lanes, height or k.lanes)):
            row = i + r if height is not None else ops.least(i + r, rows - 1)
            block[r] = self.x.load(self.b, row, across)
        for c, column in enumerate(ops.transposed(block)):
            if width is None:
                with k.when(j + c < columns):
                    self.y.store(column, self.b, j + c, along)
            elif c < width:
                self.y.store(column, self.b, j + c, along)

    def _put(self, value: Vector, *place: Index | Lanes) -> None:
        self.y.store(value, self.b, *place, streaming=self.streaming)


def exchange(shape: Shape, permutation: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Return where two runs of neighbouring dimensions begin and end that a permutation exchanges.

    None where it exchanges more. Dimensions of size 1 are nowhere, so that they fit each place.
    """
    order = [p for p in permutation if shape[p] != 1]
    places = sorted(order)
    moved = [i for i, p in enumerate(order) if p != places[i]]
    if not moved:
        return None
    first, end = moved[0], moved[-1] + 1
    turned, straight = order[first:end], places[first:end]
    middle = straight.index(turned[0])
    if turned != straight[middle:] + straight[:middle]:
        return None
    return straight[0], straight[middle], straight[-1] + 1


def _match_transpose(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a kernel for a transpose that exchanges two runs of dimensions."""
    node = work.nodes[0]
    if node.name != "transpose" or not is_f32(work, node.operands):
        return []
    shape, permutation = work.type(node.operands[0]).shape, node.params["permutation"]
    cuts = None if 0 in shape else exchange(shape, permutation)
    if cuts is None:
        return []
    ends = pairwise((0, *cuts, len(shape)))
    batch, rows, columns, inner = (
        d if (d := sizes(shape[a:b])) is not None else name
        for (a, b), name in zip(ends, "bmnq", strict=True)
    )
    knobs = Transpose.on(target, batch, rows, columns, inner)
    cuts = cuts if inner != 1 else cuts[:2]
    return TRANSPOSE.offer(knobs, target, 1, [Feed(node.operands[0], cuts)])


TRANSPOSE = Family("transpose", Transpose, _match_transpose)


@dataclass(frozen=True)
class Phases:
    """One axis: for each phase the distances of its taps from the element, and their weights."""

    taps: tuple[tuple[tuple[int, float], ...], ...] = (((0, 1.0),),)

    @staticmethod
    def of(factor: int, mode: str, coordinates: str, rounding: str) -> "Phases":
        """Return the phases of an axis that grows by `factor`."""
        found = phase_taps(factor, mode, coordinates, rounding)
        weights = np.ones(found.indices.shape) if found.weights is None else found.weights
        return Phases(
            tuple(
                tuple(zip(map(int, at), map(float, by), strict=True))
                for at, by in zip(found.indices.T, weights.T, strict=True)
            )
        )

    @property
    def factor(self) -> int:
        """The number of outputs of an element."""
        return len(self.taps)

    @property
    def reach(self) -> tuple[int, int]:
        """The largest distance of taps before and behind their element."""
        distances = [at for phase in self.taps for at, _ in phase]
        return max(0, -min(distances)), max(0, *distances)


@dataclass(frozen=True)
class Resize(KernelKnobs, family="resize"):
    """The knobs of y[images, rows * down.factor, columns * along.factor, channels].

    x is [images, rows, columns, channels]. With `channels` 1 and a doubled width vectors run along
    rows: `images` then counts the channels of an NCHW image too. `workgroups` cuts rows.
    """

    images: Dim
    rows: int
    columns: int
    channels: int
    down: Phases
    along: Phases
    workgroups: int = knob(1, lambda k, target: shares(target, k.rows))

    def _misfit(self) -> str:
        outputs = self.down.factor * self.along.factor
        near = max(*self.down.reach, *self.along.reach) <= _LARGEST_DISTANCE
        if outputs <= _MOST_OUTPUTS and near:
            return ""
        taps = f"taps at most {_LARGEST_DISTANCE} away"
        return f"at most {_MOST_OUTPUTS} outputs of an element and {taps}"

    @property
    def flops(self) -> int:
        """Three an output where an axis has several taps."""
        made = known(self.images) * self.rows * self.columns * self.channels
        taps = len(self.down.taps[0]) + len(self.along.taps[0])
        return 3 * made * self.down.factor * self.along.factor if taps > 2 else 0

    @property
    def is_planar(self) -> bool:
        """True where vectors run along rows."""
        return self.channels == 1 and self.along.factor == 2

    def operands(self) -> tuple[Operand, ...]:
        """Return x and y."""
        inner = () if self.is_planar else (self.channels,)
        high, wide = self.rows * self.down.factor, self.columns * self.along.factor
        x = Operand("x", (self.images, self.rows, self.columns, *inner))
        return x, Operand("y", (self.images, high, wide, *inner), "out")

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        _Growing(k, self, memory["x"], memory["y"]).build()


@dataclass(frozen=True)
class _Growing:
    """One kernel under construction."""

    k: Build
    knobs: Resize
    x: Memory
    y: Memory

    def build(self) -> None:
        """Compute this workgroup's rows of x, each of which makes `factor` rows."""
        k, knobs = self.k, self.knobs
        first, end = share(k, 0, knobs.workgroups, k.size(knobs.images) * knobs.rows)
        with k.range(first, end) as number:
            image, row = number // knobs.rows, number % knobs.rows
            if knobs.is_planar:
                self._along_rows(image, row)
            else:
                with k.range(knobs.columns) as column:
                    self._over_channels(image, row, column)

    def _over_channels(self, image: Index, row: Index, column: Index) -> None:
        """Compute all outputs of one position, a vector of channels at a time."""
        k, knobs = self.k, self.knobs
        down, along = knobs.down, knobs.along

        @k.each(knobs.channels, 1)
        def _(at: Lanes) -> None:
            def load(i: int, j: int) -> Vector:
                y, x = _clamped(row, i, knobs.rows), _clamped(column, j, knobs.columns)
                return self.x.load(image, y, x, at)

            made = _blended(down, along, load)
            for (r, s), value in made.items():
                to = (row * down.factor + r, column * along.factor + s)
                self.y.store(value, image, *to, at)

    def _along_rows(self, image: Index, row: Index) -> None:
        """Compute vectors whose taps all lie in the row, single elements at its ends."""
        k, knobs = self.k, self.knobs
        before, behind = knobs.along.reach
        count = max(0, (knobs.columns - before - behind) // k.lanes)
        with k.range(count) as number:
            self._block(image, row, number * k.lanes + before)
        for first, end in (
            (0, min(before, knobs.columns)),
            (before + count * k.lanes, knobs.columns),
        ):
            with k.range(first, max(first, end)) as column:
                self._element(image, row, column)

    def _block(self, image: Index, row: Index, column: Index) -> None:
        knobs = self.knobs

        def load(i: int, j: int) -> Vector:
            return self.x.load(image, _clamped(row, i, knobs.rows), Lanes(column + j))

        made = _blended(knobs.down, knobs.along, load)
        for r in range(knobs.down.factor):
            both = ops.interleaved(made[r, 0], made[r, 1])
            self.y.store(both, image, row * knobs.down.factor + r, Lanes(column * 2))

    def _element(self, image: Index, row: Index, column: Index) -> None:
        k, knobs = self.k, self.knobs

        def load(i: int, j: int) -> Vector:
            y, x = _clamped(row, i, knobs.rows), _clamped(column, j, knobs.columns)
            return self.x.number(image, y, x).across(k.lanes)

        alone = k.tail(Index.of(0), Index.of(1)).mask
        for (r, s), value in _blended(knobs.down, knobs.along, load).items():
            to = row * knobs.down.factor + r, Lanes(column * 2 + s, alone)
            self.y.store(value, image, *to)


def _clamped(at: Index, distance: int, size: int) -> Index:
    """Return the position at a distance, that of the border beyond it."""
    if distance == 0:
        return at
    if distance < 0:
        return at - ops.least(at, -distance)
    return ops.least(at + distance, size - 1)


def _blended(
    down: Phases, along: Phases, load: Callable[[int, int], Vector]
) -> dict[tuple[int, int], Vector]:
    """Return all outputs of one element by phase: sums down the columns, then along the rows."""
    loaded: dict[tuple[int, int], Vector] = {}
    sums: dict[tuple[int, int], Vector] = {}
    made: dict[tuple[int, int], Vector] = {}

    def at(i: int, j: int) -> Vector:
        if (i, j) not in loaded:
            loaded[i, j] = load(i, j)
        return loaded[i, j]

    for (r, rows), (s, columns) in product(enumerate(down.taps), enumerate(along.taps)):
        for j, _ in columns:
            if (r, j) not in sums:
                sums[r, j] = _sum([(at(i, j), w) for i, w in rows])
        made[r, s] = _sum([(sums[r, j], w) for j, w in columns])
    return made


def _sum(terms: list[tuple[Vector, float]]) -> Vector:
    (value, weight), *others = terms
    total = value if weight == 1.0 and not others else value * weight
    for value, weight in others:
        total = ops.fma(value, weight, total)
    return total


def _match_resize(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a resize by whole factors, to twice the width if NCHW; images of known sizes."""
    node = work.nodes[0]
    if node.name != "resize" or refuse_narrow(target) or not is_f32(work, node.operands):
        return []
    x, params = work.type(node.operands[0]).shape, node.params
    axes = spatial(params["layout"])
    grown = [_phases(x[a], node.type.shape[a], params, i) for i, a in enumerate(axes)]
    planar = params["layout"] == "NCHW"
    images, channels = x[0], x[1 if planar else 3]
    down, along = grown
    if 0 in node.type.shape or channels is None or down is None or along is None:
        return []
    if planar and along.factor != 2:
        return []
    count: Dim = "n" if images is None else images * (channels if planar else 1)
    high, wide = (x[a] or 0 for a in axes)
    try:
        knobs = Resize(count, high, wide, 1 if planar else channels, down, along)
    except PycError:
        return []
    price = RESIZE.cost(knobs, target, {"n": NOMINAL_DIMENSION})
    knobs = replace(knobs, workgroups=cores_for(target, price.flops, price.traffic_bytes))
    if not knobs.is_planar:
        cuts: tuple[int, ...] = (1, 2, 3)
    else:
        cuts = (2, 3) if planar else (1, 2)
    return RESIZE.offer(knobs, target, 1, [Feed(node.operands[0], cuts)])


def _phases(
    size: int | None, out: int | None, params: Mapping[str, Any], axis: int
) -> Phases | None:
    """Return an axis's phases; None where it does not grow by a whole number, or is unknown."""
    if not size or not out or out % size or params["coordinates"] == "align_corners":
        return None
    how = (params["mode"], params["coordinates"], params["rounding"])
    scale = params["scales"][axis] if params["scales"] else None
    phases = Phases.of(out // size, *how)
    wanted = axis_taps(size, out, scale, *how)
    weights = wanted.weights if wanted.weights is not None else np.ones(wanted.indices.shape)
    elements = np.arange(size)[:, None]
    found = np.array(phases.taps)
    same = found.shape[1] == len(wanted.indices)
    for n in range(len(wanted.indices) if same else 0):
        places = np.clip(elements + found[:, n, 0], 0, size - 1).ravel()
        by = np.tile(found[:, n, 1], size)
        same = same and np.array_equal(places, wanted.indices[n]) and np.allclose(by, weights[n])
    return phases if same else None


RESIZE = Family("resize", Resize, _match_resize)


@dataclass(frozen=True)
class Concat(KernelKnobs, family="concat"):
    """The knobs of y[rows, sum(widths)] = program(parts side by side, reads...).

    Part i is [rows, widths[i]]. A workgroup has `rows_part` rows; `unroll` is how many vectors a
    block has.
    """

    rows: Dim
    widths: tuple[int, ...]
    program: Pointwise = NOTHING
    rows_part: int = knob(1, lambda k, target: parts_of(target, k.rows, (1, 16, 256)))
    unroll: int = knob(2, UNROLLS)

    def _misfit(self) -> str:
        return "" if self.widths else "parts"

    @property
    def flops(self) -> int:
        """Those of the program."""
        return self.program.flops * known(self.rows) * self.columns

    @staticmethod
    def on(target: Target, rows: Dim, widths: tuple[int, ...], program: Pointwise) -> "Concat":
        """Choose the knobs: rows for each core where there is work for more than one."""
        columns = sum(widths)
        part = max(1, _PART // columns)
        if isinstance(rows, int):
            part = rows if rows * columns <= _ALONE else -(-rows // target.cores)
        return Concat(rows, widths, program, part)

    @property
    def columns(self) -> int:
        """The length of a row of the result."""
        return sum(self.widths)

    def operands(self) -> tuple[Operand, ...]:
        """Return the parts, the program's reads, y."""
        parts = [Operand(f"x{i}", (self.rows, w)) for i, w in enumerate(self.widths)]
        reads = self.program.operands("read", self.rows, self.columns)
        return (*parts, *reads, Operand("y", (self.rows, self.columns), "out"))

    def _cut(self) -> tuple[tuple[Dim, int], ...]:
        return ((self.rows, self.rows_part),)

    def _body(self, k: Build, memory: Mapping[str, Memory]) -> None:
        y, held = memory["y"], InKernel.of(k, self.program, "read", memory)
        with k.range(*self._part(k)) as i:
            apply = held.row(i)
            starts = accumulate(self.widths, initial=0)
            for n, (width, start) in enumerate(zip(self.widths, starts, strict=False)):

                @k.each(Index.of(width), self.unroll)
                def _(at: Lanes, part: Memory = memory[f"x{n}"], start: int = start) -> None:
                    to = at.moved(start)
                    y.store(apply(part.load(i, at), to), i, to)


def _match_concat(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a tree of concatenations along one axis, and what follows as far as a program can.

    Parts are matrices whose rows are the dimensions before the axis. A single row has nothing for
    a second core: IREE's copies are left to it.
    """
    found = _tree(work)
    if found is None:
        return []
    leaves, count, axis = found
    result = work.nodes[count - 1].type
    shapes = [work.type(v).shape for v in leaves]
    widths = [nominal(s[axis:]) for s in shapes]
    known = not any(None in s[axis:] for s in shapes) and all(widths)
    if not known or not is_f32(work, leaves):
        return []
    if any(s[:axis] != result.shape[:axis] for s in shapes):
        return []
    view = MatrixView(result.shape, axis)
    rows: Dim = "m" if view.rows is None else view.rows
    if isinstance(rows, int) and rows < 2 * target.cores:
        return []
    covers, program = longest(work, count, view)
    knobs = Concat.on(target, rows, tuple(widths), program.program)
    feeds = (*(Feed(v, (axis,)) for v in leaves), *program.feeds)
    return CONCAT.offer(knobs, target, covers, feeds, {"m": nominal(result.shape[:axis])})


def _tree(work: Work) -> tuple[list[int], int, int] | None:
    """Return the group's first concatenations: their parts in order, their number, the axis.

    None where they are not one tree whose last op joins all of it.
    """
    rank = work.nodes[0].type.rank
    joins = [n for n in work.nodes if n.name == "concat"]
    count = len(joins)
    if not joins or list(work.nodes[:count]) != joins:
        return None
    axes = {n.params["axis"] % rank for n in joins}
    inputs = len(work.inputs)
    leaves: list[int] = []
    seen: set[int] = set()
    pending = [work.number_of(count - 1)]
    while pending:
        value = pending.pop()
        if value < inputs:
            leaves.append(value)
        else:
            seen.add(value)
            pending.extend(reversed(work.nodes[value - inputs].operands))
        if len(leaves) > _MOST_PARTS:
            return None
    whole = len(axes) == 1 and len(seen) == count and work.closed(count)
    return (leaves, count, axes.pop()) if whole else None


CONCAT = Family("concat", Concat, _match_concat)
