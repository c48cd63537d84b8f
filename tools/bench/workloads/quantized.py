"""Write quantized ONNX models of small networks with random weights, and measure them.

    python -m pyc_mlir.tools.bench.workloads.quantized --folder DIR [--models a,b] [--json OUT]

Convolutional networks and an encoder are built as ONNX graphs in f32 (``NAME.f32.onnx``) and
quantized by onnxruntime (``NAME.onnx``): statically, as QDQ with weights per channel, or
dynamically. The products of a decoder's feed-forward layers are written with weights of 4 bits, for
one row or many, and the encoder once more in f16 and bf16. What is there already is kept.

With `--json` each model, and its twin in f32, runs under PyC and the peers that are installed as in
`pyc-bench model`, on one thread. Errors are against onnxruntime without its optimizations where a
model is quantized, else against float64. Records of other models that OUT holds are kept, if they
come from the same environment.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.measure.records import Report, compare
from pyc_mlir.pipelines.kernels.lang.language import HALVES
from pyc_mlir.util.children import run as run_child

OPSET = 17
_CALIBRATIONS = 4
PEERS = ("onnxruntime", "openvino")


class Graph:
    """An ONNX graph under construction: values are names, weights are drawn from one seed."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; the name of its result."""
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def weight(self, array: np.ndarray) -> str:
        """Add an initializer; its name."""
        name = f"w_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> str:
        """Add an initializer of normal numbers; its name."""
        return self.weight((self.random.normal(size=shape) * scale).astype(np.float32))

    def conv(
        self, x: str, inputs: int, filters: int, kernel: int, stride: int = 1, groups: int = 1
    ) -> str:
        """Add a convolution with "same" padding and a bias; its result."""
        depth = inputs // groups
        w = self.normal(filters, depth, kernel, kernel, scale=(2 / (depth * kernel**2)) ** 0.5)
        pads, bias = [kernel // 2] * 4, self.normal(filters, scale=0.1)
        return self.op("Conv", x, w, bias, pads=pads, strides=[stride] * 2, group=groups)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        """Add a product with a bias; its result."""
        product = self.op("MatMul", x, self.normal(inputs, outputs, scale=inputs**-0.5))
        return self.op("Add", product, self.normal(outputs, scale=0.1))

    def model(self, shape: Sequence[int], result: str) -> Any:
        """Make the model whose input ``x`` has this shape."""
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        y = helper.make_tensor_value_info(result, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "network", [x], [y], self.weights)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
        made = helper.make_model(graph, opset_imports=opsets)
        made.ir_version = 9
        return onnx.shape_inference.infer_shapes(made)


def _head(g: Graph, x: str, channels: int, classes: int) -> str:
    pooled = g.op("Flatten", g.op("GlobalAveragePool", x))
    weights = g.normal(channels, classes, scale=channels**-0.5)
    return g.op("Gemm", pooled, weights, g.normal(classes, scale=0.1))


def resnet18(size: int = 224) -> Any:
    """Build ResNet-18 with its norms folded into the convolutions. He et al., 2016."""
    g = Graph()
    x = g.op("Relu", g.conv("x", 3, 64, 7, 2))
    x = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    inputs = 64
    for filters in (64, 128, 256, 512):
        for block in range(2):
            stride = 2 if block == 0 and filters > 64 else 1
            y = g.op("Relu", g.conv(x, inputs, filters, 3, stride))
            y = g.conv(y, filters, filters, 3)
            x = g.conv(x, inputs, filters, 1, stride) if inputs != filters else x
            x, inputs = g.op("Relu", g.op("Add", y, x)), filters
    return g.model((1, 3, size, size), _head(g, x, 512, 1000))


# Expansion, filters, how many blocks, the stride of the first: table 2 of Sandler et al., 2018.
_MOBILE = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1))
_MOBILE_END = ((6, 160, 3, 2), (6, 320, 1, 1))


def mobilenet_v2(size: int = 224) -> Any:
    """Build MobileNet-V2 with its norms folded into the convolutions. Sandler et al., 2018."""
    g = Graph(1)

    def relu6(x: str) -> str:
        low, high = (g.weight(np.array(v, np.float32)) for v in (0, 6))
        return g.op("Clip", x, low, high)

    x, inputs = relu6(g.conv("x", 3, 32, 3, 2)), 32
    for factor, filters, count, first in (*_MOBILE, *_MOBILE_END):
        for block in range(count):
            stride, inner = first if block == 0 else 1, inputs * factor
            y = relu6(g.conv(x, inputs, inner, 1)) if factor > 1 else x
            y = relu6(g.conv(y, inner, inner, 3, stride, inner))
            y = g.conv(y, inner, filters, 1)
            x = g.op("Add", x, y) if stride == 1 and inputs == filters else y
            inputs = filters
    return g.model((1, 3, size, size), _head(g, relu6(g.conv(x, 320, 1280, 1)), 1280, 1000))


