"""Reductions that kernels compute, and the dimensions that a pyc reduction runs over."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyc_mlir.pipelines.kernels.lang.values import (
    add,
    maximum,
    minimum,
)
from pyc_mlir.pipelines.target.work import Work, WorkOp, is_f32

# name -> (how two numbers combine, what they start from); a mean is a sum, divided at the end.
REDUCTIONS: dict[str, tuple[Callable[[Any, Any], Any], float]] = {
    "sum": (add, 0.0),
    "mean": (add, 0.0),
    "max": (maximum, -math.inf),
    "min": (minimum, math.inf),
}


@dataclass(frozen=True)
class ReducedDims:
    """Dimensions `first` to `last` (exclusive) of an operand's shape are reduced."""

    operation: str
    first: int
    last: int

    @property
    def cuts(self) -> tuple[int, int]:
        """The cuts of a feed of [before, reduced, after]."""
        return self.first, self.last


def span(work: Work, node: WorkOp) -> ReducedDims | None:
    """Return the dimensions that a reduction of f32 runs over, where they are neighbours.

    Dimensions of size 1 do not separate others. None for another op, for a type or axes that no
    kernel takes, and where a dynamic dimension of the result stands elsewhere in the operand.
    """
    operation = node.name.removeprefix("reduce_")
    if operation not in REDUCTIONS or not is_f32(work, node.operands):
        return None
    shape = work.type(node.operands[0]).shape
    axes = {a % len(shape) for a in node.params["axes"]}
    wide = [a for a in sorted(axes) if shape[a] != 1]
    if not wide or 0 in shape:
        return None
    first, last = wide[0], wide[-1] + 1
    together = all(i in axes or shape[i] == 1 for i in range(first, last))
    kept = [i for i in range(len(shape)) if node.params["keepdims"] or i not in axes]
    moved = any(shape[i] is None and i != place for place, i in enumerate(kept))
    return ReducedDims(operation, first, last) if together and not moved else None
