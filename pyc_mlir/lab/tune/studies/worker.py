"""Workers: claim a trial, measure it in one session, end it with its traces.

The lease in the database decides which worker measures a trial. A worker renews its lease while
it measures; when a worker is killed, its lease expires and another one claims the trial. What
carries calls of `work_once` to processes and machines is only a wake-up: a lost call loses nothing.
"""

import copy
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.database.trials import StoredTrial
from pyc_mlir.lab.evidence.rows import Graph, Trace
from pyc_mlir.lab.sessions.local import ALLOCATOR, LocalMeasurer
from pyc_mlir.lab.sessions.recording import record, session_of
from pyc_mlir.lab.sessions.session import MeasuredChoice, MeasuredProgram, Measurer, SessionPlan
from pyc_mlir.lab.tune.studies.study import Asked, TrialStage
from pyc_mlir.measure.environment import Environments, current_place

LEASE_SECONDS = 60.0
INCUMBENT, TUNER = "incumbent", "tuner"
_RENEWALS = 4  # of a lease before it would expire
_REASON_CHARACTERS = 300


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
        require_alike(job.place, here())
    store = _opened(job.url, os.getpid())
    trial = store.claim(job.study_id, _owner(), job.lease_seconds)
    if trial is not None:
        _measure(store, trial, job)
    return trial is not None


@cache
def here() -> Environments:
    """Return the place of a local measurer: programs run in the caller's thread."""
    return current_place("local-sync", 1, ALLOCATOR)


def require_alike(study: Environments, own: Environments) -> None:
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


def _owner() -> str:
    """Return a name that no other worker has."""
    return f"{socket.gethostname()}:{os.getpid()}:{threading.get_ident()}"


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
        subject, measurer = _bench(job, graph)
        measured = measurer.measure(subject, candidates, plan)
    except PycError as error:
        reason = f"{error.code.name}: {error}"[:_REASON_CHARACTERS]
        store.fail(trial, reason, time.monotonic() - begin)
        return
    names = record(store, measured)
    # The trial is known by its last candidate's trace, which leads to the session.
    (trace, *_) = store.find(Trace, session_id=session_of(measured).id, impl_id=names[-1])
    store.finish(trial, trace, seconds=time.monotonic() - begin)


def _bench(job: TrialJob, graph: Graph) -> tuple[MeasuredProgram, Measurer]:
    """Return a subject and a measurer of its own, which may keep what it compiled of it: the
    incumbent.
    """
    kept = _kept(job.url, job.study_id, graph.graph_id)
    if not kept:
        kept.append((job.subject_of(graph), copy.copy(job.measurer)))
    return kept[0]


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
