"""The suites `pack` and `pack-orders`: offsets for intervals, by the planner's core alone.

    pyc-bench pack A.csv B.csv --capacity 1048576 --time-limit 10 --json out.json

A file is minimalloc's CSV. Without files, made instances are packed. The time limit is of the wall
clock, so that a result may differ from run to run, and begins to count behind the greedy orders;
each packing is checked before it is stored.

`pack-orders` has PyC's packer against each greedy order, on made families.

    pyc-bench pack-orders --sizes 500 50000 --time-limits 1 10 30

Each order is placed to its end, without a limit; the packer runs anew under each time limit. An
order that is better than the packer fails the suite. Reported is how far each arena is above the
greatest sum of live bytes, and the processor time that the packer took: it finishes its orders
whatever the limit, so that a shorter limit than they need is exceeded. Limits are of processor time
too, so that other work on the machine takes none of it.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.memory.planner.greedy import NATIVE, orders, place
from pyc_mlir.pipelines.memory.planner.intervals import Intervals
from pyc_mlir.pipelines.memory.planner.pack import pack
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, option, suite
from suites.pack_instances import FAMILIES, INSTANCES, colliding, read_csv

SECONDS = 10.0
MADE = (10_000, 50_000)
QUICK_MADE = (200,)
# Pieces of a full arena are hard to put together: few of them are instance enough.
CUT_SHARE = 100
SIZES = (500, 2000, 10_000, 50_000)
LIMITS = (1.0, 10.0, 30.0)
QUICK_SIZES, QUICK_LIMITS = (500,), (0.1,)
METRIC, TIME = "above the bound", "processor time"


@suite(
    "pack",
    1,
    option("files", nargs="*", type=Path, metavar="FILE.csv"),
    option("--capacity", type=int, help="stop once the arena has this many bytes"),
    option("--time-limit", type=float, default=SECONDS, metavar="S",
           help=f"seconds for each instance; default: {SECONDS:g}"),
    option("--seed", type=int, default=0, help="the seed of the search and of generated instances"),
)  # fmt: skip
def run(bench: SuiteRun) -> Iterator[Record]:
    """Measure arena bytes and seconds of the packer on CSV files or instances of 10,000, 50,000."""
    known = bench.options
    limits = {"capacity": known.capacity, "time_limit": known.time_limit, "seed": known.seed}
    bench.settings |= limits
    sizes = QUICK_MADE if bench.quick else MADE
    for name, intervals in _read(known.files) if known.files else _made(sizes, known.seed):
        yield pack_record(name, intervals, *limits.values())


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


@suite(
    "pack-orders",
    1,
    option("--sizes", type=int, nargs="+", metavar="N",
           help=f"numbers of buffers; default: {SIZES}"),
    option("--time-limits", type=float, nargs="+", metavar="S",
           help=f"seconds; default: {LIMITS}"),
    option("--seed", type=int, default=0, help="the seed of the search and of the instances"),
)  # fmt: skip
def run_orders(bench: SuiteRun) -> Iterator[Record]:
    """Compare the packer with each of its greedy orders on made families, under time limits."""
    known = bench.options
    limits = known.time_limits or (QUICK_LIMITS if bench.quick else LIMITS)
    bench.settings |= {"seed": known.seed, "load_before": os.getloadavg()[0]}
    place_natively_once()
    for count in known.sizes or (QUICK_SIZES if bench.quick else SIZES):
        for name, make in FAMILIES.items():
            intervals = make(count, np.random.default_rng(known.seed))
            yield from compared(f"{name}, {count} buffers", intervals, limits)
    bench.settings["load_after"] = os.getloadavg()[0]


def compared(name: str, intervals: Intervals, limits: Sequence[float]) -> Iterator[Record]:
    """Yield the arenas of the best greedy order and the packer. Raises if the order wins."""
    arenas, seconds = greedy_arenas(intervals)
    best = min(arenas, key=lambda order: arenas[order])
    bound = intervals.lower_bound
    yield record(
        name, "best order", METRIC, "%", _above(arenas[best], bound), order=best, arenas=arenas
    )
    yield record(name, "best order", TIME, "s", seconds[best], orders=seconds)
    for limit in sorted(limits):
        found = pack_record(name, intervals, None, limit, 0, time.process_time)
        if found["arena_bytes"] > arenas[best]:
            raise PycError(
                ReasonCode.WRONG_RESULT,
                f"{name}: expected at most the {arenas[best]} bytes of the order `{best}`, got "
                f"{found['arena_bytes']} after {limit:g} s",
            )
        by = f"pyc, {limit:g} s"
        kept = {key: found[key] for key in ("buffers", "lower_bound", "arena_bytes", "proven")}
        yield record(name, by, METRIC, "%", _above(found["arena_bytes"], bound), **kept)
        yield record(name, by, TIME, "s", found["seconds"])
        if found["proven"]:
            break


def greedy_arenas(intervals: Intervals) -> tuple[Mapping[str, int], Mapping[str, float]]:
    """Return each greedy order's arena in bytes, placed to its end, and its processor time."""
    arenas, seconds = {}, {}
    for name, order, best_fit in orders(intervals):
        start = time.process_time()
        arenas[name] = intervals.arena(place(intervals, order, best_fit, lambda work: None))
        seconds[name] = round(time.process_time() - start, 4)
    note(f"{len(arenas)} orders placed in {sum(seconds.values()):.1f} s of processor time")
    return arenas, seconds


def place_natively_once() -> None:
    """Compile the loop that places many intervals: once a process, and no part of what is timed."""
    few = FAMILIES["staggered"](NATIVE, np.random.default_rng(0))
    place(few, np.arange(NATIVE), False, lambda work: None)


def _above(arena: int, bound: int) -> float:
    return 100 * (arena / bound - 1)
