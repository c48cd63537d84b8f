"""Errors of earlier estimates: what they say of the next one's bias and interval.

Comes in: pairs of estimate and measurement, of single kernels and of whole programs, each from one
environment. Goes out: the bias of a kernel family, and the half width of an interval by split
conformal prediction with normalized scores (Papadopoulos et al., 2002; Lei et al., 2018):

    score_i = |log(measured_i / (estimate_i + join * (kernels_i - 1)))| / scale_i
    interval = estimate * exp(-+ q * scale),  q = the ceil((n + 1) * coverage)-th smallest score

`join` is what each further kernel of a program costs besides its own seconds (a dispatch, a wait,
memory for what lies between); it is fitted to the same programs. The interval covers a new program
of the same kind in at least the stated share of cases, whatever the distribution of the errors, if
it is exchangeable with the n programs. With too few of them that rank does not exist:
`Width.calibrated` then is False, and the width is `UNCALIBRATED` deviations.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import ClassVar

from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.dialects.util.json_input import read_record

COVERAGE = 0.9
# As families: whole programs, and a call that computes next to nothing.
PROGRAM, CALL = "program", "call"
# Errors of an estimate as a deviation of its logarithm, where nothing was measured here: of a row
# of work by another process, and of a prediction (docs/design-notes/cost-model.md: 0.11 to 2.3).
MEASURED_SCALE, PREDICTED_SCALE = 0.05, 0.5
# The half width in deviations where no residuals say more: what a normal error needs for 90 %.
UNCALIBRATED = 1.645
# How many values of `join` are tried at most.
_JOINS = 32
# Families with fewer residuals are drawn towards no bias by so many residuals without one.
_PRIOR = 2


@dataclass(frozen=True, order=True)
class Residual:
    """One estimate and what was measured.

    environment: where, see `environment_of`. family: of the kernel (``gemm``, ``iree``), or
    `PROGRAM`. subject: what was estimated. estimate, measured: seconds. scale: the expected
    deviation of log(measured / estimate), by which scores are normalized. kernels: of a program.
    """

    environment: str
    family: str
    subject: str
    estimate: float
    measured: float
    scale: float = PREDICTED_SCALE
    kernels: int = 1

    def __post_init__(self) -> None:
        """Raise ValueError for numbers that no estimate has."""
        if not all(0 < x < math.inf for x in (self.estimate, self.measured, self.scale)):
            raise ValueError(f"{self.subject}: expected positive numbers of seconds, got {self}")

    def log_ratio(self, join: float = 0.0) -> float:
        """log(measured / estimate): above 0 where it took longer.

        join: seconds that each further kernel costs more.
        """
        return math.log(self.measured / (self.estimate + join * (self.kernels - 1)))


@dataclass(frozen=True)
class Width:
    """Half the width of an interval in deviations; `calibrated` by so many residuals (`rows`)."""

    deviations: float = UNCALIBRATED
    calibrated: bool = False
    rows: int = 0


@dataclass(frozen=True)
class Residuals:
    """Residuals, sorted. Equal contents have equal bytes."""

    kind: ClassVar[str] = "pyc-residuals"
    schema: ClassVar[int] = 1
    rows: tuple[Residual, ...] = ()

    @staticmethod
    def of(rows: Iterable[Residual]) -> "Residuals":
        """Return the residuals of rows in any order."""
        return Residuals(tuple(sorted(set(rows))))

    def without(self, subjects: Iterable[str]) -> "Residuals":
        """Return the residuals of all other subjects, to leave these out of a test."""
        left_out = set(subjects)
        return Residuals(tuple(r for r in self.rows if r.subject not in left_out))

    def bias(self, environment: str, family: str) -> float:
        """Return the factor from a family's predictions to what is measured there; 1 without
        residuals.
        """
        found = self._by_family.get((environment, family))
        if not found:
            return 1.0
        return math.exp(median(found) * len(found) / (len(found) + _PRIOR))

    def spread(self, environment: str, family: str) -> float:
        """Return the deviation that remains after the bias, by the median; the default below 4
        rows.
        """
        found = self._by_family.get((environment, family), ())
        if len(found) < 4:
            return PREDICTED_SCALE
        center = math.log(self.bias(environment, family))
        # A normal distribution's deviation is 1.4826 times its median absolute deviation.
        spread = 1.4826 * median(abs(x - center) for x in found)
        return max(spread, MEASURED_SCALE)

    def width(self, environment: str, coverage: float = COVERAGE) -> Width:
        """Return the half width by which intervals of programs cover the given share."""
        join = self.join_seconds(environment)
        scores = sorted(abs(r.log_ratio(join)) / r.scale for r in self._programs(environment))
        rank = math.ceil((len(scores) + 1) * coverage)
        if rank > len(scores):
            return Width(rows=len(scores))
        return Width(scores[rank - 1], True, len(scores))

    def call_seconds(self, environment: str) -> float:
        """Return the seconds of a call of nothing there; 0 where it was not measured."""
        found = [r.measured for r in self.rows if (r.environment, r.family) == (environment, CALL)]
        return median(found) if found else 0.0

    def join_seconds(self, environment: str) -> float:
        """Return the cost of a further kernel of a program: of least errors in the logarithm, in
        sum.
        """
        if environment not in self._joins:
            several = [r for r in self._programs(environment) if r.kernels > 1]
            each = sorted((r.measured - r.estimate) / (r.kernels - 1) for r in several)
            tried = [0.0, *(x for x in each[:: len(each) // _JOINS + 1] if x > 0)]
            errors = [math.fsum(abs(r.log_ratio(join)) for r in several) for join in tried]
            self._joins[environment] = tried[errors.index(min(errors))]
        return self._joins[environment]

    @cached_property
    def _joins(self) -> dict[str, float]:
        return {}

    def _programs(self, environment: str) -> list[Residual]:
        return [r for r in self.rows if (r.environment, r.family) == (environment, PROGRAM)]

    @cached_property
    def _by_family(self) -> dict[tuple[str, str], list[float]]:
        found: dict[tuple[str, str], list[float]] = {}
        for row in self.rows:
            found.setdefault((row.environment, row.family), []).append(row.log_ratio())
        return found

    def to_bytes(self) -> bytes:
        """Return the file: JSON with sorted keys."""
        data = to_data(self)
        return f"{json.dumps(data, indent=1, sort_keys=True, ensure_ascii=True)}\n".encode()

    @staticmethod
    def from_bytes(data: bytes, where: str = "residuals") -> "Residuals":
        """Read what `to_bytes` wrote. Raises PycError (BAD_ARGUMENT), with `where` first."""
        remedy = "write them again with `pyc-bench predict`"
        return read_record(Residuals, data, where, "residuals", remedy)

    @staticmethod
    def load(path: str | Path) -> "Residuals":
        """Read a file. Raises PycError: FILE_ACCESS, BAD_ARGUMENT."""
        return Residuals.from_bytes(read_file(path, "a file of residuals"), str(path))


def environment_of(hardware: str, toolchain: str) -> str:
    """Return the key of residuals: errors of one machine and compiler say nothing of others."""
    return f"{hardware} {toolchain}"


def family_of(choice: str) -> str:
    """Return the family of a kernel's alternative: ``gemm`` of ``gemm:matmul+add[rows=4]``."""
    return choice.partition(":")[0]
