"""What all tests share: how much of a long table runs, what is made once, what a rerun skips.

`PYC_FULL=1` (set by `make test-full`) runs every case; otherwise long tables are sampled with a
fixed seed, so that two runs test the same, and IREE generates code once for equal modules
(support/remembered.py; tests marked `generates_anew` have it generated each time). `--done FILE`
is how test/full.py goes on where it stopped: tests that the file records as passed are left out,
the others are appended.
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
# Tests compare what they compile on their own; those of the self-check have it on.
os.environ.setdefault("PYC_CHECK", "0")
# Where Python is told to leave no bytecode beside sources, it keeps it in the build folder: each
# of the many child processes would compile hundreds of modules again.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).resolve().parents[2] / "build" / "pycache")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
# Files that take longest, the longest first: begun last, one would run alone at the end.
LONG_FILES = (
    "test_op_numerics",
    "test_worker",
    "test_memory_budget",
    "test_memory_ranges",
    "test_tutorial",
    "test_compile_memory",
    "test_special_values",
    "test_conv_programs",
    "test_cache_compile",
    "test_bench_suites",
    "test_mutated_models",
    "test_bisect",
    "test_reasons",
    "test_properties",
    "test_stream_adapter",
    "test_replay",
    "test_stream_alias",
    "test_first_answers",
    "test_families",
    "test_explore_compile",
    "test_bench_memory",
)

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
    config.addinivalue_line("markers", "generates_anew: IREE generates all code of these tests")
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
    if worker:
        place = {name: i for i, name in enumerate(LONG_FILES)}
        items.sort(key=lambda item: place.get(item.path.stem, len(place)))


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Once the compiler is loaded, have it remember code or not, as the test needs."""
    if "pyc_mlir.iree.compiler" in sys.modules and not FULL:
        from remembered import remember

        remember(item.get_closest_marker("generates_anew") is None)


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
