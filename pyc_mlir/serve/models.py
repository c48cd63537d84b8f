"""The models of a server: a service, a queue and numbers each, one memory budget for all."""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from pyc_mlir.artifact.signature import Signature, require_same
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.runtime.device import DEFAULT_ALLOCATOR, Device
from pyc_mlir.runtime.load import load
from pyc_mlir.runtime.program import Program
from pyc_mlir.serve.batching import Batcher, Outcome, Waiting
from pyc_mlir.serve.rows import most_rows
from pyc_mlir.service.service import REFUSING, Service
from pyc_mlir.service.shadow import Shadow
from pyc_mlir.service.targets import Targets
from pyc_mlir.service.telemetry import Snapshot
from pyc_mlir.util.units import quantity


@dataclass(frozen=True)
class ModelSettings:
    """How a model is served.

    workers: calls at once; None: the processors on a CPU, where calls at the same time take a
    thread each, else 1. threads: of a call that runs alone, as of `Device`. queue: of requests that
    wait; None: 4 for each worker, or with batches as many as two batches of each worker hold.
    batch: whether requests are put together.
    """

    name: str
    path: Path
    workers: int | None = None
    threads: int | None = None
    queue: int | None = None
    batch: bool = True
    targets: Targets | None = None
    shadow: Shadow | None = None
    hang_seconds: float | None = None


class Endpoint:
    """Something that answers requests: they come in on the event loop, workers call it."""

    def __init__(
        self,
        name: str,
        call: Callable[..., Any],
        signature: Signature,
        workers: int,
        queue: int | None = None,
        most: int = 0,
    ) -> None:
        """Prepare it; `start` starts the workers.

        queue: the most requests that wait; None: twice what the workers' calls hold, at least 4
        for each worker. most: rows of requests that are put together, 0 for each alone.
        """
        self.name, self.signature, self.workers = name, signature, workers
        # Requests that the server refuses before a call, by reason code.
        self.refusals: Counter[str] = Counter()
        self.version = "1"
        self._call, self._most = call, most
        self._limit = queue or workers * max(2 * most, 4)
        self._batcher: Batcher | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def queue(self) -> Batcher:
        """The queue, once the endpoint was started."""
        assert self._batcher is not None, "started first"
        return self._batcher

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the workers."""
        self._loop = loop
        self._batcher = Batcher(self._call, self._ended, self.workers, self._limit, self._most)

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count the PycError of a request that is refused without a call."""
        try:
            yield
        except PycError as error:
            self.refusals[error.code.name] += 1
            raise

    async def infer(
        self, inputs: Sequence[np.ndarray], timeout: float | None
    ) -> Sequence[np.ndarray]:
        """Answer a request. Raises PycError: the guards', SERVER_BUSY, DEADLINE_PASSED, the call's.

        Cancelled, the request is not computed any more if it still waits.
        """
        with self.counted():
            self.signature.check([(a.shape, a.dtype) for a in inputs])
            rows = inputs[0].shape[0] if self.queue.most else 0
            future = asyncio.get_running_loop().create_future()
            deadline = None if timeout is None else monotonic() + timeout
            waiting = Waiting(inputs, rows, deadline, future)
            self.queue.submit(waiting)
        try:
            outcome = await future
        except asyncio.CancelledError:
            waiting.cancelled = True
            raise
        if isinstance(outcome, PycError):
            if outcome.code is ReasonCode.DEADLINE_PASSED:  # else the service counted its call
                self.refusals[outcome.code.name] += 1
            raise outcome
        return outcome

    def _ended(self, outcomes: Sequence[tuple[Waiting, Outcome]]) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(_tell, outcomes)

    def close(self) -> None:
        """Answer what waits, and end the workers."""
        if self._batcher is not None:
            self._batcher.close()


