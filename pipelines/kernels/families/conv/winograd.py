"""The kernel family ``winograd``: 3x3 convolutions of stride 1 by minimal filtering, NHWC.

y = epilogue(conv2d(x, w)) with constant weights, by F(m x m, 3 x 3) of Lavin and Gray (2016): tiles
of (m + 2)^2 numbers of x are transformed, each of their (m + 2)^2 positions is a product over
channels, and the results are transformed to m x m outputs. That takes 9 m^2 / (m + 2)^2 times fewer
multiplications than a direct convolution: 2.25 for m = 2, 4 for m = 4. Sums are formed in another
order and of other numbers, so that the error differs: it is smaller for m = 2 and about 2.5 times
larger for m = 4 (docs/kernels.md).

A workgroup takes blocks of tiles. It writes a block's transformed tiles to scratch memory,
then goes through panels of filters: for each position a register tile of `height` tiles by a panel,
accumulated over channels as in a product, into scratch memory again, then the outputs.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import reduce
from random import Random
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.kernels.families.conv.images import find
from pyc_mlir.pipelines.kernels.families.conv.sources import (
    Part,
    Piece,
    fits,
    joined,
    operands,
    pieces,
    random_parts,
)
from pyc_mlir.pipelines.kernels.families.conv.toom_cook import (
    SIZES,
    TAPS,
    Spectrum,
    largest_terms,
    matrices,
)
from pyc_mlir.pipelines.kernels.families.conv.window import (
    PIXELS_OF_RESULT,
    Axis,
    border,
    pixels_of,
    under_taps,
)
from pyc_mlir.pipelines.kernels.families.gemm import contents, random_epilogue
from pyc_mlir.pipelines.kernels.families.packing import Panels
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise, evaluate
from pyc_mlir.pipelines.kernels.lang.values import ROUNDING, Condition, Index, Vector, fma, least
from pyc_mlir.pipelines.kernels.match.offers import Feed, Offer
from pyc_mlir.pipelines.kernels.match.pointwise import View, longest
from pyc_mlir.pipelines.kernels.registry import Arrays, Family, refuse_narrow
from pyc_mlir.pipelines.kernels.shared.grid import cores_for, known, share
from pyc_mlir.pipelines.kernels.shared.tile import refuse_tile
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work


@dataclass(frozen=True)
class Winograd:
    """The knobs of y[images, rows, columns, filters] = epilogue(conv2d(x, w)), w of 3x3.

    `m` is the size of a tile's outputs. A block has `block` tiles, in groups of `height`, which is
    the register tile's; `panel` filters are its width. `workgroups` share out the blocks. x may lie
    in `parts`.
    """

    images: Dim
    rows: Axis
    columns: Axis
    channels: int
    filters: int
    epilogue: Pointwise = NOTHING
    m: int = 2
    height: int = 14
    block: int = 28
    panel: int = 32
    unroll: int = 4
    workgroups: int = 1
    parts: tuple[Part, ...] = ()

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        counts = (self.channels, self.filters, self.height, self.unroll, self.workgroups)
        if self.images == 0 or min(counts) < 1 or self.m not in SIZES:
            raise _refusal(f"sizes of at least 1, and `m` of {SIZES}", self)
        if self.panel < LINE or self.panel % LINE or self.block % self.height or self.block < 1:
            raise _refusal("panel in lines of 16, block in heights", self)
        if not fits(self.channels, self.parts):
            raise _refusal("parts that are all channels", self)
        for axis in (self.rows, self.columns):
            if (axis.kernel, axis.stride, axis.dilation) != (TAPS, 1, 1):
                raise _refusal("3 taps, stride 1, dilation 1", axis)

    @staticmethod
    def on(
        target: Target,
        m: int,
        images: Dim,
        rows: Axis,
        columns: Axis,
        channels: int,
        filters: int,
        **others: Any,
    ) -> "Winograd":
        """The knobs for a target's registers and caches; `others` are further fields."""
        made = Winograd(images, rows, columns, channels, filters, m=m)
        vectors = max(2, LINE * 4 // target.vector_bytes)
        tall = (target.vector_registers - vectors - 1) // vectors
        tiles = known(images) * made.tiles[0] * made.tiles[1]
        cores = min(cores_for(target, made.flops, 0.0), -(-tiles // tall))
        each = -(-tiles // cores)
        height = -(-each // -(-each // tall))
        # Transformed tiles of a block take half of the second-level cache.
        most = max(1, target.l2_bytes // 2 // (4 * made.positions * made.depth * height))
        groups = min(most, -(-each // height))
        knobs = {
            "height": height,
            "block": height * groups,
            "panel": vectors * target.vector_bytes // 4,
            "workgroups": cores,
        }
        return replace(made, **{**knobs, **others})

    @property
    def outputs(self) -> tuple[int, int]:
        """Rows and columns of an image of the result."""
        return self.rows.outputs, self.columns.outputs

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows and columns of tiles of an image."""
        return -(-self.rows.outputs // self.m), -(-self.columns.outputs // self.m)

    @property
    def side(self) -> int:
        """Numbers along a side of a tile of x."""
        return self.m + TAPS - 1

    @property
    def positions(self) -> int:
        """Products of a tile for each channel and filter."""
        return self.side**2

    @property
    def flops(self) -> float:
        """Operations of the products of all images."""
        tiles = known(self.images) * self.tiles[0] * self.tiles[1]
        return 2.0 * tiles * self.positions * self.channels * self.filters

    @property
    def panels(self) -> Panels:
        """How the transformed weights are laid out."""
        return Panels(self.filters, self.positions * self.channels, self.panel)

    @property
    def layout(self) -> Spectrum:
        """What the weights become when compiling."""
        return Spectrum(self.m, self.channels, self.panels)

    @property
    def depth(self) -> int:
        """A row of transformed tiles: channels, and a line so that rows do not share cache sets."""
        return -(-self.channels // LINE) * LINE + LINE

    @property
    def scratch(self) -> tuple[int, int]:
        """Numbers of a workgroup's transformed tiles, and of its sums of a panel."""
        return self.positions * self.block * self.depth, self.positions * self.block * self.panel

    def kernel(self, name: str) -> Kernel:
        """The kernel called `name`: operands x, w (packed), the epilogue's, y, then scratch."""
        result = (self.images, *self.outputs, self.filters)
        matrix = pixels_of(self.images, self.outputs)
        image = (self.images, self.rows.size, self.columns.size)
        taken = (
            *operands(image, self.channels, self.parts),
            Operand("w", (self.panels.size,), layout=self.layout),
            *self.epilogue.operands("e", matrix, self.filters),
            Operand("y", result, "out"),
            Operand("scratch", (self.workgroups * sum(self.scratch),), "out"),
        )
        return Kernel(
            name, taken, lambda size: (self.workgroups,), self._body, merged=PIXELS_OF_RESULT
        )

    def _body(self, k: Build, *memory: Memory) -> None:
        x = pieces(memory, self.channels, self.parts)
        w, *reads, y, scratch = memory[len(x) :]
        Filtering(k, self, x, w, y, scratch, InKernel(k, self.epilogue, tuple(reads))).build()


@dataclass(frozen=True)
class Place:
    """A tile's image, and where its outputs begin in it."""

    image: Index
    y: Index
    x: Index


@dataclass(frozen=True)
class Filtering:
    """One kernel under construction."""

    k: Build
    knobs: Winograd
    x: tuple[Piece, ...]
    w: Memory
    y: Memory
    scratch: Memory
    epilogue: InKernel

    def build(self) -> None:
        """This workgroup's blocks: transform, multiply, transform back."""
        k, knobs = self.k, self.knobs
        high, wide = knobs.tiles
        tiles = k.size(knobs.images) * (high * wide)
        first, end = share(k, 0, knobs.workgroups, tiles)
        own = k.workgroup() * sum(knobs.scratch)
        with k.range(first, end, knobs.block) as start:
            count = least(end - start, knobs.block)
            with k.range(count) as number:
                self._transform(self._place(start + number), own + number * knobs.depth)
            panels = knobs.panels
            if panels.full:
                with k.range(panels.full) as panel:
                    size = panels.depth * panels.panel
                    block = (own, start, count)
                    self._panel(panel * size, panel * panels.panel, panels.panel, block)
            if panels.last_width:
                offset, filters = panels.edge * panels.depth, Index.of(panels.edge)
                block = (own, start, count)
                self._panel(Index.of(offset), filters, panels.last_width, block, last=True)

    def _place(self, tile: Index) -> Place:
        high, wide = self.knobs.tiles
        row = tile // wide
        y, x = (row, tile % wide)
        image = Index.of(0)
        if self.knobs.images != 1:
            image, y = row // high, row % high
        return Place(image, y * self.knobs.m, x * self.knobs.m)

    def _transform(self, place: Place, at: Index) -> None:
        """One tile of x, for all channels, to scratch[position][tile][channel]."""
        k, knobs = self.k, self.knobs
        conditions = []
        for axis, start in ((knobs.rows, place.y), (knobs.columns, place.x)):
            last = (-(-axis.outputs // knobs.m) - 1) * knobs.m
            if axis.low:
                conditions.append(Index.of(axis.low - 1) < start)
            if last + knobs.side - axis.low > axis.size:
                conditions.append(start < max(0, axis.size + axis.low - knobs.side + 1))
        if not conditions:
            self._channels(place, at, masked=False)
            return
        k.either(
            reduce(Condition.__and__, conditions),
            [],
            lambda: self._channels(place, at, masked=False),
            lambda: self._channels(place, at, masked=True),
        )

    def _channels(self, place: Place, at: Index, masked: bool) -> list[Any]:
        # The vectors of a piece may pass its end, into what the next one then writes.
        for piece in self.x:
            self._piece(piece, place, at + piece.start, masked)
        return []

    def _piece(self, piece: Piece, place: Place, at: Index, masked: bool) -> None:
        k, knobs, side = self.k, self.knobs, self.knobs.side
        bt = matrices(knobs.m).bt
        rows = [border(knobs.rows, place.y, i) for i in range(side)]
        columns = [border(knobs.columns, place.x, i) for i in range(side)]

        @k.each(piece.width, 1)
        def _(lanes: Lanes) -> None:
            source = Lanes(lanes.start + piece.first, lanes.mask)

            def number(i: int, j: int) -> Vector:
                if not masked:
                    y, x = (rows[i].plain, columns[j].plain)
                    return piece.memory.load(place.image, y, x, source)
                y, x = rows[i], columns[j]
                spot = k.only_if(y.inside & x.inside, source)
                return piece.memory.load(place.image, y.clamped, x.clamped, spot)

            tile = [[number(i, j) for i in range(side)] for j in range(side)]
            half = [_combined(bt, column) for column in tile]
            for i in range(side):
                whole = _combined(bt, [half[j][i] for j in range(side)])
                for j, value in enumerate(whole):
                    position = (i * side + j) * knobs.block * knobs.depth
                    self.scratch.store(value, Lanes(at + position + lanes.start))

    def _panel(
        self,
        weights: Index,
        filters: Index,
        width: int,
        block: tuple[Index, Index, Index],
        last: bool = False,
    ) -> None:
        """One panel of filters for a block's tiles: products, then outputs."""
        k, knobs = self.k, self.knobs
        own, start, count = block
        vectors = width // k.lanes
        sums = own + knobs.scratch[0]
        each = knobs.channels * width
        groups = count.ceildiv(knobs.height)
        with k.range(knobs.positions) as position, k.range(groups) as group:
            tiles = position * knobs.block + group * knobs.height
            made = self._product(weights + position * each, own + tiles * knobs.depth, width)
            into = sums + tiles * knobs.panel
            for n, value in enumerate(made):
                row, v = divmod(n, vectors)
                self.scratch.store(value, into + (row * knobs.panel + v * k.lanes))
        with k.range(count) as number:
            place = self._place(start + number)
            for v, lanes in enumerate(self._lanes(filters, width, last)):
                self._outputs(place, sums + number * knobs.panel + v * k.lanes, lanes)

    def _lanes(self, filters: Index, width: int, last: bool) -> list[Lanes]:
        """Where a panel's vectors lie in the result: in the last panel masked."""
        k, starts = self.k, range(0, width, self.k.lanes)
        if not last:
            return [Lanes(filters + v) for v in starts]
        edge, end = self.knobs.panels.edge, self.knobs.filters
        return [k.tail(Index.of(edge + v), Index.of(end)) for v in starts if edge + v < end]

    def _product(self, weights: Index, tiles: Index, width: int) -> list[Vector]:
        """A register tile of one position: tiles by filters, over all channels."""
        k, knobs = self.k, self.knobs
        vectors = width // k.lanes

        def step(unroll: int) -> Callable[..., list[Vector]]:
            def steps(at: Index, *kept: Vector) -> list[Vector]:
                made = list(kept)
                for u in range(unroll):
                    start = weights + (at + u) * width
                    parts = [self.w.load(start + v * k.lanes) for v in range(vectors)]
                    for t in range(knobs.height):
                        number = self.scratch.number(tiles + t * knobs.depth + (at + u))
                        one = number.across(k.lanes)
                        for v in range(vectors):
                            n = t * vectors + v
                            made[n] = fma(one, parts[v], made[n])
                return made

            return steps

        zeros = [k.vector(0.0)] * (knobs.height * vectors)
        edge = knobs.channels // knobs.unroll * knobs.unroll
        kept = k.loop(0, edge, knobs.unroll, zeros)(step(knobs.unroll))
        return k.loop(edge, knobs.channels, 1, kept)(step(1))

    def _outputs(self, place: Place, sums: Index, lanes: Lanes) -> None:
        """The outputs of one tile for one vector of filters, as far as they lie in the result."""
        k, knobs, side = self.k, self.knobs, self.knobs.side
        at = matrices(knobs.m).at
        stride = knobs.block * knobs.panel
        half = []
        for j in range(side):
            column = [self.scratch.load(sums + (i * side + j) * stride) for i in range(side)]
            half.append(_combined(at, column))
        high, wide = knobs.outputs
        for i in range(knobs.m):
            row = _combined(at, [half[j][i] for j in range(side)])
            within = nullcontext() if high % knobs.m == 0 else k.when(place.y + i < high)
            with within:
                for j, value in enumerate(row):
                    y, x = place.y + i, place.x + j
                    there = nullcontext() if wide % knobs.m == 0 else k.when(x < wide)
                    with there:
                        matrix_row = (place.image * high + y) * wide + x
                        made = self.epilogue.row(matrix_row)(value, lanes)
                        self.y.store(made, place.image, y, x, lanes)


def _combined(matrix: np.ndarray, numbers: Sequence[Vector]) -> list[Vector]:
    """Each row of the matrix times the numbers; zeros and ones cost nothing."""
    return [_row(row, numbers) for row in matrix]


def _row(row: np.ndarray, numbers: Sequence[Vector]) -> Vector:
    terms = sorted(
        ((float(c), n) for c, n in zip(row, numbers, strict=True) if c), key=lambda t: t[0] != 1.0
    )
    (factor, total), *rest = terms
    total = total if factor == 1.0 else total * factor
    for factor, number in rest:
        if factor == 1.0:
            total = total + number
        elif factor == -1.0:
            total = total - number
        else:
            total = fma(number, factor, total)
    return total


def _refusal(expected: str, came: object) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, f"winograd kernel: expected {expected}, got {came!r}")


def refusal(knobs: Winograd, target: Target) -> str:
    """A register tile must fit: sums, one row of weights, one number of x."""
    if reason := refuse_narrow(target):
        return reason
    return refuse_tile("winograd", knobs.height, knobs.panel, target)


def cost(knobs: Winograd, target: Target, sizes: Mapping[str, int]) -> Cost:
    """The products or the weights, whichever takes longer, and the transforms.

    The transformed weights are 16/9 or 4 times those of the model: all layers' together do not stay
    in a cache, so that they count as read from memory.
    """
    images = knobs.images if isinstance(knobs.images, int) else sizes[knobs.images]
    pixels = images * knobs.outputs[0] * knobs.outputs[1]
    tiles = images * knobs.tiles[0] * knobs.tiles[1]
    flops = 2.0 * tiles * knobs.positions * knobs.channels * knobs.filters
    flops += pixels * knobs.filters * knobs.epilogue.flops
    weights = knobs.panels.size
    read = images * knobs.rows.size * knobs.columns.size * knobs.channels
    traffic = 4 * (read + weights + pixels * knobs.filters)
    traffic += knobs.epilogue.read_bytes(pixels, knobs.filters)
    model = CostModel(target)
    made = model.kernel("winograd", flops, traffic)
    computed = model.kernel("winograd", flops, 0).seconds
    transforms = 4.0 * tiles * knobs.positions * knobs.side * (knobs.channels + knobs.filters)
    seconds = max(computed, 4 * weights / model.bandwidth)
    seconds += model.kernel("winograd.transform", transforms, 0).seconds
    return replace(made, seconds=seconds, constant_bytes=4 * weights)


def reference(knobs: Winograd, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """The exact result in f64, and the error that a kernel may have, element by element.

    The bound follows each number through the three transforms and the sums over channels.
    """
    given = [np.asarray(a, np.float64) for a in arrays]
    count = max(1, len(knobs.parts))
    x, (packed, *reads) = joined(given[:count], knobs.parts), given[count:]
    w = knobs.layout.unpack(packed)
    value: Any = 0.0
    for tap, met in under_taps(x, knobs.rows, knobs.columns, 0.0):
        value = value + np.einsum("nhwc,cf->nhwf", met, w[tap])
    sizes = largest_terms(knobs.m, knobs.rows, knobs.columns, np.abs(x), np.abs(w))
    matrix = value.reshape(-1, knobs.filters)
    steps = knobs.channels + 4 * knobs.side + 8
    error = steps * ROUNDING * sizes.reshape(matrix.shape) + 2.0**-100
    exact, bound = evaluate(knobs.epilogue, matrix, reads, error)
    return exact.reshape(value.shape), bound.reshape(value.shape)


_CHANNELS = (1, 3, 8, 16, 17, 40)
_FILTERS = (1, 8, 16, 17, 32, 48, 65)


def sample(random: Random, target: Target) -> tuple[Winograd, list[Arrays]]:
    """Random knobs, and three calls: half of the time what ships for the target."""
    rows, columns = (_axis(random) for _ in range(2))
    sizes = (random.choice(_CHANNELS), random.choice(_FILTERS))
    others: dict[str, Any] = {"epilogue": random_epilogue(random)}
    others["parts"] = random_parts(random, sizes[0])
    if random.random() < 0.5:
        height = random.choice((1, 4, 6))
        others |= {"height": height, "block": height * random.choice((1, 3)), "panel": 16}
        others |= {"unroll": random.choice((1, 2)), "workgroups": random.choice((1, 2, 3))}
    images = random.choice((1, 2, "n"))
    knobs = Winograd.on(target, random.choice(SIZES), images, rows, columns, *sizes, **others)
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _axis(random: Random) -> Axis:
    low, high = random.choice(((0, 0), (1, 1), (1, 1), (0, 1), (2, 2)))
    size = max(1, TAPS - low - high) + random.choice((0, 1, 2, 5, 8, 13))
    return Axis(size, TAPS, 1, low, high)


def _arrays(knobs: Winograd, random: Random) -> Arrays:
    images = random.choice((1, 2, 3)) if isinstance(knobs.images, str) else knobs.images
    values = np.random.default_rng(random.randrange(1 << 30))
    sources = operands((images, knobs.rows.size, knobs.columns.size), knobs.channels, knobs.parts)
    weights = values.normal(size=(TAPS * TAPS * knobs.channels, knobs.filters))
    pixels = images * knobs.outputs[0] * knobs.outputs[1]
    arrays = [values.normal(size=source.shape) for source in sources]
    arrays.append(knobs.layout.pack(weights))
    arrays += contents(knobs.epilogue, pixels, knobs.filters, values)
    return [a.astype(np.float32) for a in arrays]


def match(work: Work, target: Target) -> list[Offer]:
    """A 3x3 convolution of stride 1 with constant weights, and as much as the epilogue can do."""
    found = find(work, "conv2d")
    if found is None or found.weights is None or found.planar or found.groups != 1:
        return []
    # A transform of larger weights, or of their products, may overflow.
    if work.inputs[found.weights].magnitude > 1e36 or any(
        (a.kernel, a.stride, a.dilation) != (TAPS, 1, 1) for a in (found.rows, found.columns)
    ):
        return []
    covers, program = longest(work, found.covers, View(found.result, 3))
    offers = []
    for m in SIZES:
        knobs = Winograd.on(
            target, m, found.images, found.rows, found.columns, found.channels, found.filters,
            epilogue=program.program, parts=found.parts,
        )  # fmt: skip
        if not refusal(knobs, target):
            feeds = (*found.feeds, Feed(found.weights, (3,)), *program.feeds)
            price = cost(knobs, target, {"n": NOMINAL_DIMENSION})
            offers.append(Offer(knobs, covers, feeds, price, indirect=True))
    return offers


FAMILY = Family("winograd", Winograd, refusal, cost, reference, sample, match)
