"""The log of runs: refusals, switches and fallbacks with their codes, bounded, in order."""

from types import SimpleNamespace

import numpy as np
import pytest
from modules import add_artifact, add_program, ramp

from pyc_mlir.api import compile
from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import ContractReport
from pyc_mlir.pipelines.choices.evidence import Reason
from pyc_mlir.pipelines.choices.log import RUN, Event, events_of, load_recipe, read_log, write_log
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.events import ANSWERED, COUNTED, MODE, REFUSED, RunLog
from pyc_mlir.tools import pyc_run

NO_STATS = SimpleNamespace(
    cache=None, contract=ContractReport(), served={}, routes={}, **dict.fromkeys(COUNTED, 0)
)
SOFTMAX = """func.func @main(%x: tensor<64x64xf32>) -> tensor<64x64xf32> {
  %0 = "pyc.softmax"(%x) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %1 = "pyc.matmul"(%0, %x) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %2 = "pyc.matmul"(%1, %0) : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  return %2 : tensor<64x64xf32>
}"""


def test_calls_that_answer_are_only_counted():
    program = add_program()
    for _ in range(3):
        program(ramp(4), ramp(4))
    load, last = program.log()
    assert (load.site.key, last.site.key) == ("run:load", "run:calls")
    assert "graph add" in load.reasons[0].message and last.measured["calls"] == 3
    assert last.chosen == ANSWERED


OUT = to_device(ramp(4), Device("local-sync"))


@pytest.mark.parametrize(
    "code, arguments, options",
    [
        (ReasonCode.ARGUMENT_COUNT, (ramp(4),), {}),
        (ReasonCode.ARGUMENT_SHAPE, (ramp(4), ramp(5)), {}),
        (ReasonCode.ARGUMENT_DTYPE, (ramp(4), ramp(4, dtype="i32")), {}),
        (
            ReasonCode.NO_ARENA_ENTRY,
            (ramp(4), ramp(4)),
            {"out": to_device(ramp(4), Device("local-sync"))},
        ),
        (ReasonCode.NO_ARENA_ENTRY, (ramp(4), ramp(4)), {"donate": [0]}),
    ],
)
def test_a_refused_call_is_logged_with_its_code(code, arguments, options):
    program = add_program()
    with pytest.raises(PycError) as caught:
        program(*arguments, **options)
    event = program.log()[1]
    assert (event.site.key, event.chosen) == ("run:guard", REFUSED)
    assert event.reasons == (Reason(caught.value.code.name, caught.value.message),)
    assert caught.value.code is code
    assert program.log()[-1].measured["guard_failures"] == 1


def test_a_program_that_cannot_be_loaded_is_logged(tmp_path, capsys):
    program, log = tmp_path / "no.vmfb", tmp_path / "run.jsonl"
    program.write_bytes(b"none")
    assert pyc_run.main([str(program), "--log", str(log)]) == 1
    (line,) = events_of(read_log(log))
    assert (line.site.key, line.chosen) == ("run:load", REFUSED)
    assert line.reasons[0].code == "BAD_ARTIFACT"
    assert line.reasons[0].message in capsys.readouterr().err


def test_a_log_does_not_overwrite_the_program(tmp_path, capsys):
    program = tmp_path / "p.vmfb"
    program.write_bytes(b"none")
    assert pyc_run.main([str(program), "--log", str(program)]) == 2
    assert "a file of its own for --log" in capsys.readouterr().err
    assert program.read_bytes() == b"none"


def test_a_runtime_failure_is_logged(monkeypatch):
    program = add_program()

    def fail(arrays):
        raise PycError(ReasonCode.RUNTIME_FAILED, "device: expected an answer, got none")

    monkeypatch.setattr(program._serving, "run", fail)
    with pytest.raises(PycError):
        program(ramp(4), ramp(4))
    assert program.log()[1].site.key == "run:runtime"


def test_a_switch_is_logged():
    program = compile(SOFTMAX, also_modes=["memory_first"], device=Device("local-sync"))
    first = program.mode
    program.use_mode("memory_first")
    event = program.log()[1]
    assert (event.site.key, event.chosen) == (f"run:{MODE}", "memory_first")
    assert event.alternatives[1].name == first
    assert event.reasons[0].code == ReasonCode.MODE_SWITCHED.name


def test_the_log_is_bounded():
    log = RunLog(most=3)
    for number in range(5):
        log.add(MODE, str(number), "why")
    events = log.events(NO_STATS)
    assert [e.chosen for e in events] == ["2", "3", "4", ANSWERED]
    assert events[-1].measured["events_dropped"] == 2


def test_logs_of_runs_are_read_and_no_recipe_repeats_them(tmp_path):
    program = add_program()
    write_log(program.log(), tmp_path / "log")
    assert read_log(tmp_path / "log") == list(program.log())
    assert all(isinstance(e, Event) and e.part == RUN for e in program.log())
    assert load_recipe(tmp_path / "log").choices == {}


def test_the_command_line_writes_it_also_for_a_refused_call(tmp_path):
    path, log = tmp_path / "add.vmfb", tmp_path / "log"
    artifacts.write(add_artifact(), path)
    np.save(tmp_path / "x.npy", ramp(4))
    inputs = [f"--input={tmp_path / 'x.npy'}"] * 2
    line = [str(path), "--device", "local-sync", "--log", str(log)]
    assert pyc_run.main([*line, *inputs]) == 0
    assert [e.site.key for e in events_of(read_log(log))] == ["run:load", "run:calls"]
    assert pyc_run.main([*line, inputs[0]]) == 1
    assert ReasonCode.ARGUMENT_COUNT.name in str(read_log(log))
