"""The suite `iopddl`: selection under a limit of memory, on instances of a public contest.

    pyc-bench iopddl FOLDER                      every *.json or *.json.gz of a folder, or one file
    pyc-bench iopddl FOLDER --share 0.1          a tenth of the work

An instance may have so much work as its timeout in `best_known.csv` beside it, at `--share`
microseconds of work a microsecond; CPU seconds are reported with it. Points are the best known cost
over one's own, as in the contest; an instance without a choice below the limit has none.

Source: the ASPLOS / EuroSys 2025 contest on intra-operator parallelism (google/iopddl).
"""

import csv
import gzip
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.memory.selection.problem import Edge, SelectionProblem
from pyc_mlir.pipelines.memory.selection.select import select
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, option, suite

COST, POINTS, CPU, INFEASIBLE = "cost", "points", "CPU time", "infeasible"
_TIMEOUT, _SHARE, _QUICK = 60.0, 0.25, 1e-3
_MICRO = 1e6


@dataclass(frozen=True)
class KnownBest:
    """The known facts of an instance: the seconds that it may take, the contest's best cost."""

    timeout: float = _TIMEOUT
    best: float | None = None


@suite(
    "iopddl",
    1,
    option("path", type=Path, metavar="PATH", help="a folder of instances, or one"),
    option("--share", type=float, default=_SHARE,
           help=f"the share of the timeout to use; default: {_SHARE}"),
)  # fmt: skip
def run(bench: SuiteRun) -> Iterator[Record]:
    """Measure cost and points of selections under a memory limit, on a public contest."""
    bench.settings["share"] = share = bench.options.share
    for path in instances(bench.options.path):
        published = best_known(path.parent).get(name_of(path), KnownBest())
        for row in measured(path, published, share * (_QUICK if bench.quick else 1.0)):
            bench.failed |= row["metric"] == INFEASIBLE
            yield row


def instances(path: Path) -> list[Path]:
    """Return the instances at a path, by size. Raises PycError (FILE_ACCESS) if there are none."""
    found = [path] if path.is_file() else [*path.glob("*.json.gz"), *path.glob("*.json")]
    if not found:
        raise PycError(
            ReasonCode.FILE_ACCESS,
            f"{path}: expected instances, *.json or *.json.gz, got none; download some from "
            "the contest's repository",
        )
    return sorted(found, key=lambda p: (p.stat().st_size, p.name))


def name_of(path: Path) -> str:
    """Return the name of an instance: ``B`` of ``asplos-2025-iopddl-B.json.gz``."""
    return path.name.partition(".")[0].rpartition("-")[2]


def best_known(folder: Path) -> Mapping[str, KnownBest]:
    """Read the rows of a folder's `best_known.csv` by instance; none without such a file."""
    path = folder / "best_known.csv"
    if not path.exists():
        return {}
    rows = csv.DictReader(read_file(path, "known costs").decode().splitlines())
    return {
        row["instance"]: KnownBest(float(row["timeout_seconds"]), float(row["best_contest"]))
        for row in rows
        if row["best_contest"]
    }


def from_contest(data: bytes) -> SelectionProblem:
    """Read an instance of the contest, JSON. Raises PycError (BAD_ARGUMENT) for another text.

    Source: google/iopddl, "ASPLOS / EuroSys 2025 contest on intra-operator parallelism".
    """
    try:
        told = json.loads(data)["problem"]
        nodes, edges = told["nodes"], told["edges"]
        costs = [np.asarray(c, np.float64) for c in nodes["costs"]]
        usages = [np.asarray(u, np.float64) for u in nodes["usages"]]
        lives = np.asarray(nodes["intervals"], np.int64).reshape(-1, 2)
        made = [
            Edge(a, b, np.asarray(t, np.float64).reshape(len(costs[a]), len(costs[b])))
            for (a, b), t in zip(edges["nodes"], edges["costs"], strict=True)
        ]
        return SelectionProblem(costs, usages, lives, made, float(told["usage_limit"]))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"contest instance: expected JSON with nodes, edges and a usage limit, got {error!r}",
        ) from None


def measured(path: Path, known: KnownBest, share: float) -> Iterator[Record]:
    """Yield the records of one instance."""
    name, data = name_of(path), read_file(path, "an instance")
    begin = time.process_time()
    problem = from_contest(gzip.decompress(data) if path.suffix == ".gz" else data)
    size = {"nodes": len(problem.costs), "edges": len(problem.edges)}
    try:
        found = select(problem, int(known.timeout * share * _MICRO))
    except PycError as error:
        note(f"{name}: {error.message}")
        yield record(name, "pyc", INFEASIBLE, "instances", 1, **size)
        return
    seconds = time.process_time() - begin
    facts = {**size, "groups": found.groups, "bound": found.bound, "work": found.work}
    yield record(name, "pyc", COST, "units", found.cost, **facts)
    if known.best is not None:
        yield record(name, "pyc", POINTS, "points", known.best / found.cost)
    yield record(name, "pyc", CPU, "s", seconds, timeout=known.timeout)
    note(f"{name}: cost {found.cost:.0f} in {seconds:.1f} s of CPU time")
