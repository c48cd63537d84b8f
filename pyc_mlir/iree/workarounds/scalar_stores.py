"""Keep IREE from writing too much where one element of a tensor is replaced.

IREE 3.13 makes ``flow.tensor.store`` a fill whose length it takes from the place behind the last
element that is written, counted in the tensor's strides: five elements instead of one in a row of
four, silently, or past the end of the buffer (EncodeHostTensors, `stream.tensor.fill` with more
than one dimension). Along a single dimension the count is right, so the tensor is written as one.
"""

from functools import partial, reduce
from math import prod
from typing import Any

from iree.compiler import ir

from pyc_mlir.pipelines.streams.ir import find

_STORE, _RESHAPE = "flow.tensor.store", "flow.tensor.reshape"


def flatten_stores(module: Any) -> int:
    """Rewrite the stores of `module` into tensors of several dimensions; how many.

    To be called at the end of phase `flow`, which makes these stores.
    """
    stores = [op for op in find(module, _STORE) if len(_type(op.results[0]).shape) > 1]
    for op in stores:
        _flatten(op)
    return len(stores)


def _flatten(op: Any) -> None:
    """Reshape to one dimension, store at the row-major place, reshape back."""
    of = _type(op.results[0])
    value, target, *rest = op.operands
    dims, indices = rest[: len(rest) - len(of.shape)], rest[len(rest) - len(of.shape) :]
    unread = list(dims)
    with op.location, ir.InsertionPoint(op):
        known = [not ir.ShapedType.is_dynamic_size(size) for size in of.shape]
        sizes = [
            _constant(size) if is_known else unread.pop(0)
            for size, is_known in zip(of.shape, known, strict=True)
        ]
        place = indices[0]
        for size, index in zip(sizes[1:], indices[1:], strict=True):
            place = _index("addi", _index("muli", place, size), index)
        length = [reduce(partial(_index, "muli"), sizes)] if dims else []
        elements = ir.ShapedType.get_dynamic_size() if dims else prod(of.shape)
        flat = ir.RankedTensorType.get([elements], of.element_type)
        row = _made(_RESHAPE, flat, [target], dims, length)
        written = _made(_STORE, flat, [value], [row], length, [place])
        op.results[0].replace_all_uses_with(_made(_RESHAPE, of, [written], length, dims))
    op.erase()


def _made(name: str, result: Any, *operands: list[Any]) -> Any:
    """Return the result of an op whose operands come in segments."""
    segments = {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(o) for o in operands])}
    flat = [value for segment in operands for value in segment]
    return ir.Operation.create(name, [result], flat, segments).result


def _index(kind: str, a: Any, b: Any) -> Any:
    return ir.Operation.create(f"arith.{kind}", [ir.IndexType.get()], [a, b]).result


def _constant(value: int) -> Any:
    index = ir.IndexType.get()
    attributes = {"value": ir.IntegerAttr.get(index, value)}
    return ir.Operation.create("arith.constant", [index], [], attributes).result


def _type(value: Any) -> Any:
    return ir.RankedTensorType(value.type)
