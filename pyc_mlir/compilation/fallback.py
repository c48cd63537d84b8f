"""Compile, and if IREE's code generation gives up, compile again with less fusion.

IREE's aggressive fusion makes row-wise programs and small ones up to three times faster, and fails
where it pulls a matrix product into a row reduction (its stack limit) or meets dynamic rows. So
`plain` comes first for programs that hold both. A failure of the setting that comes first is not
silent: the fallback is recorded as a decision with IREE's words as evidence. Where both fail, each
op is compiled on its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.compiler import opened, run
from pyc_mlir.iree.memory.arena_choice import ArenaEntry, Way
from pyc_mlir.iree.memory.budget import BudgetNotKept
from pyc_mlir.iree.memory.range_checks import assert_ranges
from pyc_mlir.iree.session import CompileError
from pyc_mlir.iree.workarounds.unfused import unfuse
from pyc_mlir.pipelines.choices.choices import FALLBACK, Alternative, Choices, Decision, Site
from pyc_mlir.pipelines.streams.ranges import Ranges
from pyc_mlir.pipelines.target.target import Target

SITE = "iree-fusion"
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
_EVIDENCE_CHARACTERS = 300


@dataclass(frozen=True)
class Request:
    """What to compile: the module, for what, how, and what its op ids stand for.

    `arena` asks for a second entry, and is told what came of it. `ranges` are those that dynamic
    dimensions of the arguments keep.
    """

    code: bytes
    target: Target
    flags: tuple[str, ...] = ()
    dump_phases: str | None = None
    locations: Mapping[str, str] | None = None
    arena: ArenaEntry | None = None
    ranges: Ranges = field(default_factory=dict)

    def compile(self, setting: str) -> bytes:
        """The vmfb under one of SETTINGS, or UNFUSED. Raises as `compile_module`."""
        flags = (*_FLAGS[setting], *self.flags)
        with opened(self.code, self.target, flags, self.dump_phases, self.locations) as session:
            if setting == UNFUSED:
                unfuse(session.module)
            run(session, self.target, to="flow")
            assert_ranges(session, self.function, self.ranges)
            if self.arena is None:
                self.way.whole(session)
            else:
                self.arena.compile(session, self.way)
            run(session, self.target, start="stream")
            return session.vmfb()

    @property
    def function(self) -> str:
        """The entry of the plain ABI."""
        return "main" if self.arena is None else self.arena.function

    @property
    def way(self) -> Way:
        """From the end of phase `flow` to that of `stream`: IREE's own."""
        return Way(lambda session: session.run(start="flow", to="stream"))


def compile_with_fallback(
    request: Request, graph_id: str, choices: Choices, first: str = "aggressive"
) -> bytes:
    """The vmfb under the chosen setting, or under the next one that succeeds if that fails.

    `first` is the setting that is offered first, as the better one. Raises what is no failure of
    code generation as it is: at once, but a budget that a fallback does not keep (BudgetNotKept,
    the smallest need of all) when no other one does. Raises the first failure when all fail.
    """
    order = sorted(_FLAGS, key=lambda name: name != first)
    alternatives = [Alternative(name, reason=_WHY[name]) for name in order]
    site = Site(SITE, graph_id or "module")
    chosen = choices.choose(site, alternatives).name
    try:
        return request.compile(chosen)
    except PycError as error:
        if error.code is not ReasonCode.TARGET_COMPILE_FAILED:
            raise
        return _fall_back(request, site, chosen, error, choices)


def _fall_back(
    request: Request, site: Site, failed: str, error: PycError, choices: Choices
) -> bytes:
    """Try the settings that are left, in order; the fallback becomes the decision for the site."""
    failures: dict[str, PycError] = {failed: error}
    refused: BudgetNotKept | None = None
    for name in (n for n in _FLAGS if n != failed):
        try:
            vmfb = request.compile(name)
        except BudgetNotKept as over:
            failures[name] = over
            refused = over if refused is None else refused.or_better(over)
            continue
        except CompileError as again:
            failures[name] = again
            continue
        code = ReasonCode.CODEGEN_FALLBACK
        evidence = tuple(_told(setting, e, code) for setting, e in failures.items())
        alternatives = choices.log[-1].alternatives
        choices.log[-1] = Decision(
            site, name, alternatives, FALLBACK, tuple(e[:_EVIDENCE_CHARACTERS] for e in evidence)
        )
        return vmfb
    raise error if refused is None else refused


def _told(setting: str, error: PycError, code: ReasonCode) -> str:
    """Why a setting was left, for the decision: `code`, or that of a budget not kept."""
    if isinstance(error, BudgetNotKept):
        return f"{ReasonCode.BUDGET_RETRY.name}: {setting}: {error.message}"
    # Only IREE's words: the message's location may hold a path, and artifacts carry none.
    return f"{code.name}: {setting}: {error.message.partition('got: ')[2]}"
