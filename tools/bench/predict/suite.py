"""The suite `predict`: estimates of programs that are left out, against what was measured.

    pyc-bench predict                                measure works and programs, then score
    pyc-bench predict --again docs/results/predict.json      score stored measurements again

Times are CPU seconds of one thread on local-sync, by the measuring library. Winner, regret and
coverage come with 90 % intervals over programs, drawn with replacement.
"""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyc_mlir.dialects.util.files import write_file
from pyc_mlir.lab.simulation.simulator import Simulator
from pyc_mlir.measure.records import Record, Report, record
from pyc_mlir.tools.bench.predict.observed import HERE, Observed
from pyc_mlir.tools.bench.predict.score import (
    ROWS_KNOWN,
    ROWS_UNKNOWN,
    Scores,
    all_residuals,
    scores,
)
from pyc_mlir.tools.bench.report.suite import note, parse
from pyc_mlir.tools.cli.common import Parser

SUITE = "predict"
_ROUNDS, _PROCESSES, _ESTIMATES = 10, 1, 2000


def run(arguments: Sequence[str]) -> int:
    """Measure estimates of programs left out: winner, regret, coverage, bytes, rate."""
    parser = Parser(SUITE, "")
    parser.add_argument("--again", metavar="REPORT", help="score a stored report without measuring")
    parser.add_argument(
        "--residuals", metavar="FILE", help="write the errors of the estimates to FILE"
    )
    requested, known = parse(SUITE, run.__doc__ or "", _ROUNDS, arguments, parser)
    observed, settings = Observed((), ()), {}
    if known.again is not None:
        stored = Report.load(known.again)
        observed, settings = Observed.of_records(stored.records), dict(stored.settings)
    else:
        # Stored after each program: a run that is ended early has measured what it has.
        for observed in _measured(requested.rounds, requested.quick):
            settings = {"load": round(os.getloadavg()[0], 1)}
            requested.store(observed.to_records(), **settings)
    requested.store([*_scored(observed), *observed.to_records()], **settings)
    if known.residuals is not None:
        write_file(Path(known.residuals), all_residuals(observed).to_bytes())
    return 0


def _measured(rounds: int, quick: bool) -> Iterator[Observed]:
    # The measuring library compiles, and the list of suites is shown without it.
    from pyc_mlir.lab.sessions.local import LocalMeasurer
    from pyc_mlir.lab.sessions.session import SessionPlan
    from pyc_mlir.tools.bench.predict.gather import observe
    from pyc_mlir.tools.bench.predict.programs import nothing, programs

    plan = SessionPlan(rounds, _PROCESSES)
    return observe(programs(quick), nothing(), LocalMeasurer("pyc-bench predict"), plan)


def _scored(observed: Observed) -> Iterator[Record]:
    for known in (ROWS_KNOWN, ROWS_UNKNOWN):
        yield from _figures(known, scores(observed, known))
    requested = [w for w in observed.recipes if w.planned is not None and w.stated is not None]
    if requested:
        exact = sum(w.planned == w.stated for w in requested) / len(requested)
        yield record("bytes by the planner without code", SUITE, "exact", "%", 100 * exact)
    yield record("estimates of one program", SUITE, "rate", "recipes a second", _rate(observed))


def _figures(known: str, found: Scores) -> Iterator[Record]:
    pairs = sum(j.pairs for j in found.judged)
    for name, metric in (
        ("winner", "pairs 5 % apart whose winner is right"),
        ("regret", "regret"),
        ("coverage", "90 % intervals that hold"),
    ):
        value, (lo, hi) = 100 * getattr(found, name), found.interval(name)
        note(f"{known}: {metric} {value:.1f} % ({100 * lo:.1f} to {100 * hi:.1f})")
        yield record(
            f"programs left out, {known}",
            SUITE,
            metric,
            "%",
            value,
            p10=100 * lo,
            p90=100 * hi,
            programs=len(found.judged),
            pairs=pairs,
            ways=sum(j.recipes for j in found.judged),
        )


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
