"""The suite `policies`: programs by `heuristic`, `fastest`, `explore` and by exhaustive search.

    pyc-bench policies --budget 600      survey works for so many seconds, then measure programs

Works are surveyed first, as by `pyc-tune profile`; `fastest` and `explore` choose by what that
found. Then each program is one session of all its recipes. Exhaustive search measures every
combination of kernels where there are at most `MOST_COMBINATIONS`. Meant for an idle machine: what
a session was disturbed by stands beside its numbers.
"""

import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT
from pyc_mlir.tools.bench.peers.workload import BenchWorkload
from pyc_mlir.tools.bench.report.suite import note, parse
from pyc_mlir.tools.cli.common import Parser

if TYPE_CHECKING:
    from pyc_mlir.lab.sessions.session import Measurer, SessionPlan

SUITE = "policies"
HEURISTIC, FASTEST, EXPLORE, EXHAUSTIVE = "heuristic", "fastest", "explore", "exhaustive"
MOST_COMBINATIONS = 16
_ROUNDS, _BUDGET, _QUICK_BUDGET = 20, 600.0, 20.0


def run(arguments: Sequence[str]) -> int:
    """Compare programs by `fastest`, `explore` and exhaustive search with `heuristic`."""
    # The measuring library compiles, and the list of suites is shown without it.
    from pyc_mlir.lab.evidence.database.exchange import export_wisdom
    from pyc_mlir.lab.evidence.database.store import EvidenceStore
    from pyc_mlir.lab.sessions.local import LocalMeasurer
    from pyc_mlir.lab.sessions.session import SessionPlan
    from pyc_mlir.lab.tune.survey import Survey, Surveyed
    from pyc_mlir.measure.environment import current_place
    from pyc_mlir.tools.bench.predict.programs import programs

    parser = Parser(SUITE, "")
    parser.add_argument(
        "--budget", type=float, default=_BUDGET, help=f"seconds; default: {_BUDGET:g}"
    )
    requested, known = parse(SUITE, run.__doc__ or "", _ROUNDS, arguments, parser)
    some, here = programs(requested.quick), current_place()
    measurer, plan = LocalMeasurer("pyc-bench policies"), SessionPlan(requested.rounds)
    with (
        tempfile.TemporaryDirectory() as folder,
        EvidenceStore.open(f"sqlite:///{Path(folder, 'evidence.db')}") as store,
    ):
        survey = Survey(store, measurer, plan)
        surveyed = [Surveyed(p.name, p.source, p.specs) for p in some]
        for line in survey.run(surveyed, _QUICK_BUDGET if requested.quick else known.budget):
            note(line)
        wisdom = export_wisdom(store, here.hardware, here.toolchain)
    requested.store([r for p in some for r in compared(p, wisdom, measurer, plan)])
    return 0


def compared(
    program: BenchWorkload, wisdom: Wisdom, measurer: "Measurer", plan: "SessionPlan"
) -> Iterator[Record]:
    """Yield a record for each policy; the quickest combination stands for exhaustive search."""
    from pyc_mlir.lab.sessions.session import MeasuredChoice
    from pyc_mlir.lab.sessions.subjects import subject_of_program

    candidates = [
        MeasuredChoice(recipe, label) for label, recipe in recipes(program, wisdom).items()
    ]
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


def recipes(program: BenchWorkload, wisdom: Wisdom) -> Mapping[str, Mapping[str, str]]:
    """Return each policy's choices for a program, as {site: choice}."""
    from pyc_mlir.compilation.job import Job
    from pyc_mlir.compilation.lower import lower
    from pyc_mlir.compilation.options import make_options
    from pyc_mlir.lab.explore.programs import explore

    options = make_options()
    kernels = [
        d for d in lower(Job.of(program.source, program.specs, options)).decisions
        if d.site.pass_name == SELECT
    ]  # fmt: skip
    by_rows = make_options(policy=FASTEST, wisdom=wisdom)
    fastest = lower(Job.of(program.source, program.specs, by_rows)).decisions
    requested = replace(options, policy=make_options(policy=EXPLORE, wisdom=wisdom).policy)
    explored = explore(Job.of(program.source, program.specs, requested), wisdom).chosen()
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
