"""Record what a function read from outside of its arguments while it was traced, and later changes.

    with Recording() as recording:
        trace(function)
    captures = Captures.of(function, recording.ran())
    captures.changed()    # "" or the name of what changed: "self.scale", "weights"

Watched is what can be reached from the code that ran: the globals that it names, the variables,
defaults and code of its functions, the objects that it had in local variables; of objects, classes
and modules the attributes that it names (of objects all, where it reads computed names); of lists,
dicts, sets and the like all elements. Left out are packages (numpy, torch, the standard library)
with all that they hold, the contents of larger arrays, and what docs/frontends.md lists beside.
"""

import array
import functools
import gc
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import partial
from operator import attrgetter, call, methodcaller
from types import (
    CodeType,
    FrameType,
    FunctionType,
    MemberDescriptorType,
    ModuleType,
    TracebackType,
)
from typing import Any

import numpy as np

from pyc_mlir.util.captures.code import names_of
from pyc_mlir.util.captures.ran import DATA_MODULES, PACKAGES, Ran, is_own
from pyc_mlir.util.captures.watched import (
    CONTAINERS,
    Attributes,
    Cells,
    Content,
    Elements,
    Named,
    Quick,
    Read,
    Watched,
    attributes_of,
    reads_itself,
)

MOST_WATCHED, MOST_ELEMENTS = 4096, 1024
MOST_ARRAYS, MOST_BYTES = 4, 1024
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
# Code of the standard library that reads any attribute of the objects that it is given.
_GENERIC = frozenset({"dataclasses", "copy", "inspect"})
# Modules of types that hold what Python code gave them: iterators, partials, methods.
_HOLDERS = DATA_MODULES | {"builtins", "itertools", "operator", "_operator", "_functools"}
_PARTS = attrgetter("__code__", "__defaults__", "__kwdefaults__")
_UNSET = object()


class Captures:
    """The captured values of one function, as they are when this is made."""

    def __init__(
        self, watched: list[Watched], contents: list[Content], left_out: tuple[str, ...]
    ) -> None:
        self.watched, self.contents, self.left_out = watched, contents, left_out
        self._reads = [c.read for c in contents]
        self._values = [c.value for c in contents]
        self._quick = self._compared()

    @staticmethod
    def of(function: Callable[..., Any], ran: Ran) -> "Captures":
        """Return the captures of a function or a method that ran."""
        search = _Search(ran, frozenset())
        search.run(function)
        if search.more:
            search = _Search(ran, frozenset(search.more))
            search.run(function)
        return Captures(
            search.watched, [*search.small_arrays(), *search.contents], tuple(search.left_out)
        )

    def changed(self) -> str:
        """Return the name of a value that is not what it was; empty if there is none."""
        if not self._quick.is_same():
            for watched in self.watched:
                if found := watched.changed():
                    return found
            self._quick = self._compared()
        if [*map(call, self._reads)] != self._values:
            return next(c.name for c in self.contents if c.read() != c.value)
        return ""

    def _compared(self) -> Quick:
        quick = Quick()
        for watched in self.watched:
            watched.add(quick)
        return quick


