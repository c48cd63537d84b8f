"""The suite `selector`: policies on public spaces of plans, under measured noise.

Arms are plans of database queries (`plans/*.npz`: seconds of queries under hint sets, the first is
the default) and PyC's own kernels under other knobs (`autotuning/pyc_knobs.json.gz`); noise is that
of a PyC program (`noise/pyc_*_loaded.npz`, on the wall and on the thread's clock) or one percent.
Each row is the mean over problems; nothing is measured but the cost of a call of the selector.
"""

import gzip
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from time import thread_time

import numpy as np

from pyc_mlir.api import compile
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.records import Record, record
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program
from pyc_mlir.runtime.selection.engine import Paired, Policy, Thompson, Trial, Ucb
from pyc_mlir.runtime.selection.selector import MOST_ROWS, Selector, replay
from pyc_mlir.tools.bench.report.suite import SuiteRun, note, option, suite

CALLS, SOON, FIRST = 4000, 600, 200
_ARMS, _TIMED = 5, 200_000
POLICIES: tuple[Policy, ...] = (Paired(), Thompson(), Ucb())
Noise = Callable[[int], float]
# Seconds of the arms, and what is expected of them.
Problem = tuple[np.ndarray, tuple[float, ...]]


def simulate(
    policy: Policy,
    arms: Sequence[float],
    calls: int,
    noise: Noise,
    seed: int = 0,
    expected: Sequence[float] = (),
) -> tuple[np.ndarray, np.ndarray]:
    """Return the arm and the incumbent of each call."""
    bandit = policy.start(len(arms), random.Random(seed), expected)
    pulls, incumbents = [], []
    trial, left = Trial(0), 0
    for number in range(calls):
        if left:
            left -= 1
        else:
            trial = bandit.ask()
            left = trial.repeat
            if trial.timed:
                bandit.tell(trial, arms[trial.arm] * noise(number))
        pulls.append(trial.arm)
        incumbents.append(bandit.incumbent)
    return np.array(pulls), np.array(incumbents)


def quiet(draws: np.random.Generator) -> Noise:
    """Return noise of one percent."""
    made = np.exp(draws.normal(0, 0.01, CALLS))
    return lambda number: float(made[number % len(made)])


def loaded(folder: Path, clock: int) -> Callable[[np.random.Generator], Noise]:
    """Return the noise of a loaded machine: 0 on the wall, 1 on the thread's clock."""
    with np.load(folder / "noise/pyc_gemm_loaded.npz", allow_pickle=False) as file:
        series = file["A"][..., clock].ravel()
    factors = series / np.median(series)

    def start(draws: np.random.Generator) -> Noise:
        first = int(draws.integers(len(factors)))
        return lambda number: float(factors[(first + number) % len(factors)])

    return start


def queries(folder: Path, count: int, predicted: bool) -> Iterator[Problem]:
    """Yield the seconds of plans of a query, the default's first.

    predicted: with the mean ratio to the default's that the same hints have on all other queries.
    """
    with np.load(folder / "plans/job.npz", allow_pickle=False) as file:
        table = file["seconds"]
    known = np.isfinite(table) & (table > 0)
    logs = np.log(np.where(known & known[:, :1], table, np.nan) / table[:, :1])
    draws = np.random.default_rng(1)
    for _ in range(count):
        query = draws.integers(len(table))
        plans = np.flatnonzero(known[query])
        picked = plans[[0, *(1 + draws.choice(len(plans) - 1, _ARMS - 1, replace=False))]]
        others = np.nanmean(np.delete(logs, query, axis=0)[:, picked], axis=0)
        yield table[query][picked], tuple(np.exp(others)) if predicted else ()


def kernels(folder: Path, count: int) -> Iterator[Problem]:
    """Yield the seconds of a kernel under the shipped knobs and under others."""
    text = gzip.decompress((folder / "autotuning/pyc_knobs.json.gz").read_bytes())
    found = [np.array([np.median(s) for s in k["samples"]]) for k in json.loads(text)]
    draws = np.random.default_rng(2)
    for _ in range(count):
        row = found[int(draws.integers(len(found)))]
        yield row[[0, *(1 + draws.choice(len(row) - 1, _ARMS - 1, replace=False))]], (1.0,) * _ARMS


def _scored(arms: np.ndarray, pulls: np.ndarray, incumbents: np.ndarray) -> dict[str, float]:
    """Return the figures of one problem, without the noise, which all arms have alike."""
    owner, best = arms[0], arms.min()
    seconds, serving = arms[pulls], arms[incumbents]
    soon = serving[:SOON][-1]
    return {
        f"within 5 % of the best after {SOON} calls": float(soon <= 1.05 * best),
        f"within 5 % of the best after {CALLS} calls": float(serving[-1] <= 1.05 * best),
        f"first {FIRST} calls / owner's plan": float(seconds[:FIRST].mean() / owner),
        "calls above twice the owner's": float((seconds > 2 * owner).mean()),
        "regret: all calls / oracle": float(seconds.mean() / best),
    }


