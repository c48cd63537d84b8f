"""Random pointwise programs and contents of their reads, for the samples of families."""

from random import Random

import numpy as np

from pyc_mlir.pipelines.kernels.pointwise import COLUMN, FULL, NUMBER, ROW, Pointwise, Step
from pyc_mlir.pipelines.kernels.pointwise_ops import STEPS

# Steps to integers make any error a whole number; logarithms and roots want positive numbers,
# and after exp little is left of the range.
_WILD = ("floor", "ceil", "round", "log", "sqrt", "rsqrt", "div", "exp")
_CALM = [n for n, op in STEPS.items() if not (n in _WILD or op.mask or op.by_mask)]


def random_program(random: Random, most: int, columns: bool = True) -> Pointwise:
    """Up to `most` steps and two reads; each step takes the one before.

    Without `columns` no read has any.
    """
    kinds = (FULL, ROW, COLUMN, NUMBER) if columns else (COLUMN, NUMBER)
    reads = tuple(random.choice(kinds) for _ in range(random.randrange(3)))
    constants = tuple(random.choice((0.5, -1.0, 2.0, 0.1)) for _ in range(random.randrange(2)))
    steps, last, first = [], 0, 1 + len(reads) + len(constants)
    for number in range(random.randrange(most + 1)):
        op = random.choice(_CALM)
        others = [random.randrange(first + number) for _ in range(STEPS[op].operands - 1)]
        steps.append(Step(op, (last, *others)))
        last = first + number
    return Pointwise(reads, constants, tuple(steps))


def random_reads(program: Pointwise, rows: int, columns: int, random: Random) -> list[np.ndarray]:
    """Contents for the reads."""
    values = np.random.default_rng(random.randrange(1 << 30))
    shapes = [o.shape for o in program.operands("r", rows, columns)]
    sizes = [[d for d in shape if isinstance(d, int)] for shape in shapes]
    return [values.normal(size=s).astype(np.float32) for s in sizes]
