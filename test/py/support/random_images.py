"""Random image networks as ONNX models: layers of published ones, in any order, of odd sizes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ACTIVATIONS = ("Relu", "Sigmoid", "HardSwish", "LeakyRelu", "Tanh", "Softplus")
OPSET = 18


@dataclass
class Network:
    """A model under construction; `x` is the newest image, of `shape` [N, C, H, W].

    `unknown` are letters of `nHW` whose sizes the model does not state.
    """

    random: Random
    shape: list[int]
    x: str = "image"
    unknown: Sequence[str] = ()
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, array: np.ndarray) -> str:
        """Add a constant; return its name."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def normal(self, *shape: int, scale: float = 1.0) -> str:
        """Add normal weights of a standard deviation; return their name."""
        rng = np.random.default_rng(self.random.getrandbits(32))
        return self.constant((rng.normal(size=shape) * scale).astype(np.float32))

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return the name of its result."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def conv(self, filters: int, kernel: tuple[int, int], groups: int = 1, stride: int = 1) -> None:
        """Convolve with padding that keeps at least one pixel."""
        n, c, *image = self.shape
        pads = [self.random.randint(0, k // 2 + 1) for k in kernel * 2]
        dilation = self.random.choice((1, 1, 1, 2))
        spans = [(k - 1) * dilation + 1 for k in kernel]
        sizes = [image[i] + pads[i] + pads[i + 2] - spans[i] for i in (0, 1)]
        if min(sizes) < 0:
            return
        scale = (c // groups * kernel[0] * kernel[1]) ** -0.5
        inputs = [self.x, self.normal(filters, c // groups, *kernel, scale=scale)]
        inputs += [self.normal(filters)] * (self.random.random() < 0.7)
        self.x = self.add(
            "Conv", *inputs, pads=pads, strides=[stride] * 2, dilations=[dilation] * 2, group=groups
        )
        self.shape = [n, filters, *(size // stride + 1 for size in sizes)]

    def model(self, shape: Sequence[int | str]) -> onnx.ModelProto:
        """Return the model of an image of that shape; names are sizes of each call."""
        image = helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)
        result = helper.make_tensor_value_info(self.x, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "network", [image], [result], self.weights)
        opset = [helper.make_opsetid("", OPSET)]
        made = helper.make_model(graph, opset_imports=opset, ir_version=9)
        return onnx.shape_inference.infer_shapes(made)


def convolve(net: Network) -> None:
    """Add a convolution: dense, pointwise, grouped or depthwise."""
    c, pick = net.shape[1], net.random
    kernel = pick.choice(((1, 1), (3, 3), (3, 3), (5, 5), (1, 3), (7, 7), (2, 2)))
    groups = pick.choice((1, 1, 1, c, *(g for g in (2, 3, 4) if c % g == 0)))
    filters = pick.choice((c, 8, 16, 24, 33)) if groups == 1 else c * pick.choice((1, 1, 2))
    net.conv(filters, kernel, groups, pick.choice((1, 1, 1, 2)))


def normalize(net: Network) -> None:
    """Add a batch normalization, with the statistics of training."""
    c = net.shape[1]
    rng = np.random.default_rng(net.random.getrandbits(32))
    variance = net.constant(rng.uniform(0.5, 2, c).astype(np.float32))
    net.x = net.add(
        "BatchNormalization", net.x, net.normal(c), net.normal(c), net.normal(c), variance
    )


def activate(net: Network) -> None:
    """Add an activation, at times clipped or spelled as x * sigmoid(x)."""
    kind = net.random.choice((*ACTIVATIONS, "swish", "clip"))
    if kind == "swish":
        net.x = net.add("Mul", net.x, net.add("Sigmoid", net.x))
    elif kind == "clip":
        bounds = [net.constant(np.array(b, np.float32)) for b in (-0.5, 6)]
        net.x = net.add("Clip", net.x, *bounds)
    else:
        net.x = net.add(kind, net.x)


def pool(net: Network) -> None:
    """Add a pooling window, with padding and partial windows."""
    n, c, h, w = net.shape
    kernel, stride = net.random.choice((2, 3)), net.random.choice((1, 2))
    pad, ceil = net.random.randint(0, kernel // 2), net.random.random() < 0.3
    ceil = ceil and not {"H", "W"} & set(net.unknown)  # Partial windows need sizes.
    if min(h, w) + 2 * pad < kernel:
        return
    kind = net.random.choice(("MaxPool", "AveragePool"))
    more = {"count_include_pad": net.random.randint(0, 1)} if kind == "AveragePool" else {}
    net.x = net.add(
        kind, net.x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[pad] * 4,
        ceil_mode=int(ceil), **more,
    )  # fmt: skip
    net.shape = [
        n,
        c,
        *(_pooled(size + 2 * pad - kernel, stride, ceil, size + pad) for size in (h, w)),
    ]


def _pooled(room: int, stride: int, ceil: bool, end: int) -> int:
    """The number of windows; a partial one that would begin in the padding after is left out."""
    count = -(-room // stride) + 1 if ceil else room // stride + 1
    return count - 1 if ceil and (count - 1) * stride >= end else count


def residual(net: Network) -> None:
    """Add a branch that keeps the shape, and what it began from."""
    begin, shape = net.x, list(net.shape)
    net.conv(shape[1], (1, 1))
    activate(net)
    if net.shape != shape:
        net.x, net.shape = begin, shape
    net.x = net.add("Add", net.x, begin)


def excite(net: Network) -> None:
    """Scale channels by a function of their means."""
    c = net.shape[1]
    mean = net.add("GlobalAveragePool", net.x)
    squeezed = net.add("Conv", mean, net.normal(max(1, c // 4), c, 1, 1, scale=c**-0.5))
    scale = net.add("Conv", net.add("Relu", squeezed), net.normal(c, max(1, c // 4), 1, 1))
    net.x = net.add("Mul", net.x, net.add("Sigmoid", scale))


def join(net: Network) -> None:
    """Concatenate two branches of equal images."""
    begin, shape = net.x, list(net.shape)
    net.conv(net.random.choice((4, 8)), (1, 1))
    if net.shape[2:] == shape[2:]:
        net.x = net.add("Concat", net.x, begin, axis=1)
        net.shape[1] += shape[1]


def grow(net: Network) -> None:
    """Double an image: nearest, linear, or by a transposed convolution."""
    n, c, h, w = net.shape
    if h * w > 400:
        return
    kind = net.random.choice(("nearest", "linear", "transposed"))
    if kind == "transposed":
        weights = net.normal(c, 8, 2, 2, scale=c**-0.5)
        net.x, c = net.add("ConvTranspose", net.x, weights, strides=[2, 2]), 8
    else:
        scales = net.constant(np.array([1, 1, 2, 2], np.float32))
        net.x = net.add("Resize", net.x, "", scales, mode=kind)
    net.shape = [n, c, 2 * h, 2 * w]


BLOCKS = {
    convolve: 6, normalize: 2, activate: 3, pool: 1, residual: 2, excite: 1, join: 1, grow: 1,
}  # fmt: skip


def network(seed: int, blocks: int = 8) -> tuple[onnx.ModelProto, np.ndarray]:
    """Return a model of one image and an input, f32[n, c, h, w]; the same ones for a seed."""
    random = Random(seed)
    shape = [random.choice((1, 1, 2, 3)), random.choice((1, 3, 4, 16)), random.randint(7, 33), 0]
    shape[3] = random.choice((shape[2], random.randint(7, 33)))
    # Half of the networks have sizes that are known in a call only.
    unknown = Random(seed).sample("nHW", seed // 2 % 2 * (1 + seed // 4 % 3))
    net = Network(random, list(shape), unknown=unknown)
    convolve(net)
    for block in random.choices(list(BLOCKS), list(BLOCKS.values()), k=blocks):
        block(net)
    if random.random() < 0.5:
        flat = net.add("Flatten", net.add("GlobalAveragePool", net.x))
        weights = net.normal(net.shape[1], 10, scale=net.shape[1] ** -0.5)
        net.x = net.add("Softmax", net.add("Gemm", flat, weights, net.normal(10)), axis=1)
    if net.x == "image":
        activate(net)
    names = zip("ncHW", shape, strict=True)
    made = net.model([name if name in unknown else size for name, size in names])
    return made, np.random.default_rng(seed).normal(size=shape).astype(np.float32)
