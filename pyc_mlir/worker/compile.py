"""A compile in worker processes, within the time limit of the contract if it has one.

The first worker compiles what was asked. Once an eighth of the limit is gone a second one climbs
the stages from below (`pyc_mlir/compilation/job.py`): the cheapest first, then better
ones. At the limit the best that is there is the answer, and both are ended. Where the cheapest
stage leaves out little, the second worker only gets what the first one leaves of the processor.
Without such a clause, as for a program that is not trusted, there is only the first; one that is
not trusted is then ended after `UNTRUSTED_SECONDS`.
"""

import contextlib
import select
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from math import ceil

from pyc_mlir.artifact.artifact import Artifact, to_bytes
from pyc_mlir.cache.cache import Cache, Verifications, compiled, noted, recalled
from pyc_mlir.cache.store import Unkeyed
from pyc_mlir.compilation.contract_check import needs_runs, with_requested_options
from pyc_mlir.compilation.job import (
    DEFAULT,
    OFFERED,
    REASONS,
    REQUESTED,
    Job,
    record_stage,
    stages_below,
    takes_no_overrun,
)
from pyc_mlir.compilation.job import (
    SECONDS_CLAUSE as CLAUSE,
)
from pyc_mlir.compilation.job import (
    STAGE_SITE as SITE,
)
from pyc_mlir.compilation.options import NO_KERNELS
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data
from pyc_mlir.pipelines.choices.choices import FALLBACK, Decision, Policy
from pyc_mlir.pipelines.choices.contract import IREE_CODE, Contract, Status
from pyc_mlir.pipelines.choices.evidence import Note, Reason
from pyc_mlir.util.logs import Stage
from pyc_mlir.worker import process
from pyc_mlir.worker.messages import (
    COMPILE,
    FAULT,
    PART,
    REFUSED,
    TRY,
    WorkerFault,
    artifact_of,
    crashed,
    error_of,
    request,
    travelling,
)
from pyc_mlir.worker.process import Frame

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
        self._first.ask(request(do, self._job, artifact=artifact, records=records))
        if not self._done():
            raise self._overrun()
        return self._answer()

    def compile(self) -> Artifact:
        """Return the artifact, of a lower stage if the time is over.

        Raises PycError: COMPILE_TIMEOUT if nothing is there then, what the compile raises, and
        NATIVE_CRASH for a worker that ended. WorkerFault for a fault of PyC in it.
        """
        self._first.ask(request(COMPILE, self._job))
        if self._done(self._below):
            return self.with_time(artifact_of(self._answer()))
        return self._degraded()

    def _done(self, stages: Sequence[str] = ()) -> bool:
        """Wait for the first worker; return whether it was done in time.

        stages: what a second one compiles beside it, once an eighth of the limit is gone.
        """
        over = False
        while not self._first.done and not over:
            # Once more at the end, for what came while a policy of this process was asked.
            over = self._left == 0
            begins = None
            if stages and self._second is None and self.limit is not None:
                begins = max(0.0, self.limit * SECOND_AFTER - self.seconds)
            if begins == 0 and not over:
                policy, clock = self._options.policy, self._clock
                self._second = WorkerAttempt(policy, lambda _: nullcontext(), self._trusted, clock)
                if DEFAULT not in stages:
                    self._second.worker.yield_to_others()
                self._second.ask(*(request(COMPILE, self._job, stage) for stage in stages))
            both = (self._first, self._second)
            waits = [s for s in (self._left, begins or None) if s is not None]
            wait([a for a in both if a is not None and a.error is None], min(waits, default=None))
        return self._first.done

    @property
    def _left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - self.seconds)

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


def in_workers(
    job: Job,
    stage: Stage,
    cache: Cache | None,
    untrusted: bool,
    build: Callable[..., Artifact],
    spent: float = 0.0,
) -> Artifact:
    """Compile as `build` does, with front end, compile and trials in worker processes.

    spent: seconds of the limit that are over already.
    build: makes what the fallback `iree` needs, should a call need it.
    """
    options = job.options
    with WorkerCompile(job, stage, trusted=not untrusted, spent=spent) as work:
        made = work.compile() if cache is None else _through(cache, job, work)
    if untrusted and made.checks is not None:
        # Asked for calls, the reference would read the program in this process.
        made = made.with_checks(oracle=None)
    made = with_requested_options(made, options)
    if IREE_CODE not in options.contract.fallbacks:
        return made
    # No limit counts when a call needs the fallback.
    unlimited = replace(options.contract, max_compile_seconds=None)
    other = replace(options, contract=unlimited, kernels=NO_KERNELS, recipe=None)
    again = partial(build, job.under(other), untrusted=untrusted)
    return made.with_checks(stand_ins={IREE_CODE: again})


