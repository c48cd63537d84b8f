"""What does a dispatch cost? The roofline of its body, read from IREE's executables.

Operations are counted on the linalg ops of the dispatched function: the points of the iteration
space times the arithmetic ops of the body; a kernel whose body is loops over memory says itself how
many it does (stream_declared.py). Traffic is what the dispatch reads and writes.
"""

from collections.abc import Mapping
from math import prod
from typing import Any

from pyc_mlir.pipelines.streams.declared import declared_flops
from pyc_mlir.pipelines.streams.ir import find, ir, operations
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost, roofline
from pyc_mlir.pipelines.target.target import Target

# A named linalg op multiplies and adds.
_NAMED_OPS = 2


class DispatchCosts:
    """An estimate by dispatch symbol (``executable::function``) for one module and target.

    Raises PycError (INVALID_IR) for a kernel that declares its operations wrongly.
    """

    def __init__(self, module: Any, target: Target) -> None:
        self._target = target
        self._flops: Mapping[str, int] = {
            f"{_name(executable)}::{_name(function)}": _flops(function)
            for executable in find(module, "stream.executable")
            for function in find(executable, "func.func")
        }

    def __call__(self, symbol: str, traffic_bytes: int) -> Cost:
        """The cost of one run; what is no dispatch only moves bytes."""
        flops = self._flops.get(symbol, 0)
        return roofline(flops, traffic_bytes, self._target.peak_flops, self._target.peak_bandwidth)


def _name(op: Any) -> str:
    return ir.StringAttr(op.attributes["sym_name"]).value


def _flops(function: Any) -> int:
    total = declared_flops(function)

    def visit(op: Any) -> Any:
        nonlocal total
        if op.name.startswith("linalg.") and op.operation.regions:
            total += _points(op) * _per_point(op)
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return total


def _points(op: Any) -> int:
    """Points of the iteration space; that of the largest operand where the op names no maps."""
    shapes = [_shape(v.type) for v in op.operands]
    if "indexing_maps" not in op.attributes:
        return max((prod(s) for s in shapes), default=0)
    sizes: dict[int, int] = {}
    maps = [ir.AffineMapAttr(a).value for a in ir.ArrayAttr(op.attributes["indexing_maps"])]
    for map_, shape in zip(maps, shapes, strict=True):
        for expression, size in zip(map_.results, shape, strict=False):
            if isinstance(expression, ir.AffineDimExpr):
                sizes[expression.position] = size
    return prod(sizes.values())


def _shape(type_: Any) -> list[int]:
    if not isinstance(type_, ir.RankedTensorType):
        return []
    dynamic = ir.ShapedType.get_dynamic_size()
    return [NOMINAL_DIMENSION if d == dynamic else d for d in type_.shape]


def _per_point(op: Any) -> int:
    if op.name != "linalg.generic":
        return _NAMED_OPS
    body = operations(op.regions[0].blocks[0])
    return sum(o.name.startswith(("arith.", "math.")) for o in body)
