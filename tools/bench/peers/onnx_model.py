"""A program as an ONNX model, for onnxruntime and OpenVINO: a `PeerGraph` recorded as nodes.

Composite ops that ONNX has are one node (LayerNormalization, Gelu, Softmax), as exporters write
them; attention is the two products with a softmax between, which both peers fuse.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import TensorType
from pyc_mlir.tools.bench.peers.graph import PeerGraph, Recorder, Rule, Value

# ONNX's first opset with Gelu as one node; LayerNormalization is older.
OPSET = 20
_PLAIN = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "maximum": "Max", "minimum": "Min",
    "pow": "Pow", "neg": "Neg", "abs": "Abs", "exp": "Exp", "log": "Log", "sin": "Sin",
    "cos": "Cos", "sqrt": "Sqrt", "tanh": "Tanh", "erf": "Erf", "sigmoid": "Sigmoid",
    "relu": "Relu", "select": "Where", "matmul": "MatMul", "floor": "Floor", "ceil": "Ceil",
}  # fmt: skip
_REDUCTIONS = {"reduce_sum": "ReduceSum", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin"}
_COMPARISONS = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater",
                "ge": "GreaterOrEqual"}  # fmt: skip
_MASKED = np.finfo(np.float32).min


def onnx_model(graph: PeerGraph) -> bytes:
    """Make a checked model x0, x1, ... -> y0, y1, ...; unknown sizes are named dimensions.

    Raises PycError (UNSUPPORTED_OP). Needs the package `onnx`.
    """
    import onnx
    from onnx import helper

    builder = OnnxBuilder()
    arguments = [Value(f"x{i}", t) for i, t in enumerate(graph.arguments)]
    results = graph.build(builder, arguments)
    outputs = [builder.rename(r, f"y{i}") for i, r in enumerate(results)]
    made = helper.make_graph(
        builder.nodes,
        "program",
        [_info(v) for v in arguments],
        [_info(v) for v in outputs],
        builder.constants,
    )
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(made, opset_imports=opset, ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _info(value: Value) -> Any:
    from onnx import helper

    sizes = [d if d is not None else f"d{i}" for i, d in enumerate(value.type.shape)]
    return helper.make_tensor_value_info(value.handle, _element(value.type.dtype), sizes)


def _element(dtype: np.dtype) -> int:
    from onnx import helper

    return helper.np_dtype_to_tensor_dtype(dtype)


class OnnxBuilder(Recorder):
    """Records nodes; equal constants are stored once each time that they are made."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.rules = {**self._elementwise(), **self._others()}

    def node(self, op: str, *operands: str, **attributes: Any) -> str:
        """Add one node; return the name of its result."""
        from onnx import helper

        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [name], name, **attributes))
        return name

    def constant(self, value: np.ndarray) -> Value:
        """Add an initializer."""
        array = np.asarray(value)
        return Value(self.stored(array), TensorType(array.shape, array.dtype))

    def stored(self, value: Any) -> str:
        """Store an initializer and return its name."""
        from onnx import numpy_helper

        name = f"c{len(self.constants)}"
        array = np.array(value, order="C")
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def rename(self, value: Value, name: str) -> Value:
        """Give the value a name of the model's own."""
        from onnx import helper

        self.nodes.append(helper.make_node("Identity", [value.handle], [name], name))
        return Value(name, value.type)

    def _elementwise(self) -> dict[str, Rule]:
        def plain(name: str) -> Rule:
            return lambda out, *operands: self.node(name, *(v.handle for v in operands))

        def gelu(out: TensorType, x: Value, *, approximate: str) -> str:
            return self.node("Gelu", x.handle, approximate=approximate)

        def compare(out: TensorType, x: Value, y: Value, *, predicate: str) -> str:
            if predicate == "ne":
                return self.node("Not", self.node("Equal", x.handle, y.handle))
            return self.node(_COMPARISONS[predicate], x.handle, y.handle)

        rules: dict[str, Rule] = {op: plain(name) for op, name in _PLAIN.items()}
        return rules | {
            "gelu": gelu,
            "compare": compare,
            "rsqrt": lambda out, x: self.node("Reciprocal", self.node("Sqrt", x.handle)),
            "cast": lambda out, x, *, dtype: self.node("Cast", x.handle, to=_element(dtype)),
        }

    def _others(self) -> dict[str, Rule]:
        def reduction(name: str) -> Rule:
            def reduce(out: TensorType, x: Value, *, axes: Sequence[int], keepdims: bool) -> str:
                over = self.stored(np.array(axes, np.int64))
                return self.node(name, x.handle, over, keepdims=int(keepdims))

            return reduce

        # ReduceMax and ReduceMin take their axes as an input since opset 18 as well.
        rules = {op: reduction(name) for op, name in _REDUCTIONS.items()}
        return rules | {
            "softmax": lambda out, x, *, axis: self.node("Softmax", x.handle, axis=axis),
            "log_softmax": lambda out, x, *, axis: self.node("LogSoftmax", x.handle, axis=axis),
            "layernorm": lambda out, x, w, b, *, axis, epsilon: self.node(
                "LayerNormalization", x.handle, w.handle, b.handle, axis=axis, epsilon=epsilon
            ),
            "attention": self._attention,
            "transpose": lambda out, x, *, permutation: self.node(
                "Transpose", x.handle, perm=list(permutation)
            ),
            "reshape": lambda out, x, *, shape: self.node(
                "Reshape", x.handle, self.stored(_sizes(out))
            ),
            "broadcast_to": lambda out, x, *like, shape: self.node(
                "Expand", x.handle, self.stored(_sizes(out))
            ),
            "concat": lambda out, x, y, *, axis: self.node("Concat", x.handle, y.handle, axis=axis),
            "iota": lambda out, *like, shape, axis, dtype: self.stored(_iota(out, axis)),
            "conv2d": self._convolution,
            "max_pool2d": self._max_pool,
        }

    def _attention(self, out: TensorType, *operands: Value, scale: float, is_causal: bool) -> str:
        q, k, v, *mask = operands
        order = [*range(k.type.rank - 2), k.type.rank - 1, k.type.rank - 2]
        scores = self.node("MatMul", q.handle, self.node("Transpose", k.handle, perm=order))
        scores = self.node("Mul", scores, self.stored(np.float32(scale)))
        if is_causal:
            rows, columns = q.type.shape[-2], k.type.shape[-2]
            assert rows is not None and columns is not None, "a causal mask of known sizes"
            allowed = np.tri(rows, columns, columns - rows, dtype=bool)
            added = np.where(allowed, np.float32(0), _MASKED).astype(np.float32)
            scores = self.node("Add", scores, self.stored(added))
        if mask:
            scores = self.node("Add", scores, mask[0].handle)
        return self.node("MatMul", self.node("Softmax", scores, axis=-1), v.handle)

    def _convolution(self, out: TensorType, x: Value, w: Value, **p: Any) -> str:
        channels_last = p["layout"] == "NHWC"
        weight = self.node("Transpose", w.handle, perm=[3, 2, 0, 1]) if channels_last else w.handle
        attributes = {key: list(p[key]) for key in ("strides", "pads", "dilations")}
        return self._channels_first(
            "Conv", channels_last, x.handle, weight, group=p["groups"], **attributes
        )

    def _max_pool(self, out: TensorType, x: Value, **p: Any) -> str:
        attributes = {key: list(p[key]) for key in ("strides", "pads", "dilations")}
        return self._channels_first(
            "MaxPool", p["layout"] == "NHWC", x.handle, kernel_shape=list(p["kernel"]), **attributes
        )

    def _channels_first(self, op: str, channels_last: bool, x: str, *more: str, **p: Any) -> str:
        """Add an op between transposes, which the peers move or cancel: ONNX has one layout."""
        if not channels_last:
            return self.node(op, x, *more, **p)
        made = self.node(op, self.node("Transpose", x, perm=[0, 3, 1, 2]), *more, **p)
        return self.node("Transpose", made, perm=[0, 2, 3, 1])


def _sizes(out: TensorType) -> np.ndarray:
    assert sum(d is None for d in out.shape) <= 1, "a reshape can leave one size open"
    return np.array([-1 if d is None else d for d in out.shape], np.int64)


def _iota(out: TensorType, axis: int) -> np.ndarray:
    sizes = tuple(d or 1 for d in out.shape)
    assert math.prod(sizes) == math.prod(d or 0 for d in out.shape), "iota of a known size"
    along = [-1 if i == axis else 1 for i in range(out.rank)]
    return np.broadcast_to(np.arange(sizes[axis]).reshape(along), sizes).astype(out.dtype)
