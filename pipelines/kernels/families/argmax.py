"""The kernel family ``argmax``: y[i] = argmax x[i, :] (or argmin), as i64.

`x` is [rows, columns]. A row is walked in chunks: the largest number of a chunk is found first,
and only where it beats all before it, the chunk is searched for its place, in the first-level
cache. Numpy's rules hold: the first of equals, and the first NaN before all numbers. Places
within a chunk are counted in f32, exactly, since a chunk is short.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.values import (
    Index,
    Scalar,
    Vector,
    least,
    maximum,
    smaller,
    where,
)
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.registry import Family, refuse_target
from pyc_mlir.pipelines.kernels.variants import UNROLLS, knob_space, parts_of
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, is_f32, nominal, sizes

OPERATIONS = ("argmax", "argmin")
_MOST = 1 << 24  # up to here f32 holds every whole number


@dataclass(frozen=True)
class Argmax:
    """The knobs: `operation` is one of `OPERATIONS`, known sizes are at least 1.

    A workgroup has `rows_per_workgroup` rows; a chunk is `chunk` numbers, `unroll` vectors a turn.
    """

    operation: str
    rows: Dim
    columns: Dim
    rows_per_workgroup: int = 64
    chunk: int = 2048
    unroll: int = 4

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        if self.operation not in OPERATIONS:
            raise no_kernel("argmax", f"an operation of {', '.join(OPERATIONS)}", self.operation)
        known = [d for d in (self.rows, self.columns) if isinstance(d, int)]
        if min(self.rows_per_workgroup, self.chunk, self.unroll, *known) < 1:
            raise no_kernel("argmax", "sizes and parts of at least 1", self)
        if self.chunk > _MOST:
            raise no_kernel("argmax", f"a chunk of at most {_MOST}", self.chunk)

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands x and y."""
        x = Operand("x", (self.rows, self.columns))
        y = Operand("y", (self.rows,), "out", dtype="i64")
        return Kernel(name, (x, y), self._grid, self._body)

    def _grid(self, size: Callable[[Dim], Index]) -> tuple[Index]:
        return (size(self.rows).ceildiv(self.rows_per_workgroup),)

    def _body(self, k: Build, x: Memory, y: Memory) -> None:
        first = k.workgroup() * self.rows_per_workgroup
        with k.range(first, least(first + self.rows_per_workgroup, x.shape[0])) as i:
            y.put_index(Search(k, self, x, i).place(), i)


@dataclass(frozen=True)
class Search:
    """The search of row `i`."""

    k: Build
    knobs: Argmax
    x: Memory
    i: Index

    def place(self) -> Index:
        """Return the place of the number that wins; 0 where all are the identity."""
        columns, chunk = self.x.shape[1], self.knobs.chunk
        edge = columns // chunk * chunk
        found = [Scalar.of(-math.inf), Index(Index.of(0).value)]
        found = self.k.loop(0, edge, chunk, found)(
            lambda start, *found: self._chunk(start, Index.of(chunk), found)
        )
        rest = columns - edge
        return (found if rest.number == 0 else self._chunk(edge, rest, found))[1]

    def _chunk(self, start: Index, width: Index, found: Sequence[Scalar | Index]) -> list:
        """Return the best number and its place once the chunk at `start` is seen."""
        best, place = found
        assert isinstance(best, Scalar) and isinstance(place, Index)

        @self.k.fold(width, maximum, -math.inf, self.knobs.unroll)
        def peak(at: Lanes) -> Vector:
            return self._load(start, at)

        return self.k.either(
            peak.beats(best),
            [best, place],
            lambda: [peak, start + self._find(start, width, peak)],
            lambda: [best, place],
        )

    def _find(self, start: Index, width: Index, peak: Scalar) -> Index:
        """Return the first place of `peak` in a chunk; with a NaN in it, `peak` is NaN."""

        @self.k.fold(width, smaller, math.inf, self.knobs.unroll)
        def first(at: Lanes) -> Vector:
            x = self._load(start, at)
            places = Vector.counting(self.k.lanes) + at.start.to_float()
            return where(x.equals(peak) | x.is_nan(), places, math.inf)

        return first.to_index()

    def _load(self, start: Index, at: Lanes) -> Vector:
        """Load numbers of which the largest wins."""
        x = self.x.load(self.i, Lanes(start + at.start, at.mask))
        return x if self.knobs.operation == "argmax" else -x


_FLOPS = 3  # a comparison that heeds NaN


refusal = refuse_target


def cost(knobs: Argmax, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count one read of each number from memory; places are of eight bytes."""
    rows, columns = (d if isinstance(d, int) else sizes[d] for d in (knobs.rows, knobs.columns))
    flops, traffic = _FLOPS * rows * columns, rows * (4 * columns + 8)
    return CostModel(target).kernel("argmax", flops, traffic)


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a kernel for the first op of a group, argmax of f32 along the last dimension."""
    node = work.nodes[0]
    if node.name != "argmax" or not is_f32(work, node.operands):
        return []
    shape = work.type(node.operands[0]).shape
    axis = node.params["axis"] % len(shape)
    rows, columns = sizes(shape[:axis]), shape[axis]
    # An empty row has no largest number: IREE's code checks rows of unknown length for that.
    if 0 in shape or sizes(shape[axis + 1 :]) != 1 or columns is None:
        return []
    share = min(64, max(1, -(-nominal(shape[:axis]) // target.cores)))
    knobs = Argmax(
        "argmax",
        "m" if rows is None else rows,
        columns,
        rows_per_workgroup=share,
    )
    if refusal(knobs, target):
        return []
    taken = {"m": NOMINAL_DIMENSION}
    feed = Feed(node.operands[0], (axis,))
    return [KernelOffer(knobs, 1, (feed,), cost(knobs, target, taken))]


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Vary the numbers of a chunk, vectors of a turn, and rows of a workgroup."""
    knobs: Argmax = offer.knobs
    rows = knobs.rows if isinstance(knobs.rows, int) else None
    return knob_space(
        knobs,
        {
            "rows_per_workgroup": (1, 4, 16, 64) if rows is None else parts_of(target, rows),
            "chunk": (256, 512, 1024, 2048, 4096, 8192),
            "unroll": UNROLLS,
        },
        lambda made: refusal(made, target),
    )


FAMILY = Family("argmax", Argmax, refusal, cost, match, space)
