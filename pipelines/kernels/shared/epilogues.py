"""The usual epilogues of a product, and the operands that they may overwrite."""

from pyc_mlir.pipelines.kernels.lang.carrier import Dim
from pyc_mlir.pipelines.kernels.lang.pointwise import FULL, ROW, Pointwise, PointwiseStep


def layer(bias: bool = False, activation: str = "", residual: bool = False) -> Pointwise:
    """activation(x + bias) + residual: a number a column, a step's name, a matrix; all optional."""
    reads = (ROW,) * bias + (FULL,) * residual
    steps: list[PointwiseStep] = []

    def last() -> int:
        return len(reads) + len(steps) if steps else 0

    if bias:
        steps.append(PointwiseStep("add", (0, 1)))
    if activation:
        steps.append(PointwiseStep(activation, (last(),)))
    if residual:
        steps.append(PointwiseStep("add", (last(), len(reads))))
    return Pointwise(reads, (), tuple(steps))


def overwritable(program: Pointwise, rows: Dim, once: bool) -> tuple[tuple[str, str], ...]:
    """Return what c may replace: what is read where c is written, if c is written `once`.

    Where the depth is summed in blocks, c holds partial sums before the epilogue reads.
    """
    reads = enumerate(program.reads) if once else ()
    return tuple(("c", f"e{n}") for n, read in reads if read.is_alike(rows))
