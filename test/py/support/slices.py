"""The slices of the full test run: each ends within 20 minutes on two cores.

A change runs the slices whose tests or sources it touches (`make test-full CHANGED=1`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pyc_mlir.measure.records import Report

ROOT = Path(__file__).resolve().parents[3]
TESTS = ROOT / "test" / "py"
STORED = ROOT / "docs" / "results" / "tests"
LIMIT_SECONDS = 20 * 60


@dataclass(frozen=True)
class Slice:
    """A part of the tests.

    tests: folders and files below test/py/, `../lit`, `../users` or `../mutants`. sources: the
    folders and files, from the root, whose changes it is for. part: (K, N) takes each N-th test of
    them, from the K-th on. dist: how pytest-xdist deals tests out: `loadfile`, or `load` where few
    files have most of the work.
    """

    name: str
    tests: tuple[str, ...]
    sources: tuple[str, ...]
    part: tuple[int, int] | None = None
    dist: str = "loadfile"


_KERNELS, _ROBUST = "pipelines/kernels", "robustness"
_HOUSE = ("artifact", "lab", "lint", "measure", "profile", "worker")
_ALL = ("dialects", "pipelines", "pyc_mlir")

LIT = Slice("lit", ("../lit",), ("dialects", "pipelines", "tools/pyc_opt.py"))
# The ways of new users on a bare clone: a script of its own.
FIRST_HOUR = Slice("first-hour", ("../users",), (*_ALL, "tools", "pyproject.toml"))
# Mutants of the compiler's own code: a script of its own, which also makes the map of the tests.
MUTANTS = tuple(
    Slice(f"mutants-{k}", ("../mutants",), ("dialects", "pipelines"), (k, 3)) for k in (1, 2, 3)
)
SLICES: tuple[Slice, ...] = (
    Slice("dialects", ("dialects",), ("dialects", "pipelines/linalg")),
    Slice("frontends", ("frontends",), ("dialects", "pyc_mlir/frontends")),
    Slice("pyc", ("pipelines/pyc",), ("dialects", "pipelines/pyc"), dist="load"),
    Slice("linalg", ("pipelines/linalg",), ("dialects", "pipelines/linalg")),
    Slice("memory", ("pipelines/memory",), ("pipelines/memory", "pyc_mlir/iree"), dist="load"),
    Slice("pipelines", ("pipelines",), ("dialects", "pipelines")),
    Slice("kernels", (_KERNELS,), (_KERNELS, "pyc_mlir/iree")),
    Slice("families-1", (f"{_KERNELS}/test_families.py",), (_KERNELS,), (1, 2), "load"),
    Slice("families-2", (f"{_KERNELS}/test_families.py",), (_KERNELS,), (2, 2), "load"),
    Slice("compilation", ("compilation", "debug", "iree"), _ALL),
    Slice("runtime", ("runtime",), ("pyc_mlir/runtime", "pyc_mlir/artifact", "pyc_mlir/iree")),
    Slice("tools", ("tools", "test_packaging.py"), ("tools", "pyproject.toml")),
    Slice("house", _HOUSE, tuple(f"pyc_mlir/{name}" for name in _HOUSE if name != "lint")),
    Slice("robustness", (_ROBUST,), _ALL),
    Slice("answers-1", (f"{_ROBUST}/test_first_answers.py",), _ALL, (1, 2), "load"),
    Slice("answers-2", (f"{_ROBUST}/test_first_answers.py",), _ALL, (2, 2), "load"),
    Slice("miscompiles", (f"{_ROBUST}/test_mutants.py",), ("dialects", "pyc_mlir"), dist="load"),
    Slice(
        "models",
        tuple(
            f"{_ROBUST}/test_{name}.py"
            for name in ("mutated_models", "hostile_models", "onnx_attributes")
        ),
        ("dialects", "pyc_mlir/frontends"),
        dist="load",
    ),
    Slice(
        "data",
        (f"{_ROBUST}/test_mutated_files.py",),
        ("pyc_mlir/artifact", "pipelines/choices"),
        dist="load",
    ),
    Slice("signals", (f"{_ROBUST}/test_signals.py",), ("tools", "pyc_mlir/worker")),
    Slice("leaks", (f"{_ROBUST}/test_compile_memory.py",), ("pyc_mlir", "pipelines"), dist="load"),
    Slice("frameworks", ("frameworks",), ("pyc_mlir",)),
    Slice("service", ("service", "serve"), ("pyc_mlir/service", "pyc_mlir/serve", "tools/bench")),
    Slice(
        "live",
        ("frameworks/test_live_page_and_metrics.py",),
        ("pyc_mlir/service", "pyc_mlir/serve"),
    ),
    Slice("opinfo", ("frameworks/test_opinfo_torch.py",), ("pyc_mlir/frontends",), dist="load"),
    LIT,
    FIRST_HOUR,
    *MUTANTS,
)


def test_files(one: Slice) -> list[Path]:
    """Return the files of a slice's tests, sorted: of a folder those that no other slice names."""
    named = {TESTS / t for s in SLICES for t in s.tests}
    found = {file for test in one.tests for file in _below(TESTS / test, named)}
    return sorted(found)


def _below(place: Path, named: set[Path]) -> Iterator[Path]:
    """Yield the test files of a place, less the places below it that slices name themselves."""
    for file in [place] if place.is_file() else place.rglob("test_*.py"):
        between = [file, *file.parents]
        if not named.intersection(between[: between.index(place)]):
            yield file


def missing() -> list[Path]:
    """Return the test files that no slice runs: empty unless a folder is new."""
    run = {file for one in SLICES for file in test_files(one)}
    return sorted(file for file in TESTS.rglob("test_*.py") if file not in run)


def last_run(one: Slice) -> Report | None:
    """Return the stored result of a slice. Raises PycError for a malformed one."""
    path = STORED / f"{one.name}.json"
    return Report.load(path) if path.is_file() else None


def value(report: Report, metric: str) -> float:
    """Return one metric of a slice's tests: passed, failed, skipped or time (seconds)."""
    rows = [r for r in report.records if r["workload"] == "tests" and r["metric"] == metric]
    return rows[0]["value"]


def state(report: Report) -> str:
    """Return when a slice last ran, and what it came to, in a line."""
    commit = (report.environment.commit or "no commit")[:7]
    counts = ", ".join(f"{value(report, m):.0f} {m}" for m in ("passed", "failed", "skipped"))
    minutes = value(report, "time") / 60
    return f"{report.settings['date']} at {commit}: {counts}, {minutes:.1f} min"
