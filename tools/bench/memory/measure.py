"""The programs of one workload, and whether they still compute the same bits: built by PyC in all
modes and by IREE in all its partitioning modes.

Comes in: a `SuiteCase`. Goes out: `Built` programs, whose `Footprint` `peers/footprint.py`
measures.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.artifact.artifact import Artifact, make_manifest
from pyc_mlir.compilation.attempts import finish
from pyc_mlir.compilation.build import FUSION_SITE, SETTINGS
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import Lowered, lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError
from pyc_mlir.iree.compiler import opened, run
from pyc_mlir.iree.memory.versions import TO_ASYNC, regions_of
from pyc_mlir.pipelines.memory.planner.problem import PlannedTask, PlanningProblem
from pyc_mlir.pipelines.streams.ir import ir
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.tools.bench.peers.candidates import plain_options
from pyc_mlir.tools.bench.peers.workload import relative_error
from pyc_mlir.tools.bench.report.suite import note
from pyc_mlir.tools.bench.workloads.case import SuiteCase

MODES = ("latency_first", "balanced", "memory_first")
# PyC's program with its memory left to IREE.
UNPLANNED = "iree"
# IREE's own ways to cut a program into what may overlap; the first is its default.
PARTITIONINGS = ("min-peak-memory", "debug", "max-concurrency")
# What O3 stands for when nothing else is said.
O3_FUSION = "aggressive"

Clock = Callable[[], float]


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


def build_all(case: SuiteCase, clock: Clock = time.perf_counter) -> Programs:
    """Compile `case` in all ways. Raises PycError when PyC, or IREE under PyC's flags, fails."""
    pyc: dict[str, Built] = {}
    forms: dict[str, Lowered] = {}
    for mode in (UNPLANNED, *MODES):
        options = make_options(planner_mode=mode)
        start = clock()
        # The modes differ in passes too: IREE gets the program that no chunking has changed.
        forms[mode] = lower(Job.of(case.source, case.specs, options))
        pyc[mode] = Built(finish(forms[mode], options), clock() - start)
        note(f"{case.name}: {mode} compiled in {pyc[mode].seconds:.1f} s")
    unplanned = pyc[UNPLANNED].artifact
    fusion = next(d.chosen for d in unplanned.decisions if d.site.pass_name == FUSION_SITE)
    options = plain_options()
    # IREE gets the program without PyC's kernels, as it got it without parts.
    lowered = lower(Job.of(case.source, case.specs, options))
    # Without PyC's other entries.
    manifest = make_manifest(
        options.target, lowered.signature, lowered.graph_id, entry=lowered.entry
    )
    iree = {}
    for name, setting, partitioning in _iree_settings(fusion):
        start = clock()
        try:
            vmfb = compile_iree(lowered, options.target, setting, partitioning)
        except PycError as error:
            if setting == fusion:
                raise
            note(f"{case.name}: iree alone fails under {name}: {error.message[:200]}")
            break
        iree[name] = Built(Artifact(vmfb, manifest), clock() - start)
    bound = min(task_bound(form, options.target, fusion) for form in forms.values())
    return Programs(pyc, iree, fusion, bound, unplanned.reference.constants)


def _iree_settings(fusion: str) -> Iterator[tuple[str, str, str]]:
    """(name, fusion setting, partitioning): PyC's own flags, then O3 as it is."""
    for setting in dict.fromkeys((fusion, O3_FUSION)):
        for partitioning in PARTITIONINGS:
            yield f"O3, {partitioning} partitioning, {setting} fusion", setting, partitioning


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
        run(session, target, to="flow")
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


def same_bits(a: Sequence[np.ndarray], b: Sequence[np.ndarray]) -> bool:
    """Return whether two programs gave the same results, bit by bit."""
    return len(a) == len(b) and all(
        x.shape == y.shape and x.dtype == y.dtype and x.tobytes() == y.tobytes()
        for x, y in zip(a, b, strict=True)
    )


def error_against(results: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """`relative_error`, of two f32 programs."""
    return relative_error(results, [e.astype(np.float64) for e in expected])
