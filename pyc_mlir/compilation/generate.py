"""IREE's part of a compile: a lowered program and one setting of fusion become a vmfb.

    with plan(lowered, request) as planned:     # dispatches and memory are fixed
        generated = generate(planned)

IREE's aggressive fusion makes row-wise programs and small ones up to three times faster, and fails
where it pulls a matrix product into a row reduction (its stack limit) or meets dynamic rows. So
`plain` comes first for programs that hold both. Where both fail, each op is compiled on its own.
Which setting follows which failure is said in `attempts.py`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyc_mlir.compilation.lower import Lowered
from pyc_mlir.compilation.plan_memory import MemoryPlan, PlanRequest, plan_memory
from pyc_mlir.iree.compiler import opened, run
from pyc_mlir.iree.memory.arena_choice import ArenaEntry, EntryRequest, make_entry
from pyc_mlir.iree.memory.range_checks import assert_ranges
from pyc_mlir.iree.memory.versions import iree_alone, to_async
from pyc_mlir.iree.session import IreeSession
from pyc_mlir.iree.workarounds.unfused import unfuse
from pyc_mlir.pipelines.choices.choices import Alternative
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
    """Return all settings, `first` before the others."""
    order = sorted(_FLAGS, key=lambda name: name != first)
    return [Alternative(name, reason=_WHY[name]) for name in order]


def places_for_constants() -> list[Alternative]:
    """Return where a lot of work on constants may be done, the preferred place first."""
    return [Alternative(name, reason=reason) for name, reason in _WHEN.items()]


@dataclass(frozen=True)
class Request:
    """A request to compile a lowered program: for which target, and how.

    setting: of IREE's fusion, one of SETTINGS or UNFUSED.
    entry: asks for a second entry. plans: asks for memory plans of PyC's.
    verify: whether IREE verifies PyC's own IR after each pass; it always does that of others.
    """

    target: Target
    setting: str = "aggressive"
    flags: tuple[str, ...] = ()
    dump_phases: str | None = None
    entry: EntryRequest | None = None
    plans: PlanRequest | None = None
    verify: bool = True


@dataclass(frozen=True)
class Planned:
    """A program up to its memory plan, in a session that is open; no code was generated."""

    session: IreeSession
    request: Request
    entry: ArenaEntry | None
    memory: MemoryPlan


@dataclass(frozen=True)
class Generated:
    """A compiled program: its code, its entries, and its memory plans."""

    vmfb: bytes
    request: Request
    entry: ArenaEntry | None = None
    memory: MemoryPlan = field(default_factory=MemoryPlan)


@contextmanager
def plan(lowered: Lowered, request: Request) -> Iterator[Planned]:
    """Yield a program up to its memory plan.

    Raises as `compile_module`, and PycError (BUDGET_IMPOSSIBLE, BUDGET_NOT_FOUND).
    """
    target, flags = request.target, (*_FLAGS[request.setting], *request.flags)
    ranges = lowered.signature.ranges_of_inputs

    def to_stream(session: IreeSession) -> MemoryPlan:
        if request.plans is not None:
            return plan_memory(session, target, request.plans, ranges)
        iree_alone(session)
        return MemoryPlan()

    verify = request.verify or not lowered.graph_id
    at = lowered.locations
    with opened(lowered.code, target, flags, request.dump_phases, at, verify) as session:
        if request.setting == UNFUSED:
            unfuse(session.module)
        run(session, target, to="flow")
        assert_ranges(session, lowered.entry, ranges)
        for function, shapes in lowered.shape_plans.items():
            assert_ranges(session, function, lowered.signature.places_of(shapes.open))
        if request.entry is None:
            to_async(session)
            yield Planned(session, request, None, to_stream(session))
        else:
            yield Planned(session, request, *make_entry(session, request.entry, to_stream))


def generate(planned: Planned) -> Generated:
    """Generate the code of a planned program. Raises as `compile_module`."""
    run(planned.session, planned.request.target, start="stream")
    vmfb = planned.session.vmfb()
    return Generated(vmfb, planned.request, planned.entry, planned.memory)


def compiled(lowered: Lowered, request: Request) -> Generated:
    """Plan a program and generate its code. Raises as `plan`."""
    with plan(lowered, request) as planned:
        return generate(planned)
