"""The dispatch timer: events and clocks read, overlaps shared out, and a program timed."""

import json

import numpy as np
import pytest

import pyc_mlir
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.dispatch_timer import (
    Clock,
    DispatchSpan,
    TimedCall,
    TimerSettings,
    read_calls,
    read_clock,
    time_calls,
)


def event(key: str, start: int, end: int, number: int, submission: int) -> str:
    return json.dumps(
        {
            "type": "host_dispatch_event",
            "key": key,
            "start_host_time_ns": start,
            "end_host_time_ns": end,
            "event_id": number,
            "submission_id": submission,
            "command_index": 4294967295,
            "workgroup_count": [2, 1, 1],
            "valid": True,
        }
    )


def test_each_call_has_its_dispatches_and_seconds():
    lines = ["", '{"type": "dispatch_summary"}']
    lines += [event("b", 140, 150, 2, 1), event("a", 100, 130, 1, 1)]
    lines += [event("a", 500, 520, 6, 2), event("b", 530, 560, 7, 2)]
    first, second = read_calls(lines, [Clock(1e-6, 3e-6), Clock(2e-6)])
    assert (first.seconds, second.seconds, first.cpu_seconds) == (1e-6, 2e-6, 3e-6)
    assert [s.symbol for s in first.spans] == ["a", "b"]
    assert [(s.start, s.end) for s in first.spans] == [
        pytest.approx((0.0, 30e-9)),
        pytest.approx((40e-9, 50e-9)),
    ]
    assert first.spans[0].workgroups == (2, 1, 1)
    assert second.shares == pytest.approx((20e-9, 30e-9))


def test_calls_without_dispatches_are_calls():
    assert read_calls([], [Clock(1e-6)]) == [TimedCall(1e-6, ())]
    assert TimedCall(1e-6, ()).shares == ()


@pytest.mark.parametrize("names", ["abba", "aba"])
def test_calls_that_differ_are_refused(names: str):
    lines = [event(name, i, i + 1, i, i // 2) for i, name in enumerate(names)]
    with pytest.raises(PycError, match="the same dispatches") as caught:
        read_calls(lines, [Clock(1.0), Clock(1.0)])
    assert caught.value.code is ReasonCode.RUNTIME_FAILED


def test_dispatches_that_overlap_share_the_time():
    call = TimedCall(
        10.0,
        (
            DispatchSpan("a", 0, 4),
            DispatchSpan("b", 2, 6),
            DispatchSpan("c", 2, 3),
            DispatchSpan("d", 7, 8),
        ),
    )
    # Alone to 2, three to 3, two to 4, b alone to 6; nothing from 6 to 7.
    third = 1 / 3
    assert call.shares == pytest.approx((2 + third + 0.5, third + 0.5 + 2, third, 1))
    assert sum(call.shares) == pytest.approx(7)


def test_the_clock_of_each_repetition():
    rows = [
        {"run_type": "iteration", "real_time": 2.0, "cpu_time": 1.0, "time_unit": "s"},
        {"run_type": "iteration", "real_time": 0.0, "cpu_time": 0.0, "time_unit": "us"},
        {"run_type": "aggregate", "real_time": 9.0, "cpu_time": 9.0, "time_unit": "ms"},
    ]
    assert read_clock(json.dumps({"benchmarks": rows})) == [Clock(2.0, 1.0), Clock(0.0, 0.0)]


@pytest.mark.parametrize(
    "arguments, code",
    [
        ({"device": "cuda"}, ReasonCode.CANNOT_PROFILE),
        ({"calls": 0}, ReasonCode.BAD_ARGUMENT),
        ({"threads": -1}, ReasonCode.BAD_ARGUMENT),
    ],
)
def test_wrong_ways_are_refused(arguments: dict, code: ReasonCode):
    with pytest.raises(PycError, match="dispatch timer") as caught:
        TimerSettings(**arguments)
    assert caught.value.code is code


@pytest.mark.full
def test_a_program_is_timed(tmp_path):
    weights = np.ones((64, 64), np.float32)
    x = np.ones((8, 64), np.float32)
    pyc_mlir.compile(lambda x: x @ weights, [x]).save(tmp_path / "p.vmfb")
    for device in ("local-sync", "local-task"):
        calls = time_calls(tmp_path / "p.vmfb", "main", [x], TimerSettings(device, 1, 3))
        assert len(calls) == 3 and all(c.seconds > 0 and c.spans for c in calls)
        assert all(sum(c.shares) <= c.seconds for c in calls)
        plain = time_calls(
            tmp_path / "p.vmfb", "main", [x], TimerSettings(device, 1, 2, profiling=False)
        )
        assert len(plain) == 2 and not any(c.spans for c in plain)


def test_what_irees_tools_say_stands_in_the_error(tmp_path):
    (tmp_path / "p.vmfb").write_bytes(b"none")
    with pytest.raises(PycError, match="iree-benchmark-module"):
        time_calls(tmp_path / "p.vmfb", "main", [], TimerSettings(calls=1))
