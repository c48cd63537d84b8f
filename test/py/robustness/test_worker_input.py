"""MLIR bytecode and what is not trusted: read in a worker only, and never the end of the caller."""

import random
import subprocess
import sys

import numpy as np
import pytest
from conftest import sample
from scenarios import count_of
from worker_hooks import CRASHES, SLEEPS, hook

from pyc_mlir.api import build
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import bytecode_of, lower
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.sources import Source
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.text.input_text import BYTECODE_MAGIC
from pyc_mlir.runtime.program import Program
from pyc_mlir.tools import pyc_compile
from pyc_mlir.util.logs import logged
from pyc_mlir.worker import compile as worker_compile
from pyc_mlir.worker import process

__all__ = ["hook"]
FOREIGN = """func.func @main(%a: tensor<5xf32>) -> tensor<5xf32> {
  %t = math.absf %a : tensor<5xf32>
  return %t : tensor<5xf32>
}
"""
X = np.linspace(-1, 1, 5, dtype=np.float32)
MUTANTS = count_of("untrusted bytecode, damaged")


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
    np.testing.assert_array_equal(program(X), np.abs(X))
    assert process.idle() == (), "its worker serves no one else"


def test_bytes_of_bytecode_are_compiled():
    np.testing.assert_array_equal(Program(build(bytecode(), None, make_options()))(X), np.abs(X))


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
