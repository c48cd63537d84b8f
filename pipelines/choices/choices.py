"""The seam: every choice that PyC makes goes through `Choices.choose`.

A pass finds out what is legal and offers the legal alternatives; a `Recipe` replays an earlier
answer, else a `Policy` prefers one; the answer is recorded as a `Decision`. A bad policy can
therefore make a program slow, never wrong. All of a decision but its `measured` object is
deterministic, byte for byte.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any, Protocol, runtime_checkable

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.pipelines.target.cost import Cost

SCHEMA_VERSION = 1
# Who decided where the first choice failed.
FALLBACK = "fallback"
_EVIDENCE_CHARACTERS = 300


@dataclass(frozen=True)
class Alternative:
    """One legal answer: its stable name, what it is predicted to cost, and why one would."""

    name: str
    cost: Cost | None = None
    reason: str = ""


@dataclass(frozen=True)
class Site:
    """Where a choice is made: the pass and the canonical id of the op; `location` is for people."""

    pass_name: str
    op_id: str
    location: str = ""

    @property
    def key(self) -> str:
        """What recipes are keyed by: ``pass:op-id``."""
        return f"{self.pass_name}:{self.op_id}"

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


@runtime_checkable
class Policy(Protocol):
    """Prefers one of the legal alternatives."""

    @property
    def name(self) -> str:
        """What decisions are signed with."""
        ...

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """Return the name of one alternative."""
        ...


@dataclass(frozen=True)
class FirstIsBest:
    """The default policy: passes list their alternatives best first."""

    name: str = "default"

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """Return the first alternative's name."""
        return alternatives[0].name


