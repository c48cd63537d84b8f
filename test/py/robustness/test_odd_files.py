"""Pipes, devices, folders and links in the place of files: an error or an answer, never a wait."""

import os
import subprocess
from pathlib import Path

import pytest
from conftest import sample
from pythons import python
from refusals import refused

from pyc_mlir import ReasonCode
from pyc_mlir.cache.store import ARTIFACT, CHECKSUMS, KEY, CacheStore, sha256
from pyc_mlir.dialects.util.files import read_file

TEXT = (
    "func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {\n"
    '  %0 = "pyc.relu"(%x) : (tensor<8xf32>) -> tensor<8xf32>\n  return %0 : tensor<8xf32>\n}\n'
)


def odd(kind: str, path: Path) -> None:
    """Put what is no file at a path."""
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "link to a pipe":
        os.mkfifo(path.with_name("pipe"))
        path.symlink_to("pipe")
    else:
        path.symlink_to(kind)


KINDS = ["pipe", "folder", "loop", "link to a pipe", "/dev/zero", "/dev/random"]
READS = {
    "a model": ("m.onnx", ["pyc_compile", "m.onnx", "-o", "out"]),
    "a text": ("m.mlir", ["pyc_compile", "m.mlir", "-o", "out"]),
    "a text for pyc-opt": ("m.mlir", ["pyc_opt", "m.mlir"]),
    "a text to reduce": ("m.mlir", ["pyc_reduce", "m.mlir", "--check", "false {}"]),
    "a recipe": ("odd", ["pyc_compile", "good.mlir", "--recipe", "odd", "-o", "out"]),
    "a replay": ("odd", ["pyc_compile", "good.mlir", "--replay", "odd", "-o", "out"]),
    "a contract": ("odd", ["pyc_compile", "good.mlir", "--contract", "odd", "-o", "out"]),
    "a calibration": ("odd", ["pyc_compile", "good.mlir", "--calibration", "odd", "-o", "out"]),
    "a program": ("odd", ["pyc_run", "odd"]),
    "an input": ("x.npy", ["pyc_run", "good.vmfb", "--input", "x.npy"]),
    "inputs": ("x.npz", ["pyc_run", "good.vmfb", "--input", "x.npz"]),
    "a log": ("odd.jsonl", ["pyc_explain", "odd.jsonl"]),
    "two logs": ("odd", ["pyc_explain", "--diff", "odd", "odd"]),
    "a model to explain": ("m.onnx", ["pyc_explain", "m.onnx"]),
    "a report": ("odd", ["pyc_bench", "table", "odd"]),
    "a request": ("odd", ["worker", "odd"]),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("good")
    (made / "good.mlir").write_text(TEXT)
    assert ran(made, ["pyc_compile", "good.mlir", "-o", "good.vmfb"]).returncode == 0
    return made


def ran(folder: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    name = "worker" if arguments[0] == "worker" else f"tools.{arguments[0]}"
    code = f"import sys; from pyc_mlir.{name} import main; sys.exit(main())"
    if name == "worker":
        code = "import sys; from pyc_mlir.worker.__main__ import main; sys.exit(main(sys.argv[1:]))"
    return python("-c", code, *arguments[1:], cwd=folder)


@pytest.mark.parametrize("what", sample(list(READS), 5))
@pytest.mark.full
def test_a_pipe_is_not_waited_for(what: str, folder: Path, tmp_path: Path) -> None:
    name, arguments = READS[what]
    for good in folder.iterdir():
        (tmp_path / good.name).symlink_to(good)
    odd("pipe", tmp_path / name)
    done = ran(tmp_path, arguments)
    assert done.returncode == 1 and "pipe or a device" in done.stderr, done.stderr
    assert "[FILE_ACCESS]" in done.stderr or what == "a request"


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_refused(kind: str, tmp_path: Path) -> None:
    odd(kind, tmp_path / "odd")
    refused(ReasonCode.FILE_ACCESS, read_file, tmp_path / "odd")


def test_what_is_as_good_as_a_file() -> None:
    assert read_file("/dev/null") == b""
    ours, theirs = os.pipe()
    os.write(theirs, b"text")
    os.close(theirs)
    assert read_file(f"/dev/fd/{ours}") == b"text"
    os.close(ours)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", [ARTIFACT, CHECKSUMS, KEY])
def test_a_cache_entry_of_what_is_no_file(part: str, kind: str, tmp_path: Path) -> None:
    store, key = CacheStore(tmp_path), b"key"
    name = sha256(key)
    store.path(name).mkdir(parents=True)
    odd(kind, store.path(name) / part)
    assert store.read(name, key).event is not None
