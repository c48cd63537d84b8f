"""Disks that are full or read-only: every tool says so with a code, and what was there stays.

A limit of file sizes stands for a full disk: the system itself ends the write half way. The cache
has tests of its own (test_cache_store.py).
"""

import errno
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faults import largest_file
from pythons import python
from refusals import refused

import pyc_mlir
from pyc_mlir import Contract, ReasonCode
from pyc_mlir.api import build
from pyc_mlir.artifact.artifact import write
from pyc_mlir.compilation.options import make_options
from pyc_mlir.dialects.util import files
from pyc_mlir.measure.environment import probe
from pyc_mlir.measure.records import Report
from pyc_mlir.tools import pyc_bench, pyc_compile, pyc_explain, pyc_opt, pyc_run
from pyc_mlir.tools.cli import common as cli
from pyc_mlir.tools.cli.opt_flags import parse_flags
from pyc_mlir.util import temp_dir as scratch
from pyc_mlir.worker import process

MODEL = """func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %0 = "pyc.tanh"(%x) : (tensor<4x8xf32>) -> tensor<4x8xf32>
  return %0 : tensor<4x8xf32>
}
"""


def _opt(line: Sequence[str]) -> int:
    """`pyc-opt` in this process."""
    flags = parse_flags(line)
    return pyc_opt._work(flags, Path(flags.input).read_bytes(), lambda _: None)


# By the tool and its flag: the command line, whose last word is the file that is written.
LINES: dict[str, tuple[Callable[..., int], Sequence[str]]] = {
    "pyc-compile -o": (pyc_compile.run, ("model.mlir", "-o", "made.vmfb")),
    "pyc-compile --emit linalg -o": (
        pyc_compile.run, ("model.mlir", "--emit", "linalg", "-o", "made.mlir")),
    "pyc-compile --log": (
        pyc_compile.run, ("model.mlir", "-o", "other.vmfb", "--log", "made.jsonl")),
    "pyc-run --output": (pyc_run.main, ("p.vmfb", "--input", "4x8xf32=1", "--output", "made.npy")),
    "pyc-run --log": (pyc_run.main, ("p.vmfb", "--input", "4x8xf32=1", "--log", "made.jsonl")),
    "pyc-explain --html": (pyc_explain.main, ("p.vmfb", "--html", "made.html")),
    "pyc-opt -o": (_opt, ("model.mlir", "-o", "made.mlir")),
    "pyc-bench --json": (pyc_bench.main, ("toy", "--json", "made.json")),
}  # fmt: skip
# As a user without rights: reads what there is and has no place to write to.
READ_ONLY = """
import json, os, sys
from pyc_mlir.tools import pyc_compile, pyc_run
folder, lines = sys.argv[1], json.loads(sys.argv[2])
os.chdir(folder)
tools = {"pyc_compile": pyc_compile.run, "pyc_run": pyc_run.main}
assert [tools[t](line) for t, line in lines] == [0] * len(lines)
for name in os.listdir(folder):
    os.chmod(name, 0o444)
os.chmod(folder, 0o555)
if os.geteuid() == 0:
    os.setuid(65534)
print("READ-ONLY", file=sys.stderr)
print(json.dumps([tools[t](line) for t, line in lines]))
"""


def toy_suite(arguments: Sequence[str]) -> int:
    """Nothing measured."""
    Report("toy", probe(), {"of": list(arguments)}).save(arguments[-1])
    return 0


@pytest.fixture(scope="module")
def program() -> Any:
    return build(MODEL, None, make_options())


@pytest.fixture
def folder(tmp_path, monkeypatch, program) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("model.mlir").write_text(MODEL)
    write(program, "p.vmfb")
    monkeypatch.setitem(pyc_bench.SUITES, "toy", f"{__name__}:toy_suite")
    return tmp_path


