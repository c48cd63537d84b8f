"""What do transposes cost, and which permutations are one? The family ``transpose``."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from random import Random

import numpy as np

from pyc_mlir.dialects.types import Shape
from pyc_mlir.pipelines.kernels.families.transpose import Transpose
from pyc_mlir.pipelines.kernels.match.offers import Feed, Offer
from pyc_mlir.pipelines.kernels.registry import Arrays, Family, refuse_narrow
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost, roofline
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, is_f32, sizes

_SIZES = (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 100)
_LEAST_INNER = 8


def refusal(knobs: Transpose, target: Target) -> str:
    """Blocks that are mostly empty, and copies of less than a vector, gain nothing."""
    if reason := refuse_narrow(target):
        return reason
    lanes = target.vector_bytes // 4
    sides = (knobs.rows, knobs.columns) if knobs.inner == 1 else ()
    if any(isinstance(side, int) and side < lanes for side in sides):
        return f"transpose: expected sides of at least {lanes}, got {sides}"
    if isinstance(knobs.inner, int) and 1 < knobs.inner < _LEAST_INNER:
        expected = f"expected rows of at least {_LEAST_INNER}"
        return f"transpose: {expected}, got {knobs.inner}"
    return ""


def cost(knobs: Transpose, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Each number is read and written once."""
    dims = (knobs.batch, knobs.rows, knobs.columns, knobs.inner)
    traffic = 8 * prod(d if isinstance(d, int) else sizes[d] for d in dims)
    return roofline(0, traffic, target.peak_flops, target.peak_bandwidth)


def reference(knobs: Transpose, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """The result, which is exact."""
    y = np.swapaxes(np.asarray(arrays[0], np.float64), 1, 2)
    return y, np.zeros_like(y)


def sample(random: Random, target: Target) -> tuple[Transpose, list[Arrays]]:
    """Random knobs and three calls: other values each, other sizes where these are dynamic."""
    rows, columns = (random.choice((random.choice(_SIZES[4:]), name)) for name in "mn")
    inner = random.choice((1, 1, random.choice((8, 9, 16, 33)), "q"))
    together = rows if inner == 1 else inner
    knobs = Transpose(
        random.choice((1, 3, "b")),
        max(rows, 16) if isinstance(rows, int) else rows,
        max(columns, 16) if isinstance(columns, int) else columns,
        inner,
        tile_rows=random.choice((16, 48, 256)),
        tile_columns=random.choice((16, 48, 256)),
        batches=random.choice((1, 2)),
        down=random.random() < 0.5,
        streaming=isinstance(together, int) and together >= 16 and together % 16 == 0,
    )
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _arrays(knobs: Transpose, random: Random) -> Arrays:
    dims = (knobs.batch, knobs.rows, knobs.columns, *([] if knobs.inner == 1 else [knobs.inner]))
    few = (1, 2, 5)
    shape = [
        d if isinstance(d, int) else random.choice(few if place == 0 else _SIZES)
        for place, d in enumerate(dims)
    ]
    values = np.random.default_rng(random.randrange(1 << 30))
    return [values.normal(size=shape).astype(np.float32)]


@dataclass(frozen=True)
class _Exchange:
    """The groups of an operand's dimensions that change places: cut before, between, after."""

    cuts: tuple[int, int, int]

    def groups(self, shape: Shape) -> tuple[Shape, ...]:
        """batch, rows, columns and inner."""
        a, b, c = self.cuts
        return shape[:a], shape[a:b], shape[b:c], shape[c:]


def exchange(shape: Shape, permutation: tuple[int, ...]) -> _Exchange | None:
    """The two runs of neighbouring dimensions that a permutation exchanges; None if it does more.

    Dimensions of size 1 are nowhere, so that they fit each place.
    """
    order = [p for p in permutation if shape[p] != 1]
    places = sorted(order)
    moved = [i for i, p in enumerate(order) if p != places[i]]
    if not moved:
        return None
    first, end = moved[0], moved[-1] + 1
    turned, straight = order[first:end], places[first:end]
    middle = straight.index(turned[0])
    if turned != straight[middle:] + straight[:middle]:
        return None
    last = straight[-1] + 1
    return _Exchange((straight[0], straight[middle], last))


def match(work: Work, target: Target) -> list[Offer]:
    """A kernel for the first op of a group, a transpose that exchanges two runs of dimensions."""
    node = work.nodes[0]
    if node.name != "transpose" or not is_f32(work, node.operands):
        return []
    shape, permutation = work.type(node.operands[0]).shape, node.params["permutation"]
    # The size of a dynamic dimension is taken from the same place of the operand.
    moved = any(shape[p] is None and p != i for i, p in enumerate(permutation))
    found = None if moved or 0 in shape else exchange(shape, permutation)
    if found is None:
        return []
    batch, rows, columns, inner = (
        d if (d := sizes(g)) is not None else name
        for g, name in zip(found.groups(shape), "bmnq", strict=True)
    )
    knobs = Transpose.on(target, batch, rows, columns, inner)
    if refusal(knobs, target):
        return []
    cuts = found.cuts if inner != 1 else found.cuts[:2]
    feed = Feed(node.operands[0], cuts)
    return [Offer(knobs, 1, (feed,), cost(knobs, target, dict.fromkeys("bmnq", NOMINAL_DIMENSION)))]


FAMILY = Family("transpose", Transpose, refusal, cost, reference, sample, match)
