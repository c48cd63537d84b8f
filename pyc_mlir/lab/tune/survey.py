"""`Survey`: measure of some programs' works what a database lacks, unattended and within a budget.

    survey = Survey(store, LocalMeasurer(), plan)
    for line in survey.run(programs, budget_seconds=600): print(line)

The works with the most predicted seconds come first. Each is measured with all of its alternatives
in one session after the other until they have enough of them. Each session is recorded before the
next one begins: after an interruption of any kind the next run measures what is still lacking, and
nothing twice.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.options import CompileOptions, resolve
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import (
    DISTURBED,
    WARM,
    Graph,
    Implementation,
    Session,
    SessionEnd,
    Status,
    Trace,
)
from pyc_mlir.lab.sessions.processes import ALLOCATOR, SessionPlan
from pyc_mlir.lab.sessions.session import (
    MeasuredChoice,
    MeasuredProgram,
    Measurer,
    SessionResult,
    record,
)
from pyc_mlir.lab.sessions.subjects import subject_of_program, subject_of_work
from pyc_mlir.lab.tune.search import TunedWork, kernel_works
from pyc_mlir.measure.environment import Environments, current_place
from pyc_mlir.pipelines.choices.policies import MIN_PROCESSES, MIN_SESSIONS
from pyc_mlir.util.units import quantity

ORIGIN = "profile"
OWN = MeasuredChoice(label="default", origin=ORIGIN)


@dataclass(frozen=True)
class Surveyed:
    """A program to survey: its name for people, and what `compile` takes."""

    name: str
    source: Any
    inputs: Sequence[Any] | None = None
    options: CompileOptions = field(default_factory=CompileOptions)


@dataclass(frozen=True)
class MeasuredVariant:
    """The database's facts on one way to compile a graph, in one place and state of constants.

    sessions, processes: on a machine that was not disturbed. failure: the status and reason of a
    candidate that will not do better by being tried again.
    """

    sessions: int = 0
    processes: int = 0
    disturbed: int = 0
    failure: str = ""

    @staticmethod
    def of(
        store: EvidenceStore, made: Implementation, place: Environments, constants: str
    ) -> "MeasuredVariant":
        """Return the measurements of an implementation in this place."""
        sessions: set[str] = set()
        noisy: set[str] = set()
        processes, failure = 0, ""
        for trace in store.find(Trace, impl_id=made.id, constants=constants):
            session = store.get(Session, trace.session_id)
            if session is None or session.env_id != place.id:
                continue
            ends = store.find(SessionEnd, session_id=session.id)
            if trace.status != Status.OK:
                # A process that took too long may have been held up by others.
                failure = (
                    f"{trace.status}: {trace.reason}" if trace.status != Status.TIMEOUT else failure
                )
            elif any(end.probe.get(DISTURBED) for end in ends):
                noisy.add(session.id)
            else:
                sessions.add(session.id)
                processes += 1
        return MeasuredVariant(len(sessions), processes, len(noisy), failure)


@dataclass
class Survey:
    """Measures works of programs, and with `whole` the programs too.

    plan: of each session; its constants are those of `constants`, one after the other. sessions,
    processes: of each choice that are enough. clock: seconds, for the budget. place: where the
    measurer's numbers are taken; None is this machine. skipped: what cannot be measured, and why.
    """

    store: EvidenceStore
    measurer: Measurer
    plan: SessionPlan = field(default_factory=SessionPlan)
    constants: Sequence[str] = (WARM,)
    sessions: int = MIN_SESSIONS
    processes: int = MIN_PROCESSES
    whole: bool = False
    clock: Callable[[], float] = time.monotonic
    place: Environments | None = None
    measured: int = field(default=0, init=False)
    disturbed: int = field(default=0, init=False)
    skipped: dict[str, str] = field(default_factory=dict, init=False)

    def run(
        self, programs: Sequence[Surveyed], budget_seconds: float | None = None
    ) -> Iterator[str]:
        """Measure; a line for each program and session, last a summary with what was skipped.

        A program that cannot be read or compiled is skipped, with the reason.
        """
        end = None if budget_seconds is None else self.clock() + budget_seconds
        by_key: dict[tuple[str, str], _Task] = {}
        for program in programs:
            found = self._tasks(program)
            for task in found:
                # Equal works of several programs are one task.
                name = program.name if task.work is None else task.graph.graph_id
                first = by_key.setdefault((name, task.constants), task)
                first.seconds += 0.0 if first is task else task.seconds
            works = {t.graph.graph_id: t.work for t in found if t.work is not None}
            several = sum(len(work.names) > 1 for work in works.values())
            yield f"{program.name}: {len(works)} works, {several} with several choices"
        tasks = sorted(by_key.values(), key=lambda task: -task.seconds)
        # All works once, then those that need another session: a small budget sees all of them.
        # What is disturbed is not repeated in the same run: the machine may stay as busy as it is.
        for _ in range(max(self.sessions, -(-self.processes // self.plan.processes))):
            waiting = [task for task in tasks if self._needs(task)]
            for number, task in enumerate(waiting):
                if end is not None and self.clock() >= end:
                    left = len(waiting) - number
                    yield from self._summary(f", {left} left: the budget is spent")
                    return
                yield f"{task.title}: {self._measure(task)}"
        yield from self._summary("")

    def _summary(self, left: str) -> Iterator[str]:
        yield f"{self.measured} sessions measured{left}"
        if self.disturbed:
            yield (
                f"{self.disturbed} of them on a disturbed machine: they are kept, but decide "
                "nothing; run again when it is quiet"
            )
        for name, reason in self.skipped.items():
            yield f"skipped {name}: {reason}"

    def _tasks(self, program: Surveyed) -> list["_Task"]:
        options = replace(resolve(program.options), recipe=None)
        found: list[_Task] = []
        try:
            works = kernel_works(Job.of(program.source, program.inputs, options))
            for work in sorted(works, key=lambda w: (-w.all_seconds, w.graph.graph_id)):
                found.append(_Task(program, work.graph, work.all_seconds, work))
            if self.whole:
                seconds = sum(work.all_seconds for work in works)
                found.append(_Task(program, _subject(program, None).graph, seconds))
        except PycError as error:
            # Works that were found before the whole program was refused are measured.
            name = f"{program.name} as a whole" if found else program.name
            self.skipped[name] = f"{error}"
        states = self.constants
        return [replace(task, constants=state) for task in found for state in states]

    def _needs(self, task: "_Task") -> bool:
        """Return whether another session is lacking."""
        if task.title in self.skipped:
            return False
        known = self._known(task)
        failed = {f"{task.title}: {c.name}": one.failure for c, one in known if one.failure}
        self.skipped.update(failed)
        return any(
            not one.failure and (one.sessions < self.sessions or one.processes < self.processes)
            for _, one in known
        )

    def _known(self, task: "_Task") -> list[tuple[MeasuredChoice, MeasuredVariant]]:
        """Return the candidates, each with what the database has of it in this place."""
        here = self.place or current_place(self.plan.device, self.plan.threads, ALLOCATOR)
        made = ((c, c.implementation(task.graph)) for c in task.candidates)
        return [(c, MeasuredVariant.of(self.store, m, here, task.constants)) for c, m in made]

    def _measure(self, task: "_Task") -> str:
        """Run one session and record it; return its outcome."""
        known = self._known(task)
        candidates = [choice for choice, one in known if not one.failure]
        sessions = max((one.sessions + one.disturbed for _, one in known), default=0)
        plan = replace(self.plan, constants=task.constants, seed=self.plan.seed + sessions)
        try:
            found = self.measurer.measure(_subject(task.program, task.work), candidates, plan)
        except PycError as error:
            if error.code is ReasonCode.MACHINE_BUSY:
                raise
            self.skipped[task.title] = f"{error}"
            return "skipped"
        record(self.store, found)
        self.measured += 1
        self.disturbed += bool(found.disturbed)
        return _said(found)


@dataclass
class _Task:
    """A work, or else a program, to measure with constants in one state."""

    program: Surveyed
    graph: Graph
    seconds: float
    work: TunedWork | None = None
    constants: str = WARM

    @property
    def title(self) -> str:
        what = self.program.name
        if self.work is not None:
            what = f"{self.graph.graph_id[:11]} {self.work.ops}"
        return f"{what}, constants {self.constants}"

    @property
    def candidates(self) -> list[MeasuredChoice]:
        if self.work is None:
            return [OWN]
        pass_name = self.work.pass_name
        return [MeasuredChoice({pass_name: name}, name, ORIGIN) for name in self.work.names]


def _subject(program: Surveyed, work: TunedWork | None) -> MeasuredProgram:
    if work is not None:
        return subject_of_work(work.graph.text, program.options)
    return subject_of_program(program.source, program.inputs, program.options)


def _said(found: SessionResult) -> str:
    parts = []
    for result in found.results:
        seconds = result.seconds()
        what = quantity(seconds, "s") if result.status == Status.OK and seconds else result.status
        why = f" ({result.reason})" if result.reason else ""
        parts.append(f"{result.candidate.name} {what}{why}")
    why = f" [disturbed: {'; '.join(found.disturbed)}]" if found.disturbed else ""
    return f"{', '.join(parts)}{why}"
