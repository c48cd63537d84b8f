"""The suites `predict`, `policies` and `works`: measurements by the library of `pyc-tune profile`.

    pyc-bench predict                                measure works and programs, then score
    pyc-bench predict --again docs/results/predict.json      score stored measurements again
    pyc-bench policies --budget 600      survey works for so many seconds, then measure programs
    pyc-bench works --db sqlite:///pyc.db --budget 2h --constants warm,cold

`predict`: estimates of programs that are left out, against what was measured. Each work is one
session of all its choices; each program is one session of its recipes: PyC's own, IREE's code
everywhere, and the other choice at one kernel after the other. Times are CPU seconds of one thread
on local-sync. Winner, regret and coverage come with 90 % intervals over programs, drawn with
replacement.

`policies`: programs by `heuristic`, `fastest`, `explore` and by exhaustive search, which measures
every combination of kernels where there are at most `MOST_COMBINATIONS`. Works are surveyed first;
`fastest` and `explore` choose by what that found. Meant for an idle machine: what a session was
disturbed by stands beside its numbers.

`works`: rows of the benchmark database for the CPU workloads and their kernels' works, which
predictions are tested with: every workload as a whole, and each work of its kernel groups by
itself, with every choice. It goes on where an earlier run ended.
"""

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pyc_mlir import nn
from pyc_mlir.artifact.memory import from_bytes
from pyc_mlir.compilation.build import plan_only
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.util.files import write_file
from pyc_mlir.lab.explore.programs import explore
from pyc_mlir.lab.sessions.local import LocalMeasurer
from pyc_mlir.lab.sessions.processes import SessionPlan
from pyc_mlir.lab.sessions.session import ChoiceResult, MeasuredChoice, Measurer
from pyc_mlir.lab.sessions.subjects import subject_of_program, subject_of_work
from pyc_mlir.lab.simulation.simulator import (
    PricedProgram,
    Simulator,
    on_threads,
    priced,
    priced_parts,
)
from pyc_mlir.lab.tune.search import TunedWork, kernel_works
from pyc_mlir.measure.environment import current_place
from pyc_mlir.measure.records import Record, Report, record
from pyc_mlir.pipelines.choices.choices import Decision, Recipe
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT
from pyc_mlir.tools import pyc_tune
from pyc_mlir.tools.bench.peers.workload import Workload
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, option, suite
from pyc_mlir.tools.bench.workloads.cpu import ROWS, make
from pyc_mlir.tools.bench.workloads.parts import Block, SeededWeights, case
from pyc_mlir.tools.cli.common import Parser, default_url
from pyc_mlir.tools.tune import measuring
from suites.estimates import (
    HERE,
    NOTHING,
    ROWS_KNOWN,
    ROWS_UNKNOWN,
    Observed,
    ObservedChoice,
    ObservedRecipe,
    all_residuals,
    scores,
)

PREDICT = "predict"
IREE = "iree"
MOST_FLIPS = 3
_PROCESSES, _ESTIMATES = 1, 2000


def _programs() -> Iterator[tuple[str, Sequence[tuple[int, int]], Callable[[int], Block], int]]:
    """Yield names, rows and widths, functions of matrices of a width, and how many they take."""
    draw = SeededWeights(3)

    def norm_mlp(width: int) -> Block:
        a, b = draw.matrix(width, 2 * width), draw.matrix(2 * width, width)
        return lambda x: nn.gelu(nn.layernorm(x, *_unit(width)) @ a) @ b + x

    def softmax_mlp(width: int) -> Block:
        weight = draw.matrix(width, width)
        return lambda x: nn.softmax(nn.relu(x @ weight)) @ weight

    def attention(width: int) -> Block:
        return lambda q, k, v: nn.softmax(q @ k.transpose(1, 0)) @ v

    def sums(width: int) -> Block:
        return lambda x: np.sum(nn.relu(x), axis=1) + np.sum(nn.softmax(x), axis=1)

    def norm_softmax(width: int) -> Block:
        return lambda x: nn.softmax(nn.layernorm(x, *_unit(width)) * 2.0)

    yield "norm and mlp", ((32, 128), (128, 256)), norm_mlp, 1
    yield "product and softmax", ((64, 128), (256, 256)), softmax_mlp, 1
    yield "attention without heads", ((128, 64), (256, 128)), attention, 3
    yield "sums", ((512, 256),), sums, 1
    yield "softmax of layernorm", ((256, 512), (1024, 128)), norm_softmax, 1


def _unit(width: int) -> tuple[np.ndarray, np.ndarray]:
    return np.ones(width, np.float32), np.zeros(width, np.float32)


