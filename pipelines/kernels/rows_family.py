"""What do row kernels cost and compute? The family ``rows``: its cost, its reference, its bound.

The bounds follow from the order of the additions: a row of n numbers is summed in `unroll`
vectors, so that n / (unroll * lanes) additions follow each other, and a tree of the rest.
"""

from collections.abc import Mapping
from random import Random

import numpy as np

from pyc_mlir.pipelines.cost import Cost, roofline
from pyc_mlir.pipelines.kernels.matching import Feed, Node, Offer, Work, is_f32, nominal, sizes
from pyc_mlir.pipelines.kernels.registry import Arrays, Family, refuse_narrow
from pyc_mlir.pipelines.kernels.rows import NORMS, OPERATIONS, REDUCTIONS, Rows
from pyc_mlir.pipelines.target import Target

ROUNDING = 2.0**-24
SMALLEST = 2.0**-126
_FLOPS = {"softmax": 24, "layernorm": 9, "rmsnorm": 6}
_SIZES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 129, 200, 257, 400)


def refusal(knobs: Rows, target: Target) -> str:
    """Rows that no cache holds would be read from memory several times."""
    columns = knobs.columns
    if isinstance(columns, int) and 4 * columns > target.l2_bytes:
        expected = f"expected rows of at most {target.l2_bytes} bytes (L2)"
        return f"{knobs.operation}: {expected}, got {4 * columns}; IREE's code is used"
    return refuse_narrow(target)


def cost(knobs: Rows, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Each number is read once and, unless it is reduced, written once."""
    rows, columns = (d if isinstance(d, int) else sizes[d] for d in (knobs.rows, knobs.columns))
    written = rows if knobs.operation in REDUCTIONS else rows * columns
    flops = _FLOPS.get(knobs.operation, 1) * rows * columns
    traffic = 4 * (rows * columns + written)
    return roofline(flops, traffic, target.peak_flops, target.peak_bandwidth)


def reference(knobs: Rows, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """The exact result in f64, and the error that a kernel may have, element by element."""
    x, *weights = (np.asarray(a, np.float64) for a in arrays)
    with np.errstate(all="ignore"):
        if knobs.operation == "softmax":
            return _softmax(knobs, x)
        if knobs.operation in NORMS:
            return _norm(knobs, x, *weights)
        return _reduction(knobs, x)


def _steps(knobs: Rows, x: np.ndarray) -> float:
    """Roundings that a sum along a row may see, with 8 lanes: the narrowest vectors."""
    return x.shape[1] / (8 * knobs.unroll) + 12 + knobs.unroll


def _softmax(knobs: Rows, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    below = x - x.max(1, keepdims=True)
    power = np.exp(below)
    y = power / power.sum(1, keepdims=True)
    return y, y * (np.abs(below) + _steps(knobs, x) + 8) * ROUNDING + 2 * SMALLEST


def _norm(
    knobs: Rows, x: np.ndarray, scale: np.ndarray, shift: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    steps = _steps(knobs, x)
    centre = 0.0 if shift is None else x.mean(1, keepdims=True)
    slip = 0.0 if shift is None else steps * ROUNDING * np.abs(x).mean(1, keepdims=True)
    far = x - centre
    factor = 1 / np.sqrt((far * far).mean(1, keepdims=True) + knobs.epsilon)
    y = far * factor * scale + (0.0 if shift is None else shift)
    # What the mean is off moves each number; it changes the spread in the second order only, but
    # the roundings of x - mean do so in the first.
    moved = (slip + ROUNDING * np.abs(far)) * factor
    spread = np.abs(far * factor) * ((steps + 8) * ROUNDING + moved.max(1, keepdims=True) ** 2)
    bound = (moved + spread) * np.abs(scale) + 2 * ROUNDING * np.abs(y)
    return y, bound + (0.0 if shift is None else ROUNDING * np.abs(shift)) + SMALLEST


def _reduction(knobs: Rows, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if knobs.operation in ("max", "min"):
        y = x.max(1) if knobs.operation == "max" else x.min(1)
        return y, np.zeros_like(y)
    y, bound = x.sum(1), _steps(knobs, x) * ROUNDING * np.abs(x).sum(1)
    if knobs.operation == "mean":
        y, bound = y / x.shape[1], bound / x.shape[1]
    return y, bound + 2 * ROUNDING * np.abs(y) + SMALLEST


def sample(random: Random) -> tuple[Rows, list[Arrays]]:
    """Random knobs and three calls: other values each, other sizes where these are dynamic."""
    rows, columns = random.choice(_SIZES[:12]), random.choice(_SIZES)
    operation = random.choice(OPERATIONS)
    knobs = Rows(
        operation,
        random.choice((rows, "m")),
        random.choice((columns, "n")),
        rows_per_workgroup=random.choice((1, 4, 64)),
        unroll=random.choice((1, 2, 4)),
        ahead=random.choice((0, 2)),
        in_place=operation not in REDUCTIONS and random.random() < 0.2,
    )
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _arrays(knobs: Rows, random: Random) -> Arrays:
    rows = random.choice(_SIZES[:12]) if isinstance(knobs.rows, str) else knobs.rows
    columns = random.choice(_SIZES) if isinstance(knobs.columns, str) else knobs.columns
    values = np.random.default_rng(random.randrange(1 << 30))
    x = values.normal(random.choice((0, 3)), random.choice((0.1, 1, 20)), (rows, columns))
    weights = [
        values.normal(size=columns)
        for _ in range({"layernorm": 2, "rmsnorm": 1}.get(knobs.operation, 0))
    ]
    return [a.astype(np.float32) for a in (x, *weights)]


def match(work: Work, target: Target) -> list[Offer]:
    """A kernel for the first op of a group, where it works along the last dimension in f32."""
    node = work.nodes[0]
    operation = node.name.removeprefix("reduce_")
    if operation not in OPERATIONS or not is_f32(work, node.operands):
        return []
    x = work.type(node.operands[0])
    rows, columns = sizes(x.shape[:-1]), x.shape[-1] if x.rank else None
    if not _along_rows(node, x.rank) or 0 in (rows, columns) or columns is None:
        return []
    others = {"epsilon": node.params["epsilon"]} if operation in NORMS else {}
    share = min(64, max(1, -(-(rows or 64) // target.cores)))
    knobs = Rows.on(target, operation, rows or "m", columns, rows_per_workgroup=share, **others)
    if refusal(knobs, target):
        return []
    feeds = (Feed.matrix(work, node.operands[0]), *(Feed(v) for v in node.operands[1:]))
    return [Offer(knobs, 1, feeds, cost(knobs, target, {"m": nominal(x.shape[:-1])}))]


def _along_rows(node: Node, rank: int) -> bool:
    """Does an op work along the last dimension alone?"""
    axes = node.params["axes"] if "axes" in node.params else (node.params["axis"],)
    return rank > 0 and axes is not None and [a % rank for a in axes] == [rank - 1]


FAMILY = Family("rows", Rows, refusal, cost, reference, sample, match)
