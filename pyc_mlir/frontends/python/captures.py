"""Record what a function read from outside of its arguments while it was traced, and later changes.

    with Recording() as recording:
        trace(function)
    captures = Captures.of(function, recording)
    captures.changed()    # "" or the name of what changed: "self.scale", "weights"

Watched is what can be reached from the code that ran: the globals that it names, the variables,
defaults and code of its functions, the objects that it had in local variables; of objects, classes
and modules the attributes that it names (of objects all, where it reads computed names); of lists,
dicts, sets and the like all elements. Left out are packages (numpy, torch, the standard library)
with all that they hold, the contents of larger arrays, and what docs/frontends.md lists beside.

A check is on the way of each call, so it runs in C: all values are read again and compared with
what they were, by `==` where that is true of the same object alone, else by identity.
"""

import array
import functools
import gc
import sys
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import partial
from itertools import chain
from operator import attrgetter, call, is_, itemgetter, methodcaller
from types import (
    CodeType,
    FrameType,
    FunctionType,
    MemberDescriptorType,
    ModuleType,
    TracebackType,
)
from typing import Any, NamedTuple

import numpy as np

from pyc_mlir.frontends.python.recording import PACKAGES, Recording, is_own, names_of

MOST_WATCHED, MOST_ELEMENTS = 4096, 1024
MOST_ARRAYS, MOST_BYTES = 4, 1024
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# From the special to the general.
_CONTAINERS = (OrderedDict, dict, list, deque, set, frozenset)
# Code of the standard library that reads any attribute of the objects that it is given.
_GENERIC = frozenset({"dataclasses", "copy", "inspect"})
# Modules of types that hold what a user put there, or what Python code gave them.
_HOLDERS = frozenset(
    {"types", "collections", "argparse", "functools", "weakref", "contextlib", "_thread", "enum",
     "builtins", "itertools", "operator", "_operator", "_functools"}
)  # fmt: skip
_FUNCTIONS = (
    FunctionType, staticmethod, classmethod, property, functools.cached_property,
    functools.partialmethod, functools.singledispatchmethod,
)  # fmt: skip
# What reading a value that is not there any more raises.
_GONE = (LookupError, AttributeError, ValueError, ReferenceError)
_UNSET = object()
# As it is, type checkers take it for a function of one argument.
_call: Callable[[Callable[[Any], Any], Any], Any] = call  # type: ignore[assignment]


class _Check(NamedTuple):
    """`read(holder)` is to give what it gives now: the same objects, or plain ones equal values."""

    read: Callable[[Any], Any]
    holder: Any
    plain: bool = False


class _Watched:
    """Values of one holder by name.

    now: gives the values, or raises one of `_GONE`. checks: those of values with these names.
    title, form: how messages call the holder, and a value of it.
    """

    def __init__(
        self,
        now: Callable[[], dict[Any, Any]],
        checks: Callable[[list[Any]], Iterable[_Check]],
        title: str,
        form: str = "{}.{}",
    ) -> None:
        self.now, self.checks, self.title, self._form = now, checks, title, form
        self.values = now()

    def named(self, name: Any) -> str:
        """Return how a message calls a value."""
        return self._form.format(self.title, name) if self.title else str(name)

    def changed(self) -> str:
        """Return the name of a value that traces differently than the one before; else take all."""
        try:
            now = self.now()
        except _GONE:
            return self.title
        if list(now) != list(self.values):
            other = sorted(map(str, now.keys() ^ self.values.keys()))
            return self.named(other[0]) if other else self.title
        for name, value in now.items():
            if not _alike(value, self.values[name]):
                return self.named(name)
        self.values = now
        return ""


def _entries(holder: Any, wanted: frozenset[str] | None, title: str) -> _Watched:
    """Watch entries of a mapping, all if None are named; names may be added."""

    def now() -> dict[Any, Any]:
        if wanted is None:
            return dict(holder)
        return {n: holder[n] for n in wanted if n in holder}

    return _Watched(now, lambda names: _of_entries(holder, names, wanted is None), title)


def _of_entries(holder: Any, names: list[Any], every: bool) -> Iterator[_Check]:
    """Check entries of a mapping, and the number of all or their order."""
    yield _Check(list if every else len, holder, plain=True)
    if names:
        # A getter of one name gives no tuple.
        yield _Check(itemgetter(*names, names[0]), holder)


