"""What do row kernels cost and compute? The family ``rows``: its cost, its reference, its bound.

The bounds follow from the order of the additions: a row of n numbers is summed in `unroll`
vectors, so that n / (unroll * lanes) additions follow each other, and a tree of the rest.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from random import Random
from typing import Any

import numpy as np

from pyc_mlir.pipelines.kernels.families.rows import EXPONENTIALS, OPERATIONS, WEIGHTS, Rows
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, Pointwise, evaluate
from pyc_mlir.pipelines.kernels.lang.values import ROUNDING, SMALLEST
from pyc_mlir.pipelines.kernels.match.offers import Feed, Offer
from pyc_mlir.pipelines.kernels.match.pointwise import Found, View, find, longest, sources
from pyc_mlir.pipelines.kernels.match.pointwise_samples import random_program, random_reads
from pyc_mlir.pipelines.kernels.registry import LENGTHS, Arrays, Family, refuse_narrow
from pyc_mlir.pipelines.kernels.shared.reductions import REDUCTIONS
from pyc_mlir.pipelines.target.cost import Cost, roofline
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Node, Work, is_f32, nominal

_FLOPS = {"softmax": 24, "log_softmax": 24, "layernorm": 9, "rmsnorm": 6}
Exact = tuple[np.ndarray, np.ndarray]


def refusal(knobs: Rows, target: Target) -> str:
    """Rows that no cache holds would be read from memory several times."""
    columns = knobs.columns
    if isinstance(columns, int) and 4 * columns > target.l2_bytes:
        expected = f"expected rows of at most {target.l2_bytes} bytes (L2)"
        return f"{knobs.operation}: {expected}, got {4 * columns}"
    return refuse_narrow(target)


def cost(knobs: Rows, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Each number is read once and, unless it is reduced, written once."""
    rows, columns = (d if isinstance(d, int) else sizes[d] for d in (knobs.rows, knobs.columns))
    across = 1 if knobs.operation in REDUCTIONS else columns
    flops = (_FLOPS.get(knobs.operation, 1) + knobs.prologue.flops) * rows * columns
    flops += knobs.epilogue.flops * rows * across
    traffic = 4 * rows * (columns + across)
    traffic += knobs.prologue.read_bytes(rows, columns) + knobs.epilogue.read_bytes(rows, across)
    return roofline(flops, traffic, target.peak_flops, target.peak_bandwidth)


def reference(knobs: Rows, arrays: Arrays) -> Exact:
    """The exact result in f64, and the error that a kernel may have, element by element."""
    x, *others = (np.asarray(a, np.float64) for a in arrays)
    first = len(knobs.prologue.reads)
    second = first + len(WEIGHTS.get(knobs.operation, ()))
    x, off = evaluate(knobs.prologue, x, others[:first])
    with np.errstate(all="ignore"):
        if knobs.operation in EXPONENTIALS:
            y, bound = _exponential(knobs, x, off)
        elif knobs.operation in WEIGHTS:
            y, bound = _norm(knobs, x, off, *others[first:second])
        else:
            y, bound = (v[:, None] for v in _reduction(knobs, x, off))
    bound = np.where(np.isnan(bound), np.inf, bound)
    y, bound = evaluate(knobs.epilogue, y, others[second:], bound)
    return (y[:, 0], bound[:, 0]) if knobs.operation in REDUCTIONS else (y, bound)


def _steps(knobs: Rows, x: np.ndarray) -> float:
    """Roundings that a sum along a row may see, with 4 lanes: the narrowest vectors."""
    return x.shape[1] / (4 * knobs.unroll) + 12 + knobs.unroll


def _exponential(knobs: Rows, x: np.ndarray, off: np.ndarray) -> Exact:
    """Of softmax or its logarithm; `off` is the error of x."""
    below = x - x.max(1, keepdims=True)
    power = np.exp(below)
    total = power.sum(1, keepdims=True)
    y, steps = power / total, _steps(knobs, x) + 8
    moved = off + np.log((y * np.exp(off)).sum(1, keepdims=True))
    # An infinite distance is exact.
    near = np.where(np.isinf(below), 0.0, np.abs(below))
    if knobs.operation == "softmax":
        return y, y * (np.expm1(moved) + (near + steps) * ROUNDING) + 2 * SMALLEST
    share = np.log(total)
    weighed = (y * near).sum(1, keepdims=True)
    bound = moved + (near + weighed + steps + np.abs(share)) * ROUNDING
    return below - share, bound + ROUNDING * (near + share) + SMALLEST


def _norm(
    knobs: Rows,
    x: np.ndarray,
    off: np.ndarray,
    scale: np.ndarray,
    shift: np.ndarray | None = None,
) -> Exact:
    steps = _steps(knobs, x)
    centre = 0.0 if shift is None else x.mean(1, keepdims=True)
    slip = 0.0 if shift is None else steps * ROUNDING * np.abs(x).mean(1, keepdims=True)
    far = x - centre
    factor = 1 / np.sqrt((far * far).mean(1, keepdims=True) + knobs.epsilon)
    unit = far * factor
    y = unit * scale + (0.0 if shift is None else shift)
    # What the mean is off moves each number; it changes the spread in the second order only, but
    # the roundings of x - mean and what x is off do so in the first.
    moved = (slip + ROUNDING * np.abs(far)) * factor
    spread = np.abs(unit) * ((steps + 8) * ROUNDING + moved.max(1, keepdims=True) ** 2)
    common = 0.0 if shift is None else off.mean(1, keepdims=True)
    carried = off + common + np.abs(unit) * (np.abs(unit) * off).mean(1, keepdims=True)
    bound = (moved + spread + factor * carried) * np.abs(scale) + 2 * ROUNDING * np.abs(y)
    return y, bound + (0.0 if shift is None else ROUNDING * np.abs(shift)) + SMALLEST


