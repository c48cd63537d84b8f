"""Trains the two demo models on handwritten digits and writes them as ONNX.

    python -m pyc_mlir.tools.demo.train [--out FOLDER]

Seeded; takes less than a minute on two cores. The MLP is scikit-learn's; the convolutional
network is trained here with numpy: forward, backward and Adam (Kingma and Ba, 2015). Both models
take `image` f32 [batch, 1, 8, 8] and give `scores` f32 [batch, 10].
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from pyc_mlir.tools.demo.digits import CLASSES, MODELS, DigitImages, load_digits

SEED = 1
EPOCHS = 20
BATCH = 32
LEARNING_RATE = 2e-3
OPSET = 17

Weights = dict[str, np.ndarray]


def im2col(x: np.ndarray) -> np.ndarray:
    """Return the 3x3 neighbourhoods of x [n, c, h, w], zeros around: [n, h, w, c * 9]."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    n, c, h, w = x.shape
    return views.transpose(0, 2, 3, 1, 4, 5).reshape(n, h, w, c * 9)


def col2im(columns: np.ndarray, channels: int) -> np.ndarray:
    """Apply the adjoint of `im2col`: add up neighbourhoods where they overlap."""
    n, h, w, _ = columns.shape
    patches = columns.reshape(n, h, w, channels, 3, 3)
    out = np.zeros((n, channels, h + 2, w + 2), columns.dtype)
    for i in range(3):
        for j in range(3):
            out[:, :, i : i + h, j : j + w] += patches[..., i, j].transpose(0, 3, 1, 2)
    return out[:, :, 1:-1, 1:-1]


class ConvLayer:
    """A 3x3 convolution with padding 1 and a rectifier."""

    def __init__(self, name: str, weights: Weights) -> None:
        self.name, self.weights = name, weights

    def forward(self, x: np.ndarray) -> np.ndarray:
        """[n, c, h, w] -> [n, f, h, w]."""
        kernel, bias = self.weights[f"{self.name}.weight"], self.weights[f"{self.name}.bias"]
        self.channels, self.columns = x.shape[1], im2col(x)
        out = self.columns @ kernel.reshape(len(kernel), -1).T + bias
        self.out = np.maximum(out, 0).transpose(0, 3, 1, 2)
        return self.out

    def backward(self, gradient: np.ndarray, into: Weights) -> np.ndarray:
        """Return the gradient of x; those of the weights go into `into`."""
        kernel = self.weights[f"{self.name}.weight"]
        flat = (gradient * (self.out > 0)).transpose(0, 2, 3, 1)
        rows = flat.reshape(-1, len(kernel))
        columns = self.columns.reshape(len(rows), -1)
        into[f"{self.name}.weight"] = (rows.T @ columns).reshape(kernel.shape)
        into[f"{self.name}.bias"] = rows.sum(0)
        return col2im(flat @ kernel.reshape(len(kernel), -1), self.channels)


