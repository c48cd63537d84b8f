"""Trials measured by workers: the lease, the session, who wakes whom, executors.

    drive(store, job, propose, executor, workers)      # until nothing is proposed and nothing open
    with pool("processes", 2) as executor: ...

The database is the truth: a proposal is a row, a result is a row, and the lease decides which
worker measures a trial. A worker renews its lease while it measures; when a worker is killed, its
lease expires and another one claims the trial. What carries calls of `work_once` to processes and
machines is only a wake-up: a lost call loses nothing. Workers of other processes (`pyc-tune
worker`) claim by themselves. Proposals depend on costs alone, so a study that is started again
proposes the same and measures what is missing.

Executors are `concurrent.futures.Executor`s: processes of this machine, or machines of a Dask
cluster, where a call needs one of the resource ``measure``, of which each machine has one (``dask
worker --resources measure=1``): one measurement runs at a time.
"""

import copy
import multiprocessing
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode, install
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.lab.evidence.database.store import EvidenceStore, StoredTrial
from pyc_mlir.lab.evidence.rows import Graph, Trace
from pyc_mlir.lab.sessions.local import LocalMeasurer
from pyc_mlir.lab.sessions.processes import ALLOCATOR, SessionPlan
from pyc_mlir.lab.sessions.session import (
    MeasuredChoice,
    MeasuredProgram,
    Measurer,
    record,
    session_of,
)
from pyc_mlir.lab.tune.study import AHEAD, Asked, Ledger, TrialStage
from pyc_mlir.measure.environment import Environments, current_place

LEASE_SECONDS = 60.0
INCUMBENT, TUNER = "incumbent", "tuner"
_RENEWALS = 4  # of a lease before it would expire
_REASON_CHARACTERS = 300
# Gives the trials that are to be known next, all of them at once; none ends the drive.
Propose = Callable[[Ledger], Sequence[Asked]]
_POLL_SECONDS = 0.2
# How often in a row workers may die, without a trial that ends between, before that is an error.
_DEATHS = 3
PROCESSES, DASK, RESOURCE = "processes", "dask://", "measure"
_CONNECT_SECONDS = 30


@dataclass(frozen=True)
class TrialJob:
    """The inputs of a worker besides the trial; it pickles, to reach other processes.

    url: the database. subject_of: makes what is measured of a graph's row. plans: how each stage
    measures. place: the study's; a machine of other hardware or another toolchain measures nothing
    for it. lease_seconds: after which the trial of a worker that died is claimed again.
    """

    url: str
    study_id: str
    measurer: Measurer
    subject_of: Callable[[Graph], MeasuredProgram]
    plans: Mapping[TrialStage, SessionPlan]
    place: Environments
    lease_seconds: float = LEASE_SECONDS


def work_once(job: TrialJob) -> bool:
    """Claim a trial of the study and measure it; False where none was free.

    Raises PycError (BAD_ARGUMENT) on a machine that is not like the study's.
    """
    if isinstance(job.measurer, LocalMeasurer):
        require_same_environment(job.place, here())
    store = _opened(job.url, os.getpid())
    # A name that no other worker has.
    owner = f"{socket.gethostname()}:{os.getpid()}:{threading.get_ident()}"
    trial = store.claim(job.study_id, owner, job.lease_seconds)
    if trial is not None:
        _measure(store, trial, job)
    return trial is not None


@cache
def here() -> Environments:
    """Return the place of a local measurer: programs run in the caller's thread."""
    return current_place("local-sync", 1, ALLOCATOR)


def require_same_environment(study: Environments, own: Environments) -> None:
    """Raise PycError (BAD_ARGUMENT) unless numbers of one place decide at the other."""
    for part in ("hardware", "toolchain", "context"):
        theirs, ours = getattr(study, part), getattr(own, part)
        if theirs != ours:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"worker: expected a machine with the study's {part}, {theirs[:16]}, got "
                f"{ours[:16]} (`pyc-doctor` shows it); a study measures on equal machines",
            )


@lru_cache(maxsize=4)
def _opened(url: str, process: int) -> EvidenceStore:
    """Return the store of this process: opening one takes longer than a claim."""
    return EvidenceStore.open(url)


def _measure(store: EvidenceStore, trial: StoredTrial, job: TrialJob) -> None:
    """Measure a claimed trial and end it.

    What cannot be measured ends it with the reason. An interrupt gives it back. What was measured
    without the lease is dropped.
    """
    try:
        with _held(store, trial, job.lease_seconds):
            _measure_held(store, trial, job)
    except KeyboardInterrupt:
        store.release(trial)
        raise
    except PycError as error:
        if error.code is not ReasonCode.LEASE_LOST:
            raise


def _measure_held(store: EvidenceStore, trial: StoredTrial, job: TrialJob) -> None:
    request, begin = from_data(Asked, trial.config), time.monotonic()
    graph = store.get(Graph, request.graph)
    assert graph is not None, "a study's graphs are added with it"
    candidates = [
        MeasuredChoice(recipe, str(number), TUNER if number else INCUMBENT)
        for number, recipe in enumerate(request.recipes)
    ]
    plan = replace(job.plans[request.stage], seed=trial.number)
    try:
        kept = _kept(job.url, job.study_id, request.graph)
        if not kept:
            # A measurer of its own, which may keep what it compiled of it: the incumbent.
            kept.append((job.subject_of(graph), copy.copy(job.measurer)))
        subject, measurer = kept[0]
        measured = measurer.measure(subject, candidates, plan)
    except PycError as error:
        reason = f"{error.code.name}: {error}"[:_REASON_CHARACTERS]
        store.fail(trial, reason, time.monotonic() - begin)
        return
    names = record(store, measured)
    # The trial is known by its last candidate's trace, which leads to the session.
    (trace, *_) = store.find(Trace, session_id=session_of(measured).id, impl_id=names[-1])
    store.finish(trial, trace, seconds=time.monotonic() - begin)


