"""Files that users name: written whole or not at all, and errors that say what to do."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import (
    file_error,
    make_folder,
    read_file,
    require_writable,
    write_file,
)
from pyc_mlir.frontends.sources import other_kind

# Writes a file that is larger than this process may write.
FULL_DISK = """
import resource, signal, sys
from pyc_mlir.dialects.util.files import write_file
sys.dont_write_bytecode = True  # Python would keep a file that was cut off
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
write_file(sys.argv[1], bytes(5000))
"""


def refused(call, *arguments) -> str:
    with pytest.raises(PycError) as caught:
        call(*arguments)
    assert caught.value.code is ReasonCode.FILE_ACCESS
    return caught.value.message


def test_what_cannot_be_read(tmp_path: Path):
    assert "No such file or directory; check the path" in refused(read_file, tmp_path / "none")
    assert "name a file, not a folder" in refused(read_file, tmp_path)
    assert "null byte" in refused(read_file, "a\0b")
    (tmp_path / "file").write_bytes(b"x")
    assert "a part of it is a file" in refused(read_file, tmp_path / "file" / "below")


def test_what_cannot_be_written_is_told_before_too(tmp_path: Path):
    for path in (tmp_path / "none" / "x", tmp_path):
        early, late = refused(require_writable, path), refused(write_file, path, b"")
        assert early == late
    require_writable(tmp_path / "x")
    assert not list(tmp_path.iterdir())


def test_a_file_is_replaced_whole_and_keeps_its_mode(tmp_path: Path):
    path, link = tmp_path / "x", tmp_path / "link"
    write_file(path, b"old")
    path.chmod(0o640)
    link.symlink_to(path)
    write_file(link, b"new")
    assert path.read_bytes() == b"new" and link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert {p.name for p in tmp_path.iterdir()} == {"x", "link"}


def test_what_was_there_outlives_a_full_disk(tmp_path: Path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    done = subprocess.run([sys.executable, "-c", FULL_DISK, path], capture_output=True, text=True)
    assert "[FILE_ACCESS]" in done.stderr and "free space there" in done.stderr
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["x"]


def test_pipes_and_devices_are_written_into():
    reader, writer = os.pipe()
    write_file(f"/dev/fd/{writer}", b"text")
    assert os.read(reader, 10) == b"text"
    write_file("/dev/null", b"text")
    assert Path("/dev/null").is_char_device()


def test_folders(tmp_path: Path):
    assert make_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_bytes(b"")
    assert "expected a folder" in refused(make_folder, tmp_path / "file" / "below")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO, None])
def test_every_error_names_file_and_remedy(number):
    error = OSError() if number is None else OSError(number, os.strerror(number), "there")
    message = file_error(error, "a file", None).message
    assert message.startswith("there" if number else "file") and "; " in message


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"\x7fELF...", "native library"),
        (b"\x1c\0\0\0TFL3", "TensorFlow Lite"),
        (b"\x80\x02}q\0.", "pickle"),
        (b"PK\x03\x04 and nothing else", "damaged ZIP"),
    ],
)
def test_what_is_no_model_is_named(data, kind):
    found = other_kind(data)
    assert found is not None and kind in found[0]
    assert other_kind(b"func.func @main()") is None and other_kind(b"") is None
