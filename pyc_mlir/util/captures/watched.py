"""Captured values that are read together, and a quick comparison of all of them.

A check is on the way of each call, so it runs in C. Containers and the attributes of objects are
compared with copies by `==`, which takes a value that is the same object for equal without a look
at it: some 10 ns a value. What `==` may take for equal and a trace does not (1, True and 1.0; 0.0
and -0.0; arrays of one element) is compared by identity: some 30 ns a value.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import attrgetter, call, is_, itemgetter
from types import CellType, CodeType, FunctionType
from typing import Any, NamedTuple

import numpy as np

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# From the special to the general.
CONTAINERS = (OrderedDict, dict, list, deque, set, frozenset)
# What reading a value that is not there any more raises.
GONE = (LookupError, AttributeError, ValueError, ReferenceError)
_attributes = attrgetter("__dict__")
_contents = attrgetter("cell_contents")
# As it is, type checkers take it for a function of one argument.
_call: Callable[[Callable[[Any], Any], Any], Any] = call  # type: ignore[assignment]


class Watched:
    """Values of one holder: `values` by name, as they were; `title` names the holder.

    Subclasses read them again, and add themselves to the quick comparison.
    """

    form = "{}.{}"

    def __init__(self, holder: Any, title: str) -> None:
        self.holder, self.title = holder, title
        self.values: dict[Any, Any] = self.now()

    def now(self) -> dict[Any, Any]:
        """Return the values by name. Raises one of `GONE`."""
        raise NotImplementedError

    def add(self, quick: "Quick") -> None:
        """Add the values, as they are now, to the quick comparison."""
        raise NotImplementedError

    def named(self, name: Any) -> str:
        """Return how a message calls a value."""
        return self.form.format(self.title, name) if self.title else str(name)

    def refresh(self, now: dict[Any, Any]) -> None:
        """Take values that trace alike as those to compare with."""
        self.values = now

    def changed(self) -> str:
        """Return the name of a value that traces differently than the one before; else take all."""
        try:
            now = self.now()
        except GONE:
            return self.title
        if list(now) != list(self.values):
            other = sorted(map(str, now.keys() ^ self.values.keys()))
            return self.named(other[0]) if other else self.title
        for name, value in now.items():
            if not alike(value, self.values[name]):
                return self.named(name)
        self.refresh(now)
        return ""


class Named(Watched):
    """Entries of a mapping: globals, attributes of a module, a class or a function."""

    def __init__(self, holder: Mapping[str, Any], names: frozenset[str] | None, title: str) -> None:
        self.names = names
        super().__init__(holder, title)

    def now(self) -> dict[Any, Any]:
        """Return the values by name."""
        if self.names is None:
            return dict(self.holder)
        return {n: self.holder[n] for n in self.names if n in self.holder}

    def add(self, quick: "Quick") -> None:
        """Read the values, and the number of all entries: names may be added."""
        quick.items(self.holder, self.values)
        quick.equal(len, self.holder, len(self.holder))


class Attributes(Watched):
    """The attributes of an object that code names; of all where `names` is None.

    All are compared until one changes that nobody names.
    """

    def __init__(self, holder: Any, names: frozenset[str] | None, title: str) -> None:
        self.names, self._narrow = names, False
        super().__init__(holder, title)
        self._copy = dict(attributes_of(holder))

    def now(self) -> dict[Any, Any]:
        """Return the values by name, and the object's class."""
        found, names = attributes_of(self.holder), self.names
        values = {n: v for n, v in found.items() if names is None or n in names}
        return {**values, "__class__": type(self.holder)}

    def refresh(self, now: dict[Any, Any]) -> None:
        """Take the values, and see whether others of the object change."""
        super().refresh(now)
        found = attributes_of(self.holder)
        others = [n for n in found.keys() | self._copy.keys() if n not in now]
        missing = object()
        self._narrow |= any(found.get(n, missing) is not self._copy.get(n, missing) for n in others)
        self._copy = {} if self._narrow else dict(found)

    def add(self, quick: "Quick") -> None:
        """Compare the whole object, or only the values."""
        found, values = attributes_of(self.holder), dict(self.values)
        del values["__class__"]
        quick.type_of(self.holder)
        if self._narrow:
            quick.items(found, values)
            quick.equal(len, found, len(found))
            return
        if reads_itself(type(self.holder)):
            quick.whole(found, self._copy)
        else:
            quick.attributes(self.holder, self._copy)
        quick.items(found, {n: v for n, v in values.items() if not by_identity(v)})
        if self.names is None:
            quick.equal(list, found, list(found))