class MaxPool:
    """The maximum of each 2x2 block."""

    def forward(self, x: np.ndarray) -> np.ndarray:
        """[n, c, h, w] -> [n, c, h/2, w/2]."""
        n, c, h, w = x.shape
        blocks = x.reshape(n, c, h // 2, 2, w // 2, 2)
        out = blocks.max((3, 5), keepdims=True)
        winners = blocks == out
        self.share = winners / winners.sum((3, 5), keepdims=True, dtype=x.dtype)
        return out.reshape(n, c, h // 2, w // 2)

    def backward(self, gradient: np.ndarray, into: Weights) -> np.ndarray:
        """Share a block's gradient among its winners."""
        n, c, h, w = gradient.shape
        spread = gradient[:, :, :, None, :, None] * self.share
        return spread.reshape(n, c, h * 2, w * 2)


class Dense:
    """x @ weight + bias on flattened x."""

    def __init__(self, name: str, weights: Weights) -> None:
        self.name, self.weights = name, weights

    def forward(self, x: np.ndarray) -> np.ndarray:
        """[n, ...] -> [n, units]."""
        self.shape, self.x = x.shape, x.reshape(len(x), -1)
        return self.x @ self.weights[f"{self.name}.weight"] + self.weights[f"{self.name}.bias"]

    def backward(self, gradient: np.ndarray, into: Weights) -> np.ndarray:
        """Return the gradient of x; those of the weights go into `into`."""
        into[f"{self.name}.weight"] = self.x.T @ gradient
        into[f"{self.name}.bias"] = gradient.sum(0)
        return (gradient @ self.weights[f"{self.name}.weight"].T).reshape(self.shape)


def initial_weights(rng: np.random.Generator) -> Weights:
    """Draw He's initialization (2015) of the network 1 -> 16 -> pool -> 32 -> pool -> 10."""
    shapes = {"conv1": (16, 1, 3, 3), "conv2": (32, 16, 3, 3), "dense": (32 * 2 * 2, CLASSES)}
    weights: Weights = {}
    for name, shape in shapes.items():
        inputs = shape[0] if name == "dense" else int(np.prod(shape[1:]))
        values = rng.normal(0, np.sqrt(2 / inputs), shape)
        weights[f"{name}.weight"] = values.astype(np.float32)
        units = shape[1] if name == "dense" else shape[0]
        weights[f"{name}.bias"] = np.zeros(units, np.float32)
    return weights


def batches(
    images: DigitImages, rng: np.random.Generator
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield every image once, in random order."""
    order = rng.permutation(len(images.labels))
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        yield images.pixels[chosen], images.labels[chosen]


def cross_entropy_gradient(scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """d(mean cross-entropy of softmax)/d(scores)."""
    e = np.exp(scores - scores.max(1, keepdims=True))
    e /= e.sum(1, keepdims=True)
    e[np.arange(len(labels)), labels] -= 1
    return e / np.float32(len(labels))


class Adam:
    """Adam with the paper's constants."""

    def __init__(self, weights: Weights) -> None:
        self.step = 0
        self.first = {name: np.zeros_like(w) for name, w in weights.items()}
        self.second = {name: np.zeros_like(w) for name, w in weights.items()}

    def update(self, weights: Weights, gradients: Weights) -> None:
        """Take one step, in place."""
        self.step += 1
        for name, gradient in gradients.items():
            self.first[name] += (gradient - self.first[name]) * np.float32(0.1)
            self.second[name] += (gradient**2 - self.second[name]) * np.float32(0.001)
            first = self.first[name] / np.float32(1 - 0.9**self.step)
            second = self.second[name] / np.float32(1 - 0.999**self.step)
            weights[name] -= (
                np.float32(LEARNING_RATE) * first / (np.sqrt(second) + np.float32(1e-8))
            )


def train_cnn(images: DigitImages) -> Weights:
    """Return the weights after `EPOCHS` passes over the images."""
    rng = np.random.default_rng(SEED)
    weights = initial_weights(rng)
    conv1, conv2 = ConvLayer("conv1", weights), ConvLayer("conv2", weights)
    layers = (conv1, MaxPool(), conv2, MaxPool(), Dense("dense", weights))
    optimizer = Adam(weights)
    for _ in range(EPOCHS):
        for pixels, labels in batches(images, rng):
            value = pixels
            for layer in layers:
                value = layer.forward(value)
            gradient, gradients = cross_entropy_gradient(value, labels), {}
            for layer in reversed(layers):
                gradient = layer.backward(gradient, gradients)
            optimizer.update(weights, gradients)
    return weights


def cnn_model(images: DigitImages) -> onnx.ModelProto:
    """Make the convolutional network as ONNX."""
    pool: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}
    conv: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = []
    value = "image"
    for name in ("conv1", "conv2"):
        operands = [value, f"{name}.weight", f"{name}.bias"]
        nodes.append(helper.make_node("Conv", operands, [f"{name}.out"], name, **conv))
        relu, value = f"relu_{name}", f"pool_{name}.out"
        nodes.append(helper.make_node("Relu", [f"{name}.out"], [f"{relu}.out"], relu))
        nodes.append(helper.make_node("MaxPool", [f"{relu}.out"], [value], f"pool_{name}", **pool))
    nodes.append(helper.make_node("Flatten", [value], ["flat"], "flatten"))
    operands = ["flat", "dense.weight", "dense.bias"]
    nodes.append(helper.make_node("Gemm", operands, ["scores"], "dense"))
    return digits_model("digits_cnn", nodes, train_cnn(images))


def mlp_model(images: DigitImages) -> onnx.ModelProto:
    """scikit-learn's perceptron 64 -> 128 -> 64 -> 10 as ONNX."""
    from sklearn.neural_network import MLPClassifier

    fitted = MLPClassifier((128, 64), max_iter=200, random_state=SEED)
    fitted.fit(images.pixels.reshape(-1, 64), images.labels)
    nodes = [helper.make_node("Flatten", ["image"], ["value0"], "flatten")]
    weights: Weights = {}
    last = len(fitted.coefs_) - 1
    for i, (matrix, bias) in enumerate(zip(fitted.coefs_, fitted.intercepts_, strict=True)):
        weights[f"dense{i}.weight"] = matrix.astype(np.float32)
        weights[f"dense{i}.bias"] = bias.astype(np.float32)
        out = "scores" if i == last else f"dense{i}.out"
        operands = [f"value{i}", f"dense{i}.weight", f"dense{i}.bias"]
        nodes.append(helper.make_node("Gemm", operands, [out], f"dense{i}"))
        if i < last:
            nodes.append(helper.make_node("Relu", [out], [f"value{i + 1}"], f"relu{i}"))
    return digits_model("digits_mlp", nodes, weights)


def digits_model(name: str, nodes: Sequence[onnx.NodeProto], weights: Weights) -> onnx.ModelProto:
    """Make a checked model from `image` to `scores` with a dynamic batch."""
    floats = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("image", floats, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("scores", floats, ["batch", CLASSES])],
        [numpy_helper.from_array(value, key) for key, value in weights.items()],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
        producer_name="pyc-mlir",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def reference_accuracy(model: onnx.ModelProto, images: DigitImages) -> float:
    """Return the accuracy as onnx's reference evaluator computes it."""
    from onnx.reference import ReferenceEvaluator

    (scores,) = ReferenceEvaluator(model).run(None, {"image": images.pixels})
    return images.accuracy(np.asarray(scores))


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, write, and print each model's accuracy."""
    parser = argparse.ArgumentParser(description="Train the demo's models and write them as ONNX.")
    parser.add_argument("--out", type=Path, default=MODELS["mlp"].parent, help="where to write")
    out = parser.parse_args(arguments).out
    out.mkdir(parents=True, exist_ok=True)
    train, held_out = load_digits()
    for name, make in (("mlp", mlp_model), ("cnn", cnn_model)):
        model = make(train)
        path = out / MODELS[name].name
        onnx.save_model(model, path)
        share = [100 * reference_accuracy(model, images) for images in (train, held_out)]
        print(f"{path}: {share[0]:.2f}% of trained, {share[1]:.2f}% of held-out images")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
