"""The programs of the suite `predict`: calls of 20 us to 2 ms, each with kernels to choose."""

from collections.abc import Callable, Sequence

import numpy as np

from pyc_mlir import nn
from pyc_mlir.tools.bench.peers.workload import BenchWorkload
from pyc_mlir.tools.bench.predict.observed import NOTHING
from pyc_mlir.tools.bench.workloads.case import SeededWeights
from pyc_mlir.tools.bench.workloads.cpu import ROWS, case, make

_STORED = ("mlp 784-512-512-10, batch 64", "mlp 784-512-512-10, batch 1", "digits mlp, batch 64")


def _norm_mlp(rows: int, width: int) -> BenchWorkload:
    """layernorm, two products with a residual: as half a transformer block."""
    draw = SeededWeights(3)
    a, b = draw.matrix(width, 2 * width), draw.matrix(2 * width, width)
    scale, bias = np.ones(width, np.float32), np.zeros(width, np.float32)
    return case(
        f"norm and mlp {rows}x{width}",
        lambda x: nn.gelu(nn.layernorm(x, scale, bias) @ a) @ b + x,
        (rows, width),
    )


def _softmax_mlp(rows: int, width: int) -> BenchWorkload:
    weight = SeededWeights(4).matrix(width, width)
    return case(
        f"product and softmax {rows}x{width}",
        lambda x: nn.softmax(nn.relu(x @ weight)) @ weight,
        (rows, width),
    )


def _attention(rows: int, width: int) -> BenchWorkload:
    return case(
        f"attention without heads {rows}x{width}",
        lambda q, k, v: nn.softmax(q @ k.transpose(1, 0)) @ v,
        *[(rows, width)] * 3,
    )


def _sums(rows: int, columns: int) -> BenchWorkload:
    return case(
        f"sums {rows}x{columns}",
        lambda x: np.sum(nn.relu(x), axis=1) + np.sum(nn.softmax(x), axis=1),
        (rows, columns),
    )


def _rows(rows: int, columns: int) -> BenchWorkload:
    scale, bias = np.ones(columns, np.float32), np.zeros(columns, np.float32)
    return case(
        f"softmax of layernorm {rows}x{columns}",
        lambda x: nn.softmax(nn.layernorm(x, scale, bias) * 2.0),
        (rows, columns),
    )


_MADE: Sequence[tuple[Callable[[int, int], BenchWorkload], int, int]] = (
    (_norm_mlp, 32, 128),
    (_norm_mlp, 128, 256),
    (_softmax_mlp, 64, 128),
    (_softmax_mlp, 256, 256),
    (_attention, 128, 64),
    (_attention, 256, 128),
    (_sums, 512, 256),
    (_rows, 256, 512),
    (_rows, 1024, 128),
)


def programs(quick: bool = False) -> list[BenchWorkload]:
    """Return all programs; quick: two small ones."""
    if quick:
        return [_softmax_mlp(16, 32), _rows(16, 32)]
    return [f(m, n) for f, m, n in _MADE] + [make(name) for name in _STORED if name in ROWS]


def nothing() -> BenchWorkload:
    """Make a call that computes next to nothing."""
    return case(NOTHING, lambda x: nn.relu(x), (1, 16))