def _attributes(holder: Any, wanted: frozenset[str] | None, title: str) -> _Watched:
    """Watch the attributes of an object, all if None are named, and its class."""

    def now() -> dict[Any, Any]:
        found = _attributes_of(holder) or {}
        values = {n: v for n, v in found.items() if wanted is None or n in wanted}
        return {**values, "__class__": type(holder)}

    def checks(names: list[Any]) -> Iterator[_Check]:
        found = _attributes_of(holder)
        if _reads_plainly(type(holder), names[:-1]):
            yield _Check(attrgetter(*names), holder)
            names = []
        else:
            yield _Check(type, holder)
        yield from _of_entries(found, names[:-1], wanted is None)

    return _Watched(now, checks, title)


def _reads_plainly(kind: type, names: list[str]) -> bool:
    """Return whether getters give an object's own attributes, which no property covers."""
    if _reads_itself(kind) or not all(map(str.isidentifier, names)):
        return False
    covering = (vars(c).get(n) for c in kind.__mro__ for n in names)
    return not any(hasattr(type(v), "__set__") for v in covering)


def _elements(holder: Any, title: str) -> _Watched:
    """Watch the elements of a container, in their order.

    What a subclass makes of `__iter__` and `items` is not asked.
    """
    kind: Any = next(k for k in _CONTAINERS if isinstance(holder, k))
    is_dict, is_plain = issubclass(kind, dict), type(holder) is kind

    def now() -> dict[Any, Any]:
        return dict(kind.items(holder) if is_dict else enumerate(kind.__iter__(holder)))

    def checks(names: list[Any]) -> Iterator[_Check]:
        if is_dict and is_plain:
            yield from _of_entries(holder, names, True)
            return
        yield _Check(kind.__len__, holder, plain=True)
        yield _Check(tuple if is_plain else kind.__iter__, holder)
        if is_dict:
            yield _Check(kind.values, holder)

    return _Watched(now, checks, title, "{}[{!r}]")


def _parts(
    read: Callable[[Any], Any], holder: Any, names: Sequence[str], title: str, plain: bool = False
) -> _Watched:
    """Watch what `read` gives: a value for each name, each always of one type if they are plain."""
    return _Watched(
        lambda: dict(zip(names, read(holder), strict=True)),
        lambda _: (_Check(read, holder, plain),),
        title,
    )


def _content(read: Callable[[Any], Any], holder: Any, name: str) -> _Watched:
    """Watch one plain value, which messages call by the name of the holder."""
    checks = (_Check(read, holder, plain=True),)
    return _Watched(lambda: {name: read(holder)}, lambda _: checks, name, "{1}")


class Captures:
    """The captured values of one function, as they are when this is made.

    left_out: the names of those that are too large to compare.
    """

    def __init__(self, function: Callable[..., Any], ran: Recording) -> None:
        search = _Search(ran, frozenset())
        search.run(function)
        if search.more:
            search = _Search(ran, frozenset(search.more))
            search.run(function)
        self.left_out = tuple(search.left_out)
        self._watched = [*search.watched, *search.small_arrays()]
        self._quick = _Quick(self._watched)

    def changed(self) -> str:
        """Return the name of a value that is not what it was; empty if there is none."""
        if self._quick.is_same():
            return ""
        found = next(filter(None, (w.changed() for w in self._watched)), "")
        if not found:
            self._quick = _Quick(self._watched)
        return found


class _Quick:
    """All checks at once: some 10 ns a value by `==`, 30 ns by identity."""

    def __init__(self, watched: Iterable[_Watched]) -> None:
        # Reads, holders, values, for both kinds.
        self._equal: tuple[list[Any], ...] = [], [], []
        self._same: tuple[list[Any], ...] = [], [], []
        for check in (c for w in watched for c in w.checks(list(w.values))):
            value = check.read(check.holder)
            parts = value if type(value) is tuple else (value,)
            by_value = check.plain or all(map(_by_identity, parts))
            reads, holders, values = self._equal if by_value else self._same
            reads.append(check.read)
            holders.append(check.holder)
            values.extend([value] if by_value else value)

    def is_same(self) -> bool:
        """Return whether all values are what they were; False where that is not clear."""
        reads, holders, values = self._same
        try:
            if [*map(_call, *self._equal[:2])] != self._equal[2]:
                return False
            return all(map(is_, chain.from_iterable(map(_call, reads, holders)), values))
        except Exception:  # noqa: BLE001  (`==` of other packages' objects; each is looked at then)
            return False


