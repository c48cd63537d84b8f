"""The kernel family ``concat``: y = program(parts side by side, reads...), in one pass.

A row of the result is a row of each part in turn. IREE copies each part by a dispatch of its own
and reads the result again for what follows; here every number is read once and written once, also
where a norm and an activation follow the concatenation (DenseNet).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index, least
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView, longest
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow, refuse_target
from pyc_mlir.pipelines.kernels.variants import UNROLLS, knob_space, parts_of
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, is_f32, nominal

# Numbers of a workgroup where the number of rows is not known, and those that one core does alone.
_PART = 1 << 16
_ALONE = 1 << 15
# A dispatch of IREE's has at most 64 constants of 32 bits, of which each operand takes two.
_MOST_PARTS = 28


@dataclass(frozen=True)
class Concat:
    """The knobs of y[rows, sum(widths)] = program(parts side by side, reads...).

    Part i is [rows, widths[i]]. A workgroup has `rows_part` rows; `unroll` is how many vectors a
    block has.
    """

    rows: Dim
    widths: tuple[int, ...]
    program: Pointwise = NOTHING
    rows_part: int = 1
    unroll: int = 2

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        counts = [*self.widths, self.rows_part, self.unroll]
        counts += [self.rows] if isinstance(self.rows, int) else []
        if not self.widths or min(counts) < 1:
            expected = "parts, rows and widths of at least 1"
            raise PycError(
                ReasonCode.BAD_ARGUMENT, f"concat kernel: expected {expected}, got {self}"
            )

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

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: the parts, the program's reads, y."""
        parts = [Operand(f"x{i}", (self.rows, w)) for i, w in enumerate(self.widths)]
        reads = self.program.operands("read", self.rows, self.columns)
        result = Operand("y", (self.rows, self.columns), "out")
        return Kernel(name, (*parts, *reads, result), self._grid, self._body)

    def _grid(self, size: Callable[[Dim], Index]) -> tuple[Index]:
        return (size(self.rows).ceildiv(self.rows_part),)

    def _body(self, k: Build, *memory: Memory) -> None:
        parts, others = memory[: len(self.widths)], memory[len(self.widths) :]
        *reads, y = others
        held = InKernel(k, self.program, tuple(reads))
        first = k.workgroup() * self.rows_part
        with k.range(first, least(first + self.rows_part, k.size(self.rows))) as i:
            apply = held.row(i)
            starts = accumulate(self.widths, initial=0)
            for part, width, start in zip(parts, self.widths, starts, strict=False):
                self._copy(k, part, y, i, (start, width), apply)

    def _copy(
        self,
        k: Build,
        part: Memory,
        y: Memory,
        i: Index,
        place: tuple[int, int],
        apply: Callable[..., Any],
    ) -> None:
        """Copy row `i` of one part to its place in the result's row."""
        start, width = place

        @k.each(Index.of(width), self.unroll)
        def _(at: Lanes) -> None:
            to = Lanes(at.start + start, at.mask)
            y.store(apply(part.load(i, at), to), i, to)


refusal = refuse_target


def cost(knobs: Concat, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count one read and write of each number."""
    rows = knobs.rows if isinstance(knobs.rows, int) else sizes[knobs.rows]
    traffic = 8 * rows * knobs.columns + knobs.program.read_bytes(rows, knobs.columns)
    return CostModel(target).kernel("concat", knobs.program.flops * rows * knobs.columns, traffic)


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a tree of concatenations along one axis, and what follows as far as a program can.

    Parts are matrices whose rows are the dimensions before the axis. A single row has nothing for
    a second core: IREE's copies are left to it.
    """
    found = _tree(work)
    if refuse_narrow(target) or found is None:
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
    return [
        KernelOffer(knobs, covers, feeds, cost(knobs, target, {"m": nominal(result.shape[:axis])}))
    ]


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


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Vary the rows of a workgroup and vectors of a block."""
    knobs: Concat = offer.knobs
    rows = knobs.rows if isinstance(knobs.rows, int) else None
    return knob_space(
        knobs,
        {
            "rows_part": (1, 16, 256) if rows is None else parts_of(target, rows),
            "unroll": UNROLLS,
        },
        lambda made: refusal(made, target),
    )


FAMILY = Family("concat", Concat, refusal, cost, match, space)
