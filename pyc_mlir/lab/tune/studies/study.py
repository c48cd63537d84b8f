"""The records of a study: how hard it searches, its trials, and what it found.

    search    one choice beside the incumbent, quickly
    rerank    the few that looked best and the incumbent, in several processes
    confirm   the winner of those and the incumbent again: the reported gain rests on this alone
    program   the whole program with all confirmed choices and with none, twice

The quickest of many noisy measurements looks better than it is (the winner's curse), and so does
the quickest of a few good ones. So the choice is made in `rerank`, the number comes from `confirm`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.sessions.session import SessionPlan
from pyc_mlir.runtime.selection.verdict import Judgement


class TrialStage(StrEnum):
    """The purpose of a trial."""

    SEARCH = "search"
    RERANK = "rerank"
    CONFIRM = "confirm"
    PROGRAM = "program"


@dataclass(frozen=True)
class Effort:
    """How hard a study searches (the names are FFTW's).

    evaluations: of choices of all works, on the average of those that get any. strategy: of
    `STRATEGIES`; empty measures nothing. top: choices of a work that are ranked again. plans: how
    each stage measures.
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

    sites: of the program that have it. tried: choices with a cost, of `choices` at most. best: the
    choice that won, the incumbent's where none did. verdict: of the confirming sessions, None
    without one. leader: the search's own best and its cost, which is no result. sessions: those of
    rerank and confirm. workload: what they ran on. wrong: choices with wrong results, or that
    ended their process.
    """

    graph_id: str
    pass_name: str
    sites: tuple[str, ...]
    incumbent: str
    best: str
    tried: int
    choices: int
    verdict: Judgement | None = None
    leader: tuple[str, float] | None = None
    sessions: tuple[str, ...] = ()
    workload: str = ""
    wrong: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """True if a choice was confirmed to be faster than the incumbent."""
        return self.best != self.incumbent


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
