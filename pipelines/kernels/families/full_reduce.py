"""The kernel family ``full_reduce``: reductions of long rows, up to all numbers of an array.

`x` is [rows, numbers]. A row is read once, in chunks that are summed by themselves, so that a sum
of n numbers sees about n / chunk + chunk / (unroll * lanes) roundings one after the other instead
of n. The knobs, not the workers, cut a row into `parts`, one workgroup each; where there are
several, `combining` is the second kernel, of the same kind, which makes one number of them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.values import Index, Scalar, Vector, least
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.registry import Family, refuse_target
from pyc_mlir.pipelines.kernels.shared.reductions import REDUCTIONS, span
from pyc_mlir.pipelines.kernels.variants import UNROLLS, knob_space, parts_of
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, nominal, sizes


@dataclass(frozen=True)
class FullReduce:
    """The knobs: `operation` is one of `rows.REDUCTIONS`, known sizes are at least 1.

    A workgroup has one of `parts` of each of `rows_per_workgroup` rows, and reads it in chunks of
    `chunk` numbers, `unroll` vectors a turn.
    """

    operation: str
    rows: Dim
    numbers: Dim
    parts: int = 1
    rows_per_workgroup: int = 1
    chunk: int = 16384
    unroll: int = 8

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        if self.operation not in REDUCTIONS:
            raise no_kernel(
                "full_reduce", f"an operation of {', '.join(REDUCTIONS)}", self.operation
            )
        known = [d for d in (self.rows, self.numbers) if isinstance(d, int)]
        if min(self.parts, self.rows_per_workgroup, self.chunk, self.unroll, *known) < 1:
            raise no_kernel("full_reduce", "sizes and parts of at least 1", self)

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands x and y."""
        x = Operand("x", (self.rows, self.numbers))
        y = Operand("y", (self.rows, self.parts), "out")
        return Kernel(name, (x, y), self._grid, self._body)

    def _grid(self, size: Callable[[Dim], Index]) -> tuple[int, Index]:
        return self.parts, size(self.rows).ceildiv(self.rows_per_workgroup)

    def _body(self, k: Build, x: Memory, y: Memory) -> None:
        rows, numbers = x.shape
        first = k.workgroup(1) * self.rows_per_workgroup
        part, start, end = Index.of(0), Index.of(0), numbers
        if self.parts > 1:
            size = (numbers.ceildiv(self.parts) + (LINE - 1)) // LINE * LINE
            part = k.workgroup(0)
            start = least(part * size, numbers)
            end = least(start + size, numbers)
        with k.range(first, least(first + self.rows_per_workgroup, rows)) as i:
            total = self._total(k, x, i, start, end)
            y.put(total / numbers.to_float() if self.operation == "mean" else total, i, part)

    def _total(self, k: Build, x: Memory, i: Index, start: Index, end: Index) -> Scalar:
        """Fold the numbers of row `i` from `start` to `end`: chunk by chunk, then what is left."""
        combine, identity = REDUCTIONS[self.operation]

        def chunk(at: Index, width: Index, total: Scalar) -> list[Any]:
            @k.fold(width, combine, identity, self.unroll)
            def more(lanes: Lanes) -> Vector:
                return x.load(i, Lanes(at + lanes.start, lanes.mask))

            return [combine(total, more)]

        edge = start + (end - start) // self.chunk * self.chunk
        kept = k.loop(start, edge, self.chunk, [Scalar.of(identity)])(
            lambda at, total: chunk(at, Index.of(self.chunk), total)
        )
        rest = end - edge
        return kept[0] if rest.number == 0 else chunk(edge, rest, kept[0])[0]


_SHARE = 1 << 15  # numbers that are worth a workgroup


refusal = refuse_target


def cost(knobs: FullReduce, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count one read of each number."""
    rows, numbers = (d if isinstance(d, int) else sizes[d] for d in (knobs.rows, knobs.numbers))
    flops, traffic = rows * numbers, 4 * rows * (numbers + knobs.parts)
    return CostModel(target).kernel("full_reduce", flops, traffic)


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a kernel for the first op of a group: all dimensions, or the last ones, are reduced.

    Rows that the family ``rows`` takes are left to it. A row is not cut into parts: one kernel
    makes the result.
    """
    node = work.nodes[0]
    found = span(work, node)
    if found is None:
        return []
    shape = work.type(node.operands[0]).shape
    if sizes(shape[found.last :]) != 1 or _is_short(shape, found.first, target):
        return []
    before, reduced = shape[: found.first], shape[found.first :]
    rows, numbers = sizes(before), sizes(reduced)
    share = min(64, max(1, _SHARE // nominal(reduced)), -(-nominal(before) // target.cores))
    others = {"rows_per_workgroup": share}
    knobs = FullReduce(
        found.operation,
        "m" if rows is None else rows,
        "n" if numbers is None else numbers,
        **others,
    )
    if refusal(knobs, target):
        return []
    taken = dict.fromkeys("mn", NOMINAL_DIMENSION)
    feed = Feed(node.operands[0], (found.first,))
    return [KernelOffer(knobs, 1, (feed,), cost(knobs, target, taken))]


def _is_short(shape: tuple[int | None, ...], first: int, target: Target) -> bool:
    """Return whether only the last dimension is reduced, and the second-level cache holds it."""
    last = shape[-1]
    return first == len(shape) - 1 and last is not None and 4 * last <= target.l2_bytes


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Vary the numbers of a chunk, vectors of a turn, and rows of a workgroup."""
    knobs: FullReduce = offer.knobs
    rows = knobs.rows if isinstance(knobs.rows, int) else None
    return knob_space(
        knobs,
        {
            "rows_per_workgroup": (1, 4, 16, 64) if rows is None else parts_of(target, rows),
            "chunk": (1024, 4096, 16384, 65536),
            "unroll": (*UNROLLS, 16),
        },
        lambda made: refusal(made, target),
    )


FAMILY = Family("full_reduce", FullReduce, refusal, cost, match, space)
