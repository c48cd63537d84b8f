"""What a function reads from outside of its arguments, and whether that has changed since.

    captures = Captures.of(function)
    captures.changed()    # "" or the name of what changed: "self.scale", "weights"

Followed from the function's code: variables of enclosing functions, globals that the code names,
defaults, attributes that the code names of captured objects, elements of captured lists and dicts,
and the same of the functions and methods that it calls. Not followed: packages (numpy, the standard
library), and lists and dicts of more than `MOST_ELEMENTS`; at most `MOST_WATCHED` values in all.

A value has changed if it is another object, unless both are plain values of equal type and bits.
What is in an array is compared for the `MOST_ARRAYS` smallest of up to `MOST_BYTES`, and for torch
tensors, which count their changes.

A check is on the way of each call, so it runs in C: some 50 ns for each holder that is read, 1 ns
for a value that `==` compares by identity, 25 ns for any other. Tuples cannot change and are not
read.
"""

import dis
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter, call, is_, itemgetter
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

MOST_WATCHED, MOST_ELEMENTS = 128, 64
MOST_ARRAYS, MOST_BYTES = 4, 1024
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_PACKAGES = frozenset({"numpy", "pyc_mlir", "torch", "jax", "ml_dtypes"}) | sys.stdlib_module_names
_READS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
# Instructions that write what may be seen from outside of a function.
_WRITES = {
    "STORE_GLOBAL": "writes the global `{}`",
    "DELETE_GLOBAL": "deletes the global `{}`",
    "STORE_ATTR": "writes the attribute `{}`",
    "DELETE_ATTR": "deletes the attribute `{}`",
    "STORE_SUBSCR": "writes elements",
    "DELETE_SUBSCR": "deletes elements",
}
_GENERATORS = (np.random.Generator, np.random.RandomState, np.random.BitGenerator, random.Random)
_END = object()
_GONE = (LookupError, AttributeError, ValueError)
# What arrays of other packages raise where they are compared.
_UNCLEAR = (*_GONE, RuntimeError, TypeError)


class _Watched(NamedTuple):
    """Values that are read together: `read(holder)` gives one for each name, an iterable."""

    read: Callable[[Any], Any]
    holder: Any
    title: str
    names: Sequence[str]
    values: list[Any]

    @property
    def compares_by_identity(self) -> bool:
        """Whether `==` of the tuples that are read is true of the same objects alone.

        It is also true of strings of equal characters, which trace alike.
        """
        is_tuple = isinstance(self.read, itemgetter | attrgetter) or self.read is tuple
        return is_tuple and all(map(_by_identity, self.values))


class _Content(NamedTuple):
    """What is in an array, as `read()` gives it."""

    read: Callable[[], Any]
    name: str
    value: Any


class Captures:
    """The captured values of one function, as they are when this is made.

    effects: what its code does, as far as it shows, beside computing results: it writes globals,
    attributes or elements, or holds a generator of random numbers.
    """

    def __init__(
        self,
        watched: Sequence[_Watched],
        contents: Sequence[_Content],
        effects: Sequence[str] = (),
    ) -> None:
        self._watched, self._contents = watched, contents
        self.effects = tuple(effects)
        self._content_reads = [c.read for c in contents]
        self._content_values = [c.value for c in contents]
        self._update()

    def _update(self) -> None:
        """Sort the holders by how they are compared: tuples by `==`, or each value by `is`."""
        whole = [w for w in self._watched if w.compares_by_identity]
        each = [w for w in self._watched if not w.compares_by_identity]
        self._whole = [w.read for w in whole], [w.holder for w in whole]
        self._whole_values = [tuple(w.values) for w in whole]
        self._each = [w.read for w in each], [w.holder for w in each]
        self._each_values = [*chain.from_iterable(w.values for w in each), _END]

    @staticmethod
    def of(function: Callable[..., Any]) -> "Captures":
        """Those of a function or a method."""
        names: frozenset[str] = frozenset()
        while True:
            search = _Search(names)
            search.visit(function, "self" if not isinstance(function, FunctionType) else "")
            if search.names == names:
                contents = [*search.small_arrays(), *search.counters]
                return Captures(search.watched, contents, search.effects)
            # More code was found, and with it names of attributes that were passed by.
            names = frozenset(search.names)

    def changed(self) -> str:
        """The name of a value that is not what it was; empty if there is none."""
        if not self._is_same() and (found := self._found()):
            return found
        if [*map(call, self._content_reads)] != self._content_values:
            return next(c.name for c in self._contents if c.read() != c.value)
        return ""

    def _is_same(self) -> bool:
        """Whether all values are the objects that they were; False where that is not clear."""
        try:
            read = map(call, *self._whole)  # pyright: ignore[reportArgumentType]
            if [*read] != self._whole_values:
                return False
            each = map(call, *self._each)  # pyright: ignore[reportArgumentType]
            now = chain(chain.from_iterable(each), (_END,))
            return all(map(is_, now, self._each_values))
        except _UNCLEAR:
            return False

    def _found(self) -> str:
        """The name of a value that traces differently; the others are taken as they are now."""
        for read, holder, title, names, values in self._watched:
            try:
                now = list(read(holder))
            except _GONE:
                return title
            if len(now) != len(values):
                return title
            pairs = zip(names, now, values, strict=True)
            if other := next((n for n, new, old in pairs if not _alike(new, old)), ""):
                return other
            values[:] = now
        self._update()
        return ""


