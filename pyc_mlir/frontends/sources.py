"""Load whatever a user hands to the compiler as a module.

Python functions are traced, `.onnx` files and ONNX protos are imported, `.mlir` files and texts
are parsed. A module with pyc ops takes PyC's own pipeline, and so does what can be raised to pyc
ops as a whole (raising.py); any other one that IREE's input stage accepts enters at IREE as it is.
"""

import io
import os
import re
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyc_mlir.artifact.import_report import GraphBreak
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.dialects.util.files import open_plain, read_file
from pyc_mlir.frontends.mlir_text import check_text, parse_mlir
from pyc_mlir.frontends.raising import raise_foreign
from pyc_mlir.frontends.stablehlo.reader import embedded_artifact
from pyc_mlir.pipelines.text.input_text import is_bytecode

# An op of ours as MLIR writes it, or as people do; other programs may have attributes named so.
_PYC = re.compile(rb'"pyc\.|=\s*pyc\.\w+[\s(]')
# Whether a crash of this process is survived: see `allow_bytecode`.
_may_crash = False
_SUFFIXES = (".onnx", ".mlir")
# Bytes of a file that say whether it holds bytecode.
_HEAD = 1 << 16
_BEGINNING = re.compile(r'\s*(module\s|func\.func\s|")')


@dataclass(frozen=True)
class Source:
    """A pyc module, or (for programs that enter at IREE) the bytes of another one.

    A module that was raised to pyc has both. `unraised` says why one was not: the operations that
    pyc cannot express.
    """

    module: ir.Module | None
    foreign: bytes = b""
    name: str = "module"
    unraised: tuple[GraphBreak, ...] = ()


@dataclass(frozen=True)
class WithIslands:
    """An ONNX model, as `load_source` takes it, of which nodes may become islands (`islands/`)."""

    model: Any


def with_islands(source: Any, allowed: bool = True) -> Any:
    """Mark an ONNX model whose nodes may become islands, if allowed; return others unchanged."""
    if not allowed:
        return source
    if isinstance(source, str | os.PathLike):
        is_model = os.fspath(source).endswith(".onnx") and "\n" not in os.fspath(source)
        return WithIslands(Path(source)) if is_model else source
    proto = hasattr(source, "SerializeToString")
    data = isinstance(source, bytes) and not (is_bytecode(source) or embedded_artifact(source))
    return WithIslands(source) if proto or data else source


def load_source(source: Any, inputs: Sequence[Any] | None, context: ir.Context) -> Source:
    """Read `source` into `context`.

    Raises PycError: FILE_ACCESS, BAD_MODEL for what is none of the kinds, MISSING_DEPENDENCY for
    ONNX without the package, and whatever the front ends raise.
    """
    if isinstance(source, Source):
        # A program may be lowered more than once, and lowering changes the module.
        return source if source.module is None else replace(source, module=copied(source.module))
    if isinstance(source, ir.Module):
        return Source(copied(source))
    if isinstance(source, WithIslands):
        name = source.model.stem if isinstance(source.model, Path) else Source.name
        return Source(_onnx(source.model, context, islands=True), name=name)
    if isinstance(source, str) and is_text(source):
        return _from_text(source, context)
    if isinstance(source, (str, os.PathLike)):
        return _from_file(Path(source), context)
    if is_torch(source):
        return _torch(source, inputs, context)
    if callable(source):
        return Source(_traced(source, inputs, context), name=getattr(source, "__name__", "main"))
    if isinstance(exported := getattr(source, "mlir_module_serialized", None), bytes):
        return raised(exported, Source.name, context)
    if isinstance(source, bytes) and (is_bytecode(source) or embedded_artifact(source)):
        return _from_bytecode(source, Source.name, context)
    if isinstance(source, bytes) or hasattr(source, "SerializeToString"):
        return Source(_onnx(source, context))
    raise PycError(
        ReasonCode.BAD_MODEL,
        "source: expected a Python function, an .onnx or .mlir file, an ONNX model, MLIR text or "
        f"a module, got {type(source).__name__}",
    )


def holds_bytecode(source: Any) -> bool:
    """Return whether `source` is MLIR bytecode, or a file of it, by its first bytes."""
    if isinstance(source, bytes):
        return is_bytecode(source) or embedded_artifact(source) is not None
    if not isinstance(source, str | os.PathLike) or (isinstance(source, str) and is_text(source)):
        return False
    try:
        with open_plain(Path(source)) as file:
            return holds_bytecode(file.read(_HEAD))
    except (OSError, ValueError):
        return False


def allow_bytecode() -> None:
    """Let this process parse bytecode: it is a worker, or a child that may crash."""
    global _may_crash
    _may_crash = True


def _from_bytecode(data: bytes, name: str, context: ir.Context) -> Source:
    """Read bytecode: a StableHLO artifact, or any that enters at IREE.

    Damaged bytecode may end the process that parses it.
    """
    if not _may_crash:
        raise PycError(
            ReasonCode.BAD_MODEL,
            f"{name}: expected text, got MLIR bytecode, which only a worker process may parse; "
            "use `compile` or `build`, or convert it with `pyc-opt`",
        )
    return raised(embedded_artifact(data) or data, name, context)


