"""The suite `tune-workers`: trials a second of studies with 1 to 8 workers.

Measurements are simulated: each sleeps. What is left is what the study itself costs: proposals,
leases, rows, wake-ups. `load` beside each number says how busy the machine was.
"""

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pyc_mlir.evidence.database.store import Store
from pyc_mlir.evidence.rows import Graph, Workload
from pyc_mlir.measure.records import Record, record
from pyc_mlir.measure.sessions.session import Candidate, Plan, Subject
from pyc_mlir.measure.sessions.simulated import SIMULATED_PLACE, Simulated
from pyc_mlir.pipelines.choices.space import Axis, Space
from pyc_mlir.tools.bench.report.suite import note, parse
from pyc_mlir.tools.cli.common import Parser
from pyc_mlir.tune.sites import BLOCK, WITH_KNOBS, ChoiceSpace, TunedWork, Way
from pyc_mlir.tune.studies.pools import PROCESSES, pool
from pyc_mlir.tune.studies.run import Setting, run_study
from pyc_mlir.tune.studies.study import Budget, Effort, Stage
from pyc_mlir.tune.studies.worker import Job

SUITE = "tune-workers"
WORKERS = (1, 2, 4, 8)
# Of a study for each worker, with `BLOCK` trials each: every run takes as long.
WORKS = 2
# What a real session takes on an idle machine.
SECONDS = 3.0
_QUICK_SECONDS = 0.02
_PASS = "pyc-select-kernels"
_KNOBS = Space(
    (Axis("rows", tuple(range(1, 9))), Axis("columns", tuple(range(1, 9)))), default=(0, 0)
)


@dataclass(frozen=True)
class Sleeps:
    """A cost that takes time to find out."""

    seconds: float

    def __call__(self, subject: Subject, candidate: Candidate) -> float:
        """Sleep, half of it for each of a session's two candidates."""
        time.sleep(self.seconds / 2)
        return 1e-3 * (1 + len(str(candidate.recipe)) % 7)


def run(arguments: Sequence[str]) -> int:
    """Trials a second of studies on simulated measurements, with 1 to 8 workers."""
    parser = Parser(SUITE, "")
    parser.add_argument("--executor", default=PROCESSES, metavar="WHERE", help="as of `pyc-tune`")
    asked, known = parse(SUITE, run.__doc__ or "", 1, arguments, parser)
    seconds = _QUICK_SECONDS if asked.quick else SECONDS
    counts = WORKERS[:2] if asked.quick else WORKERS
    where = "Dask" if known.executor != PROCESSES else PROCESSES
    asked.store(list(_records(known.executor, where, counts, seconds)), seconds=seconds)
    return 0


def _records(executor: str, where: str, counts: Sequence[int], seconds: float) -> Iterator[Record]:
    alone = 0.0
    for workers in counts:
        rate = trials_per_second(executor, workers, seconds)
        alone = alone or rate
        load = round(os.getloadavg()[0], 1)
        share = rate / alone / workers
        note(f"{where}: {workers} workers: {rate:.2f} trials a second, {share:.0%} of linear")
        name = f"{where}, {workers} worker{'s' if workers > 1 else ''}"
        rows = (("trials a second", "trials", rate), ("share of linear", "", share))
        for metric, unit, value in rows:
            yield record(f"{seconds:g} s a measurement", name, metric, unit, value, load=load)


def trials_per_second(where: str | Executor, workers: int, seconds: float) -> float:
    """Of one study, from its first proposal to its last result; workers run before it begins."""
    plan = Plan(rounds=8, processes=1)
    effort = Effort("bench", "portfolio", BLOCK, 0, dict.fromkeys(Stage, plan))
    works = tuple(map(_work, range(WORKS * workers)))
    setting = Setting(
        Graph("p", "program", "s1-p", "a program", len(works)), works, effort, Budget(), lanes=1
    )
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        url = f"sqlite:///{Path(folder, 'bench.db')}"
        store = stack.enter_context(Store.open(url))
        executor = stack.enter_context(pool(where, workers))
        study = setting.study(SIMULATED_PLACE, {})
        store.add_place(SIMULATED_PLACE)
        store.add(setting.graph, *(w.graph for w in works), study)
        job = Job(
            url, study.id, Simulated(Sleeps(seconds)), subject_of, effort.plans, SIMULATED_PLACE
        )
        wait([executor.submit(_awake, number) for number in range(2 * workers)])
        begin = time.perf_counter()
        ledger = run_study(store, setting, job, executor, workers)
        spent = time.perf_counter() - begin
    return len(ledger.trials) / spent


def _awake(number: int) -> int:
    """Keep one worker busy until the others have started too."""
    time.sleep(1.0)
    return number


def subject_of(graph: Graph) -> Subject:
    """What a simulated measurer needs of a work."""
    return Subject(graph, Workload(graph.graph_id))


def _work(number: int) -> TunedWork:
    text = f"work {number}"
    name = f"w1-{sha256(text.encode()).hexdigest()}"
    space = ChoiceSpace.of((Way("gemm:matmul", _KNOBS), Way("iree")))
    row = Graph(name, "work", name, text, 1)
    return TunedWork(row, _PASS, space, (f"{_PASS}:{number}",), "gemm:matmul", 1e-3, WITH_KNOBS)
