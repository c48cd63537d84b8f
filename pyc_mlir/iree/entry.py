"""The entry of a foreign module: its signature and its number of ops.

IREE's own parser reads the module (linalg, StableHLO, anything that its input stage accepts); the
entry is the function that is named, else `main`, or the only public one.
"""

from dataclasses import dataclass
from typing import Any

from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.interpreter import choose_entry, public_functions
from pyc_mlir.dialects.types import DTYPES, parse_type
from pyc_mlir.iree.constant_work import constant_work
from pyc_mlir.iree.session import IreeSession


@dataclass(frozen=True)
class ForeignEntry:
    """An entry's name and signature; `ops` are those of its body, constants aside.

    `constant_work` is about what the module computes of constants alone, in operations. `code` is
    the module in which an entry that was named is the only public function.
    """

    name: str
    signature: Signature
    ops: int
    constant_work: int
    code: bytes


def read_entry(code: bytes, where: str = "module", function: str = "") -> ForeignEntry:
    """Read the entry of a module; `where` is its name in errors, `function` names the entry.

    Raises CompileError (INVALID_IR) for text that IREE cannot read, PycError (INVALID_IR) for
    types that are no tensors of PyC's element types, and as `choose_entry`.
    """
    with IreeSession() as session:
        session.parse(code, where)
        functions = [op.operation for op in session.module.regions[0].blocks[0]]
        entry = choose_entry(public_functions(functions), function, where)
        name = entry.attributes["sym_name"].value
        signature = _signature(str(entry.attributes["function_type"]))
        work, made = constant_work(session.module), session.bytecode() if function else code
        return ForeignEntry(name, signature, _ops(entry), work, made)


def _ops(entry: Any) -> int:
    """Count the ops of the body's blocks, without terminators, constants, and nested ops."""
    bodies = [[op.operation.name for op in block][:-1] for block in entry.regions[0].blocks]
    return sum(not name.endswith(".constant") for names in bodies for name in names)


def _signature(function_type: str) -> Signature:
    """Read a signature from ``(tensor<?x4xf32>) -> (tensor<4xf32>)``."""
    taken, _, given = function_type.partition("->")
    return Signature(_arguments(taken, "arg"), _arguments(given, "result"))


def _arguments(text: str, prefix: str) -> tuple[SignatureEntry, ...]:
    parts = [p.strip() for p in text.strip().strip("()").split(",") if p.strip()]
    return tuple(_argument(part, f"{prefix}{i}") for i, part in enumerate(parts))


def _argument(text: str, name: str) -> SignatureEntry:
    try:
        found = parse_type(text)
    except ValueError:
        raise PycError(
            ReasonCode.INVALID_IR,
            f"{name}: expected a ranked tensor of {', '.join(DTYPES)}, got {text}",
        ) from None
    return SignatureEntry(name, found.dtype, found.shape)