_STORED = ("mlp 784-512-512-10, batch 64", "mlp 784-512-512-10, batch 1", "digits mlp, batch 64")


def programs(quick: bool = False) -> list[Workload]:
    """Return programs of 20 us to 2 ms, each with kernels to choose; quick: two small ones."""
    wanted = [p for p in _programs() if not quick or "softmax" in p[0]]
    own = [
        case(block(width), *[(rows, width)] * count, name=f"{name} {rows}x{width}")
        for name, sizes, block, count in wanted
        for rows, width in ([(16, 32)] if quick else sizes)
    ]
    return own + [make(name) for name in _STORED if not quick]


def nothing() -> Workload:
    """Make a call that computes next to nothing."""
    return case(lambda x: nn.relu(x), (1, 16), name=NOTHING)


@suite(
    PREDICT,
    10,
    option("--again", metavar="REPORT", help="score a stored report without measuring"),
    option("--residuals", metavar="FILE", help="write the errors of the estimates to FILE"),
)
def predict(bench: SuiteRun) -> Iterator[Record]:
    """Measure estimates of programs left out: winner, regret, coverage, bytes, rate."""
    observed, known = Observed((), ()), bench.options
    if known.again is not None:
        stored = Report.load(known.again)
        observed = Observed.of_records(stored.records)
        bench.settings |= dict(stored.settings)
    else:
        plan = SessionPlan(bench.rounds, _PROCESSES)
        measurer = LocalMeasurer("pyc-bench predict")
        # Stored after each program: a run that is ended early has measured what it has.
        for observed in observe(programs(bench.quick), nothing(), measurer, plan):
            bench.settings["load"] = round(os.getloadavg()[0], 1)
            bench.store(observed.to_records())
    yield from _scored(observed)
    yield from observed.to_records()
    if known.residuals is not None:
        write_file(Path(known.residuals), all_residuals(observed).to_bytes())


def observe(
    programs: Sequence[Workload], nothing: Workload, measurer: Measurer, plan: SessionPlan
) -> Iterator[Observed]:
    """Measure everything that the programs need, each work once; what is known after each program.

    A program that cannot be measured is left out, with a note.
    """
    call = _seconds(_measured(nothing, [MeasuredChoice(label="own")], measurer, plan)[0])
    rows: dict[str, list[ObservedChoice]] = {}
    recipes: list[ObservedRecipe] = []
    for program in programs:
        try:
            lowered = lower(Job.of(program.source, program.specs, make_options()))
            costs = _predicted(priced(lowered, make_options().target))
            for work in kernel_works(Job.of(program.source, program.specs, make_options())):
                name = work.graph.graph_id
                if name not in rows:
                    rows[name] = list(_choices(work, costs[name], measurer, plan))
            found = list(_recipes(program, measurer, plan))
        except PycError as error:
            note(f"{program.name}: left out: {error}")
            continue
        known = {(r.work, r.choice) for of_work in rows.values() for r in of_work}
        recipes += [recipe for recipe in found if set(recipe.kernels) <= known]
        note(f"{program.name}: {len(found)} recipes")
        every = tuple(row for of_work in rows.values() for row in of_work)
        yield Observed(every, tuple(recipes), call or 0.0)


def _predicted(program: PricedProgram) -> Mapping[str, Mapping[str, float]]:
    """Return predicted seconds on one thread by work and choice."""
    return {
        site.site.work: {name: on_threads(cost, program, 1) for name, cost in site.costs.items()}
        for site in program.kernels
    }


def _choices(
    work: TunedWork, costs: Mapping[str, float], measurer: Measurer, plan: SessionPlan
) -> Iterator[ObservedChoice]:
    """Yield the choices of one work; those that gave no time are left out."""
    subject = subject_of_work(work.graph.text)
    candidates = [MeasuredChoice({work.pass_name: name}, name) for name in work.names]
    for result in measurer.measure(subject, candidates, plan).results:
        seconds = _seconds(result)
        if seconds is not None:
            # CPU seconds of each process, else those of the clock.
            each = (replace(result, processes=(p,)).seconds() for p in result.processes)
            medians = [found for found in each if found is not None]
            name, graph = result.candidate.name, work.graph.graph_id
            spread = (min(medians), max(medians), len(medians))
            yield ObservedChoice(graph, name, costs[name], seconds, *spread)


