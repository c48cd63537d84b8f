"""Read a module from text or bytecode; whatever is wrong becomes a located diagnostic.

Text that MLIR's parser would not survive is refused before it is parsed (input_text.py).
Bytecode is refused unless the caller says that it may crash the process: MLIR's reader does not
survive damaged input."""

import io
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.text.diagnostics import Diagnostic, Position, collect
from pyc_mlir.pipelines.text.input_text import first_excess

_UNNAMED = "-"  # the file name that the bindings give to text
_CUSTOM_PYC = re.compile(r"(?<![\w#!.@%^])pyc\.(\w+)")
_QUIET = re.compile(r'"(?:[^"\\\n]|\\.)*"|//[^\n]*')
_UNREGISTERED_PYC = re.compile(r"unregistered operation 'pyc\.(\w+)'")
_REPRODUCER_WARNING = "ignoring unknown external resources for 'mlir_reproducer'"

Report = Callable[[Diagnostic], None]


@dataclass(frozen=True)
class ModuleText:
    """Text of a module: where it comes from, and how many lines of the file stand before it.

    With `path`, MLIR reads that file itself (it must hold the same text), so that locations in
    the module carry its name.
    """

    text: str
    name: str
    line_offset: int = 0
    path: str | None = None


def decode(data: bytes, name: str) -> str | Diagnostic:
    """Decode `data` as UTF-8 text; an error names the first byte that is not."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        before = data[: error.start]
        column = error.start - (before.rfind(b"\n") + 1) + 1
        position = Position(name, before.count(b"\n") + 1, column)
        byte = data[error.start]
        return Diagnostic("error", f"expected UTF-8 text, got the byte 0x{byte:02x}", position)


def beyond_bounds(source: ModuleText) -> Diagnostic | None:
    """Return an error at the place where the text passes a bound of `first_excess`, if one is."""
    found = first_excess(source.text)
    if found is None:
        return None
    return Diagnostic("error", found.message, _position(source, found.index))


def _position(source: ModuleText, index: int) -> Position:
    before = source.text[:index]
    line = before.count("\n") + 1 + source.line_offset
    return Position(source.name, line, index - (before.rfind("\n") + 1) + 1)


def collected(context: ir.Context, name: str, report: Report) -> AbstractContextManager[None]:
    """Collect like `diagnostics.collect`; text without a name of its own is called `name`."""

    def rename(item: Diagnostic) -> Diagnostic:
        position = item.position
        if position is not None and position.file == _UNNAMED:
            position = replace(position, file=name)
        return replace(item, position=position, notes=tuple(map(rename, item.notes)))

    def sink(item: Diagnostic) -> None:
        if item.message != _REPRODUCER_WARNING:
            report(rename(item))

    return collect(context, sink)


def parse_module(
    source: ModuleText, context: ir.Context, report: Report, implicit_module: bool = True
) -> ir.Module | ir.OpView | None:
    """Parse and verify the module; None after at least one error was handed to `report`.

    Without `implicit_module` the text must be one op, which is returned as it is.
    """
    refused = beyond_bounds(source)
    if refused is not None:
        report(refused)
        return None
    errors: list[Diagnostic] = []
    with collected(context, source.name, errors.append):
        parsed = _parse(source, context, implicit_module)
    if parsed is None:
        errors = _explained(source, errors)
    for item in errors:
        report(item)
    return parsed


def _parse(
    source: ModuleText, context: ir.Context, implicit_module: bool
) -> ir.Module | ir.OpView | None:
    text = "\n" * source.line_offset + source.text
    try:
        if not implicit_module:
            op = ir.Operation.parse(text, source_name=source.name, context=context)
            if op.operation.name != "builtin.module":
                return op
        if source.path is not None:
            return ir.Module.parseFile(source.path, context)
        return ir.Module.parse(text, context)
    except ir.MLIRError:
        return None


def parse_bytecode(data: bytes, name: str, context: ir.Context, report: Report) -> ir.Module | None:
    """Read bytecode. Damaged bytecode may end the process: call this where that is survivable."""
    errors: list[Diagnostic] = []
    with collected(context, name, errors.append):
        try:
            module = ir.Module.parse(data, context)
        except ir.MLIRError:
            module = None
    if module is None and not errors:
        errors = [Diagnostic("error", "the bytecode does not parse", Position(name, 1, 1))]
    for item in errors:
        report(item)
    return module


def _explained(source: ModuleText, errors: list[Diagnostic]) -> list[Diagnostic]:
    """Return MLIR's message, with a hint where pyc's syntax is the likely cause."""
    custom = _CUSTOM_PYC.search(_QUIET.sub(lambda m: " " * len(m[0]), source.text))
    if not errors:
        # Python-defined dialects reject custom syntax without a word.
        if custom is None:
            return [Diagnostic("error", "the module does not parse", _position(source, 0))]
        position = _position(source, custom.start())
        message = f"'{custom[0]}' has no custom syntax"
        return [Diagnostic("error", message, position, (_syntax_note(custom[0], position),))]
    first = errors[0]
    unknown = _UNREGISTERED_PYC.search(first.message)
    if unknown is not None:
        hint = did_you_mean(unknown[1], OPS).removeprefix("; ")
        note = Diagnostic("note", hint or "docs/dialect.md lists the ops", first.position)
        return [replace(first, notes=(*first.notes, note)), *errors[1:]]
    if custom is not None and first.position is not None:
        position = _position(source, custom.start())
        if position.line == first.position.line:
            note = _syntax_note(custom[0], position)
            return [replace(first, notes=(*first.notes, note)), *errors[1:]]
    return errors


def _syntax_note(name: str, position: Position) -> Diagnostic:
    message = f'pyc ops are written generically: %0 = "{name}"(%x) : (TYPE) -> TYPE'
    return Diagnostic("note", message, position)


def roundtrip_difference(module: ir.Module | ir.OpView) -> str:
    """Return what differs after round trips through text and bytecode; '' when nothing does.

    Compared is the generic form with locations, as mlir-opt's ``--verify-roundtrip`` does. It is
    read in a context of its own: the module's would give its resources other names.
    """
    before = _shown(module)
    for form, data in (("text", before.encode()), ("bytecode", _bytecode(module))):
        try:
            source = data.decode() if form == "text" else data
            after = _shown(_read(source, module))
        except ir.MLIRError as error:
            return f"{form} round trip: the module does not read back ({error.message})"
        if after != before:
            return f"{form} round trip: {_first_difference(before, after)}"
    return ""


def _read(source: str | bytes, like: ir.Module | ir.OpView) -> ir.Module | ir.OpView:
    context = new_context()
    context.allow_unregistered_dialects = like.context.allow_unregistered_dialects
    if isinstance(like, ir.Module):
        return ir.Module.parse(source, context)
    return ir.Operation.parse(source, context=context)


def _shown(module: ir.Module | ir.OpView) -> str:
    return module.operation.get_asm(print_generic_op_form=True, enable_debug_info=True)


def _bytecode(module: ir.Module | ir.OpView) -> bytes:
    out = io.BytesIO()
    module.operation.write_bytecode(out)
    return out.getvalue()


def _first_difference(before: str, after: str) -> str:
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    for number, (old, new) in enumerate(pairs, start=1):
        if old != new:
            return f"line {number}: expected `{old.strip()}`, got `{new.strip()}`"
    return "expected as many lines as were written"
