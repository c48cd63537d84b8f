"""How much of a compile is done when its time is short: stages, from what was asked to the least.

    asked      the options as they are: recipe, policy, every mode that is wanted
    default    PyC's own choices for one plan, `balanced`
    cheapest   what compiles fastest: IREE plans the memory, one entry, plain fusion

A stage is a change of the options, and its name a decision at the site `compile-stage`; a recipe
that has the site repeats the stage.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyc_mlir.pipelines.choices.choices import Alternative, Site

ASKED, DEFAULT, CHEAPEST = "asked", "default", "cheapest"
SITE = Site("compile-stage", "module")
REASONS = {
    ASKED: "the options as they are",
    DEFAULT: "no recipe, the default policy, one balanced plan",
    CHEAPEST: "IREE's memory plan, one entry, plain fusion",
}
OFFERED = tuple(Alternative(name, reason=reason) for name, reason in REASONS.items())
# Answers of sites that have others which take longer to compile.
_FEWEST_STEPS = {"arena-entry": "none", "iree-fusion": "plain"}


@dataclass(frozen=True)
class FewestSteps:
    """A policy that prefers what compiles fastest, and else what passes list first."""

    name: str = CHEAPEST

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        """The quickest answer's name."""
        names = [a.name for a in alternatives]
        quickest = _FEWEST_STEPS.get(site.pass_name)
        return quickest if quickest in names else names[0]
