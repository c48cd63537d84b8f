"""Logs: tagged records are written and read back, the same every time, or refused by line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_choices import DECISION, decisions, names

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import to_data
from pyc_mlir.pipelines.choices.choices import SCHEMA_VERSION
from pyc_mlir.pipelines.choices.evidence import EstimatedSeconds
from pyc_mlir.pipelines.choices.log import (
    PARTS,
    Conditions,
    Event,
    ExpectedCall,
    Reason,
    RecipeFile,
    Record,
    decisions_of,
    events_of,
    is_recipe,
    load_recipe,
    read_log,
    write_log,
)

numbers = st.dictionaries(names, st.floats(allow_nan=False), max_size=3)
reasons = st.lists(st.builds(Reason, names, names), max_size=2).map(tuple)
events = st.builds(Event, st.sampled_from(PARTS), names, names, names, reasons, numbers)
conditions = st.builds(Conditions, st.dictionaries(names, st.integers()), names, numbers)
EVENT = {
    "kind": "event",
    "schema": SCHEMA_VERSION,
    "part": "run",
    "name": "guard",
    "outcome": "refused",
    "before": "answered",
    "reasons": [{"kind": "reason", "code": "ARGUMENT_COUNT", "message": "one"}],
    "measured": {},
}
CONDITIONS = {
    "kind": "conditions",
    "schema": SCHEMA_VERSION,
    "values": {"target": "cpu"},
    "digest": "00",
    "broken": {},
}


def test_a_line_has_its_type(tmp_path):
    (tmp_path / "log").write_text(f"{json.dumps(CONDITIONS)}\n{GOOD}\n{json.dumps(EVENT)}\n")
    head, decision, event = read_log(tmp_path / "log")
    assert head == Conditions({"target": "cpu"}, "00") and decision == DECISION
    reason = Reason("ARGUMENT_COUNT", "one")
    assert event == Event("run", "guard", "refused", "answered", (reason,))
    assert decisions_of([head, decision, event]) == (decision,)
    assert events_of([head, decision, event]) == (event,)
    assert load_recipe(tmp_path / "log").choices == {DECISION.site.key: DECISION.chosen}


def test_events_are_listed_as_decisions_are():
    event = Event("run", "mode", "b", "a", (Reason("MODE_SWITCHED", "by hand"), Reason("", "x")))
    assert (event.site.key, event.chosen, event.decided_by) == ("run:mode", "b", "run")
    assert [a.name for a in event.alternatives] == ["b", "a"]
    assert tuple(map(str, event.facts)) == ("MODE_SWITCHED: by hand", "x")


@given(st.lists(decisions | events | conditions, max_size=4))
@pytest.mark.full
def test_log_files_round_trip(tmp_path_factory, made: list[Record]):
    path = tmp_path_factory.getbasetemp() / "log.jsonl"
    write_log(made, path)
    assert read_log(path) == made
    again = path.with_name("again.jsonl")
    write_log(read_log(path), again)
    assert again.read_bytes() == path.read_bytes()


GOOD = json.dumps(to_data(DECISION))


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        "1",
        '"text"',
        "null",
        GOOD[:-1],
        json.dumps({"kind": "decision", "schema": SCHEMA_VERSION}),
        json.dumps({**json.loads(GOOD), "alternatives": 5}),
        json.dumps({**json.loads(GOOD), "alternatives": [1]}),
        json.dumps({**json.loads(GOOD), "alternatives": [{"cost": None}]}),
        json.dumps({**json.loads(GOOD), "measured": 3}),
        json.dumps({**json.loads(GOOD), "measured": [[1, 2, 3]]}),
        json.dumps({**json.loads(GOOD), "evidence": None}),
        json.dumps({**json.loads(GOOD), "evidence": 7}),
        json.dumps({**json.loads(GOOD), "evidence": ["text"]}),
        json.dumps({**json.loads(GOOD), "grounds": [{"kind": "rumour", "text": ""}]}),
        GOOD.replace('"traffic_bytes"', '"traffic"'),
        "",
        "\x00",
        json.dumps({**json.loads(GOOD), "kind": None}),
        json.dumps({**json.loads(GOOD), "kind": "note"}),
        json.dumps({**EVENT, "part": "other"}),
        json.dumps({**EVENT, "outcome": 1}),
        json.dumps({**EVENT, "reasons": ["text"]}),
        json.dumps({**EVENT, "more": 1}),
        json.dumps({**CONDITIONS, "values": []}),
        json.dumps({**CONDITIONS, "digest": None}),
        json.dumps({**CONDITIONS, "broken": 3}),
    ],
)
def test_malformed_lines_are_named(line, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text(f"{GOOD}\n{line}\n{GOOD}\n")
    for read in (read_log, load_recipe):
        with pytest.raises(PycError, match=r"log\.jsonl:2: expected one record") as caught:
            read(path)
        assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_lines_of_another_schema_are_named(tmp_path):
    path = tmp_path / "log.jsonl"
    for record in ("decision", "event", "conditions"):
        path.write_text(f'{GOOD}\n{{"kind": "{record}", "schema": 1}}\n')
        named = r"log\.jsonl:2: expected one record of schema 3 .* got 1; compile the program again"
        with pytest.raises(PycError, match=named) as caught:
            read_log(path)
        assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_files_that_are_no_logs_are_refused(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for name, code in (("bytes", ReasonCode.BAD_ARGUMENT), ("missing", ReasonCode.FILE_ACCESS)):
        with pytest.raises(PycError, match=name) as caught:
            load_recipe(tmp_path / name)
        assert caught.value.code is code


@pytest.mark.full
def test_an_empty_log_is_a_recipe_without_choices(tmp_path):
    (tmp_path / "log").write_text("")
    assert load_recipe(tmp_path / "log").choices == {}


PREDICTED = EstimatedSeconds(1e-5, False, "cost model")
FILE = RecipeFile(
    "871a6d93a65e091e",
    {"pyc-fuse:b": "keep", "pyc-fuse:a": "keep"},
    {"pyc-fuse:w1-00": "keep"},
    "explore",
    {"pyc-fuse:a": (PREDICTED,)},
    ExpectedCall(1e-3, 0.9e-3, 1.1e-3, 0.5e-3, 4096, True),
    "wisdom@00",
)


def test_reading_and_writing_gives_the_same_bytes():
    assert RecipeFile.from_bytes(FILE.to_bytes()) == FILE
    assert RecipeFile.from_bytes(FILE.to_bytes()).to_bytes() == FILE.to_bytes()


def test_order_of_choices_does_not_matter():
    turned = {name: FILE.choices[name] for name in reversed(list(FILE.choices))}
    again = RecipeFile(**{**vars(FILE), "choices": turned})
    assert again.to_bytes() == FILE.to_bytes()


def test_its_recipe_says_who_chose_on_what_grounds():
    recipe = FILE.recipe
    assert recipe.origins["pyc-fuse:a"] == ("explore", (PREDICTED,))
    assert recipe.origins["pyc-fuse:b"] == ("explore", ())
    assert (recipe.made_for, recipe.works) == (FILE.graph, FILE.works)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"kind": "pyc-recipe", "schema": 1, "graph": "", "choices": {}}',
        b'{"kind": "pyc-recipe", "schema": 2, "graph": ""}',
        b'{"kind": "pyc-recipe", "schema": 2, "graph": "", "choices": {"a": 1}}',
    ],
)
def test_what_is_no_recipe_is_refused(data: bytes):
    with pytest.raises(PycError, match="expected a recipe") as caught:
        RecipeFile.from_bytes(data)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


@pytest.mark.full
def test_logs_are_told_apart():
    assert is_recipe(FILE.to_bytes())
    assert not is_recipe(b'{"record": "conditions"}\n')
    assert not is_recipe(b"PK\x03\x04")
