"""Pointwise programs: elementwise computation inside a kernel, as data.

`Pointwise` is a part of a kernel's knobs: what is done to each number of the kernel's matrix (the
product, a row, its own input) with further operands (`Read`), constants and steps. Values are
numbered: 0 is the kernel's own, then the reads, the constants, and what each step makes. The last
one is the result; a program without steps leaves value 0 as it is.

    bias = Pointwise((ROW,), (), (Step("add", (0, 1)), Step("gelu", (2,))))   # gelu(x + bias)

A kernel declares `operands`, holds their memory (`InKernel`) and asks for each row's function.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from types import MappingProxyType
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ops.elementwise import TRANSCENDENTAL_FLOPS
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Operand, rows_of
from pyc_mlir.pipelines.kernels.lang.functions import STEPS
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.values import Index, Vector

# As the `count` of a read: that of the operand's own rows, a number that is not known.
OWN = -1


@dataclass(frozen=True)
class Lettered:
    """A row of a product's result: its number, and its place along the dimension of each letter."""

    number: Index
    letters: Mapping[str, Index]


@dataclass(frozen=True)
class Read:
    """A further operand: which number of it belongs to the place (i, j) of the matrix.

    `down`: it has rows, of which (i // each) % count is read (without `% count` where that is 0;
    `OWN` stands for the operand's rows). With `letters` it has these dimensions of a product's
    result in place of rows. `along`: it has the matrix's columns, of which j is read. Nothing of
    it: it is one number. `dtype` is ``i8`` for booleans, which are 0 or 1 then.
    """

    down: bool
    along: bool
    each: int = 1
    count: int = 0
    letters: str = ""
    dtype: str = "f32"

    def operand(self, name: str, rows: Dim, columns: Dim, sizes: Mapping[str, Dim]) -> Operand:
        """Return the operand called `name`; what is stretched over dynamic rows is dynamic."""
        shape = tuple(sizes[x] for x in self.letters) or (self._rows(name, rows),) * self.down
        return Operand(name, (*shape, *(columns,) * self.along) or (1,), dtype=self.dtype)

    def _rows(self, name: str, rows: Dim) -> Dim:
        if self.count > 0 or (self.count, self.each) == (0, 1):
            return self.count or rows
        return rows // self.each if isinstance(rows, int) and not self.count else rows_of(name)

    def row(self, i: Any, own: Any = 0) -> Any:
        """Return the row to read, of `own` rows, for a row or an array of rows of the matrix."""
        i, count = i // self.each, own if self.count == OWN else self.count
        return i % count if self.count else i

    def place(self, i: Index | Lettered, memory: Memory) -> list[Index]:
        """Return the place in all dimensions but the columns, for a row of the matrix."""
        if isinstance(i, Lettered):
            if self.letters:
                return [i.letters[x] for x in self.letters]
            i = i.number
        return [self.row(i, memory.shape[0])] if self.down else []

    def is_alike(self, rows: Dim, letters: str = "") -> bool:
        """Return whether the operand is a matrix like the kernel's, read at the computed place."""
        plain = self.dtype == "f32" and (self.each, self.count) == (1, 0)
        same = self.letters == letters if self.letters else self.down or rows == 1
        return self.along and plain and same


FULL = Read(down=True, along=True)
ROW = Read(down=False, along=True)
COLUMN = Read(down=True, along=False)
NUMBER = Read(down=False, along=False)


@dataclass(frozen=True)
class PointwiseStep:
    """`op` is a name of `STEPS`, `operands` are the numbers of earlier values."""

    op: str
    operands: tuple[int, ...]


