"""The suites `zoo` and `dynamic-zoo`: real networks with random weights against this CPU's peers.

    pyc-bench zoo --threads 1,2 --batch 1,8
    pyc-bench zoo --models resnet18 --systems pyc,onnxruntime --threads 1 --batch 1 --rounds 5
    pyc-bench zoo --models quantized --threads 1 --batch 1 --json docs/results/quantized.json

Networks are those of `workloads/networks.py`, or by name of `workloads/quantized.py`, which torch
does not run, and whose errors end nothing. Models that are not in the folder yet are made there by
`workloads/export.py`, which needs torch and the packages of `pip install '.[zoo]'`. A row is one
network with one batch size and one number of threads: all systems are prepared in processes of
their own and then timed in interleaved rounds. It gives a record for each system, with the fields
of the suite `latency`, and

    network, batch          what ran; `workload` has both
    call_peak_bytes         as there: by IREE's allocator for `pyc` and `iree`; for `onnxruntime`
                            what its arena had in use at most above what it had before the call
    peak_flops              of FMAs on as many cores, the best of before and after the row

Compile seconds of plain IREE leave out the front end, which PyC's hold. Of threads, a system has
the cores of its row, also to compile.
Finished rows are kept beside OUT as OUT.partial; a run of the same settings in the same environment
goes on from there. A run of a part goes to the models' folder unless `--json` names a file.

`dynamic-zoo`: a network of `workloads/dynamic.py` is exported once, compiled once for the ranges of
its sizes, and called at each of its sizes: by PyC, by onnxruntime and OpenVINO on the same dynamic
model, and by PyC's program for that size alone (`pyc-static`). Rows are as above on one
thread, with `sizes`; results are compared with onnxruntime without optimizations. A row of `random
lengths` is one process that calls each system in turn on inputs of drawn lengths: p50 and p99 of
single calls. Programs are kept in a compile cache in the models' folder with the seconds of their
compile.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.api import build
from pyc_mlir.artifact.signature import flat
from pyc_mlir.cache.cache import open_cache
from pyc_mlir.cache.store import default_folder
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode, install
from pyc_mlir.frontends.sources import Source
from pyc_mlir.measure.interleave import interleave
from pyc_mlir.measure.records import Record, record
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program
from pyc_mlir.service.targets import quantile
from pyc_mlir.tools.bench.model.case import ModelCase, read_signature
from pyc_mlir.tools.bench.model.case import store as store_case
from pyc_mlir.tools.bench.peers.graph import LeastWork, read_graph
from pyc_mlir.tools.bench.peers.onnxruntime_session import open_session
from pyc_mlir.tools.bench.peers.rounds import (
    absence,
    account_of,
    compared,
    store_arrays,
    store_linalg,
)
from pyc_mlir.tools.bench.peers.systems import SUITES, openvino_request, with_halves
from pyc_mlir.tools.bench.peers.workload import Workload
from pyc_mlir.tools.bench.report.show import markdown, short
from pyc_mlir.tools.bench.report.suite import (
    FRESH,
    SuiteRun,
    counts,
    in_child,
    note,
    on_cores,
    option,
    some_of,
    suite,
    threads_of,
)
from pyc_mlir.tools.bench.report.tables import IREE, PYC, STATIC
from pyc_mlir.tools.bench.workloads import export
from pyc_mlir.tools.bench.workloads import systems as systems_here
from pyc_mlir.tools.bench.workloads.dynamic import DYNAMIC
from pyc_mlir.tools.bench.workloads.export import MODELS, stem
from pyc_mlir.tools.bench.workloads.networks import NETWORKS, OPSET
from pyc_mlir.tools.bench.workloads.quantized import QUANTIZED
from pyc_mlir.util.children import run as run_child

SUITE = "zoo"
SYSTEMS = systems_here.SUITES[SUITE]
THREADS, BATCHES = (1, 2), (1, 8)
QUICK = ("mobilenet_v3_small",)
# Where the models are kept, unless `--folder` says so.
VARIABLE = "PYC_ZOO"
# Random weights leave little to cancel; Winograd's algorithms are within.
TOLERANCE = 1e-3
# A word for all quantized models and the networks that they are made of.
_QUANTIZED = "quantized"


def folder_of(known: argparse.Namespace) -> Path:
    """Return the models' folder. Raises PycError (BAD_ARGUMENT) if nothing names one."""
    named = known.folder or os.environ.get(VARIABLE)
    folder = Path(named) if named else default_folder(os.environ) / SUITE
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def part(bench: SuiteRun) -> Path | None:
    """Return the report's file for a partial run, whose results are not published."""
    known = bench.options
    whole = (None, tuple(SYSTEMS), THREADS, BATCHES, OPSET)
    given = (known.models, known.systems, known.threads, known.batch, known.opset)
    partial = known.quick or known.rounds or given != whole
    return folder_of(known) / f"{SUITE}-part.json" if partial else None