class _Search:
    """Follows what ran to what it reads."""

    def __init__(self, ran: Ran, more: frozenset[str]) -> None:
        # Attributes that getters read which were found on the way.
        self.more: set[str] = set()
        self.watched: list[Watched] = []
        self.contents: list[Content] = []
        self.left_out: list[str] = []
        self._ran = ran
        codes = [names_of(c) for c in (*ran.code, *ran.library)]
        self._names = more.union(*(n.attributes for n in codes))
        generic = not _GENERIC.isdisjoint(ran.library.values())
        self._any = generic or any(names_of(c).computed for c in ran.code)
        self._arrays: list[tuple[str, np.ndarray]] = []
        self._seen: dict[int, Any] = {}
        self._room = MOST_WATCHED
        self._functions: set[CodeType] = set()
        self._todo: deque[tuple[Any, str]] = deque()

    def run(self, function: Callable[..., Any]) -> None:
        """Search from the function, from what it ran, and from the objects at hand."""
        self._follow(function, "" if isinstance(function, FunctionType) else "self")
        by_module: dict[int, tuple[dict[str, Any], set[str]]] = {}
        for code, variables in self._ran.code.items():
            names = names_of(code)
            by_module.setdefault(id(variables), (variables, set()))[1].update(names.globals)
            for name in names.modules:
                self._todo.append((sys.modules.get(name), name))
        for variables, used in by_module.values():
            self._named(variables, frozenset(used), "")
        self._drain()
        for value in self._ran.objects:
            self._follow(value, type(value).__name__)
        lost = [c for c in self._ran.standing() if c not in self._functions]
        for found in self._ran.functions(lost):
            self._follow(found, found.__name__)

    def small_arrays(self) -> Iterator[Content]:
        """Yield the contents of the smallest arrays."""
        small = [(name, a) for name, a in self._arrays if a.nbytes <= MOST_BYTES]
        for name, found in sorted(small, key=lambda pair: pair[1].nbytes)[:MOST_ARRAYS]:
            yield Content(found.tobytes, name, found.tobytes())

    def _follow(self, value: Any, name: str) -> None:
        self._todo.append((value, name))
        self._drain()

    def _drain(self) -> None:
        while self._todo:
            value, name = self._todo.popleft()
            if not isinstance(value, _PLAIN) and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._visit(value, type(value), name)

    def _visit(self, value: Any, kind: type, name: str) -> None:
        """Watch a captured value; what it holds is to be followed."""
        if isinstance(value, np.ndarray):
            self._arrays.append((name, value))
        elif kind is FunctionType:
            self._function(value, value.__qualname__)
        elif issubclass(kind, ModuleType):
            if is_own(value.__name__):
                names = None if self._any else self._names
                self._named(vars(value), names, value.__name__)
        elif issubclass(kind, type):
            self._class(value)
        elif kind in (bytearray, memoryview, array.array):
            self._bytes(value, name)
        elif kind is functools._lru_cache_wrapper:
            self._watch(Read(_read_cache, value, ("misses", "size"), name, plain=True))
            self._referents(value, name)
        elif kind in (attrgetter, methodcaller):
            texts = (t for t in value.__reduce__()[1] if isinstance(t, str))
            self.more.update(n for t in texts for n in t.split("."))
        elif kind in _READS:
            self._watch(Read(_READS[kind], value, ("value",), name))
            self._referents(value, name)
        else:
            self._object(value, kind, name)

    def _object(self, value: Any, kind: type, name: str) -> None:
        """Watch a container, an object of a class of the user's, or both."""
        # torch's tensors count their changes.
        if any("_version" in vars(c) for c in kind.__mro__) and isinstance(value._version, int):
            self.contents.append(Content(lambda: value._version, name, value._version))
        if issubclass(kind, CONTAINERS):
            self._watch(Elements(value, name))
        elif issubclass(kind, tuple):
            self._todo.extend((e, f"{name}[{i}]") for i, e in enumerate(tuple.__iter__(value)))
        module = kind.__module__ if isinstance(kind.__module__, str) else ""
        own, first = is_own(module), module.partition(".")[0]
        if not own and first not in _HOLDERS:
            wrapped = getattr(value, "__wrapped__", None) if first in PACKAGES else None
            self._todo.append((wrapped, name))
            return
        if not issubclass(kind, (*CONTAINERS, tuple)) and not own:
            self._referents(value, name)
        if _has_attributes(value):
            names = None if self._any else self._names
            self._watch(Attributes(value, names, name or kind.__name__))
        if own:
            self._slots(value, kind, name)
            self._todo.append((kind, kind.__name__))

    def _slots(self, value: Any, kind: type, name: str) -> None:
        members = {
            n: m
            for c in reversed(kind.__mro__)
            for n, m in vars(c).items()
            if type(m) is MemberDescriptorType and (self._any or n in self._names)
        }
        if members:
            read = partial(_read_slots, tuple(members.values()))
            names = list(members)
            if all(v is not _UNSET for v in read(value)) and not reads_itself(kind):
                names = names * 2 if len(names) == 1 else names  # one alone would give no tuple
                read = attrgetter(*names)
            self._watch(Read(read, value, names, name or kind.__name__))

    def _class(self, kind: type) -> None:
        """Watch a class and those that it derives from; a class of its own that makes it."""
        for made in (c for c in kind.__mro__ if is_own(c.__module__) and c is not kind):
            self._todo.append((made, made.__name__))
        if type(kind) is not type:
            self._todo.append((type(kind), type(kind).__name__))
        if not is_own(kind.__module__):
            return
        self._named(vars(kind), self._names, kind.__name__)
        for name, part in vars(kind).items():
            if isinstance(part, _FUNCTIONS):
                self._todo.append((part, name))

    def _function(self, function: FunctionType, name: str) -> None:
        """Watch a function that ran: what it closes over, its defaults and its code."""
        code = function.__code__
        own = code in self._ran.code
        if not own and code not in self._ran.library:
            return
        self._functions.add(code)
        if own:
            self._watch(Read(_PARTS, function, ("code", "defaults", "keyword defaults"), name))
        for default in function.__defaults__ or ():
            self._todo.append((default, f"a default of {name}"))
        if attributes := vars(function):
            self._named(attributes, self._names | {"__wrapped__"}, name)
        pairs = zip(code.co_freevars, function.__closure__ or (), strict=True)
        if free := {n: cell for n, cell in pairs if _is_full(cell)}:
            self._watch(Cells(list(free.values()), list(free)))

    def _bytes(self, value: Any, name: str) -> None:
        read = partial(bytes, value) if isinstance(value, bytearray) else value.tobytes
        if len(value) * getattr(value, "itemsize", 1) <= MOST_BYTES:
            self.contents.append(Content(read, name, read()))
        else:
            self.left_out.append(name)

    def _referents(self, value: Any, name: str) -> None:
        """Return what an object that is written in C holds."""
        if not isinstance(value, (FrameType, TracebackType)):
            self._todo.extend((found, name) for found in gc.get_referents(value))

    def _named(self, holder: Any, names: frozenset[str] | None, title: str) -> None:
        self._watch(Named(holder, names, title))

    def _watch(self, watched: Watched) -> None:
        """Watch values, and follow them."""
        count = len(watched.values)
        if count > self._room or (count > MOST_ELEMENTS and isinstance(watched, Elements)):
            self.left_out.append(watched.title)
            return
        self._room -= len(watched.values)
        self.watched.append(watched)
        self._todo.extend((value, watched.named(n)) for n, value in watched.values.items())


_FUNCTIONS = (
    FunctionType, staticmethod, classmethod, property, functools.cached_property,
    functools.partialmethod, functools.singledispatchmethod,
)  # fmt: skip


def _read_variable(variable: ContextVar[Any]) -> tuple[Any]:
    return (variable.get(_UNSET),)


def _read_reference(reference: Callable[[], Any]) -> tuple[Any]:
    return (reference(),)


def _read_cache(function: Any) -> tuple[int, int]:
    """Return the calls for which a cached function ran, and the answers that are kept."""
    found = function.cache_info()
    return (found.misses, found.currsize)


def _read_slots(members: tuple[MemberDescriptorType, ...], value: Any) -> Iterator[Any]:
    for member in members:
        try:
            yield member.__get__(value)
        except AttributeError:
            yield _UNSET


_READS: dict[type, Callable[[Any], Any]] = {
    ContextVar: _read_variable,
    weakref.ref: _read_reference,
    weakref.KeyedRef: _read_reference,
}


def _has_attributes(value: Any) -> bool:
    try:
        return isinstance(attributes_of(value), dict)
    except AttributeError:
        return False


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a variable that has no value yet
        return False
