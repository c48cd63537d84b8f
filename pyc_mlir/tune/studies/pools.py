"""Where workers run: processes of this machine, or machines of a Dask cluster.

    with pool("processes", 2) as executor: executor.submit(work_once, job)

All are `concurrent.futures.Executor`s. On Dask a call needs one of the resource ``measure``, of
which each machine has one (``dask worker --resources measure=1``): one measurement runs at a time.
"""

import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

from pyc_mlir.dialects.errors import PycError, ReasonCode

PROCESSES, DASK = "processes", "dask://"
RESOURCE = "measure"
_CONNECT_SECONDS = 30


@contextmanager
def pool(where: str | Executor, workers: int) -> Iterator[Executor]:
    """An executor: ``processes``, ``dask://host:port``, or one that is the caller's own.

    Raises PycError: BAD_ARGUMENT for another text and a scheduler that does not answer,
    MISSING_DEPENDENCY without the package `distributed`.
    """
    if isinstance(where, Executor):
        yield where
    elif where == PROCESSES:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, context, initializer=_leave_interrupts) as made:
            yield made
    elif where.startswith(DASK):
        with _dask(where.removeprefix(DASK)) as made:
            yield made
    else:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"executor: expected `{PROCESSES}` or `{DASK}HOST:PORT`, got {where!r}",
        )


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
            "executor: expected the package `distributed`, got none; install it: "
            "pip install 'pyc-mlir[cluster]'",
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