@dataclass(frozen=True)
class Decision:
    """One choice made: what was chosen, what was turned down, and by whom."""

    site: Site
    chosen: str
    alternatives: tuple[Alternative, ...]
    decided_by: str
    evidence: tuple[str, ...] = ()
    measured: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The decision as plain JSON data, keys in a fixed order."""
        return {
            "schema": SCHEMA_VERSION,
            "id": self.site.key,
            "pass": self.site.pass_name,
            "op": self.site.op_id,
            "location": self.site.location,
            "chosen": self.chosen,
            "decided_by": self.decided_by,
            "alternatives": [
                {
                    "name": a.name,
                    "cost": None if a.cost is None else a.cost.to_json(),
                    "reason": a.reason,
                }
                for a in self.alternatives
            ],
            "evidence": list(self.evidence),
            "measured": dict(self.measured),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Decision":
        """Read what `to_json` wrote.

        Raises PycError for another schema version; KeyError, TypeError or ValueError for what is
        no decision.
        """
        if not isinstance(data, Mapping):
            raise ValueError("not an object")
        if data.get("schema") != SCHEMA_VERSION:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"decision log: expected schema {SCHEMA_VERSION}, got {data.get('schema')!r}",
            )
        alternatives = tuple(
            Alternative(a["name"], None if a["cost"] is None else Cost(**a["cost"]), a["reason"])
            for a in data["alternatives"]
        )
        site = Site(data["pass"], data["op"], data["location"])
        if data["id"] != site.key:
            raise ValueError(f"id {data['id']!r} of {site.key}")
        return Decision(
            site,
            data["chosen"],
            alternatives,
            data["decided_by"],
            tuple(data["evidence"]),
            dict(data["measured"]),
        )


@dataclass(frozen=True)
class Recipe:
    """The projection {site: choice} of a log; passes run from a recipe alone.

    `origins` keeps who decided and, for fallbacks, on what evidence, so that a replay writes the
    same log; other evidence is seen again.
    `graph_id` is that of the only program that it may be used for; empty allows all. A `tolerant`
    one, mixed of several logs for an experiment, leaves what does not apply to the policy.
    """

    choices: Mapping[str, str]
    origins: Mapping[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)
    graph_id: str = ""
    tolerant: bool = False

    @staticmethod
    def from_log(decisions: Iterable[Decision]) -> "Recipe":
        """Keep what was chosen and by whom, drop what it was chosen over."""
        made = list(decisions)
        origins = {d.site.key: (d.decided_by, d.evidence) for d in made}
        return Recipe({d.site.key: d.chosen for d in made}, origins)


@dataclass
class Choices:
    """Answers choices from a recipe or a policy, and is the only writer of the log.

    With a recipe, a site that it lacks is answered by the policy; a site whose recorded choice is
    not offered any more raises RECIPE_MISMATCH, never a silent change.
    """

    policy: Policy = field(default_factory=FirstIsBest)
    recipe: Recipe | None = None
    _log: list[Decision] = field(default_factory=list, init=False)

    @property
    def log(self) -> tuple[Decision, ...]:
        """What was decided so far, in order."""
        return tuple(self._log)

    def choose(
        self, site: Site, alternatives: Sequence[Alternative], evidence: Sequence[str] = ()
    ) -> Alternative:
        """Return one of `alternatives` and record the decision.

        Raises PycError: INVALID_CHOICE when the policy names none of them, RECIPE_MISMATCH when
        the recipe does.
        """
        assert alternatives, "a choice without legal alternatives is the pass's fault"
        by_name = {a.name: a for a in alternatives}
        recorded = self.recipe.choices.get(site.key) if self.recipe else None
        if self.recipe is not None and self.recipe.tolerant and recorded not in by_name:
            recorded = None
        name = recorded if recorded is not None else self.policy.prefer(site, alternatives)
        if name not in by_name:
            code = ReasonCode.INVALID_CHOICE if recorded is None else ReasonCode.RECIPE_MISMATCH
            source = f"policy `{self.policy.name}`" if recorded is None else "the recipe"
            raise PycError(
                code,
                f"{site.key}: expected one of {sorted(by_name)}, {source} answered {name!r}",
            )
        by, seen = self.policy.name, tuple(evidence)
        if self.recipe is not None and recorded is not None:
            by, before = self.recipe.origins.get(site.key, ("recipe", seen))
            # What failed before a fallback does not fail again: it is not tried.
            seen = before if by == FALLBACK else seen
        self.record(Decision(site, name, tuple(alternatives), by, seen))
        return by_name[name]

    def record(self, *decisions: Decision) -> None:
        """Append decisions that were made elsewhere."""
        self._log += decisions

    def record_fallback(
        self, site: Site, chosen: str, reasons: Sequence[tuple[ReasonCode, str]]
    ) -> None:
        """Replace the last decision at `site`: its choice failed, and `chosen` took its place.

        The alternatives stay; `reasons` are codes and messages: why what came first was left.
        """
        said = (f"{code.name}: {message}" for code, message in reasons)
        evidence = tuple(text[:_EVIDENCE_CHARACTERS] for text in said)
        at = self._last(site)
        alternatives = self._log[at].alternatives
        self._log[at] = Decision(site, chosen, alternatives, FALLBACK, evidence)

    def annotate(self, site: Site, *evidence: str) -> None:
        """Give the last decision at `site` evidence that was found after it was made."""
        at = self._last(site)
        self._log[at] = replace(self._log[at], evidence=evidence)

    def _last(self, site: Site) -> int:
        """The number of the last decision at a site, which there is."""
        found = [i for i, decision in enumerate(self._log) if decision.site.key == site.key]
        assert found, f"{site.key}: nothing was decided there"
        return found[-1]

    def require_recipe_used(self) -> None:
        """Raise PycError (RECIPE_MISMATCH) when the recipe names sites that never came up."""
        if self.recipe is None or self.recipe.tolerant:
            return
        unused = sorted(set(self.recipe.choices) - {d.site.key for d in self._log})
        if unused:
            raise PycError(
                ReasonCode.RECIPE_MISMATCH,
                f"recipe: expected sites of this program, got {len(unused)} of "
                f"{len(self.recipe.choices)} that it does not have: {', '.join(unused[:3])}; "
                "make the recipe again from a log of the same program and target",
            )
