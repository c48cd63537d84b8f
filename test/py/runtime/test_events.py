"""The log of runs: refusals, switches and fallbacks with their codes, bounded, in order."""

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from modules import add_artifact, add_program, ramp

import pyc_mlir
from pyc_mlir import TensorSpec
from pyc_mlir.api import compile
from pyc_mlir.artifact import artifact as artifacts
from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import Contract, ContractReport
from pyc_mlir.pipelines.choices.evidence import Reason
from pyc_mlir.pipelines.choices.log import RUN, Event, events_of, load_recipe, read_log, write_log
from pyc_mlir.profile.guards import _equal, _smallest
from pyc_mlir.runtime.array import to_device
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.events import ANSWERED, COUNTED, MODE, REFUSED, RunLog
from pyc_mlir.runtime.program import Program, serving
from pyc_mlir.tools import pyc_explain, pyc_run

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


# The table of a program's guards: what each checks, its cost, how often it fired.
X = np.ones((2, 3), np.float32)


@pytest.fixture(scope="module")
def artifact():
    """x + y for 1 to 8 rows."""
    specs = [TensorSpec("f32", "n", 3), TensorSpec("f32", "n", 3)]
    return pyc_mlir.compile(lambda x, y: x + y, specs, dims={"n": (1, 8)}).artifact


def test_each_guard_counts_what_it_refused(artifact):
    program = Program(artifact)
    before = {g.name: g for g in program.guards()}
    assert list(before) == ["seen", "arrays", "arguments", "sizes", "ranges", "results", "arena"]
    assert before["sizes"].checks == "n: x[0] = y[0]" and before["ranges"].checks == "n 1 to 8"
    assert not any(g.fired for g in before.values())
    assert all((g.seconds is None) == (g.name == "results") for g in before.values())
    program(X, X)
    refused = [(X,), (X, X.astype(np.int32)), (X, X[:, :2]), (X, X[:1]), (np.tile(X, (9, 1)),) * 2]
    for call in refused:
        with pytest.raises(PycError):
            program(*call)
    with pytest.raises(PycError):
        program(X, X, out=X[:1])
    fired = {g.name: g.fired for g in program.guards() if g.fired}
    assert fired == {"arguments": 4, "sizes": 1, "ranges": 1}
    assert sum(fired.values()) == len(refused) + 1


def test_a_program_without_inputs_sizes_or_arena():
    program = pyc_mlir.compile(lambda: np.zeros(3, np.float32), [])
    found = {g.name: g.checks for g in program.guards()}
    assert found["arguments"] == "no arguments" and not {"sizes", "ranges"} & set(found)


def test_products_of_sizes_are_named():
    f32 = np.dtype(np.float32)
    inputs = SignatureEntry("x", f32, ("d",)), SignatureEntry("y", f32, ("2*d",))
    signature = Signature(inputs, ())
    assert _equal(signature) == "2*d: y[0]"
    assert signature.check(_smallest(signature)) == {"d": 1, "2*d": 2}


def test_a_reference_is_a_guard():
    program = pyc_mlir.compile(
        lambda x: x + 1, [TensorSpec("f32", 3)], contract=Contract(max_error=1e-3)
    )
    assert "max_error=0.001" in {g.name: g.checks for g in program.guards()}["reference"]


def test_explain_prints_the_table_with_the_log_of_a_run(artifact, tmp_path, capsys):
    program = Program(artifact)
    program.save(tmp_path / "p.vmfb")
    with pytest.raises(PycError):
        program(X)
    write_log(program.log(), tmp_path / "run.jsonl")
    arguments = [str(tmp_path / "p.vmfb"), "--guards", "--log", str(tmp_path / "run.jsonl")]
    assert pyc_explain.main(arguments) == 0
    rows = {r.split("  ")[0]: r for r in capsys.readouterr().out.splitlines()}
    assert rows["guard"].endswith("fired") and rows["arguments"].endswith("1")
    assert "DIMENSION_OUT_OF_RANGE" in rows["ranges"] and rows["ranges"].endswith("0")
    assert pyc_explain.main([str(tmp_path / "p.vmfb"), "--guards"]) == 0
    assert "fired" in program.guards()._repr_html_()


# Programs under `detect_faults`: answers, refusals, statistics, and clauses that do not fit.
VALUES = np.random.default_rng(1)
FIRST = VALUES.normal(size=(64, 80)).astype(np.float32)
SECOND = VALUES.normal(size=(80, 20)).astype(np.float32)
ROWS = VALUES.normal(size=(8, 64)).astype(np.float32)


def layers(x):
    return np.maximum(x @ FIRST, 0) @ SECOND


def counts(program):
    faults = program.stats().faults
    assert faults is not None
    return faults


@pytest.fixture(scope="module")
def program():
    return pyc_mlir.compile(layers, [ROWS], contract=Contract(detect_faults=True))


def test_answers_are_those_of_the_program_without_checks(program):
    plain = pyc_mlir.compile(layers, [ROWS])
    assert np.array_equal(program(ROWS), plain(ROWS))
    into = np.empty((8, 20), np.float32)
    assert program(ROWS, out=into) is into and np.array_equal(into, plain(ROWS))
    faults = counts(program)
    assert (faults.repaired, faults.lasting) == (0, 0)
    assert "faults: 0 tiles repaired" in repr(program.stats())
    assert plain.stats().faults is None


