"""The order of attempts, what each one follows, and the refusal that all of them end in."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, log2

import pytest
from house import rooms
from hypothesis import given
from hypothesis import strategies as st

from pyc_mlir.compilation import attempts
from pyc_mlir.compilation.attempts import Way, ways_of
from pyc_mlir.compilation.build import UNFUSED, Plan
from pyc_mlir.compilation.contract_check import NothingToFind, find_culprits
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import Lowered
from pyc_mlir.compilation.options import Options, make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.frontends.sources import Packed
from pyc_mlir.iree.diagnostics import CompileError
from pyc_mlir.iree.memory.budget import BudgetNotKept, ByteBudget, SmallestProgram
from pyc_mlir.pipelines.choices.choices import Choices, Recipe
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.evidence import Reason

FAILED = ReasonCode.TARGET_COMPILE_FAILED
BUDGET = make_options(contract=Contract(memory_budget_bytes=1 << 20))
TOGETHER, SMALLEST = "co-selected", "memory_first, IREE's code"


def no_code(reported: str = "stack") -> CompileError:
    return CompileError(FAILED, where="x.py:1", expected="code", got=reported)


def over(arena: int) -> BudgetNotKept:
    return BudgetNotKept(ByteBudget(100, 0), SmallestProgram(0, 0, arena, 1.0, 1.0), proven=False)


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch):
    """Compile where tries end so, one after another (None is a success).

    Returns what was tried, the log, and why settings were left; or the error in its place.
    """

    def run(*ends: PycError | None) -> tuple[list[str], Choices, object]:
        tried: list[str] = []
        left = list(ends)

        def build(plan: Plan, setting: str) -> list[Reason]:
            options = plan.options
            together = TOGETHER if options.co_selected else SMALLEST
            way = options.parts_for if options.kernels == "all" else SMALLEST
            tried.append(f"{together if options.co_selected else way}: {setting}")
            if (end := left.pop(0)) is not None:
                raise end
            return []

        names = {
            "lower": lambda *_: Lowered(code=b""),
            "plan_for": lambda lowered, options, _: Plan(lowered=lowered, options=options),
            "build": build,
            "complete": lambda _, why: why,
            "co_selection": lambda job, _: (job.options, "chosen together"),
        }
        for name, value in names.items():
            monkeypatch.setattr(attempts, name, value)
        choices = Choices()
        job = Job(Packed(b"", "main"), None, BUDGET)
        made: object
        try:
            made = attempts._Compile(job, attempts.logged, choices).artifact(
                ways_of(BUDGET, choices)
            )
        except PycError as error:
            made = error
        assert not left
        return tried, choices, made

    return run


def ways(options: Options, recipe: Recipe | None = None) -> dict[str, Options]:
    found = ways_of(replace(options, recipe=recipe), Choices(recipe=recipe))
    return {way.name: way.options for way in found}


def test_the_ways_are_in_order():
    found = ways(BUDGET)
    assert list(found) == ["balanced", TOGETHER, "memory_first", SMALLEST]
    parts = {name: (o.parts_for, o.kernels, o.co_selected) for name, o in found.items()}
    assert parts["balanced"] == ("balanced", "all", False)
    assert parts[TOGETHER] == ("memory_first", "all", True)
    assert parts[SMALLEST] == ("memory_first", "iree", False)


@pytest.mark.parametrize(
    "given", [{}, {"contract": BUDGET.contract, "kernels": "iree", "planner_mode": "memory_first"}]
)
def test_where_there_is_one_way_there_is_no_decision(given):
    options, choices = make_options(**given), Choices()
    assert ways_of(options, choices) == (Way("", options),) and choices.log == ()


def test_who_chooses_kernels_is_not_overruled():
    """Nothing is chosen together beside a policy of one's own, or a recipe that says otherwise."""
    own = make_options(contract=BUDGET.contract, policy="balanced")
    gpu = make_options(contract=BUDGET.contract, target="cuda-sm_80")
    assert TOGETHER not in ways(own) and TOGETHER not in ways(gpu)
    assert TOGETHER not in ways(BUDGET, Recipe({"budget:module": "balanced"}))
    assert next(iter(ways(BUDGET, Recipe({"budget:module": TOGETHER})))) == TOGETHER
    assert list(ways(BUDGET, Recipe({"budget:module": SMALLEST}))) == [SMALLEST]


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
def test_failures_of_one_kind_are_followed_by_their_own_remedy(after, ends, tried):
    assert after(*ends)[0] == tried


@pytest.mark.parametrize(
    ("ends", "code", "reported"),
    [
        # No other parts of the program give code where no setting does.
        ((no_code("first"), no_code(), no_code()), FAILED, "first"),
        ((over(300), no_code("first"), no_code(), no_code()), FAILED, "first"),
        ((over(300), over(270), over(200), over(250)), ReasonCode.BUDGET_NOT_FOUND, "needs 200"),
        # Other refusals are final.
        ((PycError(ReasonCode.FILE_ACCESS, "full"),), ReasonCode.FILE_ACCESS, "full"),
        ((PycError(ReasonCode.BUDGET_NOT_FOUND, "unknown"),), ReasonCode.BUDGET_NOT_FOUND, "unkn"),
        (
            (over(300), over(280), over(250), no_code(), over(150), no_code()),
            ReasonCode.BUDGET_NOT_FOUND,
            "needs 150",
        ),
    ],
)
def test_a_refusal_stays_what_it_is(after, ends, code, reported):
    error = after(*ends)[2]
    assert error.code is code and reported in error.message


def test_a_fallback_says_what_was_left(after):
    _, choices, why = after(no_code(), over(300), None)
    assert why[0] == Reason("CODEGEN_FALLBACK", "aggressive: stack")
    assert why[1].code == "BUDGET_RETRY"
    assert why[1].message.startswith("plain: memory budget: expected at most 100 bytes")
    assert choices.log[-1].chosen == "balanced"


def test_the_way_that_was_taken_says_why_the_others_were_left(after):
    _, choices, why = after(over(300), None)
    assert why == [] and choices.log[-1].chosen == TOGETHER
    first, note = choices.log[-1].grounds
    assert first.code == note.code == "BUDGET_RETRY" and note.message == "chosen together"
    assert first.message.startswith("memory budget") and "needs 300" in first.message


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


# The files that a compile of an ONNX model passes (test/house.py).


@pytest.mark.parametrize(
    ("last", "rooms_passed", "returned"), [("lower", 16, 14), ("complete", 29, 57)]
)
def test_a_compile_passes_few_files_and_rarely_comes_back(last, rooms_passed, returned):
    """At most so many up to linalg, and up to the artifact: numbers that only fall.

    A file more on the way, or a call back into one, says what it is worth.
    """
    found = rooms(last)
    assert found["rooms without the importer's"] <= rooms_passed
    assert found["returns without the importer's"] <= returned
    assert found["rooms"] <= rooms_passed + 14 and found["returns"] <= returned + 43
