"""Mutants of the compiler's own code: one guard, clamp, comparison or constant changed.

    mutants_of("pipelines/linalg/convert_to_linalg.py", text) -> [Mutant]

guard       the condition of an `if` without `else` is evaluated and taken as False, the filter of a
            comprehension as True
clamp       min, max, clip and the ops of their names give their first operand that is no number
comparison  < and <=, > and >=, == and !=, in and not in are exchanged
constant    a whole number is one more, a float twice as large (0.0: 1.0)

What only a reader sees is left out: messages of errors, texts, annotations and asserts.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

KINDS = ("guard", "clamp", "comparison", "constant")
_OTHER: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_CLAMPS = ("min", "max", "minimum", "maximum")
# Ops that clamp, built by their names: arith("minsi", a, b).
_CLAMP_OPS = ("minsi", "maxsi", "minui", "maxui", "minimumf", "maximumf", "minnumf", "maxnumf")
_UNSEEN = (ast.Raise, ast.Assert, ast.JoinedStr, ast.Import, ast.ImportFrom)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Mutant:
    """A change of the bytes [start, end) of a file, by its path from the root.

    functions: the first lines of the functions around it, the innermost first. text: its own line.
    """

    path: str
    line: int
    kind: str
    start: int
    end: int
    before: str
    after: str
    functions: tuple[int, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.kind}: {self.before} -> {self.after}"

    @property
    def key(self) -> str:
        """The parts that stay the same where lines move."""
        return f"{self.path} `{self.text}` {self.kind}: {self.before} -> {self.after}"


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Return every mutant of a file, in order."""
    data = text.encode()
    lines = data.splitlines(keepends=True)
    starts = [0, *accumulate(map(len, lines))]

    def at(line: int, column: int) -> int:
        return starts[line - 1] + column

    found = []
    for node, kind, changed, functions in _changes(ast.parse(text), ()):
        start, end = at(node.lineno, node.col_offset), at(node.end_lineno, node.end_col_offset)
        before = " ".join(data[start:end].decode().split())
        after = f"({ast.unparse(changed)})"
        own = lines[node.lineno - 1].decode().strip()
        found.append(Mutant(path, node.lineno, kind, start, end, before, after, functions, own))
    return sorted(found, key=lambda m: (m.start, m.kind))


def _changes(
    node: ast.AST, functions: tuple[int, ...]
) -> Iterator[tuple[Any, str, ast.expr, tuple[int, ...]]]:
    """Yield (expression, kind, its replacement, the functions around it) of a tree."""
    if isinstance(node, _UNSEEN):
        return
    if isinstance(node, _FUNCTIONS):
        decorators = getattr(node, "decorator_list", [])
        functions = (min([node.lineno, *(d.lineno for d in decorators)]), *functions)
    for expression, kind, changed in _of_node(node):
        yield expression, kind, changed, functions
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _changes(child, functions)


def _of_node(node: ast.AST) -> Iterator[tuple[ast.expr, str, ast.expr]]:
    if isinstance(node, ast.If) and not node.orelse and not _is_type_checking(node.test):
        yield node.test, "guard", ast.BoolOp(ast.And(), [node.test, ast.Constant(False)])
    if isinstance(node, ast.comprehension):
        for test in node.ifs:
            yield test, "guard", ast.BoolOp(ast.Or(), [test, ast.Constant(True)])
    if isinstance(node, ast.Call) and (kept := _clamped(node)) is not None:
        yield node, "clamp", kept
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _OTHER:
        other = _OTHER[type(node.ops[0])]()
        yield node, "comparison", ast.Compare(node.left, [other], node.comparators)
    number = node.value if isinstance(node, ast.Constant) else None
    if isinstance(node, ast.Constant) and type(number) in (int, float):
        yield node, "constant", ast.Constant(_other_number(number))


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _clamped(call: ast.Call) -> ast.expr | None:
    """Return what a call clamps; None for another call, or a reduction of one sequence."""
    name = getattr(call.func, "attr", getattr(call.func, "id", None))
    if name == "clip" and isinstance(call.func, ast.Attribute):
        return call.args[0] if len(call.args) == 3 else call.func.value
    if name in _CLAMPS and len(call.args) > 1 and not any(k.arg == "key" for k in call.keywords):
        clamped = [a for a in call.args if not isinstance(a, ast.Constant | ast.Starred)]
        return clamped[0] if clamped else None
    first = call.args[0] if len(call.args) == 3 else None
    if isinstance(first, ast.Constant) and first.value in _CLAMP_OPS:
        return call.args[1]
    return None


def _other_number(number: Any) -> float:
    if isinstance(number, int):
        return number + 1
    return 2 * number or 1.0
