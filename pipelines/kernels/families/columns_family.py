"""What do column kernels cost and compute? The family ``columns``: cost, reference, bound, offers.

Of n rows, `at_once` are added by a tree and n / at_once such sums one after the other, which is
what the bound counts.
"""

from collections.abc import Mapping
from math import ceil, log2
from random import Random

import numpy as np

from pyc_mlir.pipelines.kernels.families.columns import FEW, Columns
from pyc_mlir.pipelines.kernels.lang.values import ROUNDING, SMALLEST
from pyc_mlir.pipelines.kernels.match.offers import Feed, Offer
from pyc_mlir.pipelines.kernels.registry import LENGTHS, Arrays, Family, refuse_narrow
from pyc_mlir.pipelines.kernels.shared.reductions import REDUCTIONS, span
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost, roofline
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, sizes


def refusal(knobs: Columns, target: Target) -> str:
    """Results that are kept in registers must fit them."""
    if reason := refuse_narrow(target):
        return reason
    if knobs.registers and isinstance(knobs.columns, int):
        vectors = -(-4 * knobs.columns // target.vector_bytes)
        if vectors > FEW:
            return f"columns: expected at most {FEW} vectors in registers, got {vectors}"
    return ""


def cost(knobs: Columns, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Each number is read once; the results stay in cache until they are complete."""
    dims = (knobs.outer, knobs.reduced, knobs.columns)
    outer, reduced, columns = (d if isinstance(d, int) else sizes[d] for d in dims)
    flops, traffic = outer * reduced * columns, 4 * outer * (reduced + 1) * columns
    return roofline(flops, traffic, target.peak_flops, target.peak_bandwidth)


def reference(knobs: Columns, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """The exact result in f64, and the error that a kernel may have, element by element."""
    x = np.asarray(arrays[0], np.float64)
    with np.errstate(all="ignore"):
        if knobs.operation in ("max", "min"):
            y = x.max(1) if knobs.operation == "max" else x.min(1)
            return y, np.zeros_like(y)
        steps = x.shape[1] / knobs.at_once + ceil(log2(knobs.at_once)) + knobs.at_once
        y, bound = x.sum(1), steps * ROUNDING * np.abs(x).sum(1)
        if knobs.operation == "mean":
            y, bound = y / x.shape[1], bound / x.shape[1]
    return y, bound + 2 * ROUNDING * np.abs(y) + SMALLEST


def sample(random: Random, target: Target) -> tuple[Columns, list[Arrays]]:
    """Random knobs and three calls: other values each, other sizes where these are dynamic."""
    registers = random.random() < 0.3
    most = FEW * target.vector_bytes // 4 if registers else LENGTHS[-1]
    columns = random.choice([size for size in LENGTHS if size <= most])
    knobs = Columns(
        random.choice(list(REDUCTIONS)),
        random.choice((random.choice(LENGTHS[:5]), "o")),
        random.choice((random.choice(LENGTHS), "n")),
        columns if registers else random.choice((columns, "c")),
        strip=400 if registers else random.choice((1, 16, 48, 100, 4096)),
        outers=random.choice((1, 2, 3)),
        at_once=random.choice((1, 2, 5, 8)),
        unroll=random.choice((1, 2, 4)),
        registers=registers,
    )
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _arrays(knobs: Columns, random: Random) -> Arrays:
    dims = ((knobs.outer, LENGTHS[:5]), (knobs.reduced, LENGTHS), (knobs.columns, LENGTHS))
    shape = [random.choice(choices) if isinstance(d, str) else d for d, choices in dims]
    values = np.random.default_rng(random.randrange(1 << 30))
    x = values.normal(random.choice((0, 3)), random.choice((0.1, 1, 20)), shape)
    return [x.astype(np.float32)]


def match(work: Work, target: Target) -> list[Offer]:
    """A kernel for the first op of a group, a reduction of leading or middle dimensions."""
    found = span(work, work.nodes[0])
    if found is None:
        return []
    value = work.nodes[0].operands[0]
    shape = work.type(value).shape
    groups = (shape[: found.first], shape[found.first : found.last], shape[found.last :])
    outer, reduced, columns = (
        d if (d := sizes(g)) is not None else name for g, name in zip(groups, "onc", strict=True)
    )
    if columns == 1:
        return []
    knobs = Columns.on(target, found.operation, outer, reduced, columns)
    if refusal(knobs, target):
        return []
    taken = {n: NOMINAL_DIMENSION for n in "onc"}
    return [Offer(knobs, 1, (Feed(value, found.cuts),), cost(knobs, target, taken))]


FAMILY = Family("columns", Columns, refusal, cost, reference, sample, match)
