"""A compile in worker processes, within the time limit of the contract if it has one.

The first worker compiles what was asked. Once an eighth of the limit is gone a second one climbs
the stages from below (`pyc_mlir/compilation/stages.py`): the cheapest first, then better
ones. At the limit the best that is there is the answer, and both are ended. Where the cheapest
stage leaves out little, the second worker only gets what the first one leaves of the processor.
Without such a clause, as for a program that is not trusted, there is only the first; one that is
not trusted is then ended after `UNTRUSTED_SECONDS`.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace

from pyc_mlir.artifact.artifact import Artifact, to_bytes
from pyc_mlir.artifact.verification import Checks
from pyc_mlir.cache.key import Unkeyed
from pyc_mlir.cache.verifications import Verifications
from pyc_mlir.compilation.contract_check import needs_runs
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.stages import (
    CLAUSE,
    DEFAULT,
    OFFERED,
    REASONS,
    REQUESTED,
    SITE,
    record_stage,
    stages_below,
    takes_no_overrun,
)
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.choices import FALLBACK, Decision
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.contract_report import Status
from pyc_mlir.pipelines.choices.evidence import Note, Reason
from pyc_mlir.util.logs import Stage
from pyc_mlir.worker import process
from pyc_mlir.worker.answer import artifact_of
from pyc_mlir.worker.attempt import WorkerAttempt, wait
from pyc_mlir.worker.protocol import Frame
from pyc_mlir.worker.request import COMPILE, PART, TRY, request, travelling

# What share of the limit goes by before a second worker begins. Later leaves the cheapest stage
# too little time, since it takes two thirds of what is asked; at once slows every compile.
SECOND_AFTER = 1 / 8
# Seconds: by what a limit may be exceeded.
ALLOWED_OVERRUN = 0.5
# When a compile of what is not trusted is ended, unless the contract has a limit of its own.
UNTRUSTED_SECONDS = 600.0
# Under a limit so short the second worker's start is not waited for.
_SHORT_SECONDS = 8.0


class WorkerCompile:
    """One program on its way through workers. Close it, or use it as a context manager."""

    def __init__(
        self,
        job: Job,
        stage: Stage,
        trusted: bool = True,
        clock: Callable[[], float] = time.monotonic,
        spent: float = 0.0,
        give_up_seconds: float | None = None,
    ) -> None:
        """Take a worker and make the program travel. Raises PycError as `travelling`.

        spent: seconds of the limit that are over already. give_up_seconds: when a compile without a
        limit is ended; None is `UNTRUSTED_SECONDS` for what is not trusted, else never.
        """
        self._clock, self._began = clock, clock() - spent
        options = job.options
        self._options, self._trusted = options, trusted
        self.limit = options.contract.max_compile_seconds
        if give_up_seconds is None and not trusted:
            give_up_seconds = UNTRUSTED_SECONDS
        self._end = give_up_seconds if self.limit is None else self.limit
        self._below = () if self.limit is None else stages_below(options)
        self._first = WorkerAttempt(options.policy, stage, trusted, clock)
        self._second: WorkerAttempt | None = None
        try:
            if DEFAULT in self._below and self.limit is not None and self.limit < _SHORT_SECONDS:
                process.start_early()
            self._job = travelling(job)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "WorkerCompile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back or end the workers."""
        for attempt in filter(None, (self._first, self._second)):
            attempt.close()

    @property
    def seconds(self) -> float:
        """The seconds since the compile began."""
        return self._clock() - self._began

    def part(self) -> Mapping[str, str]:
        """Ask for the program's part of a cache key. Raises Unkeyed, PycError as a compile does."""
        header = self._request(PART).header
        if header["part"] is None:
            raise Unkeyed(header["why"])
        return header["part"]

    def checked(self, found: Artifact, records: Verifications | None) -> Artifact:
        """Try an artifact from a cache under the contract, and return it. Raises PycError."""
        if needs_runs(self._options.contract):
            made = artifact_of(self._request(TRY, to_bytes(found), records))
            same = made.vmfb == found.vmfb
            kept = found if same else made.named(found.names)
            found = replace(kept, checks=made.checks, cached=found.cached)
        return self.with_time(found)

    def _request(
        self, do: str, artifact: bytes | None = None, records: Verifications | None = None
    ) -> Frame:
        frame = request(do, self._job, artifact=artifact, records=records)
        self._first.ask(frame)
        while not self._first.done:
            if self._left == 0:
                raise self._overrun()
            wait([self._first], self._left)
        return self._answer()

    def compile(self) -> Artifact:
        """Return the artifact, of a lower stage if the time is over.

        Raises PycError: COMPILE_TIMEOUT if nothing is there then, what the compile raises, and
        NATIVE_CRASH for a worker that ended. WorkerFault for a fault of PyC in it.
        """
        self._first.ask(request(COMPILE, self._job))
        while not self._first.done and self._left != 0:
            self._begin_second()
            self._wait(self._until_next())
        if not self._first.done:
            # What came while a policy of this process was asked.
            self._wait(0)
        if self._first.done:
            return self.with_time(artifact_of(self._answer()))
        return self._degraded()

    def _wait(self, seconds: float | None) -> None:
        """Wait for what comes next, at most so many seconds."""
        both = (self._first, self._second)
        wait([a for a in both if a is not None and a.error is None], seconds)

    @property
    def _left(self) -> float | None:
        """The seconds up to the end, 0 once it is reached; None without one."""
        return None if self._end is None else max(0.0, self._end - self.seconds)

    def _until_next(self) -> float | None:
        """Return the seconds until something is due."""
        if self.limit is None or self._second is not None or not self._below:
            return self._left
        return max(0.0, self.limit * SECOND_AFTER - self.seconds)

    def _begin_second(self) -> None:
        due = self.limit is not None and self.seconds >= self.limit * SECOND_AFTER
        if not due or self._second is not None or not self._below:
            return
        policy, clock = self._options.policy, self._clock
        self._second = WorkerAttempt(policy, lambda _: nullcontext(), self._trusted, clock)
        if DEFAULT not in self._below:
            self._second.worker.yield_to_others()
        self._second.ask(*(request(COMPILE, self._job, stage) for stage in self._below))

    def _answer(self) -> Frame:
        if self._first.error is not None:
            raise self._first.error
        return self._first.answers.pop()[0]

    def _overrun(self) -> PycError:
        self._restart()
        if self.limit is None:
            return PycError(
                ReasonCode.COMPILE_TIMEOUT,
                f"a compile in a worker: expected a program within {self._end:g} s, got "
                f"none: the compile was ended while {self._first.doing}; set `{CLAUSE}` in the "
                "contract to another limit",
            )
        why = "the contract allows no cheaper program"
        if self._below:
            failed = self._second.error if self._second is not None else None
            why = f"nor was a cheaper program ({', '.join(self._below)}) there"
            why += "" if failed is None else f", which failed: {failed}"
        return PycError(
            ReasonCode.COMPILE_TIMEOUT,
            f"contract clause `{CLAUSE}`: expected a program within {self.limit:g} s, "
            f"got none: the compile was ended while {self._first.doing}; {why}; raise the limit",
        )

    def _degraded(self) -> Artifact:
        """Return the best of the second worker's. Raises PycError (COMPILE_TIMEOUT) without any."""
        made = [] if self._second is None else self._second.answers
        if not made:
            raise self._overrun()
        self._restart()
        stage, artifact = self._below[len(made) - 1], artifact_of(made[-1][0])
        ended = f"`{REQUESTED}` was ended after {self.limit:g} s"
        why = (
            Reason.of(ReasonCode.COMPILE_DEGRADED, ended),
            Note(f"`{stage}` was there: {REASONS[stage]}"),
        )
        times = [at - self._began for _, at in made]
        measured = dict(zip(self._below, times, strict=False))
        measured[f"{REQUESTED}, while {self._first.doing}"] = self.seconds
        decision = Decision(SITE, stage, OFFERED, FALLBACK, (), why, measured)
        return self.with_time(record_stage(artifact, decision))

    def with_time(self, artifact: Artifact) -> Artifact:
        """Report how long an artifact took here, and whether that was too long.

        Raises PycError (COMPILE_TIMEOUT) for one that came late under a contract that takes none.
        """
        return in_time(artifact, self._options.contract, self.seconds)

    def _restart(self) -> None:
        """Start a successor of the worker that is ended, so that the next compile need not wait."""
        process.start_early()


