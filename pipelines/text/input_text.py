"""Facts about a tool's input before MLIR is loaded: bytecode or text, and its parts."""

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
