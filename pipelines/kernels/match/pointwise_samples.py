"""Random pointwise programs and contents of their reads, for the samples of families."""

from dataclasses import dataclass, field
from random import Random

import numpy as np

from pyc_mlir.dialects.ops.elementwise import PREDICATES
from pyc_mlir.pipelines.kernels.lang.pointwise import (
    COLUMN,
    FULL,
    NUMBER,
    ROW,
    Pointwise,
    PointwiseStep,
)
from pyc_mlir.pipelines.kernels.lang.pointwise_ops import STEPS

# Steps to integers make any error a whole number. Logarithms, roots and quotients are taken of
# x * x + 1, and exp of -|x|, so that errors stay finite.
_GUARDED = ("log", "sqrt", "rsqrt", "div")
_CHOICE = "select"
_WILD = (*_GUARDED, "exp", "floor", "ceil", "round", _CHOICE, *PREDICATES)
_CALM = tuple(n for n in STEPS if n not in _WILD)
_ONE = 1.0


@dataclass
class _Drawing:
    """A program that grows: the numbers of the values that later steps may take, and the last."""

    random: Random
    first: int
    one: int
    known: list[int]
    steps: list[PointwiseStep] = field(default_factory=list)
    last: int = 0

    def step(self, op: str, *operands: int) -> int:
        """Return a step; the number of its value."""
        self.steps.append(PointwiseStep(op, operands))
        return self.first + len(self.steps) - 1

    def grow(self, choices: bool) -> None:
        """Add one more operation on the last value."""
        op = self.random.choice((*_CALM, *_GUARDED, "exp", *[_CHOICE] * (2 * choices)))
        if op in _GUARDED:
            value = self.random.choice(self.known) if op == "div" else self.last
            above = self.step("add", self.step("mul", value, value), self.one)
            made = self.step(op, self.last, above) if op == "div" else self.step(op, above)
        elif op == "exp":
            made = self.step(op, self.step("neg", self.step("abs", self.last)))
        elif op == _CHOICE:
            mask = self.step(self.random.choice(PREDICATES), self.last, self._other())
            made = self.step(op, mask, self.last, self._other())
        else:
            others = [self._other() for _ in range(STEPS[op].operands - 1)]
            made = self.step(op, self.last, *others)
        self.known.append(made)
        self.last = made

    def _other(self) -> int:
        return self.random.choice(self.known)


def random_program(
    random: Random, most: int, columns: bool = True, choices: bool = True
) -> Pointwise:
    """Return a few steps (up to `most`, and two that may guard the last) and up to two reads.

    Each operation takes the one before. Without `columns` no read has any; without `choices`
    nothing is compared: an error can choose the other number, which is no small error.
    """
    kinds = (FULL, ROW, COLUMN, NUMBER) if columns else (COLUMN, NUMBER)
    reads = tuple(random.choice(kinds) for _ in range(random.randrange(3)))
    others = tuple(random.choice((0.5, -1.0, 2.0, 0.1)) for _ in range(random.randrange(2)))
    constants = (_ONE, *others)
    first, one = 1 + len(reads) + len(constants), 1 + len(reads)
    drawing = _Drawing(random, first, one, list(range(first)))
    wanted = random.randrange(most + 1)
    while len(drawing.steps) < wanted:
        drawing.grow(choices)
    return Pointwise(reads, constants, tuple(drawing.steps))


def random_reads(program: Pointwise, rows: int, columns: int, random: Random) -> list[np.ndarray]:
    """Draw contents for the reads."""
    values = np.random.default_rng(random.randrange(1 << 30))
    shapes = [o.shape for o in program.operands("r", rows, columns)]
    sizes = [[d for d in shape if isinstance(d, int)] for shape in shapes]
    return [values.normal(size=s).astype(np.float32) for s in sizes]
