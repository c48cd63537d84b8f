"""The entry of a foreign module: its signature and its number of ops.

IREE's own parser reads the module (linalg, StableHLO, anything that its input stage accepts); the
entry is the function `main`, or the only public one.
"""

from dataclasses import dataclass
from typing import Any

from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES, parse_type
from pyc_mlir.iree.constant_work import constant_work
from pyc_mlir.iree.session import IreeSession


@dataclass(frozen=True)
class ForeignEntry:
    """An entry's name and signature; `ops` are those of its body, constants aside.

    `constant_work` is about what the module computes of constants alone, in operations.
    """

    name: str
    signature: Signature
    ops: int
    constant_work: int = 0


def read_entry(code: bytes, where: str = "module") -> ForeignEntry:
    """Read the entry of a module; `where` is its name in errors.

    Raises CompileError (INVALID_IR) for text that IREE cannot read, PycError (INVALID_IR) when
    no entry can be told or its types are no tensors of PyC's element types.
    """
    with IreeSession() as session:
        session.parse(code, where)
        functions = [op.operation for op in session.module.regions[0].blocks[0]]
        public = {
            _text(op, "sym_name"): op
            for op in functions
            if op.name in _FUNCTIONS and _is_public(op)
        }
        name = "main" if "main" in public or len(public) != 1 else next(iter(public))
        if name not in public:
            raise PycError(
                ReasonCode.INVALID_IR,
                f"{where}: expected a public function `main`, or a single one, "
                f"got {sorted(public)}",
            )
        entry = public[name]
        signature = _signature(str(entry.attributes["function_type"]))
        return ForeignEntry(name, signature, _ops(entry), constant_work(session.module))


_FUNCTIONS = ("func.func", "util.func")


def _ops(entry: Any) -> int:
    """Count the ops of the body's blocks, without terminators, constants, and nested ops."""
    bodies = [[op.operation.name for op in block][:-1] for block in entry.regions[0].blocks]
    return sum(not name.endswith(".constant") for names in bodies for name in names)


def _is_public(op: Any) -> bool:
    visible = "sym_visibility" not in op.attributes
    return (visible or _text(op, "sym_visibility") == "public") and len(op.regions[0].blocks) > 0


def _text(op: Any, attribute: str) -> str:
    return str(op.attributes[attribute]).strip('"')


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
