"""Approximate products: forms of numbers in fewer bits, how B is rounded, what checks know of it.

A form packs `per` neighbouring numbers of the depth into a word of 32 bits, on both sides; an
instruction adds the products of two words in each lane. Integers: ``bytes`` (vpdpbusd), ``pairs``
(vpdpwssd), ``madd`` (vpmaddwd) and ``plain`` (arithmetic of any target) add exactly in 32 bits;
those of 16 bits use as many levels as the depth leaves room for. ``bf16`` (vdpbf16ps) adds in f32.

B's rounding is dithered, so that its errors do not depend on B: a fixed pseudo-random number is
added before an integer is rounded, and taken off the sums again (Schuchman, 1964, "Dither Signals
and Their Effect on Quantization Noise"). A's numbers are rounded up or down at random, by how near
they are (`rows.py`), which keeps their mean whatever A is. The error of a sum of products is below
`DEVIATIONS` standard deviations, but for a share of 2 exp(-DEVIATIONS^2 / 2) of all draws at most;
docs/contracts.md says for which data that holds. bf16 rounds both sides at random.
"""

from dataclasses import dataclass
from itertools import accumulate
from math import isqrt
from typing import Any, NamedTuple

import numpy as np

from pyc_mlir.dialects.numerics.approximation import BF16, DEVIATIONS, INT8, INT16
from pyc_mlir.pipelines.kernels.families.bytes import MADD, PLAIN, VNNI, has_dot
from pyc_mlir.pipelines.kernels.families.checked import signs
from pyc_mlir.pipelines.kernels.lang import values as ops
from pyc_mlir.pipelines.kernels.lang.language import LINE, Build
from pyc_mlir.pipelines.kernels.lang.values import Ints, Vector
from pyc_mlir.pipelines.kernels.nest import Panels
from pyc_mlir.pipelines.streams.ir import ir
from pyc_mlir.pipelines.target.target import Target

BYTES, PAIRS = "bytes", "pairs"
# The forms of each way, the fastest first. Integers of 16 bits also stand in for bytes.
FORMS = {
    INT8: (BYTES, MADD, PLAIN),
    INT16: (PAIRS, MADD, PLAIN),
    BF16: (BF16,),
}
_SUMS = 1 << 31  # what sums in 32 bits stay below
_MOST_LEVELS = 4095
_BYTE_LEVELS, _BYTE_OFFSET = 126, 128
_INTRINSICS = {
    (BYTES, 16): "llvm.x86.avx512.vpdpbusd.512",
    (BYTES, 8): "llvm.x86.avx512.vpdpbusd.256",
    (PAIRS, 16): "llvm.x86.avx512.vpdpwssd.512",
    (PAIRS, 8): "llvm.x86.avx512.vpdpwssd.256",
    (MADD, 16): "llvm.x86.avx512.pmaddw.d.512",
    (MADD, 8): "llvm.x86.avx2.pmadd.wd",
    (BF16, 16): "llvm.x86.avx512bf16.dpbf16ps.512",
    (BF16, 8): "llvm.x86.avx512bf16.dpbf16ps.256",
}


def has_form(target: Target, form: str) -> bool:
    """Return whether the CPU has the form's instruction; LLVM ends the process where it has not."""
    if form == BF16:
        return target.vector_bytes in (32, 64) and {"avx512_bf16", "avx512vl"} <= target.needs
    return has_dot(target, VNNI if form in (BYTES, PAIRS) else form)


def best_form(target: Target, way: str) -> str | None:
    """Return the fastest form of a way that the target has a quick instruction for, if any.

    CPUs with tile registers do products of bf16 there: vdpbf16ps takes twice the time of f32 then.
    """
    slow = (PLAIN, BF16) if "amx_tile" in target.needs else (PLAIN,)
    return next((f for f in FORMS[way] if f not in slow and has_form(target, f)), None)


