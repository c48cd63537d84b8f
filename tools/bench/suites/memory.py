"""The suite `memory`: memory of a call, mode by mode, against plain IREE and XLA.

    pyc-bench memory --json OUT [--only NAME ...] [--fresh]

Each workload of `workloads.memory` gives one record per planner mode, with the fields

    peak_bytes           transients (the whole arena) and fresh results of one call, measured
    transient_bytes      the peak without the results, `output_bytes`
    lower_bound_bytes    what no packing of the planned order goes below, results included; where
                         IREE's order was kept, what the largest task needs in any order
    constant_bytes, input_bytes, total_bytes     beside the peak, and all together
    iree_total_bytes                             the same of plain IREE
    iree_peak_bytes      the least of IREE's partitionings at O3; `iree_peaks` has all of them
    xla_temp_bytes       XLA's temporary memory (results not included), null without jax. XLA hands
                         products and what follows them to a library that need not store what lies
                         between; `xla_no_library_temp_bytes` is its figure without that
    median_seconds, iree_median_seconds          of a call with 1 thread: PyC's `Program`, guards
                         included, beside IREE's bare invoke at its quickest partitioning;
                         `latency` has spreads, ratios and other numbers of threads
    equal                the same bits as PyC's own unplanned program, and within the error bound
                         of plain IREE

Finished workloads are kept beside OUT as OUT.partial; a run with the same settings in the same
environment goes on from there. A workload that fails is a record too, with metric `failure`.
"""

import hashlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.memory import from_bytes
from pyc_mlir.compilation.attempts import finish
from pyc_mlir.compilation.build import FUSION_SITE, SETTINGS
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import Lowered, lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, install
from pyc_mlir.dialects.ir.attributes import INLINE_BYTES
from pyc_mlir.iree.compiler import opened
from pyc_mlir.iree.compiler import run as run_iree
from pyc_mlir.iree.memory.versions import TO_ASYNC, regions_of
from pyc_mlir.measure.interleave import Timing, interleave, ratio
from pyc_mlir.measure.records import Record, record
from pyc_mlir.pipelines.memory.planner.problem import PlannedTask, PlanningProblem
from pyc_mlir.pipelines.streams.ir import ir
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import DEFAULT_ALLOCATOR, Device
from pyc_mlir.runtime.program import Program, serving
from pyc_mlir.tools.bench.peers.candidates import plain_artifact, plain_options
from pyc_mlir.tools.bench.peers.footprint import Footprint, footprint
from pyc_mlir.tools.bench.peers.graph import read_graph
from pyc_mlir.tools.bench.peers.prepared import relative_error
from pyc_mlir.tools.bench.peers.translators import jax_function
from pyc_mlir.tools.bench.peers.workload import Workload
from pyc_mlir.tools.bench.report.suite import (
    FRESH,
    SuiteRun,
    failure,
    in_child,
    note,
    on_cores,
    option,
    suite,
)
from pyc_mlir.tools.bench.workloads.memory import WORKLOADS, make

MODES = ("latency_first", "balanced", "memory_first")
# PyC's program with its memory left to IREE.
UNPLANNED = "iree"
# IREE's own ways to cut a program into what may overlap; the first is its default.
PARTITIONINGS = ("min-peak-memory", "debug", "max-concurrency")
# What O3 stands for when nothing else is said.
O3_FUSION = "aggressive"
# Of another program of the same arithmetic in another order: as `Workload.tolerance`.
ERROR_BOUND = 1e-4
MIB = 2.0**20
# Of the calling thread, which computes all of a call where there is one thread: other processes
# take its time from the wall clock, but not from this one.
CLOCKS: Mapping[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}
_INPUTS, _BARE = "inputs.npz", "bare-"

Clock = Callable[[], float]


@suite(
    "memory",
    15,
    option("--only", nargs="+", choices=WORKLOADS, metavar="NAME", help="only these workloads"),
    FRESH,
)
def run(bench: SuiteRun) -> Iterator[Record]:
    """Measure peaks and latency by planner mode, against plain IREE; XLA's temporary memory."""
    names = [n for n in WORKLOADS if bench.options.only is None or n in bench.options.only]
    bench.settings |= {"threads": on_cores((1, 2)), "error_bound": ERROR_BOUND}
    yield from bench.resumed({name: partial(apart, name, bench) for name in names})