def test_the_contract_says_what_is_covered(program):
    clause = program.stats().contract["detect_faults"]
    assert "2 products carry checksums, 99" in str(clause) or "100.0 %" in str(clause)


def test_a_program_with_dynamic_sizes_and_both_modes_is_checked():
    given = pyc_mlir.compile(
        layers,
        [pyc_mlir.TensorSpec("f32", "batch", 64)],
        dims={"batch": (1, 16)},
        also_modes=("memory_first",),
        contract=Contract(detect_faults=True),
    )
    for mode in given.modes:
        given.use_mode(mode)
        assert np.allclose(given(ROWS[:5]), layers(ROWS[:5]), atol=1e-4)


def test_a_saved_program_is_checked_too(program, tmp_path):
    program.save(tmp_path / "p.vmfb")
    loaded = pyc_mlir.load(tmp_path / "p.vmfb")
    assert np.array_equal(loaded(ROWS), program(ROWS)) and loaded.stats().faults is not None


def damaged(program):
    """The program with a bit of its first packed weights flipped."""
    data = bytearray(program.artifact.vmfb)
    place = data.find(FIRST[0, :16].tobytes())
    assert place > 0, "the packed weights begin with the first row of the first panel"
    data[place + 3] ^= 0x40
    return Program(replace(program.artifact, vmfb=bytes(data)))


def test_damaged_weights_end_the_call_with_a_code(program):
    wrong = damaged(program)
    with pytest.raises(PycError) as raised:
        wrong(ROWS)
    assert raised.value.code is ReasonCode.FAULT_DETECTED
    assert "use another machine" in raised.value.message
    assert counts(wrong).lasting > 0 and wrong.stats().calls == 0
    assert any("FAULT_DETECTED" in str(event) for event in wrong.log())
    assert wrong.stats().guard_failures == 0


def test_many_threads_report_without_loss(program):
    wrong, failures = damaged(program), []

    def work():
        for _ in range(20):
            try:
                wrong(ROWS)
            except PycError as error:
                failures.append(error.code)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [ReasonCode.FAULT_DETECTED] * 80
    once = damaged(program)
    with pytest.raises(PycError):
        once(ROWS)
    assert counts(wrong).lasting == 80 * counts(once).lasting


@pytest.mark.parametrize("fallback", ["iree", "numpy"])
def test_fallbacks_that_detect_nothing_are_refused(fallback):
    with pytest.raises(PycError, match="detect_faults"):
        Contract(detect_faults=True, max_error="rounding", fallbacks=(fallback,))


@pytest.mark.parametrize(
    "source", [lambda x: np.maximum(x, 0), lambda x: x @ x.T], ids=["no product", "no constant"]
)
def test_a_program_without_products_of_weights_is_refused(source):
    with pytest.raises(PycError) as raised:
        pyc_mlir.compile(source, [ROWS], contract=Contract(detect_faults=True))
    assert raised.value.code is ReasonCode.UNCHECKABLE_CLAUSE


def test_a_program_without_kernels_of_pyc_is_refused():
    with pytest.raises(PycError) as raised:
        pyc_mlir.compile(layers, [ROWS], kernels="iree", contract=Contract(detect_faults=True))
    assert raised.value.code is ReasonCode.UNCHECKABLE_CLAUSE


def test_the_clause_is_true_or_false():
    with pytest.raises(PycError, match="detect_faults"):
        Contract(detect_faults="yes")  # pyright: ignore[reportArgumentType]


def test_memory_that_changes_after_the_load_refuses_all_calls(program):
    wrong = Program(program.artifact)
    wrong.check_memory()
    memory = np.frombuffer(serving(wrong).executable.memory, np.uint8)
    memory[len(memory) // 2] ^= 4
    with pytest.raises(PycError, match="as they were loaded"):
        wrong.check_memory()
    with pytest.raises(PycError, match="as they were loaded"):
        wrong(ROWS)
    memory[len(memory) // 2] ^= 4
    with pytest.raises(PycError, match="as they were loaded"):
        wrong(ROWS)


def test_memory_is_checked_by_a_timer(program):
    wrong = Program(program.artifact)
    wrong.check_memory(every=0.01)
    memory = np.frombuffer(serving(wrong).executable.memory, np.uint8)
    memory[-1] ^= 1
    end = time.monotonic() + 20
    while not any("FAULT_DETECTED" in str(event) for event in wrong.log()):
        assert time.monotonic() < end
        time.sleep(0.01)
    with pytest.raises(PycError, match="as they were loaded"):
        wrong(ROWS)


@pytest.mark.parametrize("every", [0, -1, float("nan"), "1"])
def test_seconds_between_checks_are_above_zero(program, every):
    with pytest.raises(PycError, match="seconds above 0"):
        program.check_memory(every=every)


def test_memory_is_checked_under_the_clause_only():
    plain = pyc_mlir.compile(layers, [ROWS])
    with pytest.raises(PycError) as raised:
        plain.check_memory()
    assert raised.value.code is ReasonCode.UNCHECKABLE_CLAUSE