def _through(cache: Cache, job: Job, work: WorkerCompile) -> Artifact:
    # What a file holds is found out by the worker, which may crash and can be ended.
    made = compiled(
        cache, job, lambda _: work.compile(), lambda job, _: (job, work.part()), read=False
    )
    records = Verifications.of(cache, made.cached)
    if made.checks is not None:
        # What keeping the program took counts.
        return work.with_time(noted(made, records))
    return recalled(work.checked(made, records), records)


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
            raise PycError(
                ReasonCode.COMPILE_TIMEOUT,
                f"contract clause `{CLAUSE}`: expected a program within {limit:g} s, got one after "
                f"{seconds:.3g} s, since no limit ends what this process does (a trace, the "
                "answers of a policy, the cache), and the contract takes no overrun; raise the "
                "limit",
            )
        code = ReasonCode.COMPILE_TIMEOUT.name
        clause = replace(clause, status=Status.BROKEN, code=code)
    known = () if artifact.checks is None else artifact.checks.clauses
    others = (c for c in known if c.clause != CLAUSE)
    return artifact.with_checks(clauses=(*others, clause))


# Seconds: the system counts a wait in milliseconds, of 31 bits.
_LONGEST_WAIT = 1e6


class WorkerAttempt:
    """A worker, the requests that it gets, and what it answered to each so far."""

    def __init__(
        self,
        policy: Policy,
        stage: Stage,
        trusted: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take a worker. `policy` answers where the worker asks; `stage` is told of its steps.

        trusted: whether the worker may serve other compiles afterwards. `answers` come with the
        times at which they were there.
        """
        self.answers: list[tuple[Frame, float]] = []
        self.crashed = False
        self.error: PycError | WorkerFault | None = None
        self._policy, self._stage, self._clock = policy, stage, clock
        self._trusted, self._used = trusted, False
        self._open = contextlib.ExitStack()
        self._waiting: list[Frame] = []
        self._current: Frame | None = None
        self._take_worker()

    def _take_worker(self) -> None:
        self.worker = process.take()
        # Whether it waited for this, and has not yet shown that it got it.
        self._silent = self.worker.ready

    def ask(self, *requests: Frame) -> None:
        """Let the worker answer these, after those that it has."""
        self._waiting.extend(requests)
        self._next()

    @property
    def done(self) -> bool:
        """The state in which all was answered, or nothing more will be."""
        return self.error is not None or (self._current is None and not self._waiting)

    @property
    def doing(self) -> str:
        """The step that the worker does now."""
        if self._current is None:
            return "a worker process starts"
        return self.worker.doing or "the model is read"

    def step(self) -> None:
        """Take what has come. Raises what the parent's own policy raises."""
        try:
            for frame in self.worker.channel.pump():
                self._take(frame)
        except OSError:
            self._ended_early()

    def _next(self) -> None:
        if self._current is None and self._waiting and self.worker.ready:
            self._current, self._used = self._waiting.pop(0), True
            self.worker.doing = ""
            with contextlib.suppress(OSError):  # `step` finds out how it ended
                self.worker.channel.send(self._current)

    def _take(self, frame: Frame) -> None:
        header = frame.header
        kind = header["kind"]
        self._silent = False
        if kind == "ready":
            self.worker.ready = True
        elif kind == "stage":
            self._open.close()
            self.worker.doing = header["title"] if header["begins"] else ""
            if header["begins"]:
                self._open.enter_context(self._stage(header["title"]))
        elif kind == "prefer":
            question = from_data(Decision, header["question"])
            name = self._policy.prefer(question.site, question.alternatives)
            self.worker.channel.send(Frame({"name": name}))
        elif kind == "variants":
            site = from_data(Decision, header["question"]).site
            names = list(self._policy.variants(site))
            self.worker.channel.send(Frame({"names": names}))
        else:
            self._current = None
            if kind == REFUSED:
                self.error = error_of(frame)
            elif kind == FAULT:
                self.error = WorkerFault(header["traceback"])
            else:
                self.answers.append((frame, self._clock()))
        self._next()

    def _ended_early(self) -> None:
        request = self._current or next(iter(self._waiting), None)
        if request is None:
            return
        if self._silent:
            # It may have been ended while it waited; a program that ends workers ends the next too.
            self.worker.end()
            self._take_worker()
            self._waiting[:0] = [] if self._current is None else [self._current]
            self._current = None
            self._next()
            return
        self.crashed = True
        by = self.worker.how_it_ended()
        self.error = crashed(request, self.worker.doing, by, self.worker.output())

    def close(self) -> None:
        """Give the worker back if it waits, end it if it works."""
        self._open.close()
        if not self.crashed:
            sys.stderr.write(self.worker.output())
        if self.crashed or self._current is not None or (self._used and not self._trusted):
            self.worker.end()
        else:
            process.give(self.worker)


def wait(attempts: Sequence[WorkerAttempt], seconds: float | None) -> None:
    """Wait until one of the attempts can step, then let all of them; at most so many seconds."""
    poll = select.poll()
    for attempt in attempts:
        channel = attempt.worker.channel
        poll.register(channel.socket, select.POLLIN | (select.POLLOUT * channel.is_sending))
    # Whoever has longer to wait asks again.
    poll.poll(None if seconds is None else ceil(min(max(0.0, seconds), _LONGEST_WAIT) * 1000))
    for attempt in attempts:
        attempt.step()
