"""Class `random`: a seeded graph in layers whose structure does not reveal a good order.

Each layer's values are read by later layers, some of them much later. Values differ in size, so
that packing matters as well.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from pyc_mlir.tools.bench.workloads.case import SeededWeights, SuiteCase


@dataclass(frozen=True)
class Layered:
    """`ops` operations in layers of `width`, on matrices of `rows` times one of `columns`.

    `reach`: how many layers back an operand may stand.
    """

    ops: int = 500
    width: int = 10
    rows: int = 128
    columns: tuple[int, ...] = (256, 512)
    reach: int = 6
    seed: int = 0


@dataclass(frozen=True)
class _Step:
    """One operation: `product`, `tanh` or `add`, its operands by number, its result's columns."""

    op: str
    operands: tuple[int, ...]
    columns: int


def layered(shape: Layered) -> SuiteCase:
    """Make the graph; results are the sums of the rows of unread operations."""
    draw = SeededWeights(shape.seed)
    xs = tuple(draw.activations(shape.rows, c) for c in shape.columns)
    weights = {(a, b): draw.matrix(a, b) for a in shape.columns for b in shape.columns}
    steps = _steps(shape)
    read = {operand for step in steps for operand in step.operands}
    unread = [i for i in range(len(xs), len(xs) + len(steps)) if i not in read]

    def run(*xs: Any) -> Any:
        values = list(xs)
        for step in steps:
            values.append(_apply(step, [values[i] for i in step.operands], weights))
        return np.stack([np.sum(values[i], axis=1) for i in unread])

    return SuiteCase(f"layered graph, {shape.ops} ops", "random", run, xs)


def _apply(step: _Step, operands: list[Any], weights: dict[tuple[int, int], np.ndarray]) -> Any:
    if step.op == "product":
        (x,) = operands
        return x @ weights[x.shape[1], step.columns]
    return np.tanh(operands[0]) if step.op == "tanh" else operands[0] + operands[1]


def _steps(shape: Layered) -> list[_Step]:
    """Draw the operations, the three kinds in turn: a product begins a kernel of its own.

    More kinds would be more kernels to compile, not a harder plan.
    """
    draw = Random(shape.seed)
    columns = list(shape.columns)
    steps: list[_Step] = []
    for number in range(shape.ops):
        layer = len(shape.columns) + number // shape.width * shape.width
        first = max(0, layer - shape.reach * shape.width)
        x = draw.randrange(first, layer)
        alike = [i for i in range(first, layer) if columns[i] == columns[x]]
        if number % 3 == 0:
            step = _Step("product", (x,), draw.choice(shape.columns))
        elif number % 3 == 1:
            step = _Step("tanh", (x,), columns[x])
        else:
            step = _Step("add", (x, draw.choice(alike)), columns[x])
        steps.append(step)
        columns.append(step.columns)
    return steps
