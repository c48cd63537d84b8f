"""What all tests share: how much of a long table runs, and what an interrupted full run skips.

`PYC_FULL=1` (set by `make test-full`) runs every case; otherwise long tables are sampled with a
fixed seed, so that two runs test the same. `--done FILE` is how test/full.py goes on where it
stopped: tests that the file records as passed are left out, the others are appended.
"""

import gc
import json
import os
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")
FULL = os.environ.get("PYC_FULL") == "1"
# Tests compile what they test, here and in child processes; those of the cache have folders.
os.environ["PYC_CACHE"] = "0"

settings.register_profile("fast", max_examples=25, derandomize=True, deadline=None, database=None)
settings.register_profile("full", parent=settings.get_profile("fast"), max_examples=500)
settings.load_profile("full" if FULL else "fast")


def sample(items: Sequence[T], n: int, seed: int = 0) -> list[T]:
    """All `items` in a full run, else `n` of them, in their order, the same ones every time."""
    if FULL or len(items) <= n:
        return list(items)
    chosen = random.Random(seed).sample(range(len(items)), n)
    return [items[i] for i in sorted(chosen)]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--done", type=Path, help="JSON lines of tests that ran; see test/full.py")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("done")
    if path is None or hasattr(config, "workerinput"):
        return
    recorder = DoneList(path)
    config.pluginmanager.register(recorder, "pyc-done-list")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node) -> None:
    """Give each xdist worker, also one started later, the list as it was when the run began."""
    recorder = node.config.pluginmanager.get_plugin("pyc-done-list")
    node.workerinput["done"] = sorted(recorder.passed) if recorder else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    recorder = config.pluginmanager.get_plugin("pyc-done-list")
    worker = getattr(config, "workerinput", {})
    done = set(worker.get("done", ())) or (recorder.passed if recorder else set())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = [item for item in items if item.nodeid not in done]


class DoneList:
    """Writes one line per finished test: `{"id", "outcome", "seconds"}`.

    `counts` is what the test counted by `record_property(name, {outcome: number})`.

    Failures of earlier runs are forgotten, so that they run again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        kept = [row for row in read_done(path).values() if row["outcome"] != "failed"]
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))
        self.passed = {row["id"] for row in kept}
        self.running: dict[str, dict] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self.running.setdefault(
            report.nodeid, {"id": report.nodeid, "outcome": "passed", "seconds": 0.0}
        )
        row["seconds"] += report.duration
        if report.when == "call" and report.user_properties:
            row["counts"] = dict(report.user_properties)
        if report.outcome != "passed" and row["outcome"] != "failed":
            row["outcome"] = report.outcome
        if report.skipped and isinstance(report.longrepr, tuple):
            row["reason"] = report.longrepr[2]
        # xdist reports a test that ended its process once, under a phase of its own.
        if report.when not in ("setup", "call"):
            self.write(self.running.pop(report.nodeid))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that cannot be imported is a failure too."""
        if report.failed:
            self.write({"id": report.nodeid, "outcome": "failed", "seconds": 0.0})

    def write(self, row: dict) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


def read_done(path: Path) -> dict[str, dict]:
    """The last line of each test in a done-list; a line cut off by a crash is ignored."""
    rows = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        rows[row["id"]] = row
    return rows


@pytest.fixture(autouse=True, scope="module")
def no_open_gpu() -> Iterator[None]:
    """A file of tests leaves no GPU open: on a software driver its threads would poll ever after,
    and make every later test of the process slow."""
    yield
    device = sys.modules.get("pyc_mlir.runtime.device")
    if device is not None:
        gc.collect()
        left = [one for one in device.open_devices() if not one.is_cpu]
        assert not left, f"expected no open GPU after these tests, got {left}"
