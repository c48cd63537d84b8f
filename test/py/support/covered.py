"""A pytest plugin: which functions of the compiler each passed test calls, and its seconds.

    PYTHONPATH=test/py/support pytest -p covered --covered=FOLDER ...

Each process of a run writes FOLDER/*.json; `merged` reads them all.
"""

import json
import os
from collections.abc import Generator, Iterable
from cProfile import Profile
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

import pytest

ROOT = Path(__file__).resolve().parents[3]
MEASURED = tuple(f"{ROOT / folder}{os.sep}" for folder in ("dialects", "pipelines"))


@dataclass(frozen=True)
class CoverageMap:
    """seconds: of each test, by its id. tests: ids by function, `path:first line` from the root."""

    seconds: dict[str, float]
    tests: dict[str, list[str]]


def merged(files: Iterable[Path]) -> CoverageMap:
    """Return what the processes of a run have written."""
    seconds: dict[str, float] = {}
    tests: dict[str, list[str]] = {}
    for file in sorted(files):
        for test, (taken, functions) in json.loads(file.read_text()).items():
            seconds[test] = taken
            for function in functions:
                tests.setdefault(function, []).append(test)
    return CoverageMap(seconds, tests)


class Calls:
    """Profiles each test on its thread: a profiler in C is quicker than to trace calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.profile = Profile(subcalls=False, builtins=False)
        self.rows: dict[str, tuple[float, list[str]]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self.profile.clear()
        self.profile.enable()
        try:
            return (yield)
        finally:
            self.profile.disable()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed and not hasattr(report, "node"):
            self.profile.disable()
            called = (entry.code for entry in self.profile.getstats())
            named = {
                f"{os.path.relpath(code.co_filename, ROOT)}:{code.co_firstlineno}"
                for code in called
                if isinstance(code, CodeType) and code.co_filename.startswith(MEASURED)
            }
            self.rows[report.nodeid] = (round(report.duration, 3), sorted(named))

    def pytest_sessionfinish(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{os.getpid()}.json").write_text(json.dumps(self.rows))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--covered", type=Path, help="folder for the functions that each test calls")


def pytest_configure(config: pytest.Config) -> None:
    folder = config.getoption("covered")
    if folder is not None:
        config.pluginmanager.register(Calls(folder), "pyc-covered")
