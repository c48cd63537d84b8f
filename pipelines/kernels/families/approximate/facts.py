"""How a constant B is rounded and laid out for approximate products, and what checks know of it.

B's rounding is dithered, so that its errors do not depend on B: a fixed pseudo-random number is
added before an integer is rounded, and taken off the sums again (Schuchman, 1964, "Dither Signals
and Their Effect on Quantization Noise"). A's numbers are rounded up or down at random, by how near
they are (`rows.py`), which keeps their mean whatever A is. The error of a sum of products is below
`DEVIATIONS` standard deviations, but for a share of 2 exp(-DEVIATIONS^2 / 2) of all draws at most;
docs/contracts.md says for which data that holds. bf16 rounds both sides at random.
"""

from dataclasses import dataclass

import numpy as np

from pyc_mlir.pipelines.kernels.families.approximate.forms import Form
from pyc_mlir.pipelines.kernels.families.packing import Panels
from pyc_mlir.pipelines.kernels.lang.language import LINE
from pyc_mlir.pipelines.kernels.shared.checksums import signs

# Of the error of one number rounded to bf16 as a share of it, at most: up and down are as likely
# in the middle of a step, which is 2^-7 of the smallest numbers of a binade.
_BF16_DEVIATION = 2.0**-8
# The rounding of sums in f32, as a share of the norms of what is multiplied.
_SUM_ROUNDING = 2.0**-20
# Norms beyond which squares leave the range of f32.
_LEAST, _MOST = 2.0**-50, 2.0**50
# The facts of a panel behind its sums, starts and scales.
BOUND_B, BOUND_A, SUMS_B, SUMS_A = range(4)


