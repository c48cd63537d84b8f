"""Find the effects of a Python function beside its results, as far as they show.

`Effects(function)` is made before a run; `found()` tells after it. It is asked before a comparison
calls the function once more: a run that changed something, or drew random numbers, is not repeated.
"""

import dis
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import numpy as np

from pyc_mlir.util.captures.ran import CONTAINERS, PACKAGES

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
_GENERATORS = (np.random.Generator, np.random.RandomState)
_STANDARD = frozenset(sys.stdlib_module_names)
_MOST_VALUES = 4096


class Effects:
    """The state around a function before it runs: what it holds and reaches by the names in it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._written: list[str] = []
        self._sizes: list[tuple[str, Any, int]] = []
        self._drawn: list[tuple[str, Any, Any]] = []
        self._seen: dict[int, Any] = {}
        self._random = random_states()
        waiting: deque[tuple[str, Any]] = deque([("the function", function)])
        while waiting and len(self._seen) < _MOST_VALUES:
            name, value = waiting.popleft()
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                waiting.extend(self._visit(name, value))

    def found(self) -> str:
        """Return the first effect since: "draws random numbers"; empty if none is known."""
        if self._random != random_states():
            return "draws random numbers"
        for name, generator, state in self._drawn:
            if _state(generator) != state:
                return f"draws random numbers from `{name}`"
        for name, container, size in self._sizes:
            if len(container) != size:
                return f"changes `{name}`"
        return next(iter(self._written), "")

    def _visit(self, name: str, value: Any) -> Iterator[tuple[str, Any]]:
        """Note one value; yield what it holds."""
        if isinstance(value, MethodType):
            yield from ((name, value.__func__), ("self", value.__self__))
        elif isinstance(value, FunctionType):
            if _is_own(value.__module__):
                self._written += _writes(value.__code__, frozenset(value.__code__.co_freevars))
                yield from _read(value)
        elif isinstance(value, (*_GENERATORS, random.Random)):
            self._drawn.append((name, value, _state(value)))
        elif isinstance(value, CONTAINERS):
            self._sizes.append((name, value, len(value)))
            yield from ((name, v) for v in (value.values() if isinstance(value, dict) else value))
        elif isinstance(value, tuple):
            yield from ((name, v) for v in value)
        elif _is_own(type(value).__module__) and not isinstance(value, type):
            yield from getattr(value, "__dict__", {}).items()
            for kind in type(value).__mro__:
                yield from ((n, f) for n, f in vars(kind).items() if isinstance(f, FunctionType))


def _is_own(module: Any) -> bool:
    """Return whether a module is the user's: neither the standard library's nor of a package."""
    top = str(module).partition(".")[0]
    return top == "__main__" or top not in PACKAGES | _STANDARD


def _read(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the values that a function's closure, defaults and global names hold."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not bound yet
            continue
    yield from (("a default", value) for value in function.__defaults__ or ())
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield "the function", wrapped
    names = set(_names(function.__code__))
    yield from ((n, v) for n, v in function.__globals__.items() if n in names)


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names in code, and in code that is defined in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _writes(code: CodeType, free: frozenset[str]) -> Iterator[str]:
    """Yield what code writes. `free`: variables of the functions around it."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in _WRITES:
            yield _WRITES[instruction.opname].format(instruction.argval)
        elif instruction.opname == "STORE_DEREF" and instruction.argval in free:
            yield f"writes the variable `{instruction.argval}`"
    for name in sorted(_OUTPUTS.intersection(code.co_names)):
        yield f"calls `{name}`"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _writes(constant, free & frozenset(constant.co_freevars))


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return str(generator.bit_generator.state)
    if isinstance(generator, np.random.RandomState):
        return str(generator.get_state(legacy=False))
    return generator.getstate()


def random_states() -> tuple[Any, ...]:
    """Return the states of the generators that all of a process share, numpy's and Python's."""
    state: Any = np.random.get_state(legacy=True)
    return (state[2], state[3], state[1].tobytes(), random.getstate())
