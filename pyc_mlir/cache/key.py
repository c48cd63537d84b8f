"""Cache keys as data: parts in clear, their SHA-256, and how two keys differ. Needs no compiler.

`compile_key.py` makes the key of a compile.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyc_mlir.cache.files import sha256
from pyc_mlir.dialects.util.json_input import parse_json

SCHEMA_VERSION = 2


@dataclass(frozen=True)
class Key:
    """The parts as JSON data; equal parts have equal bytes."""

    parts: Mapping[str, Any]

    @cached_property
    def text(self) -> bytes:
        """The bytes of ``key.json``."""
        return f"{json.dumps(self.parts, indent=1, sort_keys=True)}\n".encode()

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of `text`, in hex."""
        return sha256(self.text)


def flat(parts: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten to ``{"options.target.cores": 4, ...}``; lists of plain values stay whole."""
    if isinstance(parts, Mapping):
        found = {}
        for name, value in parts.items():
            found |= flat(value, f"{prefix}.{name}" if prefix else name)
        return found or {prefix: {}}
    return {prefix: parts}


def differences(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of the parts that differ, sorted."""
    left, right = flat(mine), flat(other)
    return sorted(n for n in left.keys() | right.keys() if left.get(n, ...) != right.get(n, ...))


def nearest(
    mine: Mapping[str, Any], others: Iterable[tuple[str, Mapping[str, Any]]]
) -> tuple[str, list[str]]:
    """Return the entry that differs in the fewest parts, and these; the first of those that tie.

    An entry of the same program counts as nearer than any other. Empty without entries.
    """
    best: tuple[bool, int] | None = None
    name, parts = "", []
    for other, its in others:
        odd = differences(mine, its)
        rank = (any(p.startswith("program.") for p in odd), len(odd))
        if best is None or rank < best:
            best, name, parts = rank, other, odd
    return name, parts


def parse_key(text: bytes) -> Mapping[str, Any]:
    """Return the parts of a key's text; empty for what is no key of this schema."""
    try:
        found = parse_json(text)
    except ValueError:
        return {}
    known = isinstance(found, dict) and found.get("schema") == SCHEMA_VERSION
    return found if known else {}


class Unkeyed(Exception):
    """Something takes part in a compile that no content can name; the text says what.

    It never reaches a user: such a compile goes past the cache, and its record has the reason.
    """
