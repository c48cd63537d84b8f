"""Frozen dataclasses to plain JSON data and back, driven by the types of their fields.

    data = to_data(options)                      # dicts, lists, texts, numbers, booleans, None
    options = from_data(Options, data, "request")

Types that a field may have: None, bool, int, float, str, paths, enums, `Literal`, dataclasses,
tuples, sequences, sets of texts, mappings by text, unions of those, and `Any` for plain data. A
`Form` says how values of another type are written and read. Floats keep their bits; those that
JSON lacks are texts.
"""

import functools
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True)
class Form:
    """How values of one type become data, and how data becomes such a value."""

    to: Callable[[Any], Any]
    of: Callable[[Any], Any]


Forms = Mapping[Any, Form]
_NO_FORMS: Forms = {}
_PLAIN = (bool, int, str)


def to_data(value: Any, where: str = "value", forms: Forms = _NO_FORMS) -> Any:
    """Return plain JSON data; sets are sorted, and `where` names the value in errors.

    Raises ValueError for what is no plain data and has no form.
    """
    for kind, form in forms.items():
        if isinstance(value, kind):
            return form.to(value)
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else repr(value)
        case PurePath():
            return str(value)
        case AbstractSet() if all(isinstance(v, str) for v in value):
            return sorted(value)
        case list() | tuple():
            return [to_data(v, f"{where}[{i}]", forms) for i, v in enumerate(value)]
    named = _named(value)
    if named is None:
        raise ValueError(f"{where} is a {type(value).__name__}, which has no content to name")
    return {name: to_data(v, f"{where}.{name}", forms) for name, v in named.items()}


def _named(value: Any) -> dict[str, Any] | None:
    """Return the parts of a dataclass or a mapping by name; None for any other value."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in fields(value)}
    if isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
        return dict(value)
    return None


def from_data(kind: type[T], data: Any, where: str = "", forms: Forms = _NO_FORMS) -> T:
    """Return the value of type `kind` that `to_data` wrote; fields with a default may be left out.

    Raises ValueError, with the field at fault first, and what a dataclass raises for its values.
    """
    return _read(kind, data, where or kind.__name__, forms)


def _read(kind: Any, data: Any, where: str, forms: Forms) -> Any:
    if kind in forms:
        return forms[kind].of(data)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _read_union(kind, data, where, forms)
    if origin is None and is_dataclass(kind):
        return _read_dataclass(kind, data, where, forms)
    if origin is Literal:
        return _required(data in arguments, data, where, kind)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        _required(isinstance(data, Mapping), data, where, kind)
        return {k: _read(arguments[1], v, f"{where}.{k}", forms) for k, v in data.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence | AbstractSet):
        return _read_items(kind, data, where, forms)
    return _read_plain(kind, data, where)


def _read_plain(kind: Any, data: Any, where: str) -> Any:
    if kind is Any:
        return data
    if kind in (None, types.NoneType):
        return _required(data is None, data, where, kind)
    if kind is float:
        if data in ("inf", "-inf", "nan"):
            return float(data)
        return _required(type(data) in (int, float), data, where, kind)
    if kind in _PLAIN:
        return _required(type(data) is kind, data, where, kind)
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return kind(_required(isinstance(data, str), data, where, kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(_required(data in {e.value for e in kind}, data, where, kind))
    raise TypeError(f"{where}: no way to read a {type_name(kind)} from data")


def _read_union(kind: Any, data: Any, where: str, forms: Forms) -> Any:
    """Return the value of the first member that takes the data."""
    members, problems = get_args(kind), []
    for member in members:
        try:
            return _read(member, data, where, forms)
        except ValueError as error:
            problems.append(error)
    others = [p for m, p in zip(members, problems, strict=True) if m is not types.NoneType]
    if len(others) == 1 and data is not None:
        raise others[0]
    return _required(False, data, where, kind)


def _read_items(kind: Any, data: Any, where: str, forms: Forms) -> Any:
    """Return a tuple or a set from a list."""
    origin, arguments = get_origin(kind), get_args(kind)
    _required(isinstance(data, list), data, where, kind)
    pair = origin is tuple and arguments[-1:] != (...,)
    if pair:
        _required(len(data) == len(arguments), data, where, kind)
    kinds = arguments if pair else [arguments[0]] * len(data)
    pairs = enumerate(zip(kinds, data, strict=True))
    items = (_read(k, v, f"{where}[{i}]", forms) for i, (k, v) in pairs)
    return frozenset(items) if issubclass(origin, AbstractSet) else tuple(items)


def _read_dataclass(kind: Any, data: Any, where: str, forms: Forms) -> Any:
    known = {f.name: f for f in fields(kind) if f.init}
    _required(isinstance(data, Mapping), data, where, kind)
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ValueError(f"{where}: expected fields of {kind.__name__}, got `{unknown[0]}`")
    for name, field in known.items():
        if name not in data and field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{where}.{name}: expected a value, got none")
    hints = field_types(kind)
    return kind(**{n: _read(hints[n], v, f"{where}.{n}", forms) for n, v in data.items()})


def _required(holds: bool, data: Any, where: str, kind: Any) -> Any:
    if not holds:
        raise ValueError(f"{where}: expected {type_name(kind)}, got {data!r:.120}")
    return data


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
