"""The kinds of things that the compiler takes: decided once at the door, asked from then on.

    source = Source.of("model.onnx")            # OnnxFile
    loaded = source.load(inputs, context)       # Loaded: a module with pyc ops, or foreign bytes

Functions are traced, ONNX and PyTorch models imported, MLIR parsed. A module with pyc ops takes
PyC's own pipeline, and so does one that can be raised to pyc ops as a whole (`raise_foreign`); any
other that IREE's input stage accepts enters at IREE as it is.
"""

import io
import os
import re
import sys
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pyc_mlir.artifact.import_report import GraphBreak, UnsupportedModel
from pyc_mlir.dialects.errors import PycError, ReasonCode, install
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.dialects.util.files import open_plain, read_file
from pyc_mlir.frontends.hlo.importer import choose
from pyc_mlir.frontends.linalg import import_linalg
from pyc_mlir.frontends.mlir_text import check_text, parse_mlir
from pyc_mlir.frontends.stablehlo.importer import (
    embedded_artifact,
    enter,
    import_stablehlo,
    is_artifact,
    read_artifact,
)
from pyc_mlir.pipelines.text.diagnostics import Diagnostic
from pyc_mlir.pipelines.text.input_text import is_bytecode
from pyc_mlir.pipelines.text.module_text import ModuleText, parse_module

Inputs = Sequence[Any] | Mapping[str, Any] | None
Ranges = tuple[tuple[str, tuple[int, int]], ...]
# Reads a verified module, which it may change, and names it in messages.
Import = Callable[[ir.Module, str], ir.Module]

_STABLEHLO = re.compile(rb"\bstablehlo\.\w+")
_LINALG = re.compile(rb"\b(linalg|tosa)\.\w+")
# An op of ours as MLIR writes it, or as people do; other programs may have attributes named so.
_PYC = re.compile(rb'"pyc\.|=\s*pyc\.\w+[\s(]')
# Whether a crash of this process is survived: see `allow_bytecode`.
_may_crash = False
_SUFFIXES = (".onnx", ".mlir")
# Bytes of a file that say whether it holds bytecode.
_HEAD = 1 << 16
_BEGINNING = re.compile(r'\s*(module\s|func\.func\s|")')
_UNNAMED = "module"


class Source(ABC):
    """A thing to compile, as a frozen record of its kind.

    takes_inputs: the inputs of a compile are the arguments of a trace or an export; those of other
        kinds refine the shapes of a program that is there.
    is_bytecode: parsing it may end the process, so that only a worker does.
    """

    takes_inputs: ClassVar[bool] = False
    is_bytecode: bool = False

    @staticmethod
    def of(
        given: Any, islands: bool = False, function: str = "", outputs: Sequence[str] = (),
        ranges: Ranges = (),
    ) -> "Source":  # fmt: skip
        """Return the record of what a user gives; a record stays as it is.

        islands: nodes of an ONNX model may become islands. function: the entry of a module.
        outputs: the values of an ONNX model that are its results, in place of its own. ranges: of
        its dynamic dimensions, which decide comparisons of sizes.
        Raises PycError: BAD_MODEL for none of the kinds, BAD_ARGUMENT for a `function` of no MLIR,
        or `outputs` of no ONNX model.
        """
        source = given if isinstance(given, Source) else _of(given)
        if isinstance(source, _Onnx):
            islands, outputs = islands or source.islands, tuple(outputs) or source.outputs
            ranges = tuple(ranges) or source.ranges
            source = replace(source, islands=islands, outputs=outputs, ranges=ranges)
        elif outputs and not isinstance(given, Loaded | Packed):  # these were read by them
            got = f"{source.title} of kind {type(source).__name__}"
            why = f"outputs: expected an ONNX model, whose values they name, got {got}"
            raise PycError(ReasonCode.BAD_ARGUMENT, f"{why}; return other results from it")
        if isinstance(source, _Module):
            return replace(source, function=function) if function else source
        if function:
            got = f"{source.title} of kind {type(source).__name__}, which is one program"
            why = f"function: expected MLIR, whose entry it names, got {got}; leave it out"
            raise PycError(ReasonCode.BAD_ARGUMENT, why)
        return source

    @property
    def title(self) -> str:
        """The name of the model for people, without folders."""
        path = getattr(self, "path", None)
        return _UNNAMED if path is None else one_line(path.name)

    @abstractmethod
    def load(self, inputs: Inputs, context: ir.Context) -> "Loaded":
        """Read the source into `context`.

        Raises PycError: FILE_ACCESS, BAD_MODEL, MISSING_DEPENDENCY, and what the front ends raise.
        """


