"""Assertions: tests have them, and programs do not need them.

`python -O` leaves assertions out: none does what a program needs, and none keeps a promise.
"""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What an assertion may call: questions without effects.
QUESTIONS = {"all", "any", "callable", "isinstance", "len", "sum", "functions_of", "_ops"}
QUESTIONS |= {"self.has", "math.prod"}
SCRIPT = """
import numpy as np
import pyc_mlir
from pyc_mlir.pipelines.choices.choices import Recipe

assert False, "this process runs assertions"
x = np.linspace(-2, 2, 4096, dtype=np.float32).reshape(64, 64)
for f in (lambda x: np.maximum(x * 2 + 1, x[0]), lambda x: np.exp(x) @ x + x.sum(0)):
    got, want = pyc_mlir.compile(f, [x], target="cpu-avx2")(x), f(x)
    if not np.allclose(got, want, 1e-4, 1e-3):
        raise SystemExit(f"expected {want}, got {got}")
"""


def test_assertions_only_ask() -> None:
    effects = []
    for folder in ("dialects", "pipelines", "pyc_mlir", "tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Assert) and _acts(node.test):
                    effects.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not effects


def _acts(test: ast.expr) -> bool:
    return any(
        isinstance(part, ast.NamedExpr)
        or (isinstance(part, ast.Call) and ast.unparse(part.func) not in QUESTIONS)
        for part in ast.walk(test)
    )


def test_programs_are_right_without_assertions() -> None:
    command = [sys.executable, "-O", "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_every_test_asserts() -> None:
    """Each test asserts, expects an error, or calls a function of the tests that does."""
    functions: dict[str, list[ast.FunctionDef]] = {}
    tests = []
    for path in sorted((ROOT / "test" / "py").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                functions.setdefault(node.name, []).append(node)
                if node.name.startswith("test_") and path.name.startswith("test_"):
                    tests.append((f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}", node))
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
