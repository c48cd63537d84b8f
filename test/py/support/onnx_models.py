"""Small ONNX models for tests, and the comparison with onnx's reference evaluator."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from modules import shared_context
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.interpreter import interpret
from pyc_mlir.frontends.onnx.importer import import_onnx

Arrays = dict[str, np.ndarray]


def info(name: str, dtype: np.dtype, shape: Sequence[Any] | None) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[Any, Sequence[Any]]],
    outputs: Sequence[str],
    weights: Arrays | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model whose outputs' types are found by onnx."""
    graph = helper.make_graph(
        nodes,
        "test",
        [info(name, dtype, shape) for name, (dtype, shape) in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (weights or {}).items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(made, data_prop=True)
    for output in inferred.graph.output:
        tensor = output.type.tensor_type
        if not tensor.elem_type:
            tensor.elem_type = onnx.TensorProto.FLOAT
        # The checker wants a shape; an unknown rank is stated as a scalar, which nobody reads.
        tensor.shape.SetInParent()
    return inferred


def node_model(
    op: str, inputs: Sequence[np.ndarray], constants: Sequence[Any], attributes: dict[str, Any],
    *, outputs: int = 1, opset: int = 17, dynamic: bool = False,
) -> onnx.ModelProto:  # fmt: skip
    """One node on `inputs` x0, x1, ... and then `constants` (None: missing).

    With `dynamic` every dimension but those of size 1 is a parameter, named after its size.
    """
    names = [f"x{i}" for i in range(len(inputs))]
    weights = {f"c{i}": np.asarray(c) for i, c in enumerate(constants) if c is not None}
    operands = names + [f"c{i}" if c is not None else "" for i, c in enumerate(constants)]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, operands, results, op.lower(), **attributes)
    shapes = [[f"d{s}" if dynamic and s != 1 else s for s in a.shape] for a in inputs]
    types = {n: (a.dtype, s) for n, a, s in zip(names, inputs, shapes, strict=True)}
    return model([node], types, results, weights, opset)


def check(
    proto: onnx.ModelProto, inputs: Arrays, rtol: float = 1e-5, atol: float = 1e-6
) -> ir.Module:
    """The imported module, after its results were compared with onnx's reference."""
    module = import_onnx(proto, context=shared_context())
    assert module.operation.verify()
    wanted = ReferenceEvaluator(proto).run(None, inputs)
    found = interpret(module, list(inputs.values()))
    for f, w in zip(found, map(np.asarray, wanted), strict=True):
        assert (f.dtype, f.shape) == (w.dtype, w.shape)
        np.testing.assert_allclose(f, w, rtol, atol)
    return module