def _reduction(knobs: Rows, x: np.ndarray, off: np.ndarray) -> Exact:
    if knobs.operation in ("max", "min"):
        return x.max(1) if knobs.operation == "max" else x.min(1), off.max(1)
    y, bound = x.sum(1), _steps(knobs, x) * ROUNDING * np.abs(x).sum(1) + off.sum(1)
    if knobs.operation == "mean":
        y, bound = y / x.shape[1], bound / x.shape[1]
    return y, bound + 2 * ROUNDING * np.abs(y) + SMALLEST


def sample(random: Random, target: Target) -> tuple[Rows, list[Arrays]]:
    """Random knobs and three calls: other values each, other sizes where these are dynamic."""
    rows, columns = random.choice(LENGTHS[:12]), random.choice(LENGTHS)
    operation = random.choice(OPERATIONS)
    reduces = operation in REDUCTIONS
    knobs = Rows(
        operation,
        random.choice((rows, "m")),
        random.choice((columns, "n")),
        rows_per_workgroup=random.choice((1, 4, 64)),
        unroll=random.choice((1, 2, 4)),
        ahead=random.choice((0, 2)),
        in_place=not reduces and random.random() < 0.2,
        prologue=random_program(random, 2, choices=False) if random.random() < 0.4 else NOTHING,
        epilogue=random_program(random, 3, columns=not reduces),
    )
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _arrays(knobs: Rows, random: Random) -> Arrays:
    rows = random.choice(LENGTHS[:12]) if isinstance(knobs.rows, str) else knobs.rows
    columns = random.choice(LENGTHS) if isinstance(knobs.columns, str) else knobs.columns
    values = np.random.default_rng(random.randrange(1 << 30))
    x = values.normal(random.choice((0, 3)), random.choice((0.1, 1, 20)), (rows, columns))
    weights = [values.normal(size=columns) for _ in WEIGHTS.get(knobs.operation, ())]
    before = random_reads(knobs.prologue, rows, columns, random)
    after = random_reads(knobs.epilogue, rows, columns, random)
    return [a.astype(np.float32) for a in (x, *before, *weights, *after)]


def match(work: Work, target: Target) -> list[Offer]:
    """A kernel for the first op that works along rows, with the elementwise ops around it.

    What comes before it must be its prologue; of what follows, as much as an epilogue can do.
    """
    anchor = next((n for n, node in enumerate(work.nodes) if _operation(node)), None)
    if anchor is None or not is_f32(work, work.nodes[anchor].operands):
        return []
    node = work.nodes[anchor]
    x, *weights = node.operands
    shape = work.type(x).shape
    # Knobs have finite numbers only.
    if not isfinite(node.params.get("epsilon", 0.0)):
        return []
    if not _along_rows(node, len(shape)) or 0 in shape or shape[-1] is None:
        return []
    view = View(shape, len(shape) - 1)
    start = _start(work, anchor, view)
    if start is None or any(v >= len(work.inputs) for v in weights):
        return []
    if any(work.type(v).shape != shape[-1:] for v in weights):
        return []
    own, before = start
    reduces = _operation(node) in REDUCTIONS
    result = View(node.type.shape, view.cut) if reduces else view
    covers, after = longest(work, anchor + 1, result)
    if not work.closed(covers):
        return []
    knobs = _knobs(node, view, target, before.program, after.program)
    if refusal(knobs, target):
        return []
    feeds = (Feed(own, (view.cut,)), *before.feeds, *(Feed(v) for v in weights), *after.feeds)
    priced = cost(knobs, target, {"m": nominal(shape[:-1])})
    return [Offer(knobs, covers, feeds, priced)]


def _operation(node: Node) -> str:
    """The operation of row kernels that an op may be, "" for none."""
    operation = node.name.removeprefix("reduce_")
    return operation if operation in OPERATIONS else ""


def _start(work: Work, anchor: int, view: View) -> tuple[int, Found] | None:
    """The value that the kernel reads first, and the ops before the anchor as its prologue."""
    x = work.nodes[anchor].operands[0]
    if anchor == 0:
        return x, Found()
    if x != work.number_of(anchor - 1):
        return None
    for own in sources(work, 0, anchor):
        found = find(work, 0, anchor, own, view)
        if found is not None:
            return own, found
    return None


def _knobs(node: Node, view: View, target: Target, before: Pointwise, after: Pointwise) -> Rows:
    operation, columns = _operation(node), view.columns
    assert columns is not None
    others: dict[str, Any] = {"epsilon": node.params["epsilon"]} if operation in WEIGHTS else {}
    share = min(64, max(1, -(-(view.rows or 64) // target.cores)))
    knobs = Rows.on(target, operation, view.rows or "m", columns, rows_per_workgroup=share)
    return replace(knobs, prologue=before, epilogue=after, **others)


def _along_rows(node: Node, rank: int) -> bool:
    """Does an op work along the last dimension alone?"""
    axes = node.params["axes"] if "axes" in node.params else (node.params["axis"],)
    return rank > 0 and axes is not None and [a % rank for a in axes] == [rank - 1]


FAMILY = Family("rows", Rows, refusal, cost, reference, sample, match)
