"""Match the pointwise program that a group begins with: from `Work` to `Pointwise` and feeds.

A kernel computes a matrix: a tensor whose dimensions are cut into rows and columns (`MatrixView`).
Ops around it may join it if each is elementwise on f32 (or all are on f16, or on bf16) and
broadcasts to that tensor. What they read from outside becomes a `Read` where its broadcasting can
be told by a row's number, a constant of one number becomes a constant of the program.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import isfinite

import numpy as np

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.types import Shape
from pyc_mlir.pipelines.kernels.lang.language import HALVES
from pyc_mlir.pipelines.kernels.lang.pointwise import Pointwise, PointwiseStep, Read, in_halves
from pyc_mlir.pipelines.kernels.lang.pointwise_ops import STEPS
from pyc_mlir.pipelines.kernels.match.offers import Feed
from pyc_mlir.pipelines.target.work import Work, WorkOp, float_type, sizes


@dataclass(frozen=True)
class MatrixView:
    """A tensor as a matrix: the dimensions before `cut` are its rows."""

    shape: Shape
    cut: int

    @property
    def rows(self) -> int | None:
        """The number of rows; None where that is not known."""
        return sizes(self.shape[: self.cut])

    @property
    def columns(self) -> int | None:
        """The number of columns; None where that is not known."""
        return sizes(self.shape[self.cut :])

    def feed(self, value: int, shape: Shape, read: Read) -> Feed:
        """Return how a value becomes the operand that `read` declares."""
        if not (read.down and read.along):
            return Feed(value)
        return Feed(value, (max(0, self.cut - (len(self.shape) - len(shape))),))

    def read(self, shape: Shape) -> Read | None:
        """Return how a value that broadcasts to the tensor is read; None without such a `Read`."""
        padded = (1,) * (len(self.shape) - len(shape)) + shape
        if len(padded) > len(self.shape):
            return None
        pairs = list(zip(padded, self.shape, strict=True))
        if any(mine not in (1, whole) for mine, whole in pairs):
            return None
        columns = {mine == whole for mine, whole in pairs[self.cut :] if whole != 1}
        along = columns == {True}
        return _rows(pairs[: self.cut], along) if len(columns) < 2 else None


def _rows(pairs: Sequence[tuple[int | None, int | None]], along: bool) -> Read | None:
    """Return the read for the dimensions that are rows: repeated, kept and stretched, in order."""
    runs = [
        (kept, sizes(tuple(whole for _, whole in run)))
        for kept, run in groupby((p for p in pairs if p[1] != 1), lambda p: p[0] == p[1])
    ]
    kinds = [kept for kept, _ in runs]
    if True not in kinds:
        return Read(down=False, along=along)
    if kinds.count(True) > 1:
        return None
    if kinds == [True]:
        return Read(down=True, along=along)
    # That unknown sizes fit cannot be checked once they are products.
    kept, each = runs[kinds.index(True)][1], 1 if kinds[-1] else runs[-1][1]
    if kept is None or each is None:
        return None
    return Read(True, along, each, 0 if kinds[0] else kept)


@dataclass(frozen=True)
class MatchedProgram:
    """A program for some ops, and the feeds of its reads in order."""

    program: Pointwise = field(default_factory=Pointwise)
    feeds: tuple[Feed, ...] = ()


def find(
    work: Work, first: int, end: int, own: int, view: MatrixView, stored: bool = True
) -> MatchedProgram | None:
    """Return the ops from `first` to before `end` as a program; None where they are not one.

    `own` is the value that the kernel has, `view` the matrix that own and result both are. In f16
    and bf16 the program rounds where the ops do; its result, where that is `stored`, by the store.
    """
    if first == end:
        return MatchedProgram()
    shapes = [work.type(own).shape, work.nodes[end - 1].type.shape]
    if shapes != [view.shape] * 2 or not _is_elementwise(work, first, end):
        return None
    outside = dict.fromkeys(
        v for n in work.nodes[first:end] for v in n.operands if v < work.number_of(first)
    )
    outside.pop(own, None)
    if any(v >= len(work.inputs) for v in outside):
        return None
    constants = {v: c for v in outside if (c := _constant(work, v)) is not None}
    reads: dict[int, Read] = {}
    for value in (v for v in outside if v not in constants):
        read = view.read(work.type(value).shape)
        if read is None:
            return None
        reads[value] = read
    order = [own, *reads, *constants, *range(work.number_of(first), work.number_of(end))]
    numbers = {v: n for n, v in enumerate(order)}
    steps = tuple(_step(work, n, numbers) for n in work.nodes[first:end])
    feeds = tuple(view.feed(v, work.type(v).shape, r) for v, r in reads.items())
    try:
        program = Pointwise(tuple(reads.values()), tuple(constants.values()), steps)
    except PycError:
        # Steps that fit together for pyc and not here, as a comparison of comparisons.
        return None
    if (dtype := float_type(work, [own])) in HALVES:
        program = in_halves(program, dtype, own >= len(work.inputs), stored)
    return MatchedProgram(program, feeds)


def longest(work: Work, first: int, view: MatrixView) -> tuple[int, MatchedProgram]:
    """Return how many ops a kernel covers that computes those before `first` and as many
    of the next as it can, with the program for these.
    """
    ends = (n for n in range(len(work.nodes), first, -1) if work.closed(n))
    for end in ends:
        found = find(work, first, end, work.number_of(first - 1), view)
        if found is not None:
            return end, found
    return first, MatchedProgram()


def sources(work: Work, first: int, end: int) -> Iterator[int]:
    """Yield the group's inputs that some ops read, in order."""
    yield from dict.fromkeys(
        v for n in work.nodes[first:end] for v in n.operands if v < len(work.inputs)
    )


def _is_elementwise(work: Work, first: int, end: int) -> bool:
    """Return whether each op is a step, with operands and results of one float type."""
    nodes = work.nodes[first:end]
    outside = [v for n in nodes for v in n.operands if v < work.number_of(first)]
    values = [work.number_of(first + i) for i, n in enumerate(nodes) if n.name != "compare"]
    known = all(_op(work, n) for n in nodes)
    same = float_type(work, [*outside, *values, work.number_of(end - 1)])
    return known and same != ""


def _op(work: Work, node: WorkOp) -> str:
    """Return the step that an op is; "" for none."""
    if node.name == "pow":
        return "mul" if _constant(work, node.operands[1]) == 2.0 else ""
    if node.name == "compare":
        return node.params["predicate"]
    tanh = node.name == "gelu" and node.params["approximate"] == "tanh"
    name = "gelu_tanh" if tanh else node.name
    return name if name in STEPS else ""


def _step(work: Work, node: WorkOp, numbers: dict[int, int]) -> PointwiseStep:
    operands = tuple(numbers[v] for v in node.operands)
    return PointwiseStep(_op(work, node), operands[:1] * 2 if node.name == "pow" else operands)


def _constant(work: Work, value: int) -> float | None:
    """Return the value of a constant of one finite number; None for others."""
    if not work.is_constant(value) or sizes(work.type(value).shape) != 1:
        return None
    array = work.inputs[value].array
    assert array is not None
    number = float(np.ravel(array())[0])
    return number if isfinite(number) else None
