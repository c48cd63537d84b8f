"""The constant computation that IREE would do of a foreign module while it compiles.

The counterpart of `pipelines/pyc/constants.py` for modules that PyC does not know: linalg ops
count their loops, products and convolutions of other dialects by the sizes of their operands.
"""

from collections.abc import Iterator
from math import isqrt, prod
from typing import Any

from iree.compiler import ir

from pyc_mlir.dialects.opdef import OpDef
from pyc_mlir.iree.workarounds.read_hazards import blocks_of, loop_sizes

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
