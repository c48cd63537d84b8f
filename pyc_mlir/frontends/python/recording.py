"""The Python code that runs while a function is traced, its names, objects and effects.

    with Recording() as recording:
        trace(function)
    recording.code, recording.library, recording.objects

Packages (`PACKAGES`: numpy, PyC itself, torch, jax) are left out: they hold no state of a model.

`Effects(function)` is made before a run; `found()` tells after it, as far as effects show. It is
asked before a comparison calls the function once more: a run that changed something, or drew random
numbers, is not repeated.
"""

import dis
import random
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from types import CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

PACKAGES = frozenset(
    {"numpy", "pyc_mlir", "torch", "torch_mlir", "iree", "jax", "jaxlib", "ml_dtypes"}
)
CONTAINERS = (list, dict, set, deque)
# What code is: the user's, of an installed package, of the standard library, of `PACKAGES`.
_OWN, _INSTALLED, _LIBRARY, _PACKAGE = "own", "installed", "library", "package"
_INSTALLED_IN = tuple(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))
# Modules of `PACKAGES` that call what the user gave them, and no installed package besides.
_CALLERS = ("numpy", "pyc_mlir.frontends.python.jit", "pyc_mlir.frontends.python.trace")
# Set in code of functions, not of modules and classes.
_OPTIMIZED = 1
# Code that names one of these may read any attribute of an object.
_ANY = frozenset({"vars", "__dict__", "dir", "attrgetter", "methodcaller", "__getattribute__"})
_BY_NAME = frozenset({"getattr", "hasattr"})
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME")
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


class Recording:
    """Notes code and objects from `with` on; of the thread that enters it.

    code: of the user's that ran, with its globals. library: code of the standard library that he
    called, with its module. objects: those that were at hand, and live after the end.
    """

    def __init__(self) -> None:
        self.code: dict[CodeType, dict[str, Any]] = {}
        self.library: dict[CodeType, str] = {}
        self.objects: tuple[Any, ...] = ()
        self._held: dict[int, Any] = {}
        self._kinds: dict[str, str] = {}
        self._restore: Callable[[], None] = lambda: None

    def __enter__(self) -> "Recording":
        # A profiler of the user's keeps its place; a debugger or a coverage tool keeps the other.
        profiled = sys.getprofile() is not None
        before: Any = sys.gettrace() if profiled else None
        begin: Callable[[Any], None] = sys.settrace if profiled else sys.setprofile
        self._restore = partial(begin, before)
        begin(self._traced if profiled else self._profiled)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
        _drop_unused(self._held)
        self.objects = tuple(self._held.values())

    def standing(self) -> Iterator[CodeType]:
        """Code of functions, without those that other code which ran makes anew each time."""
        inner = {c for code in self.code for c in code.co_consts if isinstance(c, CodeType)}
        return (c for c in self.code if c.co_flags & _OPTIMIZED and c not in inner)

    def _profiled(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "return"):
            self._note(frame)

    def _traced(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_lines = False
        return self._traced if self._note(frame) else None

    def _note(self, frame: FrameType) -> bool:
        """Note a frame that begins or ends; return True if its locals are of interest."""
        kind = self._kind(frame)
        code = frame.f_code
        if kind is _PACKAGE or (kind is not _OWN and not self._is_called(frame.f_back, kind)):
            return False
        if kind is _LIBRARY:
            self.library[code] = frame.f_globals["__name__"]
            return False
        self.code[code] = frame.f_globals
        if code.co_flags & _OPTIMIZED:
            held = (v for v in frame.f_locals.values() if _holds_state(type(v)))
            self._held.update((id(value), value) for value in held)
        return True

    def _is_called(self, caller: FrameType | None, kind: str) -> bool:
        """Return whether a call of a library is the user's, and not one of a package for itself."""
        if caller is None or self._kind(caller) is _OWN:
            return True
        code, module = caller.f_code, str(caller.f_globals.get("__name__", ""))
        known = code in self.code or code in self.library
        return known or (kind is _INSTALLED and module.startswith(_CALLERS))

    def _kind(self, frame: FrameType) -> str:
        name = frame.f_globals.get("__name__", "")
        if name not in self._kinds:
            self._kinds[name] = _kind(str(name), frame.f_code.co_filename)
        return self._kinds[name]


def _kind(module: str, file: str) -> str:
    first = module.partition(".")[0]
    if first in PACKAGES or first.startswith("namedtuple_"):
        return _PACKAGE
    if first in sys.stdlib_module_names:
        return _LIBRARY
    return _INSTALLED if file.startswith(_INSTALLED_IN) else _OWN


def _holds_state(kind: type) -> bool:
    """Return whether objects of a type hold what a user put there."""
    return kind in CONTAINERS or kind is ModuleType or is_own(kind.__module__)


def is_own(module: Any) -> bool:
    """Return whether a module, by name, is neither a package nor a part of the standard library."""
    first = module.partition(".")[0] if isinstance(module, str) else ""
    return first not in PACKAGES and first not in sys.stdlib_module_names


def _drop_unused(objects: dict[int, Any]) -> None:
    """Remove what nothing but the dict holds, and what only that held."""
    probe = {0: object()}
    alone = sys.getrefcount(probe[0])
    while unused := [key for key in objects if sys.getrefcount(objects[key]) <= alone]:
        for key in unused:
            del objects[key]


class Names(NamedTuple):
    """Globals, imported modules, attributes; whether attributes are read by computed names."""

    globals: frozenset[str]
    modules: frozenset[str]
    attributes: frozenset[str]
    computed: bool


@lru_cache(4096)
def names_of(code: CodeType) -> Names:
    """Return what code names itself; the code that is defined in it is not looked into."""
    found = list(dis.get_instructions(code))
    loads = [i for i, f in enumerate(found) if f.opname in _LOADS]
    text = (c for c in code.co_consts if isinstance(c, str) and c.isidentifier())
    by_name = (found[i + 1 :] for i in loads if found[i].argval in _BY_NAME)
    return Names(
        frozenset(found[i].argval for i in loads),
        frozenset(i.argval for i in found if i.opname == "IMPORT_NAME"),
        frozenset((*code.co_names, *text, code.co_name)),
        not _ANY.isdisjoint(code.co_names) or not all(map(_second_is_text, by_name)),
    )


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
        depth += dis.stack_effect(found.opcode, found.arg if has_argument else None)
        if depth == 2 and found.opname != "CACHE":
            second = found.opname
    return False


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
