"""The predicted cost of each dispatch of a module, read from IREE's executables.

Operations are counted on the linalg ops of the dispatched function: the points of the iteration
space times the arithmetic ops of the body; a kernel whose body is loops over memory declares its
own (streams/declared.py). Traffic is what the dispatch reads and writes. The cost model says how
long both take: by the kernel's family, or by the kind of IREE's code.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

from pyc_mlir.dialects.names import kernel_family
from pyc_mlir.pipelines.streams.declared import declared_flops
from pyc_mlir.pipelines.streams.ir import dispatched, ir, operations
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target

# A named linalg op multiplies and adds.
_NAMED_OPS = 2

# How affine maps are printed: a step of more than one, and a sum of two dimensions.
_STRIDED = re.compile(r"d\d+ \* (?!1\b)\d+")
_WINDOW = re.compile(r"d\d+(?: \* \d+)? \+ d\d+")


class DispatchCosts:
    """An estimate by dispatch symbol (``executable::function``) for one module and target.

    Raises PycError (INVALID_IR) for a kernel that declares its operations wrongly.
    """

    def __init__(self, module: Any, target: Target) -> None:
        self._model = CostModel(target)
        functions = dispatched(module)
        self._flops: Mapping[str, int] = {s: _flops(f) for s, f in functions.items()}
        self._kinds: Mapping[str, str] = {s: _kind(f) for s, f in functions.items()}

    def __call__(self, symbol: str, traffic_bytes: int) -> Cost:
        """Return the cost of one run; what is no dispatch only moves bytes."""
        if symbol not in self._flops:
            return self._model.copy(traffic_bytes)
        flops, family = self._flops[symbol], kernel_family(symbol.rpartition("::")[2])
        if family is not None:
            cost = self._model.kernel(family, flops, traffic_bytes)
        else:
            cost = self._model.dispatch(self._kinds[symbol], flops, traffic_bytes)
        return replace(cost, seconds=cost.seconds + self._model.dispatch_seconds)


def _kind(function: Any) -> str:
    """Return the kind of IREE's code, by the linalg op that does most: a row of the cost model."""
    found = [op for op in _linalg(function) if op.operation.regions]
    if not found:
        return "pointwise"
    main = max(found, key=lambda op: _points(op) * _per_point(op))
    maps = _text(main, "indexing_maps")
    strided = _STRIDED.search(maps) is not None
    if "strides" in main.attributes:
        strides = ir.DenseIntElementsAttr(main.attributes["strides"])
        strided = any(int(stride) > 1 for stride in strides)
    reads = len(main.operands) - 1
    if "pooling" in main.name or (_WINDOW.search(maps) and _per_point(main) < 2):
        return "pooling"
    if "conv" in main.name or _WINDOW.search(maps):
        return "convolution.strided" if strided else "convolution"
    if strided:
        return "strided"
    kinds = _text(main, "iterator_types")
    if kinds and "reduction" not in kinds:
        return "pointwise"
    return "contraction" if reads > 1 else "reduction"


def _text(op: Any, name: str) -> str:
    """Return an attribute as text; "" where the op has none of that name."""
    return str(op.attributes[name]) if name in op.attributes else ""


def _linalg(function: Any) -> list[Any]:
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name.startswith("linalg."):
            found.append(op)
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    return found


def _flops(function: Any) -> int:
    found = (o for o in _linalg(function) if o.operation.regions)
    return declared_flops(function) + sum(_points(op) * _per_point(op) for op in found)


def _points(op: Any) -> int:
    """Count points of the iteration space; of the largest operand if the op names no maps."""
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
