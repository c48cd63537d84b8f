"""Read the names in Python code: globals, modules that it imports, attributes."""

import dis
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import NamedTuple

# Code that names one of these may read any attribute of an object.
_ANY = frozenset({"vars", "__dict__", "dir", "attrgetter", "methodcaller", "__getattribute__"})
_BY_NAME = frozenset({"getattr", "hasattr"})
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
_KEPT = 4096


class Names(NamedTuple):
    """Globals, imported modules, attributes; whether attributes are read by computed names."""

    globals: frozenset[str]
    modules: frozenset[str]
    attributes: frozenset[str]
    computed: bool


@lru_cache(_KEPT)
def names_of(code: CodeType) -> Names:
    """Return what code names itself; the code that is defined in it is not looked into."""
    found = list(dis.get_instructions(code))
    loaded = frozenset(i.argval for i in found if i.opname in _LOADS)
    modules = frozenset(i.argval for i in found if i.opname == "IMPORT_NAME")
    text = (c for c in code.co_consts if isinstance(c, str) and c.isidentifier())
    computed = bool(_ANY.intersection(code.co_names)) or not all(_constant_names(found))
    return Names(loaded, modules, frozenset((*code.co_names, *text, code.co_name)), computed)


def _constant_names(instructions: list[dis.Instruction]) -> Iterator[bool]:
    """Yield for each use of `getattr` or `hasattr` whether the attribute is a text that stands
    there.
    """
    for number, instruction in enumerate(instructions):
        if instruction.opname in _LOADS and instruction.argval in _BY_NAME:
            yield _second_is_text(instructions[number + 1 :])


def _second_is_text(instructions: list[dis.Instruction]) -> bool:
    """Return whether the second argument of a call is a text, from the code behind its function.

    `depth` counts the values on the stack: 1 after the first argument.
    """
    depth, second = 0, ""
    for found in instructions:
        if found.opname in ("PRECALL", "CALL") and found.arg == depth:
            return second == "LOAD_CONST"
        if found.opcode in dis.hasjrel or found.opcode in dis.hasjabs:
            return False
        has_argument = found.opcode >= dis.HAVE_ARGUMENT
        after = depth + dis.stack_effect(found.opcode, found.arg if has_argument else None)
        if after == 2 and found.opname != "CACHE":
            second = found.opname
        depth = after
    return False
