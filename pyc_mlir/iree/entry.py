"""The entry of a foreign module: its signature, its number of ops, its work on constants.

IREE's own parser reads the module (linalg, StableHLO, anything that its input stage accepts); the
entry is the function `main`, or the only public one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import isqrt, prod
from typing import Any

from iree.compiler import ir

from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.opdef import OpDef
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.iree.session import IreeSession
from pyc_mlir.iree.workarounds.read_hazards import blocks_of, loop_sizes

# What IREE evaluates: it leaves control flow, calls and what has effects to the program.
_DIALECTS = ("arith", "chlo", "linalg", "math", "stablehlo", "tensor", "tosa")
_CONTRACTIONS = ("conv", "dot", "matmul", "pool", "reduce_window")
_TENSOR = re.compile(r"tensor<((?:(?:\d+|\?)x)*)(\w+)>$")


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
    """Ops of the body's blocks, without terminators, constants, and ops in regions of others."""
    bodies = [[op.operation.name for op in block][:-1] for block in entry.regions[0].blocks]
    return sum(not name.endswith(".constant") for names in bodies for name in names)


def _is_public(op: Any) -> bool:
    visible = "sym_visibility" not in op.attributes
    return (visible or _text(op, "sym_visibility") == "public") and len(op.regions[0].blocks) > 0


def _text(op: Any, attribute: str) -> str:
    return str(op.attributes[attribute]).strip('"')


def _signature(function_type: str) -> Signature:
    """From ``(tensor<?x4xf32>) -> (tensor<4xf32>)``."""
    taken, _, given = function_type.partition("->")
    return Signature(_arguments(taken, "arg"), _arguments(given, "result"))


def _arguments(text: str, prefix: str) -> tuple[SignatureEntry, ...]:
    parts = [p.strip() for p in text.strip().strip("()").split(",") if p.strip()]
    return tuple(_argument(part, f"{prefix}{i}") for i, part in enumerate(parts))


def _argument(text: str, name: str) -> SignatureEntry:
    match = _TENSOR.match(text)
    if match is None or match[2] not in DTYPES:
        raise PycError(
            ReasonCode.INVALID_IR,
            f"{name}: expected a ranked tensor of {', '.join(DTYPES)}, got {text}",
        )
    sizes = [d for d in match[1].split("x") if d]
    return SignatureEntry(
        name, DTYPES[match[2]], tuple(None if d == "?" else int(d) for d in sizes)
    )


def constant_work(module: Any) -> int:
    """Count the operations of all ops of a module (of IREE's bindings) that read constants alone.

    The counterpart of `pipelines/pyc/constant_work.py` for modules that PyC does not know: linalg
    ops count their loops, products and convolutions of other dialects by their operands' sizes.
    """
    return sum(
        _of_block(block)
        for op in module.regions[0].blocks[0]
        if op.operation.name in ("func.func", "util.func")
        for block in blocks_of(op)
    )


def _of_block(block: Any) -> int:
    known: set[Any] = set()
    total = 0
    for op in (o.operation for o in block.operations):
        pure = op.name.partition(".")[0] in _DIALECTS and len(op.results)
        if pure and all(v in known for v in (*op.operands, *_captured(op))):
            known.update(op.results)
            total += _work(op) if len(op.operands) else 0
    return total


def _captured(op: Any) -> Iterator[Any]:
    """Return what the bodies of an op read from outside of it."""
    inside: set[Any] = set()
    for block in blocks_of(op):
        inside.update(block.arguments)
        for inner in (i.operation for i in block.operations):
            yield from (v for v in inner.operands if v not in inside)
            inside.update(inner.results)


def _work(op: Any) -> int:
    shapes = [_elements(v) for v in (*op.operands, *op.results)]
    return OpDef.element_work * sum(shapes) + 2 * _operations(op, shapes)


def _operations(op: Any, elements: list[int]) -> int:
    """Count the loops of a structured op.

    A product's are the root of the product of its tensors' sizes (Loomis and Whitney, 1949);
    a batch makes this too large, a window too small by its root.
    """
    loops = loop_sizes(op)
    if loops:
        return prod(size or 0 for size in loops)
    if any(word in op.name for word in _CONTRACTIONS):
        return isqrt(prod(elements[:2]) * elements[-1])
    return 0


def _elements(value: Any) -> int:
    """0 for what is no ranked tensor of static shape."""
    type_ = value.type
    if not isinstance(type_, ir.RankedTensorType) or not type_.has_static_shape:
        return 0
    return prod(type_.shape)
