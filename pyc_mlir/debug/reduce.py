"""Reduce a failing module: take away ops, results, functions and sizes while it still fails.

Comes in: the text of a module (pyc, linalg, whatever MLIR's bindings read) and `fails`. Goes out: a
`ReducedModule`, whose text is a verified module that fails. An op is taken away by giving the
function an argument in the place of its result; what is left over and read by nobody is returned.
The same module and answers give the same text.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyc_mlir.debug.minimal import minimal
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import func, ir
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.mlir_text import parse_mlir

Fails = Callable[[str], bool]
Tell = Callable[[str], None]
# What messages call a module that has no file.
_TEXT = "<text>"
_TYPE = re.compile(r"tensor<([0-9?x]*)x\w+|array<i64: ([-0-9, ]+)>")


@dataclass(frozen=True)
class ReducedModule:
    """The reduced module: its text, the ops that it has and had, and the number of tries.

    Ops are those of the entry function, its return left out.
    """

    text: str
    ops: int
    before: int
    tries: int


def reduce_module(
    text: str, fails: Fails, tell: Tell = lambda line: None, name: str = _TEXT
) -> ReducedModule:
    """Reduce a module to the smallest failing part found; messages call it `name`.

    Raises PycError: INVALID_IR for text that is no module, BAD_ARGUMENT if the module does not
    fail.
    """
    reducer = _Reducer(fails, tell)
    module, before = _printed(text, name)
    if not reducer.fails(module):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            "reduce: expected a module that fails the check, got one that passes it",
        )
    steps = (reducer.without_functions, reducer.without_ops, reducer.without_results)
    last = ""
    while module != last:
        last = module
        for step in (*steps, reducer.with_smaller_sizes):
            module = step(module)
    return ReducedModule(module, _count(module), before, reducer.tries)


def _printed(text: str, name: str = _TEXT) -> tuple[str, int]:
    with new_context() as context, ir.Location.unknown():
        module = parse_mlir(text, context, name)
        return str(module), len(_body(module)) - 1


def _count(text: str) -> int:
    return _printed(text)[1]


def _body(module: ir.Module) -> list[ir.Operation]:
    return [op.operation for op in entry_function(module).regions[0].blocks[0].operations]


class _Reducer:
    """Tries modules, and counts them."""

    def __init__(self, fails: Fails, tell: Tell) -> None:
        self._fails, self._tell = fails, tell
        self._known: dict[str, bool] = {}

    @property
    def tries(self) -> int:
        """How many modules were tried."""
        return len(self._known)

    def fails(self, text: str | None) -> bool:
        """Return whether a text is a module that fails; each text is tried once."""
        if text is None:
            return False
        if text not in self._known:
            self._known[text] = self._fails(text)
            if self._known[text]:
                self._tell(f"{self.tries}: {_count(text)} ops fail")
        return self._known[text]

    def without_functions(self, text: str) -> str:
        """Drop the functions beside the entry that are not needed to fail."""
        with new_context() as context, ir.Location.unknown():
            others = len(_others(parse_mlir(text, context)))
        chosen = minimal(range(others), lambda kept: self.fails(_with_functions(text, kept)))
        return _with_functions(text, chosen) or text

    def without_ops(self, text: str) -> str:
        """Drop the ops that are not needed to fail."""
        chosen = minimal(range(_count(text)), lambda kept: self.fails(_with_ops(text, kept)))
        return _with_ops(text, chosen) or text

    def without_results(self, text: str) -> str:
        """Drop the results that are not needed to fail."""
        with new_context() as context, ir.Location.unknown():
            results = len(_body(parse_mlir(text, context))[-1].operands)
        chosen = minimal(range(results), lambda kept: self.fails(_with_results(text, kept)))
        return _with_results(text, chosen) or text

    def with_smaller_sizes(self, text: str) -> str:
        """Shrink sizes, each everywhere at once; not if weights lie outside of types."""
        if "dense_resource" in text:
            return text
        shapes = (match[1] for match in _TYPE.finditer(text) if match[1])
        sizes = {int(d) for shape in shapes for d in shape.split("x") if d.isdigit() and int(d) > 1}
        for size in sorted(sizes, reverse=True):
            for smaller in (n for n in (1, 2, size // 2) if n < size):
                candidate = _verified(_resized(text, size, smaller))
                if candidate is not None and self.fails(candidate):
                    text = candidate
                    break
        return text


def _others(module: ir.Module) -> list[ir.Operation]:
    entry = entry_function(module)
    return [op.operation for op in module.body.operations if op.operation != entry]


def _changed(text: str, change: Callable[[ir.Module], None]) -> str | None:
    """Return the text after a change of the module; None if that does not verify."""
    with new_context() as context, ir.Location.unknown():
        module = parse_mlir(text, context)
        change(module)
        try:
            return str(module) if module.operation.verify() else None
        except ir.MLIRError:
            return None


def _with_functions(text: str, kept: Sequence[int]) -> str | None:
    def change(module: ir.Module) -> None:
        for number, op in enumerate(_others(module)):
            if number not in kept:
                op.erase()

    return _changed(text, change)


def _with_results(text: str, kept: Sequence[int]) -> str | None:
    def change(module: ir.Module) -> None:
        last = _body(module)[-1]
        _return(entry_function(module), [v for i, v in enumerate(last.operands) if i in kept])

    return _changed(text, change)


def _with_ops(text: str, kept: Sequence[int]) -> str | None:
    def change(module: ir.Module) -> None:
        function = entry_function(module)
        *ops, last = _body(module)
        gone = [op for number, op in enumerate(ops) if number not in kept]
        lost = {result for op in gone for result in op.results}
        arguments = set(function.regions[0].blocks[0].arguments)
        values = [v for v in last.operands if v not in lost and v not in arguments]
        _return(function, values)
        for op in reversed(gone):
            for result in op.results:
                if next(iter(result.uses), None) is not None:
                    block = function.regions[0].blocks[0]
                    result.replace_all_uses_with(block.add_argument(result.type, op.location))
            op.erase()
        unread = [r for op in _body(module)[:-1] for r in op.results if _is_unread(r)]
        _return(function, [*values, *unread])

    return _changed(text, change)


def _is_unread(value: ir.Value) -> bool:
    return next(iter(value.uses), None) is None


def _return(function: ir.Operation, values: Sequence[ir.Value]) -> None:
    """Let a function return other values, and take no arguments that nobody reads."""
    block = function.regions[0].blocks[0]
    list(block.operations)[-1].operation.erase()
    with ir.InsertionPoint(block):
        func.ReturnOp(list(values))
    attributes = _argument_attributes(function)
    attributes += [ir.DictAttr.get({})] * (len(block.arguments) - len(attributes))
    for number in reversed(range(len(block.arguments))):
        if _is_unread(block.arguments[number]):
            block.erase_argument(number)
            del attributes[number]
    inputs = [a.type for a in block.arguments]
    type_ = ir.FunctionType.get(inputs, [v.type for v in values])
    function.attributes["function_type"] = ir.TypeAttr.get(type_)
    for name in ("arg_attrs", "res_attrs"):
        if name in function.attributes:
            del function.attributes[name]
    if attributes:
        function.attributes["arg_attrs"] = ir.ArrayAttr.get(attributes)


def _argument_attributes(function: ir.Operation) -> list[ir.Attribute]:
    if "arg_attrs" not in function.attributes:
        return []
    return list(ir.ArrayAttr(function.attributes["arg_attrs"]))


def _resized(text: str, size: int, smaller: int) -> str:
    """Replace one size by another in types and lists of sizes."""
    number = re.compile(rf"(?<![\d-]){size}(?!\d)")
    return _TYPE.sub(lambda match: _sized(match, number, smaller), text)


def _sized(match: re.Match[str], number: re.Pattern[str], smaller: int) -> str:
    group = 1 if match[1] is not None else 2
    start, end = match.start(group) - match.start(), match.end(group) - match.start()
    whole = match[0]
    return whole[:start] + number.sub(str(smaller), match[group]) + whole[end:]


def _verified(text: str) -> str | None:
    try:
        return _printed(text)[0]
    except PycError:
        return None
