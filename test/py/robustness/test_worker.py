"""Workers: equal bytes, crashes and hangs that are told, and nothing left behind."""

import os
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytest
from conftest import rounds, sample
from onnx import helper
from onnx_models import model
from worker_calls import LONG, TEXT, X, chain, compiled, refusal
from worker_hooks import (
    ASKED_SLEEPS,
    CRASHES,
    FAULTY,
    SLEEPS,
    Clock,
    hook,
    second_is_done,
    with_clock,
)

import pyc_mlir
from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import to_bytes
from pyc_mlir.artifact.import_report import UnsupportedModel
from pyc_mlir.cache.cache import Cache
from pyc_mlir.cache.store import CacheStore
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import bytecode_of, lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.sources import Source
from pyc_mlir.pipelines.choices.choices import Recipe
from pyc_mlir.pipelines.choices.contract import Contract, Status
from pyc_mlir.pipelines.text.input_text import BYTECODE_MAGIC
from pyc_mlir.runtime.program import Program
from pyc_mlir.tools import pyc_compile
from pyc_mlir.tools.cli.common import run_tool
from pyc_mlir.util.logs import logged
from pyc_mlir.worker import compile as worker_compile
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


FIVE = np.linspace(-1, 1, 5, dtype=np.float32)
MUTANTS = rounds(12, 200)


def bytecode() -> bytes:
    with new_context() as context, ir.Location.unknown():
        return bytecode_of(ir.Module.parse(FOREIGN, context))


@pytest.mark.parametrize("suffix", [".mlirbc", ".mlir", ".anything"])
@pytest.mark.full
def test_a_file_of_bytecode_is_compiled(tmp_path, suffix):
    process.end_all()
    path = tmp_path / f"model{suffix}"
    path.write_bytes(bytecode())
    program = Program(build(path, None, make_options()))
    np.testing.assert_array_equal(program(FIVE), np.abs(FIVE))
    assert process.idle() == (), "its worker serves no one else"


def test_bytes_of_bytecode_are_compiled():
    np.testing.assert_array_equal(
        Program(build(bytecode(), None, make_options()))(FIVE), np.abs(FIVE)
    )


@pytest.mark.full
def test_sources_of_bytecode(tmp_path):
    path = tmp_path / "model"
    path.write_bytes(BYTECODE_MAGIC)
    assert all(Source.of(given).is_bytecode for given in (path, str(path), bytecode()))
    others = [FOREIGN, b"", b"ML", tmp_path, tmp_path / "none", "no\0path", lambda x: x]
    assert not any(Source.of(given).is_bytecode for given in others)


def test_it_is_not_parsed_in_this_process(tmp_path):
    path = tmp_path / "model.mlirbc"
    path.write_bytes(bytecode())
    with pytest.raises(PycError, match="only a worker process may parse") as caught:
        lower(Job.of(path, None, make_options()))
    assert caught.value.code is ReasonCode.BAD_MODEL


def test_a_crash_while_it_is_parsed_is_an_error(hook, tmp_path, monkeypatch):
    hook(CRASHES)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = tmp_path / "model.mlirbc"
    path.write_bytes(bytecode())
    with pytest.raises(PycError, match="SIGSEGV") as caught:
        build(path, None, make_options())
    assert caught.value.code is ReasonCode.NATIVE_CRASH
    assert len(list(tmp_path.glob("*.request"))) == 1


