"""Log records: the logger `pyc_mlir`, its children, and what the variable `PYC_LOG` shows of them.

    PYC_LOG=info                    steps of compiles, the cache's answers, programs that load
    PYC_LOG=debug                   also each decision
    PYC_LOG=warning,cache=debug     a level for all, and one for a child

`trace_spans` writes the same steps, and calls of services, as spans of OpenTelemetry.
Records of steps have the attributes ``stage`` (what is done) and ``seconds`` (None where it begins,
else how long it took). Without the variable nothing is set up: handlers and levels are the user's.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode, install
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
# OpenTelemetry's tracer; None: no spans.
tracer: Any = None
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
        with span(title):
            yield
    finally:
        seconds = time.perf_counter() - began
        log.info("%s: %.3f s", title, seconds, extra={"stage": title, "seconds": seconds})


def trace_spans(provider: Any = None, *, on: bool = True) -> None:
    """Write spans of OpenTelemetry from now on: steps of compiles, and calls of services.

    provider: a tracer provider; None is the process's own, as `opentelemetry-instrument` sets it.
    on: False writes none any more. Raises PycError (MISSING_DEPENDENCY) without its API.
    """
    global tracer
    if not on:
        tracer = None
        return
    try:
        from opentelemetry.trace import get_tracer  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        raise PycError(
            ReasonCode.MISSING_DEPENDENCY,
            where="spans",
            expected="the package opentelemetry-api",
            got="none installed",
            remedy=install("otel"),
        ) from None
    tracer = get_tracer(ROOT, tracer_provider=provider)


@contextmanager
def span(name: str, **attributes: str | int) -> Iterator[None]:
    """Surround a step with a span, if they are on; one that fails has the error's code."""
    if tracer is None:
        yield
        return
    with tracer.start_as_current_span(name, attributes=attributes) as current:
        try:
            yield
        except PycError as error:
            current.set_attribute("pyc.code", error.code.name)
            raise


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
