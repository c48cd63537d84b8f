"""Frozen dataclasses to plain JSON data and back, driven by the types of their fields.

    data = to_data(options)                      # dicts, lists, texts, numbers, booleans, None
    options = from_data(Options, data, "request")

Types that a field may have: None, bool, int, float, str, paths, enums, `Literal`, dataclasses,
tuples, sequences, sets of texts, mappings by text, unions of those, and `Any` for plain data.
Floats keep their bits; those that JSON lacks are texts. Enums are written by value, those whose
values are no texts or numbers by name. Reading is strict: an unknown field, a missing one and a
value of another type are refused with their path, ``request.rows[3].name``; fields with a default
may be left out.

A class says by class variables that it is

    kind: ClassVar[str] = "event"      tagged: written first, required, and selects among a union
    schema: ClassVar[int] = 2          of a version: written, and required to be equal
    as_row: ClassVar[bool] = True      a list of its fields' values in their order
    complete: ClassVar[bool] = True    fields with a default are required too

A class with a `kind` that is no dataclass stands for its direct subclasses. Values of other types
have a `Form`: in a field's annotation, ``Annotated[np.dtype, Form(...)]``, or in `forms`, for one
call.
"""

import functools
import math
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

T = TypeVar("T")


@dataclass(frozen=True)
class Form:
    """The conversion of values of one type to data, and of data to such values."""

    to: Callable[[Any], Any]
    of: Callable[[Any], Any]


Forms = Mapping[Any, Form]
_NO_FORMS: Forms = {}
_Reader = Callable[[Any], Any]
_NONE = types.NoneType
_PLAIN = (bool, int, str, _NONE)


class _Misfit(ValueError):
    """Data that fit no type, or a value that has no data: the problem, and the path to it."""

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(problem)
        self.problem, self.path = problem, path

    def below(self, step: str) -> "_Misfit":
        return _Misfit(self.problem, step + self.path)


def to_data(value: Any, where: str = "value", forms: Forms = _NO_FORMS) -> Any:
    """Return plain JSON data; sets are sorted, and `where` names the value in errors.

    Raises ValueError for what is no plain data and has no form.
    """
    try:
        return _data(value, forms)
    except _Misfit as error:
        raise ValueError(f"{where}{error.path} {error.problem}") from None


def _data(value: Any, forms: Forms) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        return value
    for other, form in forms.items():
        if isinstance(value, other):
            return form.to(value)
    if kind is float:
        return value if math.isfinite(value) else repr(value)
    if is_dataclass(kind):
        return _record_data(value, _layout(kind), forms)
    step: Any = None
    try:
        if isinstance(value, list | tuple):
            made = []
            for part in value:
                step = len(made)
                made.append(_data(part, forms))
            return made
        if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
            named = {}
            for step, part in value.items():
                named[step] = _data(part, forms)
            return named
    except _Misfit as error:
        raise error.below(f"[{step}]" if isinstance(step, int) else f".{step}") from None
    match value:
        case Enum():
            return value.value if _by_value(kind) else value.name
        case int() | str():
            return value
        case PurePath():
            return str(value)
        case AbstractSet() if all(isinstance(v, str) for v in value):
            return sorted(value)
    raise _Misfit(f"is a {kind.__name__}, which has no content to name")


def _record_data(value: Any, layout: "_Layout", forms: Forms) -> Any:
    made, name = dict(layout.head), ""
    try:
        for name, (_, form) in layout.fields.items():
            held = getattr(value, name)
            made[name] = _data(held, forms) if form is None else form.to(held)
    except _Misfit as error:
        raise error.below(f".{name}") from None
    return list(made.values()) if layout.as_row else made


@overload
def from_data(kind: type[T], data: Any, where: str = "", forms: Forms = _NO_FORMS) -> T: ...
@overload
def from_data(kind: Any, data: Any, where: str = "", forms: Forms = _NO_FORMS) -> Any: ...
def from_data(kind: Any, data: Any, where: str = "", forms: Forms = _NO_FORMS) -> Any:
    """Return the value of type `kind` that `to_data` wrote.

    Raises ValueError, with the path to the value at fault first, and what is no ValueError of what
    a dataclass raises for its values.
    """
    readers = _Readers(forms) if forms else _READERS
    try:
        return readers.of(kind)(data)
    except _Misfit as error:
        named = where or getattr(kind, "__name__", "")
        raise ValueError(f"{named}{error.path}: {error.problem}") from None


