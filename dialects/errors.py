"""Errors that carry a reason code.

Every error that a user can cause is a `PycError`. Its text reads
``where: what was expected, what came``, then the remedy; its `code` is a row of the table in
reasons.py, which docs/errors.md is generated from.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from resource import RLIMIT_AS, RLIMIT_DATA, getrlimit
from typing import Any

from pyc_mlir.dialects.printable import one_line, printable
from pyc_mlir.dialects.reasons import ReasonCode

__all__ = [
    "PycError",
    "ReasonCode",
    "VerificationError",
    "internal_error",
    "lacks_memory",
    "memory_errors",
    "missing_compiler",
    "out_of_memory",
]
# What native code and the system say where memory ends, in messages of other kinds of errors.
_NO_MEMORY = (
    "std::bad_alloc",
    "out of memory",
    "Cannot allocate memory",
    "failed to map segment",
    "can't start new thread",
)


class PycError(Exception):
    """A fault of the input, with its reason code. `str()` is one readable line or paragraph.

    Control characters, as names of strangers may have, are written out (`printable.py`).
    """

    def __init__(self, code: ReasonCode, message: str) -> None:
        message = printable(message)
        super().__init__(f"{message} [{code.name}]")
        self.code = code
        self.message = message

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickles and copies: the text and all fields, whatever a subclass is made from."""
        return _blank, (type(self), *self.args), self.__dict__


def _blank(kind: type[PycError], *args: Any) -> PycError:
    """Return an error of a kind with its text, whose fields are set next."""
    return kind.__new__(kind, *args)


class VerificationError(PycError):
    """An operation whose operands, parameters or result do not fit together."""

    def __init__(self, message: str) -> None:
        super().__init__(ReasonCode.INVALID_IR, message)


def internal_error(error: Exception) -> PycError:
    """Return the refusal that tells an exception which nobody was meant to see."""
    return PycError(
        ReasonCode.INTERNAL_ERROR,
        f"expected an answer, got {type(error).__name__}: {one_line(error)}",
    )


def lacks_memory(message: str) -> bool:
    """Return whether a message of native code or the system says that memory ended."""
    return any(words in message for words in _NO_MEMORY)


def out_of_memory(
    error: BaseException | str, limits: Callable[[int], tuple[int, int]] = getrlimit
) -> PycError | None:
    """Return OUT_OF_MEMORY for an error that reports exhausted memory, else None.

    limits: by the number of a resource, what the process may have of it.
    """
    message = one_line(error) or type(error).__name__
    if not isinstance(error, MemoryError) and not lacks_memory(message):
        return None
    most = min((m for r in (RLIMIT_AS, RLIMIT_DATA) if (m := limits(r)[0]) >= 0), default=None)
    limit = "" if most is None else f" under a limit of {most >> 20} MiB (`ulimit -v`)"
    remedy = "give it more" if most is None else "raise the limit"
    return PycError(
        ReasonCode.OUT_OF_MEMORY,
        f"memory: expected enough for this model{limit}, got: {message[:200]}; {remedy}, or take a "
        "smaller model",
    )


@contextmanager
def memory_errors() -> Iterator[None]:
    """Raise PycError (OUT_OF_MEMORY) for what says within that memory ended; also a decorator."""
    try:
        yield
    except PycError:
        raise
    except Exception as error:
        if (memory := out_of_memory(error)) is None:
            raise
        raise memory from None


def missing_compiler(error: ModuleNotFoundError) -> PycError | None:
    """Return the error for a compiler whose package is not installed; None for other modules.

    As `pip install pyc-mlir` without extras leaves a machine: programs run there, none is compiled.
    """
    if (error.name or "").partition(".")[0] not in ("torch_mlir", "iree"):
        return None
    return PycError(
        ReasonCode.MISSING_DEPENDENCY,
        f"compiling: expected the package `{error.name}`, found none; install the compiler with "
        "`pip install 'pyc-mlir[compile]'`",
    )
