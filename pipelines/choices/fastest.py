"""The policy `fastest`: measured seconds where wisdom has them, else predicted ones.

Passes list alternatives by predicted seconds, best first. Where wisdom has rows of this hardware
and this toolchain, the quickest measured alternative takes the first one's place, if it is measured
to be quicker beyond both intervals, in `MIN_SESSIONS` sessions and `MIN_PROCESSES` processes at
least: five values of one kind all lie below five others of that kind in 1 of 252 orders. A wrong or
noisy number alone thus never changes a program. Rows of other hardware or toolchains are candidates
to measure, never results. Every decision records which of these cases applied, with the
wisdom's hash.

Where a program as a whole was measured to be faster by some recipe than by none, by the same rules,
that recipe answers its sites, and rows of single choices answer the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.choices import Alternative, Decision, Site
from pyc_mlir.pipelines.choices.evidence import (
    Evidence,
    MeasuredRecipe,
    MeasuredRow,
    NoMeasuredRow,
    RivalRow,
)
from pyc_mlir.pipelines.choices.wisdom import NO_RECIPE, WHOLE, Wisdom, WisdomRow, names_work

MIN_SESSIONS, MIN_PROCESSES = 2, 5


@dataclass(frozen=True)
class Ranked:
    """An answer: the alternative's name, and on what grounds."""

    chosen: str
    grounds: MeasuredRow | NoMeasuredRow


@dataclass(frozen=True)
class Fastest:
    """Prefers what is measured to be fastest on this hardware by this toolchain.

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
