"""What a compile leaves out of what was asked: one line with a code, and an event of the log."""

import logging

import numpy as np
import pytest
from stream_programs import LOOP
from wisdoms import reversed_wisdom

from pyc_mlir import nn
from pyc_mlir.api import build, notices
from pyc_mlir.compilation.options import Options, make_options
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.pipelines.choices.log import Event, events_of, read_log
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.tools import pyc_compile

X = np.ones((8, 64), np.float32)
WIDE = np.ones((512, 512))


def left_out(source, inputs, options: Options) -> tuple[Event, ...]:
    return notices(build(source, inputs, options), options)


def test_further_modes_of_a_program_that_has_no_entry_for_them(caplog):
    options = make_options(also_modes=["memory_first", "latency_first"])
    with caplog.at_level(logging.WARNING, "pyc_mlir"):
        (event,) = left_out(LOOP.decode(), None, options)
    assert (event.name, event.before) == ("also_modes", "memory_first+latency_first")
    (reason,) = event.reasons
    assert reason.code == ReasonCode.NO_ARENA_ENTRY.name and "control flow" in reason.message
    assert [r.getMessage() for r in caplog.records] == [f"{reason.message} [{reason.code}]"]
    assert not left_out(nn.softmax, [X], options)


def test_wisdom_without_a_row_that_fits():
    made = build(nn.softmax, [X], make_options())
    here, elsewhere = reversed_wisdom(made.decisions), reversed_wisdom(made.decisions, hardware="x")
    assert not left_out(nn.softmax, [X], make_options(policy="fastest", wisdom=here))
    assert not left_out(nn.softmax, [X], make_options(policy="fastest"))
    for source, wisdom in ((nn.silu, here), (nn.softmax, elsewhere)):
        options = make_options(policy="fastest", wisdom=wisdom)
        (event,) = left_out(source, [X], options)
        assert (event.name, event.before) == ("wisdom", wisdom.label)
        assert event.reasons[0].code == ReasonCode.NO_EVIDENCE.name


def test_wisdom_without_rows(caplog):
    with caplog.at_level(logging.WARNING, "pyc_mlir"):
        make_options(policy="fastest", wisdom=Wisdom())
    (told,) = caplog.records
    assert "got a file without any" in told.getMessage() and "NO_EVIDENCE" in told.getMessage()


@pytest.mark.parametrize(
    ("function", "x", "kernels", "told"),
    [
        (lambda x: x @ x, WIDE, "all", True),
        (lambda x: x @ x, WIDE, "iree", False),  # as asked
        (lambda x: x @ x, WIDE.astype(np.float32), "all", False),
        (lambda x: x + x, WIDE[:8], "all", False),  # nothing to speak of
    ],
)
def test_heavy_operations_without_a_kernel(function, x, kernels, told):
    found = left_out(function, [x], make_options(check=False, kernels=kernels))
    assert len(found) == told
    for event in found:
        (reason,) = event.reasons
        assert reason.code == ReasonCode.NO_KERNEL.name
        assert "100% of the predicted time" in reason.message and "matmul at " in reason.message


def test_the_log_of_a_compile_has_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.mlir").write_bytes(LOOP)
    flags = ["loop.mlir", "-o", "loop.vmfb", "--log", "log.jsonl", "--also-mode", "memory_first"]
    assert pyc_compile.run(flags) == 0
    (event,) = [e for e in events_of(read_log("log.jsonl")) if e.name == "also_modes"]
    assert event.reasons[0].code == ReasonCode.NO_ARENA_ENTRY.name
