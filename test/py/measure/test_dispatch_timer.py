"""The dispatch timer: events read, joined with the compile's facts, and a program timed."""

import json

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.dispatch_timer import (
    Dispatch,
    DispatchTime,
    How,
    joined,
    read_events,
    time_dispatches,
)


def event(key: str, nanoseconds: int, number: int, submission: int) -> str:
    return json.dumps(
        {
            "type": "host_dispatch_event",
            "key": key,
            "duration_ns": nanoseconds,
            "event_id": number,
            "submission_id": submission,
            "command_index": 4294967295,
            "workgroup_count": [2, 1, 1],
            "valid": True,
        }
    )


def test_the_least_of_all_calls_by_place():
    lines = ["", '{"type": "dispatch_summary"}']
    lines += [event("a", 30, 1, 1), event("b", 9, 2, 1), event("a", 20, 3, 1)]
    lines += [event("a", 10, 4, 2), event("b", 8, 5, 2), event("a", 40, 6, 2)]
    times = read_events(lines, calls=2)
    assert [t.symbol for t in times] == ["a", "b", "a"]
    assert [t.seconds for t in times] == pytest.approx([10e-9, 8e-9, 20e-9])
    assert times[0].calls == 2 and times[0].workgroups == (2, 1, 1)


@pytest.mark.parametrize("names", ["abba", "aba"])
def test_calls_that_differ_are_refused(names: str):
    lines = [event(name, 1, i, i // 2) for i, name in enumerate(names)]
    with pytest.raises(PycError, match="the same dispatches") as caught:
        read_events(lines, calls=2)
    assert caught.value.code is ReasonCode.RUNTIME_FAILED


def test_facts_of_the_compile_are_joined_in_order():
    times = [DispatchTime(name, 1.0, 1.0, 1) for name in ("a", "b", "a", "a", "c")]
    known = [Dispatch("a", 2.0, 3.0, 4, ("x",)), Dispatch("a", 5.0), Dispatch("b", 6.0)]
    made = joined(times, known)
    assert [t.predicted_seconds for t in made] == [2.0, 6.0, 5.0, 5.0, 0.0]
    assert (made[0].flops, made[0].traffic_bytes, made[0].sources) == (3.0, 4, ("x",))


@pytest.mark.parametrize("arguments", [{"device": "cuda"}, {"calls": 0}, {"threads": 0}])
def test_wrong_ways_are_refused(arguments: dict):
    with pytest.raises(PycError, match="dispatch timer"):
        How(**arguments)


def test_a_program_is_timed(tmp_path):
    weights = np.ones((64, 64), np.float32)
    x = np.ones((8, 64), np.float32)
    pyc_mlir.compile(lambda x: x @ weights, [x]).save(tmp_path / "p.vmfb")
    for device in ("local-sync", "local-task"):
        times = time_dispatches(tmp_path / "p.vmfb", "main", [x], How(device, 1, 3))
        assert times and all(t.seconds > 0 and t.calls == 3 for t in times)


def test_what_irees_tools_say_stands_in_the_error(tmp_path):
    (tmp_path / "p.vmfb").write_bytes(b"none")
    with pytest.raises(PycError, match="iree-benchmark-module"):
        time_dispatches(tmp_path / "p.vmfb", "main", [], How(calls=1))