@dataclass(frozen=True)
class Form:
    """A form of numbers, for products over `depth`."""

    name: str
    depth: int

    @property
    def is_bf16(self) -> bool:
        """True where numbers are rounded to bf16, False where to integers."""
        return self.name == BF16

    @property
    def per(self) -> int:
        """The numbers in a word."""
        return 4 if self.name == BYTES else 2

    @property
    def groups(self) -> int:
        """The words along the depth."""
        return -(-self.depth // self.per)

    @property
    def pitch(self) -> int:
        """The words from one row to the next: whole vectors, and a line against cache sets."""
        return -(-self.depth // LINE) * (LINE // self.per) + LINE

    @property
    def levels(self) -> int:
        """The integer of the greatest number: no sum of products exceeds 32 bits."""
        if self.name == BYTES:
            return _BYTE_LEVELS
        return min(_MOST_LEVELS, isqrt(_SUMS // self.depth) - 4)

    @property
    def offset(self) -> int:
        """The number added to integers of A: vpdpbusd takes them without a sign."""
        return _BYTE_OFFSET if self.name == BYTES else 0

    @property
    def unroll(self) -> int:
        """The words that are added in one turn of the loop.

        LLVM makes two instructions of each vpdpwssd that another one waits for within a turn.
        """
        return 1 if self.name == PAIRS else 4

    @property
    def dtype(self) -> Any:
        """The type of one number within a word."""
        return np.int8 if self.name == BYTES else np.int16

    def words(self, numbers: np.ndarray) -> np.ndarray:
        """Return [depth, columns] of integers, or of the bits of bf16, as words of i32."""
        columns = numbers.shape[1]
        whole = np.zeros((self.groups * self.per, columns), self.dtype)
        whole[: self.depth] = numbers
        quads = whole.reshape(self.groups, self.per, columns).transpose(0, 2, 1)
        return np.ascontiguousarray(quads).view(np.int32)[..., 0]


@dataclass(frozen=True)
class FormCode:
    """The code of a form on vectors of `k`."""

    k: Build
    form: Form

    def add(self, total: Any, x: Vector, w: Ints) -> Any:
        """Return the total and the products of the words of x, as bits, and of w."""
        lanes, name = self.k.lanes, self.form.name
        if name == PLAIN:
            return total + _pairs(x.bits(), w)
        element = ir.IntegerType.get_signless(32 // self.form.per)
        if self.form.is_bf16:
            element = ir.BF16Type.get()
        kind = ir.VectorType.get([lanes * self.form.per], element)
        own, other = (ops.vector.bitcast(kind, words.value) for words in (x.bits(), w))
        operands = [own, other] if name == MADD else [total.value, own, other]
        result = ops.f32_vector(lanes) if self.form.is_bf16 else ops.int_vector(lanes)
        made = ops.llvm.call_intrinsic(result, _INTRINSICS[name, lanes], operands, [], [])
        return total + Ints(made) if name == MADD else type(total)(made)


def _pairs(a: Ints, b: Ints) -> Ints:
    """Return the sums of two products of 16-bit integers in each lane, taken out by shifts.

    As vectors of 16 bits, which are bits of f32, MLIR extends other numbers than these.
    """
    return ((a << 16) >> 16) * ((b << 16) >> 16) + (a >> 16) * (b >> 16)


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
class _LayoutOfB:
    """A layout of what is made of B[depth, columns], for a panel of so many columns."""

    form: Form
    columns: int
    panel: int

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of B."""
        return self.form.depth, self.columns


@dataclass(frozen=True)
class ApproximateWords(_LayoutOfB):
    """The layout of rounded weights: panels of words."""

    @property
    def panels(self) -> Panels:
        """The panels, whose depth counts words."""
        return Panels(self.columns, self.form.groups, self.panel, "i32")

    def pack(self, b: np.ndarray) -> np.ndarray:
        """Return the panels, flat."""
        return self.panels.pack(self.form.words(RoundedB.of(self.form, b).numbers))


class PanelPlaces(NamedTuple):
    """The places behind a panel's sums: what sums begin with, scales, the four bounds; the size."""

    starts: int
    scales: int
    bounds: int
    size: int


@dataclass(frozen=True)
class Facts(_LayoutOfB):
    """The layout of what the kernel knows of B beside its words, as f32.

    First random bits for A, then what is added to B before rounding, along the depth (integers).
    Then of each panel: its sums along the depth, columns with the signs of their lines; what sums
    of products begin with, as i32; the scales of columns; and `BOUND_B` to `SUMS_A`: the variance
    of an element's error is BOUND_B + n BOUND_A, that of a row's sum with signs SUMS_B + n SUMS_A,
    in units of the row's scale squared, with n the square of the row's norm (bf16: the root of its
    fourth powers' sum).
    """

    @property
    def count(self) -> int:
        """The number of panels, a narrower last one included."""
        return -(-self.columns // self.panel)

    @property
    def along(self) -> int:
        """The numbers along the depth, in whole lines."""
        return -(-self.form.depth // LINE) * LINE

    @property
    def at(self) -> PanelPlaces:
        """The places of a panel's facts, from that of the panel on."""
        return PanelPlaces(*accumulate((self.along, self.panel, self.panel, LINE)))

    @property
    def first(self) -> int:
        """The place of the first panel."""
        return 2 * self.along

    @property
    def size(self) -> int:
        """The count of numbers."""
        return self.first + self.count * self.at.size

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
            at = self.first + number * self.at.size
            found[at : at + self.at.size] = self._of_panel(wide[:, own])
        return found

    def _of_panel(self, b: np.ndarray) -> np.ndarray:
        """Return the facts of one panel, whose columns are padded with zeros."""
        form, rounded = self.form, RoundedB.of(self.form, b)
        made = np.zeros(self.at.size, np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            sums = b @ signs(self.panel)
            made[: form.depth] = sums
            if form.is_bf16:
                bounds = np.array([0.0, bf16_variance(b)])
            else:
                starts = (-form.offset * rounded.numbers.sum(axis=0)).astype(np.int32)
                made[self.at.starts : self.at.scales] = starts.view(np.float32)
                bounds = rounded.variance(form)
            made[self.at.scales : self.at.bounds] = rounded.scales
            of_sums = bounds * self.panel + [0.0, (_SUM_ROUNDING * np.linalg.norm(sums)) ** 2]
            norm = np.linalg.norm(b, axis=0).max()
            if not (norm == 0 or _LEAST < norm < _MOST):
                bounds = of_sums = np.full(2, np.nan)
            made[self.at.bounds : self.at.bounds + 4] = [*bounds, *of_sums]
        return made


def bf16_variance(b: np.ndarray) -> float:
    """Return the variance of an element's error for a row whose fourth powers sum up to 1.

    By Cauchy and Schwarz: the squares of a row times those of a column.
    """
    return 2 * _BF16_DEVIATION**2 * np.sqrt((b**4).sum(axis=0)).max()


# Rows and columns of a tile, about.
_HEIGHT, _PANEL = 6, 64
_TILES = 0.9


def needed_share(
    way: str, target: Target, a: np.ndarray, b: np.ndarray, value: np.ndarray
) -> float:
    """Return the least `allowed` under which nine of ten tiles of A B keep what they promise.

    a: [..., depth]; b: [depth, columns]; value: the product. The way has a form on the target.
    """
    name = best_form(target, way)
    assert name is not None, f"{way} has an instruction on {target.name}"
    form = Form(name, b.shape[0])
    rows = a.reshape(-1, a.shape[-1]).astype(np.float64)
    result = np.abs(value.astype(np.float64)).reshape(len(rows), -1)
    tiles, found = range(0, len(rows), _HEIGHT), []
    with np.errstate(all="ignore"):
        for start in range(0, b.shape[1], _PANEL):
            panel = slice(start, start + _PANEL)
            of_rows = deviations(form, rows, b[:, panel]) / result[:, panel].max(axis=1)
            share = DEVIATIONS * np.fmax.reduceat(of_rows, tiles)
            found.append(share[np.isfinite(share)])
    shares = np.concatenate(found) if found else np.zeros(0)
    return float(np.quantile(shares, _TILES)) if shares.size else 0.0


def deviations(form: Form, rows: np.ndarray, panel: np.ndarray) -> np.ndarray:
    """Return the standard deviation of an element of each row, as kernels bound it."""
    wide = panel.astype(np.float64)
    if form.is_bf16:
        return np.sqrt(np.sqrt((rows**4).sum(axis=1)) * bf16_variance(wide))
    of_a, of_b = RoundedB.of(form, panel).variance(form)
    steps = np.abs(rows).max(axis=1) / form.levels
    return np.sqrt(steps**2 * of_a + (rows**2).sum(axis=1) * of_b)
