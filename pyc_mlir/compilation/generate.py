"""IREE's part of a compile: a linalg module, one setting of fusion, and out comes a vmfb.

IREE's aggressive fusion makes row-wise programs and small ones up to three times faster, and fails
where it pulls a matrix product into a row reduction (its stack limit) or meets dynamic rows. So
`plain` comes first for programs that hold both. Where both fail, each op is compiled on its own.
Which setting follows which failure is said in `attempts.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pyc_mlir.artifact.memory_report import MemoryReport
from pyc_mlir.compilation.plan_memory import Planning, PlanRequest
from pyc_mlir.iree.compiler import opened, run
from pyc_mlir.iree.memory.arena_choice import ArenaEntry
from pyc_mlir.iree.memory.call_memory import CallBytes
from pyc_mlir.iree.memory.range_checks import assert_ranges
from pyc_mlir.iree.memory.versions import iree_alone, to_async
from pyc_mlir.iree.workarounds.unfused import unfuse
from pyc_mlir.pipelines.choices.choices import Alternative, Decision
from pyc_mlir.pipelines.streams.ranges import Ranges
from pyc_mlir.pipelines.target.target import Target

SITE = "iree-fusion"
# Where ops of constants alone are computed.
CONSTANTS_SITE = "constants"
CONSTANTS: Mapping[str, tuple[str, ...]] = {
    "load": ("--iree-opt-const-eval=false",),
    "compile": (),
}
_WHEN = {
    "load": "when the program is loaded: too much work for a compile",
    "compile": "by IREE, once for all",
}
# What IREE can be told.
SETTINGS: Mapping[str, tuple[str, ...]] = {
    "aggressive": (),
    "plain": ("--iree-dispatch-creation-enable-aggressive-fusion=false",),
}
# What it cannot be told: barriers in the module.
UNFUSED = "unfused"
_FLAGS: Mapping[str, tuple[str, ...]] = {**SETTINGS, UNFUSED: SETTINGS["plain"]}
_WHY = {
    "aggressive": "IREE's O3 default: fewer and larger dispatches",
    "plain": "no products fused into row reductions: within IREE's stack limit",
    UNFUSED: "every op on its own: for what IREE fuses and then has no code for",
}


def offered(first: str) -> list[Alternative]:
    """All settings, `first` before the others."""
    order = sorted(_FLAGS, key=lambda name: name != first)
    return [Alternative(name, reason=_WHY[name]) for name in order]


def places_for_constants() -> list[Alternative]:
    """Where a lot of work on constants may be done, the preferred place first."""
    return [Alternative(name, reason=reason) for name, reason in _WHEN.items()]


@dataclass(frozen=True)
class Generated:
    """What a compile under one setting gives: the vmfb, its entries, and its memory plans.

    `arena` is what came of the second entry. `decisions` and `memory` are those of the plans;
    `added_seconds` is what the plans are predicted to cost above the preferred ones. `reference`
    is what a call of the plain entry needs by IREE's own plan; None where nothing was planned.
    """

    vmfb: bytes
    arena: ArenaEntry | None = None
    decisions: tuple[Decision, ...] = ()
    memory: MemoryReport = field(default_factory=MemoryReport)
    added_seconds: float = 0.0
    reference: CallBytes | None = None


@dataclass(frozen=True)
class Request:
    """What to compile: the module, for what, how, and what its op ids stand for.

    `arena` asks for a second entry, `plans` for memory plans of PyC's. `ranges` are those that
    dynamic dimensions of the arguments keep.
    """

    code: bytes
    target: Target
    flags: tuple[str, ...] = ()
    dump_phases: str | None = None
    locations: Mapping[str, str] | None = None
    arena: ArenaEntry | None = None
    ranges: Ranges = field(default_factory=dict)
    plans: PlanRequest | None = None

    def compile(self, setting: str) -> Generated:
        """Compile under one of SETTINGS, or UNFUSED.

        Raises as `compile_module`, and PycError (BUDGET_IMPOSSIBLE, BUDGET_NOT_FOUND).
        """
        return self._run(setting, with_code=True)

    def plan(self, setting: str) -> Generated:
        """The same up to the memory plan: no code is generated, and `vmfb` is empty."""
        return self._run(setting, with_code=False)

    def _run(self, setting: str, *, with_code: bool) -> Generated:
        flags = (*_FLAGS[setting], *self.flags)
        planning = None if self.plans is None else Planning(self.target, self.plans, self.ranges)
        to_stream = iree_alone if planning is None else planning.run
        # What comes of one setting is no part of what is asked of the next one.
        arena = None if self.arena is None else replace(self.arena)
        vmfb = b""
        with opened(self.code, self.target, flags, self.dump_phases, self.locations) as session:
            if setting == UNFUSED:
                unfuse(session.module)
            run(session, self.target, to="flow")
            assert_ranges(session, "main" if arena is None else arena.function, self.ranges)
            if arena is None:
                to_async(session)
                to_stream(session)
            else:
                arena.compile(session, to_stream)
            if with_code:
                run(session, self.target, start="stream")
                vmfb = session.vmfb()
        if planning is None:
            return Generated(vmfb, arena)
        function = "main" if arena is None else arena.function
        reference = planning.reference.get(function)
        made = planning.decisions, planning.report, planning.added_seconds
        return Generated(vmfb, arena, *made, reference)
