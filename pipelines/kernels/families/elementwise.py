"""The kernel family ``elementwise``: y = program(x, reads...), each number alone, in large parts.

Such a kernel is as fast as memory: what counts is that it reads and writes in order, in parts that
are large and contiguous, and that results far larger than the caches go past them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyc_mlir.dialects.opdef import Trait, has
from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand, in_type
from pyc_mlir.pipelines.kernels.lang.language import HALVES, LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index, least
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatchedProgram, MatrixView, find, sources
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow, refuse_target
from pyc_mlir.pipelines.kernels.variants import UNROLLS, knob_space, parts_of
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, float_type, nominal
from pyc_mlir.pipelines.target.work import sizes as numbers

# Numbers of a workgroup where the size is not known, and those that one core does alone.
_PART = 1 << 16
_ALONE = 1 << 15
_STREAMED_OF_L3 = 1


@dataclass(frozen=True)
class Elementwise:
    """The knobs of y[rows, columns] = program(x[rows, columns], reads...).

    A workgroup has `rows_part` rows of `columns_part` columns (a multiple of 16); `unroll` is how
    many vectors a block has. `streaming` writes past the caches; rows must then start at a
    multiple of 16 numbers. All memory is of `dtype`.
    """

    rows: Dim
    columns: Dim
    program: Pointwise
    rows_part: int = 1
    columns_part: int = _PART
    unroll: int = 4
    streaming: bool = False
    dtype: str = "f32"

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        for name in ("rows", "columns", "rows_part", "columns_part", "unroll"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise no_kernel("elementwise", f"{name} of at least 1", value)
        if self.columns_part % LINE:
            raise no_kernel("elementwise", "columns_part in lines of 16", self.columns_part)
        aligned = isinstance(self.columns, int) and self.columns % LINE == 0
        if self.streaming and self.rows != 1 and not aligned:
            raise no_kernel("elementwise", "columns in lines of 16 for streaming", self.columns)

    @staticmethod
    def on(
        target: Target, rows: Dim, columns: Dim, program: Pointwise, dtype: str = "f32"
    ) -> "Elementwise":
        """Choose the knobs: a part for each core where there is work for more than one."""
        rows_part, columns_part = _parts(target.cores, rows, columns)
        streaming = False
        if isinstance(rows, int) and isinstance(columns, int):
            large = (
                2 if dtype in HALVES else 4
            ) * rows * columns >= _STREAMED_OF_L3 * target.l3_bytes
            streaming = large and (rows == 1 or columns % LINE == 0)
        unroll = (2 if target.vector_registers >= 32 else 1) if program.heavy else 4
        parts = (rows_part, columns_part, unroll, streaming)
        return Elementwise(rows, columns, program, *parts, dtype)

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: x, the program's reads, y."""
        shape = (self.rows, self.columns)
        reads = self.program.operands("read", *shape)
        operands = (Operand("x", shape), *reads, Operand("y", shape, "out"))
        operands = in_type(operands, self.dtype)
        pairs = zip(reads, self.program.reads, strict=True)
        alike = ["x", *(o.name for o, read in pairs if read.is_alike(self.rows))]
        return Kernel(name, operands, self._grid, self._body, tuple(("y", n) for n in alike))

    def _grid(self, size: Callable[[Dim], Index]) -> tuple[Index, Index]:
        columns = size(self.columns).ceildiv(self.columns_part)
        return columns, size(self.rows).ceildiv(self.rows_part)

    def _body(self, k: Build, x: Memory, *others: Memory) -> None:
        k.streaming(others[-1], self.streaming, partial(self._work, k, x, others))

    def _work(self, k: Build, x: Memory, others: Sequence[Memory], streaming: bool) -> None:
        *reads, y = others
        rows, columns = x.shape
        start, length = self.share_of_columns(k, columns)
        held = InKernel(k, self.program, tuple(reads))
        first = k.workgroup(1) * self.rows_part
        with k.range(first, least(first + self.rows_part, rows)) as i:
            apply = held.row(i)

            @k.each(length, self.unroll)
            def _(at: Lanes) -> None:
                place = Lanes(start + at.start, at.mask)
                value = apply(x.load(i, place), place)
                y.store(value, i, place, streaming=streaming and at.mask is None)

    def share_of_columns(self, k: Build, columns: Index) -> tuple[Index, Index]:
        """Return the start of this workgroup's columns, and their number."""
        if columns.number is not None and columns.number <= self.columns_part:
            return Index.of(0), columns
        start = k.workgroup(0) * self.columns_part
        if columns.number is not None and columns.number % self.columns_part == 0:
            return start, Index.of(self.columns_part)
        return start, least(columns - start, self.columns_part)


