"""`LocalMeasurer`: measures candidates on this machine.

    compile each in a worker -> compare results with the reference -> time all in fresh processes

One session holds the machine's token. Its first and its last process time the first candidate twice
(an A/A probe); together with Linux's counters this shows whether the machine was a place
to measure. Whatever a candidate does, refuse to compile, crash, hang or compute something else,
becomes its status. Its recipe may name sites, works or passes; the sites of the subject's own
compile determine which ones are meant.
"""

import functools
import hashlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.artifact.artifact import Artifact, to_bytes
from pyc_mlir.artifact.manifest import ARENA
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.options import Options, resolve
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import tensor
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.lab.evidence.rows import COLD, CPU, WALL, Status, Trace, samples
from pyc_mlir.lab.sessions.processes import (
    ALLOCATOR,
    CHECK,
    TIME,
    MeasureJob,
    ProcessOutcome,
    SessionPlan,
    run_job,
    stored,
)
from pyc_mlir.lab.sessions.session import (
    ChoiceResult,
    MeasuredChoice,
    MeasuredProgram,
    Reference,
    SessionResult,
    described,
    require_candidates,
)
from pyc_mlir.lab.sessions.subjects import arguments_of, subject_of_work
from pyc_mlir.lab.simulation.simulator import Simulator
from pyc_mlir.measure import machine
from pyc_mlir.measure.environment import current_place
from pyc_mlir.measure.machine import measure_token
from pyc_mlir.pipelines.choices.choices import Recipe
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp
from pyc_mlir.util.children import temporary_folder
from pyc_mlir.util.logs import logged
from pyc_mlir.worker.compile import WorkerCompile
from pyc_mlir.worker.messages import WorkerFault

_STATUSES = {ReasonCode.NATIVE_CRASH: Status.CRASH, ReasonCode.COMPILE_TIMEOUT: Status.TIMEOUT}
_SAID = 500
# By how much a program may differ from itself before its machine counts as disturbed.
MOST_APART = 0.05
# A process's times of the empty program, by clock.
_CALL = {"nothing": WALL, "nothing_cpu": CPU}
_ONE = tensor("f32", 1)
# References of programs that are kept: those of large ones take seconds.
_KEPT = 8
_Expected = tuple[Sequence[np.ndarray], Reference]


@dataclass(frozen=True)
class Compiled:
    """A candidate with its artifact's bytes, empty where there is none; no times yet.

    artifact: what was compiled, without which the result has a status and a reason.
    """

    result: ChoiceResult
    artifact: Artifact | None = None

    @cached_property
    def data(self) -> bytes:
        """The artifact's bytes."""
        assert self.artifact is not None
        return to_bytes(self.artifact)


