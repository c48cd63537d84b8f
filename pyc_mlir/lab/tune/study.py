"""A study: how hard it searches, its trials and their outcomes, what is measured next.

    search    one choice beside the incumbent, quickly
    rerank    the few that looked best and the incumbent, in several processes
    confirm   the winner of those and the incumbent again: the reported gain rests on this alone
    program   the whole program with all confirmed choices and with none, twice

The quickest of many noisy measurements looks better than it is (the winner's curse), and so does
the quickest of a few good ones. So the choice is made in `rerank`, the number comes from `confirm`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.lab.evidence.database.store import EvidenceStore, StoredTrial
from pyc_mlir.lab.evidence.rows import Graph, Implementation, Status, Study, Trace, paired
from pyc_mlir.lab.sessions.processes import SessionPlan
from pyc_mlir.lab.tune.search import (
    Every,
    Learned,
    Portfolio,
    Search,
    Strategy,
    TunedWork,
    allot,
)
from pyc_mlir.measure.environment import Environments
from pyc_mlir.pipelines.choices.space import Config
from pyc_mlir.runtime.selection.verdict import ALPHA, Judgement, Rounds, VerdictKind, judged
from pyc_mlir.util.checksum import digest

# The objectives of studies.
WORKS, PROGRAM = "seconds of works", "seconds of the program"
# A choice whose single measurement saves less than this share is not measured again.
LEAST_GAIN = 0.02
# Confirming sessions of a winner, the second one only where the first leaves it unclear.
LOOKS = 2
# Trials that are open for each worker: one is measured, the other waits; workers of other processes
# that a study without its own has trials for.
AHEAD, _OTHERS = 2, 8


class TrialStage(StrEnum):
    """The purpose of a trial."""

    SEARCH = "search"
    RERANK = "rerank"
    CONFIRM = "confirm"
    PROGRAM = "program"


@dataclass(frozen=True)
class Effort:
    """How hard a study searches (the names are FFTW's).

    evaluations: of choices of all works, on the average of those that get any. strategy:
    ``portfolio`` or ``exhaustive`` (`chains`); empty measures nothing. top: choices of a work that
    are ranked again. plans: how each stage measures.
    """

    name: str
    strategy: str
    evaluations: int
    top: int
    plans: Mapping[TrialStage, SessionPlan]


def _plans(rounds: int, processes: int) -> dict[TrialStage, SessionPlan]:
    several = SessionPlan(rounds=rounds, processes=processes)
    return {
        TrialStage.SEARCH: SessionPlan(rounds=12, processes=1),
        TrialStage.RERANK: several,
        TrialStage.CONFIRM: SessionPlan(rounds=rounds, processes=max(5, processes)),
        TrialStage.PROGRAM: several,
    }


EFFORTS: Mapping[str, Effort] = {
    e.name: e
    for e in (
        Effort("estimate", "", 0, 0, _plans(15, 3)),
        Effort("measure", "portfolio", 16, 3, _plans(15, 3)),
        Effort("patient", "portfolio", 64, 5, _plans(20, 3)),
        Effort("exhaustive", "exhaustive", 1 << 16, 5, _plans(30, 5)),
    )
}


def effort_of(name: str) -> Effort:
    """Return an effort by its name. Raises PycError (BAD_ARGUMENT)."""
    if name not in EFFORTS:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"effort: expected one of {', '.join(EFFORTS)}, got {name!r}"
            f"{did_you_mean(name, EFFORTS)}",
        )
    return EFFORTS[name]


@dataclass(frozen=True)
class StudyBudget:
    """When a study's search ends: seconds of measuring and compiling, or evaluations, or neither.

    Stages after the search take what they need. A study with a limit on evaluations alone gives
    equal results for equal costs.
    """

    seconds: float | None = None
    evaluations: int | None = None


_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def budget_of(text: "str | float | StudyBudget | None") -> StudyBudget:
    """Return a budget of ``10min``, ``90s``, ``2h``, ``500`` (evaluations) or a number of seconds.

    Raises PycError (BAD_ARGUMENT).
    """
    if text is None or isinstance(text, StudyBudget):
        return text or StudyBudget()
    if isinstance(text, int | float):
        number, unit = float(text), "s"
    else:
        unit = next((u for u in ("min", "s", "h") if text.endswith(u)), "")
        try:
            number = float(text.removesuffix(unit))
        except ValueError:
            number = -1.0
    if not 0 < number < float("inf") or (not unit and number != int(number)):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"budget: expected a time such as 90s, 10min or 2h, or a number of evaluations, got "
            f"{text!r}",
        )
    return StudyBudget(number * _UNITS[unit]) if unit else StudyBudget(evaluations=int(number))


@dataclass(frozen=True)
class Asked:
    """A trial's configuration: what to measure in one session, the incumbent first.

    graph: the id of a work, or of the program. recipes: {pass or site: choice} of each candidate.
    repeat: distinguishes sessions of equal candidates, and seeds them.
    """

    stage: TrialStage
    graph: str
    recipes: tuple[Mapping[str, str], ...]
    repeat: int = 0


@dataclass(frozen=True)
class WorkResult:
    """The outcome of one work.

    tried: choices with a cost. best: the choice that won, the incumbent's where none did. verdict:
    of the confirming sessions, None without one. leader: the search's own best and its cost, which
    is no result. sessions: those of rerank and confirm. workload: what they ran on. wrong: choices
    with wrong results, or that ended their process.
    """

    work: TunedWork
    best: str
    tried: int
    verdict: Judgement | None = None
    leader: tuple[str, float] | None = None
    sessions: tuple[str, ...] = ()
    workload: str = ""
    wrong: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """True if a choice was confirmed to be faster than the incumbent."""
        return self.best != self.work.incumbent


@dataclass(frozen=True)
class StudyResult:
    """The outcome of a study, at its end or where it was interrupted.

    recipe: {site: choice} of all confirmed choices. program: the verdict on the whole program with
    it; None if it was not measured. state: of that recipe in the database, empty without one.
    seconds: spent measuring and compiling. left: why the study is not at its end; empty at its end.
    estimate: the result from evidence and predictions, if nothing was measured.
    """

    study_id: str
    graph_id: str
    works: tuple[WorkResult, ...]
    recipe: Mapping[str, str]
    program: Judgement | None
    state: str
    trials: int
    seconds: float
    left: str = ""
    estimate: str = ""

    @property
    def changed(self) -> Sequence[WorkResult]:
        """The works with a faster choice."""
        return [work for work in self.works if work.changed]


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
        return judged(self.rounds[number])

    def cost(self, number: int) -> float | None:
        """Candidate's time / incumbent's; None where the candidate failed.

        On CPU time where there is any: other processes disturb it less.
        """
        found = self.verdict(number)
        return None if found is None else found.intervals.get("cpu", found.interval).ratio


class Ledger:
    """The outcomes of a study's trials, as the database has them.

    costs: of each searched choice by graph id and choice; None where it failed.
    """

    def __init__(self, store: EvidenceStore, study_id: str) -> None:
        self._store, self._study_id = store, study_id
        self._outcomes: dict[str, TrialOutcome] = {}
        self._recipes: dict[str, Mapping[str, str]] = {}
        self.costs: dict[tuple[str, str], float | None] = {}
        self.trials: list[StoredTrial] = []

    def update(self) -> None:
        """Read the trials, and the traces of those that ended since."""
        self.trials = self._store.trials(self._study_id)
        for trial in self.trials:
            if trial.is_ended and trial.config_hash not in self._outcomes:
                found = self._outcomes[trial.config_hash] = self._outcome(trial)
                if found.asked.stage is TrialStage.SEARCH:
                    (choice,) = found.asked.recipes[1].values()
                    self.costs[found.asked.graph, choice] = found.cost(1)

    @property
    def open(self) -> list[StoredTrial]:
        """The trials that have not ended."""
        return [t for t in self.trials if not t.is_ended]

    @property
    def seconds(self) -> float:
        """The seconds that all trials took."""
        return sum(t.seconds or 0.0 for t in self.trials)

    @property
    def outcomes(self) -> list[TrialOutcome]:
        """The outcomes of all trials that ended."""
        return list(self._outcomes.values())

    def knows(self, asked: Asked) -> bool:
        """Return whether there is this trial."""
        name = digest(to_data(asked))
        return any(t.config_hash == name for t in self.trials)

    def outcome(self, asked: Asked) -> TrialOutcome | None:
        """Return the outcome of a trial that ended; None of others."""
        return self._outcomes.get(digest(to_data(asked)))

    def _outcome(self, trial: StoredTrial) -> TrialOutcome:
        asked = from_data(Asked, trial.config)
        known = None if trial.trace_id is None else self._store.get(Trace, trial.trace_id)
        if known is None:
            failed = ((Status.REFUSED, trial.reason),) * len(asked.recipes)
            return TrialOutcome(asked, failed, ((),) * len(asked.recipes))
        traces = self._store.find(Trace, session_id=known.session_id)
        for name in {t.impl_id for t in traces} - self._recipes.keys():
            made = self._store.get(Implementation, name)
            assert made is not None, "traces refer to implementations"
            self._recipes[name] = dict(made.recipe)
        mine = [
            [t for t in traces if self._recipes[t.impl_id] == dict(recipe)]
            for recipe in asked.recipes
        ]
        statuses = tuple(
            # The first failure of a candidate, else that it is fine.
            next(((t.status, t.reason) for t in own if t.status != Status.OK), (Status.OK, ""))
            if own
            else (Status.REFUSED, "no trace of it")
            for own in mine
        )
        theirs = {t.process: t for t in mine[0] if t.status == Status.OK}
        rounds = tuple(
            tuple(
                found
                for t in sorted(own, key=lambda t: t.process)
                if t.status == Status.OK
                and t.process in theirs
                and (found := paired(t, theirs[t.process]))
            )
            for own in mine
        )
        return TrialOutcome(asked, statuses, rounds, known.session_id, known.workload_id)


@dataclass
class Chain:
    """One search over one work, at most `evaluations` long, that asks for one choice at a time.

    Its order depends on its own costs alone, never on when they came. So any number of workers
    gives the same search, and a study that was killed goes on where it was: its chains begin anew
    and are told the costs that the database has.
    """

    work: TunedWork
    strategy: Strategy
    evaluations: int
    seed: int
    asked: int = field(default=0, init=False)
    _search: Search | None = field(default=None, init=False)
    _config: Config | None = field(default=None, init=False)

    def ask(self, costs: Mapping[tuple[str, str], float | None]) -> str | None:
        """Return the choice that the search waits for, after all costs that are known; None at its
        end.
        """
        if self._search is None:
            self._search = self.strategy.search(self.work.space, np.random.default_rng(self.seed))
            self._take(next(self._search, None))
        while self._config is not None:
            key = (self.work.graph.graph_id, self.work.choice(self._config))
            if key not in costs:
                return key[1]
            try:
                self._take(self._search.send(costs[key]))
            except StopIteration:
                self._take(None)
        return None

    def _take(self, config: Config | None) -> None:
        self.asked += config is not None
        self._config = config if self.asked <= self.evaluations else None

    @property
    def priority(self) -> float:
        """Which chain goes first where there is not time for all: the largest."""
        return self.work.weight / self.asked if self.asked else float("inf")


def chains(
    works: Sequence[TunedWork], strategy: str, evaluations: int, seed: int, lanes: int
) -> list[Chain]:
    """Return the chains of a study: `lanes` for each work that gets evaluations.

    The first begins with what is known and goes on with a learned model (or tries every choice, for
    the strategy `exhaustive`), further ones learn from other starts. More lanes keep more workers
    busy; each lane has its share of the evaluations.
    """
    made = []
    for work, given in zip(works, allot(works, evaluations), strict=True):
        every = strategy == Every.name
        used = 1 if every else min(lanes, max(1, given // 8))
        for lane in range(used if given else 0):
            first = Portfolio(work.first, Every() if every else Learned())
            search = Learned() if lane else first
            share = given // used + (lane < given % used)
            made.append(Chain(work, search, share, seed + lane))
    return made


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
        return Study(
            self.graph.graph_id,
            tuple(work.graph.graph_id for work in self.works),
            place.id,
            WORKS,
            digest([spaces, self.evaluations, self.effort.name, self.lanes]),
            self.effort.strategy,
            self.seed,
            dict(notes),
            normalizer=self.graph.normalizer,
        )

    def agenda(
        self, may_begin: Callable[[TrialStage], bool], workers: int = 1
    ) -> Callable[[Ledger], list[Asked]]:
        """Return the next measurements of the study, as a function of its results.

            chains -> search trials -> costs -> leaders -> rerank -> winner -> confirm -> WorkResult

        Nothing waits, measures or writes: the function is called again after every result, and
        gives nothing while all that depends on is under way. may_begin: whether the budget allows
        another trial of a stage; what was begun is ended. workers: 0 for those of other processes.
        """
        given = (self.effort.strategy, self.evaluations, self.seed, self.lanes)
        searches, ahead = chains(self.works, *given), AHEAD * (workers or _OTHERS)

        def propose(ledger: Ledger) -> list[Asked]:
            stages = [t.config["stage"] for t in ledger.trials]
            if TrialStage.RERANK not in stages and may_begin(TrialStage.SEARCH):
                found = self._searches(ledger, searches, ahead)
                if found:
                    return found
            if any(t.config["stage"] == TrialStage.SEARCH for t in ledger.open):
                return []
            return self._finals(ledger, may_begin)

        return propose

    def results(self, ledger: Ledger) -> tuple[WorkResult, ...]:
        """Return the outcome of each work, as far as is known."""
        return tuple(self._result(work, ledger) for work in self.works)

    def _searches(self, ledger: Ledger, chains: Sequence[Chain], ahead: int) -> list[Asked]:
        # What is known by measuring, and that an incumbent takes as long as itself.
        known = {**ledger.costs, **{(w.graph.graph_id, w.incumbent): 1.0 for w in self.works}}
        room, waiting = ahead - len(ledger.open), []
        for chain in sorted(chains, key=lambda chain: -chain.priority):
            choice = chain.ask(known)
            if choice is not None:
                asked = asked_of(chain.work, TrialStage.SEARCH, (choice,))
                waiting += [] if ledger.knows(asked) else [asked]
        return waiting[: max(0, room)]

    def _finals(self, ledger: Ledger, may_begin: Callable[[TrialStage], bool]) -> list[Asked]:
        """Rerank, then confirm; works that may save most first."""
        leaders = {w.graph.graph_id: self.leaders(w, ledger) for w in self.works}

        def gain(work: TunedWork) -> float:
            return (1 - leaders[work.graph.graph_id][0][1]) * work.all_seconds

        asked = []
        led = [w for w in self.works if leaders[w.graph.graph_id]]
        for work in sorted(led, key=lambda w: -gain(w)):
            choices = [choice for choice, _ in leaders[work.graph.graph_id]]
            rerank = asked_of(work, TrialStage.RERANK, choices)
            outcome = ledger.outcome(rerank)
            if outcome is None:
                if ledger.knows(rerank) or may_begin(TrialStage.RERANK):
                    asked.append(rerank)
            elif (best := winner(outcome, work.pass_name)) is not None:
                # Another look while the verdict is unclear; the first one is always taken.
                looks = _looks(work, best, ledger)
                verdict = _verdict(looks)
                unclear = verdict is not None and verdict.answer is VerdictKind.UNCLEAR
                again = unclear and len(looks) < LOOKS and may_begin(TrialStage.CONFIRM)
                if not looks or again:
                    asked.append(asked_of(work, TrialStage.CONFIRM, (best,), len(looks)))
        return asked

    def leaders(self, work: TunedWork, ledger: Ledger) -> list[tuple[str, float]]:
        """Return the choices that looked best, with their costs, best first."""
        mine = [
            (choice, cost)
            for (graph, choice), cost in ledger.costs.items()
            if graph == work.graph.graph_id and cost is not None and cost < 1 - LEAST_GAIN
        ]
        return sorted(mine, key=lambda item: (item[1], item[0]))[: self.effort.top]

    def _result(self, work: TunedWork, ledger: Ledger) -> WorkResult:
        leaders = self.leaders(work, ledger)
        rerank = ledger.outcome(asked_of(work, TrialStage.RERANK, [c for c, _ in leaders]))
        won = None if rerank is None else winner(rerank, work.pass_name)
        best, verdict, sessions, workload = work.incumbent, None, (), ""
        if rerank is not None and won is not None and (looks := _looks(work, won, ledger)):
            verdict, workload = _verdict(looks), looks[0].workload
            sessions = (rerank.session, *(look.session for look in looks))
            if verdict is not None and verdict.answer is VerdictKind.FASTER:
                best = won
        # Choices with wrong results or that ended their process are quarantined.
        wrong = {
            recipe[work.pass_name]
            for outcome in ledger.outcomes
            if outcome.asked.graph == work.graph.graph_id
            for recipe, (status, _) in zip(outcome.asked.recipes, outcome.statuses, strict=True)
            if status in (Status.WRONG, Status.CRASH)
        }
        tried = sum(graph == work.graph.graph_id for graph, _ in ledger.costs)
        leader = leaders[0] if leaders else None
        ran = (sessions, workload, tuple(sorted(wrong)))
        return WorkResult(work, best, tried, verdict, leader, *ran)


def _looks(work: TunedWork, best: str, ledger: Ledger) -> list[TrialOutcome]:
    asked = (asked_of(work, TrialStage.CONFIRM, (best,), n) for n in range(LOOKS))
    return [outcome for one in asked if (outcome := ledger.outcome(one)) is not None]


def _verdict(looks: Sequence[TrialOutcome]) -> Judgement | None:
    """On all confirming sessions together; each look has its share of the error."""
    return judged([r for look in looks for r in look.rounds[1]], ALPHA / LOOKS)


def asked_of(work: TunedWork, stage: TrialStage, choices: Sequence[str], repeat: int = 0) -> Asked:
    """Return a trial of a work's choices beside its incumbent."""
    recipes = tuple({work.pass_name: choice} for choice in (work.incumbent, *choices))
    return Asked(stage, work.graph.graph_id, recipes, repeat)


def winner(rerank: TrialOutcome, pass_name: str) -> str | None:
    """Return the choice of least ratio that is faster than the incumbent; None if none is."""
    faster: list[tuple[float, str]] = []
    for number, recipe in enumerate(rerank.asked.recipes[1:], 1):
        verdict, cost = rerank.verdict(number), rerank.cost(number)
        if verdict is not None and cost is not None and verdict.answer is VerdictKind.FASTER:
            faster.append((cost, recipe[pass_name]))
    return min(faster)[1] if faster else None
