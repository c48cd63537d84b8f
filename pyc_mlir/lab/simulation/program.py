"""A lowered or compiled program as numbers: its sites, what each alternative costs, its memory.

Comes in: an `Artifact` or a `Lowered`. Goes out: a frozen `PricedProgram`, with nothing left of IR.
An artifact's log has all decisions and its memory report all dispatches; a lowered program has no
memory plan yet, so its bytes are not known.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.memory import Account, MemoryReport
from pyc_mlir.pipelines.choices.choices import Decision, Site
from pyc_mlir.pipelines.choices.evidence import Computes
from pyc_mlir.pipelines.kernels.lang.attributes import SELECT
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.target import TARGETS, Target, available_cores, read_host_cpu
from pyc_mlir.profile.dispatches import report_of

# What was compiled is estimated without a compiler.
if TYPE_CHECKING:
    from pyc_mlir.compilation.lower import Lowered

PLAN = "plan-memory"
# Decisions that say something of the compile and change nothing of the program.
NOTES = frozenset({"calibration", "wisdom", "compile-stage", "oracle", "budget"})


@dataclass(frozen=True)
class PricedSite:
    """A site with what each of its alternatives is predicted to cost; `chosen` is the compile's."""

    site: Site
    chosen: str
    costs: Mapping[str, Cost]


@dataclass(frozen=True)
class PricedProgram:
    """A program as numbers.

    kernels: the sites whose choices are kernels. plans: those of memory plans, of which only those
    in `entry`, of the function that a call runs, have a say in its seconds. structure: sites at
    which another choice gives other kernels. other_seconds: predicted for dispatches of no kernel
    site (copies, fills). account: bytes by purpose; what is not known is None.
    """

    graph_id: str
    kernels: tuple[PricedSite, ...]
    plans: tuple[PricedSite, ...]
    structure: tuple[PricedSite, ...]
    entry: frozenset[str]
    other_seconds: float
    account: Account
    target: Target

    @property
    def sites(self) -> Mapping[str, PricedSite]:
        """All sites by key."""
        every = (*self.kernels, *self.plans, *self.structure)
        return {one.site.key: one for one in every}


def priced(program: "Artifact | Lowered", target: Target | None = None) -> PricedProgram:
    """Return the program as numbers.

    target: what a lowered program is for; an artifact names its own. Raises PycError (BAD_ARTIFACT)
    for a damaged memory report.
    """
    if isinstance(program, Artifact):
        return _of_artifact(program)
    account = Account.of(program.signature, program.constants_bytes)
    target = _target("cpu") if target is None else target
    return priced_parts(program.graph_id, program.decisions, account, MemoryReport(), target)


def _of_artifact(artifact: Artifact) -> PricedProgram:
    manifest = artifact.manifest
    report = report_of(artifact)
    made = priced_parts(
        manifest.graph_id,
        artifact.decisions,
        manifest.memory,
        report,
        _target(manifest.target),
    )
    selected = {d.site.key: d for d in artifact.decisions if d.site.pass_name == SELECT}
    kernels = (_with_flops(one, selected[one.site.key], report) for one in made.kernels)
    return replace(made, kernels=tuple(kernels))


def _with_flops(one: PricedSite, decision: Decision, report: MemoryReport) -> PricedSite:
    """Return the site with the operations of its dispatches: the costs of a log have none."""
    names = {one.site.op_id, *_members(decision)}
    tasks = (task for region in report.regions for task in region.tasks)
    flops = math.fsum(task.flops for task in tasks if names.intersection(task.sources))
    return replace(one, costs={name: replace(c, flops=flops) for name, c in one.costs.items()})


@cache
def _target(name: str) -> Target:
    """Return the target of that name; ``cpu`` with the caches and cores of this machine."""
    target, cpu = Target.named(name if name in TARGETS else "cpu"), read_host_cpu()
    if target.name != "cpu" or cpu is None:
        return target
    return target.on(replace(cpu, cores=min(cpu.cores, available_cores())))


def priced_parts(
    graph_id: str,
    decisions: Sequence[Decision],
    account: Account,
    report: MemoryReport,
    target: Target,
) -> PricedProgram:
    """Price a program from what a compile knows of it, with or without code."""
    selected = [d for d in decisions if d.site.pass_name == SELECT]
    computed = {name for d in selected for name in (d.site.op_id, *_members(d))}
    tasks = [task for region in report.regions for task in region.tasks]
    others = [task.seconds for task in tasks if not computed.intersection(task.sources)]
    passes = [d.site.pass_name for d in decisions]
    return PricedProgram(
        graph_id,
        _sites(decisions, (SELECT,)),
        _sites(decisions, (PLAN,)),
        _sites(decisions, [name for name in passes if name not in (SELECT, PLAN, *NOTES)]),
        frozenset(region.name for region in report.regions),
        math.fsum(others),
        account,
        target,
    )


def _sites(decisions: Iterable[Decision], passes: Iterable[str]) -> tuple[PricedSite, ...]:
    """Return the last decision at each site: a fall-back replaces what came before it."""
    wanted = set(passes)
    found = {d.site.key: d for d in decisions if d.site.pass_name in wanted}
    return tuple(
        PricedSite(d.site, d.chosen, {a.name: a.cost or Cost() for a in d.alternatives})
        for d in found.values()
    )


def _members(decision: Decision) -> Iterable[str]:
    """Return the ops that a kernel's group computes."""
    return next((e.ops for e in decision.evidence if isinstance(e, Computes)), ())
