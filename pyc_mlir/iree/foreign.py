"""Programs that PyC knows nothing about: their entry, and IREE's compiler alone.

IREE's own parser reads the module (linalg, StableHLO, anything that its input stage accepts); the
entry is the function that is named, else `main`, or the only public one. Measurements compare with
`compile_plain`, and answers with vmvx, IREE's interpreter (`interpreted`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isqrt, prod
from typing import Any

from iree.compiler import ir

from pyc_mlir.artifact.signature import Signature, SignatureEntry
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.interpreter import choose_entry, public_functions
from pyc_mlir.dialects.opdef import OpDef
from pyc_mlir.dialects.types import DTYPES, parse_type
from pyc_mlir.iree.barriers import blocks_of, loop_sizes
from pyc_mlir.iree.compiler import IreeSession, compile_module
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import Device
from pyc_mlir.runtime.executable import Executable


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
        function_type = str(entry.attributes["function_type"])
        taken, _, given = function_type.partition("->")
        signature = Signature(_arguments(taken, "arg"), _arguments(given, "result"))
        work, made = constant_work(session.module), session.bytecode() if function else code
        # Without terminators, constants, and nested ops.
        bodies = [[op.operation.name for op in block][:-1] for block in entry.regions[0].blocks]
        ops = sum(not name.endswith(".constant") for names in bodies for name in names)
        return ForeignEntry(name, signature, ops, work, made)


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


# The constant computation that IREE would do of a foreign module while it compiles.
#
# The counterpart of `pipelines/pyc/constants.py` for modules that PyC does not know: linalg ops
# count their loops, products and convolutions of other dialects by the sizes of their operands.

# What IREE evaluates: it leaves control flow, calls and what has effects to the program.
_DIALECTS = ("arith", "chlo", "linalg", "math", "stablehlo", "tensor", "tosa")
_CONTRACTIONS = ("conv", "dot", "matmul", "pool", "reduce_window")


def constant_work(module: Any) -> int:
    """Count the work of all ops of a module (of IREE's bindings) that read constants alone."""
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


def plain_flags(target: Target, *flags: str) -> tuple[str, ...]:
    """Return the flags of IREE's own highest level for the target, and `flags`."""
    return ("--iree-opt-level=O3", *target.flags, *flags)


def compile_plain(code: bytes, flags: Sequence[str]) -> bytes:
    """Compile MLIR text or bytecode by IREE alone to a vmfb. Raises PycError."""
    with IreeSession(flags) as session:
        session.parse(code)
        session.run()
        return session.vmfb()


# A program on vmvx, IREE's interpreter: slow, and no code generator of a target in it.
#
# Comes in: MLIR that IREE accepts; goes out: an executable on the caller's own thread, to compare a
# compiled program with.

_FLAGS = ("--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=vmvx")
# Least of IREE's own rewriting, and none of its aggressive fusion.
_OPTIMIZATION = ("--iree-opt-level=O1",)


def interpreted(code: bytes) -> Executable:
    """Compile for ``local-sync``. Raises PycError (NO_ORACLE) where vmvx cannot compile it."""
    target = replace(Target.named("cpu"), name="vmvx", flags=_FLAGS)
    try:
        vmfb = compile_module(code, target, _OPTIMIZATION)
    except PycError as error:
        raise PycError(
            ReasonCode.NO_ORACLE,
            "contract clause `max_error`: expected a program that IREE's interpreter vmvx runs, "
            f"got: {error.message}; drop the clause",
        ) from None
    return Executable(vmfb, Device("local-sync"))


def summed_terms(code: bytes) -> int:
    """Return an upper estimate of how many terms one element of a result is summed from.

    The sum over all ops of sqrt(|a| |b| / |out|), which is k for a product [m, k] x [k, n], and of
    |in| / |out| for ops of one operand; ops of unknown sizes count as 1.
    """
    total = 0.0

    def visit(op: Any) -> Any:
        nonlocal total
        results = [n for r in op.results if (n := _elements(r))]
        operands = sorted(n for o in op.operands if (n := _elements(o)))
        if results and operands:
            out = max(results)
            both = math.sqrt(operands[-1] * operands[-2] / out) if len(operands) > 1 else 0.0
            total += max(both, operands[-1] / out, 1.0)
        return ir.WalkResult.ADVANCE

    with IreeSession() as session:
        session.parse(code)
        session.module.walk(visit)
    return max(1, math.ceil(total))
