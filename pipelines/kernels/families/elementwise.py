"""How is each number of a matrix computed alone? y = program(x, reads...), in large parts.

Such a kernel is as fast as memory: what counts is that it reads and writes in order, in parts that
are large and contiguous, and that results far larger than the caches go past them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index, least
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION
from pyc_mlir.pipelines.target.target import Target

# Numbers of a workgroup where the size is not known, and those that one core does alone.
_PART = 1 << 16
_ALONE = 1 << 15
_STREAMED_OF_L3 = 1


@dataclass(frozen=True)
class Elementwise:
    """The knobs of y[rows, columns] = program(x[rows, columns], reads...).

    A workgroup has `rows_part` rows of `columns_part` columns (a multiple of 16); `unroll` is how
    many vectors a block has. `streaming` writes past the caches; rows must then start at a
    multiple of 16 numbers.
    """

    rows: Dim
    columns: Dim
    program: Pointwise
    rows_part: int = 1
    columns_part: int = _PART
    unroll: int = 4
    streaming: bool = False

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        for name in ("rows", "columns", "rows_part", "columns_part", "unroll"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise _refusal(f"{name} of at least 1", value)
        if self.columns_part % LINE:
            raise _refusal("columns_part in lines of 16", self.columns_part)
        aligned = isinstance(self.columns, int) and self.columns % LINE == 0
        if self.streaming and self.rows != 1 and not aligned:
            raise _refusal("columns in lines of 16 for streaming", self.columns)

    @staticmethod
    def on(target: Target, rows: Dim, columns: Dim, program: Pointwise) -> "Elementwise":
        """The knobs for a target: a part for each core where there is work for more than one."""
        rows_part, columns_part = _parts(target.cores, rows, columns)
        streaming = False
        if isinstance(rows, int) and isinstance(columns, int):
            large = 4 * rows * columns >= _STREAMED_OF_L3 * target.l3_bytes
            streaming = large and (rows == 1 or columns % LINE == 0)
        unroll = (2 if target.vector_registers >= 32 else 1) if program.heavy else 4
        return Elementwise(rows, columns, program, rows_part, columns_part, unroll, streaming)

    def kernel(self, name: str) -> Kernel:
        """The kernel called `name`: x, the program's reads, y."""
        shape = (self.rows, self.columns)
        reads = self.program.operands("read", *shape)
        operands = (Operand("x", shape), *reads, Operand("y", shape, "out"))
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
        start, length = self._columns(k, columns)
        held = InKernel(k, self.program, tuple(reads))
        first = k.workgroup(1) * self.rows_part
        with k.range(first, least(first + self.rows_part, rows)) as i:
            apply = held.row(i)

            @k.each(length, self.unroll)
            def _(at: Lanes) -> None:
                place = Lanes(start + at.start, at.mask)
                value = apply(x.load(i, place), place)
                y.store(value, i, place, streaming=streaming and at.mask is None)

    def _columns(self, k: Build, columns: Index) -> tuple[Index, Index]:
        """Where this workgroup's columns start, and how many there are."""
        if columns.number is not None and columns.number <= self.columns_part:
            return Index.of(0), columns
        start = k.workgroup(0) * self.columns_part
        if columns.number is not None and columns.number % self.columns_part == 0:
            return start, Index.of(self.columns_part)
        return start, least(columns - start, self.columns_part)


def _parts(cores: int, rows: Dim, columns: Dim) -> tuple[int, int]:
    """Rows and columns of a workgroup: few rows are cut along columns, others by rows."""
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


def _refusal(expected: str, came: Any) -> PycError:
    return PycError(
        ReasonCode.BAD_ARGUMENT, f"elementwise kernel: expected {expected}, got {came!r}"
    )