@dataclass
class Compiler:
    """Compiles candidates of one subject.

    timeout_seconds: after which a compile is ended. threads: of the predicted call.
    """

    subject: MeasuredProgram
    timeout_seconds: float
    threads: int = 1

    def compile(self, candidate: MeasuredChoice) -> Compiled:
        """Compile the candidate; return its artifact, or why there is none; a bad candidate never
        raises.
        """
        choices: dict[str, str] = {}
        try:
            for key, choice in candidate.recipe.items():
                choices |= dict.fromkeys(self._sites(key), choice)
        except PycError as error:
            return Compiled(ChoiceResult(candidate, Status.REFUSED, _said(error)))
        # The incumbent of most sessions is PyC's own choice.
        if choices.items() <= self._default.result.chosen.items():
            own = self._default
            return replace(own, result=replace(own.result, candidate=candidate))
        return self._compiled(candidate, Recipe(choices))

    @cached_property
    def _default(self) -> Compiled:
        return self._compiled(MeasuredChoice(), None)

    def _compiled(self, candidate: MeasuredChoice, recipe: Recipe | None) -> Compiled:
        began, subject = time.monotonic(), self.subject
        job = Job.of(subject.source, subject.inputs, replace(self._options, recipe=recipe))
        try:
            with WorkerCompile(job, logged, give_up_seconds=self.timeout_seconds) as work:
                made = work.compile()
        except (PycError, WorkerFault, MemoryError) as error:
            code = error.code if isinstance(error, PycError) else None
            crashed = Status.CRASH if isinstance(error, WorkerFault) else Status.REFUSED
            status = _STATUSES.get(code, crashed) if code is not None else crashed
            seconds = time.monotonic() - began
            return Compiled(ChoiceResult(candidate, status, _said(error), compile_seconds=seconds))
        seconds = time.monotonic() - began
        entry = made.manifest.entries.get(ARENA)
        result = ChoiceResult(
            candidate,
            compile_seconds=seconds,
            arena_bytes=None if entry is None else entry.arena_bytes,
            constant_bytes=made.account.constants,
            chosen={d.site.key: d.chosen for d in made.decisions},
            # By the costs in the compile's log: no measured row.
            predicted=Simulator.of(made, threads=self.threads).estimate(),
        )
        found = Compiled(result, made)
        key = hashlib.sha256(found.data).hexdigest()
        return replace(found, result=replace(result, artifact_key=key))

    @cached_property
    def _options(self) -> Options:
        options = resolve(self.subject.options)
        return replace(options, passes=self.subject.passes) if self.subject.passes else options

    def _sites(self, key: str) -> list[str]:
        """Return the sites that a key names: one itself, those of a work, or all of a pass.

        A key that names nothing of PyC's own compile is one of another compile's sites.
        """
        name, _, rest = key.partition(":")
        made = self._default.artifact
        sites = [] if made is None else [d.site for d in made.decisions]
        if any(site.key == key for site in sites):
            return [key]
        found = [s.key for s in sites if (s.work_key == key if rest else s.pass_name == name)]
        if found or rest:
            return list(dict.fromkeys(found)) or [key]
        raise PycError(
            ReasonCode.RECIPE_MISMATCH,
            f"recipe: expected a pass with a site in this program, got {name!r}",
        )


def _said(error: BaseException) -> str:
    return f"{error}"[:_SAID] or type(error).__name__


@functools.cache
def nothing() -> bytes:
    """Return the artifact of a program that does next to nothing: relu of one number.

    Raises PycError (RUNTIME_FAILED) where it cannot be compiled.
    """
    subject = subject_of_work(Work((Input(_ONE),), (WorkOp("relu", (0,), {}, _ONE),), ("",)))
    made = Compiler(subject, SessionPlan().timeout_seconds).compile(MeasuredChoice())
    if made.artifact is None:
        raise PycError(
            ReasonCode.RUNTIME_FAILED,
            f"measuring: expected the smallest program to compile, got: {made.result.reason}",
        )
    return made.data


