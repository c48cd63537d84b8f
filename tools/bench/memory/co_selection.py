"""The suite `co-selection`: kernels chosen together with memory, against kernels chosen alone.

    pyc-bench co-selection                           the workloads below, three runs each
    pyc-bench co-selection --only u-net --shares 0.5

Each workload is compiled twice under one byte budget: by the default policy, and by one that has
kernels chosen alone, on the same predictions, so that a budget which they exceed is left to
the other ways to keep it (parts of memory_first without kernels of large weights, IREE's code). A
budget lies between two figures of the workload, at `shares` of the way: what kernels chosen alone
need in their smallest way (0), and what the quickest kernels need (1).

A run is a process of its own, in which both programs and the one without a budget are timed in
interleaved rounds on one thread, by its CPU time, which is the latency of a call on an idle machine
and does not count what other processes take. Records of one workload and share:

    latency             CPU seconds of a call
    total               constants, inputs, outputs and arena, in bytes; `budget` is the limit
    together / alone    the ratio within rounds; `error` is the largest difference of results,
                        relative to the largest result
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.compilation.options import make_options
from pyc_mlir.iree.memory.budget import BudgetNotKept
from pyc_mlir.measure.interleave import Timing, ratio, timing_records
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.choices.choices import FirstIsBest, Policy
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.tools.bench.memory.latency import time_all
from pyc_mlir.tools.bench.memory.measure import error_against
from pyc_mlir.tools.bench.peers.footprint import footprint
from pyc_mlir.tools.bench.report.suite import note, parse
from pyc_mlir.tools.bench.workloads.case import SuiteCase
from pyc_mlir.tools.bench.workloads.memory import PRESSED
from pyc_mlir.tools.cli.common import Parser

SUITE = "co-selection"
ROUNDS, RUNS, THREADS = 11, 3, 1
SHARES = (0.25, 0.5, 0.75)
ALONE, TOGETHER, FREE = "alone", "together", "no budget"
RATIO = f"{TOGETHER} / {ALONE}"
MIB = 2.0**20


def run(arguments: Sequence[str]) -> int:
    """Measure latency under a byte budget: kernels chosen with memory, or alone."""
    parser = Parser(SUITE)
    parser.add_argument("--only", nargs="+", choices=PRESSED, metavar="NAME", help="workloads")
    shares_help = "where budgets lie, from the smallest (0) to the quickest (1)"
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES, help=shares_help)
    bench, known = parse(SUITE, run.__doc__ or "", ROUNDS, arguments, parser)
    names = [name for name in PRESSED if known.only is None or name in known.only]
    shares, runs = (known.shares, RUNS)
    if bench.quick:
        names, shares, runs = names[:1], known.shares[:1], 1
    sized = {name: Sized.of(_case(name, bench.quick)) for name in names}
    records: list[Record] = []
    for share in shares:
        for name in names:
            records += sized[name].measured(share, runs, bench.rounds, bench.min_seconds)
            # Stored each time: a run that is ended early has measured what it has.
            bench.store(
                records, shares=list(shares), runs=runs, threads=THREADS, clock="cpu", load=_load()
            )
    return 0


def _case(name: str, quick: bool) -> SuiteCase:
    entry = PRESSED[name]
    return (entry.tiny if quick else entry.full)().named(name)


def _load() -> float:
    return round(os.getloadavg()[0], 1)


@dataclass(frozen=True)
class Sized:
    """A workload, its program without a budget, and the bytes between which budgets lie."""

    case: SuiteCase
    free: Artifact
    small: int

    @staticmethod
    def of(case: SuiteCase) -> "Sized":
        """Compile and plan what sets the budgets. Raises as `build`."""
        sized = Sized(case, built(case, None), smallest(case))
        fast = _needed(sized.free) / MIB
        note(f"{case.name}: {sized.small / MIB:.2f} MiB at least, {fast:.2f} at its quickest")
        return sized

    def measured(
        self, share: float, runs: int, rounds: int, min_seconds: float
    ) -> Iterator[Record]:
        """Yield the records at one budget. Raises PycError if a program does not compile or run."""
        budget = int(self.small + share * (_needed(self.free) - self.small))
        made = {
            ALONE: built(self.case, budget, Alone()),
            TOGETHER: built(self.case, budget),
            FREE: self.free,
        }
        yield from _records(self.case, share, budget, made, runs, rounds, min_seconds)


def _records(
    case: SuiteCase,
    share: float,
    budget: int,
    made: Mapping[str, Artifact],
    runs: int,
    rounds: int,
    min_seconds: float,
) -> Iterator[Record]:
    name = f"{case.name}, budget at {share:g}"
    for candidate, artifact in made.items():
        facts = {"budget": budget, "way": way_of(artifact)}
        yield record(name, candidate, "total", "B", _needed(artifact), **facts)
    results = {c: footprint(made[c], case.arrays).results for c in (ALONE, TOGETHER)}
    error = error_against(results[TOGETHER], results[ALONE])
    for number in range(1, runs + 1):
        timings = time_all(made, {}, case.arrays, (THREADS,), rounds, min_seconds, clock="cpu")[
            THREADS
        ]
        yield from timing_records(name, timings, run=number)
        yield _ratio(name, timings, number, error)


def _ratio(name: str, timings: Mapping[str, Timing], number: int, error: float) -> Record:
    found = ratio(timings, of=TOGETHER, to=ALONE)
    note(f"{name}, run {number}: {found.median:.3f} ({found.p10:.3f} to {found.p90:.3f})")
    return record(
        name,
        TOGETHER,
        RATIO,
        "times",
        found.median,
        p10=found.p10,
        p90=found.p90,
        n=found.n,
        run=number,
        error=error,
    )


@dataclass(frozen=True)
class Alone(FirstIsBest):
    """As `heuristic`, with kernels chosen alone under a budget too."""

    name: str = "alone"
    co_selects: ClassVar[bool] = False


def built(case: SuiteCase, budget: int | None, policy: Policy | None = None) -> Artifact:
    """Build the workload's artifact. Raises as `build`."""
    contract = Contract(memory_budget_bytes=budget)
    options = make_options(contract=contract, policy=policy)
    return build(case.source, case.specs, options)


def smallest(case: SuiteCase) -> int:
    """Return the least bytes that kernels chosen alone need."""
    try:
        return _needed(built(case, 1, Alone()))
    except BudgetNotKept as refused:
        return refused.smallest


def way_of(artifact: Artifact) -> str:
    """Return the choice that keeps the budget; "" without one."""
    return next((d.chosen for d in artifact.decisions if d.site.pass_name == "budget"), "")


def _needed(artifact: Artifact) -> int:
    total = artifact.account.total()
    assert total is not None, "static shapes"
    return total