def _parts(cores: int, rows: Dim, columns: Dim) -> tuple[int, int]:
    """Return a workgroup's rows and columns: few rows are cut along columns, others by rows."""
    across = columns if isinstance(columns, int) else NOMINAL_DIMENSION
    if isinstance(rows, int) and rows < cores:
        if not isinstance(columns, int):
            return 1, _PART
        share = columns if rows * columns <= _ALONE else -(-columns // cores)
        return 1, -(-share // LINE) * LINE
    whole = -(-across // LINE) * LINE if isinstance(columns, int) else _PART
    if not isinstance(rows, int):
        return max(1, _PART // across), whole
    return rows if rows * across <= _ALONE else -(-rows // cores), whole


# Below it a dispatch costs more than its work.
_WORTH_NUMBERS = 1 << 15
# Shorter rows leave most of a vector empty; IREE's code runs across them.
_NARROW = 8


refusal = refuse_target


def cost(knobs: Elementwise, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count one read and write of each number; a row's last vector counts as a whole one."""
    rows, columns = (d if isinstance(d, int) else sizes[d] for d in (knobs.rows, knobs.columns))
    traffic = 8 * rows * columns + knobs.program.read_bytes(rows, columns)
    traffic //= 2 if knobs.dtype in HALVES else 1
    lanes = target.vector_bytes // 4
    flops = knobs.program.flops * rows * -(-columns // lanes) * lanes
    return CostModel(target).kernel("elementwise", flops, traffic)


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a kernel for as many of the group's first ops as are elementwise on one tensor.

    One of the inputs must have the result's shape. The matrix has as long rows as its reads allow;
    short ones are left to IREE.
    """
    if refuse_narrow(target):
        return []
    for covers in range(len(work.nodes), 0, -1):
        shape = work.nodes[covers - 1].type.shape
        if 0 not in shape and work.closed(covers):
            for own in sources(work, 0, covers):
                for cut in range(max(1, len(shape))):
                    view = MatrixView(shape, cut)
                    found = None if _narrow(view) else find(work, 0, covers, own, view)
                    if found is not None:
                        return [_offer(work, target, covers, own, view, found)]
    return []


def _narrow(view: MatrixView) -> bool:
    return view.rows != 1 and (view.columns or _NARROW) < _NARROW


def _offer(
    work: Work, target: Target, covers: int, own: int, view: MatrixView, found: MatchedProgram
) -> KernelOffer:
    dtype = float_type(work, [own])
    knobs = Elementwise.on(target, view.rows or "m", view.columns or "n", found.program, dtype)
    sizes = {"m": nominal(view.shape[: view.cut]), "n": nominal(view.shape[view.cut :])}
    feeds = (Feed(own, (view.cut,)), *found.feeds)
    worth = covers == len(work.nodes) and _is_worth(work, knobs)
    return KernelOffer(knobs, covers, feeds, cost(knobs, target, sizes), worth)


def _is_worth(work: Work, knobs: Elementwise) -> bool:
    """Return whether IREE's code is slower.

    Stores past the caches or functions of ours make a difference, and IREE would not compute
    the group within what makes its inputs or reads its result.
    """
    joined = any(has(i.maker, Trait.INDEXED) for i in work.inputs)
    joined |= any(r.startswith("reduce_") or r == "slice" for r in work.readers)
    small = (numbers(work.nodes[-1].type.shape) or 0) < _WORTH_NUMBERS
    return not joined and not small and (knobs.streaming or knobs.program.heavy)


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Vary parts of workgroups, vectors of a block, and stores through the caches or past them."""
    knobs: Elementwise = offer.knobs
    rows = knobs.rows if isinstance(knobs.rows, int) else None
    columns = knobs.columns if isinstance(knobs.columns, int) else _PART
    return knob_space(
        knobs,
        {
            "rows_part": (1, 4, 16, 64) if rows is None else parts_of(target, rows),
            "columns_part": {-(-part // LINE) * LINE for part in parts_of(target, columns)},
            "unroll": UNROLLS,
            "streaming": (False, True),
        },
        lambda made: refusal(made, target),
    )


FAMILY = Family("elementwise", Elementwise, refusal, cost, match, space)
