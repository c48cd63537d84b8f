"""The suite `pack`: arena and time of offsets for intervals, by the planner's core alone.

    pyc-bench pack A.csv B.csv --capacity 1048576 --time-limit 10 --json out.json

A file is minimalloc's CSV. Without files, made instances are packed. The time limit is of the wall
clock, so that a result may differ from run to run, and begins to count behind the greedy orders;
each packing is checked before it is stored.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.memory.planner.intervals import Intervals
from pyc_mlir.pipelines.memory.planner.pack import pack
from pyc_mlir.tools.bench.report.suite import note, parse
from pyc_mlir.tools.cli.common import Parser
from suites.pack_instances import INSTANCES, colliding, read_csv

SUITE = "pack"
SECONDS = 10.0
MADE = (10_000, 50_000)
QUICK_MADE = (200,)
# Pieces of a full arena are hard to put together: few of them are instance enough.
CUT_SHARE = 100


def run(arguments: Sequence[str]) -> int:
    """Measure arena bytes and seconds of the packer on CSV files or instances of 10,000, 50,000."""
    parser = Parser(SUITE)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.csv")
    parser.add_argument("--capacity", type=int, help="stop once the arena has this many bytes")
    parser.add_argument(
        "--time-limit",
        type=float,
        default=SECONDS,
        metavar="S",
        help=f"seconds for each instance; default: {SECONDS:g}",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="the seed of the search and of generated instances"
    )
    bench, known = parse(SUITE, run.__doc__ or "", 1, arguments, parser)
    sizes = QUICK_MADE if bench.quick else MADE
    named = _read(known.files) if known.files else _made(sizes, known.seed)
    records = [
        pack_record(name, intervals, known.capacity, known.time_limit, known.seed)
        for name, intervals in named
    ]
    bench.store(records, capacity=known.capacity, time_limit=known.time_limit, seed=known.seed)
    return 0


def _read(files: Sequence[Path]) -> list[tuple[str, Intervals]]:
    """Read all files first, so that a bad one is reported before minutes are spent on others."""
    return [(str(path), read_csv(path)) for path in files]


def _made(sizes: Sequence[int], seed: int) -> Iterator[tuple[str, Intervals]]:
    for count in sizes:
        for name, make in INSTANCES.items():
            n = count // CUT_SHARE if name == "cut" else count
            yield f"{name}, {n} buffers", make(n, np.random.default_rng(seed))


def pack_record(
    name: str,
    intervals: Intervals,
    capacity: int | None,
    seconds: float,
    seed: int,
    clock: Callable[[], float] = time.perf_counter,
) -> Record:
    """Pack one instance within `seconds` and check the packing. Raises PycError if it is wrong."""
    start = clock()
    found = pack(
        intervals,
        capacity=capacity,
        work_limit=sys.maxsize,
        seed=seed,
        stop=lambda: clock() - start > seconds,
    )
    taken = clock() - start
    wrong = colliding(intervals, found.offsets)
    if wrong is not None or intervals.arena(found.offsets) > found.arena_bytes:
        raise PycError(
            ReasonCode.WRONG_RESULT, f"{name}: expected a packing, got overlaps at buffer {wrong}"
        )
    note(
        f"{name}: {found.arena_bytes} bytes, {found.gap:.2%} above the bound, {taken:.2f} s"
        + (", proven" if found.proven else "")
        + ("" if found.fits else f", above the capacity of {capacity}")
    )
    return record(
        name,
        "pyc",
        "arena",
        "B",
        found.arena_bytes,
        file=name,
        buffers=len(intervals),
        lower_bound=found.lower_bound,
        arena_bytes=found.arena_bytes,
        seconds=taken,
        proven=found.proven,
    )
