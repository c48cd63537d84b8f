"""Products that a program may compute approximately: the mark, and how far each may be off.

``pyc.approximate = {way = "int8", allowed = 0.02 : f64}`` on a ``pyc.matmul`` says that a kernel
may round its operands, and that no element of the result may be off by more than ``allowed`` of the
greatest one of its row of a tile. The kernel checks each tile and computes exactly what it cannot
promise.
"""

from dataclasses import dataclass

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir

ATTRIBUTE = "pyc.approximate"
# Both operands as integers of 8 or 16 bits with scales by row and column, or as bf16.
INT8, INT16, BF16 = "int8", "int16", "bf16"
WAYS = (INT8, INT16, BF16)
# The greatest error that kernels count with, in standard deviations of one element's.
DEVIATIONS = 6.0
# Columns of a panel, at most.
_PANEL = 64


@dataclass(frozen=True)
class Approximation:
    """How a product is approximated: how much of a tile row's greatest element it may be off."""

    way: str
    allowed: float

    def mark(self, op: ir.Operation) -> None:
        """Put the mark on a matmul."""
        op.attributes[ATTRIBUTE] = ir.DictAttr.get(
            {
                "way": ir.StringAttr.get(self.way, op.context),
                "allowed": ir.FloatAttr.get(ir.F64Type.get(op.context), self.allowed),
            },
            op.context,
        )

    @staticmethod
    def read(op: ir.Operation) -> "Approximation | None":
        """Return the mark on an op. Raises PycError (INVALID_IR) for a malformed one."""
        if ATTRIBUTE not in op.attributes:
            return None
        try:
            data = ir.DictAttr(op.attributes[ATTRIBUTE])
            way = ir.StringAttr(data["way"]).value
            allowed = ir.FloatAttr(data["allowed"]).value
        except (KeyError, ValueError):
            way, allowed = "", 0.0
        if op.name != "pyc.matmul" or way not in WAYS or not 0 < allowed < 1:
            raise PycError(
                ReasonCode.INVALID_IR,
                f"{op.location}: expected {ATTRIBUTE} on a pyc.matmul, with a way among "
                f"{', '.join(WAYS)} and a share between 0 and 1, got {op.attributes[ATTRIBUTE]} on "
                f"{op.name}",
            )
        return Approximation(way, allowed)

    def deviation(self, value: np.ndarray) -> np.ndarray:
        """Return the deviation of each element, from the exact result [..., rows, columns].

        It goes by the greatest element of the row in the panel.
        """
        rows = np.abs(value.astype(np.float64)).reshape(-1, value.shape[-1])
        rows = np.where(np.isfinite(rows), rows, 0.0)
        if not rows.size:
            return np.zeros(value.shape)
        panels = np.maximum.reduceat(rows, range(0, rows.shape[1], _PANEL), axis=1)
        wide = panels.repeat(_PANEL, axis=1)[:, : rows.shape[1]]
        return self.allowed / DEVIATIONS * wide.reshape(value.shape)
