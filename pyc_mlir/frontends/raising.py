"""Raise modules of other dialects to pyc: as a whole, or not at all.

A program is raised only if every operation of it can be: half of it at IREE would cost a border of
copies and hide half of the memory plan. What cannot be raised stays foreign, and `unraised` lists
the operations that stood against it.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from pyc_mlir.artifact.import_report import GraphBreak, UnsupportedModel
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.frontends.hlo.functions import choose
from pyc_mlir.frontends.linalg.importer import import_linalg
from pyc_mlir.frontends.stablehlo.importer import import_stablehlo
from pyc_mlir.frontends.stablehlo.reader import enter, is_artifact, read_artifact
from pyc_mlir.pipelines.text.diagnostics import Diagnostic
from pyc_mlir.pipelines.text.input_text import is_bytecode
from pyc_mlir.pipelines.text.module_text import ModuleText, parse_module

_STABLEHLO = re.compile(rb"\bstablehlo\.\w+")
_LINALG = re.compile(rb"\b(linalg|tosa)\.\w+")
# Reads a verified module, which it may change, and names it in messages.
Import = Callable[[ir.Module, str], ir.Module]


@dataclass(frozen=True)
class Raised:
    """A pyc module if the program was raised; always the bytes that IREE reads."""

    module: ir.Module | None
    foreign: bytes
    unraised: tuple[GraphBreak, ...] = ()


def raise_foreign(
    data: bytes, name: str, context: ir.Context, path: str | None = None, function: str = ""
) -> Raised:
    """Raise text, or a StableHLO artifact, to pyc. Other bytecode stays as it is.

    path: the file of the text, for locations. function: the entry, if named.
    Text must have passed the bounds of MLIR's parser. Raises PycError: INVALID_IR for an artifact
    that cannot be read, and as `choose_entry`. Text that PyC does not know is left to IREE.
    """
    if is_artifact(data):
        module = read_artifact(data, name, context)
        choose(module, function, name)
        return _raised(module, str(module).encode(), name, import_stablehlo)
    imports = None if is_bytecode(data) else _importer_of(data)
    if imports is None:
        return Raised(None, data)
    enter(context)
    reported: list[Diagnostic] = []
    module = parse_module(ModuleText(data.decode(), name, path=path), context, reported.append)
    if isinstance(module, ir.Module):
        choose(module, function, name)
        return _raised(module, data, name, imports)
    why = reported[0].message if reported else "the text does not parse"
    return Raised(None, data, (GraphBreak(name, "module", ReasonCode.INVALID_IR, why),))


def _importer_of(data: bytes) -> Import | None:
    if _STABLEHLO.search(data):
        return import_stablehlo
    return import_linalg if _LINALG.search(data) else None


def _raised(module: ir.Module, foreign: bytes, name: str, imports: Import) -> Raised:
    try:
        return Raised(imports(module, name), foreign)
    except UnsupportedModel as error:
        return Raised(None, foreign, error.findings)
    except PycError as error:
        return Raised(None, foreign, (GraphBreak(name, "module", error.code, error.message),))
