"""Wisdom files and the policy `fastest`: what is believed, what is a candidate, what is refused."""

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wisdoms import KERNELS, row

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.choices import (
    Alternative,
    Choices,
    Decision,
    Policy,
    Recipe,
    Site,
)
from pyc_mlir.pipelines.choices.evidence import ContentHash, Note
from pyc_mlir.pipelines.choices.policies import MIN_PROCESSES, Fastest
from pyc_mlir.pipelines.choices.wisdom import (
    NO_RECIPE,
    SCHEMA_VERSION,
    SITE,
    WHOLE,
    Wisdom,
    WisdomRow,
    WisdomSubject,
    for_program,
    recipe_name,
    record_wisdom,
)

WORK = f"w1-{'0' * 64}"
OFFERED = (Alternative("gemm"), Alternative("iree"), Alternative("whole"))
AT = Site(KERNELS, "group.1", work=WORK)
FIRST, QUICK = row(WORK, "gemm", 2e-5), row(WORK, "iree", 1e-5)
SUBJECT = WisdomSubject("work", WORK, "work 1\n", 1, 1)


def fastest(*rows: WisdomRow, **changes) -> Fastest:
    return Fastest(Wisdom.of(rows, {}), FIRST.hardware, FIRST.toolchain, **changes)


def answer(*rows: WisdomRow) -> tuple[str, str]:
    """What is chosen, and the policy's line in the log."""
    choices = Choices(fastest(*rows))
    choices.choose(AT, OFFERED, [Note("seen")])
    (made,) = choices.log
    assert made.decided_by == "fastest" and made.evidence == (Note("seen"),)
    return made.chosen, str(made.grounds[0])


def test_the_quickest_measured_choice_is_taken_with_its_evidence():
    chosen, reported = answer(FIRST, QUICK)
    assert chosen == "iree"
    assert reported.startswith("measured 1e-05 s (9.5e-06 to 1.05e-05) of cpu time")
    assert f"[{Wisdom.of((FIRST, QUICK), {}).label}]" in reported


UNCLEAR = {
    "intervals that overlap": (FIRST, replace(QUICK, hi=FIRST.lo)),
    "one session": (FIRST, replace(QUICK, sessions=1)),
    "few processes": (FIRST, replace(QUICK, processes=MIN_PROCESSES - 1)),
    "one session of the first": (replace(FIRST, sessions=1), QUICK),
}


@pytest.mark.parametrize("rows", UNCLEAR.values(), ids=UNCLEAR)
def test_what_is_unclear_changes_nothing(rows):
    chosen, reported = answer(*rows)
    assert chosen == "gemm" and "unclear" in reported


FOREIGN = {
    "hardware": {"hardware": "h1-other"},
    "toolchain": {"toolchain": "t1-other"},
}


@pytest.mark.parametrize("changes", FOREIGN.values(), ids=FOREIGN)
def test_rows_of_elsewhere_are_candidates(changes):
    chosen, reported = answer(replace(FIRST, **changes), replace(QUICK, **changes))
    assert chosen == "gemm"
    assert reported.startswith("predicted: WISDOM_FOREIGN: 2 rows measured elsewhere")


INCOMPARABLE = {
    "first not measured": (QUICK,),
    "other context": (FIRST, replace(QUICK, context="c1-other")),
    "cold and warm": (FIRST, replace(QUICK, constants="cold")),
    "other clocks": (FIRST, replace(QUICK, clock="wall")),
    "other work": (FIRST, replace(QUICK, subject=f"w1-{'1' * 64}")),
    "other pass": (FIRST, replace(QUICK, pass_name="pyc-fuse")),
    "not offered": (FIRST, replace(QUICK, choice="gone")),
}


@pytest.mark.parametrize("rows", INCOMPARABLE.values(), ids=INCOMPARABLE)
def test_what_was_not_measured_alike_is_not_compared(rows):
    assert answer(*rows)[0] == "gemm"


def test_without_rows_the_prediction_stands():
    assert answer() == ("gemm", "predicted: no measured row")


def test_a_site_of_a_program_goes_by_its_graph_then_by_its_structure():
    site = Site("iree-fusion", "graph", work="s1-structure")
    offered = (Alternative("plain"), Alternative("aggressive"))
    rows = [
        row(subject, name, seconds, pass_name=site.pass_name)
        for subject, times in (("graph", (2.0, 1.0)), ("s1-structure", (1.0, 2.0)))
        for name, seconds in zip(("plain", "aggressive"), times, strict=True)
    ]
    assert fastest(*rows[:2]).prefer(site, offered) == "aggressive"
    assert fastest(*rows[2:]).prefer(site, offered) == "plain"
    assert fastest(*rows).prefer(site, offered) == "aggressive"


def test_the_row_of_most_sessions_stands_for_a_choice():
    doubtful = replace(FIRST, seconds=1e-9, lo=1e-9, hi=1e-9, sessions=2)
    assert answer(doubtful, FIRST, QUICK)[0] == "iree"


