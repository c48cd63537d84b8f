"""What follows a product in a layer? The usual programs, for those who write kernels by hand."""

from pyc_mlir.pipelines.kernels.pointwise import FULL, ROW, Pointwise, Step


def layer(bias: bool = False, activation: str = "", residual: bool = False) -> Pointwise:
    """activation(x + bias) + residual: a number a column, a step's name, a matrix; all optional."""
    reads = (ROW,) * bias + (FULL,) * residual
    steps: list[Step] = []

    def last() -> int:
        return len(reads) + len(steps) if steps else 0

    if bias:
        steps.append(Step("add", (0, 1)))
    if activation:
        steps.append(Step(activation, (last(),)))
    if residual:
        steps.append(Step("add", (last(), len(reads))))
    return Pointwise(reads, (), tuple(steps))
