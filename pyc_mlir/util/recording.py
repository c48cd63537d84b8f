"""The Python code that runs while a function is traced, the objects it has in hands, its names.

    with Recording() as recording:
        trace(function)
    recording.code, recording.library, recording.objects

Packages (`PACKAGES`: numpy, PyC itself, torch, jax) are left out: they hold no state of a model.
"""

import dis
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from types import CodeType, FrameType, ModuleType
from typing import Any, NamedTuple

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
