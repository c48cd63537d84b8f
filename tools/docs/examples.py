"""One call of each op for docs/dialect.md: operand types, parameters, and the text that they make.

An op without a row takes ``tensor<?x4xf32>`` for each operand and its default parameters.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import VerificationError
from pyc_mlir.dialects.ir.bindings import func, ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.irtypes import to_mlir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.dialects.opdef import OpDef
from pyc_mlir.dialects.ops.movement import END, START, copied
from pyc_mlir.dialects.types import DTYPES, TensorType, tensor
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.pyc.fuse import Fuse


@dataclass(frozen=True)
class Example:
    """Operand types in order, and the parameters that differ from their defaults."""

    types: tuple[TensorType, ...]
    params: dict[str, Any] = field(default_factory=dict)


def _call(*types: TensorType, **params: Any) -> Example:
    return Example(types, params)


_ROWS = tensor("f32", None, 4)
_IMAGES = tensor("f32", None, 3, 8, 8)
_VECTOR = tensor("f32", 4)
_HEADS = tensor("f32", None, 12, 128, 64)

EXAMPLES: dict[str, Example] = {
    "and": _call(tensor("i32", None, 4), tensor("i32", 4)),
    "or": _call(tensor("i1", None, 4), tensor("i1", None, 4)),
    "xor": _call(tensor("i32", None, 4), tensor("i32", 4)),
    "not": _call(tensor("i1", None, 4)),
    "add": _call(_ROWS, _VECTOR),
    "compare": _call(_ROWS, _ROWS, predicate="lt"),
    "select": _call(tensor("i1", None, 4), _ROWS, _ROWS),
    "cast": _call(_ROWS, dtype=DTYPES["f16"]),
    "clip": _call(_ROWS, tensor("f32"), tensor("f32")),
    "gelu": _call(_ROWS, approximate="tanh"),
    "layernorm": _call(_ROWS, _VECTOR, _VECTOR),
    "rmsnorm": _call(_ROWS, _VECTOR),
    "batchnorm": _call(_IMAGES, *(tensor("f32", 3),) * 4),
    "attention": _call(_HEADS, _HEADS, _HEADS, tensor("i1", 128, 128), scale=0.125),
    "matmul": _call(_ROWS, tensor("f32", 4, 10)),
    "argmax": _call(_ROWS, axis=-1),
    "conv2d": _call(_IMAGES, tensor("f32", 16, 3, 3, 3), pads=(1, 1, 1, 1)),
    "integer_matmul": _call(tensor("ui8", None, 4), tensor("i8", 4, 10), tensor("i32")),
    "block_matmul": _call(
        tensor("f32", None, 64),
        tensor("ui8", 10, 2, 16),
        tensor("f32", 10, 2),
        tensor("ui8", 10, 2),
    ),
    "integer_conv2d": _call(
        tensor("ui8", None, 3, 32, 32), tensor("i8", 16, 3, 3, 3), tensor("i32"), pads=(1, 1, 1, 1)
    ),
    "max_pool2d": _call(_IMAGES, kernel=(2, 2), strides=(2, 2)),
    "avg_pool2d": _call(_IMAGES, kernel=(2, 2), strides=(2, 2)),
    "cumulative": _call(_ROWS, axis=1),
    "bitcast": _call(_ROWS, dtype=DTYPES["i32"]),
    "threefry": _call(tensor("ui64", None), tensor("ui64")),
    "philox": _call(tensor("ui64", None), tensor("ui64"), tensor("ui64")),
    "shift_left": _call(tensor("i32", None, 4), tensor("i32", 4)),
    "shift_right": _call(tensor("i32", None, 4), tensor("i32", 4)),
    "argsort": _call(_ROWS, descending=True, count=2),
    "resize": _call(_IMAGES, sizes=(16, 16), mode="linear"),
    "constant": _call(value=np.array([0.5, 2.0], np.float32)),
    "iota": _call(_ROWS, shape=(-1, 1)),
    "range": _call(tensor("i64")),
    "nonzero": _call(tensor("i1", None)),
    "suppress": _call(tensor("f32", None, 4), tensor("i64", None), overlap=0.5),
    "size": _call(_ROWS, axes=(0,)),
    "transpose": _call(_ROWS, permutation=(1, 0)),
    "reshape": _call(_ROWS, _IMAGES, shape=(copied(2), 2, 2)),
    "broadcast_to": _call(_VECTOR, _ROWS, shape=(-1, 4)),
    "concat": _call(_ROWS, _ROWS, axis=1),
    "slice": _call(_ROWS, starts=(START, 1), stops=(END, 3), steps=(1, 1)),
    "update_slice": _call(_ROWS, tensor("f32", 1, 4), tensor("i64", 2)),
    "pad": _call(_ROWS, low=(0, 1), high=(0, 1)),
    "scatter": _call(_ROWS, tensor("i64", 2), tensor("f32", 2, 4), reduction="add"),
    "gather": _call(tensor("f32", 1000, 64), tensor("i64", None, 16)),
} | {
    f"reduce_{kind}": _call(_ROWS, axes=(1,), keepdims=True)
    for kind in ("sum", "prod", "max", "min", "mean")
}


def example_of(op: type[OpDef]) -> Example:
    """Return the example of an op."""
    return EXAMPLES.get(op.name) or Example((_ROWS,) * len(op.operands))


def accepted_dtypes(op: type[OpDef]) -> list[str]:
    """Return the element types that the example's first operand may have; [] without one."""
    example = example_of(op)
    if not example.types:
        return []
    return [name for name, dtype in DTYPES.items() if _fits(op, example, dtype)]


def _fits(op: type[OpDef], example: Example, dtype: np.dtype) -> bool:
    usual = example.types[0].dtype
    types = [t.with_dtype(dtype) if t.dtype == usual else t for t in example.types]
    try:
        op.infer(*types, **op.bind(example.params))
    except VerificationError:
        return False
    return True


def example_text(op: type[OpDef]) -> str:
    """Print the example's op in MLIR's generic syntax."""
    example = example_of(op)
    with new_context(), ir.Location.unknown():
        module = _function(example.types, lambda b, *v: b.build(op, *v, **example.params))
        module.operation.verify()
        lines = [line.strip() for line in str(module).splitlines()]
    return next(line for line in lines if f'"pyc.{op.name}"' in line)


def group_text() -> str:
    """Print a function with the group that `pyc-fuse` makes of a matmul and its epilogue."""
    with new_context(), ir.Location.unknown():
        module = _function(
            (_ROWS, tensor("f32", 4, 10), tensor("f32", 10)),
            lambda b, x, w, bias: b.relu(b.add(b.matmul(x, w), bias)),
        )
        Fuse().run(module, PassContext())
        return str(module).strip()


def _function(types: tuple[TensorType, ...], body: Any) -> ir.Module:
    """Build a module whose function `main` is built by `body(builder, *arguments)`."""
    module = ir.Module.create()
    inputs = [to_mlir(t) for t in types]
    with ir.InsertionPoint(module.body):
        function = func.FuncOp("main", (inputs, []))
        block = function.add_entry_block()
    with ir.InsertionPoint(block):
        out = body(IRBuilder(), *block.arguments)
        func.ReturnOp([out])
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, [out.type]))
    return module
