"""Log records: the logger `pyc_mlir`, its children, and what the variable `PYC_LOG` shows of them.

    PYC_LOG=info                    steps of compiles, the cache's answers, programs that load
    PYC_LOG=debug                   also each decision
    PYC_LOG=warning,cache=debug     a level for all, and one for a child

Records of steps have the attributes ``stage`` (what is done) and ``seconds`` (None where it begins,
else how long it took). Without the variable nothing is set up: handlers and levels are the user's.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.dialects.util.suggestions import did_you_mean

VARIABLE, ROOT = "PYC_LOG", "pyc_mlir"
COMPILE, CACHE, DECISIONS, RUN, JIT = "compile", "cache", "decisions", "run", "jit"
TRACE = "trace"
CHILDREN = (COMPILE, CACHE, DECISIONS, RUN, JIT, TRACE)
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}
# A context manager around each step of some work, called with what the step does.
Stage = Callable[[str], AbstractContextManager[None]]


def logger(child: str) -> logging.Logger:
    """Return the logger of a part of PyC, one of `CHILDREN`."""
    return logging.getLogger(f"{ROOT}.{child}")


def warn(child: str, code: str, message: str) -> None:
    """Log a warning with its reason code: something was asked for and has no effect."""
    logger(child).warning("%s [%s]", message, code)


@contextmanager
def logged(title: str) -> Iterator[None]:
    """Time a step as a `Stage` that logs when it begins and ends."""
    log = logger(COMPILE)
    log.info("%s ...", title, extra={"stage": title, "seconds": None})
    began = time.perf_counter()
    try:
        yield
    finally:
        seconds = time.perf_counter() - began
        log.info("%s: %.3f s", title, seconds, extra={"stage": title, "seconds": seconds})


def configure(environment: Mapping[str, str]) -> None:
    """Show what `PYC_LOG` asks for on standard error. Raises PycError (BAD_ARGUMENT)."""
    text = environment.get(VARIABLE, "")
    if not text:
        return
    levels = _levels(text)
    root = logging.getLogger(ROOT)
    if not any(isinstance(handler, _ToStderr) for handler in root.handlers):
        root.addHandler(_ToStderr())
        # The variable says where records go; a root handler would show each once more.
        root.propagate = False
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


def _levels(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for word in text.split(","):
        child, equals, level = word.strip().rpartition("=")
        known = LEVELS.get(level.lower())
        if known is None or (equals and child not in CHILDREN):
            name, names = (level, LEVELS) if known is None else (child, CHILDREN)
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"{VARIABLE}: expected a level ({', '.join(LEVELS)}), or CHILD=LEVEL with one of "
                f"{', '.join(CHILDREN)}, joined by commas, got {word!r}{did_you_mean(name, names)}",
            )
        found[f"{ROOT}.{child}" if equals else ROOT] = known
    return found


class _ToStderr(logging.Handler):
    """A line for each record, on what is standard error when it comes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write ``[  1234 ms] pyc_mlir.compile info: message``, printable and on one line."""
        try:
            level = record.levelname.lower()
            text = one_line(record.getMessage())
            sys.stderr.write(f"[{record.relativeCreated:6.0f} ms] {record.name} {level}: {text}\n")
        except OSError:  # a terminal that went away ends no compile
            return
