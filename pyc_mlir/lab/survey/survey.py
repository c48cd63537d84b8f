"""`Survey`: measure of some programs' works what a database lacks, unattended and within a budget.

    survey = Survey(store, LocalMeasurer(), plan)
    for line in survey.run(programs, budget_seconds=600): print(line)

The works with the most predicted seconds come first. Each is measured in one session after the
other until its choices have enough of them. Each session is recorded before the next one begins:
after an interruption of any kind the next run measures what is still lacking, and nothing twice.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyc_mlir.compilation.compile_options import CompileOptions
from pyc_mlir.compilation.options import resolve
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import OK, WARM
from pyc_mlir.lab.sessions.local import ALLOCATOR
from pyc_mlir.lab.sessions.recording import record
from pyc_mlir.lab.sessions.session import (
    MeasuredChoice,
    MeasuredProgram,
    Measurer,
    SessionPlan,
    SessionResult,
)
from pyc_mlir.lab.sessions.subjects import subject_of_program, subject_of_work
from pyc_mlir.lab.survey.wanted import (
    Enough,
    MeasuredVariant,
    WantedWork,
    choice_recipe,
    known_choices,
    known_of,
    wanted_works,
)
from pyc_mlir.measure.environment import Environments, current_place
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


@dataclass
class Survey:
    """Measures works of programs, and with `whole` the programs too.

    plan: of each session; its constants are those of `constants`, one after the other. clock:
    seconds, for the budget. place: where the measurer's numbers are taken; None is this machine.
    """

    store: EvidenceStore
    measurer: Measurer
    plan: SessionPlan = field(default_factory=SessionPlan)
    constants: Sequence[str] = (WARM,)
    enough: Enough = field(default_factory=Enough)
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
                first = by_key.setdefault(task.key, task)
                first.seconds += 0.0 if first is task else task.seconds
            yield f"{program.name}: {_counted(found)}"
        tasks = sorted(by_key.values(), key=lambda task: -task.seconds)
        left = 0
        # All works once, then those that need another session: a small budget sees all of them.
        # What is disturbed is not repeated in the same run: the machine may stay as busy as it is.
        needed = -(-self.enough.processes // self.plan.processes)
        for _ in range(max(self.enough.sessions, needed)):
            waiting = [task for task in tasks if task.needs(self)]
            left = len(waiting)
            for task in waiting:
                if end is not None and self.clock() >= end:
                    yield from self._summary(left, "the budget is spent")
                    return
                yield task.measure(self)
                left -= 1
        yield from self._summary(0, "")

    def _tasks(self, program: Surveyed) -> list["_Task"]:
        options = replace(resolve(program.options), recipe=None)
        try:
            works = wanted_works(program.source, program.inputs, options)
        except PycError as error:
            self.skipped[program.name] = f"{error}"
            return []
        tasks = [
            _Task(work.graph.graph_id, work.seconds, constants, work=work, options=program.options)
            for work in works
            for constants in self.constants
        ]
        if self.whole:
            total = sum(work.seconds for work in works)
            tasks += (
                _Task(program.name, total, c, program=program, options=program.options)
                for c in self.constants
            )
        return tasks

    @property
    def here(self) -> Environments:
        """The place where numbers are taken."""
        kind = "local-sync" if self.plan.threads == 1 else "local-task"
        return self.place or current_place(kind, self.plan.threads, ALLOCATOR)

    def _summary(self, left: int, why: str) -> Iterator[str]:
        yield f"{self.measured} sessions measured" + (f", {left} left: {why}" if left else "")
        if self.disturbed:
            yield (
                f"{self.disturbed} of them on a disturbed machine: they are kept, but decide "
                "nothing; run again when it is quiet"
            )
        for name, reason in self.skipped.items():
            yield f"skipped {name}: {reason}"


def _counted(tasks: Sequence["_Task"]) -> str:
    works = {t.key[0]: t.work for t in tasks if t.work is not None}
    several = sum(len(work.choices) > 1 for work in works.values())
    return f"{len(works)} works, {several} with several choices"


@dataclass
class _Task:
    """A work or a program to measure, with constants in one state."""

    name: str
    seconds: float
    constants: str
    options: CompileOptions
    work: WantedWork | None = None
    program: Surveyed | None = None
    _subject: MeasuredProgram | None = field(default=None, init=False)

    @property
    def key(self) -> tuple[str, str]:
        """The key of what is measured: equal works of several programs are one task."""
        return self.name, self.constants

    @property
    def title(self) -> str:
        """For people."""
        what = self.name if self.work is None else f"{self.name[:11]} {self.work.ops}"
        return f"{what}, constants {self.constants}"

    def needs(self, survey: Survey) -> bool:
        """Return whether another session is lacking."""
        if self.title in survey.skipped:
            return False
        known = self._known(survey)
        failed = {f"{self.title}: {n}": one.failure for n, one in known.items() if one.failure}
        survey.skipped.update(failed)
        return any(not one.is_enough(survey.enough) for one in known.values())

    def _known(self, survey: Survey) -> dict[str, MeasuredVariant]:
        if self.work is not None:
            graph, choices = self.work.graph, self.work.choices
            return known_choices(survey.store, graph, choices, survey.here, self.constants)
        subject = self._made(survey)
        if subject is None:
            return {}
        own = OWN.implementation(subject.graph)
        return {OWN.name: known_of(survey.store, own, survey.here, self.constants)}

    def _made(self, survey: Survey) -> MeasuredProgram | None:
        """Return the subject; None where there is none, with the reason among those that are
        skipped.
        """
        if self._subject is None:
            try:
                if self.work is not None:
                    self._subject = subject_of_work(self.work.graph.text, self.options)
                elif self.program is not None:
                    given = self.program
                    self._subject = subject_of_program(given.source, given.inputs, given.options)
            except PycError as error:
                survey.skipped[self.title] = f"{error}"
        return self._subject

    def measure(self, survey: Survey) -> str:
        """Run one session and record it; return its outcome."""
        subject = self._made(survey)
        if subject is None:
            return f"{self.title}: skipped"
        known = self._known(survey)
        candidates = [
            OWN if self.work is None else MeasuredChoice(choice_recipe(name), name, ORIGIN)
            for name, one in known.items()
            if not one.failure
        ]
        sessions = max((one.sessions + one.disturbed for one in known.values()), default=0)
        plan = replace(survey.plan, constants=self.constants, seed=survey.plan.seed + sessions)
        try:
            found = survey.measurer.measure(subject, candidates, plan)
        except PycError as error:
            if error.code is ReasonCode.MACHINE_BUSY:
                raise
            survey.skipped[self.title] = f"{error}"
            return f"{self.title}: skipped"
        finally:
            self._subject = None
        record(survey.store, found)
        survey.measured += 1
        survey.disturbed += bool(found.disturbed)
        return f"{self.title}: {_said(found)}"


def _said(found: SessionResult) -> str:
    parts = []
    for result in found.results:
        seconds = result.seconds()
        what = quantity(seconds, "s") if result.status == OK and seconds else result.status
        why = f" ({result.reason})" if result.reason else ""
        parts.append(f"{result.candidate.name} {what}{why}")
    why = f" [disturbed: {'; '.join(found.disturbed)}]" if found.disturbed else ""
    return f"{', '.join(parts)}{why}"
