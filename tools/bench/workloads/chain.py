"""Class `chain`: one thing after another, so that only reuse and packing can save memory.

Growing matrix products, the demo models on a large batch, a plain multilayer perceptron.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

from pyc_mlir import nn
from pyc_mlir.tools.bench.workloads.case import SeededWeights, SuiteCase
from pyc_mlir.tools.bench.workloads.cpu import digits


@dataclass(frozen=True)
class MatmulChain:
    """x [rows, widths[0]] times one matrix after another."""

    rows: int = 256
    widths: tuple[int, ...] = (256, 512, 1024, 2048, 4096)


def growing_matmuls(shape: MatmulChain) -> SuiteCase:
    """x @ w0 @ w1 @ ...: no two buffers are of one size."""
    draw = SeededWeights(1)
    x = draw.activations(shape.rows, shape.widths[0])
    weights = _matrices(draw, shape.widths)
    return SuiteCase("growing matmuls", "chain", lambda x: reduce(_product, weights, x), (x,))


def mlp(shape: MatmulChain) -> SuiteCase:
    """relu(x w + b) again and again; no relu after the last."""
    draw = SeededWeights(2)
    x = draw.activations(shape.rows, shape.widths[0])
    weights = _matrices(draw, shape.widths)
    biases = [draw.vector(n) for n in shape.widths[1:]]
    return SuiteCase("mlp", "chain", _mlp(weights, biases), (x,))


def _mlp(weights: Sequence[Any], biases: Sequence[Any]) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        for w, b in zip(weights[:-1], biases[:-1], strict=True):
            x = nn.relu(x @ w + b)
        return x @ weights[-1] + biases[-1]

    return run


def demo(kind: str, batch: int) -> SuiteCase:
    """Make a demo model (`mlp` or `cnn`) of the given batch."""
    workload = digits(kind, batch)
    return SuiteCase(f"digits {kind}", "chain", workload.source, workload.inputs)


def _matrices(draw: SeededWeights, widths: Sequence[int]) -> list[Any]:
    pairs = pairwise(widths)
    return [draw.matrix(rows, columns, gain=1.4) for rows, columns in pairs]


def _product(x: Any, w: Any) -> Any:
    return x @ w
