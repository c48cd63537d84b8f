"""The facts of a program that the text and the page both show.

Comes in: an artifact, perhaps the log of its compile. Goes out: `ExplainedProgram`, and for each
region its `RegionFacts`: sizes before and after, and sentences. Nothing here knows a terminal or a
browser.
"""

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.manifest import BY_IREE, MEMORY
from pyc_mlir.artifact.memory import UNPLANNED, MemoryReport, RegionReport, from_bytes
from pyc_mlir.artifact.signature import SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import dtype_name
from pyc_mlir.pipelines.choices.choices import Alternative, Decision
from pyc_mlir.pipelines.choices.log import Listed
from pyc_mlir.pipelines.memory.planner.layout import ArenaLayout
from pyc_mlir.pipelines.shapes.plan import ShapePlan
from pyc_mlir.profile.build import placed, predict
from pyc_mlir.profile.profile import Profile
from pyc_mlir.tools.cli.sizes import ChosenSizes
from pyc_mlir.util.units import quantity

# The parts of the manifest's account as they are called, and what they are.
_LABELS = {
    "constants": "constants",
    "inputs": "inputs",
    "transients": "transients (the arena)",
    "outputs": "outputs",
    "workspace": "workspace (beside the arena)",
}
PARTS = {
    "constants": "weights, as long as the program is loaded",
    "inputs": "the arguments of a call",
    "transients (the arena)": "results that only later operations read; their places are planned",
    "outputs": "the results of a call",
    "workspace (beside the arena)": "what a call allocates besides",
}
_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


@dataclass(frozen=True)
class ExplainedProgram:
    """A program to explain: its file, itself, its decisions and its memory report.

    profile: the times of a call, measured or predicted; None if neither is known.
    """

    name: str
    artifact: Artifact
    decisions: tuple[Decision, ...]
    report: MemoryReport
    sizes: ChosenSizes
    profile: Profile | None = None

    @staticmethod
    def of(
        name: str,
        artifact: Artifact,
        log: Sequence[Decision] | None = None,
        sizes: Sequence[str] = (),
        measured: Profile | None = None,
    ) -> "ExplainedProgram":
        """Collect a program's facts; a log of the same compile may replace the decisions.

        A log has source locations. sizes: ``batch=8``, for dynamic dimensions. measured: a profile
        of the program; without one its time is that of the cost model. Raises PycError:
        BAD_ARTIFACT for a memory report that cannot be read, BAD_ARGUMENT for sizes of names that
        are no dynamic dimension and for a profile of another program.
        """
        report = from_bytes(artifact.memory, name) if artifact.memory else MemoryReport()
        report = report.of(artifact.prediction)
        decisions = tuple(artifact.decisions if log is None else log)
        chosen = ChosenSizes.parse(sizes, artifact.signature)
        _require_own(measured, artifact, name)
        profile = predict(artifact, decisions) if measured is None else placed(measured, decisions)
        shown = tuple(map(chosen.filled, decisions))
        return ExplainedProgram(name, artifact, shown, report, chosen, profile)

    def matching(self, text: str) -> "ExplainedProgram":
        """Keep only those decisions that concern `text` (see `concerning`)."""
        found = concerning(self.decisions, text, self.report)
        return replace(self, decisions=found)

    def facts(self) -> list[tuple[str, str]]:
        """Return rows for the head: the program's arguments, its target and its versions."""
        manifest, signature = self.artifact.manifest, self.artifact.signature
        versions = ", ".join(f"{n} {v}" for n, v in sorted(manifest.versions.items()))
        rows = [
            ("inputs", _arguments(signature.inputs)),
            ("outputs", _arguments(signature.outputs)),
            ("target", f"{manifest.target} (device {manifest.device})"),
            ("imported", str(self.artifact.imported)),
            ("graph id", manifest.graph_id or "none: not a pyc program"),
            ("compiled by", versions),
        ]
        if manifest.shape_plans:
            plans = "; ".join(str(ShapePlan(plan.ranges)) for plan in manifest.shape_plans)
            rows.append(("plans", f"for shapes {plans}; the general one for all others"))
        prediction = self.artifact.prediction
        return rows if prediction is None else [*rows, ("time", str(prediction))]

    def account(self) -> list[tuple[str, int | None]]:
        """Return rows (part, bytes or None if only a call determines them) of one call."""
        account = self.sizes.account(self.artifact)
        parts = asdict(account)
        rows = [(label, parts[name]) for name, label in _LABELS.items()]
        return [*rows, ("total", account.total())]

    def memory(self) -> tuple[int | None, int | None]:
        """Return all parts' bytes, and the same by IREE's own plan with the model's weights."""
        mine, theirs = (self.sizes.account(self.artifact, part) for part in (MEMORY, BY_IREE))
        return mine.total(), theirs.total()

    def regions(self) -> list["RegionFacts"]:
        """Return the facts of each region whose memory was planned, or left to IREE as it is."""
        every = (*self.artifact.decisions, *self.decisions)
        found = {key: d for d in every for key in (d.site.op_id, d.site.key)}
        return [RegionFacts(r, found.get(r.name)) for r in self.report.regions if r.chosen]


