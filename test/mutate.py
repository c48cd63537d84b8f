"""Mutate the compiler's own code, one place at a time, and run the nearest tests on each mutant.

    python test/mutate.py [--part K/N] [--count N] [--outcomes FILE] [--fresh] [PATH ...]

The mutants of pipelines/ and dialects/ are drawn with a fixed seed, as many of each kind; of PATHs
every one is run. A mutant is a change that one process imports (support/mutant_site); the checkout
stays as it is. Its nearest tests are those that call the function around it, by a coverage map of
`make test` that is made once for a commit: the mirrored folder's first, the quickest first. It is
killed if one of them fails, crashes or does not end. Survivors are listed; those of
support/equivalent_mutants.json compute the same and do not count. At most 15 % may survive.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "test" / "py"
SUPPORT = TESTS / "support"
sys.path.insert(0, str(SUPPORT))
from code_mutants import KINDS, Mutant, mutants_of  # noqa: E402  (the path is set above)
from covered import CoverageMap, merged  # noqa: E402

FOLDER = ROOT / "build" / "test-full" / "covered"
EQUIVALENT = SUPPORT / "equivalent_mutants.json"
# What was measured: another number is another measurement, no fault.
MEASURED = ("pipelines/target/cost_constants.py",)
COUNT, MOST_SURVIVORS = 240, 0.15
# Tests of a mutant: seconds that they took for the map, in the mirrored folder and elsewhere.
NEAR_SECONDS, FAR_SECONDS, MOST_TESTS = 8.0, 4.0, 120
# What a process may compute and wait, and hold; the machine may have much else to do.
CPU_SECONDS, WALL_SECONDS, DATA_BYTES = 90, 400, 8 << 30
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
LEFT_OUT = ("frameworks", "lint", "lab", "service", "serve", "tools")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a mutant: killed, by a test or otherwise; survived; equivalent; unseen.

    unseen: no test of the map calls the function, so that none was run.
    """

    mutant: Mutant
    what: str
    by: str
    seconds: float

    def row(self) -> dict[str, Any]:
        """The row of test/full.py; what survives is no failed test by itself."""
        outcome = "passed" if self.what in ("killed", "equivalent") else self.what
        counts = {f"mutants: {self.mutant.kind}": {self.what: 1}}
        return {"outcome": outcome, "seconds": self.seconds, "counts": counts, "by": self.by}


def every_mutant(paths: Sequence[str]) -> list[Mutant]:
    """Return the mutants of these files, or of all."""
    files = [ROOT / p for p in paths] or [
        file for folder in ("dialects", "pipelines") for file in (ROOT / folder).rglob("*.py")
    ]
    named = {str(file.relative_to(ROOT)): file for file in sorted(files)}
    texts = {p: f.read_text() for p, f in named.items() if p not in MEASURED}
    return [mutant for path, text in texts.items() for mutant in mutants_of(path, text)]


