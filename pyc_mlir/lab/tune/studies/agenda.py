"""The next measurements of a study, as a function of its results: search, rank again, confirm.

    chains -> search trials -> costs -> leaders -> rerank -> winner -> confirm -> WorkResult

Nothing here waits, measures or writes: the driver calls `Agenda` again after every result.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyc_mlir.lab.evidence.rows import CRASH, WRONG
from pyc_mlir.lab.tune.chains import Chain
from pyc_mlir.lab.tune.sites import TunedWork
from pyc_mlir.lab.tune.studies.ledger import Ledger, TrialOutcome, verdict_of
from pyc_mlir.lab.tune.studies.study import Asked, TrialStage, WorkResult
from pyc_mlir.runtime.selection.verdict import ALPHA, Judgement, VerdictKind

# A choice whose single measurement saves less than this share is not measured again.
LEAST_GAIN = 0.02
# Confirming sessions of a winner, the second one only where the first leaves it unclear.
LOOKS = 2
BAD = (WRONG, CRASH)


@dataclass(frozen=True)
class Agenda:
    """The proposals of a study.

    top: choices of a work that are ranked again. ahead: trials of the search that are open at a
    time. may_begin: whether the budget allows another trial of a stage; what was begun is ended.
    """

    works: Sequence[TunedWork]
    chains: Sequence[Chain]
    top: int
    ahead: int
    may_begin: Callable[[TrialStage], bool]

    def __call__(self, ledger: Ledger) -> list[Asked]:
        """Return the trials to measure now; nothing while all that depends on is under way."""
        if not ledger.asked(TrialStage.RERANK) and self.may_begin(TrialStage.SEARCH):
            found = self._searches(ledger)
            if found:
                return found
        if ledger.asked(TrialStage.SEARCH, only_open=True):
            return []
        return self._finals(ledger)

    def _searches(self, ledger: Ledger) -> list[Asked]:
        # What is known by measuring, and that an incumbent takes as long as itself.
        own = {(w.graph.graph_id, w.incumbent): 1.0 for w in self.works}
        known = {**ledger.costs, **own}
        room, waiting = self.ahead - len(ledger.open), []
        for chain in sorted(self.chains, key=lambda chain: -chain.priority):
            choice = chain.next(known)
            if choice is not None:
                asked = asked_of(chain.work, TrialStage.SEARCH, (choice,))
                waiting += [] if ledger.knows(asked) else [asked]
        return waiting[: max(0, room)]

    def _finals(self, ledger: Ledger) -> list[Asked]:
        """Rerank, then confirm; works that may save most first."""
        asked = []
        for work in self._by_gain(ledger):
            rerank = asked_of(work, TrialStage.RERANK, [c for c, _ in self.leaders(work, ledger)])
            outcome = ledger.outcome(rerank)
            if outcome is None:
                if ledger.knows(rerank) or self.may_begin(TrialStage.RERANK):
                    asked.append(rerank)
            elif (best := winner(outcome, work.pass_name)) is not None:
                asked += self._confirm(work, best, ledger)
        return asked

    def _confirm(self, work: TunedWork, best: str, ledger: Ledger) -> list[Asked]:
        """Another look while the verdict is unclear; the first one is always taken."""
        looks = self._looks(work, best, ledger)
        verdict = _verdict(looks)
        unclear = verdict is not None and verdict.answer is VerdictKind.UNCLEAR
        again = unclear and len(looks) < LOOKS and self.may_begin(TrialStage.CONFIRM)
        return (
            [asked_of(work, TrialStage.CONFIRM, (best,), len(looks))] if not looks or again else []
        )

    def _looks(self, work: TunedWork, best: str, ledger: Ledger) -> list[TrialOutcome]:
        asked = (asked_of(work, TrialStage.CONFIRM, (best,), n) for n in range(LOOKS))
        return [outcome for one in asked if (outcome := ledger.outcome(one)) is not None]

    def _by_gain(self, ledger: Ledger) -> list[TunedWork]:
        def gain(work: TunedWork) -> float:
            (_, cost), *_ = self.leaders(work, ledger)
            return (1 - cost) * work.seconds * len(work.sites)

        return sorted((w for w in self.works if self.leaders(w, ledger)), key=lambda w: -gain(w))

    def leaders(self, work: TunedWork, ledger: Ledger) -> list[tuple[str, float]]:
        """Return the choices that looked best, with their costs, best first."""
        mine = [
            (choice, cost)
            for (graph, choice), cost in ledger.costs.items()
            if graph == work.graph.graph_id and cost is not None and cost < 1 - LEAST_GAIN
        ]
        return sorted(mine, key=lambda item: (item[1], item[0]))[: self.top]

    def result(self, work: TunedWork, ledger: Ledger) -> WorkResult:
        """Return the outcome of a work, as far as is known."""
        tried = [choice for graph, choice in ledger.costs if graph == work.graph.graph_id]
        leaders = self.leaders(work, ledger)
        best, verdict, sessions, workload = work.incumbent, None, (), ""
        if leaders:
            rerank = ledger.outcome(asked_of(work, TrialStage.RERANK, [c for c, _ in leaders]))
            won = None if rerank is None else winner(rerank, work.pass_name)
            if rerank is not None and won is not None:
                looks = self._looks(work, won, ledger)
                if looks:
                    verdict, workload = _verdict(looks), looks[0].workload
                    sessions = (rerank.session, *(look.session for look in looks))
                if verdict is not None and verdict.answer is VerdictKind.FASTER:
                    best = won
        return WorkResult(
            work.graph.graph_id,
            work.pass_name,
            work.sites,
            work.incumbent,
            best,
            len(tried),
            work.space.size,
            verdict,
            leaders[0] if leaders else None,
            sessions,
            workload,
            tuple(sorted(bad_choices(work, ledger))),
        )


def _verdict(looks: Sequence[TrialOutcome]) -> Judgement | None:
    """On all confirming sessions together; each look has its share of the error."""
    return verdict_of([r for look in looks for r in look.rounds[1]], ALPHA / LOOKS)


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


def bad_choices(work: TunedWork, ledger: Ledger) -> Mapping[str, str]:
    """Choices with wrong results or that ended their process, and why: they are quarantined."""
    found: dict[str, str] = {}
    for outcome in ledger.outcomes():
        if outcome.asked.graph != work.graph.graph_id:
            continue
        for recipe, (status, reason) in zip(outcome.asked.recipes, outcome.statuses, strict=True):
            if status in BAD:
                found[recipe[work.pass_name]] = f"{status}: {reason}"
    return found
