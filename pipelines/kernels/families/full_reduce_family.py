"""What do reductions of long rows cost and compute? The family ``whole``."""

from collections.abc import Mapping
from math import ceil
from random import Random

import numpy as np

from pyc_mlir.pipelines.kernels.families.full_reduce import Whole
from pyc_mlir.pipelines.kernels.lang.language import LINE
from pyc_mlir.pipelines.kernels.lang.values import ROUNDING, SMALLEST
from pyc_mlir.pipelines.kernels.match.offers import Feed, Offer
from pyc_mlir.pipelines.kernels.registry import Arrays, Family, refuse_narrow
from pyc_mlir.pipelines.kernels.shared.reductions import REDUCTIONS, span
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost, roofline
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, nominal, sizes

_SIZES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 200, 1000, 3001)
_SHARE = 1 << 15  # numbers that are worth a workgroup


def refusal(knobs: Whole, target: Target) -> str:
    """Nothing beyond what every family asks for."""
    return refuse_narrow(target)


def cost(knobs: Whole, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Each number is read once."""
    rows, numbers = (d if isinstance(d, int) else sizes[d] for d in (knobs.rows, knobs.numbers))
    flops, traffic = rows * numbers, 4 * rows * (numbers + knobs.parts)
    return roofline(flops, traffic, target.peak_flops, target.peak_bandwidth)


def reference(knobs: Whole, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """The exact result in f64, and the error that a kernel may have, element by element."""
    x = np.asarray(arrays[0], np.float64)
    rows, numbers = x.shape
    lines = ceil(ceil(numbers / knobs.parts) / LINE)
    size = lines * LINE if knobs.parts > 1 else numbers
    identity = REDUCTIONS[knobs.operation][1]
    padded = np.full((rows, knobs.parts * size), identity)
    padded[:, :numbers] = x[:, : padded.shape[1]]
    parts = padded.reshape(rows, knobs.parts, size)
    with np.errstate(all="ignore"):
        if knobs.operation in ("max", "min"):
            y = parts.max(2) if knobs.operation == "max" else parts.min(2)
            return y, np.zeros_like(y)
        # Chunk after chunk, and within a chunk the rows of vectors: 4 lanes are the narrowest.
        within = min(size, knobs.chunk) / (4 * knobs.unroll) + 12 + knobs.unroll
        steps = size / knobs.chunk + within + 2
        y, bound = parts.sum(2), steps * ROUNDING * np.abs(parts).sum(2)
        if knobs.operation == "mean":
            y, bound = y / numbers, bound / numbers
    return y, bound + 2 * ROUNDING * np.abs(y) + SMALLEST


def sample(random: Random, target: Target) -> tuple[Whole, list[Arrays]]:
    """Random knobs and three calls: other values each, other sizes where these are dynamic.

    A part without numbers is the identity, infinite for max and min, which have but one here.
    """
    operation = random.choice(list(REDUCTIONS))
    knobs = Whole(
        operation,
        random.choice((random.choice(_SIZES[:6]), "m")),
        random.choice((random.choice(_SIZES), "n")),
        parts=1 if operation in ("max", "min") else random.choice((1, 2, 5)),
        rows_per_workgroup=random.choice((1, 4)),
        chunk=random.choice((1, 16, 100, 16384)),
        unroll=random.choice((1, 4, 8)),
    )
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _arrays(knobs: Whole, random: Random) -> Arrays:
    rows = random.choice(_SIZES[:6]) if isinstance(knobs.rows, str) else knobs.rows
    numbers = random.choice(_SIZES) if isinstance(knobs.numbers, str) else knobs.numbers
    values = np.random.default_rng(random.randrange(1 << 30))
    x = values.normal(random.choice((0, 3)), random.choice((0.1, 1, 20)), (rows, numbers))
    return [x.astype(np.float32)]


def match(work: Work, target: Target) -> list[Offer]:
    """A kernel for the first op of a group: all dimensions, or the last ones, are reduced.

    Rows that the family ``rows`` takes are left to it. A row is not cut into parts: one kernel
    makes the result.
    """
    node = work.nodes[0]
    found = span(work, node)
    if found is None:
        return []
    shape = work.type(node.operands[0]).shape
    if sizes(shape[found.last :]) != 1 or _is_short(shape, found.first, target):
        return []
    before, reduced = shape[: found.first], shape[found.first :]
    rows, numbers = sizes(before), sizes(reduced)
    share = min(64, max(1, _SHARE // nominal(reduced)), -(-nominal(before) // target.cores))
    others = {"rows_per_workgroup": share}
    knobs = Whole(
        found.operation,
        "m" if rows is None else rows,
        "n" if numbers is None else numbers,
        **others,
    )
    if refusal(knobs, target):
        return []
    taken = dict.fromkeys("mn", NOMINAL_DIMENSION)
    feed = Feed(node.operands[0], (found.first,))
    return [Offer(knobs, 1, (feed,), cost(knobs, target, taken))]


def _is_short(shape: tuple[int | None, ...], first: int, target: Target) -> bool:
    """Is only the last dimension reduced, and does the second-level cache hold it?"""
    last = shape[-1]
    return first == len(shape) - 1 and last is not None and 4 * last <= target.l2_bytes


FAMILY = Family("whole", Whole, refusal, cost, reference, sample, match)
