"""docs/scenarios.md is true: its tests exist, name its codes, and do what a row says so often."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from source_trees import ROOT, tree

from pyc_mlir import ReasonCode

ROWS = [
    line.strip("| ").split(" | ")
    for line in (ROOT / "docs" / "scenarios.md").read_text().splitlines()
    if "](../test/py/" in line
]
LINK = re.compile(r"\[`(\w+)`\]\(\.\./(test/py/[\w/]+\.py)\)")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_its_tests_exist_and_count_so_often(row: list[str]):
    _, _, tests, times = row
    counts = set()
    for name, file in LINK.findall(tests):
        nodes = list(ast.walk(tree(ROOT / file)))
        assert name in {n.name for n in nodes if isinstance(n, ast.FunctionDef)}
        calls = (n for n in nodes if isinstance(n, ast.Call) and ast.unparse(n.func) == "rounds")
        counts |= {f"{ast.literal_eval(call.args[1]):,}" for call in calls}
    assert times == "all cases" or times.partition(" ")[0] in counts


def with_helpers(path: Path) -> Iterator[Path]:
    """A test's file, and the modules of tests that it imports."""
    yield path
    for node in ast.walk(tree(path)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for folder in (path.parent, ROOT / "test/py/support"):
            yield from filter(Path.is_file, (folder / f"{name}.py" for name in names))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_its_tests_name_its_codes(row: list[str]):
    codes = re.findall(r"`([A-Z_]{4,})`", row[1])
    assert set(codes) <= ReasonCode.__members__.keys()
    files = {p for _, file in LINK.findall(row[2]) for p in with_helpers(ROOT / file)}
    texts = [p.read_text() for p in sorted(files)]
    assert [code for code in codes if not any(code in text for text in texts)] == []


def test_every_row_is_read():
    text = (ROOT / "docs" / "scenarios.md").read_text()
    assert len(ROWS) == text.count("\n| ") - text.count("\n## ") > 40
    assert len({row[0] for row in ROWS}) == len(ROWS)
