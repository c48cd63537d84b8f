"""What all tests share: how much of a long table runs, what is made once, what a rerun skips.

`PYC_FULL=1` (set by `make test-full`) runs every case, and as many random ones as a slice has time
for; `--all-cases` runs every case. Otherwise long tables are sampled with a fixed seed, so that two
runs test the same. But in a full run IREE generates code once for equal modules
(support/remembered.py; tests marked `generates_anew` have it generated each time). `--outcomes` is
how test/full.py learns what a slice came to.
"""

import fcntl
import gc
import json
import os
import random
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")
BUILD = Path(__file__).resolve().parents[2] / "build"
FULL = os.environ.get("PYC_FULL") == "1"
# Tables are cut while tests are collected, by workers too, which have no such option of their own.
if "--all-cases" in sys.argv:
    os.environ["PYC_ALL_CASES"] = "1"
ALL_CASES = FULL or os.environ.get("PYC_ALL_CASES") == "1"
# Tests compile what they test, here and in child processes; those of the cache have folders.
os.environ["PYC_CACHE"] = "0"
# Tests compare what they compile on their own; those of the self-check have it on.
os.environ.setdefault("PYC_CHECK", "0")
os.environ["PYC_VERIFY_IR"] = "1"
# Where Python is told to leave no bytecode beside sources, it keeps it in the build folder: each
# of the many child processes would compile hundreds of modules again.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(BUILD / "pycache")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
# Files that take longest, the longest first: begun last, one would run alone at the end.
LONG_FILES = (
    "test_op_numerics",
    "test_special_values",
    "test_bench_suites",
    "test_contract_check",
    "test_families",
    "test_reasons",
    "test_bench_memory",
    "test_wrong_use",
    "test_conv_programs",
    "test_worker",
    "test_donation",
    "test_hostile_models",
    "test_co_selection",
    "test_iree_parse",
    "test_bisect",
    "test_cli_compile",
    "test_arena",
    "test_cache_compile",
    "test_bench_latency",
    "test_products",
)

settings.register_profile("fast", max_examples=25, derandomize=True, deadline=None, database=None)
settings.register_profile("full", parent=settings.get_profile("fast"), max_examples=500)
settings.load_profile("full" if FULL else "fast")


def sample(items: Sequence[T], n: int, seed: int = 0) -> list[T]:
    """All `items`, or in a sampled run `n` of them, in their order, the same ones every time."""
    if ALL_CASES or len(items) <= n:
        return list(items)
    chosen = random.Random(seed).sample(range(len(items)), n)
    return [items[i] for i in sorted(chosen)]


def rounds(sampled: int, full: int) -> int:
    """How often a test does something; docs/scenarios.md names the number of a full run."""
    return full if FULL else sampled


def kept(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests of a sampled run: none marked `full`, `n` cases of those `sampled(n)`."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    chosen: set[pytest.Item] = set()
    for own in cases.values():
        if own[0].get_closest_marker("full") is None:
            mark = own[0].get_closest_marker("sampled")
            chosen |= set(own if mark is None else sample(own, mark.args[0]))
    return [item for item in items if item in chosen]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--outcomes", type=Path, help="JSON of all outcomes; see test/full.py")
    parser.addoption("--all-cases", action="store_true", help="run what is sampled or left out")
    parser.addoption("--part", help="K/N: run each N-th test only, from the K-th on (1 to N)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "generates_anew: IREE generates all code of these tests")
    config.addinivalue_line("markers", "alone: nothing else of this run computes beside the test")
    config.addinivalue_line("markers", "full: runs in `make test-full` only")
    config.addinivalue_line("markers", "sampled(n): `make test` runs n of the cases")
    path = config.getoption("outcomes")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Outcomes(path), "pyc-outcomes")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = items if ALL_CASES else kept(items)
    if part := config.getoption("part"):
        number, parts = map(int, part.split("/"))
        chosen = chosen[number - 1 :: parts]
    config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
    place = {name: i for i, name in enumerate(LONG_FILES)}
    items[:] = chosen
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place.get(item.path.stem, len(place)))


def pytest_collection_finish() -> None:
    """What is loaded by now stays: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let Python free all at its end, or the bindings of IREE and MLIR report it as leaked."""
    gc.unfreeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test marked `alone` while no other worker of this checkout runs one."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return (yield)
    mode = fcntl.LOCK_SH if item.get_closest_marker("alone") is None else fcntl.LOCK_EX
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "tests-gate").open("w") as gate, (BUILD / "tests-room").open("w") as room:
        # Who waits for the room keeps the gate: nobody else goes in before.
        fcntl.flock(gate, mode)
        fcntl.flock(room, mode)
        fcntl.flock(gate, fcntl.LOCK_UN)
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Once the compiler is loaded, have it remember code or not, as the test needs."""
    if "pyc_mlir.iree.compiler" in sys.modules and not FULL:
        from remembered import remember

        remember(item.get_closest_marker("generates_anew") is None)


class Outcomes:
    """Writes outcome, seconds, counts and reason of each test to a JSON file, by the test's id.

    `counts` is what the test counted by `record_property(name, {outcome: number})`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self.rows.setdefault(report.nodeid, {"outcome": "passed", "seconds": 0.0})
        row["seconds"] += report.duration
        if report.when == "call" and report.user_properties:
            row["counts"] = dict(report.user_properties)
        if report.outcome != "passed" and row["outcome"] != "failed":
            row["outcome"] = report.outcome
        if report.skipped and isinstance(report.longrepr, tuple):
            row["reason"] = report.longrepr[2]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that cannot be imported is a failure too."""
        if report.failed:
            self.rows[report.nodeid] = {"outcome": "failed", "seconds": 0.0}

    def pytest_sessionfinish(self) -> None:
        self.path.write_text(json.dumps(self.rows))


@pytest.fixture(autouse=True, scope="module")
def no_open_gpu() -> Iterator[None]:
    """A file of tests leaves no GPU open: on a software driver its threads would poll ever after,
    and make every later test of the process slow."""
    yield
    device = sys.modules.get("pyc_mlir.runtime.device")
    if device is not None:
        gc.collect()
        left = [one for one in list(device._DEVICES) if not one.is_cpu]
        assert not left, f"expected no open GPU after these tests, got {left}"
