"""The memory of a program: the account by purpose, and the report of each execution region."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from pyc_mlir.artifact.signature import Signature
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.measure.prediction import Prediction
from pyc_mlir.pipelines.memory.planner.layout import ArenaLayout
from pyc_mlir.pipelines.memory.planner.problem import PlanningProblem
from pyc_mlir.util.units import quantity


@dataclass(frozen=True)
class Account:
    """Bytes of each part; None where it is not known before the call.

    constants: what lies in memory as long as the program is loaded, in the form that its code
        reads: packed and transformed weights, and the model's own where both are needed.
    inputs, outputs: arguments and results of one call.
    transients: the planned arena of one call.
    workspace: what a call allocates beside its arena.
    """

    complete: ClassVar[bool] = True
    constants: int | None = None
    inputs: int | None = None
    transients: int | None = None
    outputs: int | None = None
    workspace: int | None = None

    @staticmethod
    def of(
        signature: Signature, constants: int | None = None, transients: int | None = None
    ) -> "Account":
        """Return the account of a program with this signature and no workspace."""
        inputs, outputs = signature.largest_bytes
        workspace = None if transients is None else 0
        return Account(constants, inputs, transients, outputs, workspace)

    @property
    def scratch(self) -> int | None:
        """Transients and workspace of one call."""
        if self.transients is None or self.workspace is None:
            return None
        return self.transients + self.workspace

    def total(self, concurrency: int = 1) -> int | None:
        """Return all parts, scratch once for each of `concurrency` calls; None unless all known."""
        scratch = None if self.scratch is None else concurrency * self.scratch
        parts = (self.constants, self.inputs, self.outputs, scratch)
        known = [p for p in parts if p is not None]
        return None if len(known) < len(parts) else sum(known)

    def described(self, concurrency: int = 1) -> str:
        """Return ``5.8 MiB: constants 5.4 MiB, inputs 12 KiB, ...``, as every tool shows it."""
        total, named = self.total(concurrency), asdict(self).items()
        parts = [f"{name} {quantity(size, 'B')}" for name, size in named if size]
        calls = f" with scratch for {concurrency} calls" if concurrency > 1 else ""
        if total is not None:
            return ": ".join(filter(None, [f"{quantity(total, 'B')}{calls}", ", ".join(parts)]))
        missing = [name for name, size in named if size is None]
        listed = " and ".join(filter(None, [", ".join(missing[:-1]), missing[-1]]))
        return "; ".join(filter(None, [", ".join(parts), f"{listed}: by the sizes of a call"]))

    def __str__(self) -> str:
        return self.described()


# The layout that the others are compared with, as decisions name it.
UNPLANNED = "iree"


@dataclass(frozen=True)
class TaskReport:
    """One dispatch: its name, predicted seconds (0: not known), and what they rest on.

    sources: ids of the ops that it computes, as decisions name them.
    """

    as_row: ClassVar[bool] = True
    name: str
    seconds: float = 0.0
    flops: float = 0.0
    traffic_bytes: int = 0
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class FrontierPoint:
    """One plan that no other one beats: bytes of its arena, predicted seconds."""

    as_row: ClassVar[bool] = True
    arena_bytes: int
    seconds: float


@dataclass(frozen=True)
class RegionReport:
    """One execution region. `name` is the site (its key or op id) that its plan was chosen at.

    layouts: by name, the reference ("iree") and what was planned, under any names; any may lack.
    chosen: the name of the layout that the program runs with.
    lower_bound: bytes that no packing of the planned order goes below; 0 where not known.
    """

    complete: ClassVar[bool] = True
    name: str
    tasks: tuple[TaskReport, ...]
    layouts: Mapping[str, ArenaLayout]
    chosen: str
    frontier: tuple[FrontierPoint, ...] = ()
    lower_bound: int = 0

    @property
    def before(self) -> ArenaLayout | None:
        """The reference, IREE's own layout."""
        return self.layouts.get(UNPLANNED)

    @property
    def after(self) -> ArenaLayout | None:
        """The layout that the program runs with."""
        return self.layouts.get(self.chosen)

    @property
    def in_order(self) -> tuple[TaskReport, ...]:
        """The tasks in the order of the plan that runs, which may run one again."""
        runs = self.after.runs if self.after is not None else ()
        return tuple(self.tasks[r.task] for r in runs) if runs else self.tasks

    @property
    def seconds(self) -> float:
        """The seconds of the tasks, one after the other."""
        return math.fsum(task.seconds for task in self.in_order)

    def scaled(self, factor: float) -> "RegionReport":
        """Return the region with all seconds multiplied by `factor`."""
        return replace(
            self,
            tasks=tuple(replace(t, seconds=t.seconds * factor) for t in self.tasks),
            layouts={
                name: replace(layout, seconds=layout.seconds * factor)
                for name, layout in self.layouts.items()
            },
            frontier=tuple(replace(p, seconds=p.seconds * factor) for p in self.frontier),
        )