def _by_identity(value: Any) -> bool:
    """Return whether `==` is true of the value and itself alone, or of what traces alike: equal
    strings, tuples of the same objects. `==` of arrays of several elements has no truth value and
    raises.
    """
    kind = type(value)
    if kind is np.ndarray:
        return value.size > 1
    if kind is tuple:
        return all(map(_by_identity, value))
    return kind in (str, bytes, CodeType) or kind.__eq__ is object.__eq__


def _alike(new: Any, old: Any) -> bool:
    """Return whether two values trace alike: one object, or plain values of equal type and bits."""
    if new is old:
        return True
    if type(new) is not type(old):
        return False
    if type(new) is tuple:
        return len(new) == len(old) and all(map(_alike, new, old))
    if isinstance(new, np.generic):
        return new.tobytes() == old.tobytes()
    if isinstance(new, float):
        return new.hex() == old.hex()
    if isinstance(new, complex):
        return _alike((new.real, new.imag), (old.real, old.imag))
    return isinstance(new, (*_PLAIN, CodeType)) and new == old


class _Search:
    """Follows what ran to what it reads."""

    def __init__(self, ran: Recording, more: frozenset[str]) -> None:
        # Attributes that getters read which were found on the way.
        self.more: set[str] = set()
        self.watched: list[_Watched] = []
        self.left_out: list[str] = []
        self._ran = ran
        codes = [names_of(c) for c in (*ran.code, *ran.library)]
        self._names = more.union(*(n.attributes for n in codes))
        generic = not _GENERIC.isdisjoint(ran.library.values())
        self._any = generic or any(names_of(c).computed for c in ran.code)
        # The attributes that count: None for all.
        self._wanted = None if self._any else self._names
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
            self._todo.extend((sys.modules.get(name), name) for name in names.modules)
        for variables, used in by_module.values():
            self._watch(_entries(variables, frozenset(used), ""))
        self._drain()
        for value in self._ran.objects:
            self._follow(value, type(value).__name__)
        # Functions that no name leads to: all objects of the process are looked through.
        lost = {c for c in self._ran.standing() if c not in self._functions}
        for found in gc.get_referrers(*lost) if lost else ():
            if type(found) is FunctionType and found.__code__ in lost:
                self._follow(found, found.__name__)

    def small_arrays(self) -> list[_Watched]:
        """Return the contents of the smallest arrays."""
        small = [(name, a) for name, a in self._arrays if a.nbytes <= MOST_BYTES]
        small = sorted(small, key=lambda pair: pair[1].nbytes)[:MOST_ARRAYS]
        return [_content(np.ndarray.tobytes, found, name) for name, found in small]

    def _follow(self, value: Any, name: str) -> None:
        self._todo.append((value, name))
        self._drain()

    def _drain(self) -> None:
        while self._todo:
            value, name = self._todo.popleft()
            if not isinstance(value, (*_PLAIN, np.generic)) and id(value) not in self._seen:
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
                self._watch(_entries(vars(value), self._wanted, value.__name__))
        elif issubclass(kind, type):
            self._class(value)
        elif kind in (bytearray, memoryview, array.array):
            if len(value) * getattr(value, "itemsize", 1) <= MOST_BYTES:
                read = bytes if kind is bytearray else methodcaller("tobytes")
                self._watch(_content(read, value, name))
            else:
                self.left_out.append(name)
        elif kind in (attrgetter, methodcaller):
            texts = (t for t in value.__reduce__()[1] if isinstance(t, str))
            self.more.update(n for t in texts for n in t.split("."))
        elif kind in _READS:
            names, read = _READS[kind]
            self._watch(_parts(read, value, names, name, plain=len(names) > 1))
            self._referents(value, name)
        else:
            self._object(value, kind, name)

    def _object(self, value: Any, kind: type, name: str) -> None:
        """Watch a container, an object of a class of the user's, or both."""
        # torch's tensors count their changes.
        if any("_version" in vars(c) for c in kind.__mro__) and isinstance(value._version, int):
            self._watch(_content(attrgetter("_version"), value, name))
        if issubclass(kind, _CONTAINERS):
            self._watch(_elements(value, name), MOST_ELEMENTS)
        elif issubclass(kind, tuple):
            self._todo.extend((e, f"{name}[{i}]") for i, e in enumerate(tuple.__iter__(value)))
        module = kind.__module__ if isinstance(kind.__module__, str) else ""
        own, first = is_own(module), module.partition(".")[0]
        if not own and first not in _HOLDERS:
            wrapped = getattr(value, "__wrapped__", None) if first in PACKAGES else None
            self._todo.append((wrapped, name))
            return
        if not issubclass(kind, (*_CONTAINERS, tuple)) and not own:
            self._referents(value, name)
        if _attributes_of(value) is not None:
            self._watch(_attributes(value, self._wanted, name or kind.__name__))
        if own:
            self._slots(value, kind, name or kind.__name__)
            self._todo.append((kind, kind.__name__))

    def _slots(self, value: Any, kind: type, name: str) -> None:
        members = {
            n: m
            for c in reversed(kind.__mro__)
            for n, m in vars(c).items()
            if type(m) is MemberDescriptorType and (self._any or n in self._names)
        }
        if not members:
            return
        read: Any = partial(_read_slots, tuple(members.values()))
        names = list(members)
        if not _reads_itself(kind) and all(v is not _UNSET for v in read(value)):
            names.append(names[0])  # a getter of one name gives no tuple
            read = attrgetter(*names)
        self._watch(_parts(read, value, names, name))

    def _class(self, kind: type) -> None:
        """Watch a class and those that it derives from; a class of its own that makes it."""
        for made in (c for c in kind.__mro__ if is_own(c.__module__) and c is not kind):
            self._todo.append((made, made.__name__))
        if type(kind) is not type:
            self._todo.append((type(kind), type(kind).__name__))
        if is_own(kind.__module__):
            self._watch(_entries(vars(kind), self._names, kind.__name__))
            parts = ((p, n) for n, p in vars(kind).items() if isinstance(p, _FUNCTIONS))
            self._todo.extend(parts)

    def _function(self, function: FunctionType, name: str) -> None:
        """Watch a function that ran: what it closes over, its defaults and its code."""
        code = function.__code__
        own = code in self._ran.code
        if not own and code not in self._ran.library:
            return
        self._functions.add(code)
        if own:
            read = attrgetter("__code__", "__defaults__", "__kwdefaults__")
            self._watch(_parts(read, function, ("code", "defaults", "keyword defaults"), name))
        self._todo.extend((d, f"a default of {name}") for d in function.__defaults__ or ())
        if attributes := vars(function):
            self._watch(_entries(attributes, self._names | {"__wrapped__"}, name))
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            if _is_full(cell):
                read = attrgetter("cell_contents", "cell_contents")
                self._watch(_parts(read, cell, (variable,) * 2, ""))

    def _referents(self, value: Any, name: str) -> None:
        """Follow what an object that is written in C holds."""
        if not isinstance(value, (FrameType, TracebackType)):
            self._todo.extend((found, name) for found in gc.get_referents(value))

    def _watch(self, watched: _Watched, most: int = MOST_WATCHED) -> None:
        if len(watched.values) > min(self._room, most):
            self.left_out.append(watched.title)
            return
        self._room -= len(watched.values)
        self.watched.append(watched)
        self._todo.extend((value, watched.named(n)) for n, value in watched.values.items())


