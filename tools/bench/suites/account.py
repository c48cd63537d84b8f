"""The suites `account` and `co-selection`: bytes of whole programs, and time under a byte budget.

`account` counts what a program needs in all, constants included, beside plain IREE's: each workload
of both suites, and each model that is named, is compiled by plain IREE at O3 and by PyC in the
modes `balanced` and `memory_first`. Nothing runs: the bytes are those of each program's account.
Records of one workload, one for each of the three:

    total          constants + inputs + outputs + transients + workspace of one call, in bytes
    account        the parts, by name
    larger         for PyC: the decisions that keep constants in a larger form than the model's
    larger_bytes   the bytes that these forms have beside the model's
    saves          the seconds that they are predicted to save

and for each of `RATES`, by prediction, before the memory plan:

    predicted      seconds of a call; `held` are the bytes of its constants and of its values

`co-selection` compiles each workload twice under one byte budget: by the default policy, which
chooses kernels together with memory, and by one that has kernels chosen alone, on the same
predictions, so that a budget which they exceed is left to the other ways to keep it (parts of
memory_first without kernels of large weights, IREE's code). A budget lies between two figures of
the workload, at `shares` of the way: what kernels chosen alone need in their smallest way (0), and
what the quickest kernels need (1). A run is a process of its own, in which both programs and the
one without a budget are timed in interleaved rounds on one thread, by its CPU time, which is the
latency of a call on an idle machine and does not count what other processes take. Records of one
workload and share:

    latency             CPU seconds of a call
    total               constants, inputs, outputs and arena, in bytes; `budget` is the limit
    together / alone    the ratio within rounds; `error` is the largest difference of results,
                        relative to the largest result
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import structure_of_parts
from pyc_mlir.compilation.options import Options, make_options
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.iree.memory.budget import BudgetNotKept
from pyc_mlir.measure.interleave import ratio
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.choices.choices import FirstIsBest, Policy
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.evidence import LargerConstant
from pyc_mlir.pipelines.pyc.constants import ExchangeRate, Priced, PricedGroup, prices
from pyc_mlir.tools.bench.peers.candidates import plain_options
from pyc_mlir.tools.bench.peers.footprint import footprint
from pyc_mlir.tools.bench.peers.workload import Workload
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, option, suite, timing_records
from pyc_mlir.tools.bench.suites.memory import MIB, error_against, time_all
from pyc_mlir.tools.bench.workloads.memory import PRESSED, WORKLOADS
from pyc_mlir.tools.bench.workloads.parts import made

MODES = ("balanced", "memory_first")
# What the modes' own rates are compared with; the first has no price.
RATES = (
    ExchangeRate(),
    *(ExchangeRate(worth, 0.02) for worth in (0.1, 0.2, 0.3, 0.5, 1.0)),
    *(ExchangeRate(worth, 1.0) for worth in (0.1, 0.3)),
)
# Names of both suites' workloads: one of them has two of the name `u-net`.
ENTRIES = {**{f"{name}, pressed": row for name, row in PRESSED.items()}, **WORKLOADS}


@suite(
    "account",
    1,
    option("--only", nargs="+", choices=ENTRIES, metavar="NAME", help="workloads"),
    option("--models", nargs="+", default=(), metavar="MODEL", help="models beside"),
    piecewise=True,
)
def account(bench: SuiteRun) -> Iterator[Record]:
    """Count what programs need in all, constants included, against plain IREE."""
    only = bench.options.only
    names = [n for n in reversed(ENTRIES) if only is None or n in only]
    for name in names[:1] if bench.quick else names:
        workload = made(ENTRIES, name, bench.quick)
        yield from counted(name, workload.source, workload.specs)
    for model in bench.options.models:
        yield from counted(model.rpartition("/")[2], model, None)


def counted(name: str, source: Any, specs: Any) -> Iterator[Record]:
    """Yield the records of one workload. Raises PycError as `build`."""
    wanted: Mapping[str, Options] = {
        "iree": plain_options(),
        **{mode: make_options(planner_mode=mode, check=False) for mode in MODES},
    }
    yield from predicted(name, Job.of(source, specs, wanted["balanced"]))
    for system, options in wanted.items():
        artifact = build(source, specs, options)
        note(f"{name}: {system}: {artifact.account}")
        parts, total = to_data(artifact.account), artifact.account.total() or 0
        yield record(name, system, "total", "B", total, account=parts, **_larger(artifact))


def predicted(name: str, job: Job) -> Iterator[Record]:
    """Yield the records of other exchange rates; none for a program whose sites cannot be read."""
    try:
        sites = structure_of_parts(job).sites
    except PycError as error:
        note(f"{name}: no rates are compared: {error.message}")
        return
    groups = [
        PricedGroup(
            {c.name: Priced(c.seconds, c.reads) for c in site.candidates}, site.candidates[0].reads
        )
        for site in sites.sites
    ]
    for rate in RATES:
        taken = prices(groups, max(sites.live, default=0), rate).taken
        choice = [
            next(i for i, c in enumerate(site.candidates) if c.name == way)
            for site, way in zip(sites.sites, taken, strict=True)
        ]
        at = f"rate {rate.worth:g}, slack {rate.slack:g}"
        held = sites.bytes(choice)
        yield record(name, at, "predicted", "s", sites.seconds(choice), held=held)


def _larger(artifact: Artifact) -> dict[str, Any]:
    """Return the larger constants that decisions name, each once."""
    found = [
        e
        for d in artifact.decisions
        for e in d.evidence
        if isinstance(e, LargerConstant) and e.alternative == d.chosen
    ]
    forms = {e.constants: e.nbytes - e.own_bytes for e in found}
    return {
        "larger": len(found),
        "larger_bytes": sum(forms.values()),
        "saves": sum(e.saves for e in found),
    }


RUNS, THREADS = 3, 1
SHARES = (0.25, 0.5, 0.75)
ALONE, TOGETHER, FREE = "alone", "together", "no budget"
RATIO = f"{TOGETHER} / {ALONE}"


@suite(
    "co-selection",
    11,
    option("--only", nargs="+", choices=PRESSED, metavar="NAME", help="workloads"),
    option("--shares", nargs="+", type=float, default=SHARES,
           help="where budgets lie, from the smallest (0) to the quickest (1)"),
    piecewise=True,
)  # fmt: skip
def co_selection(bench: SuiteRun) -> Iterator[Record]:
    """Measure latency under a byte budget: kernels chosen with memory, or alone."""
    only, shares, runs = bench.options.only, list(bench.options.shares), RUNS
    names = [name for name in PRESSED if only is None or name in only]
    if bench.quick:
        names, shares, runs = names[:1], shares[:1], 1
    bench.settings |= {"shares": shares, "runs": runs, "threads": THREADS, "clock": "cpu"}
    sized = [Sized.of(made(PRESSED, name, bench.quick)) for name in names]
    for share in shares:
        for one in sized:
            bench.settings["load"] = round(os.getloadavg()[0], 1)
            yield from one.measured(share, runs, bench)


@dataclass(frozen=True)
class Sized:
    """A workload, its program without a budget, and the bytes between which budgets lie."""

    workload: Workload
    free: Artifact
    small: int

    @staticmethod
    def of(workload: Workload) -> "Sized":
        """Compile and plan what sets the budgets. Raises as `build`."""
        try:
            small = _needed(built(workload, 1, Alone()))
        except BudgetNotKept as refused:
            small = refused.smallest
        sized = Sized(workload, built(workload, None), small)
        fast = _needed(sized.free) / MIB
        note(f"{workload.name}: {small / MIB:.2f} MiB at least, {fast:.2f} at its quickest")
        return sized

    def measured(self, share: float, runs: int, bench: SuiteRun) -> Iterator[Record]:
        """Yield the records at one budget. Raises PycError if a program does not compile or run."""
        workload, name = self.workload, f"{self.workload.name}, budget at {share:g}"
        budget = int(self.small + share * (_needed(self.free) - self.small))
        programs = {
            ALONE: built(workload, budget, Alone()),
            TOGETHER: built(workload, budget),
            FREE: self.free,
        }
        for candidate, artifact in programs.items():
            facts = {"budget": budget, "way": way_of(artifact)}
            yield record(name, candidate, "total", "B", _needed(artifact), **facts)
        results = [footprint(programs[c], workload.arrays).results for c in (TOGETHER, ALONE)]
        error = error_against(*results)
        for number in range(1, runs + 1):
            timings = time_all(
                programs, {}, workload.arrays, (THREADS,), bench.rounds, bench.min_seconds, "cpu"
            )[THREADS]
            yield from timing_records(name, timings, run=number)
            spread = asdict(ratio(timings, of=TOGETHER, to=ALONE))
            value = spread.pop("median")
            note(f"{name}, run {number}: {value:.3f} ({spread['p10']:.3f} to {spread['p90']:.3f})")
            del spread["min"]
            yield record(name, TOGETHER, RATIO, "times", value, **spread, run=number, error=error)


@dataclass(frozen=True)
class Alone(FirstIsBest):
    """As `heuristic`, with kernels chosen alone under a budget too."""

    name: str = "alone"
    co_selects: ClassVar[bool] = False


def built(workload: Workload, budget: int | None, policy: Policy | None = None) -> Artifact:
    """Build the workload's artifact. Raises as `build`."""
    contract = Contract(memory_budget_bytes=budget)
    options = make_options(contract=contract, policy=policy)
    return build(workload.source, workload.specs, options)


def way_of(artifact: Artifact) -> str:
    """Return the choice that keeps the budget; "" without one."""
    return next((d.chosen for d in artifact.decisions if d.site.pass_name == "budget"), "")


def _needed(artifact: Artifact) -> int:
    total = artifact.account.total()
    assert total is not None, "static shapes"
    return total