def apart(name: str, bench: SuiteRun) -> list[Record]:
    """Measure the records of one workload in a process, or the reason why there are none."""
    threads = bench.settings["threads"]
    try:
        return in_child(measured, name, bench.quick, bench.rounds, bench.min_seconds, threads)
    except PycError as error:
        return [failure(name, error)]


def measured(
    name: str, quick: bool, rounds: int, min_seconds: float, threads: Sequence[int]
) -> list[Record]:
    """Measure one record per mode; the failure of a program that does not compile or run."""
    workload = make(name, quick)
    try:
        programs = build_all(workload)
        arrays = workload.arrays
        pyc = {mode: footprint(b.artifact, arrays) for mode, b in programs.pyc.items()}
        iree = {name: footprint(b.artifact, arrays) for name, b in programs.iree.items()}
        ours = {mode: programs.pyc[mode].artifact for mode in MODES}
        theirs = {name: programs.iree[name].artifact for name in programs.same_kernels}
        timings = time_all(ours, theirs, arrays, threads, rounds, min_seconds)
        shared = {
            "input_bytes": workload.input_bytes,
            **_iree_fields(workload, programs, iree),
            **_xla_fields(workload),
            "unplanned_peak_bytes": pyc[UNPLANNED].peak_bytes,
        }
        expected = next(iter(iree.values()))
        return [_record(workload, m, programs, pyc, expected, timings, shared) for m in MODES]
    except PycError as error:
        return [failure(name, error)]


@dataclass(frozen=True)
class Built:
    """A program and the seconds that IREE and the planner took for it (no front end)."""

    artifact: Artifact
    seconds: float


@dataclass(frozen=True)
class Programs:
    """One workload, built: PyC's by mode (UNPLANNED among them), IREE's by setting.

    `fusion` is IREE's fusion setting that PyC compiled under; IREE's programs of that setting come
    first and are those that latency is compared with: `same_kernels`. `task_bound`: see there.
    """

    pyc: Mapping[str, Built]
    iree: Mapping[str, Built]
    fusion: str
    task_bound: int
    # Bytes of the constants that plain IREE is given.
    iree_constants: int | None = None

    @property
    def same_kernels(self) -> list[str]:
        """The settings of IREE with the fusion that PyC's programs have."""
        return [name for name in self.iree if name.endswith(f"{self.fusion} fusion")]


def build_all(workload: Workload, clock: Clock = time.perf_counter) -> Programs:
    """Compile in all ways. Raises PycError when PyC, or IREE under PyC's flags, fails."""
    pyc: dict[str, Built] = {}
    forms: dict[str, Lowered] = {}
    for mode in (UNPLANNED, *MODES):
        options = make_options(planner_mode=mode)
        start = clock()
        # The modes differ in passes too: IREE gets the program that no chunking has changed.
        forms[mode] = lower(Job.of(workload.source, workload.specs, options))
        pyc[mode] = Built(finish(forms[mode], options), clock() - start)
        note(f"{workload.name}: {mode} compiled in {pyc[mode].seconds:.1f} s")
    unplanned = pyc[UNPLANNED].artifact
    fusion = next(d.chosen for d in unplanned.decisions if d.site.pass_name == FUSION_SITE)
    options = plain_options()
    # IREE gets the program without PyC's kernels, as it got it without parts.
    lowered = lower(Job.of(workload.source, workload.specs, options))
    iree = {}
    # PyC's own flags, then O3 as it is.
    for setting in dict.fromkeys((fusion, O3_FUSION)):
        for partitioning in PARTITIONINGS:
            name, start = f"O3, {partitioning} partitioning, {setting} fusion", clock()
            try:
                vmfb = compile_iree(lowered, options.target, setting, partitioning)
            except PycError as error:
                if setting == fusion:
                    raise
                note(f"{workload.name}: iree alone fails under {name}: {error.message[:200]}")
                break
            iree[name] = Built(plain_artifact(lowered, vmfb), clock() - start)
    bound = min(task_bound(form, options.target, fusion) for form in forms.values())
    return Programs(pyc, iree, fusion, bound, unplanned.reference.constants)


def compile_iree(lowered: Lowered, target: Target, fusion: str, partitioning: str) -> bytes:
    """Compile the vmfb by IREE alone, under PyC's flags. Raises PycError as `compile_module`."""
    flags = SETTINGS[fusion]
    with opened(lowered.code, target, flags, locations=lowered.locations) as session:
        text = f'#stream.partitioning_config<"{partitioning}">'
        attribute: Any = vars(ir)["Attribute"]  # IREE's stubs leave it out
        with session.context:
            session.module.attributes["stream.partitioning"] = attribute.parse(text)
        session.run()
        return session.vmfb()


