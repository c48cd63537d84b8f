"""The Python code that runs while a function is traced, and the objects that it has in hands.

    with Recording() as recording:
        trace(function)
    recording.ran()    # code of the user's own, code of libraries that it called, objects

Packages (`PACKAGES`: numpy, PyC itself, torch, jax) are left out: they hold no state of a model.
"""

import gc
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

PACKAGES = frozenset(
    {"numpy", "pyc_mlir", "torch", "torch_mlir", "iree", "jax", "jaxlib", "ml_dtypes"}
)
# Modules of the standard library whose objects hold what a user put there.
DATA_MODULES = frozenset(
    {"types", "collections", "argparse", "functools", "weakref", "contextlib", "_thread", "enum"}
)
CONTAINERS = (list, dict, set, deque)
# What code is: the user's, of an installed package, of the standard library, of `PACKAGES`.
_OWN, _INSTALLED, _LIBRARY, _PACKAGE = "own", "installed", "library", "package"
_INSTALLED_IN = tuple(sysconfig.get_paths()[name] for name in ("purelib", "platlib"))
# Modules of `PACKAGES` that call what the user gave them, and no installed package besides.
_CALLERS = ("numpy", "pyc_mlir.frontends.python.jit", "pyc_mlir.frontends.python.trace")
# Set in code of functions, not of modules and classes.
_OPTIMIZED = 1


@dataclass(frozen=True)
class Ran:
    """The code that ran, with its globals; code of libraries with its module; living objects."""

    code: Mapping[CodeType, dict[str, Any]]
    library: Mapping[CodeType, str]
    objects: tuple[Any, ...]

    def standing(self) -> Iterator[CodeType]:
        """Code of functions, without those that other code which ran makes anew each time."""
        inner = {c for code in self.code for c in code.co_consts if isinstance(c, CodeType)}
        return (c for c in self.code if c.co_flags & _OPTIMIZED and c not in inner)

    def functions(self, codes: list[CodeType]) -> Iterator[FunctionType]:
        """Yield all functions of these codes. Looks through all objects of the process."""
        wanted = set(codes)
        for found in gc.get_referrers(*codes) if codes else ():
            if type(found) is FunctionType and found.__code__ in wanted:
                yield found


class Recording:
    """Notes code and objects from `with` on; of the thread that enters it."""

    def __init__(self) -> None:
        self._kinds: dict[str, str] = {}
        self._code: dict[CodeType, dict[str, Any]] = {}
        self._library: dict[CodeType, str] = {}
        self._objects: dict[int, Any] = {}
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

    def ran(self) -> Ran:
        """Return what was noted; objects that the trace made and dropped are left out."""
        _drop_unused(self._objects)
        return Ran(self._code, self._library, tuple(self._objects.values()))

    def _profiled(self, frame: FrameType, event: str, _: Any) -> None:
        if event in ("call", "return"):
            self._note(frame)

    def _traced(self, frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_lines = False
        return self._traced if self._note(frame) else None

    def _note(self, frame: FrameType) -> bool:
        """Note a frame that begins or ends; whether its locals are of interest."""
        kind = self._kind(frame)
        code = frame.f_code
        if kind is _PACKAGE or (kind is not _OWN and not self._is_called(frame.f_back, kind)):
            return False
        if kind is _LIBRARY:
            self._library[code] = frame.f_globals["__name__"]
            return False
        self._code[code] = frame.f_globals
        if code.co_flags & _OPTIMIZED:
            for value in frame.f_locals.values():
                if holds_state(type(value)):
                    self._objects[id(value)] = value
        return True

    def _is_called(self, caller: FrameType | None, kind: str) -> bool:
        """Return whether a call of a library is the user's, and not one of a package for itself."""
        if caller is None or self._kind(caller) is _OWN:
            return True
        code, module = caller.f_code, str(caller.f_globals.get("__name__", ""))
        known = code in self._code or code in self._library
        return known or (kind is _INSTALLED and module.startswith(_CALLERS))

    def _kind(self, frame: FrameType) -> str:
        name = frame.f_globals.get("__name__", "")
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = _kind(str(name), frame.f_code.co_filename)
        return kind


def _kind(module: str, file: str) -> str:
    first = module.partition(".")[0]
    if first in PACKAGES or first.startswith("namedtuple_"):
        return _PACKAGE
    if first in sys.stdlib_module_names:
        return _LIBRARY
    return _INSTALLED if file.startswith(_INSTALLED_IN) else _OWN


def holds_state(kind: type) -> bool:
    """Return whether objects of a type hold what a user put there: containers, and classes of his
    own.
    """
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
