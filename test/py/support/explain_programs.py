"""Artifacts with memory reports for tests of pyc-explain, made without a compiler."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from modules import signature

from pyc_mlir.artifact import artifact, memory
from pyc_mlir.artifact.artifact import Artifact, make_manifest
from pyc_mlir.artifact.memory import Account, MemoryReport, RegionReport, region_report
from pyc_mlir.pipelines.choices.choices import Alternative, Decision, Site
from pyc_mlir.pipelines.choices.evidence import Note
from pyc_mlir.pipelines.memory.planner.place import layout_of_plan, place
from pyc_mlir.pipelines.memory.planner.planner import frontier, plan
from pyc_mlir.pipelines.memory.planner.problem import Expansion, PlanningProblem, SchedulePlan
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.tools import pyc_explain

FUSE = Decision(
    Site("pyc-fuse", "matmul.0123"),
    "fuse:matmul+add",
    (
        Alternative("fuse:matmul+add", Cost(2e-6, traffic_bytes=1 << 20), "one kernel"),
        Alternative("keep"),
    ),
    "heuristic",
    measured={"seconds": 0.25},
)


def own_order(problem: PlanningProblem) -> SchedulePlan:
    """The problem's own order, packed without reuse."""
    return place(Expansion.of(problem), [(i,) for i in range(len(problem.tasks))], {}, work_limit=1)


def planned(
    problem: PlanningProblem, name: str = "g#0", mode: str = "memory_first"
) -> RegionReport:
    """The problem's own order as what was before, and the plan of a mode."""
    tasks = tuple(replace(t, seconds=t.seconds * 1e-3) for t in problem.tasks)
    problem = replace(problem, tasks=tasks)
    answer = plan(problem, mode=mode)
    layouts = {
        "iree": layout_of_plan(problem, own_order(problem)),
        "planned": layout_of_plan(problem, answer),
    }
    points = frontier(problem, mode=mode)
    return region_report(name, problem, layouts, "planned", points, answer.lower_bound)


def choice(region: RegionReport) -> Decision:
    """The decision for the region's plan."""
    alternatives = tuple(
        Alternative(name, Cost(layout.seconds, layout.arena_bytes), f"{layout.arena_bytes} bytes")
        for name, layout in sorted(region.layouts.items())
    )
    return Decision(
        Site("plan-memory", region.name),
        region.chosen,
        alternatives,
        "heuristic",
        (Note("smaller"),),
    )


def explained(
    regions: Sequence[RegionReport] = (),
    decisions: Sequence[Decision] = (FUSE,),
    account: Mapping[str, int | None] | None = None,
) -> Artifact:
    """Return an artifact with a report of the regions, and the decisions with theirs.

    The account is that of the regions unless another one is given.
    """
    types = signature(2, (4,), "f32")
    mine, theirs = (
        Account.of(types, 2048, sum(layout.arena_bytes for layout in layouts if layout))
        for layouts in ([r.after for r in regions], [r.before or r.after for r in regions])
    )
    versions = {"pyc-mlir": "1"}
    manifest = make_manifest(
        Target.named("cpu"), types, "abcd", mine, versions=versions, memory_by_iree=theirs
    )
    if account is not None:
        whole = Account(**account)
        reference = replace(whole, transients=theirs.transients)
        manifest = replace(manifest, memory=whole, memory_by_iree=reference)
    report = memory.to_bytes(MemoryReport(tuple(regions))) if regions else b""
    every = (*decisions, *(choice(r) for r in regions))
    return Artifact(_archive(), manifest, every, b"module", report)


def _archive() -> bytes:
    """Something that looks like IREE's file from outside."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("module.fb"), b"code")
    return buffer.getvalue()


def saved(folder: Path, content: Artifact, name: str = "model.vmfb") -> str:
    """Write the artifact; return its path."""
    artifact.write(content, folder / name)
    return str(folder / name)


def ran(capsys, *argv: str) -> str:
    """What `pyc-explain` prints."""
    status = pyc_explain.main(argv)
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, "")
    return captured.out


def refused(capsys, *argv: str) -> str:
    """What `pyc-explain` says as it refuses."""
    status = pyc_explain.main(argv)
    captured = capsys.readouterr()
    usage = "command line: " in captured.err
    assert (status, captured.out) == (2 if usage else 1, "")
    return captured.err