def _recipes(program: Workload, measurer: Measurer, plan: SessionPlan) -> Iterator[ObservedRecipe]:
    options = make_options()
    own = kernels_of(program)
    recipes = {"own": {}, "IREE": {d.site.key: IREE for d in own}, **_flips(own)}
    candidates = [MeasuredChoice(recipe, label) for label, recipe in recipes.items()]
    for result in _measured(program, candidates, measurer, plan):
        seconds = _seconds(result)
        if seconds is None:
            continue
        by_recipe = replace(options, recipe=Recipe(dict(recipes[result.candidate.name])))
        lowered = lower(Job.of(program.source, program.specs, by_recipe))
        planned = plan_only(lowered, by_recipe)
        report = from_bytes(planned.memory)
        numbers = priced_parts("", planned.decisions, planned.account, report, options.target)
        yield ObservedRecipe(
            program.name,
            result.candidate.name,
            tuple((k.site.work, k.chosen) for k in numbers.kernels),
            numbers.other_seconds,
            seconds,
            planned.account.transients if result.arena_bytes is not None else None,
            result.arena_bytes,
        )


def kernels_of(program: Workload) -> list[Decision]:
    """Return the decisions of a program about its kernels."""
    decisions = lower(Job.of(program.source, program.specs, make_options())).decisions
    return [d for d in decisions if d.site.pass_name == SELECT]


def _flips(decisions: Sequence[Decision]) -> Mapping[str, Mapping[str, str]]:
    """Return the other choice at one kernel, for the kernels of most predicted seconds."""

    def cost(d: Decision) -> float:
        return sum(a.cost.seconds for a in d.alternatives if a.cost and a.name == d.chosen)

    found = {}
    several = [d for d in decisions if len(d.alternatives) > 1]
    for number, d in enumerate(sorted(several, key=cost, reverse=True)[:MOST_FLIPS]):
        other = next(a.name for a in d.alternatives if a.name != d.chosen)
        found[f"{other} at {number}"] = {d.site.key: other}
    return found


def _measured(
    program: Workload,
    candidates: Sequence[MeasuredChoice],
    measurer: Measurer,
    plan: SessionPlan,
) -> Sequence[ChoiceResult]:
    subject = subject_of_program(program.source, program.specs)
    return measurer.measure(subject, candidates, plan).results


def _seconds(result: ChoiceResult) -> float | None:
    return result.seconds() if result.ok else None


_FIGURES = {
    "winner": "pairs 5 % apart whose winner is right",
    "regret": "regret",
    "coverage": "90 % intervals that hold",
}


def _scored(observed: Observed) -> Iterator[Record]:
    for known in (ROWS_KNOWN, ROWS_UNKNOWN):
        found, name = scores(observed, known), f"programs left out, {known}"
        counts = {
            "programs": len(found.judged),
            "pairs": sum(j.pairs for j in found.judged),
            "ways": sum(j.recipes for j in found.judged),
        }
        for figure, metric in _FIGURES.items():
            value = 100 * getattr(found, figure)
            lo, hi = (100 * end for end in found.interval(figure))
            note(f"{known}: {metric} {value:.1f} % ({lo:.1f} to {hi:.1f})")
            yield record(name, PREDICT, metric, "%", value, p10=lo, p90=hi, **counts)
    stated = [w for w in observed.recipes if w.planned is not None and w.stated is not None]
    if stated:
        exact = 100 * sum(w.planned == w.stated for w in stated) / len(stated)
        yield record("bytes by the planner without code", PREDICT, "exact", "%", exact)
    rate = _rate(observed)
    yield record("estimates of one program", PREDICT, "rate", "recipes a second", rate)


def _rate(observed: Observed) -> float:
    """Return estimates a second of the program with most kernels, each by another recipe."""
    recipes = max(observed.programs.values(), key=lambda recipes: len(recipes[0].kernels))
    simulator = Simulator(observed.priced(recipes[0]), observed.wisdom(), HERE)
    sites = simulator.program.kernels
    choices = [list(site.costs) for site in sites]
    begin = time.perf_counter()
    for number in range(_ESTIMATES):
        recipe = {
            site.site.key: names[(number >> i) % len(names)]
            for i, (site, names) in enumerate(zip(sites, choices, strict=True))
        }
        simulator.estimate(recipe)
    return _ESTIMATES / (time.perf_counter() - begin)


HEURISTIC, FASTEST, EXPLORE, EXHAUSTIVE = "heuristic", "fastest", "explore", "exhaustive"
MOST_COMBINATIONS = 16
_BUDGET, _QUICK_BUDGET = 600.0, 20.0


