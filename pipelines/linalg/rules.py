"""From an op's name to its lowering: a decomposition if it has one, else its rule.

`LinalgBuilder` is a pyc builder whose values are lowered tensors, so that a decomposition written
once for the dialect emits linalg directly, without pyc ops in between.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.builder import Builder
from pyc_mlir.dialects.opdef import OPS, OpDef
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.pipelines.linalg.base.lowering import RULES, LoweredTensor, Lowering


class LinalgBuilder(Builder):
    """Emits linalg for each pyc op that is built."""

    def __init__(self, lowering: Lowering) -> None:
        self.lowering = lowering

    def emit(
        self, op: type[OpDef], operands: Sequence[LoweredTensor], params: dict[str, Any]
    ) -> LoweredTensor:
        """Lower the op at once."""
        return lower(self.lowering, op.name, operands, params)

    def constant(self, value: np.ndarray) -> LoweredTensor:
        """Return a constant tensor."""
        return self.lowering.constant(np.asarray(value))

    def scalar(self, value: float, like: LoweredTensor) -> LoweredTensor:
        """Return a rank-0 constant of the element type of `like`; equal ones are one."""
        return self.lowering.rank_0(value, like.dtype)

    def type_of(self, value: LoweredTensor) -> TensorType:
        """Return the type of a lowered tensor."""
        return value.type


def lower(
    lowering: Lowering, name: str, operands: Sequence[LoweredTensor], params: dict[str, Any]
) -> LoweredTensor:
    """Emit the op at the current insertion point. Raises PycError if nothing lowers it."""
    definition = OPS[name]
    if definition.decompose is not None:
        out = definition.decompose(LinalgBuilder(lowering), *operands, **params)
        if out is not None:
            return out
    rule = RULES.get(name)
    if rule is None:
        raise PycError(ReasonCode.UNSUPPORTED_OP, f"pyc.{name} has no lowering to linalg")
    return rule(lowering, name, *operands, **params)
