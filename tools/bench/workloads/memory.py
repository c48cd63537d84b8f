"""The memory suite's workloads: name -> how to make it, at its published shape or at a tiny one.

The shapes are committed as the defaults of the classes that describe them (`wide` and its
sisters); the tiny ones show in tests and in quick runs that all of it works.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from pyc_mlir.tools.bench.workloads.case import SuiteCase
from pyc_mlir.tools.bench.workloads.chain import MatmulChain, demo, growing_matmuls, mlp
from pyc_mlir.tools.bench.workloads.encoder import TINY, EncoderShape
from pyc_mlir.tools.bench.workloads.inference import GATED, LONG, decoder, encoder
from pyc_mlir.tools.bench.workloads.random_graphs import Layered, layered
from pyc_mlir.tools.bench.workloads.training import LAYER, Perceptron, encoder_step, mlp_step
from pyc_mlir.tools.bench.workloads.wide import (
    Branches,
    DenseNet,
    Inception,
    ResidualBlocks,
    UNet,
    branches,
    densenet,
    inception,
    residual,
    unet,
)


@dataclass(frozen=True)
class MemoryEntry:
    """A workload at both of its shapes."""

    full: Callable[[], SuiteCase]
    tiny: Callable[[], SuiteCase]


_FEW = Branches(count=3, rows=8, depth=4, columns=16)
_SHORT = MatmulChain(rows=4, widths=(4, 8, 16))
_WIDE_MLP = MatmulChain(rows=512, widths=(784, 2048, 2048, 2048, 10))

WORKLOADS: Mapping[str, MemoryEntry] = {
    "branches reduced late": MemoryEntry(
        partial(branches, Branches(), "reduced"), partial(branches, _FEW, "reduced")
    ),
    "branches added late": MemoryEntry(
        partial(branches, Branches(), "added"), partial(branches, _FEW, "added")
    ),
    "inception blocks": MemoryEntry(
        partial(inception, Inception()),
        partial(inception, Inception(blocks=1, side=4, channels=8, scale=16)),
    ),
    "densenet block": MemoryEntry(
        partial(densenet, DenseNet()),
        partial(densenet, DenseNet(layers=2, side=4, channels=3, growth=2)),
    ),
    "u-net": MemoryEntry(partial(unet, UNet()), partial(unet, UNet(depth=1, side=4, channels=2))),
    "growing matmuls": MemoryEntry(
        partial(growing_matmuls, MatmulChain()), partial(growing_matmuls, _SHORT)
    ),
    "digits mlp": MemoryEntry(partial(demo, "mlp", 16384), partial(demo, "mlp", 2)),
    "digits cnn": MemoryEntry(partial(demo, "cnn", 1440), partial(demo, "cnn", 2)),
    "mlp": MemoryEntry(partial(mlp, _WIDE_MLP), partial(mlp, _SHORT)),
    "encoder, 6 layers": MemoryEntry(partial(encoder, LONG, 6), partial(encoder, TINY, 6)),
    "decoder block": MemoryEntry(partial(decoder, GATED), partial(decoder, TINY)),
    "mlp, gradients": MemoryEntry(
        partial(mlp_step, Perceptron()), partial(mlp_step, Perceptron(6, (5, 7, 4)))
    ),
    "encoder layer, gradients": MemoryEntry(
        partial(encoder_step, LAYER), partial(encoder_step, TINY)
    ),
    "layered graph, 500 ops": MemoryEntry(
        partial(layered, Layered()),
        partial(layered, Layered(ops=30, width=5, rows=4, columns=(4, 8))),
    ),
}

# Workloads whose quickest kernels need much more memory than their smallest ones: 3x3 convolutions,
# of which minimal filtering has 16/9 or 4 times the weights; products of vectors of 300 numbers, as
# of pretrained words, that pad their weights, with attention that can be cut.
_WORDS = EncoderShape(seq=256, width=300, heads=6, hidden=1200)
PRESSED: Mapping[str, MemoryEntry] = {
    "residual blocks": MemoryEntry(
        partial(residual, ResidualBlocks()), partial(residual, ResidualBlocks(12, (16, 24), 1))
    ),
    "u-net": MemoryEntry(
        partial(unet, UNet(depth=2, side=128, channels=32)),
        partial(unet, UNet(depth=1, side=8, channels=16)),
    ),
    "encoder, 2 layers": MemoryEntry(partial(encoder, _WORDS, 2), partial(encoder, TINY, 1)),
}


def make(name: str, quick: bool) -> SuiteCase:
    """Make the workload `name`, tiny if `quick`."""
    entry = WORKLOADS[name]
    return (entry.tiny if quick else entry.full)().named(name)