@pytest.mark.parametrize("seed", range(MUTANTS))
@pytest.mark.full
def test_damaged_bytecode_is_told_or_compiles(tmp_path, monkeypatch, seed):
    """Every mutant is refused with a code, or is a program."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rng, data = random.Random(seed), bytearray(bytecode())
    for _ in range(rng.randint(1, 4)):
        data[rng.randrange(len(BYTECODE_MAGIC), len(data))] = rng.randrange(256)
    path = tmp_path / "model.mlirbc"
    path.write_bytes(data[: rng.choice([len(data), rng.randrange(5, len(data))])])
    try:
        assert build(path, None, make_options()).vmfb
    except PycError as error:
        assert error.code in (
            ReasonCode.INVALID_IR,
            ReasonCode.NATIVE_CRASH,
            ReasonCode.TARGET_COMPILE_FAILED,
            ReasonCode.UNSUPPORTED_DTYPE,
            ReasonCode.BAD_MODEL,
        )


# The command line.
def compile_file(tmp_path, *flags: str) -> int:
    return pyc_compile.main([*flags, "-o", str(tmp_path / "out.vmfb")])


@pytest.mark.full
def test_the_command_line_compiles_bytecode(tmp_path):
    path = tmp_path / "model.mlirbc"
    path.write_bytes(bytecode())
    assert compile_file(tmp_path, str(path)) == 0
    assert (tmp_path / "out.vmfb").exists()
    # In a process of its own: a forked child of one that has compiled opens no session of IREE.
    command = [sys.executable, "-m", "pyc_mlir.tools.pyc_compile", str(path)]
    command += ["--compile-to", "input", "-o", str(tmp_path / "out.mlir")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("flags", sample([["--max-compile-time", "60"], ["--untrusted"]], 2))
def test_the_command_line_compiles_in_a_worker(tmp_path, capfd, flags):
    path = tmp_path / "model.mlir"
    path.write_text(FOREIGN)
    assert compile_file(tmp_path, str(path), *flags) == 0
    reported = "max_compile_seconds = 60.0: checked" in capfd.readouterr().out
    assert reported == (flags[0] == "--max-compile-time")


def test_the_command_line_ends_a_compile(tmp_path, capfd):
    path = tmp_path / "model.mlir"
    path.write_text(FOREIGN)
    assert compile_file(tmp_path, str(path), "--max-compile-time", "1ms") == 1
    assert "[COMPILE_TIMEOUT]" in capfd.readouterr().err


def test_a_limit_needs_a_program(tmp_path, capfd):
    path = tmp_path / "model.mlir"
    path.write_text(FOREIGN)
    assert pyc_compile.main([str(path), "--emit", "linalg", "--max-compile-time", "9"]) == 1
    assert "[UNCHECKABLE_CLAUSE]" in capfd.readouterr().err


def refusal_of_text() -> PycError:
    with pytest.raises(PycError) as caught:
        build(FOREIGN, None, make_options(), untrusted=True)
    return caught.value


def test_what_is_not_trusted_has_a_limit_by_default(hook, monkeypatch):
    hook(SLEEPS)
    monkeypatch.setattr(worker_compile, "UNTRUSTED_SECONDS", 0.5)
    error = refusal_of_text()
    assert error.code is ReasonCode.COMPILE_TIMEOUT
    assert "a compile in a worker: expected a program within 0.5 s" in error.message
    assert "set `max_compile_seconds`" in error.message


@pytest.mark.full
def test_the_contracts_limit_replaces_the_default_one(monkeypatch):
    monkeypatch.setattr(worker_compile, "UNTRUSTED_SECONDS", 0.0)
    assert refusal_of_text().code is ReasonCode.COMPILE_TIMEOUT
    requested = make_options(contract=Contract(max_compile_seconds=600))
    assert build(FOREIGN, None, requested, untrusted=True).vmfb
    with worker_compile.WorkerCompile(Job.of(FOREIGN, None, make_options()), logged) as trusted:
        assert trusted._left is None


# What a limit may be exceeded by, in seconds.
SLACK = 0.5


# Limits.
def took(source, inputs, limit: float, **asked) -> tuple[float, ReasonCode | None]:
    """Seconds of a whole `compile`, and the code if it was refused."""
    contract = Contract(max_compile_seconds=limit, **asked)
    began, code = time.monotonic(), None
    try:
        pyc_mlir.compile(source, inputs, contract=contract)
    except PycError as error:
        code = error.code
    return time.monotonic() - began, code


def quickest(source, inputs, limit: float, **asked) -> tuple[float, ReasonCode | None]:
    """The best of three: what the machine does besides is no fault of a limit."""
    found: tuple[float, ReasonCode | None] = (float("inf"), None)
    for _ in range(3):
        found = min(found, took(source, inputs, limit, **asked), key=lambda f: f[0])
        if found[0] <= limit + SLACK:
            break
    return found


@pytest.mark.alone
@pytest.mark.parametrize("limit", sample([0.2, 0.35, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0], 3))
@pytest.mark.full
def test_a_limit_is_kept(limit):
    pyc_mlir.compile(TEXT)  # a first compile imports modules
    seconds, code = quickest(chain, [X], limit)
    assert seconds <= limit + SLACK
    assert code in (None, ReasonCode.COMPILE_TIMEOUT)


@pytest.mark.alone
@pytest.mark.parametrize("limit", sample([0.2, 0.5, 1.0, 2.0], 2))
@pytest.mark.full
def test_a_hung_worker_is_ended_at_the_limit(hook, limit):
    hook(SLEEPS)
    seconds, code = quickest(TEXT, None, limit)
    assert limit <= seconds <= limit + SLACK
    assert code is ReasonCode.COMPILE_TIMEOUT


@pytest.mark.alone
@pytest.mark.parametrize("jump", [-1e7, 1e7])
def test_the_clock_of_the_day_is_not_asked(hook, monkeypatch, jump):
    hook(SLEEPS)
    real, asked = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: real() + jump * (next(asked) % 2))
    seconds, code = quickest(TEXT, None, 0.5)
    assert 0.5 <= seconds <= 0.5 + SLACK
    assert code is ReasonCode.COMPILE_TIMEOUT


@pytest.mark.parametrize("clause", [{"determinism": "strict"}, {"fallbacks": ("none",)}])
def test_some_contracts_refuse_at_the_limit(hook, monkeypatch, clause):
    hook(ASKED_SLEEPS)
    taken, take = [], process.take
    monkeypatch.setattr(process, "take", lambda: taken.append(take()) or taken[-1])
    error = refusal(contract=Contract(max_compile_seconds=0.5, **clause))
    assert error.code is ReasonCode.COMPILE_TIMEOUT
    assert "allows no cheaper program" in error.message
    assert len(taken) == 1, "nothing else was compiled"


@pytest.fixture
def degraded(hook, monkeypatch):
    """Compiles whose time is over once the second worker has answered all."""
    hook(ASKED_SLEEPS)
    with_clock(monkeypatch, Clock(100, 600, second_is_done))


@pytest.mark.parametrize(
    ("asked", "stage"), [({}, "cheapest"), ({"also_modes": ["memory_first"]}, "default")]
)
@pytest.mark.full
def test_a_cheaper_program_stands_in(degraded, asked, stage):
    contract = Contract(max_compile_seconds=600, max_error="rounding")
    artifact = compiled(contract=contract, **asked)
    decision = artifact.decisions[0]
    assert (decision.site.key, decision.chosen) == ("compile-stage:module", stage)
    assert [a.name for a in decision.alternatives] == ["requested", "default", "cheapest"]
    assert str(decision.grounds[0]) == "COMPILE_DEGRADED: `requested` was ended after 600 s"
    (ended,) = set(decision.measured) - {"cheapest", stage}
    assert ended.startswith("requested, while ") and stage in decision.measured
    program = Program(artifact)
    np.testing.assert_allclose(program(X), np.tanh(X), rtol=1e-5)
    report = program.stats().contract
    assert report["max_compile_seconds"].code == "COMPILE_DEGRADED"
    assert report["max_compile_seconds"].measured["seconds"] > 0
    assert report["max_error"].done == report["max_error"].of > 0, "it is compared as well"


@pytest.mark.full
def test_a_program_that_comes_late_breaks_its_clause_or_is_refused(monkeypatch):
    """No limit ends what this process does."""
    with_clock(monkeypatch, Clock(1, 601, lambda job: job._first.done))
    clause = Program(compiled(contract=LONG)).stats().contract["max_compile_seconds"]
    assert (clause.status, clause.code) == (Status.BROKEN, "COMPILE_TIMEOUT")
    assert clause.measured == {"seconds": 601}
    for more in ({"determinism": "strict"}, {"fallbacks": ("none",)}):
        error = refusal(contract=replace(LONG, **more))
        assert error.code is ReasonCode.COMPILE_TIMEOUT and "got one after 601 s" in error.message


def test_keeping_a_program_counts(monkeypatch, tmp_path):
    kept, keep = [], Cache.keep
    monkeypatch.setattr(Cache, "keep", lambda *a: (kept.append(1), keep(*a))[1])
    with_clock(monkeypatch, Clock(1, 601, lambda job: bool(kept)))
    made = build(TEXT, None, make_options(contract=LONG), cache=Cache(CacheStore(tmp_path)))
    assert Program(made).stats().contract["max_compile_seconds"].status is Status.BROKEN


@pytest.mark.full
def test_a_stand_in_is_made_again_by_its_recipe(degraded, monkeypatch):
    asked = make_options(contract=Contract(max_compile_seconds=600))
    made = build(TEXT, None, asked)
    monkeypatch.undo()
    process.end_all()
    again = build(TEXT, None, replace(asked, recipe=Recipe.from_log(made.decisions)))
    assert to_bytes(again) == to_bytes(made)


@pytest.mark.full
def test_a_clock_leaves_nothing_in_the_cache(degraded, tmp_path):
    cache = Cache(CacheStore(tmp_path))
    contract = Contract(max_compile_seconds=600)
    for _ in range(2):
        made = build(TEXT, None, make_options(contract=contract), cache=cache)
        assert made.cached is not None
        assert made.cached.outcome == "miss"
        assert "COMPILE_DEGRADED" in {e.code.name for e in made.cached.events}
    assert list(cache.store.entries()) == []


def test_what_was_made_in_time_is_found_again(tmp_path):
    path = tmp_path / "model.mlir"
    path.write_text(TEXT)
    os.utime(path, (1e9, 1e9))
    contract = Contract(max_compile_seconds=600, max_error="rounding")
    cache, options = Cache(CacheStore(tmp_path / "cache")), make_options(contract=contract)
    first = build(path, None, options, cache=cache)
    second = build(path, None, options, cache=Cache(CacheStore(tmp_path / "cache")))
    assert first.cached is not None
    assert second.cached is not None
    assert (first.cached.outcome, second.cached.outcome) == ("miss", "hit")
    assert to_bytes(second) == to_bytes(first)
    assert second.checks is not None
    assert second.checks.verification is not None, "tried, in the worker"