def test_evidence_may_be_required():
    for rows in ((), (QUICK,), (replace(FIRST, hardware="h1-other"),)):
        with pytest.raises(PycError) as caught:
            fastest(*rows, require_evidence=True).prefer(AT, OFFERED)
        assert caught.value.code is ReasonCode.NO_EVIDENCE
    policy = fastest(FIRST, QUICK, require_evidence=True)
    assert policy.prefer(AT, OFFERED) == "iree"
    # Only kernels are measured, and a single alternative is no choice.
    assert policy.prefer(Site("pyc-fuse", "matmul.1", work="matmul.by-type.1"), OFFERED) == "gemm"
    assert policy.prefer(replace(AT, work=f"w1-{'1' * 64}"), OFFERED[:1]) == "gemm"


def test_a_replay_keeps_the_evidence_without_the_wisdom():
    made = Choices(fastest(FIRST, QUICK))
    made.choose(AT, OFFERED, [Note("seen")])
    again = Choices(recipe=Recipe.from_log(made.log))
    again.choose(AT, OFFERED, [Note("seen")])
    assert again.log == made.log


# Whole programs

GRAPH, STRUCTURE = "graph", "s1-structure"
RECIPE = {AT.key: "whole", f"{KERNELS}:{WORK}": "iree", "plan-memory:graph": "planned"}
NAMED = recipe_name(RECIPE)


def whole(seconds: float, choice: str = NAMED, subject: str = GRAPH, **changes) -> WisdomRow:
    return row(subject, choice, seconds, pass_name=WHOLE, **changes)


def policy_for(*rows: WisdomRow, graph: str = GRAPH) -> tuple[Policy, tuple[Decision, ...]]:
    known = replace(fastest(), wisdom=Wisdom.of(rows, {}, [RECIPE]))
    return for_program(known, None, graph, STRUCTURE)


SLOW, BETTER = whole(2e-5, NO_RECIPE), whole(1e-5)


def test_a_recipe_that_is_measured_to_be_faster_answers_for_the_program():
    policy, (made,) = policy_for(SLOW, BETTER, FIRST, QUICK)
    assert made.chosen == NAMED and made.site.key == f"{WHOLE}:{GRAPH}"
    assert str(made.grounds[0]).startswith("measured 1e-05 s")
    choices = Choices(policy)
    assert choices.choose(AT, OFFERED).name == "whole"
    assert str(choices.log[0].grounds[0]).startswith(f"by {NAMED} [wisdom@")
    # By work where it lacks the site, and by rows where it lacks both.
    assert choices.choose(replace(AT, op_id="another"), OFFERED).name == "iree"
    other = f"w1-{'1' * 64}"
    rows = (SLOW, BETTER, row(other, "gemm", 2e-5), row(other, "whole", 1e-5))
    policy, _ = policy_for(*rows)
    assert policy.prefer(Site(KERNELS, "third", work=other), OFFERED) == "whole"


BY_SITE = {
    "unclear": (SLOW, replace(BETTER, hi=SLOW.lo)),
    "slower": (SLOW, whole(3e-5)),
    "few processes": (SLOW, replace(BETTER, processes=MIN_PROCESSES - 1)),
    "no baseline": (BETTER,),
    "elsewhere": (SLOW, replace(BETTER, hardware="h1-other")),
    "another recipe's": (SLOW, whole(1e-5, "recipe@0123456789abcdef")),
}


@pytest.mark.parametrize("rows", BY_SITE.values(), ids=BY_SITE)
def test_else_rows_of_single_choices_answer(rows):
    policy, (made,) = policy_for(*rows, FIRST, QUICK)
    assert made.chosen == NO_RECIPE
    assert policy.prefer(AT, OFFERED) == "iree"


def test_programs_of_the_same_structure_share_recipes():
    of_structure = [replace(r, subject=STRUCTURE) for r in (SLOW, BETTER)]
    _, (made,) = policy_for(*of_structure, graph="retrained")
    assert made.chosen == NAMED
    assert policy_for(SLOW, BETTER, graph="retrained")[1] == ()


def test_what_a_recipe_names_and_is_gone_is_left_to_the_rows():
    policy, _ = policy_for(SLOW, BETTER, FIRST, QUICK)
    assert policy.prefer(AT, OFFERED[:2]) == "iree"


def test_a_recipe_repeats_the_decision_about_the_whole():
    _, made = policy_for(SLOW, BETTER)
    recipe = Recipe.from_log(made)
    assert for_program(Fastest(), recipe, GRAPH, STRUCTURE)[1] == made
    assert for_program(Fastest(), recipe, "retrained", STRUCTURE)[1] == ()


# Files

ROWS = st.builds(
    row,
    st.sampled_from([WORK, "graph"]),
    st.sampled_from(["gemm", "iree"]),
    st.floats(1e-9, 1e3),
    sessions=st.integers(1, 9),
    hardware=st.text(max_size=5),
)


