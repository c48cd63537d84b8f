"""Keep IREE from forming dispatches that read more tensors than its runtime binds.

The runtime of IREE 3.13 binds `MOST_BINDINGS` buffers to a dispatch at most and refuses a program
that has one with more when it is loaded; the compiler knows no such limit and fuses the sum of 40
tensors into one dispatch. So the dispatches are counted when they are formed. Where one is too
wide, the module is taken as it was, `narrow` puts barriers where more tensors come together, and
dispatches are formed anew.
"""

from typing import Any

from iree.compiler import ir

from pyc_mlir.iree.workarounds.read_hazards import barrier, blocks_of
from pyc_mlir.pipelines.streams.ir import find, operations
from pyc_mlir.pipelines.target.target import MOST_BINDINGS

# What an op and those fused with it read: room for results, and for what bodies read at places.
_MOST_READ = MOST_BINDINGS - 4
_VIEWS = frozenset(
    {"tensor.cast", "tensor.collapse_shape", "tensor.expand_shape", "tensor.extract_slice"}
)
_MADE_INSIDE = frozenset({"linalg.fill", "tensor.empty"})


def widest(module: Any, dispatches: str) -> int:
    """Return the most tensors that one of the ops called `dispatches` reads and writes."""
    return max((_bindings(op) for op in find(module, dispatches)), default=0)


def _bindings(op: Any) -> int:
    tensors = [v for v in (*op.operands, *op.results) if isinstance(v.type, ir.RankedTensorType)]
    return len(set(tensors))


def narrow(module: Any) -> int:
    """Insert barriers into `module` (before its dispatches are formed) until no op and all that
    could be fused with it read too many tensors. Returns the number of barriers."""
    blocks = [block for op in module.regions[0].blocks[0] for block in blocks_of(op)]
    return sum(_narrow(block) for block in blocks)


def _narrow(block: Any) -> int:
    read: dict[Any, frozenset[Any]] = {}
    inserted = 0
    for op in operations(block):
        if op.name in _MADE_INSIDE:
            read[op.results[0]] = frozenset()
        elif op.name in _VIEWS:
            source = op.operands[0]
            read[op.results[0]] = read.get(source, frozenset({source}))
        elif op.name.startswith("linalg.") and op.results:
            inserted += _part(op, read)
    return inserted


def _part(op: Any, read: dict[Any, frozenset[Any]]) -> int:
    """Insert barriers in front of `op`; return their number and the sources of its results."""
    tensors = [(i, v) for i, v in enumerate(op.operands) if isinstance(v.type, ir.RankedTensorType)]
    parts = {i: read.get(v, frozenset({v})) for i, v in tensors}
    inserted = 0
    # The operand that is made of most goes into memory first.
    for i in sorted(parts, key=lambda i: -len(parts[i])):
        if len(frozenset().union(*parts.values())) <= _MOST_READ or len(parts[i]) < 2:
            break
        value = op.operands[i]
        op.operands[i] = barrier(value, op)
        parts[i] = frozenset({op.operands[i]})
        inserted += 1
    together = frozenset[Any]().union(*parts.values())
    read.update(dict.fromkeys(op.results, together))
    return inserted
