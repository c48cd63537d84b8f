"""The attempts of one compile: a flat list, and the rules by which one follows another.

The ways to keep a memory budget come first, each with all settings of IREE's fusion:

    balanced              the chosen setting, then the others
    co-selected           for that policy: with kernels and parts chosen together
    memory_first          the same, cut into the parts of that mode, with small kernels
    memory_first, IREE's code  the same, without weights in padded panels

`pyc-chunk` and the choice of kernels come before the dispatches are known, thus before anybody can
tell whether a budget is kept. So the next way is for a program that does not keep it in the one
before, and the other settings are for one that IREE has no code for under the chosen setting.
What is chosen together is no slower by prediction than the ways behind it, or those are taken
(`pipelines/memory/selection/rounds.py`). `build.py` goes through the list; what was left, and why,
stands in the log.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from pyc_mlir.compilation.generate import SETTINGS, UNFUSED
from pyc_mlir.compilation.options import NO_KERNELS, Options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.memory.budget import BudgetNotKept
from pyc_mlir.pipelines.choices.choices import (
    Alternative,
    Choices,
    Recipe,
    Site,
    policy_mark,
)
from pyc_mlir.pipelines.choices.policies import CO_SELECTED

SITE = Site("budget", "module")
SMALLEST = "memory_first"
# Who decides, in the log, at sites that were changed for the budget.
_SIGNED = "co-selection"


@dataclass(frozen=True)
class Attempt:
    """One try: with which options, in which way, under which setting of fusion, and after what.

    `setting` is None for the one that a recipe or the policy chooses. `why` is None for what was
    asked for, CODEGEN_FALLBACK after a setting that gave no code, BUDGET_RETRY after a way that
    does not keep the budget.
    """

    options: Options
    way: str
    setting: str | None = None
    why: ReasonCode | None = None


@dataclass(frozen=True)
class Failure:
    """An attempt, its setting filled in, and its end: no code (TARGET_COMPILE_FAILED), or no plan
    within the budget (BudgetNotKept)."""

    attempt: Attempt
    error: PycError


def attempts_of(options: Options, choices: Choices) -> tuple[Attempt, ...]:
    """All attempts, the preferred one first.

    With a budget, `choices` answers in which way to begin: a recipe repeats the way that kept it
    without those before. Kernels are chosen together only for the policy `co-selected` without a
    recipe, or to repeat such a choice.
    """
    ways = _ways(options)
    names = list(ways)
    if options.contract.memory_budget_bytes is None or len(names) == 1:
        return attempts_under(options)
    requested = choices.choose(SITE, tuple(map(Alternative, names))).name
    found: list[Attempt] = []
    free = options.recipe is None and getattr(options.policy, "co_selects", False)
    for name in names[names.index(requested) :]:
        if name == CO_SELECTED and not free and name != requested:
            continue
        why = ReasonCode.BUDGET_RETRY if found else None
        found += attempts_under(replace(options, **ways[name]), name, why)
    return tuple(found)


def attempts_under(
    options: Options, way: str = "", why: ReasonCode | None = None
) -> tuple[Attempt, ...]:
    """The attempts in one way: the chosen setting, then those that are left."""
    settings = (*SETTINGS, UNFUSED)
    rest = (Attempt(options, way, s, ReasonCode.CODEGEN_FALLBACK) for s in settings)
    return (Attempt(options, way, why=why), *rest)


def _ways(options: Options) -> dict[str, dict[str, Any]]:
    """Changes of the options by the name of the way, the preferred one first."""
    first = (*options.planner_modes, SMALLEST)[0]
    ways: dict[str, dict[str, Any]] = {first: {"parts_for": first}}
    if options.kernels != NO_KERNELS and options.target.device == "local":
        ways[CO_SELECTED] = {"parts_for": SMALLEST, "co_selected": True}
    ways[SMALLEST] = {"parts_for": SMALLEST}
    if options.kernels != NO_KERNELS:
        smallest = {"parts_for": SMALLEST, "kernels": NO_KERNELS}
        ways[f"{SMALLEST}, IREE's code"] = smallest
    return ways


def follows(attempt: Attempt, failures: Sequence[Failure]) -> bool:
    """Whether an attempt is made after these failures."""
    here = [f for f in failures if f.attempt.way == attempt.way]
    match attempt.why:
        case None:
            return not failures
        case ReasonCode.CODEGEN_FALLBACK:
            tried = {f.attempt.setting for f in here}
            # A budget that the chosen setting does not keep is one for the next way.
            return bool(here) and not _over([here[0]]) and attempt.setting not in tried
        case _:
            return bool(_over(_of_last_way(failures)))


def may_be_followed(error: PycError) -> bool:
    """Whether an attempt that ended so is a failure, not a refusal of the whole compile."""
    return isinstance(error, BudgetNotKept) or error.code is ReasonCode.TARGET_COMPILE_FAILED


def refusal(failures: Sequence[Failure]) -> PycError:
    """What a compile ends with when every attempt failed.

    BudgetNotKept, with the smallest need of all, where the last way has code that does not keep the
    budget; otherwise the first failure of that way.
    """
    last = _of_last_way(failures)
    return _smallest(failures) if _over(last) else last[0].error


def retry_reasons(
    failures: Sequence[Failure], notes: Sequence[str] = ()
) -> list[tuple[ReasonCode, str]]:
    """Why the ways so far were left, for the decision at `SITE`; `notes` are of co-selection."""
    return [(ReasonCode.BUDGET_RETRY, text) for text in (_smallest(failures).message, *notes)]


def unselected(attempt: Attempt, failures: Sequence[Failure]) -> Failure:
    """The failure of an attempt in which nothing was found to choose together."""
    return Failure(attempt, _smallest(failures))


def alone(attempt: Attempt) -> list[Options]:
    """The options of the ways behind co-selection that have kernels."""
    requested = replace(attempt.options, co_selected=False)
    ways = _ways(requested)
    behind = list(ways)[list(ways).index(CO_SELECTED) + 1 :]
    return [replace(requested, **ways[name]) for name in behind]


def with_choices(
    options: Options, choices: Mapping[str, str], grounds: Mapping[str, str]
) -> Options:
    """The options with choices that were made together, which say so in the log."""
    said = {site: (f"{policy_mark(_SIGNED)}{text}",) for site, text in grounds.items()}
    origins = {site: (_SIGNED, said.get(site, ())) for site in choices}
    return replace(options, recipe=Recipe(dict(choices), origins, tolerant=True))


def fallback_reasons(failures: Sequence[Failure], way: str) -> list[tuple[ReasonCode, str]]:
    """Why settings of a way were left, for the decision about fusion."""
    return [_reason(f) for f in failures if f.attempt.way == way]


def _reason(failure: Failure) -> tuple[ReasonCode, str]:
    setting, error = failure.attempt.setting, failure.error
    if isinstance(error, BudgetNotKept):
        return ReasonCode.BUDGET_RETRY, f"{setting}: {error.message}"
    # Only IREE's words: the message's location may hold a path, and artifacts carry none.
    return ReasonCode.CODEGEN_FALLBACK, f"{setting}: {error.message.partition('got: ')[2]}"


def _of_last_way(failures: Sequence[Failure]) -> list[Failure]:
    return [f for f in failures if f.attempt.way == failures[-1].attempt.way]


def _over(failures: Sequence[Failure]) -> list[BudgetNotKept]:
    return [f.error for f in failures if isinstance(f.error, BudgetNotKept)]


def _smallest(failures: Sequence[Failure]) -> BudgetNotKept:
    """The refusal with the smallest need of all."""
    return reduce(BudgetNotKept.or_better, _over(failures))