class Model(Endpoint):
    """One program in service."""

    def __init__(self, settings: ModelSettings) -> None:
        """Load the program. Raises PycError as `load` does."""
        threads = settings.threads
        device = None if threads is None else Device("local", threads, DEFAULT_ALLOCATOR)
        program = load(settings.path, device)
        is_shared = program.device.kind in ("local", "local-sync")
        workers = settings.workers or (len(os.sched_getaffinity(0)) if is_shared else 1)
        self.settings, self._swapping = settings, threading.Lock()
        most, self.alone = _most_together(program, settings.batch)
        self.service = Service(
            program,
            targets=settings.targets,
            shadow=settings.shadow,
            hang_seconds=settings.hang_seconds,
            name=settings.name,
        )
        super().__init__(
            settings.name, self.service, program.signature, workers, settings.queue, most
        )

    def needs(self) -> int | None:
        """Return the bytes that the model may hold with all workers busy; None if unknown."""
        return self.service.program.artifact.account.total(self.workers)

    def swap(self) -> str:
        """Put the file in place as a new build; return the version. Raises PycError as `load`.

        Requests stay alone, or in smaller batches, from the first build that demands it.
        """
        with self._swapping:
            made = load(self.settings.path)
            require_same(self.signature, made.signature)
            most, alone = _most_together(made, self.settings.batch)
            self.queue.lower(most)
            self.alone = self.alone or alone
            self.version = str(self.service.swap(made))
            self.signature = made.signature
            return self.version

    def snapshot(self) -> Snapshot:
        """Return the numbers of the service, with what the server refused before a call."""
        found = self.service.snapshot()
        refusals = Counter(found.refusals)
        refusals.update(self.refusals)
        return replace(found, refusals=dict(refusals))

    @property
    def is_ready(self) -> bool:
        """False while the service refuses calls."""
        return self.service.health().state != REFUSING

    def close(self) -> None:
        """Answer what waits, and end the workers and the service's threads."""
        super().close()
        self.service.close()

    def numbers(self) -> dict[str, Any]:
        """Return the numbers of the live page, as plain data."""
        queue, snapshot = self.queue, self.snapshot()
        return {
            **snapshot.to_json(),
            "reasons": [str(r) for r in self.service.health().reasons],
            "waiting": queue.waiting,
            "queue": queue.limit,
            "workers": self.workers,
            "largest_batch": queue.most,
            "alone": self.alone,
            "batches": queue.batches,
            "batched": queue.batched,
            "modes": self.service.program.modes,
            "needs": self.needs(),
            "log": [str(e) for e in self.service.log()][-8:],
        }


def _most_together(program: Program, batch: bool) -> tuple[int, str]:
    """Return the most rows of requests together; 0 and why for each alone."""
    if not batch:
        return 0, "the server was started so"
    contract = program.artifact.manifest.contract
    try:
        return most_rows(program, program.signature, contract.is_strict)
    finally:
        # What those calls worked in is nothing that a request needs by now.
        program.trim()


def _tell(outcomes: Sequence[tuple[Waiting, Outcome]]) -> None:
    for waiting, outcome in outcomes:
        if not waiting.owner.done():
            waiting.owner.set_result(outcome)


def model_of(models: Mapping[str, Model], name: str, version: str | None) -> Model:
    """Return a model in the version that is in place. Raises PycError (UNKNOWN_MODEL)."""
    model = models.get(name)
    if model is None or version not in (None, model.version):
        have = ", ".join(f"{n} (version {m.version})" for n, m in models.items())
        asked = f"{name}, version {version}" if version else name
        raise PycError(ReasonCode.UNKNOWN_MODEL, where="model", expected=have, got=asked)
    return model


def load_models(settings: Sequence[ModelSettings], budget: int | None) -> dict[str, Model]:
    """Load all models within a budget of bytes.

    Raises PycError: as `load` does; BUDGET_IMPOSSIBLE where the models together may need more, or
    BUDGET_NOT_FOUND where a model does not know what it needs.
    """
    models: dict[str, Model] = {}
    for each in settings:
        if each.name in models:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                where="models",
                expected="different names",
                got=f"two models `{each.name}`",
                remedy="name them, as in NAME=PATH",
            )
        models[each.name] = Model(each)
    if budget is not None:
        _require_room(models, budget)
    return models


def _require_room(models: Mapping[str, Model], budget: int) -> None:
    needs = {name: model.needs() for name, model in models.items()}
    unknown = [name for name, need in needs.items() if need is None]
    if unknown:
        raise PycError(
            ReasonCode.BUDGET_NOT_FOUND,
            where="memory budget",
            expected="models that know their memory before a call",
            got=f"{', '.join(unknown)}, whose sizes have no limit",
            remedy="compile with ranges for all dynamic dimensions (`--dim batch=1:8`)",
        )
    total = sum(n for n in needs.values() if n is not None)
    if total > budget:
        parts = ", ".join(f"{name} {quantity(n or 0, 'B')}" for name, n in needs.items())
        raise PycError(
            ReasonCode.BUDGET_IMPOSSIBLE,
            where="memory budget",
            expected=f"models that need at most {quantity(budget, 'B')} together",
            got=f"{quantity(total, 'B')}: {parts}",
            remedy="raise the budget, lower `--workers`, or compile with a lower `--memory-budget`",
        )