def in_time(artifact: Artifact, contract: Contract, seconds: float) -> Artifact:
    """Report how long an artifact took, if the contract has a limit.

    Raises PycError (COMPILE_TIMEOUT) for one that came late under a contract that takes none.
    """
    limit = contract.max_compile_seconds
    if limit is None:
        return artifact
    clause = replace(artifact.contract_report[CLAUSE], measured={"seconds": seconds})
    if seconds > limit + ALLOWED_OVERRUN:
        if takes_no_overrun(contract):
            raise _late(limit, seconds)
        code = ReasonCode.COMPILE_TIMEOUT.name
        clause = replace(clause, status=Status.BROKEN, code=code)
    checks = artifact.checks or Checks()
    others = (c for c in checks.clauses if c.clause != CLAUSE)
    return replace(artifact, checks=replace(checks, clauses=(*others, clause)))


def _late(limit: float, seconds: float) -> PycError:
    """Return the error for a program that is there, but too late."""
    return PycError(
        ReasonCode.COMPILE_TIMEOUT,
        f"contract clause `{CLAUSE}`: expected a program within {limit:g} s, got one after "
        f"{seconds:.3g} s, since no limit ends what this process does (a trace, the answers of a "
        "policy, the cache), and the contract takes no overrun; raise the limit",
    )
