"""An encoder block (Vaswani et al., 2017; normalization first), once in numpy style, once as ONNX.

    x = x + attention(norm(x) Wq, norm(x) Wk, norm(x) Wv) Wo
    y = x + gelu(norm(x) Wup) Wdown            x, y: [seq, width]

Biases everywhere, gelu by the error function. On float64 arrays and weights the same function is
the reference; the ONNX graph is built from the same weights, as exporters write it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir import nn

EPSILON = 1e-5
# ONNX's first opset with Gelu as one node; LayerNormalization is older.
OPSET = 20

Weights = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class EncoderShape:
    """The sizes of one block: sequence, model width, heads, hidden units of the feed-forward."""

    seq: int
    width: int
    heads: int
    hidden: int

    @property
    def depth(self) -> int:
        """Width of one head."""
        return self.width // self.heads


BASE = EncoderShape(seq=128, width=768, heads=12, hidden=3072)
TINY = EncoderShape(seq=8, width=16, heads=2, hidden=32)


def encoder_weights(shape: EncoderShape, seed: int = 0) -> Weights:
    """Draw f32 weights that keep activations near 1."""
    rng = np.random.default_rng(seed)
    width, hidden = shape.width, shape.hidden
    linear = dict.fromkeys(("query", "key", "value", "out"), (width, width))
    linear |= {"up": (width, hidden), "down": (hidden, width)}
    weights = {}
    for name, (rows, columns) in linear.items():
        weights[f"{name}.weight"] = rng.normal(0, rows**-0.5, (rows, columns))
        weights[f"{name}.bias"] = rng.normal(0, 0.02, columns)
    for name in ("norm1", "norm2"):
        weights[f"{name}.scale"] = rng.normal(1, 0.02, width)
        weights[f"{name}.bias"] = rng.normal(0, 0.02, width)
    return {name: w.astype(np.float32) for name, w in weights.items()}


def layers(shape: EncoderShape, w: Weights) -> tuple[Callable[..., Any], ...]:
    """Return linear(x, name), norm(x, name) and heads(x) of a block, in numpy style."""

    def linear(x: Any, name: str) -> Any:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    def norm(x: Any, name: str) -> Any:
        return nn.layernorm(x, w[f"{name}.scale"], w[f"{name}.bias"], epsilon=EPSILON)

    def heads(x: Any) -> Any:
        return x.reshape(shape.seq, shape.heads, shape.depth).transpose(1, 0, 2)

    return linear, norm, heads


def encoder_block(shape: EncoderShape, w: Weights) -> Callable[[Any], Any]:
    """Return the block as a function of x [seq, width], in numpy style."""
    linear, norm, heads = layers(shape, w)

    def block(x: Any) -> Any:
        normed = norm(x, "norm1")
        query, key, value = (heads(linear(normed, n)) for n in ("query", "key", "value"))
        mixed = nn.attention(query, key, value).transpose(1, 0, 2)
        x = x + linear(mixed.reshape(shape.seq, shape.width), "out")
        return x + linear(nn.gelu(linear(norm(x, "norm2"), "up")), "down")

    return block


class _Nodes:
    """Collects ONNX nodes: each call makes one and gives the name of its result."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []

    def __call__(self, op: str, *operands: str, out: str = "", **attributes: Any) -> str:
        from onnx import helper

        result = out or f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, operands, [result], result, **attributes))
        return result

    def linear(self, x: str, name: str) -> str:
        """x @ weight + bias."""
        return self("Add", self("MatMul", x, f"{name}.weight"), f"{name}.bias")

    def norm(self, x: str, name: str) -> str:
        """Add LayerNormalization over the last axis."""
        operands = (x, f"{name}.scale", f"{name}.bias")
        return self("LayerNormalization", *operands, axis=-1, epsilon=EPSILON)

    def heads(self, x: str, order: list[int]) -> str:
        """[seq, width] -> the heads' slices, in the given order of axes."""
        return self("Transpose", self("Reshape", x, "heads.shape"), perm=order)


def encoder_onnx(shape: EncoderShape, w: Weights) -> bytes:
    """Return the block as a checked ONNX model: `x` -> `y`. Needs the package `onnx`."""
    import onnx
    from onnx import helper, numpy_helper

    node = _Nodes()
    normed = node.norm("x", "norm1")
    query, value = (node.heads(node.linear(normed, n), [1, 0, 2]) for n in ("query", "value"))
    key = node.heads(node.linear(normed, "key"), [1, 2, 0])
    scores = node("Mul", node("MatMul", query, key), "scale")
    mixed = node("MatMul", node("Softmax", scores, axis=-1), value)
    joined = node("Reshape", node("Transpose", mixed, perm=[1, 0, 2]), "joined.shape")
    x = node("Add", "x", node.linear(joined, "out"))
    hidden = node("Gelu", node.linear(node.norm(x, "norm2"), "up"))
    node("Add", x, node.linear(hidden, "down"), out="y")
    constants = {
        **w,
        "heads.shape": np.array([shape.seq, shape.heads, shape.depth]),
        "joined.shape": np.array([shape.seq, shape.width]),
        "scale": np.array(shape.depth**-0.5, np.float32),
    }
    kind = (onnx.TensorProto.FLOAT, [shape.seq, shape.width])
    graph = helper.make_graph(
        node.nodes,
        "encoder",
        [helper.make_tensor_value_info("x", *kind)],
        [helper.make_tensor_value_info("y", *kind)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opset = [helper.make_opsetid("", OPSET)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=9)
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()