@suite(
    SUITE,
    11,
    option("--models", type=some_of((*MODELS, _QUANTIZED)), metavar="NAME,...",
           help=f"some of {', '.join(MODELS)}, or {_QUANTIZED}; default: the networks of the zoo"),
    option("--systems", type=some_of(SYSTEMS), metavar="NAME,...", default=tuple(SYSTEMS),
           help=f"some of {', '.join(SYSTEMS)}; default: all"),
    option("--threads", type=counts, default=THREADS, metavar="N,..."),
    option("--batch", type=counts, default=BATCHES, metavar="N,..."),
    option("--opset", type=int, default=OPSET, help=f"of the models; default: {OPSET}"),
    option("--folder", type=Path, metavar="DIR",
           help=f"default: ${VARIABLE}, else the user's cache"),
    FRESH,
    elsewhere=part,
    then=lambda bench, stored: print(short(stored)),
)  # fmt: skip
def run(bench: SuiteRun) -> Iterator[Record]:
    """Measure real networks with random weights: PyC, plain IREE, onnxruntime, OpenVINO, torch."""
    known = bench.options
    names = known.models or (QUICK if bench.quick else tuple(NETWORKS))
    if _QUANTIZED in names:
        twins = (model.network.name for model in QUANTIZED.values())
        names = tuple(dict.fromkeys((*QUANTIZED, *twins)))
    batches = known.batch[:1] if bench.quick else known.batch
    threads, models = on_cores(known.threads), Models(folder_of(known), known.opset)
    bench.settings |= {"models": list(names), "systems": list(known.systems), "threads": threads}
    bench.settings |= {"batch": list(batches), "opset": known.opset}
    rows = [ZooRow(n, b, t) for n in names for b in batches for t in threads]
    yield from bench.resumed(
        {str(row): partial(measured, row, known.systems, bench, models) for row in rows},
        lambda rs: {r["system"] for r in rs} >= set(able(rs[0]["network"], known.systems)),
        lambda r: str(ZooRow(r["network"], r["batch"], r["threads"])),
    )


@dataclass(frozen=True)
class ZooRow:
    """One network with one batch size on so many threads."""

    network: str
    batch: int
    threads: int

    @property
    def workload(self) -> str:
        """Network and batch size, as records name them."""
        return f"{self.network}, batch {self.batch}"

    def __str__(self) -> str:
        return f"{self.workload}, {threads_of(self.threads)}"


def measured(
    row: ZooRow, systems: Sequence[str], bench: SuiteRun, models: "Models"
) -> list[Record]:
    """Measure the records of one row; if that is impossible, the failure of each system."""
    kind, systems = MODELS[row.network].kind, able(row.network, systems)
    tolerance = float("inf") if row.network in QUANTIZED else TOLERANCE
    try:
        model = models.path(row.network, row.batch)
        records = compared(
            bench,
            row.workload,
            kind,
            row.threads,
            systems,
            partial(store, model, IREE in systems),
            module=systems_here.__name__,
            key=row.network,
            tolerance=tolerance,
            details=partial(account_of, row.batch),
        )
    except PycError as error:
        reason = f"{error.code.name}: {error.message}"
        note(f"{row.workload}: {reason}")
        failures = (absence(row.workload, system, row.threads, reason) for system in systems)
        records = [record | {"class": kind} for record in failures]
    return [record | {"network": row.network, "batch": row.batch} for record in records]