# Expanded channels, filters, stride: as in the small MobileNet-V3 (Howard et al., 2019, table 2).
_SQUEEZED = ((16, 16, 2), (72, 24, 2), (96, 40, 2), (240, 40, 1), (240, 40, 1), (120, 48, 1))
_SQUEEZED_END = ((288, 96, 2), (576, 96, 1))


def squeezed(size: int = 224) -> Any:
    """Build a network of depthwise blocks with squeeze and excitation. Hu et al., 2018."""
    g = Graph(4)

    def excited(x: str, channels: int) -> str:
        few = max(8, channels // 4)
        squeezed = g.op("Relu", g.conv(g.op("GlobalAveragePool", x), channels, few, 1))
        return g.op("Mul", x, g.op("HardSigmoid", g.conv(squeezed, few, channels, 1)))

    x, inputs = g.op("Relu", g.conv("x", 3, 16, 3, 2)), 16
    for inner, filters, stride in (*_SQUEEZED, *_SQUEEZED_END):
        y = g.op("Relu", g.conv(x, inputs, inner, 1))
        y = excited(g.op("Relu", g.conv(y, inner, inner, 5, stride, inner)), inner)
        y = g.conv(y, inner, filters, 1)
        x = g.op("Add", x, y) if stride == 1 and inputs == filters else y
        inputs = filters
    return g.model((1, 3, size, size), _head(g, g.op("Relu", g.conv(x, 96, 576, 1)), 576, 1000))


def bert2(tokens: int = 128, width: int = 768, heads: int = 12) -> Any:
    """Build two layers of BERT's encoder. Devlin et al., 2019."""
    g = Graph(2)
    each = width // heads
    shape = g.weight(np.array([1, tokens, heads, each]))
    flat = g.weight(np.array([1, tokens, width]))
    scale, root, one, half = (
        g.weight(np.array(v, np.float32)) for v in (each**-0.5, 2**0.5, 1, 0.5)
    )

    def norm(x: str) -> str:
        ones, zeros = (g.weight(np.full(width, v, np.float32)) for v in (1, 0))
        return g.op("LayerNormalization", x, ones, zeros, axis=-1, epsilon=1e-5)

    def split(x: str, order: list[int]) -> str:
        return g.op("Transpose", g.op("Reshape", g.linear(x, width, width), shape), perm=order)

    x = "x"
    for _ in range(2):
        query, key, value = (split(x, o) for o in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = g.op("Mul", g.op("MatMul", query, key), scale)
        mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), value)
        mixed = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), flat)
        x = norm(g.op("Add", x, g.linear(mixed, width, width)))
        inner = g.linear(x, width, 4 * width)
        gate = g.op("Add", g.op("Erf", g.op("Div", inner, root)), one)
        inner = g.op("Mul", g.op("Mul", inner, gate), half)
        x = norm(g.op("Add", x, g.linear(inner, 4 * width, width)))
    return g.model((1, tokens, width), x)


def feed_forward(rows: int, layers: int = 4, width: int = 2048, inner: int = 5504) -> Any:
    """Build products with weights of 4 bits (MatMulNBits), as many as in a decoder of 90M."""
    g = Graph(3)

    def product(x: str, depth: int, columns: int) -> str:
        blocks = depth // 32
        packed = g.weight(g.random.integers(0, 256, (columns, blocks, 16)).astype(np.uint8))
        scale = g.weight((g.random.random((columns, blocks)) * depth**-0.5).astype(np.float32))
        sizes: dict[str, Any] = {"K": depth, "N": columns, "bits": 4, "block_size": 32}
        # The model allows products of 8-bit integers; PyC's are those of f32.
        return g.op(
            "MatMulNBits", x, packed, scale, domain="com.microsoft", accuracy_level=4, **sizes
        )

    x = "x"
    for _ in range(layers):
        x = g.op("Add", x, product(g.op("Relu", product(x, width, inner)), inner, width))
    return g.model((rows, width), x)