def is_text(source: str) -> bool:
    """Return True for MLIR text, also of one line; False for a path, or a model's suffix."""
    begins = _BEGINNING.match(source) is not None or "{" in source
    lines = "\n" in source and not source.endswith(_SUFFIXES)
    return (begins or lines) and not os.path.exists(source)


def copied(module: ir.Module) -> ir.Module:
    """Return a copy of a module for lowering: the caller's stays unchanged."""
    with module.context, module.operation.location:
        copy = ir.Module.create()
    for name, attribute in module.operation.attributes.items():
        copy.operation.attributes[name] = attribute
    for op in module.body.operations:
        op.operation.clone(ir.InsertionPoint(copy.body))
    return copy


def _from_file(path: Path, context: ir.Context) -> Source:
    if path.suffix == ".onnx":
        return Source(_onnx(path, context), name=path.stem)
    data = read_file(path, "a model")
    if is_bytecode(data) or embedded_artifact(data):
        return _from_bytecode(data, one_line(path), context)
    if (other := other_kind(data)) is not None:
        kind, remedy = other
        raise PycError(
            ReasonCode.BAD_MODEL,
            f"{one_line(path)}: expected an .onnx or .mlir file, got {kind}; {remedy}",
        )
    if _PYC.search(data):
        return Source(parse_mlir(path, context), name=path.stem)
    return _foreign(data, one_line(path), context, str(path))


def _from_text(text: str, context: ir.Context) -> Source:
    if _PYC.search(text.encode()):
        return Source(parse_mlir(text, context))
    return _foreign(text.encode(), Source.name, context)


def _foreign(data: bytes, name: str, context: ir.Context, path: str | None = None) -> Source:
    """Read a program without pyc ops, within the bounds of MLIR's parser. Raises PycError."""
    check_text(data, name)
    return raised(data, name, context, path)


def raised(data: bytes, name: str, context: ir.Context, path: str | None = None) -> Source:
    """Return a foreign program as pyc ops if it can be raised whole, else unchanged."""
    found = raise_foreign(data, name, context, path)
    return Source(found.module, found.foreign, name, found.unraised)


def _traced(
    function: Callable[..., Any], inputs: Sequence[Any] | None, context: ir.Context
) -> ir.Module:
    from pyc_mlir.frontends.python.trace import trace

    return trace(function, *(inputs or ()), context=context)


def is_torch(source: Any) -> bool:
    """Return True for PyTorch's modules and exported programs, and for results of `from_torch`."""
    torch = sys.modules.get("torch")
    if type(source).__module__ == "pyc_mlir.frontends.torch.export":
        return True
    # Without torch in this process there is nothing of it; while it is imported, parts are missing.
    kinds = () if torch is None else (torch.nn.Module, torch.export.ExportedProgram)
    return isinstance(source, kinds)


def _torch(
    source: Any, inputs: Sequence[Any] | Mapping[str, Any] | None, context: ir.Context
) -> Source:
    from pyc_mlir.frontends.torch.export import TorchModel, from_torch
    from pyc_mlir.frontends.torch.importer import import_torch

    if isinstance(source, TorchModel):
        model = source
    elif isinstance(inputs, Mapping):
        model = from_torch(source, (), inputs)
    else:
        model = from_torch(source, inputs or ())
    return Source(import_torch(model, context=context), name=model.name)


def _onnx(model: Any, context: ir.Context, islands: bool = False) -> ir.Module:
    try:
        from pyc_mlir.frontends.onnx.importer import import_onnx
    except ModuleNotFoundError as error:
        raise PycError(
            ReasonCode.MISSING_DEPENDENCY,
            f"ONNX models: expected the package `{error.name}`, found none; "
            "install it with `pip install pyc-mlir[onnx]`",
        ) from None
    return import_onnx(model, context=context, islands=islands)


_LOADED = "if you trust it, load it with torch and give the module or the ExportedProgram"
_ZIP = b"PK\x03\x04"
_KINDS = (
    (0, b"\x7fELF", "a native library or program", "name the model it was made from"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes", "export the model to ONNX"),
    (4, b"TFL3", "a TensorFlow Lite model", "export the model to ONNX"),
    (0, b"\x80\x02", "a pickle", "export the model to ONNX; PyC reads no pickles"),
    (0, b"\x1f\x8b", "a gzip archive", "unpack it"),
)


def other_kind(data: bytes) -> tuple[str, str] | None:
    """Return the kind of `data` and the remedy, if it is known and not compilable; else None."""
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
        return "a PyTorch file, which is a pickle", _LOADED
    if any(n.endswith(("archive_version", "archive_format")) for n in names):
        return "an exported PyTorch program, which holds pickles", _LOADED
    return "a ZIP archive", "unpack it, and name the model in it"
