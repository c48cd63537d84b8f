"""Keep IREE from fusing anything: the last resort when code generation fails on fused ops.

A barrier stands between each op that computes and each tensor that it reads from another one, so
that every op is a dispatch of its own. What starts a reduction (the outs of an op) stays with it.
"""

from typing import Any

from iree.compiler import ir

from pyc_mlir.iree.workarounds.read_hazards import barrier, blocks_of

# Ops without index maps that IREE fuses with their neighbours.
_FUSED = ("tensor.pad", "tensor.concat")


def unfuse(module: Any) -> int:
    """Part the ops of `module` (an operation of IREE's bindings, before IREE's first phase).

    Returns the number of barriers.
    """
    blocks = [block for op in module.regions[0].blocks[0] for block in blocks_of(op)]
    ops = [op.operation for block in blocks for op in block.operations]
    return sum(_part(op) for op in ops if _computes(op))


def _computes(op: Any) -> bool:
    """Return whether an op is one that IREE makes dispatches of, or fuses into them."""
    return op.name.startswith("linalg.") or op.name in _FUSED


def _part(op: Any) -> int:
    """Insert barriers in front of the operands of `op`; return their number."""
    inputs = len(op.operands) - (len(op.results) if op.name.startswith("linalg.") else 0)
    computed = [
        i
        for i, value in enumerate(list(op.operands)[:inputs])
        if isinstance(value.type, ir.RankedTensorType) and _is_computed(value)
    ]
    for i in computed:
        op.operands[i] = barrier(op.operands[i], op)
    return len(computed)


def _is_computed(value: Any) -> bool:
    """Return whether a value is neither an argument nor a constant."""
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.operation.name != "arith.constant"
