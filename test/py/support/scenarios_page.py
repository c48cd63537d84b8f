"""docs/scenarios.md: the table of fault-injection tests."""

from scenarios import GROUPS, Scenario

from pyc_mlir.tools.docs import gen_docs

_HEAD = """\
# Fault-injection tests

Each row is a scenario of the suite in `test/py/robustness/`: what must come of it, its tests, and
how often `make test-full` does it; `make test` does a seeded sample, the same every time. The tests
take their counts from this table, or the full run compares their cases with it. Codes are those of
[errors](errors.md); what the suite assumes of an attacker stands in [security](security.md).
"""
_COLUMNS = """\
| scenario | must end in | proven by | `make test-full` |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for group, rows in GROUPS.items():
        parts += [f"## {group}\n\n{_COLUMNS}" + "\n".join(map(_line, rows)) + "\n"]
    return "\n".join(parts)


def _line(row: Scenario) -> str:
    codes = ", ".join(f"`{code.name}`" for code in row.codes)
    expected = f"{row.expected} ({codes})" if codes else row.expected
    tests = "<br>".join(map(_link, row.tests))
    full = "all" if row.full is None else _number(row.full, row.what)
    cells = (row.name, expected, tests, full)
    return f"| {' | '.join(cells)} |"


def _number(count: int, what: str) -> str:
    return f"{count:,} {what.removesuffix('s') if count == 1 and what == 'cases' else what}"


def _link(test: str) -> str:
    file, _, name = test.partition("::")
    return f"[`{name}`](../test/py/{file})"


PAGES: gen_docs.Pages = {"scenarios.md": page}
