"""The table of scenarios is true: its tests exist, are run as often as it says, name its codes."""

import ast
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from conftest import FULL
from scenarios import SCENARIOS, Scenario
from scenarios_page import PAGES

from pyc_mlir.tools.docs import gen_docs

TESTS = Path(__file__).resolve().parents[1]
SUPPORT = TESTS / "support"
FILES = sorted({test.partition("::")[0] for row in SCENARIOS for test in row.tests})
COUNTED = [row for row in SCENARIOS if not row.each_case]


@cache
def collected(full: bool) -> Counter[str]:
    """How many cases each test has, by its id without parameters, in one of the two runs."""
    environment = {**os.environ, "PYC_FULL": "1" if full else "0"}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [*command, *FILES], cwd=TESTS, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout[-3000:]
    ids = [line for line in run.stdout.splitlines() if "::" in line]
    return Counter(line.partition("[")[0].rpartition("test/py/")[2] for line in ids)


@pytest.mark.parametrize("row", SCENARIOS, ids=lambda row: row.name)
def test_tests_exist_and_have_as_many_cases(row: Scenario):
    # Collecting takes 10 seconds of CPU time: only a full run looks at the counts of full runs.
    for full, count in ((False, row.seeded), (True, row.full))[: 2 if FULL else 1]:
        found = [collected(full)[test] for test in row.tests]
        assert all(found), f"not collected: {row.tests}"
        if row.each_case:
            assert sum(found) == count, "say so in scenarios.py, then `make docs`"


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


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
        assert 0 < row.seeded <= (row.full or row.seeded)


def test_the_page_is_current():
    docs = TESTS.parents[1] / "docs"
    assert gen_docs.stale(gen_docs.generate(docs, PAGES)) == [], "run `make docs`"