def dither(count: int, stream: int) -> np.ndarray:
    """Return fixed pseudo-random numbers below 1 (Steele and others, 2014, SplitMix64)."""
    with np.errstate(over="ignore"):
        at = np.arange(1, count + 1, dtype=np.uint64) + np.uint64(stream << 32)
        z = at * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def to_bf16(numbers: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return the bits of bf16, rounded up where `drawn`, of 16 bits, says so."""
    held = numbers.astype(np.float32).view(np.uint32).astype(np.uint64) + drawn.astype(np.uint64)
    return (held >> np.uint64(16)).astype(np.uint16)


@dataclass(frozen=True)
class RoundedB:
    """B[depth, columns] rounded: `numbers` within words, `scales` of columns, `shifts` of A."""

    numbers: np.ndarray
    scales: np.ndarray

    @staticmethod
    def of(form: Form, b: np.ndarray) -> "RoundedB":
        """Round B by a form."""
        if form.is_bf16:
            drawn = (dither(b.size, 2) * 2.0**16).astype(np.uint64).reshape(b.shape)
            return RoundedB(to_bf16(b, drawn).view(np.int16), np.ones(b.shape[1]))
        wide = b.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            scales = np.nan_to_num(np.abs(wide).max(axis=0), nan=0.0, posinf=0.0) / form.levels
            shares = wide / np.where(scales > 0, scales, 1.0)
            moved = shares + dither_of_b(form)[:, None]
            whole = np.rint(np.clip(np.nan_to_num(moved), -form.levels - 1, form.levels + 1))
        return RoundedB(whole.astype(np.int64), scales)

    def variance(self, form: Form) -> np.ndarray:
        """Return the variance of an element's error with integers: A's part, B's for a norm of 1.

        A number between two integers errs by sqrt(f (1 - f)) steps with f its fraction: 1/6 step
        squared where fractions are spread evenly. B's errors are uniform over a step.
        """
        held = (self.numbers - dither_of_b(form)[:, None]) * self.scales
        return np.array([(held**2).sum(axis=0).max() / 6, (self.scales**2).max() / 12])


def random_words(form: Form) -> np.ndarray:
    """Return fixed random bits along the depth, as f32, of which each row of A makes its own."""
    return (dither(form.depth, 0) * 2.0**32).astype(np.uint32).view(np.float32)


def dither_of_b(form: Form) -> np.ndarray:
    """Return what is added to B's shares before they are rounded, along the depth."""
    return (dither(form.depth, 1) - 0.5).astype(np.float32).astype(np.float64)


@dataclass(frozen=True)
class ApproximateWords:
    """The layout of rounded weights: panels of words."""

    form: Form
    columns: int
    panel: int

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of B."""
        return self.form.depth, self.columns

    @property
    def panels(self) -> Panels:
        """The panels, whose depth counts words."""
        return Panels(self.columns, self.form.groups, self.panel, "i32")

    def pack(self, b: np.ndarray) -> np.ndarray:
        """Return the panels, flat."""
        return self.panels.pack(self.form.words(RoundedB.of(self.form, b).numbers))


@dataclass(frozen=True)
class Facts:
    """The layout of what the kernel knows of B beside its words, as f32.

    First random bits for A, then what is added to B before rounding, along the depth (integers).
    Then of each panel: its sums along the depth, columns with the signs of their lines; what sums
    of products begin with, as i32; the scales of columns; and `BOUND_B` to `SUMS_A`: the variance
    of an element's error is BOUND_B + n BOUND_A, that of a row's sum with signs SUMS_B + n SUMS_A,
    in units of the row's scale squared, with n the square of the row's norm (bf16: the root of its
    fourth powers' sum).
    """

    form: Form
    columns: int
    panel: int

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of B."""
        return self.form.depth, self.columns

    @property
    def count(self) -> int:
        """The number of panels, a narrower last one included."""
        return -(-self.columns // self.panel)

    @property
    def along(self) -> int:
        """The numbers along the depth, in whole lines."""
        return -(-self.form.depth // LINE) * LINE

    @property
    def starts(self) -> int:
        """The place of what sums begin with, from that of the panel on."""
        return self.along

    @property
    def scales(self) -> int:
        """The place of scales, from that of the panel on."""
        return self.starts + self.panel

    @property
    def bounds(self) -> int:
        """The place of the four bounds, from that of the panel on."""
        return self.scales + self.panel

    @property
    def each(self) -> int:
        """The numbers of a panel."""
        return self.bounds + LINE

    @property
    def first(self) -> int:
        """The place of the first panel."""
        return 2 * self.along

    @property
    def size(self) -> int:
        """The count of numbers."""
        return self.first + self.count * self.each

    def pack(self, b: np.ndarray) -> np.ndarray:
        """Return the facts, flat."""
        assert b.shape == self.shape
        form, depth = self.form, self.form.depth
        found = np.zeros(self.size, np.float32)
        found[:depth] = random_words(form)
        if not form.is_bf16:
            found[self.along : self.along + depth] = dither_of_b(form)
        wide = np.zeros((depth, self.count * self.panel))
        wide[:, : self.columns] = b
        for number in range(self.count):
            own = slice(number * self.panel, (number + 1) * self.panel)
            at = self.first + number * self.each
            found[at : at + self.each] = self._of_panel(wide[:, own])
        return found

    def _of_panel(self, b: np.ndarray) -> np.ndarray:
        """Return the facts of one panel, whose columns are padded with zeros."""
        form, rounded = self.form, RoundedB.of(self.form, b)
        made = np.zeros(self.each, np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            sums = b @ signs(self.panel)
            made[: form.depth] = sums
            if form.is_bf16:
                bounds = np.array([0.0, bf16_variance(b)])
            else:
                starts = (-form.offset * rounded.numbers.sum(axis=0)).astype(np.int32)
                made[self.starts : self.scales] = starts.view(np.float32)
                bounds = rounded.variance(form)
            made[self.scales : self.bounds] = rounded.scales
            of_sums = bounds * self.panel + [0.0, (_SUM_ROUNDING * np.linalg.norm(sums)) ** 2]
            norm = np.linalg.norm(b, axis=0).max()
            if not (norm == 0 or _LEAST < norm < _MOST):
                bounds = of_sums = np.full(2, np.nan)
            made[self.bounds : self.bounds + 4] = [*bounds, *of_sums]
        return made


def bf16_variance(b: np.ndarray) -> float:
    """Return the variance of an element's error for a row whose fourth powers sum up to 1.

    By Cauchy and Schwarz: the squares of a row times those of a column.
    """
    return 2 * _BF16_DEVIATION**2 * np.sqrt((b**4).sum(axis=0)).max()
