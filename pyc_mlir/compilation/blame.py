"""Find the decisions that make a program wrong: its choices against the plainest ones.

Comes in: a program that fails its comparison, and how to compile and compare it again. Goes out:
the decisions that suffice to make it wrong. In the plainest program every op is on its own, with
IREE's code.

`find_culprits` does so for any changes in order with a test of some of them together. For one
culprit among n that is 3 + ceil(log2 n) tests: nothing applied, all applied, a bisection of the
prefixes, and the culprit alone. Changes may depend on each other: as long as those found do not
suffice, the next one is searched for below the last, in the same way (the search for a minimal
failing set of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE
28(2), 2002, with prefixes in place of partitions).
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.compilation.options import Options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.calibration_choice import SITE as CALIBRATION_SITE
from pyc_mlir.pipelines.choices.choices import Alternative, Decision, Recipe, Site

Change = TypeVar("Change", bound=Hashable)
# True: bad; False: good; None: it cannot be told, such as where these do not go together.
Test = Callable[[Sequence[Change]], bool | None]
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
        """Return the name of the plain alternative; of the first one where a program enters."""
        names = [a.name for a in alternatives]
        if site.pass_name in _FIRST:
            return names[0]
        return next((n for n in _PLAIN if n in names), names[-1])


def differing(good: Mapping[str, str], bad: Mapping[str, str]) -> list[str]:
    """Return the sites of choices that differ, those of the bad choices first, in their order."""
    apart = (CALIBRATION_SITE.key, f"{ORACLE}:")
    sites = [s for s in dict.fromkeys((*bad, *good)) if good.get(s) != bad.get(s)]
    return [s for s in sites if not s.startswith(apart)]


def mixed(
    good: Mapping[str, str], bad: Mapping[str, str], sites: Sequence[str], applied: Sequence[str]
) -> Recipe:
    """Return the good choices, but for the sites in `applied`, and what both chose alike."""
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
    """Return the decisions that make a program wrong; none where the plainest one is wrong too.

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


@dataclass(frozen=True)
class Culprits(Generic[Change]):
    """The changes that make it bad together; for a monotone test none can be left out.

    Where tests could not tell, a change has neighbours that could not be told from it. `tests` is
    how many were asked, `untold` how many of them had no answer.
    """

    changes: tuple[Change, ...]
    tests: int
    untold: int


class NothingToFind(ValueError):
    """The test says nothing of the changes: it is not good without them, or not bad with all."""

    def __init__(self, applied: str, answer: bool | None) -> None:
        super().__init__(applied)
        self.applied, self.answer = applied, answer


def find_culprits(changes: Sequence[Change], is_bad: Test[Change]) -> Culprits[Change]:
    """Return the changes that make it bad. Raises NothingToFind unless none is good, all bad."""
    search = _Search(tuple(changes), is_bad)
    for applied, wanted in (("none", False), ("all", True)):
        answer = search.ask(search.changes if wanted else ())
        if answer is not wanted:
            raise NothingToFind(applied, answer)
    found: tuple[Change, ...] = ()
    rest = search.changes
    while rest:
        low, high = search.step(rest, found)
        found, rest = (*rest[low:high], *found), rest[:low]
        if search.ask(found):
            break
    return Culprits(found, len(search.answers), sum(a is None for a in search.answers.values()))


class _Search(Generic[Change]):
    """Asks each question once; changes are applied in their own order."""

    def __init__(self, changes: tuple[Change, ...], is_bad: Test[Change]) -> None:
        self.changes = changes
        self.answers: dict[tuple[Change, ...], bool | None] = {}
        self._is_bad = is_bad

    def ask(self, applied: Sequence[Change]) -> bool | None:
        """Return whether it is bad with these."""
        key = tuple(applied)
        if key not in self.answers:
            self.answers[key] = self._is_bad(key)
        return self.answers[key]

    def step(self, rest: Sequence[Change], found: Sequence[Change]) -> tuple[int, int]:
        """Find the prefixes of `rest` between which, beside the culprits found, good turns bad.

        All of `rest` is bad and none of it is not; they are next to each other, but for prefixes
        that cannot be told.
        """
        low, high = 0, len(rest)
        untold: set[int] = set()
        while open_ := [k for k in range(low + 1, high) if k not in untold]:
            middle = min(open_, key=lambda k: (abs(2 * k - low - high), k))
            answer = self.ask((*rest[:middle], *found))
            if answer is None:
                untold.add(middle)
            elif answer:
                high = middle
            else:
                low = middle
        return low, high
