"""The order of attempts, what each one follows, and the refusal that all of them end in."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc_mlir.compilation.attempts import (
    Attempt,
    Failure,
    attempts_of,
    attempts_under,
    fallback_reasons,
    follows,
    may_be_followed,
    refusal,
    retry_reasons,
)
from pyc_mlir.compilation.build import UNFUSED
from pyc_mlir.compilation.contract_check import NothingToFind, find_culprits
from pyc_mlir.compilation.options import Options, make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.memory.budget import BudgetNotKept, ByteBudget, SmallestProgram
from pyc_mlir.iree.session import CompileError
from pyc_mlir.pipelines.choices.choices import Choices, Recipe
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.evidence import Reason

FAILED = ReasonCode.TARGET_COMPILE_FAILED
RETRY, FALLBACK = ReasonCode.BUDGET_RETRY, ReasonCode.CODEGEN_FALLBACK
BUDGET = make_options(contract=Contract(memory_budget_bytes=1 << 20))
TOGETHER, SMALLEST = "co-selected", "memory_first, IREE's code"


def no_code(reported: str = "stack") -> CompileError:
    return CompileError(FAILED, where="x.py:1", expected="code", got=reported)


def over(arena: int) -> BudgetNotKept:
    return BudgetNotKept(ByteBudget(100, 0), SmallestProgram(0, 0, arena, 1.0, 1.0), proven=False)


def after(*ends: PycError | None, options: Options = BUDGET) -> tuple[list[str], list[Failure]]:
    """What is tried where attempts end so, one after another; None is a success."""
    tried: list[str] = []
    failures: list[Failure] = []
    left = list(ends)
    for attempt in attempts_of(options, Choices(options.policy, options.recipe)):
        if not follows(attempt, failures):
            continue
        setting = attempt.setting or "aggressive"
        tried.append(f"{attempt.way}: {setting}")
        end = left.pop(0)
        if end is None:
            break
        failures.append(Failure(Attempt(attempt.options, attempt.way, setting, attempt.why), end))
    assert not left
    return tried, failures


def test_the_list_is_flat_and_in_order():
    found = [(a.way, a.setting, a.why) for a in attempts_of(BUDGET, Choices())]
    settings = [(s, FALLBACK) for s in ("aggressive", "plain", UNFUSED)]
    assert found == [
        ("balanced", None, None),
        *(("balanced", *s) for s in settings),
        (TOGETHER, None, RETRY),
        *((TOGETHER, *s) for s in settings),
        ("memory_first", None, RETRY),
        *(("memory_first", *s) for s in settings),
        (SMALLEST, None, RETRY),
        *((SMALLEST, *s) for s in settings),
    ]
    parts = {
        a.way: (a.options.parts_for, a.options.kernels) for a in attempts_of(BUDGET, Choices())
    }
    assert parts["balanced"] == ("balanced", "all") and parts[SMALLEST] == ("memory_first", "iree")


def test_without_a_budget_there_is_one_way_and_no_decision():
    for options in (
        make_options(),
        make_options(contract=BUDGET.contract, kernels="iree", planner_mode="memory_first"),
    ):
        choices = Choices()
        assert attempts_of(options, choices) == attempts_under(options)
        assert choices.log == ()


def test_a_recipe_begins_with_its_own_way():
    recipe = Recipe({"budget:module": SMALLEST})
    found = attempts_of(BUDGET, Choices(recipe=recipe))
    assert {a.way for a in found} == {SMALLEST} and found[0].why is None


def test_who_chooses_kernels_is_not_overruled():
    """Nothing is chosen together beside a policy of one's own, or a recipe that says otherwise."""

    def ways(recipe: Recipe | None = None, policy: str = "heuristic") -> list[str]:
        options = replace(make_options(contract=BUDGET.contract, policy=policy), recipe=recipe)
        return list(dict.fromkeys(a.way for a in attempts_of(options, Choices(recipe=recipe))))

    assert TOGETHER in ways() and TOGETHER not in ways(policy="balanced")
    assert TOGETHER not in ways(Recipe({"budget:module": "balanced"}))
    assert ways(Recipe({"budget:module": TOGETHER}))[0] == TOGETHER
    gpu = make_options(contract=BUDGET.contract, target="cuda-sm_80")
    assert TOGETHER not in {a.way for a in attempts_of(gpu, Choices())}


@pytest.mark.parametrize(
    ("ends", "tried"),
    [
        ((None,), ["balanced: aggressive"]),
        ((no_code(), None), ["balanced: aggressive", "balanced: plain"]),
        ((over(300), None), ["balanced: aggressive", f"{TOGETHER}: aggressive"]),
        (
            (no_code(), over(300), no_code(), None),
            [
                "balanced: aggressive",
                "balanced: plain",
                f"balanced: {UNFUSED}",
                f"{TOGETHER}: aggressive",
            ],
        ),
        (
            (over(300), over(300), over(200), no_code(), None),
            [
                "balanced: aggressive",
                f"{TOGETHER}: aggressive",
                "memory_first: aggressive",
                f"{SMALLEST}: aggressive",
                f"{SMALLEST}: plain",
            ],
        ),
    ],
)
def test_failures_of_one_kind_are_followed_by_their_own_remedy(ends, tried):
    assert after(*ends)[0] == tried


