"""Assertions: tests have them, and programs do not need them.

`python -O` leaves assertions out: none does what a program needs, and none keeps a promise.
"""

import ast

from source_trees import PRODUCT, trees

# What an assertion may call: questions without effects.
QUESTIONS = {"all", "any", "callable", "isinstance", "len", "sum", "functions_of", "_ops"}
QUESTIONS |= {"self.has", "math.prod"}


def test_assertions_only_ask() -> None:
    effects = []
    for path, tree in trees(*PRODUCT).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Assert) and _acts(node.test):
                effects.append(f"{path}:{node.lineno}")
    assert not effects


def _acts(test: ast.expr) -> bool:
    return any(
        isinstance(part, ast.NamedExpr)
        or (isinstance(part, ast.Call) and ast.unparse(part.func) not in QUESTIONS)
        for part in ast.walk(test)
    )


def test_every_test_asserts() -> None:
    """Each test asserts, expects an error, or calls a function of the tests that does."""
    functions: dict[str, list[ast.FunctionDef]] = {}
    tests = []
    for path, tree in trees("test/py").items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                functions.setdefault(node.name, []).append(node)
                if node.name.startswith("test_") and "/test_" in path:
                    tests.append((f"{path}:{node.lineno}: {node.name}", node))
    asserting = {name for name, nodes in functions.items() if any(map(_asserts, nodes))}
    called = {name: set().union(*map(_called, nodes)) for name, nodes in functions.items()}
    found = asserting
    while found:
        found = {name for name in called.keys() - asserting if called[name] & asserting}
        asserting |= found
    assert len(tests) > 1000
    assert not [w for w, node in tests if not (_asserts(node) or _called(node) & asserting)]


def _asserts(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(part, ast.Assert)
        or (
            isinstance(part, ast.Call)
            and (
                ast.unparse(part.func) in ("pytest.raises", "pytest.fail")
                or "assert_" in ast.unparse(part.func)
            )
        )
        for part in ast.walk(function)
    )


def _called(function: ast.FunctionDef) -> set[str]:
    calls = (part.func for part in ast.walk(function) if isinstance(part, ast.Call))
    return {f.attr if isinstance(f, ast.Attribute) else getattr(f, "id", "") for f in calls}