class _Readers:
    """Functions that read values of a type or raise `_Misfit`, each composed once."""

    def __init__(self, forms: Forms) -> None:
        self._forms = forms
        self._made: dict[Any, _Reader] = {}

    def of(self, kind: Any) -> _Reader:
        if kind not in self._made:
            self._made[kind] = self._composed(kind)
        return self._made[kind]

    def _composed(self, kind: Any) -> _Reader:
        if kind in self._forms:
            return self._forms[kind].of
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Annotated:
            form = _form_of(kind)
            return self.of(arguments[0]) if form is None else _converting(kind, form.of)
        if origin in (Union, types.UnionType):
            return self._union(kind, arguments)
        if origin is Literal:
            return _checked(kind, lambda data: type(data) in _PLAIN and data in arguments)
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return self._mapping(kind, self.of(arguments[1]))
        if isinstance(origin, type) and issubclass(origin, Sequence | AbstractSet):
            return self._items(kind, origin, arguments)
        if is_dataclass(kind):
            return self._record(kind)
        if isinstance(getattr(kind, "kind", None), str):
            return self._union(kind, kind.__subclasses__())
        return _plain_reader(kind)

    def _union(self, kind: Any, members: Sequence[Any]) -> _Reader:
        """Read the member that data name by their kind, else the first one that takes them."""
        tagged = {_layout(m).head["kind"]: m for m in members if "kind" in _layout(m).head}
        others = [m for m in members if m is not _NONE and m not in tagged.values()]

        def union(data: Any) -> Any:
            if data is None and _NONE in members:
                return None
            if tagged and not others:
                tag = data.get("kind") if isinstance(data, Mapping) else data
                if not isinstance(tag, str) or tag not in tagged:
                    raise _misfit(f"one of the kinds {', '.join(tagged)}", tag)
                return self.of(tagged[tag])(data)
            if len(others) == 1:
                return self.of(others[0])(data)
            for member in others:
                try:
                    return self.of(member)(data)
                except _Misfit:
                    continue
            raise _misfit(type_name(kind), data)

        return union

    def _mapping(self, kind: Any, read: _Reader) -> _Reader:
        def mapping(data: Any) -> Any:
            if not isinstance(data, Mapping):
                raise _misfit(type_name(kind), data)
            made, name = {}, ""
            try:
                for name, value in data.items():
                    made[name] = read(value)
            except _Misfit as error:
                raise error.below(f".{name:.80}") from None
            return made

        return mapping

    def _items(self, kind: Any, origin: type, arguments: Sequence[Any]) -> _Reader:
        pair = origin is tuple and arguments[-1:] != (...,)
        make = frozenset if issubclass(origin, AbstractSet) else tuple

        def items(data: Any) -> Any:
            if not isinstance(data, list) or (pair and len(data) != len(arguments)):
                raise _misfit(type_name(kind), data)
            made: list[Any] = []
            kinds = arguments if pair else (arguments[0],) * len(data)
            try:
                for of, value in zip(kinds, data, strict=True):
                    made.append(self.of(of)(value))
            except _Misfit as error:
                raise error.below(f"[{len(made)}]") from None
            return make(made)

        return items

    def _record(self, kind: Any) -> _Reader:
        """Read a dataclass; its fields' readers are composed at the first value: types may nest."""
        layout, readers = _layout(kind), dict[str, _Reader]()

        def record(data: Any) -> Any:
            if not readers:
                readers.update({n: self.of(hint) for n, (hint, _) in layout.fields.items()})
            given = _named(kind, layout, data)
            values, name = {}, ""
            try:
                for name, read in readers.items():
                    if name in given:
                        values[name] = read(given[name])
                    elif name in layout.required:
                        raise _Misfit("expected a value, got none")
            except _Misfit as error:
                raise error.below(f".{name}") from None
            if len(values) + len(layout.head) != len(given):
                unknown = min(given.keys() - readers.keys() - layout.head.keys())
                raise _Misfit(f"expected fields of {kind.__name__}, got `{unknown:.80}`")
            try:
                return kind(**values)
            except (ValueError, ArithmeticError) as error:
                raise _Misfit(str(error)) from None

        return record


_READERS = _Readers(_NO_FORMS)


def _named(kind: Any, layout: "_Layout", data: Any) -> Mapping[str, Any]:
    if layout.as_row:
        if not isinstance(data, list) or len(data) != len(layout.fields):
            raise _misfit(f"{len(layout.fields)} values of {kind.__name__}", data)
        return dict(zip(layout.fields, data, strict=True))
    if not isinstance(data, dict):
        raise _misfit(kind.__name__, data)
    for name, wanted in layout.head.items():
        if data.get(name) != wanted or type(data[name]) is not type(wanted):
            raise _misfit(repr(wanted), data.get(name)).below(f".{name}")
    return data


