"""The seam: every choice that PyC makes goes through `Choices.choose`.

A pass finds out what is legal and offers the legal alternatives; a `Recipe` replays an earlier
answer, else a `Policy` prefers one; the answer is recorded as a `Decision`. A bad policy can
therefore make a program slow, never wrong. All of a decision but its `measured` object is
deterministic, byte for byte.

An alternative may have variants: the same kernel with other knobs, called
``gemm:matmul[height=4]``. There are too many to list. A pass gives them as `Variants`; recipes and
policies name one, and the pass builds and checks it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import PurePath
from typing import Any, ClassVar, Protocol, runtime_checkable

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.pipelines.choices.evidence import (
    CarriedOver,
    Evidence,
    NotCarried,
    as_evidence,
)
from pyc_mlir.pipelines.choices.space import Config, KnobSpace, variant_name
from pyc_mlir.pipelines.target.cost import Cost

# Of logs, and of the decisions in artifacts.
SCHEMA_VERSION = 3
# Who decided where the first choice failed.
FALLBACK = "fallback"
# The decider of a choice that a recipe transfers from another program.
RECIPE = "recipe"


@dataclass(frozen=True)
class Alternative:
    """One legal answer: its stable name, what it is predicted to cost, and why one would."""

    name: str
    cost: Cost | None = None
    reason: str = ""


@dataclass(frozen=True)
class Site:
    """The place of a choice: the pass and the canonical id of the op; `location` is for people.

    `work` is the key that sites of other programs may share: the id of a kernel's work
    (`pipelines/target/work.py`), the op's id with constants by type, or the structure of a whole
    program (`dialects/ir/ids.py`). Two sites of one pass with equal `work` have the same
    choice to make.
    """

    pass_name: str
    op_id: str
    location: str = ""
    work: str = ""

    @property
    def key(self) -> str:
        """The key of recipes: ``pass:op-id``."""
        return f"{self.pass_name}:{self.op_id}"

    @property
    def work_key(self) -> str:
        """The key of other programs' recipes and of evidence: ``pass:work``, or nothing."""
        return f"{self.pass_name}:{self.work}" if self.work else ""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The model's own nodes: names, or ``model.py:12`` for a line; none without a location."""
        names = (_node_name(match) for match in _NODE.finditer(self.location))
        return tuple(dict.fromkeys(one_line(name) for name in names if name))

    @property
    def without_paths(self) -> "Site":
        """The site with the names of its nodes for its location, which names files."""
        return replace(self, location=", ".join(f'"{_QUOTED.sub("_", n)}"' for n in self.nodes))


# In a location as MLIR prints it: a name with the place of what has it, a line of a file, or what
# `Site.without_paths` leaves of them.
_TEXT = r'"((?:[^"\\]|\\.)*)"'
_NODE = re.compile(rf"{_TEXT}\({_TEXT}:\d+:\d+\)|{_TEXT}:(\d+):\d+|{_TEXT}")
_QUOTED = re.compile(r'["\\]')


def _node_name(match: "re.Match[str]") -> str:
    name, _, file, line, alone = match.groups()
    return f"{PurePath(file).name}:{line}" if file is not None else name or alone or ""


class Variants(Protocol):
    """Legal answers at a site beyond those that are listed."""

    def alternative(self, name: str) -> Alternative | None:
        """Return the variant of that name; None if it cannot be built."""
        ...

    def spaces(self) -> Mapping[str, KnobSpace]:
        """Return the spaces around listed alternatives that have any, by name."""
        ...


@dataclass(frozen=True)
class TunableSite:
    """A site at which there is something to choose: alternatives as they were listed, best first.

    `spaces` are by the name of the alternative; each one's default is that alternative.
    """

    site: Site
    alternatives: tuple[Alternative, ...]
    spaces: Mapping[str, KnobSpace] = field(default_factory=dict)

    def choice(self, alternative: str, config: Config) -> str:
        """Return the name that recipes have for a configuration of an alternative's space."""
        return variant_name(alternative, self.spaces[alternative].label(config))


@dataclass(frozen=True)
class _Offered:
    """The possible answers at a site, by name: the listed ones, and variants of them."""

    listed: tuple[Alternative, ...]
    variants: Variants | None

    def get(self, name: str) -> Alternative | None:
        found = next((a for a in self.listed if a.name == name), None)
        if found is None and self.variants is not None:
            return self.variants.alternative(name)
        return found

    def with_those(self, names: Iterable[str]) -> tuple[Alternative, ...]:
        """Return the listed alternatives, then the variants among `names`, once each."""
        listed = {a.name for a in self.listed}
        more = (self.get(name) for name in dict.fromkeys(names) if name not in listed)
        return (*self.listed, *(a for a in more if a is not None))


