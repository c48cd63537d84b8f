"""Drive trials to their end: propose, wake workers, wait, read what came.

The database is the truth: a proposal is a row, a result is a row. Workers of this study's executor
are woken by calls; others (`pyc-tune worker`) claim by themselves. Proposals depend on costs alone,
so a study that is started again proposes the same and measures what is missing.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.tune.studies.ledger import Ledger
from pyc_mlir.lab.tune.studies.study import Asked
from pyc_mlir.lab.tune.studies.worker import TrialJob, work_once

# Gives the trials that are to be known next, all of them at once; none ends the drive.
Propose = Callable[[Ledger], Sequence[Asked]]
_POLL_SECONDS = 0.2
# Trials that are open for each worker: one is measured, the other waits.
AHEAD = 2
# How often in a row workers may die, without a trial that ends between, before that is an error.
_DEATHS = 3


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
    if isinstance(error, PycError) or not _is_death(error):
        raise error
    if before >= _DEATHS:
        raise PycError(
            ReasonCode.NATIVE_CRASH,
            f"tuning: expected workers that live, got {type(error).__name__}: {error}; what was "
            "measured is kept: go on with `pyc-tune resume`",
        ) from error
    return True


def _is_death(error: BaseException) -> bool:
    """Return whether the error is a broken pool of processes, or what Dask raises where workers
    died on a task.
    """
    return isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker"
