"""Calls of one model: a queue with a limit, worker threads, and batches of what waits.

A worker that is free takes the oldest request and, where the program computes row by row
(rows.py), all that fit together with it: no request waits for others to come. Requests fit where
all inputs agree in every dimension but the first, and the rows together are no more than allowed.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from pyc_mlir.artifact.signature import flat
from pyc_mlir.dialects.errors import PycError, ReasonCode, internal_error

# What a request comes to: its results in order, or the error.
Outcome = Sequence[np.ndarray] | PycError
# Told of requests that ended together.
Ended = Callable[[Sequence[tuple["Waiting", Outcome]]], None]
Call = Callable[..., Any]


@dataclass(eq=False, slots=True)
class Waiting:
    """A request in the queue.

    rows: of its first dimension; 0 where the program is not batched. deadline: on the monotonic
    clock. owner: whoever is told of the outcome. cancelled: nobody waits for it any more.
    """

    inputs: Sequence[np.ndarray]
    rows: int
    deadline: float | None
    owner: Any
    cancelled: bool = False


class Batcher:
    """The queue and the workers of one model."""

    def __init__(self, call: Call, ended: Ended, workers: int, limit: int, most: int) -> None:
        """Start the workers.

        call: the program. ended: told of outcomes, from a worker's thread. limit: of requests that
        wait. most: rows of requests that are put together; 0: each is called alone.
        """
        self._call, self._ended = call, ended
        self.most = most
        self.limit = limit
        self._together = 0
        self._queue: deque[Waiting] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.batches = self.batched = 0
        self._threads = [
            threading.Thread(target=self._work, name=f"pyc-worker-{i}", daemon=True)
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """The number of requests in the queue."""
        return len(self._queue)

    def submit(self, waiting: Waiting) -> None:
        """Queue a request. Raises PycError: SERVER_BUSY where the queue is full or closes."""
        with self._changed:
            if self._closed or len(self._queue) >= self.limit:
                what = "one that ends" if self._closed else f"{len(self._queue)} requests waiting"
                raise PycError(
                    ReasonCode.SERVER_BUSY,
                    where="queue",
                    expected=f"fewer than {self.limit} requests waiting",
                    got=what,
                    remedy="send the request again later",
                )
            self._queue.append(waiting)
            self._changed.notify()

    def lower(self, most: int) -> None:
        """Put fewer rows together from now on; return when no larger batch is computed any more."""
        with self._changed:
            if most < self.most:
                self.most = most
                self._changed.wait_for(lambda: not self._together)

    def close(self) -> None:
        """Answer what waits, then end the workers."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if not self._queue:
                    return
                together, late = self._take()
                is_batch = len(together) > 1
                self._together += is_batch
            if late:
                self._ended([(w, _too_late()) for w in late])
            if together:
                outcomes = self._answers(together)
                if is_batch:
                    with self._changed:
                        self._together -= 1
                        self._changed.notify_all()
                self._ended(list(zip(together, outcomes, strict=True)))

    def _take(self) -> tuple[list[Waiting], list[Waiting]]:
        """Take the oldest request and those that fit; and those whose deadline has passed."""
        together, late, left = [], [], deque[Waiting]()
        now, rows = monotonic(), 0
        while self._queue:
            waiting = self._queue.popleft()
            if waiting.cancelled:
                continue
            if waiting.deadline is not None and waiting.deadline < now:
                late.append(waiting)
                continue
            if not together:
                together.append(waiting)
                rows = waiting.rows
                if not self.most:
                    break
            elif rows + waiting.rows <= self.most and all(
                x.shape[1:] == y.shape[1:] and x.dtype == y.dtype
                for x, y in zip(together[0].inputs, waiting.inputs, strict=True)
            ):
                together.append(waiting)
                rows += waiting.rows
            else:
                left.append(waiting)
            if rows >= self.most:
                break
        self._queue.extendleft(reversed(left))
        self.batches += bool(together)
        self.batched += len(together)
        return together, late

    def _answers(self, together: Sequence[Waiting]) -> Sequence[Outcome]:
        try:
            if len(together) == 1:
                return [flat(self._call(*together[0].inputs))]
            inputs = [
                np.concatenate(parts) for parts in zip(*(w.inputs for w in together), strict=True)
            ]
            results = flat(self._call(*inputs))
        except PycError as error:
            # One request's mistake is not the others': each alone.
            return [error] if len(together) == 1 else [self._answers([w])[0] for w in together]
        except BaseException as error:  # noqa: BLE001  (a worker must answer, and live on)
            return [internal_error(error)] * len(together)
        ends = np.cumsum([w.rows for w in together])
        shares = [np.split(r, ends[:-1]) for r in results]
        return [list(each) for each in zip(*shares, strict=True)]


def _too_late() -> PycError:
    return PycError(
        ReasonCode.DEADLINE_PASSED,
        where="request",
        expected="an answer within the request's timeout",
        got="a deadline that passed while it waited",
        remedy="allow more time, or send fewer requests at once",
    )
