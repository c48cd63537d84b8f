"""pyc-opt as a process: what a crash leaves behind, what is written, what is imported."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pyc_mlir.pipelines.driver.pipeline_text import Reproducer, read_reproducer

RETURNS = "func.func @f(%x: f32) -> f32 {\n  return %x : f32\n}\n"

_CRASHING = """
import os, signal, sys
from dataclasses import dataclass
from pyc_mlir.pipelines.driver.registry import PASSES
from pyc_mlir.tools.pyc_opt import main

@PASSES.register
@dataclass(frozen=True)
class Crash:
    '''End the process.'''
    name = "test-crash"
    def run(self, module, context):
        {body}

sys.exit(main())
"""


def run_tool(body: str, *arguments: str, data: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _CRASHING.replace("{body}", body), *arguments]
    return subprocess.run(command, input=data, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "native code ended the process (SIGSEGV)"),
        ("os._exit(0)", "an unexpected error"),
        ("raise KeyError('a bug')", "KeyError: 'a bug'"),
    ],
)
@pytest.mark.full
def test_crashes_leave_a_reproducer(body: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "crash.mlir"
    flag = f"--mlir-pass-pipeline-crash-reproducer={path}"
    data = f"{RETURNS}// -----\n{RETURNS.replace('@f', '@second')}"
    flags = ("--cse", "--test-crash", "--split-input-file", flag)
    ended = run_tool(body, *flags, data=data)
    assert ended.returncode == 70, ended.stderr
    assert reason in ended.stderr
    assert f"reproducer generated at `{path}`" in ended.stderr
    stored = read_reproducer(path.read_text())
    assert stored == Reproducer("builtin.module(cse,test-crash)")
    assert "@f" in path.read_text()
    assert "@second" not in path.read_text()
    again = run_tool("return {}", str(path), "--run-reproducer")
    assert (again.returncode, again.stderr) == (0, "")


def test_a_crash_without_a_path_names_a_temporary_file() -> None:
    ended = run_tool("os.abort()", "--test-crash", data=RETURNS)
    assert ended.returncode == 70
    named = re.search(r"reproducer generated at `(.*)`", ended.stderr)
    assert named is not None
    path = Path(named[1])
    assert "@f" in path.read_text()
    path.unlink()


def test_the_output_file_is_written_only_on_success(tmp_path: Path) -> None:
    out = tmp_path / "out.mlir"
    assert run_tool("return {}", "-o", str(out), data="func.func @f() {").returncode == 1
    assert not out.exists()
    assert run_tool("return {}", "-o", str(out), data=RETURNS).returncode == 0
    assert "@f" in out.read_text()


def test_a_small_run_imports_little() -> None:
    body = "import sys; print(*sorted(sys.modules), file=sys.stderr); return {}"
    imported = set(run_tool(body, "--test-crash", data=RETURNS).stderr.split())
    assert "pyc_mlir.dialects.ir.pyc" in imported
    heavy = {"torch_mlir.dialects.linalg", "iree", "torch", "argparse", "importlib.metadata"}
    assert not heavy & imported