@settings(max_examples=50, deadline=None)
@given(st.lists(ROWS, max_size=6), st.randoms())
def test_files_round_trip_and_order_does_not_matter(rows, chance):
    rows = [*rows, whole(1e-3)] if rows else rows
    wisdom = Wisdom.of(rows, {WORK: SUBJECT}, [RECIPE])
    chance.shuffle(rows)
    assert Wisdom.of(rows, {WORK: SUBJECT}, [RECIPE]).to_bytes() == wisdom.to_bytes()
    again = Wisdom.from_bytes(wisdom.to_bytes())
    assert again == wisdom and again.hash == wisdom.hash and again.recipes == wisdom.recipes
    assert tuple(again.rows) == wisdom.rows and again.to_bytes() == wisdom.to_bytes()
    assert set(wisdom.subjects) == {r.subject for r in rows} & {WORK}


WISDOM = Wisdom.of([FIRST, QUICK], {WORK: SUBJECT})


def changed(schema: int = SCHEMA_VERSION, **changes) -> bytes:
    """The file with parts of its content changed and the hash made to fit."""
    content = json.dumps({**json.loads(WISDOM.to_bytes())["content"], **changes})
    made = hashlib.sha256(content.encode()).hexdigest()
    head = f'{{"kind":"pyc-wisdom","schema":{schema},"sha256":"{made}",\n"content":'
    return f"{head}{content}}}\n".encode()


def with_row(**changes) -> bytes:
    rows = json.loads(WISDOM.to_bytes())["content"]["rows"]
    return changed(rows=[{**rows[0], **changes}])


BAD = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "deep": b"[" * 100_000,
    "another file": b'{"kind": "calibration"}',
    "a changed number": WISDOM.to_bytes().replace(b"2e-05", b"1e-05"),
    "cut off": WISDOM.to_bytes()[:-40],
    "without a hash": changed().replace(b"sha256", b"sha257"),
    "a newer schema": changed(schema=SCHEMA_VERSION + 1),
    "no rows": changed(rows=None),
    "an unknown field": with_row(more=1),
    "a text for a number": with_row(seconds="1"),
    "an infinite time": with_row(hi="inf"),
    "no time": with_row(seconds=0.0, lo=0.0),
    "an interval beside its number": with_row(lo=1.0, hi=2.0),
    "no session": with_row(sessions=0),
    "a subject without a text": changed(subjects={WORK: {}}),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_damaged_files_are_refused(data, tmp_path):
    path = tmp_path / "w.json"
    path.write_bytes(data)
    with pytest.raises(PycError, match=r"w.json: expected wisdom, got") as caught:
        list(Wisdom.load(path).rows)
    assert caught.value.code is ReasonCode.BAD_WISDOM


def test_a_compile_makes_rows_of_what_it_asks_for_only():
    """A compile waits for wisdom: the time that it takes must not grow with each row."""
    loaded = Wisdom.from_bytes(with_row(seconds="1"))
    assert loaded.about(KERNELS, "another") == () and len(loaded.rows) == 1
    with pytest.raises(PycError):
        loaded.about(KERNELS, WORK)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(PycError) as caught:
        Wisdom.load(tmp_path / "gone.json")
    assert caught.value.code is ReasonCode.FILE_ACCESS


# The record of a compile


def test_a_compile_names_its_wisdom_and_a_recipe_repeats_that():
    (made,) = record_wisdom(WISDOM, None)
    assert made.chosen == WISDOM.label and made.grounds == (ContentHash(WISDOM.hash),)
    recipe = Recipe.from_log([made])
    assert record_wisdom(None, recipe) == record_wisdom(WISDOM, recipe) == (made,)
    assert record_wisdom(None, None) == record_wisdom(Wisdom(), None) == ()
    other = Recipe({SITE.key: "wisdom@0"})
    with pytest.raises(PycError) as caught:
        record_wisdom(WISDOM, other)
    assert caught.value.code is ReasonCode.RECIPE_MISMATCH


@pytest.mark.full
def test_joined_wisdom_has_the_rows_and_recipes_of_both():
    single = Wisdom.of([FIRST, QUICK], {WORK: SUBJECT})
    programs = Wisdom.of([BETTER], {}, [RECIPE])
    for joined in (single.joined(programs), programs.joined(single)):
        assert joined == Wisdom.of([FIRST, QUICK, BETTER], {WORK: SUBJECT}, [RECIPE])
        assert joined.recipes == {NAMED: dict(sorted(RECIPE.items()))}


@pytest.mark.parametrize(
    "wrong",
    [
        {"sessions": 0}, {"processes": 0}, {"lo": 0.0}, {"lo": 2e-5}, {"hi": 0.5e-5},
        {"hi": float("inf")}, {"seconds": "1"},
    ],
    ids=str,
)  # fmt: skip
def test_numbers_that_no_measurement_gives_are_refused(wrong):
    replace(QUICK, sessions=1, processes=1, lo=QUICK.seconds, hi=QUICK.seconds)
    with pytest.raises(ValueError, match="expected"):
        replace(QUICK, **wrong)
