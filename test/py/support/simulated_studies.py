"""Studies on simulated measurements, and a program that runs one until it is killed.

    python simulated_studies.py URL ACKNOWLEDGED SECONDS WORKERS

runs the study and appends the hash of every trial to the file once its end is committed. Each cost
takes SECONDS.
"""

import functools
import hashlib
import os
import sys
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from suites.simulated import SIMULATED_PLACE, Failed, Simulated

from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import Graph, Status, Workload
from pyc_mlir.lab.sessions.session import MeasuredChoice, MeasuredProgram
from pyc_mlir.lab.tune.search import WITH_KNOBS, ChoiceSpace, SiteAlternative, TunedWork
from pyc_mlir.lab.tune.study import EFFORTS, Ledger, Setting, StudyBudget, WorkResult
from pyc_mlir.lab.tune.tuner import Kept, run_study
from pyc_mlir.lab.tune.workers import TrialJob
from pyc_mlir.pipelines.choices.space import Knob, KnobSpace

PASS = "pyc-select-kernels"
KNOBS = KnobSpace(
    (Knob("rows", (1, 2, 4, 8)), Knob("columns", (8, 16, 32, 64)), Knob("unroll", (1, 2, 4))),
    default=(1, 1, 0),
)
WAYS = (SiteAlternative("gemm:matmul", KNOBS), SiteAlternative("iree"))
PROGRAM = Graph("p", "program", "s1-p", "a program", 3)


def work(number: int, ways: tuple[SiteAlternative, ...] = WAYS, seconds: float = 1e-3) -> TunedWork:
    """A work whose best choice depends on its number."""
    text = f"work {number}"
    name = f"w1-{hashlib.sha256(text.encode()).hexdigest()}"
    site = f"{PASS}:{number}"
    space = ChoiceSpace.of(ways)
    row = Graph(name, "work", name, text, 1)
    return TunedWork(row, PASS, space, (site,), ways[0].name, seconds, WITH_KNOBS)


_made = functools.cache(work)


@dataclass(frozen=True)
class Costs:
    """Seconds of choices by formula; one is wrong. `sleep` is how long a session of two takes."""

    sleep: float = 0.0

    def __call__(self, subject: MeasuredProgram, candidate: MeasuredChoice) -> float | Failed:
        number = int(subject.graph.text.split()[1])
        one = _made(number)
        time.sleep(self.sleep / 2)
        (choice,) = candidate.recipe.values()
        config = one.config(choice)
        assert config is not None
        way, knobs = one.space.place(config)
        if not way.space.axes:
            return 2e-3
        if knobs == (3, 3, 2):
            return Failed(Status.WRONG, "off by 1")
        away = abs(knobs[0] - number % 4) + abs(knobs[1] - 3) / 2 + abs(knobs[2] - 1) / 4
        return 1e-3 * (1 + away)


def subject_of(graph: Graph) -> MeasuredProgram:
    """What a simulated measurer needs of a work."""
    return MeasuredProgram(graph, Workload(graph.graph_id))


def setting_of(works: tuple[TunedWork, ...], evaluations: int = 48, lanes: int = 1) -> Setting:
    """A study of these works by evaluations."""
    return Setting(
        PROGRAM, works, EFFORTS["measure"], StudyBudget(evaluations=evaluations), 0, lanes
    )


def prepared(
    store: EvidenceStore, setting: Setting, measurer: Any, lease_seconds: float = 60.0
) -> TrialJob:
    """Add the rows of a study; its job."""
    study = setting.study(SIMULATED_PLACE, {})
    store.add_place(SIMULATED_PLACE)
    store.add(setting.graph, *(w.graph for w in setting.works), study)
    url = store.url
    return TrialJob(
        url, study.id, measurer, subject_of, setting.effort.plans, SIMULATED_PLACE, lease_seconds
    )


def studied(
    url: str, setting: Setting, costs: Any, executor: Executor | None = None, workers: int = 1
) -> tuple[Ledger, tuple[WorkResult, ...]]:
    """Run a study to its end and keep its results."""
    with EvidenceStore.open(url) as store, executor or ThreadPoolExecutor(workers) as running:
        job = prepared(store, setting, Simulated(costs), lease_seconds=1.0)
        ledger = run_study(store, setting, job, running, workers)
        results = setting.results(ledger)
        Kept(store, SIMULATED_PLACE).confirmed(results)
    return ledger, results


def known_of(results: tuple[WorkResult, ...]) -> list[tuple[Any, ...]]:
    """What equal studies have in common."""
    return [(r.best, r.tried, r.leader, str(r.verdict), r.wrong) for r in results]


def main(url: str, path: str, seconds: float, workers: int) -> None:
    """Run the study; acknowledge what is committed."""
    acknowledged = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    finish = EvidenceStore.finish

    def finish_and_say(self: EvidenceStore, trial: Any, *traces: Any, **more: Any) -> None:
        finish(self, trial, *traces, **more)
        os.write(acknowledged, f"{trial.config_hash} {traces[0].id}\n".encode())

    EvidenceStore.finish = finish_and_say  # type: ignore[method-assign]
    works = tuple(map(work, range(3)))
    studied(url, setting_of(works), Costs(seconds), workers=workers)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