@dataclass
class LocalMeasurer:
    """Measures on this machine.

    holder: the name that other measuring processes see. wait_seconds: how long to wait for them.
    """

    holder: str = "a measuring session"
    wait_seconds: float = 600.0
    _compiler: Compiler | None = field(default=None, init=False)
    _references: dict[tuple[str, str, int], _Expected] = field(default_factory=dict, init=False)

    def measure(
        self, subject: MeasuredProgram, candidates: Sequence[MeasuredChoice], plan: SessionPlan
    ) -> SessionResult:
        """See `Measurer`. Raises PycError also where the subject itself has no reference."""
        require_candidates(candidates)
        arguments, reference = self._expected(subject, plan)
        if not reference.finite_share:
            raise PycError(
                ReasonCode.NO_ORACLE,
                f"measuring {subject.graph.graph_id[:16]}: expected results that are finite and "
                "that rounding does not decide, got none to compare; give other arguments",
            )
        known, given = self._compiler, (plan.timeout_seconds, plan.threads)
        if (
            known is None
            or known.subject is not subject
            or (known.timeout_seconds, known.threads) != given
        ):
            # Of the last subject only: what is kept holds artifacts.
            known = self._compiler = Compiler(subject, *given)
        compiled = [known.compile(candidate) for candidate in candidates]
        with temporary_folder("pyc-measure-") as folder:
            session = _Session(plan, compiled, reference, folder, arguments)
            with measure_token(self.holder, self.wait_seconds):
                if plan.quiet:
                    # The disturbances while this process does nothing.
                    first = machine.read_counters()
                    machine.pause()
                    machine.require_quiet(machine.disturbances(first, machine.read_counters(), 0.0))
                began, before = _now(), machine.read_counters()
                session.run()
                after = machine.read_counters()
        reasons = machine.disturbances(before, after, session.cpu_seconds)
        place = current_place(plan.device, plan.threads, ALLOCATOR)
        probes = session.probes or [{}]
        # By CPU time where there is one.
        ratios = [p.get(f"{CPU}_ratio", p.get(f"{WALL}_ratio", 1.0)) for p in probes]
        worst = max(abs(ratio - 1) for ratio in ratios)
        if worst > MOST_APART:
            reasons = (*reasons, f"a program differed from itself by {worst:.0%}")
        return SessionResult(
            subject, plan, place, uuid.uuid4().hex, began, _now(), tuple(session.results()),
            probes[0], probes[-1], machine.stolen_share(before, after), after.load,
            reasons,
        )  # fmt: skip

    def _expected(self, subject: MeasuredProgram, plan: SessionPlan) -> _Expected:
        """Return the arguments of a call, and what it must compute."""
        if subject.arguments is not None and subject.reference is not None:
            return subject.arguments, subject.reference
        key = (subject.graph.graph_id, subject.workload.id, plan.seed)
        if key not in self._references:
            program = described(subject.source, subject.inputs)
            arguments = subject.arguments
            if arguments is None:
                arguments = arguments_of(program.signature, plan.seed, subject.workload.dims)
            self._references[key] = (arguments, program.reference(arguments))
            if len(self._references) > _KEPT:
                del self._references[next(iter(self._references))]
        return self._references[key]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class _Session:
    """The processes of one session, and their results for each candidate."""

    def __init__(
        self,
        plan: SessionPlan,
        compiled: Sequence[Compiled],
        reference: Reference,
        folder: Path,
        arguments: Sequence[np.ndarray],
    ) -> None:
        self.plan, self.compiled, self.reference = plan, compiled, reference
        self.probes: list[dict[str, float]] = []
        self.cpu_seconds = 0.0
        self._folder = folder
        self._failed: dict[int, tuple[str, str]] = {}
        self._times: dict[int, list[Trace]] = {}
        self._peaks: dict[int, int] = {}
        self._paths: dict[int, str] = {}
        for number, one in enumerate(compiled):
            if one.artifact is None:
                self._failed[number] = (one.result.status, one.result.reason)
                continue
            path = folder / f"candidate{number}.vmfb"
            write_file(path, one.data)
            self._paths[number] = str(path)
        self._arguments = stored(arguments, folder)
        self._nothing = str(folder / "nothing.vmfb")
        write_file(self._nothing, nothing())
        self._scalar = stored([np.ones(1, np.float32)], folder, "scalar")

    @property
    def _alive(self) -> list[int]:
        return [n for n in range(len(self.compiled)) if n not in self._failed]

    def run(self) -> None:
        """Check, then time in one process after the other."""
        self._check()
        for process in range(self.plan.processes):
            self._time(process)

    def results(self) -> list[ChoiceResult]:
        """Return one result for each candidate, in order."""
        made = []
        for number, one in enumerate(self.compiled):
            status, reason = self._failed.get(number, (Status.OK, ""))
            times = tuple(self._times.get(number, ()))
            made.append(replace(one.result, status=status, reason=reason, processes=times))
        return made

    def _check(self) -> None:
        """Compare each candidate's results with the reference."""
        waiting = self._alive
        while waiting:
            outcome = self._run(CHECK, waiting)
            for message in outcome.messages:
                if "results" in message:
                    self._compare(waiting[message["results"]], message["peak_bytes"])
            ended = self._blame(outcome, waiting)
            waiting = [] if ended is None else waiting[ended + 1 :]

    def _compare(self, number: int, peak_bytes: int) -> None:
        path = self._paths[number]
        files = [Path(f"{path}.{i}") for i in range(len(self.reference.expected))]
        self._peaks[number] = peak_bytes
        if why := self.reference.problem([read_file(file) for file in files]):
            self._failed[number] = (Status.WRONG, why)
        for file in files:
            file.unlink()

    def _time(self, process: int) -> None:
        """Time one process of rounds; again without a candidate that ends it."""
        plan = self.plan
        while alive := self._alive:
            probing = process in (0, plan.processes - 1)
            given = [*alive, alive[0]] if probing else alive
            flush = machine.flush_bytes() if plan.constants == COLD else 0
            seed = plan.seed * plan.processes + process
            outcome = self._run(TIME, given, seed, flush, (), self._nothing, self._scalar)
            if self._blame(outcome, given) is None:
                self._keep(outcome, given, process, probing)
                return

    def _run(self, kind: str, numbers: Sequence[int], *more: Any) -> ProcessOutcome:
        """Do a job with some candidates; more: what a job has besides the plan."""
        given = tuple(self._paths[n] for n in numbers)
        job = MeasureJob(kind, given, self._arguments, self.plan, *more)
        outcome = run_job(job, self._folder, self.plan.timeout_seconds)
        self.cpu_seconds += outcome.cpu_seconds
        return outcome

    def _blame(self, outcome: ProcessOutcome, given: Sequence[int]) -> int | None:
        """Note whom the process failed by; the place at which it ended, None where it did not."""
        for message in outcome.messages:
            if "failed" in message:
                self._failed[given[message["failed"]]] = (Status.REFUSED, message["reason"])
        if outcome.failed is None:
            return None
        status = Status.TIMEOUT if outcome.timed_out else Status.CRASH
        # Before the first candidate's turn no process can live here: none of them has a time.
        for place in range(len(given)) if outcome.failed < 0 else (outcome.failed,):
            self._failed[given[place]] = (status, outcome.reason)
        return outcome.failed if outcome.failed >= 0 else len(given)

    def _keep(
        self, outcome: ProcessOutcome, given: Sequence[int], process: int, probing: bool
    ) -> None:
        made: dict[int, Trace] = {}
        for message in outcome.messages:
            if "times" in message:
                place = message["times"]
                made[place] = Trace(
                    process=process,
                    wall=samples(message["wall"]),
                    cpu=samples(message["cpu"] if self.plan.threads == 1 else ()),
                    calls=message["calls"],
                    peak_bytes=self._peaks.get(given[place]),
                )
        if probing and len(given) - 1 in made and 0 in made:
            call = next((m for m in outcome.messages if "nothing" in m), {})
            costs = {f"call_{c}_seconds": call[n] for n, c in _CALL.items() if n in call}
            self.probes.append({**_probe(made[0], made.pop(len(given) - 1)), **costs})
        for place, times in made.items():
            self._times.setdefault(given[place], []).append(times)


def _probe(one: Trace, other: Trace) -> dict[str, float]:
    """Return the median ratio of a program's times to its own, by each clock, and its seconds."""
    found: dict[str, float] = {}
    for clock in (WALL, CPU):
        first, second = one.per_call(clock), other.per_call(clock)
        if len(first) and len(second) and second.min() > 0:
            found[f"{clock}_ratio"] = float(np.median(first / second))
            found[f"{clock}_seconds"] = float(np.median(first))
    return found