@runtime_checkable
class Prefers(Protocol):
    """The least that a policy is: an object with a name and a preference (`as_policy`)."""

    @property
    def name(self) -> str:
        """The name that signs decisions."""
        ...

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """Return the name of one alternative."""
        ...


class Measurements(Protocol):
    """Rows of measured seconds that a policy goes by (wisdom.py)."""

    @property
    def rows(self) -> Sequence[Any]:
        """A row for each measured choice."""
        ...

    @property
    def label(self) -> str:
        """The name in decisions."""
        ...

    @cached_property
    def hash(self) -> str:
        """The hash of the content."""
        ...


class Policy:
    """Prefers one of the legal alternatives; a subclass overrides what it decides otherwise.

    planner_modes: the memory planner's modes whose plans it wants to be offered. co_selects: under
    a budget that its choices miss, kernels and parts are chosen together. prepares: it looks at
    the whole program before that is compiled: it has a `prepare` of its own. wisdom: its rows.
    """

    name: str
    planner_modes: tuple[str, ...] = ("balanced",)
    co_selects: bool = False
    prepares: bool = False
    wisdom: Measurements | None = None

    def __init_subclass__(cls) -> None:
        cls.prepares = cls.prepare is not Policy.prepare

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """Return the name of one alternative: the first, since passes list the best one first."""
        return alternatives[0].name

    def variants(self, site: Site) -> Sequence[str]:
        """Return names of variants to consider at a site, in order; unknown ones are left out."""
        return ()

    def evidence(
        self, site: Site, alternatives: Sequence[Alternative], chosen: str
    ) -> Sequence["Evidence | str"]:
        """Return the facts for which `chosen` is preferred; a plain text becomes a `Note`."""
        return ()

    def prepare(self, job: Any, stage: Any) -> Any:
        """Return the options to compile a job with; `stage` is a context manager for each step."""
        return job.options

    def informed(
        self, wisdom: Any, hardware: str, toolchain: str, require_evidence: bool
    ) -> "Policy":
        """Return the policy with measured rows. Raises PycError (BAD_ARGUMENT): it uses none."""
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            "policy: expected `fastest` or `explore` beside wisdom and require_evidence, got "
            f"`{self.name}`, which uses no measurements",
        )

    def for_program(self, site: Site) -> tuple["Policy", tuple["Decision", ...]]:
        """Return the policy for one program, and its decision for all of it if there is one."""
        return self, ()


# What `as_policy` takes of an object of another class.
_HOOKS = (
    *("name", "planner_modes", "co_selects", "wisdom", "prefer", "variants", "evidence"),
    *("prepare", "informed", "for_program"),
)


@dataclass(frozen=True)
class Adapted(Policy):
    """An object of another class as a policy: what it lacks is as in `Policy`."""

    given: Prefers

    def __post_init__(self) -> None:
        """Take over what the object has."""
        own = {hook: getattr(self.given, hook) for hook in _HOOKS if hasattr(self.given, hook)}
        vars(self).update(own, prepares="prepare" in own)


def as_policy(given: Prefers) -> Policy:
    """Return what a user gives as a policy."""
    return given if isinstance(given, Policy) else Adapted(given)


@dataclass(frozen=True)
class FirstIsBest(Policy):
    """The policy `heuristic`, for compiles that name none: passes list alternatives best first."""

    name: str = "heuristic"
    co_selects: ClassVar[bool] = True


@dataclass(frozen=True)
class Decision:
    """One choice made: what was chosen, what was turned down, and by whom.

    evidence: what the pass found, and finds again in a replay. grounds: what the policy or recipe
    that decided rests on, or why a fallback took the place of the first choice; a replay keeps it.
    """

    kind: ClassVar[str] = "decision"
    schema: ClassVar[int] = SCHEMA_VERSION
    site: Site
    chosen: str
    alternatives: tuple[Alternative, ...]
    decided_by: str
    evidence: tuple[Evidence, ...] = ()
    grounds: tuple[Evidence, ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)

    @property
    def facts(self) -> tuple[Evidence, ...]:
        """The evidence, then the grounds."""
        return (*self.evidence, *self.grounds)