@dataclass(frozen=True, kw_only=True)
class _Module(Source):
    """A module of MLIR; `function` is its entry, if named."""

    function: str = ""


@dataclass(frozen=True)
class Loaded(_Module):
    """A pyc module, or (for programs that enter at IREE) the bytes of another one.

    A module that was raised to pyc has both. `unraised` says why one was not: the operations that
    pyc cannot express.
    """

    module: ir.Module | None
    foreign: bytes = b""
    name: str = _UNNAMED
    unraised: tuple[GraphBreak, ...] = ()

    def load(self, inputs: Inputs, context: ir.Context) -> "Loaded":
        """Copy the module: a program may be lowered more than once, and lowering changes it."""
        made = self.module
        return self if made is None else replace(self, module=_chosen(self, copied(made)))


@dataclass(frozen=True)
class Packed(_Module):
    """A loaded program as bytes, to travel to a worker: a pyc module as bytecode, or foreign."""

    kind: ClassVar[str] = "packed"
    code: bytes
    name: str
    is_foreign: bool = False

    def load(self, inputs: Inputs, context: ir.Context) -> Loaded:
        """Parse a pyc module; leave a foreign one as it is."""
        if self.is_foreign:
            return Loaded(None, self.code, self.name, function=self.function)
        return Loaded(ir.Module.parse(self.code, context), name=self.name)


@dataclass(frozen=True, kw_only=True)
class _Onnx(Source):
    """An ONNX model; its `islands`: nodes may become islands; `outputs`: its results, if named.

    ranges: of dynamic dimensions by name, from the least to the greatest size.
    """

    islands: bool = False
    outputs: tuple[str, ...] = ()
    ranges: Ranges = ()

    def load(self, inputs: Inputs, context: ir.Context) -> Loaded:
        """Import the model."""
        name = self.path.stem if isinstance(self, OnnxFile) else _UNNAMED
        (model,) = (getattr(self, field) for field in self.__match_args__)
        return Loaded(_onnx(self, model, inputs, context), name=name)


@dataclass(frozen=True)
class OnnxFile(_Onnx):
    """An `.onnx` file."""

    kind: ClassVar[str] = "onnx-file"
    path: Path


@dataclass(frozen=True)
class OnnxBytes(_Onnx):
    """The bytes of an ONNX model."""

    kind: ClassVar[str] = "onnx"
    data: bytes


@dataclass(frozen=True)
class OnnxModel(_Onnx):
    """An ONNX proto."""

    proto: Any


@dataclass(frozen=True)
class MlirFile(_Module):
    """A file of MLIR, or of anything that is no model, which is refused when it is read."""

    kind: ClassVar[str] = "mlir-file"
    path: Path
    is_bytecode: bool = False

    def load(self, inputs: Inputs, context: ir.Context) -> Loaded:
        """Parse the file by its content, whatever it was before."""
        data, name = read_file(self.path, "a model"), one_line(self.path)
        if _holds_bytecode(data):
            return _from_bytecode(self, data, name, context)
        if (other := other_kind(data)) is not None:
            kind, remedy = other
            raise PycError(
                ReasonCode.BAD_MODEL,
                f"{name}: expected an .onnx or .mlir file, got {kind}; {remedy}",
            )
        if _PYC.search(data):
            return Loaded(_chosen(self, parse_mlir(self.path, context)), name=self.path.stem)
        return _foreign(self, data, name, context)


@dataclass(frozen=True)
class MlirText(_Module):
    """MLIR text."""

    kind: ClassVar[str] = "mlir"
    text: str

    def load(self, inputs: Inputs, context: ir.Context) -> Loaded:
        """Parse the text."""
        data = self.text.encode()
        if _PYC.search(data):
            return Loaded(_chosen(self, parse_mlir(self.text, context)))
        return _foreign(self, data, _UNNAMED, context)


@dataclass(frozen=True)
class Bytecode(_Module):
    """Bytes of MLIR bytecode: a StableHLO artifact, or any that enters at IREE."""

    kind: ClassVar[str] = "bytecode"
    data: bytes
    is_bytecode = True

    def load(self, inputs: Inputs, context: ir.Context) -> Loaded:
        """Raise the program if it can be raised."""
        return _from_bytecode(self, self.data, _UNNAMED, context)


