"""`.mlir` text as a module: the pyc dialect, linalg, or anything else that upstream MLIR reads.

Errors show the line with a caret under the place, and files keep their names in locations, both
as in `pyc-opt`. Bytecode is refused: damaged bytecode would end the process.
"""

from pathlib import Path

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import load
from pyc_mlir.dialects.printable import one_line
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.pipelines.text.diagnostics import Diagnostic, render
from pyc_mlir.pipelines.text.input_text import is_bytecode
from pyc_mlir.pipelines.text.module_text import ModuleText, beyond_bounds, decode, parse_module


def parse_mlir(source: str | Path, context: ir.Context, name: str = "<text>") -> ir.Module:
    """Parse and verify a file (a Path, or a string ending in ``.mlir``) or a text.

    name: what messages call a text.

    Raises PycError: FILE_ACCESS, BAD_MODEL for a file that holds bytecode, INVALID_IR with file,
    line, column and a caret for text that does not parse or verify or is nested too deep.
    """
    load(context)
    path = _path(source)
    if path is None:
        text = ModuleText(str(source), name)
    else:
        text = ModuleText(_read(path), one_line(path), path=str(path))
    reported: list[Diagnostic] = []
    module = parse_module(text, context, reported.append)
    if not isinstance(module, ir.Module):
        raise _invalid(text, reported)
    return module


def check_text(data: bytes, name: str) -> None:
    """Refuse what a parser of MLIR text would not survive, without parsing.

    Raises PycError (INVALID_IR).
    """
    text = decode(data, name)
    if isinstance(text, Diagnostic):
        raise _invalid(ModuleText("", name), [text])
    refused = beyond_bounds(ModuleText(text, name))
    if refused is not None:
        raise _invalid(ModuleText(text, name), [refused])


def _path(source: str | Path) -> Path | None:
    if isinstance(source, Path):
        return source
    return Path(source) if source.endswith(".mlir") and "\n" not in source else None


def _read(path: Path) -> str:
    data = read_file(path)
    if is_bytecode(data):
        raise PycError(
            ReasonCode.BAD_MODEL,
            f"{one_line(path)}: expected text, got MLIR bytecode; convert it with `pyc-opt`",
        )
    text = decode(data, one_line(path))
    if isinstance(text, Diagnostic):
        raise _invalid(ModuleText("", one_line(path)), [text])
    return text


def _invalid(source: ModuleText, reported: list[Diagnostic]) -> PycError:
    sources = {source.name: source.text.splitlines()}
    shown = "".join(render(item, sources) for item in reported)
    return PycError(ReasonCode.INVALID_IR, shown.rstrip("\n"))