@dataclass(frozen=True)
class _Layout:
    """The layout of a dataclass in data: its head, and each field's annotation and form."""

    head: Mapping[str, Any]
    fields: Mapping[str, tuple[Any, Form | None]]
    required: tuple[str, ...]
    as_row: bool


@functools.cache
def _layout(kind: Any) -> _Layout:
    if not is_dataclass(kind):
        return _Layout({}, {}, (), False)
    own = [f for f in fields(kind) if f.init]
    hints = get_type_hints(kind, include_extras=True)
    whole = getattr(kind, "complete", False) is True
    needed = (f.name for f in own if whole or f.default is f.default_factory is MISSING)
    names = {f.name for f in fields(kind)}
    marks = ((n, getattr(kind, n, None)) for n in ("kind", "schema") if n not in names)
    head = {name: mark for name, mark in marks if isinstance(mark, str | int)}
    return _Layout(
        head,
        {f.name: (hints[f.name], _form_of(hints[f.name])) for f in own},
        tuple(needed),
        getattr(kind, "as_row", False) is True,
    )


def _form_of(hint: Any) -> Form | None:
    return next(
        (note for note in getattr(hint, "__metadata__", ()) if isinstance(note, Form)), None
    )


def _plain_reader(kind: Any) -> _Reader:
    if kind is Any:
        return lambda data: data
    if kind in (None, _NONE):
        return _checked(kind, lambda data: data is None)
    if kind is float:
        return _float
    if kind in _PLAIN:
        return _exact(kind)
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return _checked(kind, lambda data: isinstance(data, str), kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        by = {(e.value if _by_value(kind) else e.name): e for e in kind}
        return _checked(kind, lambda data: type(data) in _PLAIN and data in by, by.__getitem__)
    raise TypeError(f"no way to read a {type_name(kind)} from data")


@functools.cache
def _by_value(kind: type[Enum]) -> bool:
    return all(isinstance(member.value, str | int) for member in kind)


def _float(data: Any) -> Any:
    if type(data) is float or (type(data) is int and abs(data) <= sys.float_info.max):
        return data
    if data in ("inf", "-inf", "nan"):
        return float(data)
    raise _misfit("float", data)


def _exact(kind: type) -> _Reader:
    def exact(data: Any) -> Any:
        if type(data) is kind:
            return data
        raise _misfit(kind.__name__, data)

    return exact


def _checked(kind: Any, holds: Callable[[Any], bool], convert: _Reader | None = None) -> _Reader:
    def checked(data: Any) -> Any:
        if not holds(data):
            raise _misfit(type_name(kind), data)
        return data if convert is None else convert(data)

    return checked


def _converting(kind: Any, convert: _Reader) -> _Reader:
    def converted(data: Any) -> Any:
        try:
            return convert(data)
        except ValueError as error:
            raise _Misfit(str(error)) from None
        except (LookupError, TypeError):
            raise _misfit(type_name(get_args(kind)[0]), data) from None

    return converted


def _misfit(expected: str, data: Any) -> _Misfit:
    return _Misfit(f"expected {expected}, got {data!r:.120}")


@functools.cache
def field_types(kind: Any) -> Mapping[str, Any]:
    """Return the annotation of each field of a dataclass, by name."""
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}


def fits(kind: Any, value: Any) -> bool:
    """Return whether a value is of an annotated type; the values of a mapping are not looked at."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(member, value) for member in arguments)
    if origin is Literal:
        return value in arguments
    if isinstance(origin, type) and issubclass(origin, Sequence):
        items = isinstance(value, origin) and not isinstance(value, str | bytes)
        return items and all(fits(arguments[0], v) for v in value)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, types.NoneType if kind is None else origin or kind)


def type_name(kind: Any) -> str:
    """``str, Path or None`` for a union, ``Sequence[str]``, ``int``."""
    names = list(_names(kind))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def _names(kind: Any) -> Iterator[str]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        for member in arguments:
            yield from _names(member)
    elif kind in (None, types.NoneType):
        yield "None"
    elif origin is Literal:
        yield " or ".join(map(repr, arguments))
    elif origin is not None:
        inner = ("..." if a is ... else type_name(a) for a in arguments)
        yield f"{origin.__name__}[{', '.join(inner)}]"
    else:
        yield getattr(kind, "__name__", str(kind))
