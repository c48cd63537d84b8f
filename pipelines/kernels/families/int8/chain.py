"""Match what follows exact sums: a bias in i32, the numbers as f32, a program, bytes."""

from dataclasses import dataclass

from pyc_mlir.dialects.types import DTYPES, dtype_name
from pyc_mlir.pipelines.kernels.families.int8.narrow import NARROW, Narrow
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, Pointwise
from pyc_mlir.pipelines.kernels.match.offers import Feed
from pyc_mlir.pipelines.kernels.match.pointwise import MatchedProgram, MatrixView, find
from pyc_mlir.pipelines.target.work import Work

_BYTES = (DTYPES["i8"], DTYPES["ui8"])


@dataclass(frozen=True)
class AfterSums:
    """The type of a kernel's result, how many ops are covered, and the program on f32 sums."""

    result: str
    covers: int
    program: Pointwise = NOTHING
    feeds: tuple[Feed, ...] = ()
    narrow: Narrow = NARROW


def _narrowed(found: MatchedProgram, result: str) -> tuple[Pointwise, tuple[Feed, ...], Narrow]:
    program, narrow = Narrow.of(found.program, result)
    return program, found.feeds, narrow


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
        narrow = end > start and last.name == "cast" and last.type.dtype in _BYTES
        stop = end - narrow
        if narrow and last.operands != (work.number_of(stop - 1),):
            continue
        found = find(work, start, stop, work.number_of(first), view)
        if found is not None:
            if not narrow:
                return AfterSums("f32", end, found.program, found.feeds)
            result = dtype_name(last.type.dtype)
            return AfterSums(result, end, *_narrowed(found, result))
    return AfterSums("i32", 1)
