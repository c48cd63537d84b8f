"""The outcomes of a study's trials, as the database has them.

Comes in: ended trials and the traces of their sessions. Goes out: `TrialOutcome`s: of each
candidate its status and its rounds beside the incumbent's; and from those the costs that searches
learn from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.database.trials import DONE, FAILED, StoredTrial
from pyc_mlir.lab.evidence.rows import OK, REFUSED, Implementation, Samples, Trace
from pyc_mlir.lab.tune.studies.study import Asked, TrialStage
from pyc_mlir.runtime.selection.verdict import ALPHA, MIN_ROUNDS, Judgement, Rounds, judge
from pyc_mlir.util.checksum import digest


@dataclass(frozen=True, eq=False)
class TrialOutcome:
    """One ended trial.

    statuses: (status, reason) of each candidate, the incumbent first. rounds: of each candidate,
    process by process beside the incumbent's; empty where one of them has no times. session,
    workload: their ids.
    """

    asked: Asked
    statuses: tuple[tuple[str, str], ...]
    rounds: tuple[tuple[Rounds, ...], ...]
    session: str = ""
    workload: str = ""

    def verdict(self, number: int) -> Judgement | None:
        """Return the verdict of a candidate against the incumbent; None without times of both."""
        return verdict_of(self.rounds[number])

    def cost(self, number: int) -> float | None:
        """Candidate's time / incumbent's; None where the candidate failed.

        On CPU time where there is any: other processes disturb it less.
        """
        found = self.verdict(number)
        return None if found is None else found.intervals.get("cpu", found.interval).ratio


def verdict_of(processes: Sequence[Rounds], alpha: float = ALPHA) -> Judgement | None:
    """Return the verdict of rounds; None of too few."""
    enough = any(len(p.candidate_wall) >= MIN_ROUNDS for p in processes)
    return judge(processes, alpha) if enough else None


class Ledger:
    """The outcomes of a study's trials; `update` reads those that ended since."""

    def __init__(self, store: EvidenceStore, study_id: str) -> None:
        self._store, self._study_id = store, study_id
        self._outcomes: dict[str, TrialOutcome] = {}
        self._recipes: dict[str, Mapping[str, str]] = {}
        self._costs: dict[tuple[str, str], float | None] = {}
        self.trials: list[StoredTrial] = []

    def update(self) -> None:
        """Read the trials, and the traces of those that are new."""
        self.trials = self._store.trials(self._study_id)
        for trial in self.trials:
            if trial.state in (DONE, FAILED) and trial.config_hash not in self._outcomes:
                found = self._outcome(trial)
                self._outcomes[trial.config_hash] = found
                if found.asked.stage is TrialStage.SEARCH:
                    (choice,) = found.asked.recipes[1].values()
                    self._costs[found.asked.graph, choice] = found.cost(1)

    @property
    def open(self) -> list[StoredTrial]:
        """The trials that have not ended."""
        return [t for t in self.trials if t.state not in (DONE, FAILED)]

    @property
    def seconds(self) -> float:
        """The seconds that all trials took."""
        return sum(t.seconds or 0.0 for t in self.trials)

    def asked(self, stage: TrialStage, only_open: bool = False) -> bool:
        """Return whether there is a trial of a stage."""
        trials = self.open if only_open else self.trials
        return any(t.config["stage"] == stage for t in trials)

    def knows(self, asked: Asked) -> bool:
        """Return whether there is this trial."""
        name = digest(to_data(asked))
        return any(t.config_hash == name for t in self.trials)

    def outcome(self, asked: Asked) -> TrialOutcome | None:
        """Return the outcome of a trial that ended; None of others."""
        return self._outcomes.get(digest(to_data(asked)))

    def outcomes(self) -> list[TrialOutcome]:
        """Return the outcomes of all trials that ended."""
        return list(self._outcomes.values())

    @property
    def costs(self) -> Mapping[tuple[str, str], float | None]:
        """The cost of each searched choice by graph id and choice; None where it failed."""
        return self._costs

    def _outcome(self, trial: StoredTrial) -> TrialOutcome:
        asked = from_data(Asked, trial.config)
        known = None if trial.trace_id is None else self._store.get(Trace, trial.trace_id)
        if known is None:
            failed = ((REFUSED, trial.reason),) * len(asked.recipes)
            return TrialOutcome(asked, failed, ((),) * len(asked.recipes))
        traces = self._store.find(Trace, session_id=known.session_id)
        mine = [
            [t for t in traces if self._recipe(t.impl_id) == dict(recipe)]
            for recipe in asked.recipes
        ]
        statuses = tuple(map(_status, mine))
        beside = tuple(_beside(ours, mine[0]) for ours in mine)
        return TrialOutcome(asked, statuses, beside, known.session_id, known.workload_id)

    def _recipe(self, impl_id: str) -> Mapping[str, str]:
        if impl_id not in self._recipes:
            found = self._store.get(Implementation, impl_id)
            assert found is not None, "traces refer to implementations"
            self._recipes[impl_id] = dict(found.recipe)
        return self._recipes[impl_id]


def _status(traces: Sequence[Trace]) -> tuple[str, str]:
    """Return the first failure of a candidate, else that it is fine."""
    bad = [(t.status, t.reason) for t in traces if t.status != OK]
    return bad[0] if bad else (OK, "") if traces else (REFUSED, "no trace of it")


def _beside(ours: Sequence[Trace], incumbent: Sequence[Trace]) -> tuple[Rounds, ...]:
    theirs = {t.process: t for t in incumbent if t.status == OK}
    pairs = [(t, theirs[t.process]) for t in ours if t.status == OK and t.process in theirs]
    return tuple(
        Rounds(a.wall / a.calls, b.wall / b.calls, *_cpu(a, b))
        for a, b in sorted(pairs, key=lambda pair: pair[0].process)
    )


def _cpu(ours: Trace, theirs: Trace) -> tuple[Samples | None, Samples | None]:
    """CPU times of a call where both have them and they are no zeros of a coarse clock."""
    both = (ours.cpu / ours.calls, theirs.cpu / theirs.calls)
    usable = all(len(times) and times.min() > 0 for times in both)
    return both if usable else (None, None)