@pytest.mark.parametrize(
    ("ends", "code", "reported"),
    [
        # No other parts of the program give code where no setting does.
        ((no_code("first"), no_code(), no_code()), FAILED, "first"),
        ((over(300), no_code("first"), no_code(), no_code()), FAILED, "first"),
        ((over(300), over(270), over(200), over(250)), ReasonCode.BUDGET_NOT_FOUND, "needs 200"),
        (
            (over(300), over(280), over(250), no_code(), over(150), no_code()),
            ReasonCode.BUDGET_NOT_FOUND,
            "needs 150",
        ),
    ],
)
def test_a_refusal_stays_what_it_is(ends, code, reported):
    error = refusal(after(*ends)[1])
    assert error.code is code and reported in error.message


def test_other_refusals_are_final():
    assert may_be_followed(no_code()) and may_be_followed(over(300))
    assert not may_be_followed(PycError(ReasonCode.FILE_ACCESS, "full"))
    assert not may_be_followed(PycError(ReasonCode.BUDGET_NOT_FOUND, "unknown outputs"))


def test_a_fallback_says_what_was_left():
    failures = after(no_code(), over(300), None)[1]
    first, second = fallback_reasons(failures, "balanced")
    assert first == Reason("CODEGEN_FALLBACK", "aggressive: stack")
    assert second.code == "BUDGET_RETRY"
    assert second.message.startswith("plain: memory budget: expected at most 100 bytes")
    assert fallback_reasons(failures, "memory_first") == []
    (retry,) = retry_reasons(failures)
    assert retry.code == "BUDGET_RETRY"
    assert retry.message.startswith("memory budget") and "needs 300" in retry.message


@given(st.integers(1, 500), st.data())
def test_one_culprit_is_found_in_few_tests(count: int, data):
    culprit = data.draw(st.integers(0, count - 1))
    found = find_culprits(range(count), lambda applied: culprit in applied)
    assert found.changes == (culprit,) and found.untold == 0
    assert found.tests <= 3 + ceil(log2(count))


def test_two_hundred_decisions_take_at_most_twelve_tests():
    for culprit in range(200):
        assert find_culprits(range(200), lambda a, c=culprit: c in a).tests <= 11


@given(st.integers(1, 60), st.data())
def test_several_culprits_that_need_each_other(count: int, data):
    culprits = data.draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=4))
    found = find_culprits(range(count), lambda applied: culprits <= set(applied))
    assert set(found.changes) == culprits
    assert list(found.changes) == sorted(found.changes)
    assert found.tests <= 2 + len(culprits) * (1 + ceil(log2(count)))


@given(st.integers(1, 60), st.data())
def test_of_culprits_that_suffice_alone_one_is_found(count: int, data):
    culprits = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    found = find_culprits(range(count), lambda applied: bool(culprits & set(applied)))
    assert len(found.changes) == 1 and set(found.changes) <= culprits


@given(st.integers(2, 40), st.data())
def test_what_cannot_be_told_is_passed_over(count: int, data):
    """Half-applied pairs cannot be told: the pair is found, or the culprit in it."""
    culprit = data.draw(st.integers(0, count - 1))
    first = data.draw(st.integers(0, count - 2))

    def test(applied: Sequence[int]) -> bool | None:
        if (first in applied) != (first + 1 in applied):
            return None
        return culprit in applied

    found = find_culprits(range(count), test)
    assert culprit in found.changes and set(found.changes) <= {culprit, first, first + 1}
    assert len(found.changes) <= 2


@given(st.integers(1, 40), st.randoms(use_true_random=False))
def test_any_answers_end_and_what_is_found_was_bad(count: int, random):
    answers: dict[tuple[int, ...], bool | None] = {(): False, tuple(range(count)): True}

    def test(applied: Sequence[int]) -> bool | None:
        return answers.setdefault(tuple(applied), random.choice([True, False, None]))

    found = find_culprits(range(count), test)
    assert found.changes and found.tests == len([k for k in answers])
    assert answers[found.changes] is not False or len(found.changes) == count


@pytest.mark.parametrize("answer, applied", [(False, "all"), (True, "none"), (None, "none")])
def test_a_test_that_says_nothing_is_refused(answer, applied):
    with pytest.raises(NothingToFind) as caught:
        find_culprits(range(3), lambda changes: answer)
    assert (caught.value.applied, caught.value.answer) == (applied, answer)