def task_bound(lowered: Lowered, target: Target, fusion: str) -> int:
    """Return the bytes of transients that every order needs: those of the largest task.

    A task's operands and results exist at once, but for a result that takes over an operand.
    """
    flags = SETTINGS[fusion]
    with opened(lowered.code, target, flags, locations=lowered.locations) as session:
        run_iree(session, target, to="flow")
        session.run_passes(TO_ASYNC)
        with session.context:
            problems = [region.problem for region in regions_of(session.module, target)]
    needs = [_needed(problem, task) for problem in problems for task in problem.tasks]
    return max(needs, default=0)


def _needed(problem: PlanningProblem, task: PlannedTask) -> int:
    sizes = {b: problem.buffers[b].size for b in (*task.reads, *task.writes)}
    counted = sum(sizes[b] for b in sizes if not problem.buffers[b].pinned)
    shared = dict((*task.in_place, *task.tied))
    return counted - sum(
        min(sizes[written], sizes[read])
        for written, read in shared.items()
        if not (problem.buffers[written].pinned or problem.buffers[read].pinned)
    )


def lower_bound(artifact: Artifact, task_bound: int) -> int:
    """Return the transients that the plan's order needs; `task_bound` if IREE's order was kept.

    Regions run one after another, so the largest bound counts.
    """
    regions = from_bytes(artifact.memory).regions if artifact.memory else ()
    return max(task_bound, *(r.lower_bound for r in regions), 0)


