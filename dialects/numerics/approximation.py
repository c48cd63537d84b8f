"""Products that a program may compute approximately: the mark on an op, and how far each may be off.

``pyc.approximate = {way = "int8", allowed = 0.02 : f64}`` on a ``pyc.matmul`` says that a kernel may
round its operands, and that no element of the result may be off by more than ``allowed`` of the
result's greatest one. The kernel checks each tile and computes exactly what it cannot promise.
"""

from dataclasses import dataclass
from functools import partial
from math import isqrt

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir

ATTRIBUTE = "pyc.approximate"
# Both operands as integers of 8 or 16 bits with scales by row and column, or as bf16.
INT8, INT16, BF16 = "int8", "int16", "bf16"
WAYS = (INT8, INT16, BF16)
# The greatest error among the elements of a result, in deviations of one: P(|e| > 5 s) = 6e-7, and
# deviations are estimated too large.
SPREAD = 5.0
# The deviations that a kernel keeps within what is allowed: P(|e| > 6 s) = 2e-9. Rounding is
# dithered, so that this holds for whatever data.
DEVIATIONS = 6.0
# Rows and columns that a kernel checks together, about.
HEIGHT, PANEL = 8, 64
_BYTE_STEPS = 126  # from zero to the greatest element
_MOST_STEPS, _SUMS = 4095, 1 << 31
# The deviation of a number over the number, rounded to bf16 up or down with a probability by how
# near it is: half a step of the last bit at most, 0.6 of that on average over a binade.
BF16_DEVIATION = 2.0**-8 * 0.8


@dataclass(frozen=True)
class Approximation:
    """How a product is approximated, and the share of its greatest element that it may be off."""

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
        """Return the deviation of each element, from the exact result."""
        sizes = np.abs(value.astype(np.float64))
        greatest = sizes.max(initial=0.0, where=np.isfinite(sizes))
        return np.full(value.shape, self.allowed / SPREAD * greatest)


def needed_share(way: str, a: np.ndarray, b: np.ndarray, value: np.ndarray) -> float:
    """Return the `allowed` under which nine of ten tiles of A[..., k] B[k, n] keep their promise.

    Errors of roundings are independent: those of bytes are uniform in a step, those of bf16 in a
    share of each number. As in the kernels, a panel has the norms of its largest column.
    """
    rows = a.reshape(-1, a.shape[-1]).astype(np.float64)
    columns = b.astype(np.float64)
    result = np.abs(value.astype(np.float64)).reshape(-1, columns.shape[1])
    deviations = _bf16 if way == BF16 else partial(_integers, steps(way, len(columns)))
    shares = []
    tiles = range(0, len(rows), HEIGHT)
    for start in range(0, columns.shape[1], PANEL):
        with np.errstate(all="ignore"):
            deviation = deviations(rows, columns[:, start : start + PANEL])
            largest = np.maximum.reduceat(deviation, tiles)
            greatest = np.maximum.reduceat(result[:, start : start + PANEL].max(axis=1), tiles)
            share = DEVIATIONS * largest / greatest
        shares.append(share[np.isfinite(share)])
    found = np.concatenate(shares)
    return float(np.quantile(found, 0.9)) if found.size else 0.0


def steps(way: str, depth: int) -> int:
    """Return the integer of the greatest element: no sum of `depth` products exceeds 32 bits."""
    if way == INT8:
        return _BYTE_STEPS
    return min(_MOST_STEPS, isqrt(_SUMS // max(1, depth)) - 4)


def _integers(most: int, rows: np.ndarray, panel: np.ndarray) -> np.ndarray:
    step_of_rows = np.abs(rows).max(axis=1, initial=0.0) / most
    step_of_panel = np.abs(panel).max(initial=0.0) / most
    norm = np.sqrt((panel**2).sum(axis=0).max())
    return np.hypot(step_of_rows * norm, np.linalg.norm(rows, axis=1) * step_of_panel) / np.sqrt(12)


def _bf16(rows: np.ndarray, panel: np.ndarray) -> np.ndarray:
    """Return the same by Cauchy and Schwarz: sum a^2 b^2 is at most the root of both fourth powers."""
    fourth = (rows**4).sum(axis=1) * (panel**4).sum(axis=0).max()
    return np.sqrt(2) * BF16_DEVIATION * fourth**0.25
