"""The kernel family ``resize``: images grown by whole factors, nearest or bilinear.

An output lies in one of `factor` phases along each axis; all outputs of a phase read elements at
the same distances, with the same weights (`Phases`, after dialects/ops/resize.py). In NHWC vectors
run over channels. In NCHW they run along a row of x, and the two phases of a doubled width are
interleaved; IREE's code stores numbers one by one there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ops.convolution import spatial
from pyc_mlir.dialects.ops.resize import axis_taps, phase_taps
from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.values import Index, Vector, fma, interleaved, least
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow, refuse_target
from pyc_mlir.pipelines.kernels.shared.grid import cores_for, share
from pyc_mlir.pipelines.kernels.variants import knob_space, shares
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, is_f32

_MOST_OUTPUTS = 16
_LARGEST_DISTANCE = 2


@dataclass(frozen=True)
class Phases:
    """One axis: for each phase the distances of its taps from the element, and their weights."""

    taps: tuple[tuple[tuple[int, float], ...], ...] = (((0, 1.0),),)

    @staticmethod
    def of(factor: int, mode: str, coordinates: str, rounding: str) -> "Phases":
        """Return the phases of an axis that grows by `factor`."""
        found = phase_taps(factor, mode, coordinates, rounding)
        weights = np.ones(found.indices.shape) if found.weights is None else found.weights
        return Phases(
            tuple(
                tuple(zip(map(int, at), map(float, by), strict=True))
                for at, by in zip(found.indices.T, weights.T, strict=True)
            )
        )

    @property
    def factor(self) -> int:
        """The number of outputs of an element."""
        return len(self.taps)

    @property
    def reach(self) -> tuple[int, int]:
        """The largest distance of taps before and behind their element."""
        distances = [at for phase in self.taps for at, _ in phase]
        return max(0, -min(distances)), max(0, *distances)


@dataclass(frozen=True)
class Resize:
    """The knobs of y[images, rows * down.factor, columns * along.factor, channels].

    x is [images, rows, columns, channels]. With `channels` 1 and a doubled width vectors run along
    rows: `images` then counts the channels of an NCHW image too. `workgroups` cuts rows.
    """

    images: Dim
    rows: int
    columns: int
    channels: int
    down: Phases
    along: Phases
    workgroups: int = 1

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        sizes = (self.rows, self.columns, self.channels, self.workgroups)
        outputs = self.down.factor * self.along.factor
        near = max(*self.down.reach, *self.along.reach) <= _LARGEST_DISTANCE
        if self.images == 0 or min(sizes) < 1 or outputs > _MOST_OUTPUTS or not near:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"resize kernel: expected sizes of at least 1, at most {_MOST_OUTPUTS} outputs of "
                f"an element and taps at most {_LARGEST_DISTANCE} away, got {self}",
            )

    @property
    def is_planar(self) -> bool:
        """True where vectors run along rows."""
        return self.channels == 1 and self.along.factor == 2

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: x, y."""
        high, wide = self.rows * self.down.factor, self.columns * self.along.factor
        operands = (
            Operand("x", (self.images, self.rows, self.columns, self.channels)),
            Operand("y", (self.images, high, wide, self.channels), "out"),
        )
        if self.is_planar:
            operands = (
                Operand("x", (self.images, self.rows, self.columns)),
                Operand("y", (self.images, high, wide), "out"),
            )
        return Kernel(name, operands, lambda size: (self.workgroups,), self._body)

    def _body(self, k: Build, x: Memory, y: Memory) -> None:
        _Growing(k, self, x, y).build()