class Elements(Watched):
    """The elements of a list, a deque, a set or a dict."""

    form = "{}[{!r}]"

    def __init__(self, holder: Any, title: str) -> None:
        # What a subclass makes of `__iter__` and `items` is not asked.
        self._kind = next(k for k in CONTAINERS if isinstance(holder, k))
        super().__init__(holder, title)

    def now(self) -> dict[Any, Any]:
        """Return the elements by number or by key, in their order."""
        kind: Any = self._kind
        is_dict = issubclass(kind, dict)
        return dict(kind.items(self.holder) if is_dict else enumerate(kind.__iter__(self.holder)))

    def add(self, quick: "Quick") -> None:
        """Compare the container; in a subclass `==` may mean anything, so its elements are read."""
        kind: Any = self._kind
        holder, values = self.holder, list(self.values.values())
        is_dict = issubclass(kind, dict)
        whole = type(holder) in (list, deque, dict)
        if whole:
            quick.whole(holder, holder.copy())
        else:
            quick.equal(kind.__len__, holder, len(values))
        if is_dict:
            keys = list if whole else partial(_keys, kind)
            quick.equal(keys, holder, list(self.values))
        if not whole or not all(map(by_identity, values)):
            quick.several(kind.values if is_dict else kind.__iter__, holder, values)


class Cells(Watched):
    """The variables that a function closes over."""

    def __init__(self, cells: Sequence[CellType], names: Sequence[str]) -> None:
        self._names = names
        super().__init__(cells, "")

    def now(self) -> dict[Any, Any]:
        """Return the variables by name. Raises ValueError for one that was deleted."""
        return {n: c.cell_contents for n, c in zip(self._names, self.holder, strict=True)}

    def add(self, quick: "Quick") -> None:
        """Read each variable."""
        for cell, value in zip(self.holder, self.values.values(), strict=True):
            quick.one(_contents, cell, value)


class Read(Watched):
    """The values of `read(holder)`: one for each of `names`, two or more if it is a getter.

    plain: it gives a tuple of plain values, each always of one type.
    """

    def __init__(
        self,
        read: Callable[[Any], Iterable[Any]],
        holder: Any,
        names: Sequence[str],
        title: str = "",
        plain: bool = False,
    ) -> None:
        self.read, self._names, self._plain = read, names, plain
        self._found: list[Any] = []
        super().__init__(holder, title)

    def now(self) -> dict[Any, Any]:
        """Return the values by name."""
        found = self._found = list(self.read(self.holder))
        return dict(zip(self._names, found, strict=True))

    def add(self, quick: "Quick") -> None:
        """Read the values."""
        values = self._found
        is_tuple = isinstance(self.read, attrgetter) and all(map(by_identity, values))
        if self._plain or is_tuple:
            quick.equal(self.read, self.holder, tuple(values))
        else:
            quick.several(self.read, self.holder, values)