def able(network: str, systems: Sequence[str]) -> list[str]:
    """Return the systems that run a network: quantized ones have no module of torch."""
    return [s for s in systems if network not in QUANTIZED or not s.startswith("torch")]


@dataclass(frozen=True)
class Models:
    """The models of one opset, in a folder."""

    folder: Path
    opset: int = OPSET

    def path(self, network: str, batch: int) -> Path:
        """Return the model's file, exported first if it is missing.

        Raises PycError (MISSING_DEPENDENCY) if that fails; its reason is on stderr.
        """
        path = self.folder / f"{stem(network, batch, self.opset)}.onnx"
        if path.is_file() and path.with_suffix(".npz").is_file():
            return path
        note(f"{network}, batch {batch}: exporting")
        command = [sys.executable, "-m", export.__name__, f"--models={network}"]
        command += [f"--batch={batch}", f"--opset={self.opset}", f"--folder={self.folder}"]
        done = run_child(command, stdout=None, stderr=None)
        if done.returncode != 0:
            raise PycError(
                ReasonCode.MISSING_DEPENDENCY,
                f"zoo: expected {path.name} in {self.folder}, and its export ended with status "
                f"{done.returncode}; its message stands above; {install('zoo')}",
            )
        return path


def store(model: Path, lowered: bool, folder: Path) -> tuple[LeastWork, Mapping[str, str]]:
    """Write what the processes are given, as `compared` asks for it.

    The linalg for plain IREE only where `lowered` says so. Raises PycError where the model is
    refused.
    """
    with np.load(model.with_suffix(".npz"), allow_pickle=False) as stored:
        arrays = {name: with_halves(stored[name]) for name in stored.files}
    inputs = [a for name, a in arrays.items() if name.startswith("input_")]
    store_arrays(folder, inputs, [a for n, a in arrays.items() if n.startswith("float64_")])
    (folder / "model.onnx").symlink_to(model.resolve())
    if lowered:
        store_linalg(model, inputs, folder)
    return read_graph(model, inputs).least_work(inputs), {}


DYNAMIC_ZOO = "dynamic-zoo"
SIZED = tuple(SUITES[DYNAMIC_ZOO])
# The folder of the cache of programs, beside the models.
PROGRAMS = "programs"
_SEED, _KINDS, _CALLS, _LONGEST = 2026, 8, 240, 384
# By how a network is quantized: what rounds to other bytes is off by steps, which layers carry on.
TOLERANCES = {"": TOLERANCE, "static": 0.3, "dynamic": 0.3}


@suite(
    DYNAMIC_ZOO,
    9,
    option("--models", type=some_of(DYNAMIC), metavar="NAME,...",
           help=f"some of {', '.join(DYNAMIC)}; default: all"),
    option("--folder", type=Path, metavar="DIR",
           help=f"of the models; default: ${VARIABLE}, else the user's cache"),
    FRESH,
    elsewhere=lambda bench: folder_of(bench.options) / "part.json" if bench.quick else None,
    then=lambda bench, stored: print(markdown(stored)),
)  # fmt: skip
def dynamic_zoo(bench: SuiteRun) -> Iterator[Record]:
    """Measure networks whose sizes are known at run time only, beside static programs and peers."""
    known = bench.options
    names = known.models or (QUICK if bench.quick else tuple(DYNAMIC))
    models = Models(folder_of(known))
    bench.settings |= {"models": list(names)}
    cases: dict[str, Callable[[], Sequence[Record]]] = {}
    for name in names:
        sizes = DYNAMIC[name].sizes[: 1 if bench.quick else None]
        cases |= {
            titled(name, each): partial(_at_sizes, name, each, bench, models) for each in sizes
        }
    yield from bench.resumed(cases, lambda rows: {r["system"] for r in rows} >= set(SIZED))