def _arguments(arguments: Sequence[SignatureEntry]) -> str:
    """Describe inputs or outputs: ``image: f32, batch x 1 x 8 x 8``."""
    parts = []
    for a in arguments:
        dims = " x ".join("?" if d is None else str(d) for d in a.shape)
        parts.append(f"{a.name}: {dtype_name(a.dtype)}{f', {dims}' if dims else ''}")
    return "; ".join(parts) or "none"


def _require_own(profile: Profile | None, artifact: Artifact, name: str) -> None:
    """Raise PycError (BAD_ARGUMENT) for a profile of another program."""
    graph = artifact.manifest.graph_id or ""
    if profile is not None and profile.program != graph:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"--profile: expected one of {name} (graph {graph or 'none'}), got one of graph "
            f"{profile.program or 'none'}; measure it with `pyc-run {name} --profile FILE`",
        )


def concerning(
    decisions: Sequence[Listed], text: str, report: MemoryReport | None = None
) -> tuple[Listed, ...]:
    """Return the decisions about an op: by id, name (``pyc.softmax``), location or dispatch.

    A name also stands in alternatives that take the op in, such as ``fuse:matmul+softmax``; a
    dispatch is one of the tasks of a region, whose plan was chosen.
    """
    word = re.compile(rf"(?<!\w){re.escape(text.removeprefix('pyc.'))}(?!\w)")
    regions = {
        r.name
        for r in (report or MemoryReport()).regions
        if any(text == task.name for task in r.tasks)
    }

    def concerns(decision: Listed) -> bool:
        site = decision.site
        named = any(word.search(a.name) for a in decision.alternatives)
        held = text in site.key or text in site.location or word.search(site.key) is not None
        return named or held or bool(regions & {site.key, site.op_id})

    return tuple(filter(concerns, decisions))


@dataclass(frozen=True)
class RegionFacts:
    """One region: its memory before and after planning, and the decisions about it."""

    region: RegionReport
    decision: Decision | None

    @property
    def arena(self) -> str:
        """Arena before and after."""
        before, after = self.region.before, self.region.after
        if after is None:
            return ""
        if before is None or before is after:
            return size(after.arena_bytes)
        if before.arena_bytes == after.arena_bytes:
            return f"{size(after.arena_bytes)}, as before"
        change = after.arena_bytes / max(before.arena_bytes, 1) - 1
        return f"{size(before.arena_bytes)} → {size(after.arena_bytes)} ({change:+.1%})"

    @property
    def bound(self) -> str:
        """The lower bound and how far the arena is above it."""
        bound, after = self.region.lower_bound, self.region.after
        if not bound or after is None:
            return ""
        above = f"is {self.gap:.1%} above it" if self.gap else "reaches it"
        return f"{size(bound)} for the planned order; the arena {above}"

    @property
    def gap(self) -> float:
        """The arena above the lower bound, as a share of it."""
        bound, after = self.region.lower_bound, self.region.after
        return after.arena_bytes / bound - 1 if bound and after is not None else 0.0

    @property
    def why(self) -> str:
        """Which plan runs, who decided, and the reason given."""
        if self.decision is None:
            return f"{self.region.chosen}; the log holds no decision for it"
        reason = "; ".join(map(str, self.decision.facts)) or next(
            (a.reason for a in self.decision.alternatives if a.name == self.decision.chosen), ""
        )
        by = f"{self.region.chosen} (decided by: {self.decision.decided_by})"
        return f"{by}; {reason or 'no reason given'}"

    @property
    def work(self) -> str:
        """How many tasks, what runs again, what is done in place."""
        after = self.region.after
        tasks = _count(len(self.region.tasks), "task")
        if after is None:
            return tasks
        again = sum(run.copy > 0 for run in after.runs)
        taken = sum(r.takes_over is not None for r in after.rectangles)
        return (
            f"{tasks} in {_count(after.steps, 'step')}, {again} recomputed; "
            f"{_count(len(after.rectangles), 'buffer')}, {taken} in place"
        )

    @property
    def latency(self) -> str:
        """Predicted change of the time by the plan; empty if it is not known."""
        before, after = self.region.before, self.region.after
        if not before or not after or not before.seconds or not after.seconds:
            return ""
        change = after.seconds / before.seconds - 1
        return f"{change:+.1%} of time by this plan" if change else "as long as by IREE's plan"

    @property
    def others(self) -> str:
        """The other plans, with their arenas and predicted times; empty if there are none."""
        found = []
        for name, layout in self.region.layouts.items():
            if name not in (self.region.chosen, UNPLANNED):
                seconds = f" in {quantity(layout.seconds, 's')}" if layout.seconds else ""
                found.append(f"{name} {size(layout.arena_bytes)}{seconds}")
        return ", ".join(found)

    def rows(self) -> list[tuple[str, str]]:
        """Return all that is known as rows."""
        rows = [
            ("runs with", self.why),
            ("turned down", self.others),
            ("arena", self.arena),
            ("lower bound", self.bound),
            ("predicted", self.latency),
            ("work", self.work),
        ]
        return [row for row in rows if row[1]]

    @property
    def title(self) -> str:
        """The region's name, without the pass that plans it."""
        return self.region.name.rpartition("plan-memory:")[2]