@dataclass(frozen=True)
class Recipe:
    """The projection {site: choice} of a log; passes run from a recipe alone.

    `origins` keeps who decided and on what grounds, so that a replay writes the same log; the
    evidence of passes is found again.
    `graph_id` is that of the only program that it may be used for; empty allows all. A `tolerant`
    one, mixed of several logs for an experiment, leaves what does not apply to the policy.
    `made_for` is the graph that its log was written for, if that is known. For another graph it
    answers by `works`, {pass:work: choice} of what was chosen alike at all sites of that work, and
    leaves the rest to the policy.
    """

    choices: Mapping[str, str]
    origins: Mapping[str, tuple[str, tuple[Evidence, ...]]] = field(default_factory=dict)
    graph_id: str = ""
    tolerant: bool = False
    made_for: str = ""
    works: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def from_log(decisions: Iterable[Decision], made_for: str = "") -> "Recipe":
        """Keep what was chosen and by whom, drop what it was chosen over."""
        made = list(decisions)
        origins = {d.site.key: (d.decided_by, d.grounds) for d in made}
        choices = {d.site.key: d.chosen for d in made}
        works: dict[str, set[str]] = {}
        for d in made:
            works.setdefault(d.site.work_key, set()).add(d.chosen)
        alike = {w: chosen.pop() for w, chosen in works.items() if w and len(chosen) == 1}
        return Recipe(choices, origins, made_for=made_for, works=alike)


def portable(decisions: Iterable[Decision]) -> dict[str, str]:
    """Return the choices of a log by site, and by work if all sites of it were answered alike.

    A whole recipe that evidence keeps: programs of the same structure find their sites by work.
    """
    recipe = Recipe.from_log(decisions)
    return {**recipe.works, **recipe.choices}