def _overhead() -> Record:
    """Measure what a call pays: mostly a count, now and then a pull and what it is told."""
    selector = Selector(load=lambda: 0.0, clock=lambda: 0.0)
    route = selector.route("bench", ["a", "b", "c"])
    began = thread_time()
    for _ in range(_TIMED):
        pull = route.next()
        if pull.timed:
            selector.observe(route, pull, 1e-3 * (1 + 0.1 * pull.arm))
    seconds = (thread_time() - began) / _TIMED
    note(f"{seconds * 1e6:.3f} us a call")
    return record("a call of the selector", "paired", "time", "s", seconds)


def _soak(calls: int, folder: Path) -> list[Record]:
    """Call a program with two plans and a second build under a selector, with a database.

    Every answer is compared. Resident memory is that of the run whose log is bounded; a second run
    keeps its whole log, which is replayed.
    """
    from pyc_mlir.lab.evidence.database.store import EvidenceStore
    from pyc_mlir.lab.lanes.observer import ServiceLanes

    device, weight = Device("local-sync"), np.ones((64, 48), np.float32) / 8
    x = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    source = compile(
        lambda a: np.tanh(a @ weight) @ weight.T,
        [x],
        device=device,
        also_modes=["memory_first"],
        cache=False,
    )
    want, placed = source(x).tobytes(), to_device(x, device)
    wrong, warm, grown = 0, 0, 0.0
    for log in ("", "log.jsonl"):
        program = Program(source.artifact, device)
        with EvidenceStore.open(f"sqlite:///{folder}/pyc{log}.db") as store:
            lanes = ServiceLanes(store, program)
            learning = Selector(observer=lanes, most_rows=calls if log else MOST_ROWS)
            second = Program(source.artifact, Device("local-sync"))
            program.adapt(learning, builds={"second": second})
            for number in range(calls):
                wrong += program(placed).numpy().tobytes() != want
                if number == calls // 5:
                    warm = _resident()
            grown = grown or _resident() / warm
            lanes.close()
            rows, problems = store.counts()["feedback"], len(lanes.problems)
    learning.export(folder / "log.jsonl")
    same = replay(folder / "log.jsonl") == learning.events()
    events = len(learning.events())
    note(f"{calls} calls: {wrong} wrong, memory {grown:.4f} of that after warm-up")
    note(f"{events} events, replayed {same}; {rows} windows, {problems} refused by the database")
    title = f"{calls} calls of a program with two plans and two builds"
    return [
        record(title, "paired", "resident memory, end / after a fifth", "x", grown),
        record(title, "paired", "wrong answers of all, two runs", "answers", wrong),
        record(title, "paired", "whole logs replayed with the same events", "logs", float(same)),
        record(title, "paired", "events in the log", "events", float(events)),
        record(title, "paired", "windows in the database", "rows", float(rows)),
    ]


def _resident() -> int:
    """Return the bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@suite(
    "selector",
    60,
    option("--data", type=Path, required=True, help="the folder with noise/, plans/"),
    option("--calls", type=int, default=1_000_000, help="calls of the soak"),
)
def run(bench: SuiteRun) -> Iterator[Record]:
    """Compare the selector's policies on public plans and measured noise."""
    known, bench.settings["arms"], bench.settings["calls"] = bench.options, _ARMS, CALLS
    try:
        noises = {
            "quiet": quiet,
            "loaded, thread's clock": loaded(known.data, 1),
            "loaded, wall": loaded(known.data, 0),
        }
        spaces = {
            "plans of queries": list(queries(known.data, bench.rounds, False)),
            "plans of queries, predicted": list(queries(known.data, bench.rounds, True)),
            "knobs of kernels": list(kernels(known.data, bench.rounds)),
        }
    except (OSError, KeyError, ValueError) as error:
        raise PycError(
            ReasonCode.FILE_ACCESS,
            where=str(known.data),
            expected="noise/pyc_gemm_loaded.npz, plans/job.npz and autotuning/pyc_knobs.json.gz",
            got=str(error),
        ) from None
    for (space, problems), (name, noise) in product(spaces.items(), noises.items()):
        for policy in POLICIES:
            draws = np.random.default_rng(3)
            scores = [
                _scored(arms, *simulate(policy, list(arms), CALLS, noise(draws), seed, expected))
                for seed, (arms, expected) in enumerate(problems)
            ]
            for metric in scores[0]:
                mean = float(np.mean([s[metric] for s in scores]))
                unit = "%" if metric.startswith(("within", "calls")) else "x"
                value = 100 * mean if unit == "%" else mean
                yield record(f"{space}, {name}", policy.name, metric, unit, value)
        note(f"{space}, {name}")
    with TemporaryDirectory() as folder:
        yield from _soak(10_000 if bench.quick else known.calls, Path(folder))
    yield _overhead()