@dataclass(frozen=True)
class Pointwise:
    """An elementwise program; constants are finite (infinities can be read) and rounded to f32."""

    reads: tuple[Read, ...] = ()
    constants: tuple[float, ...] = ()
    steps: tuple[PointwiseStep, ...] = ()

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for a program that cannot run."""
        for constant in self.constants:
            if not isfinite(constant):
                raise _refusal("finite constants", constant)
        masks: set[int] = set()
        for number, step in enumerate(self.steps, start=self.first_step):
            if step.op not in STEPS:
                raise _refusal(f"a step of {', '.join(STEPS)}", step.op)
            op = STEPS[step.op]
            inside = all(0 <= o < number for o in step.operands)
            if len(step.operands) != op.operands or not inside:
                raise _refusal(f"{op.operands} of the values before {number} for {step.op}", step)
            if [o in masks for o in step.operands] != [op.by_mask] + [False] * (op.operands - 1):
                raise _refusal("comparisons as what selections go by, and nowhere else", step)
            if op.mask:
                masks.add(number)
        if self.first_step + len(self.steps) - 1 in masks:
            raise _refusal("numbers as the result", self.steps[-1])

    @property
    def first_step(self) -> int:
        """The number of the first step's value."""
        return 1 + len(self.reads) + len(self.constants)

    @property
    def flops(self) -> int:
        """Operations for each number of the matrix."""
        return sum(STEPS[s.op].flops for s in self.steps)

    @property
    def heavy(self) -> bool:
        """True where a function costs more than reading and writing its number."""
        return any(STEPS[s.op].flops >= TRANSCENDENTAL_FLOPS for s in self.steps)

    def operands(
        self, prefix: str, rows: Dim, columns: Dim, sizes: Mapping[str, Dim] = MappingProxyType({})
    ) -> tuple[Operand, ...]:
        """Return the kernel's operands for the reads, ``<prefix>0`` and so on.

        `sizes` are those of letters.
        """
        named = ((f"{prefix}{n}", read) for n, read in enumerate(self.reads))
        return tuple(read.operand(name, rows, columns, sizes) for name, read in named)


NOTHING = Pointwise()


def in_halves(
    program: Pointwise, dtype: str, summed: bool = True, stored: bool = True
) -> Pointwise:
    """Return the program with a rounding to a half type wherever its op would round.

    `summed`: value 0 is a sum in f32, rounded first. `stored`: a store rounds the result.
    """
    rounding, first = f"to_{dtype}", program.first_step
    if not program.steps:
        return program
    steps = [PointwiseStep(rounding, (0,))] if summed else []
    places = {n: n for n in range(first)} | ({0: first} if summed else {})
    last = first + len(program.steps) - 1
    for number, step in enumerate(program.steps, start=first):
        op = STEPS[step.op]
        steps.append(PointwiseStep(step.op, tuple(places[o] for o in step.operands)))
        if not op.mask and op.own != (0.0, 0.0) and not (stored and number == last):
            steps.append(PointwiseStep(rounding, (first + len(steps) - 1,)))
        places[number] = first + len(steps) - 1
    return replace(program, steps=tuple(steps))


@dataclass(frozen=True)
class InKernel:
    """A program with its reads' memory, inside a kernel."""

    k: Build
    program: Pointwise
    memories: tuple[Memory, ...]

    @staticmethod
    def of(k: Build, program: Pointwise, prefix: str, memory: Mapping[str, Memory]) -> "InKernel":
        """Return a program whose reads are the operands ``<prefix>0`` and so on."""
        return InKernel(
            k, program, tuple(memory[f"{prefix}{n}"] for n in range(len(program.reads)))
        )

    def row(self, i: Index | Lettered) -> Callable[[Vector, Lanes], Vector]:
        """Return the program on the kernel's value at a place of row `i`.

        What is the same along the row is computed here, once.
        """
        constants = map(self.k.vector, self.program.constants)
        fixed: dict[int, Any] = dict(enumerate(constants, self._first_constant))
        for value, read, memory in self._reads():
            if not read.along:
                place = read.place(i, memory) or [0]
                fixed[value] = memory.number(*place).across(self.k.lanes)
        rest = _steps(self.program, fixed)

        def apply(own: Vector, at: Lanes) -> Vector:
            values = {**fixed, 0: own}
            for value, read, memory in self._reads():
                if read.along:
                    values[value] = memory.load(*read.place(i, memory), at)
            left = _steps(self.program, values, rest)
            assert not left, "all operands are known along a row"
            return values[max(values)] if self.program.steps else own

        return apply

    @property
    def _first_constant(self) -> int:
        return 1 + len(self.program.reads)

    def _reads(self) -> Iterator[tuple[int, Read, Memory]]:
        numbers = range(1, self._first_constant)
        yield from zip(numbers, self.program.reads, self.memories, strict=True)


def _steps(
    program: Pointwise, values: dict[int, Any], which: Sequence[int] | None = None
) -> list[int]:
    """Compute the steps whose operands are there; the numbers of those that are left."""
    left = []
    for number in range(len(program.steps)) if which is None else which:
        step = program.steps[number]
        if all(o in values for o in step.operands):
            made = STEPS[step.op].build(*(values[o] for o in step.operands))
            values[program.first_step + number] = made
        else:
            left.append(number)
    return left


def _refusal(expected: str, came: object) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, f"pointwise program: expected {expected}, got {came}")
