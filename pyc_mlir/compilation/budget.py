"""How is a program with a budget compiled, if the preferred way does not keep it?

`pyc-chunk` and the choice of kernels come before the dispatches are known, thus before anybody can
tell whether a budget is kept. So a program is compiled as preferred first; where no plan of those
dispatches keeps the budget it is cut into the parts of `memory_first`, and at last left to IREE's
own code, which needs no weights in padded panels. The answer is one decision, which a recipe
replays without the tries before.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from pyc_mlir.compilation.options import NO_KERNELS, Options
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.iree.memory.budget import BudgetNotKept
from pyc_mlir.pipelines.choices.choices import FALLBACK, Alternative, Choices, Decision, Site

SITE = Site("budget", "module")
SMALLEST = "memory_first"
_EVIDENCE_CHARACTERS = 300
Built = TypeVar("Built")


def within_budget(options: Options, make: Callable[[Options, Choices], Built]) -> Built:
    """What `make` builds in the first way that keeps the budget.

    `make` gets the options to build with and the decisions before it. Raises what it raises, and
    BudgetNotKept with the smallest need of all ways.
    """
    choices, ways = Choices(options.policy, options.recipe), _ways(options)
    if options.contract.memory_budget_bytes is None or len(ways) == 1:
        return make(options, choices)
    offered = tuple(map(Alternative, ways))
    asked = choices.choose(SITE, offered).name
    refused: BudgetNotKept | None = None
    names = list(ways)
    for name in names[names.index(asked) :]:
        if refused is not None:
            said = f"{ReasonCode.BUDGET_RETRY.name}: {refused.message}"[:_EVIDENCE_CHARACTERS]
            choices.log[:] = [Decision(SITE, name, offered, FALLBACK, (said,))]
        try:
            return make(replace(options, **ways[name]), choices)
        except BudgetNotKept as error:
            refused = error if refused is None else refused.or_better(error)
    assert refused is not None
    raise refused


def _ways(options: Options) -> dict[str, dict[str, Any]]:
    """Changes of the options by the name of the way, the preferred one first."""
    modes = dict.fromkeys((*options.planner_modes[:1], SMALLEST))
    ways: dict[str, dict[str, Any]] = {mode: {"parts_for": mode} for mode in modes}
    if options.kernels != NO_KERNELS:
        smallest = {"parts_for": SMALLEST, "kernels": NO_KERNELS}
        ways[f"{SMALLEST}, IREE's code"] = smallest
    return ways
