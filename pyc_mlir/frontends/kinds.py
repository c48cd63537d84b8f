"""What is a file that is no model? Common mix-ups, told by their first bytes."""

import io
import zipfile

_ZIP = b"PK\x03\x04"
_KINDS = (
    (0, b"\x7fELF", "a native library or program", "name the model it was made from"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes", "export the model to ONNX"),
    (4, b"TFL3", "a TensorFlow Lite model", "export the model to ONNX"),
    (0, b"\x80\x02", "a pickle", "export the model to ONNX; PyC reads no pickles"),
    (0, b"\x1f\x8b", "a gzip archive", "unpack it"),
)


def other_kind(data: bytes) -> tuple[str, str] | None:
    """What `data` is and what to do with it, if it is known and nothing to compile; else None."""
    if data.startswith(_ZIP):
        return _archive(data)
    for offset, magic, kind, remedy in _KINDS:
        if data[offset : offset + len(magic)] == magic:
            return kind, remedy
    return None


def _archive(data: bytes) -> tuple[str, str]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            names = archive.namelist()
    # zipfile raises whatever the damaged field leads to.
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError):
        return "a damaged ZIP archive", "name a model"
    if "module.fb" in names:
        return "a compiled program", "run it with `pyc-run`, look into it with `pyc-explain`"
    if any(n.endswith("data.pkl") for n in names):
        return "a PyTorch file, which is a pickle", "export the model with `torch.onnx.export`"
    return "a ZIP archive", "unpack it, and name the model in it"
