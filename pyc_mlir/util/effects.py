"""Find the effects of a Python function beside its results, as far as they show.

`Effects(function)` is made before a run; `found()` tells after it. It is asked before a comparison
calls the function once more: a run that changed something, or drew random numbers, is not repeated.
"""

import dis
import random
from collections import deque
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from pyc_mlir.util.recording import CONTAINERS, is_own

# Instructions that write what may be seen from outside of a function.
_WRITES = {
    "STORE_GLOBAL": "writes the global `{}`",
    "DELETE_GLOBAL": "deletes the global `{}`",
    "STORE_ATTR": "writes the attribute `{}`",
    "DELETE_ATTR": "deletes the attribute `{}`",
    "STORE_SUBSCR": "writes elements",
    "DELETE_SUBSCR": "deletes elements",
}
# Calls of these names reach a terminal, a file or the network.
_OUTPUTS = frozenset({"print", "open", "input", "write", "exec"})
# Generators of random numbers, and what tells their state.
_GENERATORS: dict[type, Callable[[Any], Any]] = {
    np.random.Generator: lambda g: str(g.bit_generator.state),
    np.random.RandomState: lambda g: str(g.get_state(legacy=False)),
    random.Random: lambda g: g.getstate(),
}
_MOST_VALUES = 4096


class Effects:
    """The state around a function before it runs: what it holds and reaches by the names in it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._written: list[str] = []
        # What tells a change, how to read it, and what it was.
        self._read: list[tuple[str, Callable[[Any], Any], Any, Any]] = []
        self._note("draws random numbers", lambda _: random_states(), None)
        seen: dict[int, Any] = {}
        waiting: deque[tuple[str, Any]] = deque([("the function", function)])
        while waiting and len(seen) < _MOST_VALUES:
            name, value = waiting.popleft()
            if id(value) not in seen:
                seen[id(value)] = value
                waiting.extend(self._visit(name, value))

    def found(self) -> str:
        """Return the first effect since: "draws random numbers"; empty if none is known."""
        changed = (text for text, read, holder, was in self._read if read(holder) != was)
        return next(changed, next(iter(self._written), ""))

    def _note(self, text: str, read: Callable[[Any], Any], holder: Any) -> None:
        self._read.append((text, read, holder, read(holder)))

    def _visit(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Note one value; yield what it holds."""
        generator = next((k for k in _GENERATORS if isinstance(value, k)), None)
        if isinstance(value, MethodType):
            yield from ((name, value.__func__), ("self", value.__self__))
        elif isinstance(value, FunctionType):
            if is_own(value.__module__):
                self._written += _writes(value.__code__, frozenset(value.__code__.co_freevars))
                yield from _held(value)
        elif generator is not None:
            self._note(f"draws random numbers from `{name}`", _GENERATORS[generator], value)
        elif isinstance(value, CONTAINERS):
            self._note(f"changes `{name}`", len, value)
            yield from ((name, v) for v in (value.values() if isinstance(value, dict) else value))
        elif isinstance(value, tuple):
            yield from ((name, v) for v in value)
        elif is_own(type(value).__module__) and not isinstance(value, type):
            yield from getattr(value, "__dict__", {}).items()
            for kind in type(value).__mro__:
                yield from ((n, f) for n, f in vars(kind).items() if isinstance(f, FunctionType))


def _held(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the values that a function's closure, defaults and global names hold."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not bound yet
            continue
    yield from (("a default", value) for value in function.__defaults__ or ())
    yield "the function", getattr(function, "__wrapped__", None)
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    yield from ((n, v) for n, v in function.__globals__.items() if n in names)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield code, and code that is defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _writes(code: CodeType, free: frozenset[str]) -> Iterator[str]:
    """Yield what code writes. `free`: variables of the functions around it."""
    for inner in _codes(code):
        for instruction in dis.get_instructions(inner):
            name = instruction.argval
            if instruction.opname in _WRITES:
                yield _WRITES[instruction.opname].format(name)
            elif instruction.opname == "STORE_DEREF" and name in free.intersection(
                inner.co_freevars
            ):
                yield f"writes the variable `{name}`"
        for name in sorted(_OUTPUTS.intersection(inner.co_names)):
            yield f"calls `{name}`"


def random_states() -> tuple[Any, ...]:
    """Return the states of the generators that all of a process share, numpy's and Python's."""
    state: Any = np.random.get_state(legacy=True)
    return (state[2], state[3], state[1].tobytes(), random.getstate())