@dataclass
class Choices:
    """Answers choices from a recipe or a policy, and is the only writer of the log.

    With a recipe, a site that it lacks is answered by the policy; a site whose recorded choice is
    not offered any more raises RECIPE_MISMATCH, never a silent change.
    """

    policy: Prefers = field(default_factory=FirstIsBest)
    recipe: Recipe | None = None
    _log: list[Decision] = field(default_factory=list, init=False)
    _asked: dict[Site, _Offered] = field(default_factory=dict, init=False)

    @property
    def by(self) -> Policy:
        """The policy with all that a `Policy` has."""
        return as_policy(self.policy)

    def under(self, policy: Policy, *decisions: Decision) -> "Choices":
        """Return choices that another policy answers from now on, after further decisions."""
        made = Choices(policy, self.recipe)
        made.record(*self.log, *decisions)
        made._asked.update(self._asked)
        return made

    @property
    def log(self) -> tuple[Decision, ...]:
        """The decisions so far, in order."""
        return tuple(self._log)

    @property
    def tunable(self) -> tuple[TunableSite, ...]:
        """The sites so far with more than one alternative, or a space, in order."""
        sites = (
            TunableSite(site, offered.listed, offered.variants.spaces() if offered.variants else {})
            for site, offered in self._asked.items()
        )
        return tuple(s for s in sites if len(s.alternatives) > 1 or s.spaces)

    def choose(
        self,
        site: Site,
        alternatives: Sequence[Alternative],
        evidence: Sequence[Evidence] = (),
        variants: Variants | None = None,
    ) -> Alternative:
        """Return one of `alternatives`, or a variant, and record the decision.

        The record lists the alternatives, and behind them a variant that was chosen.

        Raises PycError: INVALID_CHOICE when the policy names none of them, RECIPE_MISMATCH when
        the recipe does.
        """
        assert alternatives, "a choice without legal alternatives is the pass's fault"
        offered = self._asked[site] = _Offered(tuple(alternatives), variants)
        recorded = self._recorded(site, offered)
        carried = self._carried(site, offered) if recorded is None else None
        considered = offered.with_those(self.by.variants(site))
        name = recorded or carried or self.policy.prefer(site, considered)
        answer = offered.get(name)
        if answer is None:
            code = ReasonCode.INVALID_CHOICE if recorded is None else ReasonCode.RECIPE_MISMATCH
            source = f"policy `{self.policy.name}`" if recorded is None else "the recipe"
            listed = sorted(a.name for a in alternatives)
            more = "" if variants is None else " or a legal variant of one"
            raise PycError(
                code, f"{site.key}: expected one of {listed}{more}, {source} answered {name!r}"
            )
        by, grounds = self._grounds(site, considered, name, recorded, carried)
        # What failed before a fallback does not fail again: it is not tried.
        found = () if by == FALLBACK else tuple(evidence)
        self.record(Decision(site, name, offered.with_those([name]), by, found, grounds))
        return answer

    def _recorded(self, site: Site, offered: _Offered) -> str | None:
        """Return the choice that the recipe has for this very site."""
        if self.recipe is None or site.key not in self.recipe.choices:
            return None
        found = self.recipe.choices[site.key]
        return None if self.recipe.tolerant and offered.get(found) is None else found

    def _carried(self, site: Site, offered: _Offered) -> str | None:
        """Return the choice that another graph's recipe has for a site's work, if it is offered."""
        if self.recipe is None or not self.recipe.made_for or not site.work:
            return None
        found = self.recipe.works.get(site.work_key)
        return found if found is not None and offered.get(found) is not None else None

    def _grounds(
        self,
        site: Site,
        alternatives: Sequence[Alternative],
        name: str,
        recorded: str | None,
        carried: str | None,
    ) -> tuple[str, tuple[Evidence, ...]]:
        if recorded is not None and self.recipe is not None:
            return self.recipe.origins.get(site.key, (RECIPE, ()))
        if carried is not None:
            return RECIPE, (CarriedOver(site.work),)
        grounds = as_evidence(self.by.evidence(site, alternatives, name))
        if self.recipe is not None and self.recipe.made_for and len(alternatives) > 1:
            grounds = (*grounds, NotCarried())
        return self.policy.name, grounds

    def record(self, *decisions: Decision) -> None:
        """Append decisions that were made elsewhere."""
        self._log += decisions

    def record_fallback(self, site: Site, chosen: str, reasons: Sequence[Evidence]) -> None:
        """Replace the last decision at `site`: its choice failed, and `chosen` took its place.

        The alternatives stay; `reasons` say why the first choice was left.
        """
        at = self._last(site)
        alternatives = self._log[at].alternatives
        self._log[at] = Decision(site, chosen, alternatives, FALLBACK, grounds=tuple(reasons))

    def annotate(self, site: Site, *evidence: Evidence) -> None:
        """Replace the pass's evidence in the last decision at `site` by what was found later."""
        at = self._last(site)
        self._log[at] = replace(self._log[at], evidence=evidence)

    def _last(self, site: Site) -> int:
        """Return the number of the last decision at a site, which must have one."""
        found = [i for i, decision in enumerate(self._log) if decision.site.key == site.key]
        assert found, f"{site.key}: nothing was decided there"
        return found[-1]

    def require_recipe_used(self, graph_id: str = "") -> None:
        """Raise PycError (RECIPE_MISMATCH) when the recipe names sites that never came up.

        One that was made for another graph than `graph_id` has to answer one site at least.
        """
        if self.recipe is None or self.recipe.tolerant:
            return
        unused = sorted(set(self.recipe.choices) - {d.site.key for d in self._log})
        if self.recipe.made_for and self.recipe.made_for != graph_id:
            answered = coverage(self._log).carried or len(unused) < len(self.recipe.choices)
            unused = [] if answered else unused
        if unused:
            raise PycError(
                ReasonCode.RECIPE_MISMATCH,
                f"recipe: expected sites of this program, got {len(unused)} of "
                f"{len(self.recipe.choices)} that it does not have: {', '.join(unused[:3])}; "
                "make the recipe again from a log of the same program and target",
            )


@dataclass(frozen=True)
class Coverage:
    """How a recipe of another graph was used: sites it answered by work, sites left to the policy.

    Both are 0 where a recipe fits by graph, or there is none.
    """

    carried: int = 0
    left: int = 0

    def __str__(self) -> str:
        """Format for people; begins with RECIPE_PARTIAL if sites were left."""
        code = f"{ReasonCode.RECIPE_PARTIAL.name}: " if self.left else ""
        return f"{code}carried over to {self.carried} of {self.carried + self.left} sites"


def coverage(decisions: Iterable[Decision]) -> Coverage:
    """Count the choices of a recipe for another graph that a log reports as used, and as unused."""
    kinds = [type(ground) for decision in decisions for ground in decision.grounds]
    return Coverage(kinds.count(CarriedOver), kinds.count(NotCarried))
