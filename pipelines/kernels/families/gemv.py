"""The kernel family ``gemv``: C = epilogue(A B) for few rows of A; B is read once, as it is.

Such products are as fast as B comes from memory, so it is read in the order in which it lies. Row
by row, it adds `at_once` of its rows to C at a time, C's row in the first-level cache. Transposed,
as many of its rows as there are lanes give one vector of C: sums of products along the depth,
turned at the end. A few rows of A share what was read.

`Gemv` holds the knobs; `Gemv.on` chooses them for a target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.families.gemm import is_packed
from pyc_mlir.pipelines.kernels.families.products import product_cost
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, in_type
from pyc_mlir.pipelines.kernels.lang.language import HALVES, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index, Vector, add, fma, least, tree
from pyc_mlir.pipelines.kernels.match.contraction import find
from pyc_mlir.pipelines.kernels.match.offers import KernelOffer
from pyc_mlir.pipelines.kernels.registry import Family, refuse_target
from pyc_mlir.pipelines.kernels.shared.contraction import Contraction, Matrices, Operands
from pyc_mlir.pipelines.kernels.shared.epilogues import overwritable
from pyc_mlir.pipelines.kernels.shared.grid import cores_for, cut_batch, known, share
from pyc_mlir.pipelines.kernels.shared.square import transposed
from pyc_mlir.pipelines.kernels.variants import cuts, knob_space
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work

ROWS = 6
_STREAMED = 4
_UNIT = 64  # columns that workgroups do not cut
_STRIP_BYTES = 16 << 10
_STRIPS = (512, 1024, 2048, 4096, 8192)  # to try
_STRIP_LEAST = 1024  # shorter runs are not worth a prefetcher's start


@dataclass(frozen=True)
class Gemv:
    """The knobs of a product of `what` with few rows, with an epilogue on all rows as one matrix.

    `at_once` rows of B are added to `strip` columns of C at a time; both are for B row by row.
    `workgroups` cuts the batch and the columns. Of a half `dtype` B must be transposed: else C
    would hold sums.
    """

    what: Contraction
    epilogue: Pointwise = NOTHING
    at_once: int = 8
    strip: int = 4096
    workgroups: tuple[int, int] = (1, 1)
    dtype: str = "f32"

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        if min(self.at_once, *self.workgroups) < 1 or self.strip < 1 or self.strip % _UNIT:
            raise no_kernel(
                "gemv", f"counts of at least 1 and a strip in multiples of {_UNIT}", self
            )
        if not isinstance(self.what.rows, int) or self.what.rows > ROWS:
            raise no_kernel("gemv", f"at most {ROWS} rows, a number", self.what.rows)
        if self.workgroups[0] > 1 and not self.what.batch:
            raise no_kernel("gemv", "one share of a product without a batch", self.workgroups)
        if self.what.transposed and self.what.left[-1] != "k":
            raise no_kernel("gemv", "a left side whose depth lies last", self.what.left)
        if self.dtype in HALVES and not self.what.transposed:
            raise no_kernel("gemv", f"a transposed right side of {self.dtype}", self.what.right)

    @staticmethod
    def on(target: Target, what: Contraction, **others: Any) -> "Gemv":
        """Choose the knobs for a target's registers, caches and cores; `others` are fields."""
        rows = known(what.rows)
        count, columns, depth = prod(map(known, what.batch)), known(what.columns), known(what.depth)
        cores = cores_for(
            target, 2.0 * count * rows * columns * depth, 4.0 * count * depth * columns
        )
        shares = cut_batch(cores, what.batch)
        across = max(1, min(cores // shares, columns // _UNIT))
        strip = max(_STRIP_LEAST, _STRIP_BYTES // (4 * rows) // _UNIT * _UNIT)
        at_once = max(1, min(8, target.vector_registers * 5 // 8 // rows))
        knobs = {"at_once": at_once, "strip": strip, "workgroups": (shares, across)}
        return Gemv(what, **{**knobs, **others})

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands a, b, the epilogue's, then c."""
        operands = in_type(self.what.operands(self.epilogue), self.dtype)
        alike = overwritable(self.epilogue, self.what.matrix[0], self.what.transposed)
        return Kernel(name, operands, lambda size: self.workgroups, self._body, alike)

    def _body(self, k: Build, a: Memory, b: Memory, *others: Memory) -> None:
        *reads, c = others
        built = Stream(k, self, InKernel(k, self.epilogue, tuple(reads)))
        work = built.dots if self.what.transposed else built.sums
        Operands(k, self.what, a, b, c).each(self.workgroups[0], work)


def is_streamed(what: Contraction, dtype: str) -> bool:
    """Return whether a product has so few rows that tiles of registers would be slower.

    Of halves, rows of B that are added to C would round sums.
    """
    in_order = what.left[-1] == "k" if what.transposed else dtype not in HALVES
    return isinstance(what.rows, int) and what.rows <= _STREAMED and in_order


@dataclass(frozen=True)
class Stream:
    """One kernel under construction."""

    k: Build
    knobs: Gemv
    epilogue: InKernel

    @property
    def rows(self) -> range:
        """The rows of A and C."""
        return range(known(self.knobs.what.rows))

    def _columns(self) -> tuple[Index, Index]:
        """Return the start and the end of this workgroup's columns."""
        columns = self.k.size(self.knobs.what.columns)
        units = columns.ceildiv(_UNIT)
        first, end = share(self.k, 1, self.knobs.workgroups[1], units)
        return least(first * _UNIT, columns), least(end * _UNIT, columns)

    def sums(self, views: Matrices) -> None:
        """Read B row by row: strip after strip of C, all of the depth for each."""
        k, knobs = self.k, self.knobs
        first, end = self._columns()
        depth = k.size(knobs.what.depth)
        whole = depth // knobs.at_once * knobs.at_once
        with k.range(first, end, knobs.strip) as start:
            width = least(end - start, knobs.strip)
            self._clear(views, start, width)
            with k.range(0, whole, knobs.at_once) as at:
                self._add(views, start, width, [at + i for i in range(knobs.at_once)])
            with k.range(whole, depth) as at:
                self._add(views, start, width, [at])
            self._finish(views, start, width)

    def _clear(self, views: Matrices, start: Index, width: Index) -> None:
        for row in self.rows:

            @self.k.each(width)
            def _(at: Lanes, row: int = row) -> None:
                views.c.memory.store(self.k.vector(0.0), *views.c.at(m=row, n=_moved(at, start)))

    def _add(self, views: Matrices, start: Index, width: Index, depths: Sequence[Index]) -> None:
        """Add some rows of B, times their numbers of A, to a strip of C."""
        a, b, c = views.a, views.b, views.c
        factors = [
            [a.memory.number(*a.indices(m=Index.of(r), k=d)).across(self.k.lanes) for d in depths]
            for r in self.rows
        ]

        @self.k.each(width, unroll=2)
        def _(at: Lanes) -> None:
            place = _moved(at, start)
            parts = [b.memory.load(*b.at(k=d, n=place)) for d in depths]
            for row in self.rows:
                value = c.memory.load(*c.at(m=row, n=place))
                for factor, part in zip(factors[row], parts, strict=True):
                    value = fma(part, factor, value)
                c.memory.store(value, *c.at(m=row, n=place))

    def _finish(self, views: Matrices, start: Index, width: Index) -> None:
        """Apply the epilogue while the strip is in the cache."""
        if not self.knobs.epilogue.steps:
            return
        c = views.c
        # The constants of a function fill 16 registers.
        few = self.knobs.epilogue.heavy and self.k.target.vector_registers < 32
        for row in self.rows:
            apply = self.epilogue.row(c.row(m=Index.of(row)))

            @self.k.each(width, unroll=1 if few else 4)
            def _(at: Lanes, row: int = row, apply: Any = apply) -> None:
                place = c.at(m=row, n=_moved(at, start))
                c.memory.store(apply(c.memory.load(*place), _moved(at, start)), *place)

    def dots(self, views: Matrices) -> None:
        """Read B transposed: a vector of C from as many rows of B, row by row of A."""
        k = self.k
        first, end = self._columns()
        whole = first + (end - first) // k.lanes * k.lanes
        with k.range(first, whole, k.lanes) as start:
            self._group(views, start, Lanes(start))
        if end.number is None or whole.number is None or whole.number < end.number:
            with k.when(whole < end):
                self._group(views, whole, k.tail(whole, end))

    def _group(self, views: Matrices, start: Index, place: Lanes) -> None:
        """Compute one vector of columns; those behind the last one repeat it."""
        last = self.k.size(self.knobs.what.columns) - 1
        columns = [least(start + i, last) if place.mask else start + i for i in range(self.k.lanes)]
        for row in self.rows:
            value = self._products(views, row, columns)
            apply = self.epilogue.row(views.c.row(m=Index.of(row)))
            views.c.memory.store(apply(value, place), *views.c.at(m=row, n=place))

    def _products(self, views: Matrices, row: int, columns: Sequence[Index]) -> Vector:
        """Multiply a row of A by some rows of B, as one vector."""
        k, a, b = self.k, views.a, views.b
        depth = k.size(self.knobs.what.depth)

        def step(at: Lanes, kept: Sequence[Vector]) -> list[Vector]:
            x = a.memory.load(*a.at(m=row, k=at))
            rows = (b.memory.load(*b.at(n=n, k=at)) for n in columns)
            return [fma(x, part, total) for part, total in zip(rows, kept, strict=True)]

        whole = depth // k.lanes * k.lanes
        zeros = [k.vector(0.0)] * len(columns)
        sums = k.loop(0, whole, k.lanes, zeros)(lambda at, *kept: step(Lanes(at), kept))
        if depth.number is None or depth.number % k.lanes:
            # One turn under a mask, or none.
            sums = k.loop(whole, depth, k.lanes, sums)(
                lambda at, *kept: step(k.tail(at, depth), kept)
            )
        return tree(add, transposed(sums))


def _moved(at: Lanes, start: Index) -> Lanes:
    return Lanes(start + at.start, at.mask)


refusal = refuse_target


cost = partial(product_cost, "gemv")


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a kernel for a product of few rows and a matrix that is not known when compiling."""
    found = find(work)
    if found is None or is_packed(work) or not is_streamed(found.what, found.dtype):
        return []
    knobs = Gemv.on(target, found.what, epilogue=found.epilogue, dtype=found.dtype)
    if refusal(knobs, target):
        return []
    return [KernelOffer(knobs, found.covers, found.feeds, cost(knobs, target, found.nominal))]


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Vary rows of B at once, strips of C (not for dots of transposed rows), and shares."""
    knobs: Gemv = offer.knobs
    what = knobs.what
    sums = not what.transposed
    return knob_space(
        knobs,
        {
            "at_once": (1, 2, 4, 8, 12, 16) if sums else (),
            "strip": [s for s in _STRIPS if sums and s < known(what.columns)],
            "workgroups": cuts(target, prod(map(known, what.batch)), known(what.columns) // _UNIT),
        },
        lambda made: refusal(made, target),
    )


FAMILY = Family("gemv", Gemv, refusal, cost, match, space)