@dataclass(frozen=True)
class MemoryReport:
    """The regions of a program, in the order in which they run.

    What a call needs in all, by what it is needed for, stands in the artifact's manifest. `basis`
    says what the predicted seconds rest on.
    """

    schema: ClassVar[int] = 3
    complete: ClassVar[bool] = True
    regions: tuple[RegionReport, ...] = ()
    basis: str = ""

    @property
    def seconds(self) -> float:
        """The sum of the seconds that the plans which run count with, one task after the other."""
        return math.fsum(region.seconds for region in self.regions)

    def of(self, prediction: Prediction | None) -> "MemoryReport":
        """Return the report with seconds that add up to a call's prediction.

        The planner compares plans by seconds of all cores and of nominal sizes; a report shows the
        shares of those in the one prediction. Without one it stays as it is.
        """
        own = self.seconds
        if prediction is None or not own:
            return self
        factor = prediction.seconds / own
        return replace(self, regions=tuple(region.scaled(factor) for region in self.regions))


def region_report(
    name: str,
    problem: PlanningProblem,
    layouts: Mapping[str, ArenaLayout],
    chosen: str,
    frontier: Sequence[tuple[int, float]] = (),
    lower_bound: int = 0,
) -> RegionReport:
    """Return the report of one region, from what the planner has at hand; see `RegionReport`.

    frontier: (arena bytes, predicted seconds), as `planner.frontier` returns it.
    Raises PycError (BAD_ARGUMENT) if `chosen` is none of several layouts.
    """
    if layouts and chosen not in layouts:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"region {name}: expected the chosen one of {sorted(layouts)}, got {chosen!r}",
        )
    return RegionReport(
        name,
        tuple(
            TaskReport(t.name, t.seconds, t.flops, t.traffic_bytes, t.sources)
            for t in problem.tasks
        ),
        dict(sorted(layouts.items())),
        chosen,
        tuple(FrontierPoint(arena, seconds) for arena, seconds in frontier),
        lower_bound,
    )


def to_bytes(report: MemoryReport) -> bytes:
    """Return the report as JSON, for the artifact."""
    return json.dumps(to_data(report), separators=(",", ":"), ensure_ascii=False).encode()


def from_bytes(data: bytes, name: str = "memory report") -> MemoryReport:
    """Read what `to_bytes` made. Raises PycError (BAD_ARTIFACT), with `name` first, else."""
    try:
        report = from_data(MemoryReport, parse_json(data), "memory report")
        _check(report)
    except ValueError as error:
        raise PycError(
            ReasonCode.BAD_ARTIFACT,
            where=name,
            expected="a memory report of this version",
            got=str(error),
            remedy="compile it again",
        ) from None
    return report


def _check(report: MemoryReport) -> None:
    """Raise ValueError for numbers that point nowhere: who draws the report trusts them."""
    for region in report.regions:
        tasks = range(len(region.tasks))
        for layout in region.layouts.values():
            if any(r.task not in tasks or r.wave < 0 for r in layout.runs):
                raise ValueError(f"{region.name}: a run of no task")
            for i, r in enumerate(layout.rectangles):
                lasts = 0 <= r.first <= r.last and r.offset >= 0 and r.bytes >= 0
                known = r.writer is None or r.writer in tasks
                if not (lasts and known and (r.takes_over is None or 0 <= r.takes_over < i)):
                    raise ValueError(f"{region.name}: rectangle {i} is {r}")
