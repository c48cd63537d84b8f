"""Decisions and recipes: what is written is read back, the same every time, or refused."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyc_mlir.compilation.options import HIGH_LEVEL
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.util.codec import from_data, to_data
from pyc_mlir.pipelines.choices.choices import (
    FALLBACK,
    SCHEMA_VERSION,
    Alternative,
    Choices,
    Decision,
    FirstIsBest,
    Recipe,
    Site,
)
from pyc_mlir.pipelines.choices.evidence import (
    Computes,
    EstimatedSeconds,
    MeasuredRow,
    NoMeasuredRow,
    NotCarried,
    Note,
    NotOffered,
    PlanBytes,
    Reason,
)
from pyc_mlir.pipelines.choices.log import write_log
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.driver.pass_manager import run_pipeline
from pyc_mlir.pipelines.target.cost import Cost

SITE = Site("test-pass", "matmul.0123", 'loc("a.py":1:2)')
OFFERED = (Alternative("fast", Cost(1e-3, 64, 0, 128), "fewer bytes"), Alternative("small"))
SEEN, WHY = Note("seen"), Reason("CODEGEN_FALLBACK", "fast failed")
DECISION = Decision(SITE, "fast", OFFERED, "heuristic", (SEEN,), (WHY,), {"seconds": 0.5})


@dataclass(frozen=True)
class Fixed:
    """A policy with one answer."""

    answer: str
    name: str = "fixed"

    def prefer(self, site: Site, alternatives: Sequence[Alternative]) -> str:
        return self.answer


names = st.text(max_size=12)
counts = st.integers(0, 2**62)
costs = st.builds(Cost, st.floats(0, 1e9), counts, counts, counts)
floats = st.floats(allow_nan=False)
facts = st.one_of(
    *(
        st.from_type(kind)
        for kind in (Note, Reason, Computes, NotOffered, PlanBytes, MeasuredRow, NoMeasuredRow)
    ),
    st.builds(EstimatedSeconds, floats, st.booleans(), names),
    st.just(NotCarried()),
)
decisions = st.builds(
    Decision,
    st.builds(Site, names, names, names),
    names,
    st.lists(st.builds(Alternative, names, st.none() | costs, names), max_size=4).map(tuple),
    names,
    st.lists(facts, max_size=3).map(tuple),
    st.lists(facts, max_size=3).map(tuple),
    st.dictionaries(names, st.floats(allow_nan=False), max_size=3),
)


@given(decisions)
@pytest.mark.full
def test_json_round_trip(decision: Decision):
    text = json.dumps(to_data(decision))
    assert from_data(Decision, json.loads(text)) == decision


def test_what_a_line_says():
    assert json.dumps(to_data(DECISION)) == (
        '{"kind": "decision", "schema": 3, "site": {"pass_name": "test-pass", '
        '"op_id": "matmul.0123", "location": "loc(\\"a.py\\":1:2)", "work": ""}, '
        '"chosen": "fast", "alternatives": [{"name": "fast", "cost": {"seconds": 0.001, '
        '"workspace_bytes": 64, "constant_bytes": 0, "traffic_bytes": 128, "flops": 0.0}, '
        '"reason": "fewer bytes"}, {"name": "small", "cost": null, "reason": ""}], '
        '"decided_by": "heuristic", "evidence": [{"kind": "note", "text": "seen"}], '
        '"grounds": [{"kind": "reason", "code": "CODEGEN_FALLBACK", "message": "fast failed"}], '
        '"measured": {"seconds": 0.5}}'
    )


@pytest.mark.parametrize("schema", [None, 0, SCHEMA_VERSION + 1, str(SCHEMA_VERSION), True])
def test_another_schema_is_refused(schema):
    with pytest.raises(ValueError, match=f"Decision.schema: expected {SCHEMA_VERSION}"):
        from_data(Decision, {**to_data(DECISION), "schema": schema})


def test_the_first_alternative_is_the_default():
    choices = Choices()
    assert choices.choose(SITE, OFFERED) is OFFERED[0]
    assert choices.log == (Decision(SITE, "fast", OFFERED, FirstIsBest().name),)


def test_policies_choose_and_sign():
    choices = Choices(Fixed("small"))
    assert choices.choose(SITE, OFFERED, [SEEN]) is OFFERED[1]
    assert choices.log == (Decision(SITE, "small", OFFERED, "fixed", (SEEN,)),)


def test_policies_choose_among_what_is_offered():
    choices = Choices(Fixed("free"))
    with pytest.raises(PycError, match=r"expected one of \['fast', 'small'\], policy `fixed`") as e:
        choices.choose(SITE, OFFERED)
    assert e.value.code is ReasonCode.INVALID_CHOICE
    assert choices.log == ()


def test_recipes_come_before_policies():
    choices = Choices(Fixed("small"), Recipe({SITE.key: "fast"}))
    assert choices.choose(SITE, OFFERED).name == "fast"
    other = replace(SITE, op_id="other")
    assert choices.choose(other, OFFERED).name == "small"
    assert [d.decided_by for d in choices.log] == ["recipe", "fixed"]


def test_recipes_choose_among_what_is_offered():
    choices = Choices(recipe=Recipe({SITE.key: "gone"}))
    with pytest.raises(PycError, match="the recipe answered 'gone'") as caught:
        choices.choose(SITE, OFFERED)
    assert caught.value.code is ReasonCode.RECIPE_MISMATCH


def test_locations_are_no_part_of_a_site():
    assert replace(SITE, location="elsewhere").key == SITE.key
    recipe = Recipe.from_log([DECISION])
    choices = Choices(recipe=recipe)
    assert choices.choose(replace(SITE, location="elsewhere"), OFFERED).name == "fast"


def test_a_replay_writes_the_same_log(tmp_path):
    made = Choices(Fixed("small"))
    made.choose(SITE, OFFERED, [SEEN])
    replay = Choices(recipe=Recipe.from_log(made.log))
    replay.choose(SITE, OFFERED, [SEEN])
    assert replay.log == made.log


def test_a_replay_keeps_grounds_and_finds_evidence_again():
    for by, evidence in (("heuristic", (Note("new"),)), (FALLBACK, ())):
        decision = replace(DECISION, decided_by=by, measured={})
        replay = Choices(recipe=Recipe.from_log([decision]))
        replay.choose(SITE, OFFERED, [Note("new")])
        assert replay.log == (replace(decision, evidence=evidence),)


def test_policies_may_say_why():
    class Telling(Fixed):
        def evidence(self, site, alternatives, chosen):
            return [Reason("WISDOM_FOREIGN", "elsewhere"), "a plugin's words"]

    choices = Choices(Telling("small"))
    choices.choose(SITE, OFFERED, [SEEN])
    (made,) = choices.log
    assert made.facts == (SEEN, Reason("WISDOM_FOREIGN", "elsewhere"), Note("a plugin's words"))
    assert [fact.codes for fact in made.grounds] == [("WISDOM_FOREIGN",), ()]


def test_recipes_of_other_programs_are_found_out():
    choices = Choices(recipe=Recipe({SITE.key: "fast", "pass:gone": "x"}))
    choices.choose(SITE, OFFERED)
    with pytest.raises(PycError, match="1 of 2 that it does not have: pass:gone") as caught:
        choices.require_recipe_used()
    assert caught.value.code is ReasonCode.RECIPE_MISMATCH
    Choices().require_recipe_used()


def test_a_fallback_takes_the_place_of_what_failed():
    choices, other = Choices(), replace(SITE, op_id="other")
    choices.choose(SITE, OFFERED, [SEEN])
    choices.choose(other, OFFERED)
    choices.record_fallback(SITE, "small", [WHY])
    first, second = choices.log
    assert first == Decision(SITE, "small", OFFERED, FALLBACK, grounds=(WHY,))
    assert second == Decision(other, "fast", OFFERED, FirstIsBest().name)


def test_evidence_may_be_found_after_a_decision():
    choices = Choices(Fixed("small"))
    choices.choose(SITE, OFFERED)
    choices.annotate(SITE, SEEN)
    assert choices.log == (Decision(SITE, "small", OFFERED, "fixed", (SEEN,)),)


def test_only_choices_write_the_log():
    choices = Choices()
    choices.record(DECISION)
    assert choices.log == (DECISION,)
    assert isinstance(Choices.log, property) and Choices.log.fset is None
    with pytest.raises(AssertionError, match="nothing was decided there"):
        choices.annotate(replace(SITE, op_id="other"), SEEN)


# The decisions of real passes.

PROGRAM = """
func.func @main(%x: tensor<4x4xf32>, %w: tensor<4x4xf32>) -> tensor<4x4xf32> {
  %0 = "pyc.matmul"(%x, %w) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %1 = "pyc.add"(%0, %x) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  %2 = "pyc.softmax"(%1) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %3 = "pyc.exp"(%x) : (tensor<4x4xf32>) -> tensor<4x4xf32>
  %4 = "pyc.mul"(%3, %2) : (tensor<4x4xf32>, tensor<4x4xf32>) -> tensor<4x4xf32>
  return %4 : tensor<4x4xf32>
}"""


def log_of(text: str, path: Path) -> bytes:
    """The log of the default passes, as a file."""
    with new_context(), ir.Location.unknown():
        choices = Choices()
        run_pipeline(ir.Module.parse(text), HIGH_LEVEL, PassContext(choices=choices))
        write_log(choices.log, path)
    return path.read_bytes()


def test_logs_are_the_same_byte_for_byte(tmp_path):
    first = log_of(PROGRAM, tmp_path / "a")
    assert first.count(b"\n") >= 2
    assert log_of(PROGRAM, tmp_path / "b") == first


def test_names_of_values_change_nothing(tmp_path):
    renamed = PROGRAM.replace("%x", "%input").replace("%2", "%soft").replace("@main", "@entry")
    located = log_of(renamed, tmp_path / "a"), log_of(PROGRAM, tmp_path / "b")
    without = [[strip_location(line) for line in log.splitlines()] for log in located]
    assert without[0] == without[1]


def strip_location(line: bytes) -> dict:
    data = json.loads(line)
    del data["site"]["location"]
    return data


def test_locations_change_nothing_but_themselves(tmp_path):
    moved = PROGRAM.replace("\n  %", "\n\n\n      %")
    named = PROGRAM.replace(
        "-> tensor<4x4xf32>\n  %2", '-> tensor<4x4xf32> loc("model.py":7:1)\n  %2'
    )
    assert named != PROGRAM
    base = [strip_location(x) for x in log_of(PROGRAM, tmp_path / "a").splitlines()]
    for i, text in enumerate((moved, named)):
        log = log_of(text, tmp_path / f"b{i}")
        assert [strip_location(x) for x in log.splitlines()] == base


def test_a_changed_program_has_other_sites(tmp_path):
    changed = log_of(PROGRAM.replace("pyc.exp", "pyc.tanh"), tmp_path / "a")
    before = log_of(PROGRAM, tmp_path / "b")
    logs = ([json.loads(line) for line in log.splitlines()] for log in (changed, before))
    ids = [{line["site"]["op_id"] for line in log} for log in logs]
    assert ids[0] != ids[1]
    assert ids[0] & ids[1]