@dataclass(frozen=True)
class _Growing:
    """One kernel under construction."""

    k: Build
    knobs: Resize
    x: Memory
    y: Memory

    def build(self) -> None:
        """Compute this workgroup's rows of x, each of which makes `factor` rows."""
        k, knobs = self.k, self.knobs
        first, end = share(k, 0, knobs.workgroups, k.size(knobs.images) * knobs.rows)
        with k.range(first, end) as number:
            image, row = number // knobs.rows, number % knobs.rows
            if knobs.is_planar:
                self._along_rows(image, row)
            else:
                with k.range(knobs.columns) as column:
                    self._over_channels(image, row, column)

    def _over_channels(self, image: Index, row: Index, column: Index) -> None:
        """Compute all outputs of one position, a vector of channels at a time."""
        k, knobs = self.k, self.knobs
        down, along = knobs.down, knobs.along

        @k.each(knobs.channels, 1)
        def _(at: Lanes) -> None:
            def load(i: int, j: int) -> Vector:
                y, x = _clamped(row, i, knobs.rows), _clamped(column, j, knobs.columns)
                return self.x.load(image, y, x, at)

            made = _blended(down, along, load)
            for (r, s), value in made.items():
                to = (row * down.factor + r, column * along.factor + s)
                self.y.store(value, image, *to, at)

    def _along_rows(self, image: Index, row: Index) -> None:
        """Compute vectors whose taps all lie in the row, single elements at its ends."""
        k, knobs = self.k, self.knobs
        before, behind = knobs.along.reach
        count = max(0, (knobs.columns - before - behind) // k.lanes)
        with k.range(count) as number:
            self._block(image, row, number * k.lanes + before)
        for first, end in (
            (0, min(before, knobs.columns)),
            (before + count * k.lanes, knobs.columns),
        ):
            with k.range(first, max(first, end)) as column:
                self._element(image, row, column)

    def _block(self, image: Index, row: Index, column: Index) -> None:
        knobs = self.knobs

        def load(i: int, j: int) -> Vector:
            return self.x.load(image, _clamped(row, i, knobs.rows), Lanes(column + j))

        made = _blended(knobs.down, knobs.along, load)
        for r in range(knobs.down.factor):
            both = interleaved(made[r, 0], made[r, 1])
            self.y.store(both, image, row * knobs.down.factor + r, Lanes(column * 2))

    def _element(self, image: Index, row: Index, column: Index) -> None:
        k, knobs = self.k, self.knobs

        def load(i: int, j: int) -> Vector:
            y, x = _clamped(row, i, knobs.rows), _clamped(column, j, knobs.columns)
            return self.x.number(image, y, x).across(k.lanes)

        alone = k.tail(Index.of(0), Index.of(1)).mask
        for (r, s), value in _blended(knobs.down, knobs.along, load).items():
            to = row * knobs.down.factor + r, Lanes(column * 2 + s, alone)
            self.y.store(value, image, *to)


def _clamped(at: Index, distance: int, size: int) -> Index:
    """Return the position at a distance, that of the border beyond it."""
    if distance == 0:
        return at
    if distance < 0:
        return at - least(at, -distance)
    return least(at + distance, size - 1)


def _blended(
    down: Phases, along: Phases, load: Callable[[int, int], Vector]
) -> dict[tuple[int, int], Vector]:
    """Return all outputs of one element by phase: sums down the columns, then along the rows."""
    loaded: dict[tuple[int, int], Vector] = {}
    sums: dict[tuple[int, int], Vector] = {}
    made: dict[tuple[int, int], Vector] = {}

    def at(i: int, j: int) -> Vector:
        if (i, j) not in loaded:
            loaded[i, j] = load(i, j)
        return loaded[i, j]

    for (r, rows), (s, columns) in product(enumerate(down.taps), enumerate(along.taps)):
        for j, _ in columns:
            if (r, j) not in sums:
                sums[r, j] = _sum([(at(i, j), w) for i, w in rows])
        made[r, s] = _sum([(sums[r, j], w) for j, w in columns])
    return made


def _sum(terms: list[tuple[Vector, float]]) -> Vector:
    (value, weight), *others = terms
    total = value if weight == 1.0 and not others else value * weight
    for value, weight in others:
        total = fma(value, weight, total)
    return total


refusal = refuse_target


def cost(knobs: Resize, target: Target, sizes: Mapping[str, int]) -> Cost:
    """x read and y written once."""
    images = knobs.images if isinstance(knobs.images, int) else sizes[knobs.images]
    elements = images * knobs.rows * knobs.columns * knobs.channels
    made = elements * knobs.down.factor * knobs.along.factor
    taps = len(knobs.down.taps[0]) + len(knobs.along.taps[0])
    flops = 3 * made if taps > 2 else 0
    return CostModel(target).kernel("resize", flops, 4 * (elements + made))


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a resize by whole factors, to twice the width if NCHW; images of known sizes."""
    node = work.nodes[0]
    if node.name != "resize" or refuse_narrow(target) or not is_f32(work, node.operands):
        return []
    x, params = work.type(node.operands[0]).shape, node.params
    axes = spatial(params["layout"])
    grown = [_phases(x[a], node.type.shape[a], params, i) for i, a in enumerate(axes)]
    planar = params["layout"] == "NCHW"
    images, channels = x[0], x[1 if planar else 3]
    down, along = grown
    if 0 in node.type.shape or channels is None or down is None or along is None:
        return []
    if planar and along.factor != 2:
        return []
    count: Dim = "n" if images is None else images * (channels if planar else 1)
    high, wide = (x[a] or 0 for a in axes)
    try:
        knobs = Resize(count, high, wide, 1 if planar else channels, down, along)
    except PycError:
        return []
    price = cost(knobs, target, {"n": NOMINAL_DIMENSION})
    cores = cores_for(target, price.flops, price.traffic_bytes)
    knobs = replace(knobs, workgroups=cores)
    feed = Feed(node.operands[0], (2, 3) if knobs.is_planar and planar else (1, 2, 3))
    if knobs.is_planar and not planar:
        feed = Feed(node.operands[0], (1, 2))
    return [KernelOffer(knobs, 1, (feed,), price)]


def _phases(
    size: int | None, out: int | None, params: Mapping[str, Any], axis: int
) -> Phases | None:
    """Return an axis's phases; None where it does not grow by a whole number, or is unknown."""
    if not size or not out or out % size or params["coordinates"] == "align_corners":
        return None
    how = (params["mode"], params["coordinates"], params["rounding"])
    scale = params["scales"][axis] if params["scales"] else None
    phases = Phases.of(out // size, *how)
    wanted = axis_taps(size, out, scale, *how)
    weights = wanted.weights if wanted.weights is not None else np.ones(wanted.indices.shape)
    elements = np.arange(size)[:, None]
    found = np.array(phases.taps)
    same = found.shape[1] == len(wanted.indices)
    for n in range(len(wanted.indices) if same else 0):
        places = np.clip(elements + found[:, n, 0], 0, size - 1).ravel()
        by = np.tile(found[:, n, 1], size)
        same = same and np.array_equal(places, wanted.indices[n]) and np.allclose(by, weights[n])
    return phases if same else None


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Vary the shares of rows; nothing else of such a kernel is a choice."""
    knobs: Resize = offer.knobs
    return knob_space(
        knobs,
        {"workgroups": shares(target, knobs.rows)},
        lambda made: refusal(made, target),
    )


FAMILY = Family("resize", Resize, refusal, cost, match, space)
