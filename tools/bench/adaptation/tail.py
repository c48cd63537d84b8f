"""The suite `tail`: how the slowest calls of a program drift under a changing load.

A script changes the load of ten windows: processes that only compute are started and ended, and
memory is said to be short for a while. Two programs of the same code are called in turn in each
window, one as its owner left it, one with a selector among its modes and the same code on one
thread. `drift` is the 99th percentile of the last window over that of the first.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from pyc_mlir import compile
from pyc_mlir.measure.records import Record, record
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program
from pyc_mlir.runtime.selection.selector import Selector
from pyc_mlir.service.targets import quantile
from pyc_mlir.tools.bench.report.suite import note, parse
from pyc_mlir.tools.cli.common import Parser

SUITE = "tail"
ROUNDS = 2
# Of each window: processes that compute beside, and whether memory is short.
SCRIPT = ((0, False), (0, False), (1, False), (2, False), (2, True)) + ((4, False),) * 5
PLAIN, ADAPTED = "owner's plan", "selector"
_WIDTH, _ROWS = 128, 32


def _program(device: Device) -> Program:
    """Four chains of products side by side, which a plan may overlap on two threads."""
    draws = np.random.default_rng(0)
    weights = [draws.normal(size=(_WIDTH, _WIDTH)).astype(np.float32) / 16 for _ in range(4)]

    def chains(x: Any) -> Any:
        return sum(np.tanh(np.tanh(x @ w) @ w.T) @ w for w in weights)

    x = np.ones((_ROWS, _WIDTH), np.float32)
    modes: dict[str, Any] = {"planner_mode": "latency_first", "also_modes": ["memory_first"]}
    return compile(chains, [x], device=device, cache=False, **modes)


def _window(programs: dict[str, Program], x: Any, seconds: float) -> dict[str, list[float]]:
    """Call the programs in turn for so long; return the seconds of each one's calls, sorted."""
    found: dict[str, list[float]] = {name: [] for name in programs}
    end = perf_counter() + seconds
    while perf_counter() < end:
        for name, program in programs.items():
            began = perf_counter()
            program(x)
            found[name].append(perf_counter() - began)
    return {name: sorted(times) for name, times in found.items()}


def measure(seconds: float) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Run the script once; return each program's percentile by window, and the calls by arm."""
    device, tight = Device("local-task", threads=2), [False]
    made = _program(device)
    programs = {name: Program(made.artifact, device) for name in (PLAIN, ADAPTED)}
    one = Program(made.artifact, Device("local-sync"))
    selector = Selector(pressure=lambda: tight[0])
    programs[ADAPTED].adapt(selector, builds={"one thread": one})
    x = to_device(np.ones((_ROWS, _WIDTH), np.float32), device)
    _window(programs, x, seconds / 2)
    tails: dict[str, list[float]] = {name: [] for name in programs}
    hogs: list[subprocess.Popen[bytes]] = []
    try:
        for count, tight[0] in SCRIPT:
            while len(hogs) < count:
                hogs.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            while len(hogs) > count:
                hogs.pop().kill()
            for name, times in _window(programs, x, seconds).items():
                tails[name].append(quantile(times, 0.99))
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()
    (route,) = programs[ADAPTED].stats().routes
    for event in selector.events():
        note(str(event))
    return tails, dict(route.calls)


def run(arguments: Sequence[str]) -> int:
    """Measure the drift of the slowest calls under a changing load, with a selector and without."""
    parser = Parser(SUITE)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each of the ten windows")
    bench, known = parse(SUITE, run.__doc__ or "", ROUNDS, arguments, parser)
    return _run(bench, known)


def _run(bench: Any, known: argparse.Namespace) -> int:
    title, found = "four chains of products, load made by a script", list[Record]()
    drifts: dict[str, list[float]] = {PLAIN: [], ADAPTED: []}
    for number in range(1 if bench.quick else bench.rounds):
        tails, calls = measure(0.5 if bench.quick else known.seconds)
        for name, seconds in tails.items():
            drifts[name].append(seconds[-1] / seconds[0])
            shown = ", ".join(f"{s * 1e6:.0f}" for s in seconds)
            note(f"run {number + 1}, {name}: drift {drifts[name][-1]:.2f}; us by window: {shown}")
            for place, metric in ((0, "p99 of the first window"), (-1, "p99 of the last window")):
                found.append(record(title, name, metric, "s", seconds[place]))
        note(f"run {number + 1}: calls by arm {calls}")
    for name, values in drifts.items():
        found.append(record(title, name, "drift", "x", float(np.median(values))))
    bench.store(found, device="local-task, 2 threads", windows=len(SCRIPT), seconds=known.seconds)
    return 0
