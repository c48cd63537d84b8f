"""Studies on simulated measurements, for `tune_workers.py`: trials a second by workers."""

import tempfile
import time
from concurrent.futures import Executor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import Graph, Workload
from pyc_mlir.lab.sessions.processes import SessionPlan
from pyc_mlir.lab.sessions.session import MeasuredChoice, MeasuredProgram
from pyc_mlir.lab.tune.search import BLOCK, WITH_KNOBS, ChoiceSpace, SiteAlternative, TunedWork
from pyc_mlir.lab.tune.study import Effort, Setting, StudyBudget, TrialStage
from pyc_mlir.lab.tune.tuner import run_study
from pyc_mlir.lab.tune.workers import TrialJob, pool
from pyc_mlir.pipelines.choices.space import Knob, KnobSpace
from suites.simulated import SIMULATED_PLACE, Simulated

# Of a study for each worker, with `BLOCK` trials each: every run takes as long.
WORKS = 2
_PASS = "pyc-select-kernels"
_KNOBS = KnobSpace(
    (Knob("rows", tuple(range(1, 9))), Knob("columns", tuple(range(1, 9)))), default=(0, 0)
)


@dataclass(frozen=True)
class Sleeps:
    """A cost that takes time to find out."""

    seconds: float

    def __call__(self, subject: MeasuredProgram, candidate: MeasuredChoice) -> float:
        """Sleep, half of it for each of a session's two candidates."""
        time.sleep(self.seconds / 2)
        return 1e-3 * (1 + len(str(candidate.recipe)) % 7)


def trials_per_second(where: str | Executor, workers: int, seconds: float) -> float:
    """Measure one study, from first proposal to last result; workers run before it begins."""
    plan = SessionPlan(rounds=8, processes=1)
    effort = Effort("bench", "portfolio", BLOCK, 0, dict.fromkeys(TrialStage, plan))
    works = tuple(map(_work, range(WORKS * workers)))
    setting = Setting(
        Graph("p", "program", "s1-p", "a program", len(works)),
        works,
        effort,
        StudyBudget(),
        lanes=1,
    )
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        url = f"sqlite:///{Path(folder, 'bench.db')}"
        store = stack.enter_context(EvidenceStore.open(url))
        executor = stack.enter_context(pool(where, workers))
        study = setting.study(SIMULATED_PLACE, {})
        store.add_place(SIMULATED_PLACE)
        store.add(setting.graph, *(w.graph for w in works), study)
        job = TrialJob(
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


def subject_of(graph: Graph) -> MeasuredProgram:
    """Return the part of a work that a simulated measurer needs."""
    return MeasuredProgram(graph, Workload(graph.graph_id))


def _work(number: int) -> TunedWork:
    text = f"work {number}"
    name = f"w1-{sha256(text.encode()).hexdigest()}"
    space = ChoiceSpace.of((SiteAlternative("gemm:matmul", _KNOBS), SiteAlternative("iree")))
    row = Graph(name, "work", name, text, 1)
    return TunedWork(row, _PASS, space, (f"{_PASS}:{number}",), "gemm:matmul", 1e-3, WITH_KNOBS)