def _at_sizes(name: str, sizes: tuple[int, ...], bench: SuiteRun, models: Models) -> list[Record]:
    """Measure all systems at certain sizes, or of drawn ones without any; failures are records."""
    dynamic, workload = DYNAMIC[name], titled(name, sizes)
    try:
        path = models.path(f"{name}.any", 1)
        if not sizes:
            found = in_child(timed_stream, name, str(path), str(models.folder / PROGRAMS))
            return [drawn(workload, *item) for item in found.items()]
        source = Source.of(path)
        given = dict(zip(dynamic.axes.values(), sizes, strict=True))
        inputs, signature = dynamic.tensors(sizes), read_signature(source, None)
        case = ModelCase(str(path), source, signature, given, inputs, ranges=dynamic.ranges)
        expected = case.reference("onnxruntime").results
        write = partial(store_case, case, expected, systems=SIZED, cache=models.folder / PROGRAMS)
        details = partial(account_of, sizes[0])
        how = {"key": case.model, "tolerance": TOLERANCES[dynamic.how], "details": details}
        found = compared(bench, workload, dynamic.kind, 1, SIZED, write, **how)
    except PycError as error:
        reason = f"{error.code.name}: {error.message}"
        note(f"{workload}: {reason}")
        found = [absence(workload, s, 1, reason) for s in SIZED]
    return [row | {"network": name, "batch": "any", "sizes": list(sizes)} for row in found]


def titled(name: str, sizes: Sequence[int]) -> str:
    """Return a row's name: ``resnet18, batch 8``, ``bert, 8x128``, ``bert, random lengths``."""
    at = "x".join(map(str, sizes)) if len(sizes) > 1 else "".join(f"batch {n}" for n in sizes)
    return f"{name}, {at or 'random lengths'}"


def drawn(workload: str, system: str, seconds: Sequence[float]) -> Record:
    """Record the median and the 99th percentile of calls of drawn sizes."""
    p50, p99 = (quantile(sorted(seconds), q) for q in (0.5, 0.99))
    note(f"{workload}: {system} p50 {p50 * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms")
    row = record(workload, system, "random lengths", "s", p50, p99=p99, calls=len(seconds))
    return row | {"system": system, "threads": 1}


def timed_stream(name: str, model: str, cache: str) -> dict[str, list[float]]:
    """Return the seconds of each system's calls on inputs of one row and drawn lengths.

    Raises PycError (WRONG_RESULT) for a system that is wrong at one of the lengths.
    """
    dynamic, path, kept = DYNAMIC[name], Path(model), open_cache(cache)
    draw, device = np.random.default_rng(_SEED), Device("local-sync")
    lengths = [int(n) for n in np.exp(draw.uniform(np.log(8), np.log(_LONGEST), _KINDS))]
    inputs = {n: dynamic.tensors((1, n)) for n in lengths}

    def program(specs: Sequence[Any] | None, **options: Any) -> Program:
        return Program(build(path, specs, make_options(**options), cache=kept), device)

    whole = program(None, dims=dynamic.ranges)
    static = {n: program(given) for n, given in inputs.items()}
    session, feeds = open_session(path, inputs[lengths[0]], 1)
    named = {n: dict(zip(feeds, given, strict=True)) for n, given in inputs.items()}
    calls = {
        PYC: lambda n: flat(whole(*inputs[n])),
        STATIC: lambda n: flat(static[n](*inputs[n])),
        "onnxruntime": lambda n: session.run(None, named[n]),
    }
    if find_spec("openvino") is not None:
        infer = openvino_request(path, 1).infer
        calls["openvino"] = lambda n: infer(dict(enumerate(inputs[n])), True, True).values()
    for n in lengths:
        reference, tolerance = partial(session.run, None, named[n]), TOLERANCES[dynamic.how]
        case = Workload(name, path, (), tolerance=tolerance, reference=reference)
        for system, call in calls.items():
            case.check([*map(np.asarray, call(n))], f"{system} at length {n}")
    found: dict[str, list[float]] = {system: [] for system in calls}
    for seed, n in enumerate(draw.choice(lengths, _CALLS)):
        each = {system: partial(call, int(n)) for system, call in calls.items()}
        for system, timing in interleave(each, 1, 0, seed=seed).items():
            found[system] += timing.samples
    return found