def _read_cache(function: Any) -> tuple[int, int]:
    """Return the calls for which a cached function ran, and the answers that are kept."""
    found = function.cache_info()
    return (found.misses, found.currsize)


# By type: the names of what is read, and how.
_READS: dict[type, tuple[tuple[str, ...], Callable[[Any], Any]]] = {
    functools._lru_cache_wrapper: (("misses", "size"), _read_cache),
    ContextVar: (("value",), lambda variable: (variable.get(_UNSET),)),
    weakref.ref: (("value",), lambda reference: (reference(),)),
    weakref.KeyedRef: (("value",), lambda reference: (reference(),)),
}


def _read_slots(members: tuple[MemberDescriptorType, ...], value: Any) -> tuple[Any, ...]:
    found = []
    for member in members:
        try:
            found.append(member.__get__(value))
        except AttributeError:
            found.append(_UNSET)
    return tuple(found)


def _attributes_of(value: Any) -> dict[str, Any] | None:
    try:
        own = _reads_itself(type(value))
        found = object.__getattribute__(value, "__dict__") if own else value.__dict__
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


def _reads_itself(kind: type) -> bool:
    """Return whether Python code of a class reads its attributes: it is not asked."""
    return isinstance(kind.__getattribute__, FunctionType)


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a variable that has no value yet
        return False
