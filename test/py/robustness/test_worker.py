"""Workers: equal bytes, crashes and hangs that are told, and nothing left behind."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from conftest import sample
from onnx import helper
from onnx_models import model
from worker_calls import LONG, TEXT, X, chain, compiled, refusal
from worker_hooks import (
    CRASHES,
    FAULTY,
    hook,
)

import pyc_mlir
from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import to_bytes
from pyc_mlir.artifact.import_report import UnsupportedModel
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.tools import pyc_compile
from pyc_mlir.tools.cli.common import run_tool
from pyc_mlir.worker import process
from pyc_mlir.worker.messages import WorkerFault

__all__ = ["hook"]
FOREIGN = """func.func @main(%a: tensor<5xf32>) -> tensor<5xf32> {
  %t = math.absf %a : tensor<5xf32>
  return %t : tensor<5xf32>
}
"""
RELU = model([helper.make_node("Relu", ["x"], ["y"])], {"x": (np.float32, [2, 3])}, ["y"])
WEIGHTS = np.arange(800, dtype=np.float32).reshape(8, 100) / 800


def double(x):
    return x @ WEIGHTS


@pytest.fixture(autouse=True)
def none_left():
    """No test inherits a worker that another one has hooked."""
    yield
    assert all(w.alive for w in process.idle())
    assert len(process.idle()) <= process.MOST_IDLE


SOURCES = {
    "pyc text": lambda p: (TEXT, None),
    "pyc text, refined": lambda p: (TEXT, [(2, 8)]),
    "foreign text": lambda p: (FOREIGN, None),
    "a file": lambda p: ((p / "model.mlir"), None),
    "a function with weights": lambda p: (double, [X]),
    "an ONNX model": lambda p: (RELU, None),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.full
def test_a_worker_makes_the_same_bytes(name, tmp_path):
    (tmp_path / "model.mlir").write_text(TEXT)
    source, inputs = SOURCES[name](tmp_path)
    here = compiled(source, inputs)
    there = compiled(source, inputs, untrusted=True)
    assert to_bytes(there) == to_bytes(here)
    assert [d.site for d in there.decisions] == [d.site for d in here.decisions], "places too"


def test_files_are_found_from_where_the_caller_stands(tmp_path, monkeypatch):
    process.start_early()
    (tmp_path / "model.mlir").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    assert compiled("model.mlir", untrusted=True).vmfb


def test_a_current_folder_that_is_gone_is_told(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    error = refusal(TEXT, contract=LONG)
    assert error.code is ReasonCode.FILE_ACCESS
    assert "the working directory: expected" in error.message


@pytest.mark.full
def test_a_limit_beyond_what_the_system_waits_for():
    assert compiled(contract=Contract(max_compile_seconds=1e9)).vmfb


@pytest.mark.full
def test_a_worker_serves_again_but_not_after_the_untrusted():
    process.end_all()
    compiled(contract=LONG)
    (worker,) = process.idle()
    compiled(contract=LONG)
    assert process.idle() == (worker,)
    compiled(untrusted=True)
    assert process.idle() == ()
    assert worker.how_it_ended() == "SIGKILL"


def test_a_worker_that_began_with_other_code_is_not_taken(monkeypatch):
    process.end_all()
    process.start_early()
    (worker,) = process.idle()
    monkeypatch.setenv("LLVM_OVERRIDE_PRODUCER", "another")
    taken = process.take()
    assert taken is not worker and taken.overrides and process.idle() == ()
    taken.end()


@pytest.mark.full
def test_errors_of_the_front_end_and_of_iree_come_through():
    error = refusal("func.func @main() {\n  oops\n}", contract=LONG)
    assert error.code is ReasonCode.INVALID_IR
    error = refusal("missing.mlir", contract=LONG)
    assert error.code is ReasonCode.FILE_ACCESS
    with pytest.raises(PycError) as caught:
        compiled(lambda x: x if x.sum() > 0 else -x, [X], contract=LONG)
    assert caught.value.code is ReasonCode.UNTRACEABLE
    unknown = model(
        [helper.make_node("RandomNormalLike", ["x"], ["y"])], {"x": (np.float32, [3, 3])}, ["y"]
    )
    error = refusal(unknown, untrusted=True)
    assert isinstance(error, UnsupportedModel), "with its report"
    assert (error.report.by_op, error.report.first) == ({"RandomNormalLike": 1}, "<onnx>:1")
    assert compiled(contract=LONG).vmfb, "and the worker goes on"


@pytest.mark.full
def test_a_fault_of_ours_is_told_with_its_traceback(hook):
    hook(FAULTY)
    with pytest.raises(WorkerFault, match="ZeroDivisionError"):
        compiled(contract=LONG)


def test_two_threads_compile_at_once():
    def one(factor: float) -> np.ndarray:
        program = pyc_mlir.compile(lambda x: x * np.float32(factor), [X], contract=LONG)
        return program(X)

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(one, (2.0, 3.0)))
    np.testing.assert_array_equal(found[0], X * 2)
    np.testing.assert_array_equal(found[1], X * 3)


# Crashes.
@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where reproducers go."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def rerun(error: PycError) -> subprocess.CompletedProcess[str]:
    """Run the command line that an error names."""
    found = re.search(r"`([^`]+ -m pyc_mlir.worker [^`]+)`", error.message)
    assert found, error.message
    command = shlex.split(found[1])
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.full
def test_a_crash_is_an_error_with_a_reproducer(hook, folder):
    hook(CRASHES)
    path = folder / "model.mlir"
    path.write_text(TEXT)
    error = refusal(path, contract=LONG)
    assert error.code is ReasonCode.NATIVE_CRASH
    assert "SIGSEGV" in error.message
    path.write_text("another one now")
    again = rerun(error)
    assert (again.returncode, again.stderr.splitlines()[0]) == (0, "PyC lowers to linalg")
    assert again.stdout.startswith("compiled: ")


@pytest.mark.full
def test_a_reproducer_tells_refusals_and_damage_too(hook, folder):
    hook(CRASHES)
    again = rerun(refusal("func.func @main() {\n  oops\n}", contract=LONG))
    assert again.returncode == 1
    assert "INVALID_IR" in again.stderr
    (path,) = folder.glob("pyc-crash-*.request")
    path.write_bytes(path.read_bytes()[:-1])
    command = [sys.executable, "-m", "pyc_mlir.worker", str(path)]
    assert subprocess.run(command, capture_output=True, timeout=300, check=False).returncode == 1


@pytest.mark.full
def test_a_worker_that_was_killed_while_it_waited_is_replaced(folder, monkeypatch):
    process.end_all()
    assert compiled(contract=LONG).vmfb
    for worker in process.idle():
        os.kill(worker.pid, signal.SIGKILL)
    with monkeypatch.context() as patch:
        patch.setattr(process.WorkerProcess, "alive", True)  # as it was a moment before
        assert compiled(contract=LONG).vmfb
    assert not list(folder.glob("pyc-crash-*.request"))


MOMENTS = {
    "PyC lowers to linalg begins": (0, 0.0),
    "PyC lowers to linalg ends": (0, -1.0),
    "IREE compiles for cpu begins": (1, 0.0),
    **{f"{s} s into IREE": (1, s) for s in (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)},
    **{f"{s} s into the lowering": (0, s) for s in (0.005, 0.02, 0.1)},
}


@pytest.mark.parametrize("moment", sample(list(MOMENTS), 3))
@pytest.mark.full
def test_a_worker_that_is_killed_is_told(folder, moment):
    step, delay = MOMENTS[moment]
    process.end_all()
    process.start_early()
    (worker,) = process.idle()
    steps = iter(range(10))

    def kill() -> None:
        os.kill(worker.pid, signal.SIGKILL)

    @contextmanager
    def stage(title: str):
        due = next(steps) == step
        if due and delay >= 0:
            threading.Timer(delay, kill).start()
        yield
        if due and delay < 0:
            kill()

    try:
        made = build(chain, [X], make_options(contract=LONG), stage)
    except PycError as error:
        assert error.code is ReasonCode.NATIVE_CRASH
        assert "SIGKILL" in error.message
        assert len(list(folder.glob("pyc-crash-*.request"))) == 1
    else:
        assert delay > 0, "it was quicker"
        assert made.vmfb
    assert compiled(contract=LONG).vmfb, "the next compile has another worker"


def test_a_worker_ends_with_its_parent():
    code = (
        "import os; from pyc_mlir.worker import process; process.start_early();"
        "print(process.idle()[0].pid, flush=True); os._exit(0)"
    )
    reported = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    pid, until = int(reported.stdout), time.monotonic() + 60
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    pytest.fail("the worker still runs")


# Policies of others, which stay in this process.
@dataclass(frozen=True)
class Mine:
    name: str = "mine"
    seen: list[str] | None = None

    def prefer(self, site, alternatives):
        assert self.seen is not None
        self.seen.append(site.key)
        if len(self.seen) > 1 and self.seen[0] == "raise":
            raise KeyError("mine")
        return alternatives[-1].name


def test_a_policy_of_another_package_is_asked_here():
    here, there = Mine(seen=[]), Mine(seen=[])
    first = compiled(policy=here)
    second = compiled(policy=there, contract=LONG)
    assert here.seen == there.seen != []
    assert [d.chosen for d in first.decisions] == [d.chosen for d in second.decisions]


@pytest.mark.full
def test_what_a_policy_raises_is_raised():
    with pytest.raises(KeyError, match="mine"):
        compiled(policy=Mine(seen=["raise"]), contract=LONG)
    assert compiled(contract=LONG).vmfb


def test_seconds_that_are_over_before_the_compile_count():
    options = make_options(contract=LONG)
    made = build(TEXT, None, options, spent=300.0)
    assert made.checks is not None
    (clause,) = (c for c in made.checks.clauses if c.clause == "max_compile_seconds")
    assert 300 < clause.measured["seconds"] < 600
    with pytest.raises(PycError) as refused:
        build(TEXT, None, options, spent=601.0)
    assert refused.value.code is ReasonCode.COMPILE_TIMEOUT


@pytest.mark.full
def test_a_command_counts_from_the_start_of_its_process(tmp_path, capsys):
    source = tmp_path / "model.mlir"
    source.write_text(TEXT)
    line = [str(source), "-o", str(tmp_path / "m.vmfb"), "--max-compile-time", "10min"]

    def ran(began: float) -> int:
        return run_tool("pyc-compile", lambda: pyc_compile._run(line, began))

    assert ran(time.time() - 601) == 1
    assert "[COMPILE_TIMEOUT]" in capsys.readouterr().err
    assert ran(time.time() - 1) == 0
    assert "max_compile_seconds = 600.0: checked" in capsys.readouterr().out
