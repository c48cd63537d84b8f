"""What does argmax along rows cost and compute? The family ``argmax``."""

from collections.abc import Mapping
from random import Random

import numpy as np

from pyc_mlir.pipelines.kernels.families.argmax import OPERATIONS, Argmax
from pyc_mlir.pipelines.kernels.match.offers import Feed, Offer
from pyc_mlir.pipelines.kernels.registry import LENGTHS, Arrays, Family, refuse_narrow
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost, roofline
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, is_f32, nominal, sizes

_FLOPS = 3  # a comparison that heeds NaN


def refusal(knobs: Argmax, target: Target) -> str:
    """Nothing beyond what every family asks for."""
    return refuse_narrow(target)


def cost(knobs: Argmax, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Each number is read once from memory; places are of eight bytes."""
    rows, columns = (d if isinstance(d, int) else sizes[d] for d in (knobs.rows, knobs.columns))
    flops, traffic = _FLOPS * rows * columns, rows * (4 * columns + 8)
    return roofline(flops, traffic, target.peak_flops, target.peak_bandwidth)


def reference(knobs: Argmax, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """The places, which are exact."""
    find = np.argmax if knobs.operation == "argmax" else np.argmin
    y = find(arrays[0], axis=1)
    return y, np.zeros(y.shape)


def sample(random: Random, target: Target) -> tuple[Argmax, list[Arrays]]:
    """Random knobs and three calls: other values each, other sizes where these are dynamic."""
    knobs = Argmax(
        random.choice(OPERATIONS),
        random.choice((random.choice(LENGTHS[:12]), "m")),
        random.choice((random.choice(LENGTHS), "n")),
        rows_per_workgroup=random.choice((1, 4, 64)),
        chunk=random.choice((1, 16, 50, 2048)),
        unroll=random.choice((1, 2, 4)),
    )
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _arrays(knobs: Argmax, random: Random) -> Arrays:
    """Few different numbers, so that many are equal, and now and then an infinity or NaN."""
    rows = random.choice(LENGTHS[:12]) if isinstance(knobs.rows, str) else knobs.rows
    columns = random.choice(LENGTHS) if isinstance(knobs.columns, str) else knobs.columns
    values = np.random.default_rng(random.randrange(1 << 30))
    x = values.integers(-3, random.choice((-2, 3, 300)), (rows, columns)).astype(np.float32)
    odd = np.float32(random.choice((np.nan, np.inf, -np.inf, 0.0)))
    return [np.where(values.random(x.shape) < random.choice((0, 0.01, 0.3)), odd, x)]


def match(work: Work, target: Target) -> list[Offer]:
    """A kernel for the first op of a group, argmax of f32 along the last dimension."""
    node = work.nodes[0]
    if node.name != "argmax" or not is_f32(work, node.operands):
        return []
    shape = work.type(node.operands[0]).shape
    axis = node.params["axis"] % len(shape)
    rows, columns = sizes(shape[:axis]), shape[axis]
    # An empty row has no largest number: IREE's code checks rows of unknown length for that.
    if 0 in shape or sizes(shape[axis + 1 :]) != 1 or columns is None:
        return []
    share = min(64, max(1, -(-nominal(shape[:axis]) // target.cores)))
    knobs = Argmax(
        "argmax",
        "m" if rows is None else rows,
        columns,
        rows_per_workgroup=share,
    )
    if refusal(knobs, target):
        return []
    taken = {"m": NOMINAL_DIMENSION}
    feed = Feed(node.operands[0], (axis,))
    return [Offer(knobs, 1, (feed,), cost(knobs, target, taken))]


FAMILY = Family("argmax", Argmax, refusal, cost, reference, sample, match)