def full(monkeypatch) -> None:
    """The disk is full once a half of a file is written."""
    honest = files._replace

    def replace(place: Path, data: bytes) -> None:
        with largest_file(len(data) // 2):
            honest(place, data)

    monkeypatch.setattr(files, "_replace", replace)


def says(number: int) -> Callable[[Any], None]:
    """The system refuses to make a file beside the one that is to be replaced."""

    def patch(monkeypatch) -> None:
        honest, nameless = Path.open, os.open

        def opened(self: Path, *mode: Any, **more: Any) -> Any:
            if self.name.startswith(".pyc-"):
                raise OSError(number, os.strerror(number), str(self))
            return honest(self, *mode, **more)

        def opened_nameless(path: Any, flags: int, *more: Any, **named: Any) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(number, os.strerror(number), str(path))
            return nameless(path, flags, *more, **named)

        monkeypatch.setattr(Path, "open", opened)
        monkeypatch.setattr(os, "open", opened_nameless)

    return patch


DISASTERS: dict[str, tuple[Callable[[Any], None], str]] = {
    "full": (full, "free space there"),
    "no blocks": (says(errno.ENOSPC), "free space there"),
    "no quota": (says(errno.EDQUOT), "free space there"),
    "read-only": (says(errno.EROFS), "on a disk that can be written"),
    "broken": (says(errno.EIO), "name another"),
}


def contents(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.name != "other.vmfb"}


@pytest.mark.parametrize("disaster", DISASTERS)
@pytest.mark.parametrize("name", LINES)
@pytest.mark.sampled(29)
def test_what_a_tool_wrote_before_stays(folder, capfd, monkeypatch, name, disaster):
    main, line = LINES[name]
    assert main(line) == 0
    before = contents(folder)
    assert line[-1] in before
    patch, remedy = DISASTERS[disaster]
    patch(monkeypatch)
    capfd.readouterr()
    assert main(line) == 1
    output_text = capfd.readouterr().err
    assert "[FILE_ACCESS]" in output_text and line[-1] in output_text and remedy in output_text
    assert "Traceback" not in output_text
    assert contents(folder) == before, "nothing is lost, and nothing is left behind"


# But for the one that takes only names which end in .npy.
@pytest.mark.parametrize(
    "name", [n for n in LINES if n not in ("pyc-run --output", "pyc-bench --json")]
)
def test_a_device_that_is_full(folder, capfd, name):
    """Linux's own: every write to it finds no space."""
    main, line = LINES[name]
    assert main([*line[:-1], "/dev/full"]) == 1
    output_text = capfd.readouterr().err
    assert "[FILE_ACCESS]" in output_text and "Traceback" not in output_text
    assert "No space left" in output_text or "/dev/full" in output_text


@pytest.mark.full
def test_a_folder_that_may_only_be_read():
    lines = [(main.__module__.rpartition(".")[2], line) for main, line in LINES.values()]
    lines = [(tool, line) for tool, line in lines if tool in ("pyc_compile", "pyc_run")]
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        here.chmod(0o755)
        (here / "model.mlir").write_text(MODEL)
        write(build(MODEL, None, make_options()), here / "p.vmfb")
        done = python("-c", READ_ONLY, name, json.dumps(lines))
        here.chmod(0o755)
        assert done.returncode == 0, done.stderr
        output_text = done.stderr.partition("READ-ONLY")[2]
        assert json.loads(done.stdout.splitlines()[-1]) == [1] * len(lines), output_text
        assert output_text.count("[FILE_ACCESS]") == len(lines) and "Traceback" not in output_text
        assert pyc_mlir.load(here / "made.vmfb")(np.ones((4, 8), np.float32)).shape == (4, 8)
        assert not [p for p in here.iterdir() if p.name.startswith(".pyc-")]


# The compiler's own files.
@pytest.mark.parametrize("there", ["absent", "a file", "full", "unknown"])
def test_temporary_files_need_a_place(tmp_path, there):
    """Without one LLVM ends the process."""
    (tmp_path / "file").write_bytes(b"")
    folder = {"absent": tmp_path / "none", "a file": tmp_path / "file"}.get(there, tmp_path)
    free = {
        "full": lambda _: scratch.ROOM_BYTES - 1,
        "unknown": lambda _: os.statvfs("/none").f_bfree,
    }
    error = refused(
        ReasonCode.FILE_ACCESS,
        lambda: scratch.require_room({"TMP": str(folder)}, free.get(there, scratch.free_bytes)),
        match="by the environment variable TMPDIR",
    )
    assert str(folder) in error.message


def test_the_first_variable_names_the_folder(tmp_path):
    assert scratch.temporary_folder({}) == Path("/tmp")
    assert scratch.temporary_folder({"TMPDIR": "", "TEMP": "/a", "TEMPDIR": "/b"}) == Path("/a")
    scratch.require_room({"TMPDIR": str(tmp_path)}, lambda _: scratch.ROOM_BYTES)


def test_a_compile_without_room_is_refused(folder, monkeypatch, capfd):
    monkeypatch.setenv("TMPDIR", "/nonexistent")
    refused(ReasonCode.FILE_ACCESS, lambda: build(MODEL, None, make_options()))
    assert pyc_compile.run(LINES["pyc-compile -o"][1]) == 1
    assert "[FILE_ACCESS]" in capfd.readouterr().err


def test_a_disk_that_fills_up_while_a_tool_compiles(monkeypatch, capfd):
    """LLVM has ended the child by then; it is told as what it is."""
    monkeypatch.setenv("TMPDIR", "/nonexistent")
    assert cli.run_tool_guarded("pyc-compile", lambda: os._exit(1)) == 1
    output_text = capfd.readouterr().err
    assert "[FILE_ACCESS]" in output_text and "fault of PyC" not in output_text


@pytest.mark.full
def test_a_disk_that_fills_up_while_a_worker_compiles():
    process.end_all()
    with largest_file(1000):
        process.start_early()
    refused(
        ReasonCode.FILE_ACCESS,
        lambda: build(MODEL, None, make_options(contract=Contract(max_compile_seconds=600))),
        match="got: File too large",
    )
    assert build(MODEL, None, make_options(contract=Contract(max_compile_seconds=600))).vmfb
