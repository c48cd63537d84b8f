"""Policies that answer the choices: presets of the planner's modes, and third parties'.

A policy prefers among legal alternatives (`choices.Policy`). A policy that affects memory names
in `planner_modes` the plans that it wants to be offered at the sites of pass ``plan-memory``; each
alternative there carries its predicted seconds and its bytes. A third party registers a class
without arguments under the entry point group ``pyc_mlir.policies``; its name is what users type.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.choices.choices import (
    Alternative,
    Decision,
    FirstIsBest,
    Policy,
    Prefers,
    Site,
)
from pyc_mlir.pipelines.choices.evidence import (
    Evidence,
    MeasuredRecipe,
    MeasuredRow,
    NoMeasuredRow,
    RivalRow,
)
from pyc_mlir.pipelines.choices.wisdom import NO_RECIPE, WHOLE, Wisdom, WisdomRow, names_work

GROUP = "pyc_mlir.policies"
# The modes of the memory planner (pipelines/memory/planner/planner.py), by name.
PLANNER_MODES = ("latency_first", "balanced", "memory_first")
DEFAULT_MODE = "balanced"
# The policy of compiles that name none, and the name that people try for it.
DEFAULT, _TRIED = FirstIsBest().name, "default"


@dataclass(frozen=True)
class Preset(Policy):
    """A mode of the planner as a policy: adapters list its own plan first."""

    name: str
    planner_modes: tuple[str, ...]


MIN_SESSIONS, MIN_PROCESSES = 2, 5


@dataclass(frozen=True)
class Ranked:
    """An answer: the alternative's name, and on what grounds."""

    chosen: str
    grounds: MeasuredRow | NoMeasuredRow


@dataclass(frozen=True)
class Fastest(Policy):
    """Prefers what is measured to be fastest on this hardware by this toolchain, else predicted.

    The quickest measured alternative takes the first one's place if it is quicker beyond both
    intervals, in `MIN_SESSIONS` sessions and `MIN_PROCESSES` processes at least: five values of one
    kind all lie below five others of that kind in 1 of 252 orders. A wrong or noisy number alone
    thus never changes a program. Rows of other hardware or toolchains are candidates to measure,
    never results. A recipe by which the program as a whole was measured to be faster than by none,
    by the same rules, answers its sites.

    hardware, toolchain: the hashes of here. require_evidence: a kernel that nothing was measured
    for is refused. whole: the name of the recipe that the program goes by, if any.
    """

    wisdom: Wisdom = field(default_factory=Wisdom)
    hardware: str = ""
    toolchain: str = ""
    require_evidence: bool = False
    whole: str = ""
    name: str = "fastest"

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """Return the name of the fastest. Raises PycError (NO_EVIDENCE) where that is required."""
        planned = self._planned(site)
        if planned in (a.name for a in alternatives):
            return planned
        judged = self.judge(site, alternatives)
        needs = self.require_evidence and len(alternatives) > 1 and names_work(site.work_key)
        if needs and isinstance(judged.grounds, NoMeasuredRow):
            raise PycError(
                ReasonCode.NO_EVIDENCE,
                f"{site.key}: expected a measured row of {site.work[:16]} for this hardware and "
                f"toolchain, got {judged.grounds}; tune the model here with `pyc-tune`, or leave "
                "`require_evidence` out",
            )
        return judged.chosen

    def informed(
        self, wisdom: Wisdom, hardware: str, toolchain: str, require_evidence: bool
    ) -> "Fastest":
        """Return the policy with these measurements, for this hardware and toolchain."""
        return replace(
            self,
            wisdom=wisdom,
            hardware=hardware,
            toolchain=toolchain,
            require_evidence=require_evidence,
        )

    def for_program(self, site: Site) -> tuple["Fastest", tuple[Decision, ...]]:
        """Choose the recipe that was measured to be fastest for the program as a whole."""
        if not self.wisdom.about(WHOLE, site.op_id, site.work):
            return self, ()
        known = [name for name in self.variants(site) if name in self.wisdom.recipes]
        judged = self.judge(site, [Alternative(name) for name in (NO_RECIPE, *known)])
        whole = judged.chosen if judged.chosen in known else ""
        chosen = (Alternative(judged.chosen),)
        decision = Decision(site, judged.chosen, chosen, self.name, grounds=(judged.grounds,))
        return replace(self, whole=whole), (decision,)

    def variants(self, site: Site) -> Sequence[str]:
        """Return the choices that were measured here for a site; some are variants."""
        known = self.wisdom.about(site.pass_name, site.op_id, site.work)
        found = {row.choice for row in known if self._is_here(row)}
        return sorted(found | set(filter(None, (self._planned(site),))))

    def _planned(self, site: Site) -> str:
        """Return the whole program's recipe for a site, its work or its pass; else nothing."""
        recipe = self.wisdom.recipes.get(self.whole, {})
        found = (recipe.get(key) for key in (site.key, site.work_key, site.pass_name))
        return next(filter(None, found), "")

    def evidence(
        self, site: Site, alternatives: Sequence[Alternative], chosen: str
    ) -> Sequence[Evidence]:
        """Return one record for a choice between several, nothing where there is none."""
        if len(alternatives) < 2:
            return ()
        if chosen == self._planned(site):
            return (MeasuredRecipe(self.whole, self.wisdom.label),)
        return (self.judge(site, alternatives).grounds,)

    def judge(self, site: Site, alternatives: Sequence[Alternative]) -> Ranked:
        """Rank the alternatives at a site, with the reason."""
        first = alternatives[0].name
        offered = {a.name for a in alternatives}
        known = self.wisdom.about(site.pass_name, site.op_id, site.work)
        rows = [row for row in known if row.choice in offered]
        here = _comparable([row for row in rows if self._is_here(row)], first)
        if first not in here:
            foreign = sum(not self._is_here(row) for row in rows)
            label = self.wisdom.label if here or foreign else ""
            return Ranked(first, NoMeasuredRow(tuple(sorted(here)), foreign, label))
        quickest = min(here.values(), key=lambda row: (row.seconds, row.choice))
        incumbent = here[first]
        if quickest is incumbent:
            return Ranked(first, self._row(incumbent))
        enough = all(
            row.sessions >= MIN_SESSIONS and row.processes >= MIN_PROCESSES
            for row in (quickest, incumbent)
        )
        clear = enough and quickest.hi < incumbent.lo
        row, other = (quickest, incumbent) if clear else (incumbent, quickest)
        rival = RivalRow(other.choice, other.seconds, other.lo, other.hi, clear, enough)
        return Ranked(row.choice, self._row(row, rival))

    def _is_here(self, row: WisdomRow) -> bool:
        return (row.hardware, row.toolchain) == (self.hardware, self.toolchain)

    def _row(self, row: WisdomRow, rival: RivalRow | None = None) -> MeasuredRow:
        return MeasuredRow(
            row.seconds,
            row.lo,
            row.hi,
            row.clock,
            row.sessions,
            row.processes,
            row.constants,
            self.wisdom.label,
            rival,
        )


