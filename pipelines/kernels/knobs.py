"""Knobs as text: a frozen dataclass of numbers, strings, tuples and such dataclasses, as repr.

A kernel crosses from one MLIR to another as an attribute: the name of its family and this text,
``Rows(operation='softmax', rows=128, ...)``. Reading it evaluates nothing.
"""

import ast
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import lru_cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from pyc_mlir.dialects.errors import PycError, ReasonCode


def encode(knobs: Any) -> str:
    """Write all fields, in their order."""
    return repr(knobs)


@lru_cache(maxsize=128)
def decode(kind: type, text: str) -> Any:
    """Read what `encode` was given. Raises PycError (BAD_ARGUMENT) for other text.

    A compile reads each text for the call, the dispatch and the code; knobs never change.
    """
    try:
        made = _value(ast.parse(text, mode="eval").body, {k.__name__: k for k in _kinds(kind)})
    except (SyntaxError, TypeError, ValueError) as error:
        raise _refusal(kind, f"{text[:80]!r} ({error})") from None
    if type(made) is not kind:
        raise _refusal(kind, repr(text[:80]))
    return made


def no_kernel(kernel: str, expected: str, came: object) -> PycError:
    """Make the error for knobs that make no kernel: values that do not fit together."""
    return PycError(ReasonCode.BAD_ARGUMENT, f"{kernel} kernel: expected {expected}, got {came!r}")


def _refusal(kind: type, came: str) -> PycError:
    expected = f"{kind.__name__}(field=value, ...)"
    return PycError(ReasonCode.BAD_ARGUMENT, f"kernel: expected the knobs {expected}, got {came}")


_CONSTANTS = (int, float, str, bool, type(None))
_hints = lru_cache(maxsize=64)(get_type_hints)


def _kinds(hint: Any) -> Iterator[type]:
    """Yield a dataclass and those that its fields may hold."""
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
        for inner in _hints(hint).values():
            yield from _kinds(inner)
    for inner in get_args(hint):
        yield from _kinds(inner)


def _value(node: ast.expr, kinds: dict[str, type]) -> Any:
    if isinstance(node, ast.Tuple):
        return tuple(_value(e, kinds) for e in node.elts)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.args:
        fields = {k.arg: _value(k.value, kinds) for k in node.keywords if k.arg is not None}
        if node.func.id in kinds and len(fields) == len(node.keywords):
            return _checked(kinds[node.func.id], fields)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _value(node.operand, kinds)
        if type(value) in (int, float):
            return -value
    if isinstance(node, ast.Constant) and type(node.value) in _CONSTANTS:
        return node.value
    raise ValueError(f"expected numbers, strings and tuples, got {ast.unparse(node)}")


def _checked(kind: type, fields: dict[str, Any]) -> Any:
    """Construct the dataclass, once its fields have their declared types."""
    hints = _hints(kind)
    for name, value in fields.items():
        if name in hints and not _is(value, hints[name]):
            expected = getattr(hints[name], "__name__", str(hints[name]))
            raise TypeError(f"`{name}`: expected {expected}, got {value!r}")
    return kind(**fields)


def _is(value: Any, hint: Any) -> bool:
    """Return whether a value has exactly the type of a hint (True is no int)."""
    inner, kind = get_args(hint), get_origin(hint)
    if kind is tuple:
        if type(value) is not tuple:
            return False
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(value) == len(kinds) and all(map(_is, value, kinds))
    if kind in (Union, UnionType):
        return any(_is(value, h) for h in inner)
    known = hint in (int, float, str, bool) or is_dataclass(hint)
    return type(value) is hint or not known
