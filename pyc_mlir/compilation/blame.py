"""Find the decisions that make a program wrong: its choices against the plainest ones.

Comes in: a program that fails its comparison, and how to compile and compare it again. Goes out:
the decisions that suffice to make it wrong, found by bisection. In the plainest program every op is
on its own, with IREE's code.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.compilation.culprits import NothingToFind, find_culprits
from pyc_mlir.compilation.options import Options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.calibration_choice import SITE as CALIBRATION_SITE
from pyc_mlir.pipelines.choices.choices import Alternative, Decision, Recipe, Site

# The site of a stand-in for a wrong program (contract_check.py).
ORACLE = "oracle"
# Where a program enters is no decision that makes it wrong.
_FIRST = ("raise",)
# What passes call the alternative that changes nothing; elsewhere it is the last one.
_PLAIN = ("keep", "iree", "none", "unfused")


class WrongResult(PycError):
    """A program that its own compile found wrong; `blamed` are the decisions that make it so."""

    def __init__(self, found: str, blamed: Sequence[Decision]) -> None:
        """found: what differs; none is blamed where the plainest program is wrong too."""
        named = ", ".join(f"{d.chosen!r} at {d.site.key}" for d in blamed)
        cause = f"made wrong by {named}" if blamed else "no single decision is to blame"
        super().__init__(
            ReasonCode.WRONG_RESULT,
            f"{found}; {cause}; report it, choose otherwise with a recipe, or compile with "
            "`check=False` to have the program as it is",
        )
        self.blamed = tuple(blamed)


@dataclass(frozen=True)
class Plainest:
    """A policy that prefers what changes a program least."""

    name: str = "plainest"

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """The name of the plain alternative; of the first one where a program enters."""
        names = [a.name for a in alternatives]
        if site.pass_name in _FIRST:
            return names[0]
        return next((n for n in _PLAIN if n in names), names[-1])


def differing(good: Mapping[str, str], bad: Mapping[str, str]) -> list[str]:
    """The sites of choices that differ, those of the bad choices first, in their order."""
    apart = (CALIBRATION_SITE.key, f"{ORACLE}:")
    sites = [s for s in dict.fromkeys((*bad, *good)) if good.get(s) != bad.get(s)]
    return [s for s in sites if not s.startswith(apart)]


def mixed(
    good: Mapping[str, str], bad: Mapping[str, str], sites: Sequence[str], applied: Sequence[str]
) -> Recipe:
    """The good choices, but for the sites in `applied`, and what both chose alike."""
    found = {s: c for s, c in bad.items() if good.get(s) == c}
    for site in sites:
        chosen = (bad if site in applied else good).get(site)
        if chosen is not None:
            found[site] = chosen
    return Recipe(found, tolerant=True)


def blamed(
    wrong: Artifact,
    options: Options,
    build: Callable[[Options], Artifact],
    is_wrong: Callable[[Artifact], bool],
) -> tuple[Decision, ...]:
    """The decisions of a wrong program that make it so; none where the plainest one is wrong too.

    build: compiles under other options. is_wrong: whether a program fails the comparison.
    """
    tried = replace(options, check=False, policy=Plainest(), recipe=None)
    try:
        good = Recipe.from_log(build(tried).decisions).choices
    except PycError:
        return ()
    bad = Recipe.from_log(wrong.decisions).choices
    sites = differing(good, bad)

    def is_bad(applied: Sequence[str]) -> bool | None:
        try:
            return is_wrong(build(replace(tried, recipe=mixed(good, bad, sites, applied))))
        except PycError:
            return None

    try:
        found = find_culprits(sites, is_bad).changes
    except NothingToFind:
        return ()
    return tuple(d for d in wrong.decisions if d.site.key in found)