@dataclass(frozen=True)
class JaxExport(_Module):
    """The StableHLO artifact of a ``jax.export.Exported`` of this process."""

    artifact: bytes

    def load(self, inputs: Inputs, context: ir.Context) -> Loaded:
        """Raise the program if it can be raised."""
        return _raised(self, self.artifact, _UNNAMED, context)


@dataclass(frozen=True)
class TorchModule(Source):
    """A module of PyTorch, or a program that `torch.export` made."""

    module: Any
    takes_inputs: ClassVar[bool] = True

    @property
    def title(self) -> str:
        """The name of the module's class."""
        return type(self.module).__name__

    def load(self, inputs: Inputs, context: ir.Context) -> Loaded:
        """Export the module for its inputs and import it."""
        from pyc_mlir.frontends.torch.export import from_torch

        if isinstance(inputs, Mapping):
            return TorchExport(from_torch(self.module, (), inputs)).load(None, context)
        return TorchExport(from_torch(self.module, inputs or ())).load(None, context)


@dataclass(frozen=True)
class TorchExport(Source):
    """The model that `from_torch` gives."""

    model: Any

    def load(self, inputs: Inputs, context: ir.Context) -> Loaded:
        """Import the model."""
        from pyc_mlir.frontends.torch.importer import import_torch

        return Loaded(import_torch(self.model, context=context), name=self.model.name)


@dataclass(frozen=True)
class Function(Source):
    """A Python function in numpy style."""

    function: Callable[..., Any]
    takes_inputs: ClassVar[bool] = True

    @property
    def title(self) -> str:
        """The function's name."""
        return getattr(self.function, "__name__", "main")

    def load(self, inputs: Inputs, context: ir.Context) -> Loaded:
        """Trace the function."""
        from pyc_mlir.frontends.python.trace import trace

        module = trace(self.function, *(inputs or ()), context=context)
        return Loaded(module, name=self.title)


@dataclass(frozen=True)
class Trace(Source):
    """A `Traced` function."""

    traced: Any

    def load(self, inputs: Inputs, context: ir.Context) -> Loaded:
        """Copy the module of the trace."""
        return Loaded(copied(self.traced.module))


def _of(given: Any) -> Source:
    if isinstance(given, ir.Module):
        return Loaded(given)
    if isinstance(given, str) and is_text(given):
        return MlirText(given)
    if isinstance(given, str | os.PathLike):
        return _of_file(Path(given))
    if isinstance(given, _class("pyc_mlir.frontends.python.trace", "Traced")):
        return Trace(given)
    if isinstance(given, _class("pyc_mlir.frontends.torch.export", "TorchModel")):
        return TorchExport(given)
    torch = _class("torch.nn", "Module"), _class("torch.export", "ExportedProgram")
    if isinstance(given, torch):
        return TorchModule(given)
    if callable(given):
        return Function(given)
    if isinstance(artifact := getattr(given, "mlir_module_serialized", None), bytes):
        return JaxExport(artifact)
    if isinstance(given, bytes):
        return Bytecode(given) if _holds_bytecode(given) else OnnxBytes(given)
    if hasattr(given, "SerializeToString"):
        return OnnxModel(given)
    raise PycError(
        ReasonCode.BAD_MODEL,
        "source: expected a Python function, an .onnx or .mlir file, an ONNX model, MLIR text or "
        f"a module, got {type(given).__name__}",
    )


def _of_file(path: Path) -> Source:
    if path.suffix == ".onnx":
        return OnnxFile(path)
    try:
        with open_plain(path) as file:
            return MlirFile(path, _holds_bytecode(file.read(_HEAD)))
    except (OSError, ValueError):
        return MlirFile(path)


def _class(module: str, name: str) -> type | tuple[()]:
    """Return a class of a module that this process has imported; without it, no object is one."""
    return getattr(sys.modules.get(module), name, ())


def _holds_bytecode(data: bytes) -> bool:
    return is_bytecode(data) or embedded_artifact(data) is not None


def allow_bytecode() -> None:
    """Let this process parse bytecode: it is a worker, or a child that may crash."""
    global _may_crash
    _may_crash = True


def _from_bytecode(source: _Module, data: bytes, name: str, context: ir.Context) -> Loaded:
    """Raise bytecode; damaged bytecode may end the process that parses it."""
    if not _may_crash:
        raise PycError(
            ReasonCode.BAD_MODEL,
            f"{name}: expected text, got MLIR bytecode, which only a worker process may parse; "
            "use `compile` or `build`, or convert it with `pyc-opt`",
        )
    return _raised(source, embedded_artifact(data) or data, name, context)