def drawn(every: Sequence[Mutant], count: int) -> list[Mutant]:
    """Return as many mutants of each kind, the same ones each time."""
    chosen: list[Mutant] = []
    for kind in KINDS:
        own = [m for m in every if m.kind == kind]
        chosen += random.Random(kind).sample(own, min(len(own), count // len(KINDS)))
    return random.Random(0).sample(chosen, len(chosen))


def coverage_map(fresh: bool, workers: int) -> CoverageMap:
    """Return which tests call which function; made again for another commit, if so wanted."""
    stamp = FOLDER / "commit"
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    if not stamp.is_file() or (fresh and stamp.read_text() != commit):
        for old in FOLDER.glob("*.json"):
            old.unlink()
        options = ["-p", "covered", f"--covered={FOLDER}", "-n", str(workers), "--dist", "loadfile"]
        options += [f"--ignore={TESTS / name}" for name in LEFT_OUT]
        subprocess.run([*PYTEST, *options], cwd=ROOT, env=_environment())
        stamp.write_text(commit)
    return merged(FOLDER.glob("*.json"))


def _environment(mutant: Mutant | None = None) -> dict[str, str]:
    paths = [str(SUPPORT)]
    env = {k: v for k, v in os.environ.items() if k not in ("PYC_FULL", "PYC_ALL_CASES")}
    if mutant is not None:
        paths.insert(0, str(SUPPORT / "mutant_site"))
        change = {"start": mutant.start, "end": mutant.end, "after": mutant.after}
        env["PYC_MUTANT"] = json.dumps({"file": str(ROOT / mutant.path), **change})
    return {**env, "PYTHONPATH": os.pathsep.join(paths)}


def nearest(mutant: Mutant, known: CoverageMap) -> list[str]:
    """Return the tests to run: of the mirrored folder first, the quickest first."""
    keys = [f"{mutant.path}:{line}" for line in mutant.functions]
    calling = next((known.tests[k] for k in keys if k in known.tests), [])
    if not mutant.functions:
        own = [tests for k, tests in known.tests.items() if k.startswith(f"{mutant.path}:")]
        calling = list(dict.fromkeys(t for tests in own for t in tests))
    chosen = []
    folders = (TESTS / parent for parent in Path(mutant.path).parents)
    mirrored = f"{next(f for f in folders if f.is_dir()).relative_to(ROOT)}/"
    for seconds, near in ((NEAR_SECONDS, True), (FAR_SECONDS, False)):
        own = [t for t in calling if t.startswith(mirrored) == near]
        for test in sorted(own, key=known.seconds.__getitem__)[: MOST_TESTS // 2]:
            seconds -= known.seconds[test]
            if seconds > 0 or not chosen:
                chosen.append(test)
    return chosen


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def ran(tests: Sequence[str], mutant: Mutant | None = None) -> str:
    """Run tests until one fails: '' if none does, else its id, or how the process ended."""
    with tempfile.TemporaryDirectory() as folder:
        outcomes = Path(folder, "outcomes.json")
        process = subprocess.Popen(
            [*PYTEST, "-x", f"--outcomes={outcomes}", *tests],
            cwd=ROOT,
            env=_environment(mutant),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_limit,
            start_new_session=True,
        )
        try:
            status = process.wait(WALL_SECONDS)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            # Also what tests have started and left.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if status == 0:
            return ""
        rows = json.loads(outcomes.read_text()) if outcomes.is_file() else {}
    failed = [test for test, row in rows.items() if row["outcome"] == "failed"]
    return failed[0] if failed else f"status {status}" if status is not None else "no end"


def outcome_of(mutant: Mutant, known: CoverageMap, equivalent: dict[str, str]) -> Outcome:
    """Run the nearest tests of a mutant."""
    if mutant.key in equivalent:
        return Outcome(mutant, "equivalent", equivalent[mutant.key], 0.0)
    tests = nearest(mutant, known)
    start = time.monotonic()
    by = ran(tests, mutant) if tests else ""
    what = "killed" if by else "survived" if tests else "unseen"
    found = Outcome(mutant, what, by, round(time.monotonic() - start, 1))
    print(f"{what:9} {found.seconds:6.1f} s {len(tests):3} tests  {mutant}  {by}", flush=True)
    return found


def without_false_kills(found: Sequence[Outcome]) -> list[Outcome]:
    """Take back the kills of tests that fail alone without a mutant too."""
    files = sorted({o.by for o in found if "::" in o.by})
    bad: set[str] = set()
    while files and (test := ran([t for t in files if t not in bad])):
        bad.add(test)
        if test not in files:
            sys.exit(f"the tests that killed mutants, run without one: {test}")
    return [
        Outcome(o.mutant, "survived", f"{o.by} fails without it", o.seconds) if o.by in bad else o
        for o in found
    ]


def rows_of(found: Sequence[Outcome]) -> dict[str, dict[str, Any]]:
    """Return a row for each mutant, and one for the share that survives."""
    counts = Counter(o.what for o in found)
    left = counts["survived"] + counts["unseen"]
    judged = counts["killed"] + left
    share = left / judged if judged else 0.0
    print(f"{dict(counts)}: {share:.1%} of those that are not equivalent survive", flush=True)
    verdict = "passed" if share <= MOST_SURVIVORS else "failed"
    rows = {f"mutants[{o.mutant}]": o.row() for o in found}
    return {**rows, "at most 15 % of mutants survive": {"outcome": verdict, "seconds": 0.0}}


def main() -> int:
    """Run a part of the mutants; 1 where more survive than may."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files to mutate at every place")
    parser.add_argument("--part", default="1/1", help="K/N: each N-th mutant, from the K-th on")
    parser.add_argument("--count", type=int, default=COUNT, help="mutants to draw (%(default)s)")
    parser.add_argument("--outcomes", type=Path, help="JSON of all outcomes; see test/full.py")
    parser.add_argument(
        "--fresh", action="store_true", help="map tests again if the commit changed"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes at once (%(default)s)")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    every = every_mutant(options.paths)
    chosen = every if options.paths else drawn(every, options.count)
    known = coverage_map(options.fresh, options.workers)
    equivalent = json.loads(EQUIVALENT.read_text()) if EQUIVALENT.is_file() else {}
    with ThreadPoolExecutor(options.workers) as pool:
        found = list(
            pool.map(lambda m: outcome_of(m, known, equivalent), chosen[part - 1 :: parts])
        )
    rows = rows_of(without_false_kills(found))
    if options.outcomes:
        options.outcomes.write_text(json.dumps(rows))
    return int(any(row["outcome"] == "failed" for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
