"""One computation in f16 and in f32 on the same numbers, over the whole range of f16.

What f32 gives within the range of f16, f16 gives too: sums, squares and statistics in between that
leave the range are kept in the wider type.
"""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.frontends.onnx.importer import import_onnx
from pyc_mlir.frontends.onnx.reading import all_nodes

SCALES = (2.0**-10, 1.0, 300.0, 2.0**13)
# The range of f16 without its last steps, and the errors of a few roundings.
LIMIT, RELATIVE = 6e4, 2.0**-6


def in_f16(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which f16 stands for f32, in types, weights and constants."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for info in (*copy.graph.input, *copy.graph.output):
        if info.type.tensor_type.elem_type == TensorProto.FLOAT:
            info.type.tensor_type.elem_type = TensorProto.FLOAT16
    del copy.graph.value_info[:]
    tensors = list(copy.graph.initializer)
    for node in all_nodes(copy.graph.node):
        tensors += [a.t for a in node.attribute if a.HasField("t")]
    for tensor in tensors:
        if tensor.data_type == TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(np.float16), tensor.name))
    return copy


def difference(
    model: onnx.ModelProto, inputs: list, scale: float, context: Any, scaled: int = 99
) -> str:
    """How the results of f16 differ from those of f32, "" if they do not.

    The f32 inputs, the first `scaled` of them multiplied by `scale`, are rounded to f16. Raises
    PycError as the importer.
    """
    factors = [scale if i < scaled else 1 for i in range(len(inputs))]
    with np.errstate(over="ignore"):
        narrow = [
            (v * f).astype(np.float16) if v.dtype == np.float32 else v
            for v, f in zip(inputs, factors, strict=True)
        ]
    wide = [v.astype(np.float32) if v.dtype == np.float16 else v for v in narrow]
    wanted = interpret(import_onnx(model, context=context), wide)
    found = interpret(import_onnx(in_f16(model), context=context), narrow)
    for f, w in zip(found, wanted, strict=True):
        if f.dtype != np.float16 or not w.size:
            continue
        fits = np.isfinite(w) & (np.abs(w) < LIMIT)
        f, w = f[fits].astype(np.float64), w[fits].astype(np.float64)
        if not np.isfinite(f).all():
            return f"{f[~np.isfinite(f)][0]}, want {w[~np.isfinite(f)][0]}"
        most = np.abs(w).max(initial=0)
        error = np.abs(f - w).max(initial=0)
        if error > RELATIVE * most + 2.0**-14:
            return f"off by {error:.3g} of {most:.3g}"
    return ""
