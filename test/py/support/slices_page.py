"""docs/results/tests.md: the slices of the full test run, their last runs and counts."""

from slices import LIMIT_SECONDS, SLICES, Slice, last_run, value

from pyc_mlir.tools.docs import gen_docs

_HEAD = """\
# Results: the tests at full counts

`make test-full SLICE=name` runs a slice, `make test-full LIST=1` lists them, and
`make test-full CHANGED=1` runs those whose tests or sources have changed since their last run. Each
is to end within {minutes} minutes on two cores.

| slice | tests | last run | commit | CPU | passed | failed | skipped | minutes |
|---|---|---|---|---|---|---|---|---|
"""


def page() -> str:
    """Return the whole page."""
    text = _HEAD.format(minutes=LIMIT_SECONDS // 60) + "\n".join(map(_row, SLICES)) + "\n"
    return text + "".join(map(_counts, SLICES))


def _row(one: Slice) -> str:
    tests = " ".join(f"`{test.removeprefix('../')}`" for test in one.tests)
    if one.part:
        tests += " (part {} of {})".format(*one.part)
    report = last_run(one)
    if report is None:
        return f"| {one.name} | {tests} | never ran |{' |' * 6}"
    counts = [f"{value(report, m):.0f}" for m in ("passed", "failed", "skipped")]
    commit = (report.environment.commit or "")[:7]
    cells = [one.name, tests, report.settings["date"], commit, report.environment.cpu, *counts]
    return f"| {' | '.join(cells)} | {value(report, 'time') / 60:.1f} |"


def _counts(one: Slice) -> str:
    """Return what failed and what the tests of a slice counted; nothing if neither."""
    report = last_run(one)
    if report is None:
        return ""
    failed = [f"| failed | {name} | |" for name in report.settings["failed"]]
    rows = [
        f"| {r['workload']} | {r['metric']} | {r['value']:,} {r['unit']} |"
        for r in report.records
        if r["workload"] != "tests"
    ]
    if not failed + rows:
        return ""
    head = f"\n## {one.name}\n\n| counted | as | number |\n|---|---|---|\n"
    return head + "\n".join(failed + rows) + "\n"


PAGES: gen_docs.Pages = {"results/tests.md": page}
