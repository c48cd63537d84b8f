"""Pass options as text and as fields of a pass: both directions, with typed errors.

A field's annotation decides how its text reads: bool, int, float, str, `Literal[...]`, enum,
`X | None`, and `tuple[X, ...]` (``{a,b}``, or ``a,b`` without spaces). Dashes in the text are
underscores in the field.
"""

import types
from collections.abc import Callable
from dataclasses import MISSING
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.driver.base import Pass, options_of
from pyc_mlir.pipelines.driver.pipeline_text import PassNode, PassOption, Pipeline

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def build_pass(pass_class: type[Pass], node: PassNode, pipeline: Pipeline) -> Pass:
    """Build the pass object that `node` describes.

    Raises PipelineError under the option at fault: unknown, given twice, or of the wrong type.
    """
    hints = option_types(pass_class)
    known = {text: f.name for f, text in options_of(pass_class)}
    values: dict[str, Any] = {}
    for option in node.options:
        if option.name not in known:
            hint = did_you_mean(option.name, known)
            hint = hint or (f"; it has {', '.join(known)}" if known else "; it has no options")
            message = f"pass '{node.name}' has no option '{option.name}'{hint}"
            raise pipeline.error(option.column, message)
        name = known[option.name]
        if name in values:
            raise pipeline.error(option.column, f"option '{option.name}' is given twice")
        try:
            values[name] = read_value(hints[name], option.value)
        except ValueError as expected:
            got = "nothing" if option.value is None else repr(option.value)
            message = f"option '{option.name}' of '{node.name}': expected {expected}, got {got}"
            raise pipeline.error(option.value_column, message) from None
    try:
        return pass_class(**values)
    except (PycError, ValueError) as error:  # the pass's own check of its options
        text = error.message if isinstance(error, PycError) else str(error)
        raise pipeline.error(node.column, f"'{node.name}': {text}") from error


def option_types(pass_class: type[Pass]) -> dict[str, Any]:
    """Return the annotation of each option, by field name."""
    hints = get_type_hints(pass_class)
    return {f.name: hints[f.name] for f, _ in options_of(pass_class)}


def pass_node(pass_: Pass) -> PassNode:
    """Return the textual form of a pass object: the options that differ from their defaults."""
    options = []
    for spec, name in options_of(type(pass_)):
        value = getattr(pass_, spec.name)
        if value != spec.default or spec.default is MISSING:
            options.append(PassOption(name, write_value(value)))
    return PassNode(pass_.name, tuple(options))


def write_value(value: Any) -> str:
    """Write the text that `read_value` reads back."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case Enum():
            return str(value.value)
        case tuple() | list():
            return f"{{{','.join(write_value(v) for v in value)}}}"
        case str() if value == "" or any(c in value for c in " ,{}()[]"):
            return f'"{value}"'
        case _:
            return str(value)


def read_value(annotation: Any, text: str | None) -> Any:
    """Convert an option's text. Raises ValueError whose text is what was expected."""
    if annotation is bool:
        value = True if text is None else _BOOLEANS.get(_unquote(text).lower())
        if value is None:
            raise ValueError(describe(bool))
        return value
    if text is None:
        raise ValueError(f"{describe(annotation)} after '='")
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _read_optional(annotation, arguments, text)
    if origin is tuple:
        inner = text[1:-1] if text.startswith("{") and text.endswith("}") else text
        items = inner.split(",") if inner.strip() else []
        try:
            return tuple(read_value(arguments[0], item.strip()) for item in items)
        except ValueError:
            raise ValueError(describe(annotation)) from None
    if origin is Literal:
        if _unquote(text) not in arguments:
            raise ValueError(describe(annotation))
        return _unquote(text)
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return _convert(annotation, annotation, text)
    converters: dict[Any, Callable[[str], Any]] = {int: lambda t: int(t, 0), float: float, str: str}
    return _convert(annotation, converters[annotation], text)


def _convert(annotation: Any, convert: Callable[[str], Any], text: str) -> Any:
    try:
        return convert(_unquote(text))
    except ValueError:
        raise ValueError(describe(annotation)) from None


def _read_optional(annotation: Any, arguments: tuple[Any, ...], text: str) -> Any:
    if text == "none":
        return None
    for choice in arguments:
        if choice is not types.NoneType:
            try:
                return read_value(choice, text)
            except ValueError:
                continue
    raise ValueError(describe(annotation))


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"" else text


def describe(annotation: Any) -> str:
    """Describe in words what an option of that type takes."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(a) for a in arguments)
    if origin is tuple:
        return f"a list {{x,y}} of which each is {describe(arguments[0])}"
    if origin is Literal:
        return f"one of {', '.join(str(a) for a in arguments)}"
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return f"one of {', '.join(str(m.value) for m in annotation)}"
    words = {bool: "true or false", int: "an integer", float: "a number", str: "text"}
    return words.get(annotation, "none")
