"""Locations in the user's Python code, for ops and for errors that show the line."""

import linecache
import sys
import sysconfig
from itertools import islice
from types import CodeType, FrameType
from typing import Any, NamedTuple

from pyc_mlir.dialects.errors import PycError, ReasonCode, VerificationError
from pyc_mlir.dialects.ir.bindings import ir

# How messages of others name traced arrays, sizes of theirs, and what is inside of them.
_TRACED = ("TracedArray", "'Dim'", "BlockArgument", "OpResult")
# Frames of these modules are how a call was recorded, not where it was written.
_LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib"))
_MACHINERY = ("numpy.", "pyc_mlir.frontends.", "pyc_mlir.dialects.", "pyc_mlir.nn.")


class SourcePoint(NamedTuple):
    """A place in a source file; lines and columns count from 1."""

    file: str
    line: int
    column: int

    @property
    def text(self) -> str:
        """The line itself, or an empty string when its file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    def location(self) -> ir.Location:
        """Return the point as an MLIR location (needs an active context)."""
        return ir.Location.file(self.file, self.line, self.column)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


def user_point() -> SourcePoint:
    """Return the innermost frame of the user's own code."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_machinery(frame):
        frame = frame.f_back
    if frame is None:
        return SourcePoint("<unknown>", 1, 1)
    line, column = _position(frame)
    return SourcePoint(frame.f_code.co_filename, line, column)


def definition_point(code: CodeType) -> SourcePoint:
    """Return the point where a function begins."""
    return SourcePoint(code.co_filename, code.co_firstlineno, 1)


def _is_machinery(frame: FrameType) -> bool:
    return (frame.f_globals.get("__name__", "") + ".").startswith(_MACHINERY)


def _position(frame: FrameType) -> tuple[int, int]:
    positions = islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    line, _, column, _ = next(positions, (None, None, None, None))
    return line or frame.f_lineno, (column or 0) + 1


class Untraceable(PycError):
    """Python code that tracing cannot record: what it is (`construct`), where, and the problem."""

    def __init__(
        self,
        message: str,
        construct: str,
        point: SourcePoint,
        problem: str,
        code: ReasonCode = ReasonCode.UNTRACEABLE,
    ) -> None:
        super().__init__(code, message)
        self.construct = construct
        self.point = point
        self.problem = problem


def untraceable(
    problem: str, remedy: str, construct: str = "Python", point: SourcePoint | None = None
) -> Untraceable:
    """Return the error for Python code that tracing cannot record: place, problem, line, remedy.

    construct: ``np.sort``, ``bool()``: the name that reports count it under. point: another place
    than the current one.
    """
    point = user_point() if point is None else point
    line = f"\n    {point.text}\n" if point.text else " "
    return Untraceable(f"{point}: {problem}{line}{remedy}", construct, point, problem)


def bad(expected: str) -> PycError:
    """Return a BAD_ARGUMENT error at the user's line."""
    return PycError(ReasonCode.BAD_ARGUMENT, f"{user_point()}: {expected}")


def refused_elsewhere(error: Exception) -> Untraceable | None:
    """Return the error to show if Python, a library or PyC's handlers failed on a traced object.

    None for errors of the user's own code: those raised in it, or in a library that it calls, which
    speak of no traced object.
    """
    point, trace, innermost = SourcePoint("<unknown>", 1, 1), error.__traceback__, None
    while trace is not None:
        code, line = trace.tb_frame.f_code, trace.tb_lineno
        machinery = _is_machinery(trace.tb_frame)
        if machinery or not code.co_filename.startswith(_LIBRARIES):
            innermost = trace.tb_frame
        if innermost is trace.tb_frame and not machinery:
            positions = next(islice(code.co_positions(), trace.tb_lasti // 2, None), None)
            point = SourcePoint(code.co_filename, line, (positions[2] or 0) + 1 if positions else 1)
        trace = trace.tb_next
    by_handler = innermost is not None and _is_machinery(innermost)
    if not by_handler and not any(name in str(error) for name in _TRACED):
        return None
    problem = f"{type(error).__name__}: {error}"
    return untraceable(problem, "leave it out, or give it an array of numpy's", point=point)


class recording:
    """Code that cannot be traced inside is a form of `construct`, whatever it does within.

    Arguments that fail a check (an axis that the array lacks) name it and the user's line too.
    """

    def __init__(self, construct: str) -> None:
        self._construct = construct

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Untraceable):
            error.construct = self._construct
        if isinstance(error, VerificationError):
            point = user_point()
            if not error.message.startswith(f"{point.file}:"):
                line = f"\n    {point.text}" if point.text else ""
                text = f"{point}: {self._construct}: {error.message}{line}"
                raise VerificationError(text) from None
