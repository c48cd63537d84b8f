"""Checks on x86 assembly (AT&T syntax) that hot loops keep their values in registers.

In comes what LLVM writes (``--iree-hal-dump-executable-files-to``), out go the innermost loops
with their counts. A loop is the text from a label to a jump back to it; it is innermost if it
holds no other loop. A spill is a move in it between a vector register and the stack. Arithmetic
that reads a constant of the loop from the stack is none: x86 reads an operand for free there.
"""

import re
from dataclasses import dataclass

_LABEL = re.compile(r"^([.\w$]+):")
_JUMP = re.compile(r"^\s+j\w+\s+(\.\w+)")
_FMA = re.compile(r"^\s+vfn?m(add|sub)\d+[ps]s\b")
_STACK = re.compile(r"^\s+vmov\w+\s(.*\(%r[sb]p\).*%[xyz]mm|.*%[xyz]mm\d+.*\(%r[sb]p\))")


@dataclass(frozen=True)
class Loop:
    """An innermost loop: its function, the lines of its instructions, FMAs and spills."""

    function: str
    instructions: int
    fmas: int
    spills: tuple[str, ...]


def innermost_loops(assembly: str) -> list[Loop]:
    """All innermost loops, in the order of the text."""
    function, labels, loops = "", {}, []
    lines = assembly.splitlines()
    for number, line in enumerate(lines):
        if found := _LABEL.match(line):
            labels[found[1]] = number
            if not found[1].startswith("."):
                function = found[1]
        elif (jump := _JUMP.match(line)) and jump[1] in labels:
            loops.append((labels[jump[1]], number, function))
    inner = [
        (a, b, name)
        for a, b, name in loops
        if not any((a, b) != (c, d) and a <= c and d <= b for c, d, _ in loops)
    ]
    return [_read(lines[a : b + 1], name) for a, b, name in inner]


def hottest(assembly: str, function: str) -> Loop:
    """Return the loop of `function` with the most FMAs. Raises ValueError where there is none."""
    mine = [loop for loop in innermost_loops(assembly) if loop.function == function and loop.fmas]
    return max(mine, key=lambda loop: loop.fmas)


def _read(lines: list[str], function: str) -> Loop:
    spills = tuple(line.strip() for line in lines if _STACK.match(line))
    code = [line for line in lines if line.startswith("\t") and not line.startswith("\t.")]
    return Loop(function, len(code), sum(bool(_FMA.match(line)) for line in code), spills)
