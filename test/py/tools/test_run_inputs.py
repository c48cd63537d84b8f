"""Files of inputs that claim more than they hold, or are none: refused, in little memory."""

import io
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pyc_mlir import PycError, ReasonCode
from pyc_mlir.artifact.signature import SignatureEntry
from pyc_mlir.tools.cli.run_inputs import read_inputs

X = SignatureEntry("x", np.dtype(np.float32), (4,))
TERA = 1 << 40


def read(path: Path) -> np.ndarray:
    (array,) = read_inputs([str(path)], [X])
    return array


def header(shape: tuple[int, ...], data: bytes = bytes(16)) -> bytes:
    """An .npy file that claims a shape."""
    buffer = io.BytesIO()
    claim = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(buffer, claim)
    return buffer.getvalue() + data


def archive(path: Path, data: bytes, kind: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as made:
        made.writestr("x.npy", data)
    return path


def refused(path: Path) -> None:
    with pytest.raises(PycError) as caught:
        read(path)
    assert caught.value.code is ReasonCode.BAD_ARGUMENT


def test_arrays_are_read(tmp_path):
    values = np.arange(4, dtype=np.float32)
    np.save(tmp_path / "x.npy", values)
    np.savez(tmp_path / "a.npz", x=values)
    np.savez_compressed(tmp_path / "b.npz", x=values)
    for name in ("x.npy", "a.npz", "b.npz"):
        np.testing.assert_array_equal(read(tmp_path / name), values)
    np.save(tmp_path / "none.npy", np.zeros((0, 3), np.float32))
    assert read(tmp_path / "none.npy").shape == (0, 3)


@pytest.mark.parametrize("shape", [(TERA,), (1 << 62, 1 << 62), (5,), (-4,), (1 << 70,), ()])
def test_claims_of_more_than_there_is(tmp_path, shape):
    (tmp_path / "x.npy").write_bytes(header(shape, bytes(16 if shape else 2)))
    refused(tmp_path / "x.npy")
    refused(archive(tmp_path / "x.npz", header(shape, bytes(16 if shape else 2))))


def test_archives_that_unpack_to_far_more(tmp_path):
    path = archive(tmp_path / "x.npz", header((1 << 28,), bytes(1 << 20)), zipfile.ZIP_DEFLATED)
    data = path.read_bytes()
    # The size in the directory is the archive's claim.
    place = data.rindex(b"PK\x01\x02") + 24
    path.write_bytes(data[:place] + (3 << 30).to_bytes(4, "little") + data[place + 4 :])
    refused(path)


def test_objects_are_not_unpickled(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{}], object), allow_pickle=True)
    refused(tmp_path / "x.npy")
    np.savez(tmp_path / "x.npz", x=np.array([{}], object))
    refused(tmp_path / "x.npz")


def test_an_archive_under_the_name_of_an_array(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.zeros(4, np.float32))
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    refused(tmp_path / "x.npy")


def test_changed_bytes(tmp_path):
    np.savez_compressed(tmp_path / "x.npz", x=np.arange(4, dtype=np.float32))
    np.save(tmp_path / "x.npy", np.arange(4, dtype=np.float32))
    draw = random.Random(3)
    for name in ("x.npz", "x.npy"):
        whole = (tmp_path / name).read_bytes()
        for _ in range(200):
            changed = bytearray(whole)
            changed[draw.randrange(len(changed))] = draw.randrange(256)
            (tmp_path / name).write_bytes(changed)
            try:
                read(tmp_path / name)
            except PycError as error:
                assert error.message
