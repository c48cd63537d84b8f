"""The table of scenarios is true: its tests exist, take their counts from it, name its codes."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from scenarios import SCENARIOS, Scenario
from source_trees import tree

TESTS = Path(__file__).resolve().parents[1]
SUPPORT = TESTS / "support"
COUNTED = [row for row in SCENARIOS if row.sampled is not None]


@pytest.mark.parametrize("row", SCENARIOS, ids=lambda row: row.name)
def test_its_tests_exist(row: Scenario):
    for test in row.tests:
        file, _, name = test.partition("::")
        functions = [n for n in ast.walk(tree(TESTS / file)) if isinstance(n, ast.FunctionDef)]
        assert name in {function.name for function in functions}


def counted(path: Path) -> set[str]:
    """The names of the rows that a test takes its counts from."""
    return {
        call.args[0].value
        for call in ast.walk(tree(path))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "count_of"
        and isinstance(call.args[0], ast.Constant)
        and isinstance(call.args[0].value, str)
    }


@pytest.mark.parametrize("row", COUNTED, ids=lambda row: row.name)
def test_counts_are_those_that_the_tests_use(row: Scenario):
    (test,) = row.tests
    assert row.name in counted(TESTS / test.partition("::")[0])


def with_helpers(path: Path) -> Iterator[Path]:
    """A test's file, and the modules of tests that it imports."""
    yield path
    for node in ast.walk(tree(path)):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        for folder in (path.parent, SUPPORT):
            files = [folder / f"{name}.py" for name in names if name != "scenarios"]
            yield from filter(Path.is_file, files)


@pytest.mark.parametrize("row", SCENARIOS, ids=lambda row: row.name)
def test_codes_are_named_by_the_tests(row: Scenario):
    """They are members of the table of reasons, or the table of scenarios could not be loaded."""
    files = {p for t in row.tests for p in with_helpers(TESTS / t.partition("::")[0])}
    texts = [p.read_text() for p in sorted(files)]
    assert [c.name for c in row.codes if not any(c.name in text for text in texts)] == []


def test_rows_are_sentences_for_a_table():
    assert len({row.name for row in SCENARIOS}) == len(SCENARIOS)
    for row in SCENARIOS:
        for text in (row.name, row.expected, row.what):
            assert text and "|" not in text and "\n" not in text and not text.endswith(".")
        assert row.sampled is None or 0 < row.sampled <= (row.full or row.sampled)
