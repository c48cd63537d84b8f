"""Quantized models and models in half types, made of the networks of the zoo.

Those that onnxruntime quantizes are made of the ONNX model of the network in f32: statically, as
QDQ with weights per channel, or dynamically. Half types are torch's own. The products of a
decoder's feed-forward layers are written with weights of 4 bits, for one row or many.

What a half type's model should answer are torch's results in float64; for a quantized one, whose
roundings are part of it, the results of onnxruntime without its optimizations.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.tools.bench.peers.onnxruntime_session import run_unoptimized
from pyc_mlir.tools.bench.workloads.networks import BY_NAME, OPSET, Network, inputs, make, write

_CALIBRATIONS = 4
_MICROSOFT = "com.microsoft"
_SEED = 3


@dataclass(frozen=True)
class Quantized:
    """A model of a network: ``static`` or ``dynamic`` by onnxruntime, or a half type of torch.

    ``few bits``: the products of feed-forward layers, of so many `rows`.
    """

    network: Network
    how: str = "static"
    rows: int = 1

    @property
    def kind(self) -> str:
        """The kind of its network."""
        return self.network.kind


_BERT, _RESNET, _MOBILE = (BY_NAME[name] for name in ("bert2", "resnet18", "mobilenet_v2"))
QUANTIZED: Mapping[str, Quantized] = {
    "resnet18-int8": Quantized(_RESNET),
    "mobilenet-v2-int8": Quantized(_MOBILE),
    "mobilenet-v3-small-int8": Quantized(BY_NAME["mobilenet_v3_small"]),
    "bert2-int8": Quantized(_BERT),
    "bert2-dynamic": Quantized(_BERT, "dynamic"),
    "bert2-f16": Quantized(_BERT, "half"),
    "bert2-bf16": Quantized(_BERT, "bfloat16"),
    "resnet18-f16": Quantized(_RESNET, "half"),
    "mobilenet-v2-f16": Quantized(_MOBILE, "half"),
    "feed-forward-4bit-1": Quantized(_BERT, "few bits", 1),
    "feed-forward-4bit-64": Quantized(_BERT, "few bits", 64),
}


def derive(model: Quantized, source: Path, path: Path) -> dict[str, np.ndarray]:
    """Write a model of what `networks.export` wrote at `source`; its inputs and answers by name.

    Raises what torch and onnxruntime raise.
    """
    import onnx

    with np.load(source.with_suffix(".npz"), allow_pickle=False) as stored:
        found = dict(stored)
    if model.how in ("half", "bfloat16"):
        module = getattr(make(model.network), model.how)()
        halves = tuple(getattr(a, model.how)() for a in inputs(model.network, 1))
        write(module, halves, OPSET, path)
        dtype = DTYPES["f16" if model.how == "half" else "bf16"]
        return {**found, "input_0": found["input_0"].astype(dtype)}
    if model.how == "few bits":
        built = feed_forward(model.rows)
        onnx.save(built, path)
        dims = built.graph.input[0].type.tensor_type.shape.dim
        draw = np.random.default_rng(_SEED)
        found["input_0"] = draw.normal(size=[d.dim_value for d in dims]).astype(np.float32)
    else:
        quantize(source, model, path)
    (answer,) = run_unoptimized(path, [found["input_0"]])
    return {"input_0": found["input_0"], "float64_0": answer.astype(np.float64)}


def quantize(source: Path, model: Quantized, target: Path) -> None:
    """Quantize by onnxruntime; norms are folded into convolutions before."""
    import onnx
    from onnxruntime.quantization import (  # pyright: ignore
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )
    from onnxruntime.quantization.shape_inference import quant_pre_process  # pyright: ignore

    # Symbolic shapes of a network of words end in what is not known.
    quant_pre_process(source, target, skip_symbolic_shape=model.how == "dynamic")
    if model.how == "dynamic":
        return quantize_dynamic(target, target, weight_type=QuantType.QInt8)
    samples = [inputs(model.network, 1, seed)[0].numpy() for seed in range(_CALIBRATIONS)]
    (name,) = (value.name for value in onnx.load(target).graph.input)

    class Reader(CalibrationDataReader):
        left = iter([{name: sample} for sample in samples])

        def get_next(self) -> Any:
            return next(self.left, None)

    quantize_static(
        target, target, Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip


def feed_forward(rows: int, layers: int = 4, width: int = 2048, inner: int = 5504) -> Any:
    """Build products with weights of 4 bits (MatMulNBits), as many as in a decoder of 90M."""
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(_SEED)
    nodes: list[Any] = []
    weights: list[Any] = []

    def node(op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op}_{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def product(x: str, depth: int, columns: int) -> str:
        blocks = depth // 32
        packed = draw.integers(0, 256, (columns, blocks, 16)).astype(np.uint8)
        scale = (draw.random((columns, blocks)) * depth**-0.5).astype(np.float32)
        names = [f"w_{len(weights)}", f"w_{len(weights) + 1}"]
        weights.extend(map(numpy_helper.from_array, (packed, scale), names))
        sizes: dict[str, Any] = {"K": depth, "N": columns, "bits": 4, "block_size": 32}
        # The model allows products of 8-bit integers; PyC's are those of f32.
        return node("MatMulNBits", x, *names, domain=_MICROSOFT, accuracy_level=4, **sizes)

    x = "x"
    for _ in range(layers):
        x = node("Add", x, product(node("Relu", product(x, width, inner)), inner, width))
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, (rows, width)) for n in ("x", x)]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:], weights)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(_MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)
