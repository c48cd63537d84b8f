"""The search for culprits: it finds them, in few tests, also where changes depend on each other."""

from collections.abc import Sequence
from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc_mlir.compilation.contract_check import NothingToFind, find_culprits


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
