"""A dozen pyc programs with memory to plan, as bodies for a builder, and how to make modules."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from compiled import add_function

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.types import DTYPES, TensorType, tensor

Body = Callable[..., Any]
_rng = np.random.default_rng(7)


def weights(*shape: int) -> np.ndarray:
    return (_rng.normal(size=shape) / np.sqrt(shape[0])).astype(np.float32)


W, W2, V = weights(16, 16), weights(16, 16), weights(16)
WIDE, NARROW = weights(16, 64), weights(64, 16)
FILTERS, SECOND = weights(4, 3, 3, 3), weights(4, 4, 3, 3)
X = tensor("f32", 16, 16)


def mlp(b, x):
    for _ in range(3):
        x = b.matmul(b.relu(b.add(b.matmul(x, WIDE), np.float32(0.5))), NARROW)
    return x


def residual(b, x):
    for weight in (W, W2, W):
        x = b.add(b.relu(b.add(b.matmul(x, weight), V)), x)
    return x


def encoder_layer(b, x):
    y = b.layernorm(x, V, V)
    scores = b.matmul(b.matmul(y, W), b.transpose(b.matmul(y, W2), permutation=(1, 0)))
    x = b.add(x, b.matmul(b.softmax(scores), b.matmul(y, W)))
    y = b.layernorm(x, V, V)
    return b.add(x, b.matmul(b.gelu(b.matmul(y, WIDE)), NARROW))


def attention(b, q, k):
    return b.add(b.attention(b.matmul(q, W), b.matmul(k, W2), k, scale=0.25), q)


def conv_net(b, x):
    y = b.relu(b.conv2d(x, FILTERS, pads=(1, 1, 1, 1)))
    y = b.max_pool2d(b.relu(b.conv2d(y, SECOND, pads=(1, 1, 1, 1))), kernel=(2, 2), strides=(2, 2))
    return b.reduce_mean(y, axes=(2, 3))


def branches(b, x):
    """Six branches, all summed up at the end: the order to avoid."""
    ends = [b.tanh(b.matmul(x, W * np.float32(i + 1))) for i in range(6)]
    total = ends[0]
    for end in ends[1:]:
        total = b.add(total, end)
    return total


def grown(b, x):
    """Large intermediates whose sums are small: an order and offsets matter."""
    made = [b.matmul(x, WIDE)]
    for _ in range(3):
        made.append(b.tanh(b.add(made[-1], made[0])))
    total = b.reduce_sum(made[0], axes=(0,))
    for value in made[1:]:
        total = b.add(total, b.reduce_sum(value, axes=(0,)))
    return total


def skips(b, x):
    """A small U-Net: halved on the way down, read again on the way up."""
    down = []
    for level in range(3):
        x = b.exp(b.neg(x))
        down.append(x)
        size = 16 >> (level + 1)
        x = b.slice(x, starts=(0, 0), stops=(size, 16), steps=(1, 1))
    for kept in reversed(down):
        x = b.add(b.concat(x, x, axis=0), kept)
    return x


def cheap_again(b, x):
    """A large value of one cheap op, needed at both ends of a long chain: worth recomputing."""
    wide = b.exp(b.broadcast_to(V.reshape(1, 16, 1), shape=(4, 16, 16)))
    y = b.add(x, b.reduce_sum(wide, axes=(0,)))
    for _ in range(5):
        gate = b.matmul(y, WIDE)
        y = b.matmul(b.tanh(b.mul(gate, b.sigmoid(b.matmul(y, WIDE)))), NARROW)
    return b.add(wide, y)


def pieces(b, x):
    halves = [b.slice(x, starts=(0, s), stops=(16, s + 8), steps=(1, 1)) for s in (0, 8)]
    y = b.concat(b.sigmoid(halves[1]), halves[0], axis=1)
    y = b.update_slice(y, b.mul(halves[0], halves[1]), np.array([0, 4]))
    padded = b.pad(y, low=(1, 2), high=(1, 0))
    return b.transpose(
        b.matmul(b.transpose(padded, permutation=(1, 0)), padded), permutation=(1, 0)
    )


def shapes(b, x):
    y = b.reshape(b.exp(x), shape=(4, 4, 16))
    y = b.transpose(y, permutation=(1, 2, 0))
    y = b.add(b.reshape(y, shape=(16, 16)), b.broadcast_to(V.reshape(1, 16), shape=(16, 16)))
    return b.reshape(b.log(b.mul(y, y)), shape=(256,))


def integers(b, x, n):
    mask = b.compare(x, b.tanh(x), predicate="gt")
    chosen = b.select(mask, b.mul(x, np.float32(2)), b.neg(x))
    rows = b.gather(chosen, n, axis=0)
    counts = b.add(b.cast(mask, dtype=DTYPES["i32"]), np.int32(1))
    return rows, b.reduce_sum(counts, axes=(0,)), b.cast(counts, dtype=DTYPES["f32"])


def shared_results(b, x):
    """Results that are read again, come twice, or are arguments and constants."""
    y = b.relu(b.matmul(x, W))
    z = b.add(y, x)
    return y, z, y, x, b.constant(V), b.mul(z, z)


@dataclass(frozen=True)
class Program:
    """A body, the types of its arguments, and a pipeline to run before memory is planned."""

    body: Body
    types: tuple[TensorType, ...] = (X,)
    first: str = ""

    def module(self) -> ir.Module:
        module = ir.Module.create()
        add_function(module, "main", self.types, self.body)
        return module

    def inputs(self) -> list[np.ndarray]:
        rng = np.random.default_rng(3)
        return [arrays(t, rng) for t in self.types]


def arrays(type_: TensorType, rng: np.random.Generator) -> np.ndarray:
    shape: Sequence[int] = [d or 1 for d in type_.shape]
    if type_.dtype == DTYPES["f32"]:
        return rng.normal(size=shape).astype(np.float32)
    return rng.integers(0, 16, shape).astype(type_.dtype)


PROGRAMS = {
    "mlp": Program(mlp),
    "residual": Program(residual),
    "residual, fused": Program(residual, first="pyc-fuse"),
    "encoder layer": Program(encoder_layer),
    "encoder layer, fused": Program(encoder_layer, first="pyc-fuse"),
    "attention": Program(attention, (X, X)),
    "conv net": Program(conv_net, (tensor("f32", 1, 3, 8, 8),)),
    "branches": Program(branches),
    "grown": Program(grown),
    "skips": Program(skips),
    "cheap again": Program(cheap_again),
    "pieces": Program(pieces),
    "shapes": Program(shapes),
    "integers": Program(integers, (X, tensor("i64", 5))),
    "shared results": Program(shared_results),
}
