"""Diagnostics as data: collected from a context, shown as mlir-opt does, checked against a file.

`collect` receives everything that MLIR reports in a context; `render` gives
``file:line:col: error: message`` with the source line and a caret; `verify` compares with
``// expected-error @+1 {{...}}`` comments. Follows MLIR's SourceMgrDiagnosticHandler and
SourceMgrDiagnosticVerifierHandler.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.names import name_in
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.pipelines.text.input_text import regex_fault

_EXPECTED = re.compile(
    r"expected-(?P<kind>error|note|remark|warning)(?P<re>-re)? *"
    r"(@(?P<at>[+-][0-9]+|above|below|unknown))? *\{\{(?P<text>.*)\}\}\s*$"
)
_CURRENT_OPERATION = "see current operation"  # mlir-opt switches this note off; the wheel cannot
_PIECE = re.compile(r"\{\{(.*?)\}\}")


@dataclass(frozen=True)
class Position:
    """A place in a file; lines and columns count from 1."""

    file: str
    line: int
    column: int


@dataclass(frozen=True)
class Diagnostic:
    """One message: `kind` is error, warning, note or remark; `position` None when unknown."""

    kind: str
    message: str
    position: Position | None = None
    notes: "tuple[Diagnostic, ...]" = ()

    def flat(self) -> "Iterator[Diagnostic]":
        """Return the diagnostic, then its notes."""
        yield self
        for note in self.notes:
            yield from note.flat()


def position_of(location: ir.Location) -> Position | None:
    """Return the first place in a file that `location` leads to; None when it leads to none."""
    match location:
        case ir.FileLineColLoc():
            return Position(location.filename, location.start_line, location.start_col)
        case ir.NameLoc():
            return position_of(location.child_loc)
        case ir.CallSiteLoc():
            return position_of(location.callee)
        case ir.FusedLoc():
            return next((p for p in map(position_of, location.locations) if p), None)
        case _:
            return None


def from_mlir(diagnostic: ir.Diagnostic) -> Diagnostic:
    """Return MLIR's diagnostic (or the information about one) as data, its op's name in front."""
    kind = str(diagnostic.severity).rsplit(".", 1)[-1].lower()
    name = "" if kind == "note" else name_in(str(diagnostic.location))
    named = name and not name.startswith("pyc:")
    return Diagnostic(
        kind,
        f'"{name}": {diagnostic.message}' if named else diagnostic.message,
        position_of(diagnostic.location),
        tuple(from_mlir(note) for note in diagnostic.notes),
    )


@contextmanager
def collect(context: ir.Context, sink: Callable[[Diagnostic], None]) -> Iterator[None]:
    """Hand every diagnostic of `context` to `sink` until the `with` ends."""

    def receive(diagnostic: ir.Diagnostic) -> bool:
        sink(from_mlir(diagnostic))
        return True

    before, context.emit_error_diagnostics = context.emit_error_diagnostics, True
    handler = context.attach_diagnostic_handler(receive)
    try:
        yield
    finally:
        handler.detach()
        context.emit_error_diagnostics = before


def render(diagnostic: Diagnostic, sources: Mapping[str, Sequence[str]]) -> str:
    """Render the text for standard error; `sources` maps file names to their lines."""
    lines = []
    for item in diagnostic.flat():
        # Notes show IR, which escapes names itself; elsewhere a name could forge lines.
        message = item.message if item.kind == "note" else one_line(item.message)
        lines.append(f"{_prefix(item.position)}: {item.kind}: {message}")
        lines += _excerpt(item.position, sources)
    return "\n".join(lines) + "\n"


def _prefix(position: Position | None) -> str:
    if position is None:
        return "<unknown>:0"
    return f"{one_line(position.file)}:{position.line}:{position.column}"


def _excerpt(position: Position | None, sources: Mapping[str, Sequence[str]]) -> list[str]:
    lines = sources.get(position.file, ()) if position else ()
    if position is None or not 1 <= position.line <= len(lines):
        return []
    line = lines[position.line - 1]
    before = line[: max(position.column - 1, 0)]
    indent = "".join("\t" if c == "\t" else " " for c in before)
    return [line, f"{indent}^"]


@dataclass(frozen=True)
class Expectation:
    """An ``expected-...`` comment: what must be reported at `line` (None: at no known place)."""

    kind: str
    text: str
    line: int | None
    is_pattern: bool
    written_at: Position

    def matches(self, item: Diagnostic) -> bool:
        """Return whether `item` is what the comment asks for."""
        line = item.position.line if item.position else None
        if item.kind != self.kind or line != self.line:
            return False
        if not self.is_pattern:
            return self.text in item.message
        return re.search(_as_regex(self.text), item.message) is not None


def _as_regex(text: str) -> str:
    """Return an ``-re`` comment's message as a regex: {{...}} inside of it is one."""
    pieces = _PIECE.split(text)
    return "".join(p if i % 2 else re.escape(p) for i, p in enumerate(pieces))


def expectations(text: str, file: str, line_offset: int = 0) -> list[Expectation]:
    """Return the ``expected-...`` comments of `text`, at most one a line.

    ``@above`` and ``@below`` point at the nearest line without such a comment.
    Raises PycError (BAD_ARGUMENT) for an ``-re`` comment without a regular expression.
    """
    lines = text.splitlines()
    found = [_EXPECTED.search(line) for line in lines]
    commented = {i for i, match in enumerate(found) if match}
    result = []
    for index, match in enumerate(found):
        if match is None:
            continue
        target = _target(match["at"], index, commented)
        line = None if target is None else target + 1 + line_offset
        position = Position(file, index + 1 + line_offset, match.start() + 1)
        if match["re"] and (fault := regex_fault(_as_regex(match["text"]))):
            text = f"expected regular expressions within {{{{...}}}} of the comment, got {fault}"
            where = f"{one_line(file)}:{position.line}:{position.column}"
            raise PycError(ReasonCode.BAD_ARGUMENT, text, where=where)
        result.append(
            Expectation(match["kind"], match["text"], line, match["re"] is not None, position)
        )
    return result


def _target(at: str | None, index: int, commented: set[int]) -> int | None:
    """Return the line (from 0) that a comment at line `index` speaks of."""
    match at:
        case None:
            return index
        case "unknown":
            return None
        case "above" | "below":
            step = -1 if at == "above" else 1
            index += step
            while index in commented:
                index += step
            return index
        case _:
            return index + int(at)


def verify(
    expected: Sequence[Expectation], reported: Sequence[Diagnostic], only_expected: bool = False
) -> list[Diagnostic]:
    """Report diagnostics nobody expected (unless `only_expected`), and missing ones."""
    problems = []
    open_ = list(expected)
    for item in (d for top in reported for d in top.flat()):
        match = next((e for e in open_ if e.matches(item)), None)
        if match is not None:
            open_.remove(match)
        elif not only_expected and not item.message.startswith(_CURRENT_OPERATION):
            problems.append(
                Diagnostic("error", f"unexpected {item.kind}: {item.message}", item.position)
            )
    for missing in open_:
        message = f'expected {missing.kind} "{missing.text}" was not produced'
        problems.append(Diagnostic("error", message, missing.written_at))
    return problems