class Quick:
    """The quick comparison: lists of what is read, and of what that was."""

    def __init__(self) -> None:
        self._live: list[Any] = []
        self._copies: list[Any] = []
        self._holders: list[Any] = []
        self._dicts: list[dict[str, Any]] = []
        self._objects: list[Any] = []
        self._types: list[type] = []
        self._equal: tuple[list[Any], list[Any]] = [], []
        self._equal_values: list[Any] = []
        self._one: tuple[list[Any], list[Any]] = [], []
        self._one_values: list[Any] = []
        self._several: tuple[list[Any], list[Any]] = [], []
        self._several_values: list[Any] = []

    def whole(self, live: Any, copy: Any) -> None:
        """Compare a container with a copy of it by `==`."""
        self._live.append(live)
        self._copies.append(copy)

    def attributes(self, holder: Any, copy: dict[str, Any]) -> None:
        """Compare the attributes of an object with a copy of them by `==`."""
        self._holders.append(holder)
        self._dicts.append(copy)

    def type_of(self, holder: Any) -> None:
        """Compare the class of an object."""
        self._objects.append(holder)
        self._types.append(type(holder))

    def items(self, holder: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Compare some entries of a mapping."""
        names, found = list(values), list(values.values())
        if names and all(map(by_identity, found)):
            self.equal(itemgetter(*names), holder, found[0] if len(found) == 1 else tuple(found))
        elif len(names) == 1:
            self.one(itemgetter(*names), holder, found[0])
        elif names:
            self.several(itemgetter(*names), holder, found)

    def equal(self, read: Callable[[Any], Any], holder: Any, value: Any) -> None:
        """Compare what `read` gives by `==`: numbers of one type, tuples of values."""
        self._equal[0].append(read)
        self._equal[1].append(holder)
        self._equal_values.append(value)

    def one(self, read: Callable[[Any], Any], holder: Any, value: Any) -> None:
        """Compare what `read` gives by identity."""
        self._one[0].append(read)
        self._one[1].append(holder)
        self._one_values.append(value)

    def several(self, read: Callable[[Any], Any], holder: Any, values: Sequence[Any]) -> None:
        """Compare each value that `read` gives by identity; their number is compared elsewhere."""
        self._several[0].append(read)
        self._several[1].append(holder)
        self._several_values.extend(values)

    def is_same(self) -> bool:
        """Return whether all values are what they were; False where that is not clear."""
        try:
            if self._holders:
                if [*map(type, self._objects)] != self._types:
                    return False
                if [*map(_attributes, self._holders)] != self._dicts:
                    return False
            if self._live != self._copies:
                return False
            if [*map(_call, *self._equal)] != self._equal_values:
                return False
            if self._one_values and not all(map(is_, map(_call, *self._one), self._one_values)):
                return False
            several = self._several_values
            return not several or all(
                map(is_, chain.from_iterable(map(_call, *self._several)), several)
            )
        except Exception:  # noqa: BLE001  (`==` of other packages' objects; each is looked at then)
            return False


class Content(NamedTuple):
    """The content of an array, as `read()` gives it."""

    read: Callable[[], Any]
    name: str
    value: Any


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes that an object holds itself; a class's own `__getattribute__` is not
    asked.
    """
    own = reads_itself(type(value))
    return object.__getattribute__(value, "__dict__") if own else _attributes(value)


def reads_itself(kind: type) -> bool:
    """Return whether Python code of a class reads its attributes."""
    return any(isinstance(vars(c).get("__getattribute__"), FunctionType) for c in kind.__mro__)


def _keys(kind: Any, value: Any) -> list[Any]:
    return list(kind.__iter__(value))


def by_identity(value: Any) -> bool:
    """Return whether `==` is true of the value and itself alone, or of what traces alike: equal
    strings, tuples of the same objects. `==` of arrays of several elements has no truth value and
    raises.
    """
    kind = type(value)
    if kind is np.ndarray:
        return value.size > 1
    if kind is tuple:
        return all(map(by_identity, value))
    return kind in (str, bytes, CodeType) or kind.__eq__ is object.__eq__


def alike(new: Any, old: Any) -> bool:
    """Return whether two values trace alike: one object, or plain values of equal type and bits."""
    if new is old:
        return True
    if type(new) is not type(old):
        return False
    if type(new) is tuple:
        return len(new) == len(old) and all(map(alike, new, old))
    if isinstance(new, np.generic):
        return new.tobytes() == old.tobytes()
    if isinstance(new, float):
        return new.hex() == old.hex()
    if isinstance(new, complex):
        return alike((new.real, new.imag), (old.real, old.imag))
    return isinstance(new, (*_PLAIN, CodeType)) and new == old
