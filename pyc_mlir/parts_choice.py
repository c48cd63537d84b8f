"""For which planner mode is a program with a budget cut into parts?

`pyc-chunk` runs before the dispatches are known, thus before anybody can tell whether a budget is
kept. So a program is cut for the preferred mode first, and where no plan of those dispatches
keeps the budget it is cut for `memory_first` and planned again. The answer is one decision, which
a recipe replays without the first try.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from pyc_mlir.iree.budget import BudgetNotKept
from pyc_mlir.lowering import Options
from pyc_mlir.pipelines.choices import Alternative, Choices, Decision, Site

SITE = Site("parts-for", "module")
SMALLEST = "memory_first"
_EVIDENCE_CHARACTERS = 300
Built = TypeVar("Built")


def within_budget(options: Options, make: Callable[[Options, Choices], Built]) -> Built:
    """What `make` builds, from the parts of the first mode with which it keeps the budget.

    `make` gets the options to build with and the decisions before it. Raises what it raises, and
    BudgetNotKept with the smaller of both needs.
    """
    choices = Choices(options.policy, options.recipe)
    modes = tuple(dict.fromkeys((*options.planner_modes[:1], SMALLEST)))
    if options.contract.memory_budget_bytes is None or len(modes) == 1:
        return make(options, choices)
    offered = tuple(Alternative(mode) for mode in modes)
    asked = choices.choose(SITE, offered).name
    try:
        return make(replace(options, parts_for=asked), choices)
    except BudgetNotKept as refused:
        if asked == SMALLEST:
            raise
        first = refused
    said = (first.message[:_EVIDENCE_CHARACTERS],)
    choices.log[:] = [Decision(SITE, SMALLEST, offered, "fallback", said)]
    try:
        return make(replace(options, parts_for=SMALLEST), choices)
    except BudgetNotKept as refused:
        raise first.or_better(refused) from None
