"""`LocalMeasurer`: measures candidates on this machine.

    compile each in a worker -> compare results with the reference -> time all in fresh processes

One session holds the machine's token. Its first and its last process time the first candidate twice
(an A/A probe); together with Linux's counters this shows whether the machine was a place
to measure. Whatever a candidate does, crash, hang or compute something else, becomes its status.
"""

import functools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import tensor
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.lab.evidence.rows import (
    COLD,
    CPU,
    CRASH,
    OK,
    REFUSED,
    TIMEOUT,
    WALL,
    WRONG,
    Trace,
    samples,
)
from pyc_mlir.lab.sessions.compiling import Compiled, Compiler
from pyc_mlir.lab.sessions.processes import (
    CHECK,
    TIME,
    MeasureJob,
    OnDevice,
    ProcessOutcome,
    run_job,
    stored,
)
from pyc_mlir.lab.sessions.reference import Reference, described
from pyc_mlir.lab.sessions.session import (
    ChoiceResult,
    MeasuredChoice,
    MeasuredProgram,
    SessionPlan,
    SessionResult,
    require_candidates,
)
from pyc_mlir.lab.sessions.subjects import arguments_of, subject_of_work
from pyc_mlir.measure import machine
from pyc_mlir.measure.environment import current_place
from pyc_mlir.measure.machine import measure_token
from pyc_mlir.pipelines.target.work import Input, Work, WorkOp
from pyc_mlir.util.children import temporary_folder

ALLOCATOR = "recycling"
# By how much a program may differ from itself before its machine counts as disturbed.
MOST_APART = 0.05
# A process's times of the empty program, by clock.
_CALL = {"nothing": WALL, "nothing_cpu": CPU}
_ONE = tensor("f32", 1)
# References of programs that are kept: those of large ones take seconds.
_KEPT = 8
_Expected = tuple[Sequence[np.ndarray], Reference]


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
    _compilers: dict[tuple[int, float, int], Compiler] = field(default_factory=dict, init=False)
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
        compiled = self._compiled(subject, candidates, plan)
        with temporary_folder("pyc-measure-") as folder:
            session = _Session(plan, compiled, reference, folder, arguments)
            with measure_token(self.holder, self.wait_seconds):
                if plan.quiet:
                    machine.require_quiet(_before())
                began, before = _now(), machine.read_counters()
                session.run()
                after = machine.read_counters()
        reasons = machine.disturbances(before, after, session.cpu_seconds)
        place = current_place(session.device.kind, plan.threads, ALLOCATOR)
        probes = session.probes or [{}]
        return SessionResult(
            subject, plan, place, uuid.uuid4().hex, began, _now(), tuple(session.results()),
            probes[0], probes[-1], machine.stolen_share(before, after), after.load,
            (*reasons, *_apart(session.probes)),
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

    def _compiled(
        self, subject: MeasuredProgram, candidates: Sequence[MeasuredChoice], plan: SessionPlan
    ) -> list[Compiled]:
        key = (id(subject), plan.timeout_seconds, plan.threads)
        compiler = self._compilers.get(key)
        if compiler is None or compiler.subject is not subject:
            # Of the last subject only: what is kept holds artifacts.
            compiler = Compiler(subject, plan.timeout_seconds, plan.threads)
            self._compilers = {key: compiler}
        return [compiler.compile(candidate) for candidate in candidates]


def _before() -> tuple[str, ...]:
    """Return the disturbances of the machine while this process does nothing."""
    first = machine.read_counters()
    machine.pause()
    return machine.disturbances(first, machine.read_counters(), 0.0)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _apart(probes: Sequence[Mapping[str, float]]) -> tuple[str, ...]:
    """Return why the probes show a disturbed machine: by CPU time where there is one."""
    ratios = [p.get(f"{CPU}_ratio", p.get(f"{WALL}_ratio", 1.0)) for p in probes]
    worst = max((abs(ratio - 1) for ratio in ratios), default=0.0)
    return (f"a program differed from itself by {worst:.0%}",) if worst > MOST_APART else ()


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
        self.device = OnDevice(
            "local-sync" if plan.threads == 1 else "local-task", plan.threads, ALLOCATOR
        )
        self.probes: list[dict[str, float]] = []
        self.cpu_seconds = 0.0
        self._folder, self._timeout = folder, plan.timeout_seconds
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
            status, reason = self._failed.get(number, (OK, ""))
            times = tuple(self._times.get(number, ()))
            made.append(replace(one.result, status=status, reason=reason, processes=times))
        return made

    def _check(self) -> None:
        """Compare each candidate's results with the reference."""
        waiting = self._alive
        while waiting:
            outcome = self._run(
                MeasureJob(CHECK, self._given(waiting), self._arguments, self.device)
            )
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
            self._failed[number] = (WRONG, why)
        for file in files:
            file.unlink()

    def _time(self, process: int) -> None:
        """Time one process of rounds; again without a candidate that ends it."""
        plan = self.plan
        while alive := self._alive:
            probing = process in (0, plan.processes - 1)
            given = [*alive, alive[0]] if probing else alive
            flush = machine.flush_bytes() if plan.constants == COLD else 0
            outcome = self._run(
                MeasureJob(
                    TIME,
                    self._given(given),
                    self._arguments,
                    self.device,
                    plan.rounds,
                    plan.warmup,
                    plan.min_seconds,
                    plan.seed * plan.processes + process,
                    plan.constants,
                    flush,
                    nothing=self._nothing,
                    scalar=self._scalar,
                )
            )
            if self._blame(outcome, given) is None:
                self._keep(outcome, given, process, probing)
                return

    def _run(self, job: MeasureJob) -> ProcessOutcome:
        outcome = run_job(job, self._folder, self._timeout)
        self.cpu_seconds += outcome.cpu_seconds
        return outcome

    def _given(self, numbers: Sequence[int]) -> tuple[str, ...]:
        return tuple(self._paths[n] for n in numbers)

    def _blame(self, outcome: ProcessOutcome, given: Sequence[int]) -> int | None:
        """Note whom the process failed by; the place at which it ended, None where it did not."""
        for message in outcome.messages:
            if "failed" in message:
                self._failed[given[message["failed"]]] = (REFUSED, message["reason"])
        if outcome.failed is None:
            return None
        status = TIMEOUT if outcome.timed_out else CRASH
        # Before the first candidate's turn no process can live here: none of them has a time.
        for place in range(len(given)) if outcome.failed < 0 else (outcome.failed,):
            self._failed[given[place]] = (status, outcome.reason)
        return outcome.failed if outcome.failed >= 0 else len(given)

    def _keep(
        self, outcome: ProcessOutcome, given: Sequence[int], process: int, probing: bool
    ) -> None:
        single = self.device.kind == "local-sync"
        made: dict[int, Trace] = {}
        for message in outcome.messages:
            if "times" in message:
                place = message["times"]
                made[place] = Trace(
                    process=process,
                    wall=samples(message["wall"]),
                    cpu=samples(message["cpu"] if single else ()),
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
