"""One BLAS thread for the references of a self-check.

Their products are small: a second thread saves no time, and spins between them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import Lock
from typing import Any

_LOCK = Lock()
# For each compile that is within, what undoes the limit that they share.
_WITHIN: list[Any] = []


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Have BLAS use one thread within; when nobody is within any more, as many as before.

    Without threadpoolctl, which the extra `compile` installs, nothing changes.
    """
    with _LOCK:
        _WITHIN.append(_WITHIN[0] if _WITHIN else _limit())
    try:
        yield
    finally:
        with _LOCK:
            limit = _WITHIN.pop()
            if limit is not None and not _WITHIN:
                limit.restore_original_limits()


def _limit() -> Any:
    try:
        return import_module("threadpoolctl").threadpool_limits(1, "blas")
    except ImportError:
        return None
