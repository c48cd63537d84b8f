"""Facts about a tool's input, which need no MLIR: bytecode or text, its parts, its patterns."""

import re
from dataclasses import dataclass

SPLIT_MARKER = "// -----"
BYTECODE_MAGIC = b"ML\xefR"


def is_bytecode(data: bytes) -> bool:
    """Return whether `data` starts as MLIR bytecode does."""
    return data.startswith(BYTECODE_MAGIC)


@dataclass(frozen=True)
class InputPart:
    """A part of a split file: its text, and how many lines stand before it."""

    text: str
    line_offset: int


def split(text: str, marker: str = SPLIT_MARKER) -> list[InputPart]:
    """Split `text` at lines that are exactly `marker`."""
    chunks, current, offset = [], [], 0
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.rstrip() == marker:
            chunks.append(InputPart("".join(current), offset))
            current, offset = [], number + 1
        else:
            current.append(line)
    return [*chunks, InputPart("".join(current), offset)]


def regex_fault(pattern: str) -> str:
    """Return why a text is no regular expression; "" for one that is."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return ""
