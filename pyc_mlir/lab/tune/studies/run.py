"""Run a study on works whose spaces are known: search, rerank, confirm; and keep what it came to.

    run_study(store, setting, job, executor, workers) -> (results of works, ledger)

Everything is in the database before the next step begins, so a study that was killed at any moment
goes on by being run again with the same setting.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import Graph, Implementation, Study
from pyc_mlir.lab.evidence.rows import Verdict as VerdictRow
from pyc_mlir.lab.evidence.states import (
    CANDIDATE,
    EXPERIMENTAL,
    MEASURED,
    NEW,
    QUARANTINED,
    VERIFIED,
    Scope,
)
from pyc_mlir.lab.tune.chains import chains
from pyc_mlir.lab.tune.sites import TunedWork
from pyc_mlir.lab.tune.studies.agenda import Agenda
from pyc_mlir.lab.tune.studies.driver import AHEAD, drive
from pyc_mlir.lab.tune.studies.ledger import Ledger
from pyc_mlir.lab.tune.studies.study import Effort, StudyBudget, TrialStage, WorkResult
from pyc_mlir.lab.tune.studies.worker import TUNER, TrialJob
from pyc_mlir.measure.environment import Environments
from pyc_mlir.runtime.selection.verdict import Judgement
from pyc_mlir.util.checksum import digest

WORKS, PROGRAM = "seconds of works", "seconds of the program"
# Of the sessions that a verdict names one chose the candidate, the others judged it.
RULE = "chosen, then judged 1"
# Of a time budget: what the search may take; the rest is for ranking again and confirming.
_SEARCH_SHARE = 0.5
# Workers of other processes that a study without its own has trials for.
_OTHERS = 8


@dataclass(frozen=True)
class Setting:
    """The scope and the method of a study; equal settings continue one study.

    graph: of the program. lanes: searches of each work at a time.
    """

    graph: Graph
    works: tuple[TunedWork, ...]
    effort: Effort
    budget: StudyBudget
    seed: int = 0
    lanes: int = 1

    @property
    def evaluations(self) -> int:
        """The search's limit: the budget's, or the effort's for all works with a choice."""
        if self.budget.evaluations is not None:
            return self.budget.evaluations
        return self.effort.evaluations * sum(work.space.size > 1 for work in self.works)

    def study(self, place: Environments, notes: Mapping[str, object]) -> Study:
        """Return the row of a study; `notes` serve a resume, and are no part of the study's id."""
        spaces = [
            [w.graph.graph_id, w.pass_name, w.incumbent, w.space.size, len(w.sites)]
            for w in self.works
        ]
        searched = [spaces, self.evaluations, self.effort.name, self.lanes]
        return Study(
            self.graph.graph_id,
            tuple(work.graph.graph_id for work in self.works),
            place.id,
            WORKS,
            digest(searched),
            self.effort.strategy,
            self.seed,
            dict(notes),
            normalizer=self.graph.normalizer,
        )


def run_study(
    store: EvidenceStore,
    setting: Setting,
    job: TrialJob,
    executor: Executor,
    workers: int,
    clock: Callable[[], float] = time.monotonic,
) -> Ledger:
    """Measure until the agenda is empty. Raises what `drive` raises."""
    agenda = agenda_of(setting, _limit(store, setting, job, workers, clock), workers)
    return drive(store, job, agenda, executor, workers)


def agenda_of(
    setting: Setting, may_begin: Callable[[TrialStage], bool], workers: int = 1
) -> Agenda:
    """Return the proposals of a study."""
    effort = setting.effort
    made = chains(setting.works, effort.strategy, setting.evaluations, setting.seed, setting.lanes)
    return Agenda(setting.works, made, effort.top, AHEAD * (workers or _OTHERS), may_begin)


def _limit(
    store: EvidenceStore, setting: Setting, job: TrialJob, workers: int, clock: Callable[[], float]
) -> Callable[[TrialStage], bool]:
    """Return whether the budget's time allows another trial; what was spent before counts."""
    seconds = setting.budget.seconds
    if seconds is None:
        return lambda stage: True
    spent = sum(t.seconds or 0.0 for t in store.trials(job.study_id)) / max(1, workers)
    begin = clock() - spent

    def may_begin(stage: TrialStage) -> bool:
        share = _SEARCH_SHARE if stage is TrialStage.SEARCH else 1.0
        return clock() - begin < share * seconds

    return may_begin


def results_of(setting: Setting, ledger: Ledger) -> tuple[WorkResult, ...]:
    """Return the outcome of each work, as far as is known."""
    agenda = agenda_of(setting, lambda stage: False)
    return tuple(agenda.result(work, ledger) for work in setting.works)


def keep_results(
    store: EvidenceStore, setting: Setting, results: Sequence[WorkResult], place: Environments
) -> None:
    """Write verdicts and states of works: what was confirmed is `measured`.

    What is wrong was quarantined when it was recorded. Written again it changes nothing.
    """
    for work, result in zip(setting.works, results, strict=True):
        scope = Scope(work.graph.structure_id, "", place.hardware, place.toolchain)
        if result.changed and result.verdict is not None:
            ours = implementation(work.graph, {work.pass_name: result.best})
            theirs = implementation(work.graph, {work.pass_name: work.incumbent})
            row = verdict_row(ours, theirs, result.verdict, result.sessions, place, result.workload)
            store.add(row)
            steps = (CANDIDATE, VERIFIED, MEASURED)
            move(store, ours, scope, steps, str(result.verdict), row.id)


def implementation(graph: Graph, recipe: Mapping[str, str]) -> Implementation:
    """Return the row of a way to compile a graph, as far as its id goes."""
    return Implementation(graph.graph_id, dict(recipe), normalizer=graph.normalizer)


def verdict_row(
    ours: Implementation,
    theirs: Implementation,
    verdict: Judgement,
    sessions: Sequence[str],
    place: Environments,
    workload: str,
) -> VerdictRow:
    """Return a verdict as the database keeps it."""
    found = verdict.interval
    return VerdictRow(
        ours.id, theirs.id, workload, place.hardware, place.toolchain, tuple(sorted(sessions)),
        found.ratio, found.low, found.high, verdict.alpha, RULE, str(verdict.answer),
    )  # fmt: skip


def move(
    store: EvidenceStore,
    one: Implementation,
    scope: Scope,
    steps: Sequence[str],
    reason: str,
    verdict_id: str | None = None,
) -> str:
    """Take a recipe through states that it has not been in; return the state it is in.

    What was moved for this reason before, and what is quarantined, stays where it is.
    """
    history = [s for s in store.history(one.id) if (s.scope, s.lane) == (scope, EXPERIMENTAL)]
    state = history[-1].state if history else NEW
    again = any((s.state, s.reason) == (steps[-1], reason) for s in history)
    if again or state == QUARANTINED:
        return state
    left = steps[steps.index(state) + 1 :] if state in steps else steps
    for state in left:
        proof = verdict_id if state == MEASURED else None
        store.transition(one.id, scope, EXPERIMENTAL, state, TUNER, reason, proof)
    return state
