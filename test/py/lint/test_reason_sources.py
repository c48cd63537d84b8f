"""Reason codes in the sources: none is given outside the table, and files have one door."""

import ast
import re
from dataclasses import astuple

from source_trees import PRODUCT, trees

from pyc_mlir.dialects.reasons import ReasonCode
from pyc_mlir.pipelines.driver.registry import BUILT_IN

TREES = trees(*PRODUCT)
# These handle their OSErrors, read the kernel's tables or the package, or are a developer's tools.
OWN_FILES = (
    "dialects/util/files.py",
    "pyc_mlir/cache/",
    "tools/bench/",
    "pyc_mlir/runtime/plans.py",
    "pyc_mlir/util/source_files.py",
    "pipelines/target/target.py",
    "tools/page/document.py",
    "tools/docs/",
    "tools/demo/train.py",
)
WRITES = {"read_bytes", "read_text", "write_bytes", "write_text", "mkdir", "touch", "makedirs"}


def decision_sites() -> set[str]:
    """Names that the sources give to sites of decisions: constants, and the passes' own."""
    found = set(BUILT_IN)
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "Site":
                found |= {str(a.value) for a in node.args[:1] if isinstance(a, ast.Constant)}
            elif isinstance(node, ast.Assign) and "SITE" in ast.unparse(node.targets[0]):
                found |= {str(c.value) for c in ast.walk(node.value) if isinstance(c, ast.Constant)}
    return found


def test_decisions_that_texts_name_exist():
    texts = [t for c in ReasonCode for t in astuple(c.value)]
    texts += [
        node.value
        for tree in TREES.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    cited = {name for text in texts for name in re.findall(r"decisions? `([^`]+)`", text)}
    assert "plan-memory" in cited and cited - decision_sites() == set()


def named(node: ast.AST) -> str | None:
    """The member that ``ReasonCode.MEMBER`` names."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == "ReasonCode" and node.attr.isupper() else None
    return None


def test_every_code_is_given_somewhere_and_none_is_unknown():
    used = {
        name: path
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if path != "dialects/reasons.py" and (name := named(node)) is not None
    }
    codes = {c.name for c in ReasonCode}
    assert {name: path for name, path in used.items() if name not in codes} == {}
    assert codes - used.keys() == set(), "nothing gives these: delete them"


def test_errors_take_their_code_from_the_table():
    """The first argument of every PycError: a member, or the code of another error or event."""
    odd = [
        f"{path}:{node.lineno}"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "PycError"
        and not _is_code(node.args[0])
    ]
    assert odd == []


def _is_code(node: ast.expr) -> bool:
    if isinstance(node, ast.IfExp):
        return _is_code(node.body) and _is_code(node.orelse)
    if isinstance(node, ast.Name):
        return node.id == "code"
    return named(node) is not None or (isinstance(node, ast.Attribute) and node.attr == "code")


def test_fallbacks_are_recorded_with_a_code():
    """A function that makes a decision ``decided_by=FALLBACK`` names the code in its evidence."""
    without = []
    for path, tree in TREES.items():
        for function in [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]:
            calls = [n for n in ast.walk(function) if isinstance(n, ast.Call)]
            makes = any(
                isinstance(c.func, ast.Name)
                and c.func.id == "Decision"
                and any(isinstance(a, ast.Name) and a.id == "FALLBACK" for a in c.args)
                for c in calls
            )
            # That one takes codes by its type.
            if function.name == "record_fallback":
                continue
            if makes and not any(named(n) for n in ast.walk(function)):
                without.append(f"{path}:{function.lineno} {function.name}")
    assert without == []


def test_files_that_users_name_go_through_one_door():
    """So that whatever the disk says has a code: `dialects/util/files.py`, or a handler of
    OSError."""
    outside = []
    for path, tree in TREES.items():
        if path.startswith(OWN_FILES):
            continue
        handled = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.Try)
            and any(h.type and "OSError" in ast.unparse(h.type) for h in node.handlers)
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and id(node) not in handled and _touches_files(node):
                outside.append(f"{path}:{node.lineno}: {ast.unparse(node)[:60]}")
    assert outside == []


def _touches_files(node: ast.Call) -> bool:
    if isinstance(node.func, ast.Name):
        return node.func.id == "open"
    # Methods of that name with more arguments are no path's.
    return isinstance(node.func, ast.Attribute) and node.func.attr in WRITES and len(node.args) < 2
