"""How are long rows reduced, up to all numbers of an array? y[i, p] = part p of x[i, :], combined.

`x` is [rows, numbers]. A row is read once, in chunks that are summed by themselves, so that a sum
of n numbers sees about n / chunk + chunk / (unroll * lanes) roundings one after the other instead
of n. The knobs, not the workers, cut a row into `parts`, one workgroup each; where there are
several, `combining` is the second kernel, of the same kind, which makes one number of them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.values import Index, Scalar, Vector, least
from pyc_mlir.pipelines.kernels.shared.reductions import REDUCTIONS


@dataclass(frozen=True)
class Whole:
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
            raise _refusal(f"an operation of {', '.join(REDUCTIONS)}", self.operation)
        known = [d for d in (self.rows, self.numbers) if isinstance(d, int)]
        if min(self.parts, self.rows_per_workgroup, self.chunk, self.unroll, *known) < 1:
            raise _refusal("sizes and parts of at least 1", self)

    @property
    def combining(self) -> "Whole":
        """The kernel that makes one number a row of the parts; those of a mean are shares of it."""
        operation = "sum" if self.operation == "mean" else self.operation
        return Whole(operation, self.rows, self.parts)

    def kernel(self, name: str) -> Kernel:
        """The kernel called `name`: operands x and y."""
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
        """The numbers of row `i` from `start` to `end`: chunk by chunk, then what is left."""
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


def _refusal(expected: str, came: object) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, f"whole kernel: expected {expected}, got {came!r}")
