"""BERT's encoder with every composite written out, as ONNX exporters did up to opset 16, and named.

Both have the same weights: `legacy` is an ONNX model of opset 14, `named` a function of numpy and
`pyc_mlir.nn`.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx_models import Arrays, model

from pyc_mlir import nn

WIDTH, HEADS = 32, 4
DEPTH = WIDTH // HEADS


def weights(layers: int, width: int = WIDTH, seed: int = 0) -> Arrays:
    """Named as in both programs."""
    rng = np.random.default_rng(seed)
    found: Arrays = {}
    for layer in range(layers):
        for name, shape in {
            "q": (width, width), "k": (width, width), "v": (width, width), "o": (width, width),
            "up": (width, 4 * width), "down": (4 * width, width),
        }.items():  # fmt: skip
            found[f"{name}{layer}"] = rng.normal(0, 1 / math.sqrt(shape[0]), shape)
            found[f"{name}_bias{layer}"] = rng.normal(0, 0.1, shape[1])
        for name in ("attention", "output"):
            found[f"{name}_scale{layer}"] = rng.uniform(0.5, 1.5, width)
            found[f"{name}_shift{layer}"] = rng.normal(0, 0.1, width)
    return {name: array.astype(np.float32) for name, array in found.items()}


def _number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


class _Nodes:
    """Nodes of an ONNX graph, each named after its result."""

    def __init__(self, heads: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: Arrays = {
            "two": _number(2), "one": _number(1), "half": _number(0.5),
            "root2": _number(math.sqrt(2)), "epsilon": _number(1e-12),
            "hidden": _number(-10000),
            "split": np.array([0, 0, heads, -1]), "join": np.array([0, 0, -1]),
        }  # fmt: skip

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attributes))
        return name

    def linear(self, x: str, name: str, layer: int) -> str:
        return self("Add", self("MatMul", x, f"{name}{layer}"), f"{name}_bias{layer}")

    def norm(self, x: str, name: str, layer: int) -> str:
        mean = self("ReduceMean", x, axes=[-1])
        centered = self("Sub", x, mean)
        variance = self("ReduceMean", self("Pow", centered, "two"), axes=[-1])
        deviation = self("Sqrt", self("Add", variance, "epsilon"))
        scaled = self("Mul", self("Div", centered, deviation), f"{name}_scale{layer}")
        return self("Add", scaled, f"{name}_shift{layer}")

    def gelu(self, x: str) -> str:
        gate = self("Add", self("Erf", self("Div", x, "root2")), "one")
        return self("Mul", self("Mul", x, gate), "half")

    def softmax(self, x: str) -> str:
        power = self("Exp", self("Sub", x, self("ReduceMax", x, axes=[-1])))
        self.constants["last"] = np.array([-1])
        return self("Div", power, self("ReduceSum", power, "last"))

    def heads(self, x: str, order: list[int]) -> str:
        return self("Transpose", self("Reshape", x, "split"), perm=order)

    def attention(self, x: str, mask: str, layer: int) -> str:
        query, key, value = (
            self.heads(self.linear(x, name, layer), order)
            for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
        )
        scores = self("Add", self("Div", self("MatMul", query, key), "root"), mask)
        out = self("MatMul", self.softmax(scores), value)
        joined = self("Reshape", self("Transpose", out, perm=[0, 2, 1, 3]), "join")
        return self.linear(joined, "o", layer)

    def layer(self, x: str, mask: str, layer: int) -> str:
        x = self.norm(self("Add", x, self.attention(x, mask, layer)), "attention", layer)
        inner = self.gelu(self.linear(x, "up", layer))
        return self.norm(self("Add", x, self.linear(inner, "down", layer)), "output", layer)


def legacy(
    layers: int, batch: int | str, length: int | str, width: int = WIDTH, heads: int = HEADS
) -> onnx.ModelProto:
    """The encoder of x [batch, length, width] and a mask [batch, 1, 1, length] of 1 and 0."""
    nodes = _Nodes(heads)
    nodes.constants["root"] = _number(math.sqrt(width // heads))
    mask = nodes("Mul", nodes("Sub", "one", "mask"), "hidden")
    out = "x"
    for layer in range(layers):
        out = nodes.layer(out, mask, layer)
    inputs = {
        "x": (np.float32, [batch, length, width]),
        "mask": (np.float32, [batch, 1, 1, length]),
    }
    given = {**weights(layers, width), **nodes.constants}
    return model(nodes.nodes, inputs, [out], given, opset=14)


def named(layers: int, width: int = WIDTH, heads: int = HEADS) -> Callable[..., Any]:
    """The same encoder by the composites' names."""
    w = weights(layers, width)

    def linear(x: Any, name: str, layer: int) -> Any:
        return x @ w[f"{name}{layer}"] + w[f"{name}_bias{layer}"]

    def norm(x: Any, name: str, layer: int) -> Any:
        scale, shift = w[f"{name}_scale{layer}"], w[f"{name}_shift{layer}"]
        return nn.layernorm(x, scale, shift, epsilon=1e-12)

    def split(x: Any) -> Any:
        return x.reshape(x.shape[0], x.shape[1], heads, -1).transpose(0, 2, 1, 3)

    def encoder(x: Any, mask: Any) -> Any:
        hidden = (_number(1) - mask) * _number(-10000)
        for layer in range(layers):
            query, key, value = (split(linear(x, name, layer)) for name in "qkv")
            out = nn.attention(query, key, value, hidden).transpose(0, 2, 1, 3)
            joined = out.reshape(out.shape[0], out.shape[1], -1)
            x = norm(x + linear(joined, "o", layer), "attention", layer)
            inner = nn.gelu(linear(x, "up", layer))
            x = norm(x + linear(inner, "down", layer), "output", layer)
        return x

    return encoder
