"""Log records: steps, the cache's answers, decisions, and what `PYC_LOG` shows of them."""

import io
import logging
import os
import subprocess

import numpy as np
import pytest
from pythons import python
from refusals import refused

import pyc_mlir
from pyc_mlir import ReasonCode
from pyc_mlir.tools.cli.common import Progress
from pyc_mlir.tools.demo.digits import MODELS
from pyc_mlir.util import logs

MODEL = MODELS["mlp"]


def double(x):
    return x + x


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.DEBUG, logs.ROOT)
    return caplog


@pytest.fixture
def unconfigured(monkeypatch):
    """The loggers as they are without the variable, before and after a test."""
    names = [logs.ROOT, *(f"{logs.ROOT}.{child}" for child in logs.CHILDREN)]
    yield
    logging.getLogger(logs.ROOT).handlers.clear()
    logging.getLogger(logs.ROOT).propagate = True
    for name in names:
        logging.getLogger(name).setLevel(logging.NOTSET)


def test_a_compile_logs_each_step_with_its_seconds(logged, tmp_path):
    ones = np.ones(4, np.float32)
    program = pyc_mlir.compile(double, [ones], cache=tmp_path)
    program(ones)
    steps = [r for r in logged.records if r.name == "pyc_mlir.compile" and hasattr(r, "stage")]
    begun = [r.stage for r in steps if r.seconds is None]
    assert begun == ["PyC lowers to linalg", "IREE compiles for cpu"]
    assert [r.stage for r in steps if r.seconds is not None and r.seconds > 0] == begun
    text = "\n".join(f"{r.name} {r.getMessage()}" for r in logged.records)
    assert "pyc_mlir.cache miss" in text and "pyc_mlir.run load" in text
    decisions = [r for r in logged.records if r.name == "pyc_mlir.decisions"]
    assert len(decisions) == len(program.artifact.decisions)
    logged.clear()
    pyc_mlir.compile(double, [ones], cache=tmp_path)
    assert any(r.name == "pyc_mlir.cache" and "memory" in r.getMessage() for r in logged.records)
    assert not any(hasattr(r, "stage") for r in logged.records)  # nothing was compiled


def test_a_step_of_a_command_line_is_logged_once(logged):
    with Progress(io.StringIO()) as progress, progress.stage("one step"):
        pass
    assert [r.getMessage().partition(":")[0] for r in logged.records] == [
        "one step ...",
        "one step",
    ]
    assert [title for title, _ in progress.stages] == ["one step"]


def test_a_step_that_fails_ends_all_the_same(logged):
    with pytest.raises(ValueError), logs.logged("a bad step"):
        raise ValueError
    assert [r.seconds is None for r in logged.records] == [True, False]


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize(
    ("text", "levels"),
    [
        ("info", {"": logging.INFO}),
        ("DEBUG", {"": logging.DEBUG}),
        ("warning, cache=debug", {"": logging.WARNING, ".cache": logging.DEBUG}),
        ("run=off", {".run": logging.CRITICAL + 1}),
    ],
)
def test_levels(text, levels):
    logs.configure({"PYC_LOG": text})
    logs.configure({"PYC_LOG": text})
    assert len(logging.getLogger(logs.ROOT).handlers) == 1
    for child, level in levels.items():
        assert logging.getLogger(logs.ROOT + child).level == level


@pytest.mark.usefixtures("unconfigured")
def test_without_the_variable_nothing_is_set_up():
    logs.configure({"PYC_LOG": ""})
    logs.configure({})
    assert not logging.getLogger(logs.ROOT).handlers


@pytest.mark.usefixtures("unconfigured")
def test_a_line_is_printable(capsys):
    logs.configure({"PYC_LOG": "info"})
    logs.logger(logs.RUN).info("a\x1b[2Jname\nof two lines")
    line = capsys.readouterr().err
    assert line.count("\n") == 1 and "\x1b" not in line
    assert "pyc_mlir.run info: a\\u001b[2Jname\\nof two lines" in line


@pytest.mark.parametrize(
    ("text", "hint"),
    [("infoo", "did you mean 'info'?"), ("1", ""), ("cahce=info", "did you mean 'cache'?")],
)
def test_a_bad_value_is_refused(text, hint):
    error = refused(
        ReasonCode.BAD_ARGUMENT,
        logs.configure,
        {"PYC_LOG": text},
        match="PYC_LOG: expected a level",
    )
    assert hint in error.message


def run(*command: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return python(*command, env={**os.environ, **variables})


def test_command_lines_and_python_read_the_variable():
    listed = ["-m", "pyc_mlir", "compile", "--list-targets"]
    refused = run(*listed, PYC_LOG="loud")
    assert refused.returncode == 1 and "[BAD_ARGUMENT]" in refused.stderr
    assert run(*listed, PYC_LOG="debug").returncode == 0
    imported = run("-c", "import pyc_mlir; pyc_mlir.load", PYC_LOG="loud")
    assert "PycError: PYC_LOG: expected a level" in imported.stderr


@pytest.mark.full
def test_a_compile_in_a_worker_logs_the_worker_s_steps(tmp_path):
    command = ["-m", "pyc_mlir", "compile", str(MODEL), "--input", "2x1x8x8", "--untrusted"]
    done = run(*command, "-o", str(tmp_path / "m.vmfb"), PYC_LOG="info")
    assert done.returncode == 0, done.stderr
    assert "pyc_mlir.compile info: IREE compiles for cpu: " in done.stderr
