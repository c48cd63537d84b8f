"""Products of bytes: their sums, exact, the layouts of their weights, and what follows the sums.

Four products of bytes are summed in each 32-bit lane by the instructions that a target has.
``vnni``: vpdpbusd, one instruction for four products. ``madd``: vpmaddwd on 16-bit halves, two for
four products and their additions; weights are widened when they are laid out. ``plain``: the
same in arithmetic of any target. ``amx`` (`conv/bytes.py`): whole tiles of sums at once. None
saturates: every sum is that of the integers.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES, dtype_name
from pyc_mlir.pipelines.kernels.families.window import ConvAxis
from pyc_mlir.pipelines.kernels.lang.language import Build, Memory
from pyc_mlir.pipelines.kernels.lang.narrow import NARROW, Narrow
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, Pointwise
from pyc_mlir.pipelines.kernels.lang.tiles import COLUMNS, ROW_BYTES, ROWS, TILES, has_tiles
from pyc_mlir.pipelines.kernels.lang.values import Index, Ints, int_vector, llvm, vector
from pyc_mlir.pipelines.kernels.match import Feed, MatrixView, find
from pyc_mlir.pipelines.kernels.nest import Panels
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work

# Results: i32 sums, f32 after the epilogue, or bytes after it.
RESULTS = {"i32": "i32", "f32": "f32", "i8": "i8", "ui8": "i8"}
AMX, VNNI, MADD, PLAIN = "amx", "vnni", "madd", "plain"
DOTS = (VNNI, MADD, PLAIN)
FORMS = (AMX, *DOTS)
QUAD = 4
_INTRINSICS = {
    (VNNI, 64): "llvm.x86.avx512.vpdpbusd.512",
    (VNNI, 32): "llvm.x86.avx512.vpdpbusd.256",
    (MADD, 64): "llvm.x86.avx512.pmaddw.d.512",
    (MADD, 32): "llvm.x86.avx2.pmadd.wd",
}


def has_dot(target: Target, dot: str) -> bool:
    """Return whether the CPU has the instruction; its features are those that LLVM may use."""
    if dot == AMX:
        return target.vector_bytes == 64 and has_tiles(target, "i8")
    if dot == VNNI:
        wide = {"avx512_vnni", "avx512vl"} <= target.needs
        return target.vector_bytes in (32, 64) and (
            wide or (target.vector_bytes == 32 and "avx_vnni" in target.needs)
        )
    return dot == PLAIN or target.vector_bytes in (32, 64)


def best_dot(target: Target) -> str:
    """Return the fastest form that the target has."""
    return next(dot for dot in DOTS if has_dot(target, dot))


@dataclass(frozen=True)
class Dot:
    """The code of one form on vectors of `k`; bytes of x are signed or not."""

    k: Build
    form: str
    signed: bool

    @property
    def words(self) -> int:
        """How many words of weights there are for each four products."""
        return words_of(self.form)

    def load(self, x: Memory, *place: Index) -> list[Ints]:
        """Load four neighbouring bytes of x in each lane, as `add` takes them."""
        word = vector.extract(x.ints(*place, lanes=QUAD, bits=8).as_bits(32).value, [], [0])
        whole = Ints(vector.broadcast(int_vector(self.k.lanes), word))
        if self.form == VNNI:
            # Bytes with a sign as such without one, each 128 larger.
            return [whole ^ -0x7F7F7F80 if self.signed else whole]
        halves = whole.as_bits(16)
        if self.signed:
            return [(halves << 8) >> 8, halves >> 8]
        return [halves & 255, halves.upper(8)]

    def add(self, total: Ints, x: list[Ints], weights: list[Ints]) -> Ints:
        """`total` and the four products of each lane."""
        if self.form == VNNI:
            (own,), (other,) = x, weights
            return self._call(total, own.as_bits(8), other.as_bits(8))
        for own, other in zip(x, weights, strict=True):
            total = total + self._pairs(own, other.as_bits(16))
        return total

    def _pairs(self, a: Ints, b: Ints) -> Ints:
        if self.form == MADD:
            return self._call(a, b)
        products, count = a.wide() * b.wide(), 2 * self.k.lanes
        even, odd = (products.part(list(range(first, count, 2))) for first in (0, 1))
        return even + odd

    def _call(self, *operands: Ints) -> Ints:
        name, held = _INTRINSICS[self.form, 4 * self.k.lanes], [o.value for o in operands]
        return Ints(llvm.call_intrinsic(int_vector(self.k.lanes), name, held, [], []))


def words_of(form: str) -> int:
    """Return how many 32-bit words hold four weights in a form."""
    return 1 if form in (AMX, VNNI) else 2


def words(quads: np.ndarray, form: str) -> np.ndarray:
    """Return weights [..., 4, columns] of i8 as words [..., words, columns] of i32."""
    moved = np.moveaxis(quads, -2, -1)
    if words_of(form) == 1:
        return np.ascontiguousarray(moved).view(np.int32)[..., None, :, 0]
    # The even bytes of x meet the even weights, the odd ones the odd.
    wide = moved.astype(np.int16)
    parts = [np.ascontiguousarray(wide[..., first::2]).view(np.int32)[..., 0] for first in (0, 1)]
    return np.stack(parts, axis=-2)


def starts_of(channels: int, chunk: int) -> list[int]:
    """Return the first channel of each chunk; the last one overlaps that before, or passes the end.

    It passes the end where it is the only one.
    """
    return [max(0, min(start, channels - chunk)) for start in range(0, channels, chunk)]


def quad_starts(channels: int, chunk: int = QUAD) -> list[int]:
    """Return the first channel of each four of all chunks."""
    return [s + q for s in starts_of(channels, chunk) for q in range(0, chunk, QUAD)]


@dataclass(frozen=True)
class ByteFilters:
    """w[taps channels, filters] of i8 as panels of words, each [taps][quads][words][panel].

    The quads are those of chunks of so many channels.
    """

    taps: int
    channels: int
    filters: int
    panel: int
    form: str
    chunk: int = QUAD

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of w."""
        return self.taps * self.channels, self.filters

    @property
    def panels(self) -> Panels:
        """The panels, whose depth counts words."""
        depth = self.taps * len(self._quads[0]) * words_of(self.form)
        return Panels(self.filters, depth, self.panel, "i32")

    @property
    def _quads(self) -> tuple[np.ndarray, np.ndarray]:
        """The channels of each quad, and which of them count: a channel does in its first quad."""
        starts = np.array(quad_starts(self.channels, self.chunk))
        before = np.concatenate([[0], np.maximum.accumulate(starts + QUAD)[:-1]])
        channels = starts[:, None] + np.arange(QUAD)
        return channels, (channels >= before[:, None]) & (channels < self.channels)

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Return the panels as words, flat."""
        w = array.reshape(self.taps, self.channels, self.filters)
        channels, counts = self._quads
        quads = np.where(counts[..., None], w[:, np.where(counts, channels, 0)], 0).astype(np.int8)
        matrix = words(quads, self.form).reshape(-1, self.filters)
        return self.panels.pack(matrix)


@dataclass(frozen=True)
class TapRanges:
    """The runs of taps that meet an image along one axis, numbered for a table.

    Outputs meet the taps from a first one up to `most` to before an end from `least` on.
    """

    most: int
    least: int
    kernel: int

    @staticmethod
    def of(axis: ConvAxis) -> "TapRanges":
        """Return the ranges of an axis; of an unknown size all."""
        if axis.name and (axis.low or axis.high):
            return TapRanges(axis.kernel, 0, axis.kernel)
        # All taps of the others meet the image, and there may be a million of them.
        inside, outputs = axis.interior, axis.outputs
        edges = (*range(min(inside.start, outputs)), *range(inside.stop, outputs))
        met = [[t for t in range(axis.kernel) if axis.meets(o, t)] for o in edges]
        if not all(met):
            return TapRanges(axis.kernel, 0, axis.kernel)
        firsts, ends = (m[0] for m in met), (m[-1] + 1 for m in met)
        return TapRanges(max(firsts, default=0), min(ends, default=axis.kernel), axis.kernel)

    @property
    def ends(self) -> int:
        """How many different ends there are."""
        return self.kernel - self.least + 1

    @property
    def count(self) -> int:
        """How many rows the table has."""
        return (self.most + 1) * self.ends

    def runs(self) -> list[range]:
        """Return the runs of taps in the order of their numbers."""
        ends = range(self.least, self.kernel + 1)
        return [range(first, end) for first in range(self.most + 1) for end in ends]


@dataclass(frozen=True)
class TapSums:
    """Sums of w[taps channels, filters] over channels and each run of taps, as i32.

    The table is [row runs, column runs, filters], flat, padded by a line for whole vectors.
    """

    rows: ConvAxis
    columns: ConvAxis
    channels: int
    filters: int

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of w."""
        return self.rows.kernel * self.columns.kernel * self.channels, self.filters

    @property
    def size(self) -> int:
        """How many numbers the table has."""
        return TapRanges.of(self.rows).count * TapRanges.of(self.columns).count * self.filters

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Return the table."""
        kernel = (self.rows.kernel, self.columns.kernel)
        each = array.reshape(*kernel, self.channels, self.filters).astype(np.int32).sum(2)
        table = [
            each[down.start : down.stop, along.start : along.stop].sum((0, 1))
            for down in TapRanges.of(self.rows).runs()
            for along in TapRanges.of(self.columns).runs()
        ]
        return np.concatenate(table).astype(np.int32)


_BYTES = (DTYPES["i8"], DTYPES["ui8"])


@dataclass(frozen=True)
class TileWindow:
    """A window over images of so many channels."""

    rows: ConvAxis
    columns: ConvAxis
    channels: int

    @property
    def is_product(self) -> bool:
        """True for a window of one tap that meets each pixel: pixels are the rows of a matrix."""
        axes = (self.rows, self.columns)
        return all((a.kernel, a.stride, a.low, a.high) == (1, 1, 0, 0) for a in axes)

    @property
    def runs(self) -> tuple[int, int]:
        """How many runs of neighbouring bytes the window has, and the bytes of one.

        A run is a row of taps; of taps that lie apart, one of them.
        """
        high, wide = self.rows.kernel, self.columns.kernel
        if self.columns.dilation == 1 or wide == 1:
            return high, wide * self.channels
        return high * wide, self.channels

    @property
    def is_copied(self) -> bool:
        """True where the image is copied: it has a border, or rows of tiles would pass its end."""
        depth = self.runs[1]
        borders = (self.rows.low, self.rows.high, self.columns.low, self.columns.high)
        return any(borders) or (not self.is_product and depth < ROW_BYTES and depth % QUAD != 0)

    @property
    def chunk(self) -> int:
        """The bytes of a tile's row, in fours; 0 for too few channels."""
        depth = self.runs[1]
        even = -(-depth // -(-depth // ROW_BYTES))
        chunk = -(-even // QUAD) * QUAD
        return chunk if chunk <= depth or self.is_copied else depth // QUAD * QUAD

    @property
    def starts(self) -> list[int]:
        """The first byte of each chunk of a run."""
        return starts_of(self.runs[1], self.chunk)

    @property
    def steps(self) -> int:
        """How many products of tiles a tile of sums has."""
        return self.runs[0] * len(self.starts)

    @property
    def height(self) -> int:
        """The pixels of a tile: those of a row of outputs evenly cut."""
        outputs = self.columns.outputs
        return -(-outputs // -(-outputs // ROWS))

    @property
    def pitch(self) -> int:
        """The bytes of a row of the image, or of its copy."""
        border = self.columns.low + self.columns.high if self.is_copied else 0
        return (self.columns.size + border) * self.channels

    @property
    def reach(self) -> int:
        """How many rows of the image a row of outputs has more than the next one starts behind."""
        return max(0, self.rows.dilation * (self.rows.kernel - 1) + 1 - self.rows.stride)

    def copied_bytes(self, parts: int) -> int:
        """Return the size of a copy for one of `parts` shares of the rows, with a line to spare."""
        rows = -(-self.rows.outputs // parts) * self.rows.stride + self.reach
        return -(-rows * self.pitch // ROW_BYTES) * ROW_BYTES + ROW_BYTES


def tiles_of(width: int, panel: int) -> int:
    """Return how many tile registers a block of pixels by filters takes."""
    high, wide = width // ROWS, panel // COLUMNS
    return high * wide + high + wide


def fits_tiles(width: int, panel: int) -> bool:
    """Return whether a block of pixels by filters is of whole tiles, and has registers."""
    return width % ROWS == 0 and panel % COLUMNS == 0 and tiles_of(width, panel) <= TILES


@dataclass(frozen=True)
class AfterSums:
    """The type of a kernel's result, how many ops are covered, and the program on f32 sums."""

    result: str
    covers: int
    program: Pointwise = NOTHING
    feeds: tuple[Feed, ...] = ()
    narrow: Narrow = NARROW


def bias_of(work: Work, filters: int) -> tuple[int | None, int]:
    """Return the constant vector of i32 that is added to the sums, and the next op."""
    node = work.nodes[1] if len(work.nodes) > 1 else None
    own = work.number_of(0)
    if node is None or node.name != "add" or node.operands[0] != own:
        return None, 1
    other = node.operands[1]
    fits = work.is_constant(other) and set(work.type(other).shape[:-1]) <= {1}
    if not fits or work.type(other).shape[-1:] != (filters,):
        return None, 1
    return other, 2


def after_sums(work: Work, first: int, view: MatrixView) -> AfterSums:
    """Return what a kernel does from op number `first` on: as much as it can."""
    nodes = work.nodes
    own = work.number_of(first - 1)
    start = first + 1
    plain = first < len(nodes) and nodes[first].name == "cast" and nodes[first].operands == (own,)
    if not plain or nodes[first].type.dtype != DTYPES["f32"] or not work.closed(start):
        return AfterSums("i32", 1)
    for end in range(len(nodes), start - 1, -1):
        if not work.closed(end):
            continue
        last = nodes[end - 1]
        is_narrow = end > start and last.name == "cast" and last.type.dtype in _BYTES
        stop = end - is_narrow
        if is_narrow and last.operands != (work.number_of(stop - 1),):
            continue
        found = find(work, start, stop, work.number_of(first), view)
        if found is not None:
            if not is_narrow:
                return AfterSums("f32", end, found.program, found.feeds)
            result = dtype_name(last.type.dtype)
            program, narrow = Narrow.of(found.program, result)
            return AfterSums(result, end, program, found.feeds, narrow)
    return AfterSums("i32", 1)


def is_shifted(work: Work, zero: int) -> bool:
    """Return whether the zero point of a group's first op may be another one than 0."""
    return not (work.is_constant(zero) and work.inputs[zero].magnitude == 0)


@dataclass(frozen=True)
class MatchedBytes:
    """A product or convolution of bytes x with constant weights that a group begins with.

    `channels` and `filters` are the last dimensions of both, `bias` is the value that is added to
    the sums in i32, if any.
    """

    x: int
    weights: int
    zero: int
    channels: int
    filters: int
    bias: int | None
    shifted: bool
    signed: bool
    after: AfterSums

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of knobs that say what is done around the sums."""
        after, bias = self.after, self.bias is not None
        return dict(
            epilogue=after.program, result=after.result, narrow=after.narrow,
            signed=self.signed, shifted=self.shifted, bias=bias,
        )  # fmt: skip

    def feeds(self, x: Feed, weights: Feed, sums: bool = False) -> tuple[Feed, ...]:
        """Return the feeds of x, weights, [zero], [sums of weights], [bias] and what follows."""
        zero = (Feed(self.zero),) * self.shifted
        bias = () if self.bias is None else (Feed(self.bias),)
        return (x, weights, *zero, *(weights,) * sums, *bias, *self.after.feeds)


def find_bytes(work: Work) -> MatchedBytes | None:
    """Return the product or convolution of bytes that a group begins with; None without one."""
    node = work.nodes[0]
    if node.name not in ("integer_matmul", "integer_conv2d"):
        return None
    x, weights, zero = node.operands
    channels, filters = work.type(x).shape[-1], node.type.shape[-1]
    fits = work.is_constant(weights) and work.type(weights).dtype == DTYPES["i8"]
    if not fits or not channels or not filters:
        return None
    bias, first = bias_of(work, filters)
    after = after_sums(work, first, MatrixView(node.type.shape, node.type.rank - 1))
    signed, shifted = work.type(x).dtype == DTYPES["i8"], is_shifted(work, zero)
    own = None if after.result == "i32" else bias
    return MatchedBytes(x, weights, zero, channels, filters, own, shifted, signed, after)