def same_bits(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> bool:
    """Return whether two programs gave the same results, bit by bit."""
    return len(a) == len(b) and all(
        x.shape == y.shape and x.dtype == y.dtype and x.tobytes() == y.tobytes()
        for x, y in zip(a, b, strict=True)
    )


def error_against(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """`relative_error`, of two f32 programs."""
    return relative_error(results, [e.astype(np.float64) for e in expected])


def time_all(
    pyc: Mapping[str, Artifact],
    iree: Mapping[str, Artifact],
    arrays: Sequence[np.ndarray],
    threads: Sequence[int],
    rounds: int,
    min_seconds: float,
    clock: str = "wall",
) -> dict[int, dict[str, Timing]]:
    """Return timings by number of threads and name, on a clock of CLOCKS. Raises RUNTIME_FAILED.

    IREE's thread count belongs to the process, so each thread count has a process of its own. PyC's
    programs are called as users call them, IREE's the way that costs least. Programs of the same
    bytes are timed once.
    """
    stems = {name: _digest(artifact) for name, artifact in pyc.items()}
    stems |= {name: _BARE + _digest(artifact) for name, artifact in iree.items()}
    with tempfile.TemporaryDirectory(prefix="pyc-bench-") as folder:
        np.savez(Path(folder) / _INPUTS, *arrays)
        for program, artifact in {**pyc, **iree}.items():
            artifacts.write(artifact, Path(folder) / f"{stems[program]}.vmfb")
        found = {t: in_child(samples, folder, t, rounds, min_seconds, clock) for t in threads}
    return {
        t: {n: Timing(tuple(rows[stem][0]), rows[stem][1]) for n, stem in stems.items()}
        for t, rows in found.items()
    }


def _digest(artifact: Artifact) -> str:
    return hashlib.sha256(artifact.vmfb).hexdigest()[:16]


def samples(
    folder: str, threads: int, rounds: int, min_seconds: float, clock: str
) -> dict[str, Any]:
    """Time every artifact of a folder in this process: samples, and calls of each."""
    device = Device("local", threads, DEFAULT_ALLOCATOR)
    with np.load(Path(folder) / _INPUTS, allow_pickle=False) as stored:
        arrays = [to_device(stored[f"arr_{i}"], device) for i in range(len(stored.files))]
    calls: dict[str, Callable[[], object]] = {}
    for path in sorted(Path(folder).glob("*.vmfb")):
        program = Program(artifacts.read(path), device)
        bare = path.stem.startswith(_BARE)
        calls[path.stem] = (
            serving(program).bare_call(*arrays) if bare else partial(program, *arrays)
        )
    timings = interleave(calls, rounds, min_seconds=min_seconds, clock=CLOCKS[clock])
    return {name: (timing.samples, timing.calls) for name, timing in timings.items()}


def _record(
    workload: Workload,
    mode: str,
    programs: Programs,
    pyc: Mapping[str, Footprint],
    expected: Footprint,
    timings: Mapping[int, Mapping[str, Timing]],
    shared: Mapping[str, Any],
) -> Record:
    found, built = pyc[mode], programs.pyc[mode]
    constants = built.artifact.account.constants or 0
    bits = same_bits(found.results, pyc[UNPLANNED].results)
    error = error_against(found.results, expected.results)
    latency = {str(t): _latency(mode, programs, timings[t]) for t in timings}
    first = next(iter(latency.values()))
    note(
        f"{workload.name}: {mode} {found.peak_bytes / MIB:.2f} MiB, "
        f"iree {shared['iree_peak_bytes'] / MIB:.2f} MiB, "
        + ", ".join(f"{row['ratio']['median']:.3f}x with {t} threads" for t, row in latency.items())
        + ("" if bits else ", OTHER BITS than unplanned")
    )
    return record(workload.name, mode, "peak", "B", found.peak_bytes) | {
        "class": workload.kind,
        "mode": mode,
        "peak_bytes": found.peak_bytes,
        "transient_bytes": found.transient_bytes,
        "output_bytes": found.output_bytes,
        "lower_bound_bytes": found.output_bytes + lower_bound(built.artifact, programs.task_bound),
        "constant_bytes": constants,
        "total_bytes": found.peak_bytes + constants + shared["input_bytes"],
        **shared,
        "median_seconds": first["seconds"]["median"],
        "iree_median_seconds": first["iree_seconds"]["median"],
        "latency": latency,
        "equal": bits and error <= ERROR_BOUND,
        "same_bits": bits,
        "error_against_iree": error if error < float("inf") else None,
        "compile_seconds": built.seconds,
    }


def _iree_fields(
    workload: Workload, programs: Programs, iree: Mapping[str, Footprint]
) -> dict[str, Any]:
    peaks = {name: found.peak_bytes for name, found in iree.items()}
    best = min(peaks, key=peaks.__getitem__)
    return {
        "iree_peak_bytes": peaks[best],
        "iree_total_bytes": peaks[best] + (programs.iree_constants or 0) + workload.input_bytes,
        "iree_transient_bytes": iree[best].transient_bytes,
        "iree_setting": best,
        "iree_peaks": peaks,
        "iree_compile_seconds": programs.iree[programs.same_kernels[0]].seconds,
        "fusion": programs.fusion,
    }


def _latency(mode: str, programs: Programs, timings: Mapping[str, Timing]) -> dict[str, Any]:
    """Return the times of PyC's program in `mode` beside IREE's quickest, in seconds."""
    quickest = min(programs.same_kernels, key=lambda name: timings[name].median)
    return {
        "seconds": asdict(timings[mode].spread),
        "iree_seconds": asdict(timings[quickest].spread),
        "iree_setting": quickest,
        "ratio": asdict(ratio(timings, of=mode, to=quickest)),
    }


# The kinds of operations that XLA for CPUs may give to the library: none.
_NO_LIBRARY = {"xla_cpu_experimental_ynn_fusion_type": ""}


def _xla_fields(workload: Workload) -> dict[str, Any]:
    found = temporary_memory(workload)
    if found is None:
        note(f"jax is not installed: no figure of XLA; {install('bench')}")
    return dict(
        zip(("xla_temp_bytes", "xla_no_library_temp_bytes"), found or (None, None), strict=True)
    )


def temporary_memory(workload: Workload) -> tuple[int, int] | None:
    """Return XLA's transients for the program, by default and with nothing given to its library.

    None if jax is not installed. The program is compiled for the CPU and never run. By default XLA
    fuses operations into calls of a library of microkernels, whose own working memory its figure
    does not hold. Raises PycError (UNSUPPORTED_OP) as `jax_function`.
    """
    try:
        import jax  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError:
        return None
    function, constants = xla_function(workload)
    lowered = jax.jit(function).lower(workload.arrays, constants)

    def bytes_under(options: Mapping[str, str]) -> int:
        analysis: Any = lowered.compile(compiler_options=dict(options)).memory_analysis()
        return int(analysis.temp_size_in_bytes)

    return bytes_under({}), bytes_under(_NO_LIBRARY)


def xla_function(workload: Workload) -> Any:
    """Return the program for XLA as `jax_function` does.

    Large constants are arguments, which are not counted as transients either, so that XLA does not
    spend minutes on folding them.
    """
    return jax_function(read_graph(workload.source, workload.specs), INLINE_BYTES + 1)
