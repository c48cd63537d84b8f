"""Errors that carry a reason code.

Every error that a user can cause is a `PycError`. Its message reads
``where: expected ..., got ...; remedy``, made from its fields of these names; its `code` is a row
of the table in reasons.py, which docs/errors.md is generated from.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from resource import RLIMIT_AS, RLIMIT_DATA, getrlimit
from typing import Any, TypedDict, Unpack

from pyc_mlir.dialects.printable import one_line, printable
from pyc_mlir.dialects.reasons import ReasonCode

# Words of native code and of the system that report exhausted memory.
_NO_MEMORY = (
    "std::bad_alloc",
    "out of memory",
    "Cannot allocate memory",
    "failed to map segment",
    "can't start new thread",
)


class ErrorFields(TypedDict, total=False):
    """The parts of an error's message."""

    where: str
    expected: str
    got: str
    remedy: str


class PycError(Exception):
    """A fault of the input, with its reason code. `str()` is one readable line or paragraph.

        PycError(code, where="--size n", expected="a number", got="'x'", remedy="name one")

    `message` is ``where: expected ..., got ...; remedy``, of those that are given; a `text` in
    words of its own stands in the place of what was expected and what came. Code reads the fields,
    never the message. Control characters, as names of strangers may have, are written out
    (`printable.py`).
    """

    def __init__(self, code: ReasonCode, text: str = "", **fields: Unpack[ErrorFields]) -> None:
        shown = {name: printable(str(value)) for name, value in fields.items()}
        self.code = code
        self.where, self.remedy = shown.get("where", ""), shown.get("remedy", "")
        self.expected, self.got = shown.get("expected", ""), shown.get("got", "")
        wanted = f"expected {self.expected}" if self.expected else ""
        came = f"got {self.got}" if self.got else ""
        said = printable(text) or ", ".join(filter(None, (wanted, came)))
        self.text = "; ".join(filter(None, (said, self.remedy)))
        self.message = f"{self.where}: {self.text}" if self.where else self.text
        super().__init__(f"{self.message} [{code.name}]")

    def under(self, where: object) -> "PycError":
        """Return the error as one of the place `where`, in which its own place lies."""
        return PycError(self.code, self.message, where=str(where))

    def __reduce__(self) -> tuple[Any, ...]:
        """Restore pickles and copies from the text and all fields, for any subclass."""
        return _blank, (type(self), *self.args), self.__dict__


def _blank(kind: type[PycError], *args: Any) -> PycError:
    return kind.__new__(kind, *args)


class VerificationError(PycError):
    """An operation whose operands, parameters or result do not fit together."""

    def __init__(self, text: str = "", **fields: Unpack[ErrorFields]) -> None:
        super().__init__(ReasonCode.INVALID_IR, text, **fields)

    def under(self, where: object) -> "VerificationError":
        """Return the error as one of the place `where`, in which its own place lies."""
        return VerificationError(self.message, where=str(where))


def internal_error(error: BaseException) -> PycError:
    """Return the refusal for an exception that is a fault of PyC."""
    return PycError(
        ReasonCode.INTERNAL_ERROR,
        expected="an answer",
        got=f"{type(error).__name__}: {one_line(error)}",
    )


def lacks_memory(message: str) -> bool:
    """Return whether a message of native code or the system reports exhausted memory."""
    return any(words in message for words in _NO_MEMORY)


def out_of_memory(
    error: BaseException | str, limits: Callable[[int], tuple[int, int]] = getrlimit
) -> PycError | None:
    """Return OUT_OF_MEMORY for an error or message that reports exhausted memory, else None.

    limits: by the number of a resource, the process's soft and hard limit.
    """
    message = one_line(error) or type(error).__name__
    if not isinstance(error, MemoryError) and not lacks_memory(message):
        return None
    most = min((m for r in (RLIMIT_AS, RLIMIT_DATA) if (m := limits(r)[0]) >= 0), default=None)
    limit = "" if most is None else f" under a limit of {most >> 20} MiB (`ulimit -v`)"
    more = "give it more" if most is None else "raise the limit"
    return PycError(
        ReasonCode.OUT_OF_MEMORY,
        where="memory",
        expected=f"enough for this model{limit}",
        got=message[:200],
        remedy=f"{more}, or take a smaller model",
    )


@contextmanager
def memory_errors() -> Iterator[None]:
    """Raise PycError (OUT_OF_MEMORY) where code within reports exhausted memory."""
    try:
        yield
    except PycError:
        raise
    except Exception as error:
        if (memory := out_of_memory(error)) is None:
            raise
        raise memory from None


def install(extra: str) -> str:
    """Return the remedy where a package of an extra is missing: no registry has PyC."""
    return f"install it with `pip install '.[{extra}]'` in PyC's checkout"


def missing_compiler(error: ModuleNotFoundError) -> PycError | None:
    """Return the error for a compiler's package that is not installed; None for other modules.

    Without extras, no compiler is installed: programs run, none is compiled.
    """
    if (error.name or "").partition(".")[0] not in ("torch_mlir", "iree"):
        return None
    return PycError(
        ReasonCode.MISSING_DEPENDENCY,
        where="compiling",
        expected=f"the package `{error.name}`",
        got="none",
        remedy=install("compile"),
    )
