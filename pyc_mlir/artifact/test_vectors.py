"""Test vectors that travel with an artifact: seeded inputs, reference results, tolerances.

A machine without a compiler has no reference to ask. So a compile under `max_error` asks it for a
few samples, and whoever loads the artifact runs the program on the same inputs and compares, before
any answer leaves. Inputs are not stored: they follow from a seed and the sizes of the dynamic
dimensions, by the raw stream of PCG64, which numpy keeps stable (NEP 19).
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod
from typing import Any

import numpy as np

from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.numerics.rounding import roundoff
from pyc_mlir.dialects.types import BOOL, is_float
from pyc_mlir.dialects.util.json_input import parse_json

# Sizes that dynamic dimensions are tried with: beside vector widths, within one, and 1.
SIZES = (5, 18, 1, 4, 16, 8, 2, 3)
# Of all combinations of them.
MOST_TRIES = 64
_END_OF_HEAD = b"\n"
# Seeds of samples with edge values, the second without NaN and infinities.
EDGES, FINITE_EDGES = 3, 5


@dataclass(frozen=True, eq=False)
class ExpectedResult:
    """A result of the reference, and how far a correct program may be (f32, the same shape).

    An infinite tolerance says that rounding decides: the element is not compared. Where it decides
    on all of them, their number may be another.
    """

    value: np.ndarray
    tolerance: np.ndarray

    @property
    def compared(self) -> np.ndarray:
        """Which elements are compared."""
        return np.isfinite(self.tolerance)


@dataclass(frozen=True, eq=False)
class Sample:
    """Inputs by seed and sizes of dimensions, and the results that are expected."""

    seed: int
    sizes: Mapping[str, int]
    outputs: tuple[ExpectedResult, ...]


@dataclass(frozen=True)
class WorstError:
    """The worst of a comparison: the greatest error as a share of what is allowed, and where.

    `wrong` says why the result cannot be right; empty if nothing contradicts it.
    """

    worst: float
    compared: int
    wrong: str = ""


def compare(
    got: Sequence[np.ndarray], expected: Sequence[ExpectedResult], max_error: float | None = None
) -> WorstError:
    """Compare results, each with what is expected of it.

    max_error: the greatest difference as a share of the greatest finite |element| expected; the
    tolerances hold besides.
    """
    worst, compared, wrong = 0.0, 0, ""
    for i, (array, want) in enumerate(zip(got, expected, strict=True)):
        if array.shape != want.value.shape or array.dtype != want.value.dtype:
            alike = array.dtype == want.value.dtype and array.ndim == want.value.ndim
            if alike and want.value.size and not want.compared.any():
                continue
            found = f"{array.dtype}{list(array.shape)}"
            needed = f"{want.value.dtype}{list(want.value.shape)}"
            return WorstError(np.inf, 0, f"result {i}: expected {needed}, got {found}")
        ratio = _ratios(array, want, max_error)
        compared += int(want.compared.sum())
        if ratio.size and float(ratio.max()) > worst:
            worst = float(ratio.max())
            if worst > 1 and not wrong:
                place = np.unravel_index(int(ratio.argmax()), ratio.shape)
                wrong = (
                    f"result {i}{list(map(int, place))}: expected {want.value[place]} within "
                    f"{_limits(want, max_error)[place]:.3g}, got {array[place]} "
                    f"({int((ratio > 1).sum())} of {ratio.size} elements)"
                )
    return WorstError(worst, compared, wrong)


def _limits(want: ExpectedResult, max_error: float | None) -> np.ndarray:
    limits = want.tolerance.astype(np.float64)
    if max_error is None or not is_float(want.value.dtype):
        return limits
    sizes = np.abs(want.value.astype(np.float64))
    return np.minimum(limits, max_error * sizes.max(where=np.isfinite(sizes), initial=0.0))


def _ratios(got: np.ndarray, want: ExpectedResult, max_error: float | None) -> np.ndarray:
    """Return each difference as a share of its limit; 0 where nothing is compared."""
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), want.value.astype(np.float64)
        same = (got == want.value) | (np.isnan(a) & np.isnan(b))
        difference = np.abs(a - b)
        limits = _limits(want, max_error)
        # Integers beyond 2^53 may differ and look equal as f64.
        ratio = np.where(difference > 0, difference / limits, np.inf)
        ratio = np.where(np.isnan(ratio) | np.isnan(difference), np.inf, ratio)
    return np.where(same | ~want.compared, 0.0, ratio)


def make_inputs(signature: Signature, seed: int, sizes: Mapping[str, int]) -> list[np.ndarray]:
    """Return the arrays of a sample; `sizes` are those of the dynamic dimensions
    (`SignatureEntry.dynamic`).

    Even seeds give f32-like values in [-2, 2), odd ones multiples of 1/4 in [-4, 4], where ties,
    zeros and whole numbers are common. Integers lie in [-4, 28), to serve as indices too. `EDGES`
    and `FINITE_EDGES` add edge values to those: both zeros, numbers that 1 absorbs, NaN,
    infinities, the ends of an integer type. Indices with a declared range keep it. Subnormal
    numbers are none, since a function may have a step between them and 0.
    """
    arrays = []
    for i, argument in enumerate(signature.inputs):
        names = argument.dynamic
        shape = tuple(
            d if isinstance(d, int) else sizes[names[axis]] for axis, d in enumerate(argument.shape)
        )
        _require_memory(shape, argument)
        stream = np.random.PCG64([seed, i])
        raw = np.asarray(stream.random_raw(int(np.prod(shape, dtype=int))), np.uint64)
        values = _values(raw, argument.dtype, seed)
        if seed in (EDGES, FINITE_EDGES) and raw.size:
            _add_edges(values, raw, seed == FINITE_EDGES)
        arrays.append(values.reshape(shape))
    for range_ in signature.indices:
        array, (low, high) = arrays[range_.input], range_.of(arrays)
        low = max(low, np.iinfo(array.dtype).min)
        # An axis of size 0 has no index at all.
        array[...] = (array.astype(np.int64) - low) % max(high - low + 1, 1) + low
    return arrays


def _require_memory(shape: Sequence[int], argument: SignatureEntry) -> None:
    """Raise PycError (RUNTIME_FAILED) for an input of a sample that this machine cannot hold."""
    needed = prod(shape) * np.dtype(np.uint64).itemsize
    held = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > held:
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            f"samples: expected a machine that can hold {needed} bytes, as an input "
            f"`{argument.name}` of {list(shape)} is made of, got one with {held} bytes of memory",
        )


def _values(raw: np.ndarray, dtype: np.dtype, seed: int) -> np.ndarray:
    if dtype == BOOL:
        return (raw >> np.uint64(63)).astype(dtype)
    if not is_float(dtype):
        return (((raw >> np.uint64(40)) % np.uint64(32)).astype(np.int64) - 4).astype(dtype)
    if seed % 2:
        return (((raw >> np.uint64(40)) % np.uint64(33)).astype(np.float64) / 4 - 4).astype(dtype)
    return ((raw >> np.uint64(11)).astype(np.float64) * 2.0**-51 - 2).astype(dtype)


def _add_edges(values: np.ndarray, raw: np.ndarray, finite: bool) -> None:
    """Put each edge value of the type in the place of another one: once, as NaN spreads."""
    dtype = values.dtype
    if dtype == BOOL:
        return
    if is_float(dtype):
        small = roundoff(dtype)
        made = np.array([0.0, -0.0, small, -small, *(() if finite else (np.nan, np.inf, -np.inf))])
        made = made.astype(dtype)
    else:
        ends = np.iinfo(dtype)
        made = np.array([0, 1, ends.min, ends.max], dtype)
    turn, first = int(raw[0] % np.uint64(len(made))), int(raw[0] >> np.uint64(8))
    places = first + np.arange(len(made)) * max(1, values.size // len(made))
    values[places % values.size] = np.roll(made, turn)


def candidate_sizes(signature: Signature) -> list[Mapping[str, int]]:
    """Sizes of all dynamic dimensions, within their declared ranges; one entry without any.

    All alike come first, then combinations.
    """
    names = list(dict.fromkeys(n for a in signature.inputs for n in a.dynamic.values()))
    if not names:
        return [{}]

    def within(choice: Sequence[int]) -> Mapping[str, int]:
        ends = [
            signature.ranges.get(name, (0, size)) for name, size in zip(names, choice, strict=True)
        ]
        return {
            n: min(max(s, low), high) for n, s, (low, high) in zip(names, choice, ends, strict=True)
        }

    several = (c for c in product(SIZES, repeat=len(names)) if len(set(c)) > 1)
    choices = [(size,) * len(names) for size in SIZES]
    choices += islice(several, MOST_TRIES - len(SIZES))
    found = {tuple(sizes.items()): sizes for sizes in map(within, choices)}
    return list(found.values())


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"expected a whole number from 0, got {value!r:.80}")
    return value


def _require_tried(sizes: Mapping[str, int], signature: Signature) -> None:
    """Raise ValueError for sizes that no compile tries: whoever loads would make such inputs."""
    names = {n for a in signature.inputs for n in a.dynamic.values()}
    for name in names:
        low, high = signature.ranges.get(name, (0, max(SIZES)))
        if not low <= sizes.get(name, -1) <= min(high, max(low, *SIZES)):
            raise ValueError(f"expected a size of `{name}` that is tried, got {sizes.get(name)}")


@dataclass(frozen=True, eq=False)
class Samples:
    """All samples of an artifact."""

    samples: tuple[Sample, ...] = ()

    @property
    def sha256(self) -> str:
        """Of the content."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Return a line of JSON (seeds, sizes, shapes), then values and tolerances, one after
        another.
        """
        head: list[dict[str, Any]] = []
        blobs: list[bytes] = []
        for sample in self.samples:
            shapes = [list(o.value.shape) for o in sample.outputs]
            head.append({"seed": sample.seed, "sizes": dict(sample.sizes), "shapes": shapes})
            for output in sample.outputs:
                blobs += [output.value.tobytes(), output.tolerance.astype(np.float32).tobytes()]
        return json.dumps(head, sort_keys=True).encode() + _END_OF_HEAD + b"".join(blobs)

    @staticmethod
    def from_bytes(data: bytes, signature: Signature) -> "Samples":
        """Read what `to_bytes` wrote for a program of this signature.

        Raises ValueError, KeyError or TypeError for anything else.
        """
        if not data:
            return Samples()
        head, _, rest = data.partition(_END_OF_HEAD)
        found, at = [], 0
        for entry in parse_json(head):
            outputs = []
            for sizes, result in zip(entry["shapes"], signature.outputs, strict=True):
                shape = tuple(map(_size, sizes))
                count = prod(shape)
                if count > len(rest):
                    raise ValueError(f"{count} elements in {len(rest)} bytes")
                value = np.frombuffer(rest, result.dtype, count, at).reshape(shape)
                at += value.nbytes
                tolerance = np.frombuffer(rest, np.float32, count, at).reshape(shape)
                at += tolerance.nbytes
                outputs.append(ExpectedResult(value, tolerance))
            chosen = {str(n): _size(s) for n, s in entry["sizes"].items()}
            _require_tried(chosen, signature)
            found.append(Sample(_size(entry["seed"]), chosen, tuple(outputs)))
        if at != len(rest):
            raise ValueError(f"{len(rest) - at} bytes more than the samples have")
        return Samples(tuple(found))
