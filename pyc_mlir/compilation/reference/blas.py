"""One BLAS thread for the references of a self-check.

Their products are small: a second thread of BLAS saves no time, and spins between them. Where cores
are shared, that takes as much processor time as the rest of the compile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import Lock
from typing import Any, ClassVar


class _Limit:
    """The limit of this process, and how many compiles at once are under it."""

    lock: ClassVar[Lock] = Lock()
    users: ClassVar[int] = 0
    found: ClassVar[Any] = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Have BLAS use one thread within; when nobody is within any more, as many as before.

    Without threadpoolctl, which the extra `compile` installs, nothing changes.
    """
    with _Limit.lock:
        if not _Limit.users:
            _Limit.found = _limited()
        _Limit.users += 1
    try:
        yield
    finally:
        with _Limit.lock:
            _Limit.users -= 1
            if not _Limit.users and _Limit.found is not None:
                _Limit.found.restore_original_limits()


def _limited() -> Any:
    """Limit BLAS; return what undoes it, None without threadpoolctl."""
    try:
        return import_module("threadpoolctl").threadpool_limits(1, "blas")
    except ImportError:
        return None
