"""Packing instances: minimalloc's CSV files, and instances made in the likeness of programs.

Made ones have sizes over five decades (100 B to 10 MB, evenly by logarithm, multiples of 64) and
the lives of training (nested: kept from the forward pass until the mirrored place of the backward
pass), of inference (staggered: short lives all along), of both, or cut from a full arena, so that
a packing without any gap is known to exist. The families that greedy orders are compared on have
layers as well, one huge buffer among many, and phases that share buffers in pairs.
"""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.pipelines.memory.planner.intervals import Intervals, Ints

ALIGNMENT = 64
COLUMNS = ("id", "lower", "upper", "size")


def read_csv(path: Path) -> Intervals:
    """Read id,lower,upper,size: half-open lives, bytes without alignment.

    Raises PycError naming the file: FILE_ACCESS, BAD_ARGUMENT when it is something else.
    """
    data = read_file(path, "a CSV file of buffers")
    try:
        rows = [
            (int(row[a]), int(row[b]), int(row[c]))
            for row in csv.DictReader(data.decode("utf-8").splitlines())
            for a, b, c in [COLUMNS[1:]]
        ]
        if not rows:
            raise ValueError("no buffers")
        intervals = Intervals.of(rows)
        intervals.check()
    except (KeyError, TypeError, ValueError, PycError) as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"{path}: expected lines of {','.join(COLUMNS)} in whole numbers, got {error!r}",
        ) from None
    return intervals


def nested(count: int, random: np.random.Generator) -> Intervals:
    """Make a training step: half of the results wait for their backward task."""
    end = 2 * count
    lower = np.sort(random.integers(0, count, count))
    waits = random.random(count) < 0.5
    upper = np.where(
        waits,
        end - lower - random.integers(0, count // 20 + 2, count),
        lower + 1 + random.geometric(0.05, count),
    )
    return _sized(lower, np.maximum(upper, lower + 1), random)


def staggered(count: int, random: np.random.Generator) -> Intervals:
    """Make an inference: most results are read soon, a few much later (log-normal lives)."""
    lower = random.integers(0, count, count)
    life = 1 + np.exp(random.normal(3, 1.5, count)).astype(np.int64)
    return _sized(lower, lower + life, random)


def mixed(count: int, random: np.random.Generator) -> Intervals:
    """Make both, side by side."""
    parts = nested(count // 2, random), staggered(count - count // 2, random)
    columns = zip(*((p.lower, p.upper, p.size, p.alignment) for p in parts), strict=True)
    return Intervals(*(np.concatenate(c) for c in columns))


def cut(count: int, random: np.random.Generator, height: int = 1 << 14) -> Intervals:
    """Cut a full arena of `height` x 64 bytes along lives or bytes into `count` pieces."""
    pieces = [(0, 4 * count, height)]
    while len(pieces) < count:
        at = int(random.choice(len(pieces), p=_areas(pieces)))
        lower, upper, size = pieces.pop(at)
        if size < 2 or (upper - lower > 1 and random.random() < 0.5):
            middle = int(random.integers(lower + 1, upper))
            pieces += [(lower, middle, size), (middle, upper, size)]
        else:
            below = int(random.integers(1, size))
            pieces += [(lower, upper, below), (lower, upper, size - below)]
    return Intervals.of([(lo, up, n * ALIGNMENT) for lo, up, n in pieces], ALIGNMENT)


def layered(count: int, random: np.random.Generator, width: int = 20) -> Intervals:
    """Make layers of `width` results for the next layer; a tenth skips up to 30 layers."""
    lower = np.arange(count) // width * 4 + random.integers(0, 3, count)
    skipped = np.where(random.random(count) < 0.1, random.integers(1, 30, count), 0)
    return _sized(lower, lower + 4 + random.integers(0, 4, count) + 4 * skipped, random)


def one_huge(count: int, random: np.random.Generator) -> Intervals:
    """Make a staggered one with a buffer 20 times the largest, for a tenth of the time."""
    few = staggered(count - 1, random)
    end = int(few.upper.max())
    columns = (
        (few.lower, end // 3),
        (few.upper, end // 3 + end // 10 + 1),
        (few.size, 20 * few.size.max()),
        (few.alignment, ALIGNMENT),
    )
    return Intervals(*(np.append(column, value) for column, value in columns))


def paired_phases(count: int, random: np.random.Generator, length: int = 40) -> Intervals:
    """Make phases of `length` steps; half of a phase's results are read in the next one."""
    lower = random.integers(0, count, count)
    last = (lower // length + 1 + (random.random(count) < 0.5)) * length
    upper = last - random.integers(0, length // 2, count)
    return _sized(lower, np.maximum(upper, lower + 1), random)


FAMILIES: Mapping[str, Callable[[int, np.random.Generator], Intervals]] = {
    "staggered": staggered,
    "nested": nested,
    "layered": layered,
    "one huge": one_huge,
    "paired phases": paired_phases,
}

INSTANCES: Mapping[str, Callable[[int, np.random.Generator], Intervals]] = {
    "nested": nested,
    "staggered": staggered,
    "mixed": mixed,
    "cut": cut,
}


def _areas(pieces: list[tuple[int, int, int]]) -> Ints:
    """Return the share of each piece in the whole; pieces that cannot be cut have none."""
    areas = np.array([(up - lo) * n if (up - lo) * n > 1 else 0 for lo, up, n in pieces], float)
    return areas / areas.sum()


def _sized(lower: Ints, upper: Ints, random: np.random.Generator) -> Intervals:
    """Draw sizes over five decades for lives, the same alignment for all."""
    size = (10 ** random.uniform(2, 7, len(lower))).astype(np.int64)
    size = -(-size // ALIGNMENT) * ALIGNMENT
    return Intervals(lower, upper, size, np.full(len(lower), ALIGNMENT, np.int64))


def colliding(intervals: Intervals, offsets: np.ndarray) -> int | None:
    """Find an interval that shares a byte and a time with another or is misaligned, else None.

    By rising offset, each has to begin above whatever was seen in its sections.
    """
    first, past, count = intervals.sections
    top = np.zeros(count, np.int64)
    for b in np.argsort(offsets, kind="stable").tolist():
        span = top[first[b] : past[b]]
        if intervals.size[b] and span.max() > offsets[b]:
            return b
        if offsets[b] % intervals.alignment[b]:
            return b
        np.maximum(span, offsets[b] + intervals.size[b], out=span)
    return None