def _by_identity(value: Any) -> bool:
    """Whether `==` is true of the value and itself alone, or of what traces alike: equal strings,
    tuples of the same objects. `==` of arrays of several elements has no truth value and raises.
    """
    kind = type(value)
    if kind is np.ndarray:
        return value.size > 1
    if kind is tuple:
        return all(map(_by_identity, value))
    return kind in (str, bytes) or kind.__eq__ is object.__eq__


def _alike(new: Any, old: Any) -> bool:
    """Whether two values trace alike: one object, or plain values of equal type and bits."""
    if new is old:
        return True
    if type(new) is not type(old):
        return False
    if isinstance(new, np.generic):
        return new.tobytes() == old.tobytes()
    if isinstance(new, float):
        return new.hex() == old.hex()
    return isinstance(new, _PLAIN) and new == old


class _Search:
    """Follows code to what it reads; `names` are those that the code seen before names."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = set(names)
        self.watched: list[_Watched] = []
        self.counters: list[_Content] = []
        self.effects: list[str] = []
        self._arrays: list[tuple[str, np.ndarray]] = []
        self._seen: dict[int, Any] = {}
        self._room = MOST_WATCHED

    def small_arrays(self) -> Iterator[_Content]:
        """The contents of the smallest arrays."""
        small = [(name, a) for name, a in self._arrays if a.nbytes <= MOST_BYTES]
        for name, array in sorted(small, key=lambda pair: pair[1].nbytes)[:MOST_ARRAYS]:
            yield _Content(array.tobytes, name, array.tobytes())

    def visit(self, value: Any, name: str) -> None:
        """Follow a captured value."""
        if isinstance(value, (*_PLAIN, np.generic, type)) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        value = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, _GENERATORS):
            self.effects.append(f"draws random numbers from `{name}`")
        elif isinstance(value, np.ndarray):
            self._arrays.append((name, value))
        elif isinstance(getattr(value, "_version", None), int):
            self.counters.append(_Content(lambda: value._version, name, value._version))
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, MethodType):
            self.visit(value.__self__, "self")
            self.visit(value.__func__, name)
        elif isinstance(value, partial):
            for part in (value.func, value.args, value.keywords):
                self.visit(part, name)
        elif isinstance(value, (list, tuple, dict)):
            self._elements(value, name)
        elif isinstance(value, ModuleType):
            if not _is_packaged(value.__name__):
                self._items(vars(value), self._named(vars(value)), f"{value.__name__}.")
        elif not _is_packaged(type(value).__module__):
            self._object(value, name)

    def _function(self, function: FunctionType) -> None:
        if _is_packaged(function.__module__ or ""):
            return
        code = function.__code__
        self.names |= set(_names(code))
        self.effects += _effects(code, frozenset(code.co_freevars))
        cells = [c for c in function.__closure__ or () if _is_full(c)]
        closure = zip(code.co_freevars, function.__closure__ or (), strict=True)
        free = [name for name, cell in closure if _is_full(cell)]
        self._watch(partial(map, attrgetter("cell_contents")), cells, free)
        self._items(function.__globals__, [n for n in _globals(code) if n in function.__globals__])
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.visit(default, "a default")

    def _object(self, value: Any, name: str) -> None:
        prefix = f"{name or type(value).__name__}."
        own = getattr(value, "__dict__", {})
        self._items(own, self._named(own), prefix)
        classes = [c for c in type(value).__mro__ if not _is_packaged(c.__module__)]
        slots = [s for c in classes for s in _slots(c) if s in self.names and hasattr(value, s)]
        if slots:
            # One name alone would give no tuple.
            slots = slots * 2 if len(slots) == 1 else slots
            self._watch(attrgetter(*slots), value, [f"{prefix}{s}" for s in slots])
        for made in classes:
            found = [n for n in self._named(vars(made), "__call__") if n not in own]
            parts = {n: vars(made)[n] for n in found}
            values = [n for n, v in parts.items() if isinstance(v, (*_PLAIN, np.ndarray))]
            self._items(vars(made), values, prefix)
            for part, code in parts.items():
                self.visit(code.fget if isinstance(code, property) else code, f"{prefix}{part}")

    def _elements(self, value: "list[Any] | tuple[Any, ...] | dict[Any, Any]", name: str) -> None:
        if len(value) > MOST_ELEMENTS:
            return
        if isinstance(value, tuple):
            for number, element in enumerate(value):
                self.visit(element, f"{name}[{number}]")
        elif isinstance(value, dict):
            self._watch(dict.values, value, [f"{name}[{k!r}]" for k in value], name)
        else:
            self._watch(tuple, value, [f"{name}[{i}]" for i in range(len(value))], name)

    def _items(self, holder: Mapping[str, Any], keys: Sequence[str], prefix: str = "") -> None:
        keys = [k for k in keys if not _is_foreign(holder[k])]
        if keys:
            keys = keys * 2 if len(keys) == 1 else keys
            self._watch(itemgetter(*keys), holder, [f"{prefix}{k}" for k in keys])

    def _watch(
        self, read: Callable[[Any], Any], holder: Any, names: Sequence[str], title: str = ""
    ) -> None:
        """Watch what `read` gives, and follow it."""
        if len(names) > self._room or not (names or title):
            return
        self._room -= len(names)
        values = list(read(holder))
        self.watched.append(_Watched(read, holder, title or names[0], names, values))
        for name, value in zip(names, values, strict=True):
            self.visit(value, name)

    def _named(self, holder: Mapping[str, Any], *more: str) -> list[str]:
        return sorted(n for n in (*self.names, *more) if n in holder)


def _globals(code: CodeType) -> list[str]:
    """The globals that code reads, and the code that is defined in it."""
    names = {i.argval for i in dis.get_instructions(code) if i.opname in _READS_GLOBAL}
    inner = (_globals(c) for c in code.co_consts if isinstance(c, CodeType))
    return sorted(names.union(*inner))


def _effects(code: CodeType, free: frozenset[str]) -> Iterator[str]:
    """What code writes, that which is defined in it too. `free`: variables of other functions."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in _WRITES:
            yield _WRITES[instruction.opname].format(instruction.argval)
        elif instruction.opname == "STORE_DEREF" and instruction.argval in free:
            yield f"writes the variable `{instruction.argval}`"
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _effects(constant, free & frozenset(constant.co_freevars))


def _names(code: CodeType) -> Iterator[str]:
    """The globals and attributes that code names, and the code that is defined in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _slots(made: type) -> Sequence[str]:
    slots = vars(made).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else [s for s in slots if not s.startswith("__")]


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # a variable that has no value yet
        return False


def _is_packaged(module: str) -> bool:
    return module.partition(".")[0] in _PACKAGES


def _is_foreign(value: Any) -> bool:
    """Packages, their functions and classes: what a model calls, not what it holds."""
    if isinstance(value, ModuleType):
        return _is_packaged(value.__name__)
    if isinstance(value, type) or not callable(value) or hasattr(value, "__wrapped__"):
        return isinstance(value, type)
    return _is_packaged(getattr(value, "__module__", None) or "")
