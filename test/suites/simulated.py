"""`Simulated`: a measurer whose times are computed, for tests of what decides by measurements.

    Simulated(lambda subject, candidate: 1e-3 if candidate.recipe else 2e-3)

Equal subjects, candidates and plans give equal times. The cost function gives seconds of a call, or
a `Failed` with the status and the reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pyc_mlir.lab.evidence.rows import Status, Trace
from pyc_mlir.lab.sessions.processes import SessionPlan
from pyc_mlir.lab.sessions.session import (
    ChoiceResult,
    MeasuredChoice,
    MeasuredProgram,
    SessionResult,
    require_candidates,
)
from pyc_mlir.measure.environment import Environments
from pyc_mlir.util.checksum import digest

SIMULATED_PLACE = Environments(
    {"cpu": "simulated"}, {"source": "simulated"}, {"threads": 1}, "simulated"
)
_MOMENT = "2026-01-01T00:00:00+00:00"


@dataclass(frozen=True)
class Failed:
    """The outcome that a cost function gives for a candidate without a time."""

    status: str = Status.REFUSED
    reason: str = "simulated"


Cost = Callable[[MeasuredProgram, MeasuredChoice], float | Failed]


@dataclass
class Simulated:
    """Times by a cost function, with noise that the plan's seed decides.

    noise: standard deviation of the logarithm of a sample, the same for processes as a whole.
    place: the claimed machine of the times. sessions: how many there were, and part of the nonce.
    """

    cost: Cost
    noise: float = 0.0
    place: Environments = SIMULATED_PLACE
    disturbed: tuple[str, ...] = ()
    sessions: int = field(default=0, init=False)

    def measure(
        self, subject: MeasuredProgram, candidates: Sequence[MeasuredChoice], plan: SessionPlan
    ) -> SessionResult:
        """See `Measurer`."""
        require_candidates(candidates)
        self.sessions += 1
        key = [subject.graph.graph_id, [dict(c.recipe) for c in candidates]]
        return SessionResult(
            subject,
            plan,
            self.place,
            digest([*key, plan.seed, plan.constants, self.sessions]),
            _MOMENT,
            _MOMENT,
            tuple(self._result(subject, c, plan) for c in candidates),
            disturbed=self.disturbed,
        )

    def _result(
        self, subject: MeasuredProgram, candidate: MeasuredChoice, plan: SessionPlan
    ) -> ChoiceResult:
        seconds = self.cost(subject, candidate)
        if isinstance(seconds, Failed):
            return ChoiceResult(candidate, seconds.status, seconds.reason)
        key = [subject.graph.graph_id, dict(candidate.recipe), plan.seed, plan.constants]
        chance = np.random.default_rng(int(digest([*key, self.sessions])[:16], 16))
        processes = []
        for number in range(plan.processes):
            level = seconds * np.exp(chance.normal(0, self.noise))
            cpu, wall = level * np.exp(chance.normal(0, self.noise, (2, plan.rounds)))
            processes.append(Trace(process=number, wall=wall, cpu=cpu))
        return ChoiceResult(candidate, processes=tuple(processes))
