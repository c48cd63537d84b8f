"""Random quantized networks with a dynamic batch: every answer is that of the references.

`quantize_dynamic` of onnxruntime has each product's operand quantized at run time
(DynamicQuantizeLinear, MatMulInteger); a static tool writes QDQ. Both stand beside layers in f32.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import FULL
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from random_images import Network

import pyc_mlir
from pyc_mlir.artifact.test_vectors import compare
from pyc_mlir.compilation.references import expected_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.onnx.importer import import_onnx

BATCH, LENGTH = "batch", "length"


@dataclass
class Layers(Network):
    """A network of rows; `x` is the newest value of `shape` [..., features]."""

    @property
    def width(self) -> int:
        return self.shape[-1]

    def numbers(self, *shape: int) -> np.ndarray:
        return np.random.default_rng(self.random.getrandbits(32)).normal(size=shape)

    def bytes(self, array: np.ndarray, signed: bool, axis: int | None) -> tuple[str, str, str]:
        """A weight's integers, scale and zero point, for all or for each column."""
        most = np.abs(array).max(axis=0 if axis is not None else None) + 1e-6
        scale = np.asarray(most / 127, np.float32)
        whole = np.rint(array / scale) + (0 if signed else 128)
        dtype = np.int8 if signed else np.uint8
        zero = np.full(scale.shape, 0 if signed else 128, dtype)
        held = whole.clip(np.iinfo(dtype).min, np.iinfo(dtype).max).astype(dtype)
        return self.constant(held), self.constant(scale), self.constant(zero)

    def qdq(self, x: str, scale: float, signed: bool) -> str:
        """Quantize and dequantize by one scale."""
        zero = np.array(
            0 if signed else self.random.choice((0, 117, 128)), np.int8 if signed else np.uint8
        )
        operands = [self.constant(np.array(scale, np.float32)), self.constant(zero)]
        return self.add("DequantizeLinear", self.add("QuantizeLinear", x, *operands), *operands)


def dynamic_product(net: Layers) -> None:
    """Add the form that quantize_dynamic gives `x @ w + b`, the bias on either side."""
    out, signed = net.random.choice((net.width, 2, 16, 33, 64)), net.random.random() < 0.5
    columns = 1 if signed and net.random.random() < 0.5 else None
    w, scale, zero = net.bytes(net.numbers(net.width, out) / net.width**0.5, signed, columns)
    names = [f"v{len(net.nodes)}_{part}" for part in ("q", "s", "z")]
    net.nodes.append(helper.make_node("DynamicQuantizeLinear", [net.x], names))
    whole = net.add("MatMulInteger", names[0], w, names[2], zero)
    net.x = net.add("Cast", whole, to=TensorProto.FLOAT)
    net.x = net.add("Mul", net.x, net.add("Mul", names[1], scale))
    net.shape = [*net.shape[:-1], out]
    bias(net)


def static_product(net: Layers) -> None:
    """A product in QDQ, weights per tensor or per column."""
    out, signed = net.random.choice((net.width, 2, 16, 33, 64)), net.random.random() < 0.5
    columns = 1 if net.random.random() < 0.5 else None
    array = net.numbers(net.width, out) / net.width**0.5
    w = net.add(
        "DequantizeLinear", *net.bytes(array, True, columns), **{"axis": 1} if columns else {}
    )
    net.x = net.add("MatMul", net.qdq(net.x, 0.03, signed), w)
    net.shape = [*net.shape[:-1], out]
    bias(net)
    if net.random.random() < 0.6:
        net.x = net.qdq(net.x, 0.04, net.random.random() < 0.5)


def bias(net: Layers) -> None:
    if net.random.random() < 0.7:
        operands = [net.x, net.normal(net.width, scale=0.3)]
        net.x = net.add("Add", *net.random.sample(operands, 2))


def activate(net: Layers) -> None:
    net.x = net.add(net.random.choice(("Relu", "Sigmoid", "Tanh", "HardSwish")), net.x)


def normalize(net: Layers) -> None:
    """Not of a few quantized numbers: where these are equal but for rounding, anything comes."""
    if net.width < 16:
        return
    operands = [net.x, net.normal(net.width), net.normal(net.width, scale=0.1)]
    net.x = net.add("LayerNormalization", *operands, axis=-1)


def residual(net: Layers) -> None:
    """Some blocks beside a short cut, in QDQ or not; widths that differ get a product."""
    before, width = net.x, net.width
    for _ in range(net.random.randint(1, 2)):
        net.random.choice(BLOCKS)(net)
    if net.width != width:
        w = net.normal(net.width, width, scale=net.width**-0.5)
        net.x, net.shape = net.add("MatMul", net.x, w), [*net.shape[:-1], width]
    operands = [before, net.x]
    if net.random.random() < 0.3:
        operands = [net.qdq(operand, 0.04, False) for operand in operands]
    net.x = net.add("Add", *net.random.sample(operands, 2))


BLOCKS: tuple[Callable[[Layers], None], ...] = (
    dynamic_product, dynamic_product, static_product, static_product, activate, normalize,
)  # fmt: skip
STEPS = (*BLOCKS, residual, residual)


def network(seed: int, blocks: int = 4) -> tuple[onnx.ModelProto, list[np.ndarray]]:
    """A model of x f32[batch(, length), features], and inputs of several batches and lengths."""
    random = Random(seed)
    dims: list[Any] = [BATCH, *[LENGTH] * random.randint(0, 1)]
    features = random.choice((4, 16, 31, 64))
    net = Layers(random, [*dims, features], "x")
    random.choice(BLOCKS[:4])(net)
    for _ in range(blocks - 1):
        random.choice(STEPS)(net)
    graph = helper.make_graph(
        net.nodes, "quantized",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*dims, features])],
        [helper.make_tensor_value_info(net.x, TensorProto.FLOAT, net.shape)], net.weights,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    rng = np.random.default_rng(seed)
    shapes = [[rows, *[7 - rows % 5] * (len(dims) - 1), features] for rows in (1, 3, 18)]
    return model, [rng.normal(size=shape).astype(np.float32) for shape in shapes]


FIRST_SEED, AT_ONCE = 70_000, 25 if FULL else 2
# Of the largest result: a value beside a tie may be quantized to the next number, here or there.
QUANTA = 0.08


def check(seed: int) -> None:
    """Raise AssertionError where a batch's answer is wrong, PycError where there is none."""
    model, batches = network(seed)
    program = pyc_mlir.compile(model, check=True)
    with new_context() as context, ir.Location.unknown():
        module = import_onnx(model, context=context)
        for x in batches:
            got = np.asarray(program(x))
            wrong = compare([got], expected_of(module, "main", [x])).wrong
            assert not wrong, f"seed {seed}, {x.shape}: {wrong}"
            (right,) = ReferenceEvaluator(model).run(None, {"x": x})
            assert np.abs(got - right).max() <= QUANTA * max(1.0, np.abs(right).max()), seed


@pytest.mark.parametrize("batch", range(16 if FULL else 1))
@pytest.mark.full
def test_random_quantized_networks(batch: int, record_property) -> None:
    first = FIRST_SEED + batch * AT_ONCE
    for seed in range(first, first + AT_ONCE):
        check(seed)
    record_property("random quantized networks with a dynamic batch", dict(Counter(equal=AT_ONCE)))