@suite(
    "policies",
    20,
    option("--budget", type=float, default=_BUDGET, help=f"seconds; default: {_BUDGET:g}"),
)
def policies(bench: SuiteRun) -> Iterator[Record]:
    """Compare programs by `fastest`, `explore` and exhaustive search with `heuristic`."""
    # The database's package is optional.
    from pyc_mlir.lab.evidence.database.exchange import export_wisdom
    from pyc_mlir.lab.evidence.database.store import EvidenceStore
    from pyc_mlir.lab.tune.survey import Survey, Surveyed

    some, here = programs(bench.quick), current_place()
    measurer, plan = LocalMeasurer("pyc-bench policies"), SessionPlan(bench.rounds)
    with (
        tempfile.TemporaryDirectory() as folder,
        EvidenceStore.open(f"sqlite:///{Path(folder, 'evidence.db')}") as store,
    ):
        surveyed = [Surveyed(p.name, p.source, p.specs) for p in some]
        budget = _QUICK_BUDGET if bench.quick else bench.options.budget
        for line in Survey(store, measurer, plan).run(surveyed, budget):
            note(line)
        wisdom = export_wisdom(store, here.hardware, here.toolchain)
    for program in some:
        yield from compared(program, wisdom, measurer, plan)


def compared(
    program: Workload, wisdom: Wisdom, measurer: Measurer, plan: SessionPlan
) -> Iterator[Record]:
    """Yield a record for each policy; the quickest combination stands for exhaustive search."""
    wanted = recipes_of(program, wisdom)
    candidates = [MeasuredChoice(recipe, label) for label, recipe in wanted.items()]
    subject = subject_of_program(program.source, program.specs)
    found = measurer.measure(subject, candidates, plan)
    times = {r.candidate.name: r.seconds() for r in found.results if r.ok}
    known = {name: seconds for name, seconds in times.items() if seconds is not None}
    tried = [s for name, s in known.items() if name.startswith(EXHAUSTIVE)]
    shown = {name: known[name] for name in (HEURISTIC, FASTEST, EXPLORE) if name in known}
    if tried:
        shown[EXHAUSTIVE] = min(tried)
    for name, seconds in shown.items():
        share = known.get(HEURISTIC, seconds) / seconds
        note(f"{program.name}, {name}: {share:.3f} of heuristic's speed")
        yield record(
            program.name, name, "call", "s", seconds,
            of_heuristic=share, combinations=len(tried), disturbed="; ".join(found.disturbed),
        )  # fmt: skip


def recipes_of(program: Workload, wisdom: Wisdom) -> Mapping[str, Mapping[str, str]]:
    """Return each policy's choices for a program, as {site: choice}."""
    options, kernels = make_options(), kernels_of(program)
    by_rows = make_options(policy=FASTEST, wisdom=wisdom)
    fastest = lower(Job.of(program.source, program.specs, by_rows)).decisions
    exploring = replace(options, policy=make_options(policy=EXPLORE, wisdom=wisdom).policy)
    explored = explore(Job.of(program.source, program.specs, exploring), wisdom).chosen()
    found = {
        HEURISTIC: {},
        FASTEST: {d.site.key: d.chosen for d in fastest if d.site.pass_name == SELECT},
        EXPLORE: dict(explored.choices),
    }
    names = [[a.name for a in d.alternatives] for d in kernels]
    combinations = list(itertools.islice(itertools.product(*names), MOST_COMBINATIONS + 1))
    if len(combinations) <= MOST_COMBINATIONS:
        for number, chosen in enumerate(combinations):
            keys = (d.site.key for d in kernels)
            found[f"{EXHAUSTIVE} {number}"] = dict(zip(keys, chosen, strict=True))
    return found


def works(arguments: Sequence[str]) -> int:
    """Time the CPU workloads and each of their kernels' works, into the database."""
    parser = Parser("pyc-bench works", works.__doc__ or "")
    for names, options in pyc_tune.SURVEY:
        parser.add_argument(*names, **options)
    parser.add_argument(
        "--quick", action="store_true", help="only tiny sizes of the first workload"
    )
    parser.add_argument(
        "--only", metavar="NAME", nargs="+", choices=ROWS, help="only these workloads"
    )
    flags = parser.parse_args(arguments)
    flags.whole = True
    # The database's package is optional.
    from pyc_mlir.lab.evidence.database.store import EvidenceStore
    from pyc_mlir.lab.tune.survey import Surveyed

    made = (make(n, flags.quick) for n in flags.only or list(ROWS)[: 1 if flags.quick else None])
    surveyed = [Surveyed(w.name, w.source, w.specs) for w in made]
    with EvidenceStore.open(getattr(flags, "db", None) or default_url(os.environ)) as store:
        return measuring.survey(store, flags, surveyed, LocalMeasurer("pyc-bench works"))