def compared(region: RegionReport) -> list[str]:
    """Return the two layouts to look at first: the one before, then the one that runs.

    If IREE's own plan runs, the smallest of those that were turned down stands beside it.
    """
    others = [name for name in region.layouts if name not in (region.chosen, UNPLANNED)]
    beside = [UNPLANNED] if region.chosen != UNPLANNED else []
    if not beside and others:
        beside = [min(others, key=lambda name: (region.layouts[name].arena_bytes, name))]
    return [name for name in (*beside, region.chosen) if name in region.layouts]


def role(region: RegionReport, name: str) -> str:
    """Return a layout's role in its region: before, after (it runs) or turned down."""
    if name == region.chosen:
        return "after" if region.before is not None and name != UNPLANNED else "runs"
    return "before" if name == UNPLANNED else "turned down"


def size(value: int | None) -> str:
    """Format bytes with a unit, three digits or more."""
    if value is None:
        return "known at run time"
    factor, name = unit_of(value)
    return f"{value / factor:.2f} {name}" if factor > 1 else f"{value} B"


def unit_of(largest: int) -> tuple[int, str]:
    """Return the unit in which `largest` bytes read well, for a whole table or axis."""
    return next((u for u in _UNITS if largest >= u[0]), _UNITS[-1])


def in_table(rows: Sequence[tuple[str, int | None]]) -> tuple[str, list[tuple[str, str]]]:
    """Return the unit of a table of bytes, and its rows in that unit: MiB, or KiB."""
    largest = max((v for _, v in rows if v is not None), default=0)
    factor, unit = (2**20, "MiB") if largest >= 2**20 else (2**10, "KiB")
    return unit, [(name, _in_unit(value, factor)) for name, value in rows]


def _in_unit(value: int | None, factor: int) -> str:
    if value is None:
        return "at run time"
    shown = f"{value / factor:,.2f}"
    return "<0.01" if value and shown == "0.00" else shown


def cost_of(alternative: Alternative) -> list[tuple[str, str]]:
    """Return the parts of a predicted cost that are not zero."""
    cost = alternative.cost
    if cost is None:
        return []
    parts = [
        ("time", quantity(cost.seconds, "s") if cost.seconds else ""),
        ("workspace", size(cost.workspace_bytes) if cost.workspace_bytes else ""),
        ("constants", size(cost.constant_bytes) if cost.constant_bytes else ""),
        ("traffic", size(cost.traffic_bytes) if cost.traffic_bytes else ""),
    ]
    return [(name, text) for name, text in parts if text] or [("time", "0 s")]


def rectangle_facts(region: RegionReport, layout: ArenaLayout, number: int) -> list[str]:
    """Return the known facts of one buffer, a fact a line."""
    r = layout.rectangles[number]
    span = f"step {r.first}" if r.first == r.last else f"steps {r.first} to {r.last}"
    facts = [
        f"{r.buffer}{f' (copy {r.copy})' if r.copy else ''}",
        f"{size(r.bytes)} at offset {size(r.offset)}",
        f"alive in {span}",
    ]
    if r.writer is not None:
        facts.append(f"written by {task_name(region, r.writer)}")
    if r.recomputed:
        facts.append("recomputed: its task runs again here")
    if r.takes_over is not None:
        taken = layout.rectangles[r.takes_over]
        by = "" if taken.writer is None else f", written by task {taken.writer}"
        facts.append(f"in place: takes over the storage of {taken.buffer}{by}")
    return facts


def task_name(region: RegionReport, task: int) -> str:
    """Return a task with its number: many may be calls of one dispatch."""
    return f"task {task}: {region.tasks[task].name}"


def alive_at_peak(layout: ArenaLayout) -> tuple[int, list[int]]:
    """Return the first step with the most live bytes, and its rectangles, largest first."""
    if not layout.live_bytes:
        return 0, []
    step = layout.live_bytes.index(layout.peak_bytes)
    found = [i for i, r in enumerate(layout.rectangles) if r.first <= step <= r.last]
    return step, sorted(found, key=lambda i: (-layout.rectangles[i].bytes, i))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
