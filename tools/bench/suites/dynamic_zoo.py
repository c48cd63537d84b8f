"""The suite `dynamic-zoo`: networks of dynamic sizes as they are deployed, against the peers.

    pyc-bench dynamic-zoo
    pyc-bench dynamic-zoo --models bert,resnet18-int8 --rounds 5

A network of `workloads/dynamic.py` is exported once, compiled once for the ranges of its sizes, and
called at each of its sizes: by PyC, by onnxruntime and OpenVINO on the same dynamic model, and by
the program that PyC makes for that size alone (`pyc-static`). Rows are those of the suite `zoo` on
one thread, where `sizes` are what ran; results are compared with onnxruntime without optimizations.
A row of `random lengths` is one process that calls each system in turn on inputs of drawn lengths:
p50 and p99 of single calls.

Programs are kept in a compile cache in the models' folder with the seconds of their compile.
Finished rows are kept as in `zoo`.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.api import build
from pyc_mlir.artifact.signature import flat
from pyc_mlir.cache.cache import open_cache
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.frontends.sources import Source
from pyc_mlir.measure.interleave import interleave
from pyc_mlir.measure.records import Record, record
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.program import Program
from pyc_mlir.service.targets import quantile
from pyc_mlir.tools.bench.model.case import ModelCase, read_signature, store
from pyc_mlir.tools.bench.peers.onnxruntime_session import open_session
from pyc_mlir.tools.bench.peers.rounds import absence, account_of, compared
from pyc_mlir.tools.bench.peers.systems import SUITES, openvino_request
from pyc_mlir.tools.bench.peers.workload import Workload
from pyc_mlir.tools.bench.report.show import markdown
from pyc_mlir.tools.bench.report.suite import (
    FRESH,
    SuiteRun,
    in_child,
    note,
    option,
    some_of,
    suite,
)
from pyc_mlir.tools.bench.report.tables import PYC, STATIC
from pyc_mlir.tools.bench.suites.zoo import QUICK, TOLERANCE, VARIABLE, Models, folder_of
from pyc_mlir.tools.bench.workloads.dynamic import DYNAMIC

SUITE = "dynamic-zoo"
SYSTEMS = tuple(SUITES[SUITE])
# The folder of the cache of programs, beside the models.
PROGRAMS = "programs"
_SEED, _KINDS, _CALLS, _LONGEST = 2026, 8, 240, 384
# By how a network is quantized: what rounds to other bytes is off by steps, which layers carry on.
TOLERANCES = {"": TOLERANCE, "static": 0.3, "dynamic": 0.3}


@suite(
    SUITE,
    9,
    option("--models", type=some_of(DYNAMIC), metavar="NAME,...",
           help=f"some of {', '.join(DYNAMIC)}; default: all"),
    option("--folder", type=Path, metavar="DIR",
           help=f"of the models; default: ${VARIABLE}, else the user's cache"),
    FRESH,
    elsewhere=lambda bench: folder_of(bench.options) / "part.json" if bench.quick else None,
    then=lambda bench, stored: print(markdown(stored)),
)  # fmt: skip
def run(bench: SuiteRun) -> Iterator[Record]:
    """Measure networks whose sizes are known at run time only, beside static programs and peers."""
    known = bench.options
    names = known.models or (QUICK if bench.quick else tuple(DYNAMIC))
    models = Models(folder_of(known))
    bench.settings |= {"models": list(names)}
    cases: dict[str, Callable[[], Sequence[Record]]] = {}
    for name in names:
        sizes = DYNAMIC[name].sizes[: 1 if bench.quick else None]
        cases |= {titled(name, each): partial(_row, name, each, bench, models) for each in sizes}
    yield from bench.resumed(cases, lambda rows: {r["system"] for r in rows} >= set(SYSTEMS))


def _row(name: str, sizes: tuple[int, ...], bench: SuiteRun, models: Models) -> list[Record]:
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
        write = partial(store, case, expected, systems=SYSTEMS, cache=models.folder / PROGRAMS)
        details = partial(account_of, sizes[0])
        how = {"key": case.model, "tolerance": TOLERANCES[dynamic.how], "details": details}
        found = compared(bench, workload, dynamic.kind, 1, SYSTEMS, write, **how)
    except PycError as error:
        reason = f"{error.code.name}: {error.message}"
        note(f"{workload}: {reason}")
        found = [absence(workload, s, 1, reason) for s in SYSTEMS]
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
    lengths = [int(n) for n in np.exp(draw.uniform(*np.log((8, _LONGEST)), _KINDS))]
    inputs = {n: dynamic.tensors((1, n)) for n in lengths}
    arrays = {n: [to_device(a, device) for a in given] for n, given in inputs.items()}

    def program(specs: Sequence[Any] | None, **options: Any) -> Program:
        return Program(build(path, specs, make_options(**options), cache=kept), device)

    whole = program(None, dims=dynamic.ranges)
    static = {n: program(given) for n, given in inputs.items()}
    session, feeds = open_session(path, inputs[lengths[0]], 1)
    named = {n: dict(zip(feeds, given, strict=True)) for n, given in inputs.items()}
    calls = {
        PYC: lambda n: [r.numpy() for r in flat(whole(*arrays[n]))],
        STATIC: lambda n: [r.numpy() for r in flat(static[n](*arrays[n]))],
        "onnxruntime": lambda n: session.run(None, named[n]),
    }
    if find_spec("openvino") is not None:
        infer = openvino_request(path, 1).infer
        calls["openvino"] = lambda n: infer(dict(enumerate(inputs[n])), True, True).values()
    for n in lengths:
        reference, tolerance = partial(session.run, None, named[n]), TOLERANCES[dynamic.how]
        case = Workload(name, path, (), tolerance=tolerance, reference=reference)
        for system, call in calls.items():
            case.check(list(call(n)), f"{system} at length {n}")
    found: dict[str, list[float]] = {system: [] for system in calls}
    for seed, n in enumerate(draw.choice(lengths, _CALLS)):
        each = {system: partial(call, int(n)) for system, call in calls.items()}
        for system, timing in interleave(each, 1, 0, seed=seed).items():
            found[system] += timing.samples
    return found
