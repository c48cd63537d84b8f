"""Forward plus backward, the gradients written out by hand: a loss and one gradient per weight.

Weights are arguments. The encoder layer is that of `parts` under the loss sum((y - target)^2) / 2.
Tests compare the gradients with finite differences in float64.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pyc_mlir import nn
from pyc_mlir.tools.bench.peers.workload import Workload
from pyc_mlir.tools.bench.workloads.parts import (
    EPSILON,
    EncoderShape,
    SeededWeights,
    encoder_weights,
    linear,
)

Named = Mapping[str, Any]


def mlp_step(rows: int, widths: Sequence[int]) -> Workload:
    """Make the mean cross entropy of an MLP with relu, and its gradients.

    A batch [rows, widths[0]] is classified into widths[-1] classes.
    """
    draw = SeededWeights(1)
    weights = {f"w{i}": draw.matrix(*pair, gain=1.4) for i, pair in enumerate(pairwise(widths))}
    weights |= {f"b{i}": draw.vector(size) for i, size in enumerate(widths[1:])}
    target = np.eye(widths[-1], dtype=np.float32)[np.arange(rows) % widths[-1]]
    return Workload("", mlp_gradients, (draw.activations(rows, widths[0]), target, weights))


def mlp_gradients(x: Any, target: Any, w: Named) -> dict[str, Any]:
    """Return the loss -sum(target * log softmax(logits)) / rows and its gradients.

    The target is one-hot.
    """
    last, rows = len(w) // 2 - 1, x.shape[0]
    inputs = [x]
    for i in range(last):
        inputs.append(nn.relu(inputs[i] @ w[f"w{i}"] + w[f"b{i}"]))
    logits = inputs[last] @ w[f"w{last}"] + w[f"b{last}"]
    results = {"loss": -np.sum(target * nn.log_softmax(logits)) / rows}
    gradient = (nn.softmax(logits) - target) / rows
    for i in reversed(range(last + 1)):
        results[f"w{i}"] = inputs[i].T @ gradient
        results[f"b{i}"] = np.sum(gradient, axis=0)
        if i:
            gradient = np.where(inputs[i] > 0, gradient @ w[f"w{i}"].T, 0)
    return results


def encoder_step(shape: EncoderShape) -> Workload:
    """Make one encoder layer forward and backward."""
    draw = SeededWeights(2)
    x, target = (draw.activations(shape.seq, shape.width) for _ in range(2))

    def step(x: Any, target: Any, w: Named) -> dict[str, Any]:
        return encoder_gradients(shape, x, target, w)

    return Workload("", step, (x, target, dict(encoder_weights(shape))))


def encoder_gradients(shape: EncoderShape, x: Any, target: Any, w: Named) -> dict[str, Any]:
    """Return the loss, and its gradients by x and by every weight but the key's bias.

    That one is zero: a term that all keys share changes no softmax.
    """
    found: dict[str, Any] = {}
    scale = 1 / math.sqrt(shape.depth)

    def linear_back(x: Any, g: Any, name: str) -> Any:
        found[f"{name}.weight"] = x.T @ g
        if name != "key":
            found[f"{name}.bias"] = np.sum(g, axis=0)
        return g @ w[f"{name}.weight"].T

    hat1, deviation1 = _standardized(x)
    normed1 = hat1 * w["norm1.scale"] + w["norm1.bias"]
    query, key, value = (shape.split(linear(w, n, normed1)) for n in ("query", "key", "value"))
    weight = nn.softmax(query @ key.transpose(0, 2, 1) * scale)
    mixed = shape.joined(weight @ value)
    middle = x + linear(w, "out", mixed)
    hat2, deviation2 = _standardized(middle)
    normed2 = hat2 * w["norm2.scale"] + w["norm2.bias"]
    hidden = linear(w, "up", normed2)
    active = nn.gelu(hidden)
    difference = middle + linear(w, "down", active) - target
    loss = np.sum(difference * difference) / 2

    g = linear_back(active, difference, "down") * _gelu_slope(hidden)
    g = linear_back(normed2, g, "up")
    g_middle = difference + _norm_back(g, hat2, deviation2, w["norm2.scale"], "norm2", found)
    g_mixed = shape.split(linear_back(mixed, g_middle, "out"))
    g_weight = g_mixed @ value.transpose(0, 2, 1)
    g_scores = weight * (g_weight - np.sum(g_weight * weight, axis=-1, keepdims=True)) * scale
    g = linear_back(normed1, shape.joined(weight.transpose(0, 2, 1) @ g_mixed), "value")
    g = g + linear_back(normed1, shape.joined(g_scores @ key), "query")
    g = g + linear_back(normed1, shape.joined(g_scores.transpose(0, 2, 1) @ query), "key")
    g_x = g_middle + _norm_back(g, hat1, deviation1, w["norm1.scale"], "norm1", found)
    return {"loss": loss, "x": g_x, **found}


def _standardized(x: Any) -> tuple[Any, Any]:
    """(x - mean) / deviation over the last axis, and 1 / deviation [..., 1]."""
    centred = x - np.mean(x, axis=-1, keepdims=True)
    inverse = nn.rsqrt(np.mean(centred * centred, axis=-1, keepdims=True) + EPSILON)
    return centred * inverse, inverse


def _norm_back(g: Any, hat: Any, inverse: Any, scale: Any, name: str, found: dict[str, Any]) -> Any:
    """Return the gradient by layernorm's operand; those by its scale and bias go to `found`."""
    found[f"{name}.scale"] = np.sum(g * hat, axis=0)
    found[f"{name}.bias"] = np.sum(g, axis=0)
    g = g * scale
    along = np.mean(g * hat, axis=-1, keepdims=True)
    return inverse * (g - np.mean(g, axis=-1, keepdims=True) - hat * along)


def _gelu_slope(x: Any) -> Any:
    """d/dx x/2 (1 + erf(x / sqrt 2))."""
    density = np.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return 0.5 * (1 + nn.erf(x * math.sqrt(0.5))) + x * density