def _comparable(rows: Sequence[WisdomRow], first: str) -> dict[str, WisdomRow]:
    """Return rows by choice that were measured alike: one context, clock, state of constants.

    Of several such sets the one with `first`, then the largest, then warm before cold; several rows
    of one choice are not merged: the one of most sessions stands.
    """
    sets: dict[tuple[str, str, str], dict[str, WisdomRow]] = {}
    for row in sorted(rows, key=lambda r: (r.sessions, r)):
        sets.setdefault((row.constants, row.clock, row.context), {})[row.choice] = row
    if not sets:
        return {}
    ranked = sorted(sets.items(), key=lambda item: item[0], reverse=True)
    return max(ranked, key=lambda item: (first in item[1], len(item[1])))[1]


BUILT_IN: dict[str, Policy] = {
    DEFAULT: FirstIsBest(),
    "fastest": Fastest(),
    **{mode: Preset(mode, (mode,)) for mode in PLANNER_MODES},
}


def planner_modes(policy: Policy) -> tuple[str, ...]:
    """Return the modes whose plans `policy` is offered.

    Raises PycError (BAD_ARGUMENT) for a mode that does not exist, and for an attribute that is no
    list of names.
    """
    wanted = policy.planner_modes
    listed = isinstance(wanted, tuple | list) and len(wanted) > 0
    unknown = [m for m in wanted if m not in PLANNER_MODES] if listed else [wanted]
    if unknown:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"policy `{policy.name}`: expected planner modes of {sorted(PLANNER_MODES)}, "
            f"got {unknown[0]!r}",
        )
    return tuple(wanted)


def load_policy(name: str) -> Prefers:
    """Load the policy of that name: a built-in one, or one that an installed package registers.

    Raises PycError (BAD_ARGUMENT) with all names, or with the reason why loading failed.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    from importlib.metadata import entry_points  # 20 ms that most runs need not pay

    registered = {point.name: point for point in entry_points(group=GROUP)}
    if name not in registered:
        hint = did_you_mean(DEFAULT if name == _TRIED else name, (*BUILT_IN, *registered))
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"policy: expected one of {', '.join(sorted({*BUILT_IN, *registered}))}, got {name!r}"
            f"{hint}",
        )
    return _made(registered[name])


def _made(point: Any) -> Prefers:
    """Make an entry point's policy. Any error of a plugin is reported under its name."""
    try:
        policy = point.load()()
    except Exception as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"policy `{point.name}` ({point.value}): expected a class that can be made without "
            f"arguments, got {type(error).__name__}: {error}",
        ) from error
    if not isinstance(policy, Prefers) or not isinstance(policy.name, str):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"policy `{point.name}` ({point.value}): expected `name` and `prefer(site, "
            f"alternatives)`, got {type(policy).__name__}",
        )
    return policy
