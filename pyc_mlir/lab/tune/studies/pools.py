"""Executors of workers: processes of this machine, or machines of a Dask cluster.

    with pool("processes", 2) as executor: executor.submit(work_once, job)

All are `concurrent.futures.Executor`s. On Dask a call needs one of the resource ``measure``, of
which each machine has one (``dask worker --resources measure=1``): one measurement runs at a time.
"""

import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode, install

PROCESSES, DASK = "processes", "dask://"
RESOURCE = "measure"
_CONNECT_SECONDS = 30


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
