"""Kinds of captured state: each generator gives a function, changes what the function reads, ends.

`SEEN` are those that a call of a `jit` function notices, `UNSEEN` those that only an audit finds.
"""

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from capture_kinds import attributes, functions, rows, special, unseen

Kind = Callable[[], Iterator[Callable[[Any], Any]]]


def _of(module: ModuleType) -> list[Kind]:
    """The generators that a module defines."""
    found = filter(inspect.isgeneratorfunction, vars(module).values())
    return [f for f in found if f.__module__ == module.__name__]


SEEN = [k for m in (attributes, functions, special) for k in _of(m)]
SEEN += [*rows.ROWS, *special.SPECIAL]
UNSEEN = _of(unseen)