def in_halves(model: Any, dtype: str) -> Any:
    """Return a model whose weights, inputs and results are f16 or bf16 in place of f32."""
    element = {"f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}[dtype]
    half = onnx.ModelProto.FromString(model.SerializeToString())
    for weight in half.graph.initializer:
        if weight.data_type == TensorProto.FLOAT:
            numbers = numpy_helper.to_array(weight).astype(DTYPES[dtype])
            weight.CopyFrom(numpy_helper.from_array(numbers, weight.name))
    for value in (*half.graph.input, *half.graph.output):
        value.type.tensor_type.elem_type = element
    del half.graph.value_info[:]
    return onnx.shape_inference.infer_shapes(half)


@dataclass(frozen=True)
class Quantized:
    """A network, and what is made of it: ``static`` and ``dynamic`` by onnxruntime, or a half type.

    "" for one that is written so.
    """

    build: Callable[[], Any]
    how: str = "static"


NETWORKS: Mapping[str, Quantized] = {
    "resnet18-int8": Quantized(resnet18),
    "mobilenet-v2-int8": Quantized(mobilenet_v2),
    "squeezed-int8": Quantized(squeezed),
    "bert2-int8": Quantized(bert2),
    "bert2-dynamic": Quantized(bert2, "dynamic"),
    "bert2-f16": Quantized(bert2, "f16"),
    "bert2-bf16": Quantized(bert2, "bf16"),
    "resnet18-f16": Quantized(resnet18, "f16"),
    "mobilenet-v2-f16": Quantized(mobilenet_v2, "f16"),
    "feed-forward-4bit-1": Quantized(lambda: feed_forward(1), ""),
    "feed-forward-4bit-64": Quantized(lambda: feed_forward(64), ""),
}


def sample(model: Any, seed: int = 0) -> np.ndarray:
    """Return random numbers for the input of a model."""
    dims = model.graph.input[0].type.tensor_type.shape.dim
    values = np.random.default_rng(seed).normal(size=[d.dim_value for d in dims])
    return values.astype(np.float32)


def export(name: str, folder: Path) -> Path:
    """Write one network, and its float twin where it is quantized; the path of the former."""
    from onnxruntime.quantization import (  # pyright: ignore
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )

    path, network = folder / f"{name}.onnx", NETWORKS[name]
    if path.exists():
        return path
    model, source = network.build(), folder / f"{name}.f32.onnx"
    if not network.how or network.how in HALVES:
        onnx.save(in_halves(model, network.how) if network.how else model, path)
        return path
    onnx.save(model, source)
    partial = path.with_suffix(".partial")
    if network.how == "dynamic":
        quantize_dynamic(source, partial, weight_type=QuantType.QInt8)
    else:

        class Reader(CalibrationDataReader):
            left: Iterator[dict[str, np.ndarray]] = iter(
                [{"x": sample(model, seed)} for seed in range(_CALIBRATIONS)]
            )

            def get_next(self) -> Any:
                return next(self.left, None)

        quantize_static(
            source, partial, Reader(), quant_format=QuantFormat.QDQ, per_channel=True,
            activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
        )  # fmt: skip
    partial.replace(path)
    return path


def _reference(path: Path) -> str:
    """Return what a model's results are compared with, as `pyc-bench model --reference`."""
    if ".f32" in path.suffixes:
        return "auto"
    return "numpy" if "f16" in path.stem else "onnxruntime"


def measured(paths: Sequence[Path], rounds: int, before: Report | None = None) -> Report:
    """Run each model under PyC and its peers; one report of all, and of those measured `before`.

    Raises PycError (RUNTIME_FAILED) for a run that fails, with its output.
    """
    reports, peers = [], [name for name in PEERS if find_spec(name) is not None]
    for path in paths:
        kind = _reference(path)
        with TemporaryDirectory(prefix="pyc-bench-") as folder:
            out = Path(folder) / "report.json"
            command = [sys.executable, "-m", "pyc_mlir.tools.pyc_bench", "model", str(path)]
            command += ["--json", str(out), "--rounds", str(rounds), "--reference", kind]
            done = run_child([*command, *(["--against", ",".join(peers)] if peers else [])])
            if done.returncode != 0:
                raise PycError(
                    ReasonCode.RUNTIME_FAILED,
                    where=path.name,
                    expected="a measurement",
                    got=f"status {done.returncode}:\n{done.stdout}{done.stderr}",
                )
            print(done.stdout, flush=True)
            reports.append(Report.load(out))
    named = zip(paths, reports, strict=True)
    records = [
        {**record, "network": path.stem, "batch": 1} for path, r in named for record in r.records
    ]
    stems = [path.stem for path in paths]
    settings: dict[str, Any] = {"models": stems, "rounds": rounds, "peers": peers}
    made = Report("zoo", reports[0].environment, settings, records)
    if before is None:
        return made
    compare(before, made)  # which refuses another environment
    kept = [record for record in before.records if record["network"] not in stems]
    models = list(dict.fromkeys(record["network"] for record in (*kept, *records)))
    return replace(made, settings={**settings, "models": models}, records=[*kept, *records])


def main(arguments: Sequence[str]) -> int:
    """Write the models asked for, and measure them where a report is asked for."""
    parser = argparse.ArgumentParser(__name__, description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--models", default=",".join(NETWORKS))
    parser.add_argument(
        "--json",
        type=Path,
        metavar="OUT",
        help="measure, and store the records beside those of other models there",
    )
    parser.add_argument("--rounds", type=int, default=9)
    known = parser.parse_args(arguments)
    known.folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in known.models.split(","):
        path = export(name, known.folder)
        print(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB", flush=True)
        twin = path.with_suffix(".f32.onnx")
        paths += [path, *([twin] if twin.exists() else [])]
    if known.json is not None:
        before = Report.load(known.json) if known.json.exists() else None
        measured(paths, known.rounds, before).save(known.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
