"""What do elementwise kernels cost and compute? The family ``elementwise``."""

from collections.abc import Mapping
from random import Random

import numpy as np

from pyc_mlir.pipelines.kernels.families.elementwise import Elementwise
from pyc_mlir.pipelines.kernels.lang.pointwise import evaluate
from pyc_mlir.pipelines.kernels.match.offers import Feed, Offer
from pyc_mlir.pipelines.kernels.match.pointwise import Found, View, find, sources
from pyc_mlir.pipelines.kernels.match.pointwise_samples import random_program, random_reads
from pyc_mlir.pipelines.kernels.registry import Arrays, Family, refuse_narrow
from pyc_mlir.pipelines.target.cost import Cost, roofline
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, nominal
from pyc_mlir.pipelines.target.work import sizes as numbers

# IREE computes these in the code that reads them.
_JOINED_FROM = {"slice", "transpose", "pad", "concat", "gather", "broadcast_to", "iota"}
# Below it a dispatch costs more than its work.
_WORTH_NUMBERS = 1 << 15
# Shorter rows leave most of a vector empty; IREE's code runs across them.
_NARROW = 8
_ROWS = (1, 1, 2, 3, 5, 8, 17)
_COLUMNS = (1, 7, 8, 9, 15, 16, 17, 33, 64, 100, 129, 257, 1000, 4096)


def refusal(knobs: Elementwise, target: Target) -> str:
    """Nothing beyond what every family asks for."""
    return refuse_narrow(target)


def cost(knobs: Elementwise, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Each number is read and written once; a row's last vector counts as a whole one."""
    rows, columns = (d if isinstance(d, int) else sizes[d] for d in (knobs.rows, knobs.columns))
    traffic = 8 * rows * columns + knobs.program.read_bytes(rows, columns)
    lanes = target.vector_bytes // 4
    flops = knobs.program.flops * rows * -(-columns // lanes) * lanes
    return roofline(flops, traffic, target.peak_flops, target.peak_bandwidth)


def reference(knobs: Elementwise, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """The exact result in f64, and the error that a kernel may have, element by element."""
    x, *reads = arrays
    return evaluate(knobs.program, x, reads)


def sample(random: Random, target: Target) -> tuple[Elementwise, list[Arrays]]:
    """Random knobs and three calls: other values each, other sizes where these are dynamic."""
    rows, columns = random.choice((*_ROWS, "m")), random.choice(_COLUMNS)
    knobs = Elementwise(
        rows,
        random.choice((columns, "n")),
        random_program(random, 5),
        rows_part=random.choice((1, 2, 64)),
        columns_part=random.choice((16, 64, 1 << 16)),
        unroll=random.choice((1, 2, 4)),
        streaming=rows == 1 and random.random() < 0.5,
    )
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _arrays(knobs: Elementwise, random: Random) -> Arrays:
    rows = random.choice(_ROWS) if isinstance(knobs.rows, str) else knobs.rows
    columns = random.choice(_COLUMNS) if isinstance(knobs.columns, str) else knobs.columns
    values = np.random.default_rng(random.randrange(1 << 30))
    x = values.normal(0, random.choice((0.1, 1, 5)), (rows, columns)).astype(np.float32)
    return [x, *random_reads(knobs.program, rows, columns, random)]


def match(work: Work, target: Target) -> list[Offer]:
    """A kernel for as many of the group's first ops as are elementwise on one tensor.

    One of the inputs must have the result's shape. The matrix has as long rows as its reads allow;
    short ones are left to IREE.
    """
    if refuse_narrow(target):
        return []
    for covers in range(len(work.nodes), 0, -1):
        shape = work.nodes[covers - 1].type.shape
        if 0 not in shape and work.closed(covers):
            for own in sources(work, 0, covers):
                for cut in range(max(1, len(shape))):
                    view = View(shape, cut)
                    found = None if _narrow(view) else find(work, 0, covers, own, view)
                    if found is not None:
                        return [_offer(work, target, covers, own, view, found)]
    return []


def _narrow(view: View) -> bool:
    return view.rows != 1 and (view.columns or _NARROW) < _NARROW


def _offer(work: Work, target: Target, covers: int, own: int, view: View, found: Found) -> Offer:
    knobs = Elementwise.on(target, view.rows or "m", view.columns or "n", found.program)
    sizes = {"m": nominal(view.shape[: view.cut]), "n": nominal(view.shape[view.cut :])}
    feeds = (Feed(own, (view.cut,)), *found.feeds)
    worth = covers == len(work.nodes) and _is_worth(work, knobs)
    return Offer(knobs, covers, feeds, cost(knobs, target, sizes), worth)


def _is_worth(work: Work, knobs: Elementwise) -> bool:
    """Is IREE's code slower? Where stores past the caches or functions of ours make a difference,
    for groups that IREE would not compute within what makes their inputs or reads their result.
    """
    joined = {i.maker for i in work.inputs} & _JOINED_FROM
    joined |= {r for r in work.readers if r.startswith("reduce_") or r == "slice"}
    small = (numbers(work.nodes[-1].type.shape) or 0) < _WORTH_NUMBERS
    return not joined and not small and (knobs.streaming or knobs.program.heavy)


FAMILY = Family("elementwise", Elementwise, refusal, cost, reference, sample, match)