def is_text(source: str) -> bool:
    """Return True for MLIR, of one line too; False for an existing path or a model's suffix."""
    begins = _BEGINNING.match(source) is not None or "{" in source
    lines = "\n" in source and not source.endswith(_SUFFIXES)
    return (begins or lines) and not os.path.exists(source)


def copied(module: ir.Module) -> ir.Module:
    """Return a module of its own to be lowered: the caller's stays as it is."""
    with module.context, module.operation.location:
        copy = ir.Module.create()
    for name, attribute in module.operation.attributes.items():
        copy.operation.attributes[name] = attribute
    for op in module.body.operations:
        op.operation.clone(ir.InsertionPoint(copy.body))
    return copy


def _chosen(source: _Module, module: ir.Module) -> ir.Module:
    """Make the entry that is named the only public function. Raises PycError (BAD_ARGUMENT)."""
    if source.function:
        choose(module, source.function, source.title)
    return module


def _foreign(source: _Module, data: bytes, name: str, context: ir.Context) -> Loaded:
    """Load a program without pyc ops, within the bounds of MLIR's parser. Raises PycError."""
    check_text(data, name)
    return _raised(source, data, name, context)


def _raised(source: _Module, data: bytes, name: str, context: ir.Context) -> Loaded:
    """Load a foreign program as pyc ops where it can be raised whole, else as it is."""
    path = str(source.path) if isinstance(source, MlirFile) else None
    found = raise_foreign(data, name, context, path, source.function)
    return replace(found, function=source.function)


def _onnx(source: _Onnx, model: Any, inputs: Inputs, context: ir.Context) -> ir.Module:
    """Import a model; one that is refused with its dynamic sizes, at the sizes of `inputs`."""
    try:
        from pyc_mlir.frontends.onnx.importer import import_onnx
    except ModuleNotFoundError as error:
        raise PycError(
            ReasonCode.MISSING_DEPENDENCY,
            f"ONNX models: expected the package `{error.name}`, found none; {install('onnx')}",
        ) from None
    read = partial(import_onnx, model, context=context)
    read = partial(read, islands=source.islands, outputs=source.outputs)
    read = partial(read, ranges=dict(source.ranges))
    try:
        return read()
    except UnsupportedModel:
        if inputs is None:
            raise
    shapes = [getattr(i, "dims", None) or getattr(i, "shape", i) for i in inputs]
    given = [tuple(s) if isinstance(s, tuple | list) else () for s in shapes]
    return read(shapes=given)


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
    """Return the name and the remedy of a known format that is nothing to compile, else None."""
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


def raise_foreign(
    data: bytes, name: str, context: ir.Context, path: str | None = None, function: str = ""
) -> Loaded:
    """Raise text, or a StableHLO artifact, to pyc: as a whole, or not at all.

    A program is raised only if every operation of it can be: half of it at IREE would cost a border
    of copies and hide half of the memory plan. What cannot be raised stays foreign, and `unraised`
    lists the operations that stood against it. Other bytecode stays as it is.

    path: the file of the text, for locations. function: the entry, if named.
    Text must have passed the bounds of MLIR's parser. Raises PycError: INVALID_IR for an artifact
    that cannot be read, and as `choose_entry`. Text that PyC does not know is left to IREE.
    """
    if is_artifact(data):
        module = read_artifact(data, name, context)
        choose(module, function, name)
        return _raised_by(module, str(module).encode(), name, import_stablehlo)
    imports = None if is_bytecode(data) else _importer_of(data)
    if imports is None:
        return Loaded(None, data, name)
    enter(context)
    reported: list[Diagnostic] = []
    module = parse_module(ModuleText(data.decode(), name, path=path), context, reported.append)
    if isinstance(module, ir.Module):
        choose(module, function, name)
        return _raised_by(module, data, name, imports)
    why = reported[0].message if reported else "the text does not parse"
    return Loaded(None, data, name, (GraphBreak(name, "module", ReasonCode.INVALID_IR, why),))


def _importer_of(data: bytes) -> Import | None:
    if _STABLEHLO.search(data):
        return import_stablehlo
    return import_linalg if _LINALG.search(data) else None


def _raised_by(module: ir.Module, foreign: bytes, name: str, imports: Import) -> Loaded:
    try:
        return Loaded(imports(module, name), foreign, name)
    except UnsupportedModel as error:
        return Loaded(None, foreign, name, error.findings)
    except PycError as error:
        found = GraphBreak(name, "module", error.code, error.message)
        return Loaded(None, foreign, name, (found,))
