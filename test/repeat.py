"""Repeat one test many times and store how often it passed in docs/results/repeated.json.

    python test/repeat.py FILE::NAME[PARAMETERS] [--times 500] [--each 25] [--address-space-gib 8]

The repetitions run in processes of `--each`, one after the other, under Python's fault handler,
with core files and a limit of address space. It is for a test that once ended its process: the
first process that ends by a signal stops the run, and its output names the Python frames.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Report, record

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "test" / "py"


class Repeat:
    """A pytest plugin: keeps one test, `times` times, and counts the outcomes."""

    def __init__(self, name: str, times: int) -> None:
        self.name, self.times = name, times
        self.outcomes: Counter[str] = Counter()

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Give each test a parameter that counts."""
        metafunc.fixturenames.append("repetition")
        metafunc.parametrize("repetition", range(self.times))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave out the other tests; an id begins with the counting parameter."""
        base, _, parameters = self.name.removesuffix("]").partition("[")
        wanted = {
            f"{base}[{'-'.join(filter(None, (str(i), parameters)))}]" for i in range(self.times)
        }
        items[:] = [item for item in items if item.name in wanted]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count calls, and what fails outside of them."""
        if report.when == "call" or report.failed:
            self.outcomes[report.outcome] += 1


def repeat_here(test: str, times: int) -> int:
    """Run the test in this process; 0 only if it passed every time."""
    path, _, name = test.partition("::")
    plugin = Repeat(name, times)
    base = name.partition("[")[0]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={ROOT}"]
    status = pytest.main([*options, f"{TESTS / path}::{base}"], plugins=[plugin])
    return int(status != 0 or plugin.outcomes["passed"] != times)


def main() -> int:
    """Run all processes, store the counts; 1 if a repetition failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("test", help="below test/py, as pytest names it")
    parser.add_argument("--times", type=int, default=500)
    parser.add_argument("--each", type=int, default=25)
    parser.add_argument("--address-space-gib", type=int, default=8)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    requested = parser.parse_args()
    if requested.here:
        return repeat_here(requested.test, requested.each)
    passed = processes = status = 0
    folder = tempfile.mkdtemp(prefix="repeat-")
    while passed < requested.times and not status:
        status = subprocess.run(
            [sys.executable, "-X", "faulthandler", __file__, requested.test,
             f"--each={requested.each}", "--here"],
            cwd=folder, preexec_fn=lambda: limit(requested.address_space_gib),
            env={**os.environ, "PYC_FULL": "1", "PYC_CACHE": "0"},
        ).returncode  # fmt: skip
        processes += 1
        passed += 0 if status else requested.each
    if status:
        print(f"core files, if any, are in {folder}")
    else:
        shutil.rmtree(folder)
    settings = {
        "address_space_gib": requested.address_space_gib,
        "repetitions_a_process": requested.each,
        "last_status": status,
    }
    records = [
        record(requested.test, "pyc", "passed", "repetitions", passed),
        record(requested.test, "pyc", "processes", "processes", processes),
    ]
    Report("repeated", probe(), settings, records).save(ROOT / "docs" / "results" / "repeated.json")
    return int(status != 0)


def limit(gib: int) -> None:
    """Core files of any size, and that much address space."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    resource.setrlimit(resource.RLIMIT_AS, (gib << 30, gib << 30))


if __name__ == "__main__":
    sys.exit(main())