@lru_cache(maxsize=4)
def _kept(url: str, study_id: str, graph_id: str) -> list[tuple[MeasuredProgram, Measurer]]:
    """Return the objects that this process keeps of a graph between trials."""
    return []


@contextmanager
def _held(store: EvidenceStore, trial: StoredTrial, seconds: float) -> Iterator[None]:
    """Renew a lease in a thread until the block ends, or the lease is lost."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(seconds / _RENEWALS):
            try:
                store.renew(trial, seconds)
            except PycError as error:
                if error.code is ReasonCode.LEASE_LOST:
                    return
                # A database that does not answer now may answer before the lease expires.

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def drive(
    store: EvidenceStore, job: TrialJob, propose: Propose, executor: Executor, workers: int
) -> Ledger:
    """Measure the proposals until `propose` has no new ones and no trial is open.

    workers: calls at a time; 0 leaves all measuring to workers of other processes.
    Raises PycError: NATIVE_CRASH where the executor cannot carry calls any more, and what a worker
    raised.
    """
    ledger, calls, deaths = Ledger(store, job.study_id), set[Future[bool]](), 0
    try:
        while True:
            ledger.update()
            requests = propose(ledger)
            if requests and store.add_trials(job.study_id, [to_data(one) for one in requests]):
                ledger.update()
            if not ledger.open:
                return ledger
            # One more call for each worker waits, so that none waits for a proposal.
            wanted = min(AHEAD * workers, len(ledger.open)) - len(calls)
            calls |= {executor.submit(work_once, job) for _ in range(wanted)}
            ended, calls = wait(calls, _POLL_SECONDS, FIRST_COMPLETED)
            # A process that dies takes the other calls of its pool with it: one death.
            died = any([_was_lost(call, deaths) for call in ended])
            measured = any(call.exception() is None and call.result() for call in ended)
            deaths = 0 if measured else deaths + died
            if not measured:
                # All that is open is leased elsewhere, or `wait` had nothing to wait for.
                time.sleep(_POLL_SECONDS if ended or not calls else 0)
    finally:
        for call in calls:
            call.cancel()


def _was_lost(call: "Future[bool]", before: int) -> bool:
    """Return whether the process that carried a call died; its trial's lease will expire.

    before: deaths in a row before this one. Raises what the call raised, and PycError
    (NATIVE_CRASH) after too many of them.
    """
    error = call.exception()
    if error is None:
        return False
    # A broken pool of processes, or what Dask raises where workers died on a task.
    dead = isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker"
    if isinstance(error, PycError) or not dead:
        raise error
    if before >= _DEATHS:
        raise PycError(
            ReasonCode.NATIVE_CRASH,
            f"tuning: expected workers that live, got {type(error).__name__}: {error}; what was "
            "measured is kept: go on with `pyc-tune resume`",
        ) from error
    return True


@contextmanager
def pool(where: str | Executor, workers: int) -> Iterator[Executor]:
    """Open an executor: ``processes``, ``dask://host:port``, or one that is the caller's own.

    Raises PycError: BAD_ARGUMENT for another text and a scheduler that does not answer,
    MISSING_DEPENDENCY without the package `distributed`.
    """
    if isinstance(where, Executor):
        yield where
    elif where == PROCESSES:
        with _Processes(workers) as made:
            yield made
    elif where.startswith(DASK):
        with _dask(where.removeprefix(DASK)) as made:
            yield made
    else:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"executor: expected `{PROCESSES}` or `{DASK}HOST:PORT`, got {where!r}",
        )


class _Processes(Executor):
    """Spawned processes. Where one died, the calls of all fail, and the next call starts others."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._pool = self._started()

    def _started(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self._workers, context, initializer=_leave_interrupts)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        try:
            return self._pool.submit(fn, *args, **kwargs)
        except BrokenExecutor:
            self._pool.shutdown(wait=False)
            self._pool = self._started()
            return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._pool.shutdown(wait, cancel_futures=cancel_futures)


def _leave_interrupts() -> None:
    """Ctrl-C reaches all processes of a terminal; the one that tunes decides what it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _dask(address: str) -> Iterator[Executor]:
    try:
        from distributed import Client
    except ImportError:
        raise PycError(
            ReasonCode.MISSING_DEPENDENCY,
            f"executor: expected the package `distributed`, got none; {install('cluster')}",
        ) from None
    try:
        client = Client(f"tcp://{address}", timeout=_CONNECT_SECONDS)
    except (OSError, TimeoutError, ValueError) as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"executor: expected a Dask scheduler at {address}, got: {error}; start one with "
            "`dask scheduler`, and workers with `dask worker --resources measure=1`",
        ) from None
    with client:
        # A call that ran twice would find another trial: results are never shared or repeated.
        yield client.get_executor(pure=False, retries=0, resources={RESOURCE: 1})
