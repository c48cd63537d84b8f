"""One worker at work for a compile: requests are sent one after another, answers received.

Nothing here waits: `step` takes what has come, and `wait` is one wait for all attempts of a
compile.
"""

import contextlib
import select
import sys
import time
from collections.abc import Callable, Sequence
from math import ceil

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.util.codec import from_data
from pyc_mlir.pipelines.choices.choices import Decision, NamesVariants, Policy
from pyc_mlir.util.logs import Stage
from pyc_mlir.worker import process
from pyc_mlir.worker.answer import FAULT, REFUSED, WorkerFault, error_of
from pyc_mlir.worker.crash import crashed
from pyc_mlir.worker.protocol import Frame

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
            policy = self._policy
            names = list(policy.variants(site)) if isinstance(policy, NamesVariants) else []
            self.worker.channel.send(Frame({"names": names}))
        else:
            self._ended(kind, frame)
        self._next()

    def _ended(self, kind: str, frame: Frame) -> None:
        """Take the answer to the current request."""
        self._current = None
        if kind == REFUSED:
            self.error = error_of(frame)
        elif kind == FAULT:
            self.error = WorkerFault(frame.header["traceback"])
        else:
            self.answers.append((frame, self._clock()))

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
