"""A decoder as onnxruntime-genai's model builder writes it, with random weights of 4 bits."""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HIDDEN, HEADS, FEW, DEPTH, WIDE, WORDS, PLACES = 64, 4, 2, 16, 96, 50, 32
BLOCK = 32


class _Graph:
    """Nodes and weights, collected."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def add(self, op: str, *inputs: str, out: str | tuple[str, ...], ms: bool = True, **attrs: Any):
        outputs = (out,) if isinstance(out, str) else out
        domain = "com.microsoft" if ms else ""
        self.nodes.append(
            helper.make_node(op, list(inputs), list(outputs), outputs[0], domain=domain, **attrs)
        )
        return outputs[0]

    def weight(self, name: str, value: np.ndarray) -> str:
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def product(self, x: str, name: str, depth: int, rows: int) -> str:
        blocks = depth // BLOCK
        packed = self.rng.integers(0, 256, (rows, blocks, BLOCK // 2)).astype(np.uint8)
        scale = (self.rng.random((rows, blocks)) * 0.02).astype(np.float32)
        inputs = (self.weight(f"{name}.q", packed), self.weight(f"{name}.s", scale))
        more = {"K": depth, "N": rows, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
        return self.add("MatMulNBits", x, *inputs, out=f"{name}.out", **more)

    def gain(self, name: str) -> str:
        return self.weight(name, (1 + 0.1 * self.rng.standard_normal(HIDDEN)).astype(np.float32))


def decoder(layers: int = 2, seed: int = 17) -> onnx.ModelProto:
    """input_ids, attention_mask, past_key_values.i.{key,value} to logits and present.i.*."""
    g = _Graph(seed)
    angles = np.arange(PLACES)[:, None] / 10000 ** (np.arange(DEPTH // 2) * 2 / DEPTH)
    for name, function in (("cos_cache", np.cos), ("sin_cache", np.sin)):
        g.weight(name, function(angles).astype(np.float32))
    g.weight("one", np.array([1], np.int64))
    g.weight("at", np.array(1, np.int64))
    g.add("ReduceSum", "attention_mask", "one", out="held", ms=False, keepdims=0)
    g.add("Sub", "held", "one", out="ends64", ms=False)
    g.add("Cast", "ends64", out="seqlens_k", ms=False, to=TensorProto.INT32)
    g.add("Shape", "attention_mask", out="shape", ms=False)
    g.add("Gather", "shape", "at", out="total64", ms=False, axis=0)
    g.add("Cast", "total64", out="total", ms=False, to=TensorProto.INT32)
    table = g.weight("embed", g.rng.standard_normal((WORDS, HIDDEN)).astype(np.float32))
    x = g.add("Gather", table, "input_ids", out="embedded", ms=False)
    normed = g.add(
        "SimplifiedLayerNormalization", x, g.gain("norm0"), out="normed0", ms=False, axis=-1
    )
    for i in range(layers):
        x, normed = _layer(g, i, x, normed)
    g.product(normed, "logits", HIDDEN, WORDS)  # its result is `logits.out`
    return _model(g, layers)


def _layer(g: _Graph, i: int, x: str, normed: str) -> tuple[str, str]:
    q = g.product(normed, f"l{i}.q", HIDDEN, HEADS * DEPTH)
    k, v = (g.product(normed, f"l{i}.{n}", HIDDEN, FEW * DEPTH) for n in "kv")
    past = [f"past_key_values.{i}.{kind}" for kind in ("key", "value")]
    present = [f"present.{i}.{kind}" for kind in ("key", "value")]
    inputs = (q, k, v, *past, "seqlens_k", "total", "cos_cache", "sin_cache")
    heads = {"num_heads": HEADS, "kv_num_heads": FEW}
    out = g.add("GroupQueryAttention", *inputs, out=(f"l{i}.attn", *present), do_rotary=1, **heads)
    out = g.product(out, f"l{i}.o", HEADS * DEPTH, HIDDEN)
    kinds = (f"l{i}.n1", "", "", f"l{i}.x1")
    skip = "SkipSimplifiedLayerNormalization"
    normed = g.add(skip, x, out, g.gain(f"l{i}.gain1"), out=kinds, epsilon=1e-5)
    gate, up = (g.product(normed, f"l{i}.{n}", HIDDEN, WIDE) for n in ("gate", "up"))
    sigmoid = g.add("Sigmoid", gate, out=f"l{i}.sig", ms=False)
    silu = g.add("Mul", gate, sigmoid, out=f"l{i}.silu", ms=False)
    both = g.add("Mul", silu, up, out=f"l{i}.both", ms=False)
    down = g.product(both, f"l{i}.down", WIDE, HIDDEN)
    kinds = (f"l{i}.n2", "", "", f"l{i}.x2")
    normed = g.add(skip, f"l{i}.x1", down, g.gain(f"l{i}.gain2"), out=kinds, epsilon=1e-5)
    return f"l{i}.x2", normed


def _model(g: _Graph, layers: int) -> onnx.ModelProto:
    ids = ["batch_size", "sequence_length"]
    old = ["batch_size", FEW, "past_sequence_length", DEPTH]
    new = ["batch_size", FEW, "total_sequence_length", DEPTH]

    def info(name: str, kind: int, dims: list) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, dims)

    whole, single = TensorProto.INT64, TensorProto.FLOAT
    inputs = [
        info("input_ids", whole, ids),
        info("attention_mask", whole, ["batch_size", "total_sequence_length"]),
    ]
    outputs = [info("logits.out", single, [*ids, WORDS])]
    for i in range(layers):
        for kind in ("key", "value"):
            inputs.append(info(f"past_key_values.{i}.{kind}", single, old))
            outputs.append(info(f"present.{i}.{kind}", single, new))
    graph = helper.make_graph(g.nodes, "decoder", inputs, outputs, g.weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
