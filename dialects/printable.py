"""Text of strangers, made fit for a terminal: names of files, models, nodes and arguments.

A control character in a name can clear a terminal, set its title or forge a line of output; a
directional override shows letters in another order than they are in. Both are written as JSON
writes them (``\\u001b``), so that JSON stays what it was; all other letters of any language stay.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TextIO, cast

# C0 without tab and newline, DEL, C1, directional marks, line separators, halves of surrogates.
_ODD = "\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff"
_IN_TEXT = re.compile(f"[{_ODD}]")
_IN_LINE = re.compile(f"[\t\n{_ODD}]")
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def printable(text: str) -> str:
    """Return `text` with its lines, free of control characters and directional overrides."""
    return _IN_TEXT.sub(_escaped, text)


def one_line(name: object) -> str:
    """Return a name (or a path) as `printable`, on one line."""
    return _IN_LINE.sub(_escaped, str(name))


def is_one_line(name: str) -> bool:
    """Return whether `one_line` leaves a text as it is."""
    return _IN_LINE.search(name) is None


def _escaped(found: "re.Match[str]") -> str:
    return _SHORT.get(found[0], f"\\u{ord(found[0]):04x}")


def for_display(text: str) -> str:
    """Return `text` as `printable`, with the command line's words, and files in them, on a line."""
    for name, shown in _words(tuple(sys.argv[1:])).items():
        text = text.replace(name, shown)
    return printable(text)


@lru_cache(1)
def _words(arguments: tuple[str, ...]) -> dict[str, str]:
    """Return the parts of the command line that only escaping puts on one line, longest first."""
    parts = (p for a in arguments for p in (a, *os.path.split(a), os.path.splitext(a)[0]))
    odd = [p for p in parts if p.strip() and not is_one_line(p)]
    # Errors have printable ones already.
    pairs = {shown: one_line(p) for p in odd for shown in (p, printable(p))}
    return dict(sorted(pairs.items(), key=lambda pair: -len(pair[0])))


class PrintableStream:
    """A text stream that writes what is `told`; `stream` takes text as it is."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write it, made printable."""
        self.stream.write(for_display(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def shown_streams() -> Iterator[None]:
    """Let all that Python writes to its standard output and error be printable."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (
        cast(TextIO, s if isinstance(s, PrintableStream) else PrintableStream(s)) for s in before
    )
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
