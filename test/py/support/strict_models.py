"""Programs for test_strict.py, with kernels, plans, parts and dynamic dimensions in them."""

import numpy as np

from pyc_mlir import Tensor, nn

RNG = np.random.default_rng(7)


def _weights(*shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


W1, W2, Q, K, V, OUT = (_weights(*s) for s in ((64, 256), (256, 64), *[(64, 64)] * 4))
SCALE, BIAS = np.ones(64, np.float32), np.zeros(64, np.float32)
FILTERS = _weights(8, 3, 3, 3)


def encoder(x: Tensor["f32", 96, 64]):  # noqa: F821
    """Attention and a feed-forward block."""
    heads = nn.attention(x @ Q, x @ K, x @ V)
    y = nn.layernorm(x + heads @ OUT, SCALE, BIAS)
    return y + nn.gelu(y @ W1) @ W2


def images(x: Tensor["f32", 2, 3, 17, 19]):  # noqa: F821
    """A convolution and a reduction over all of it."""
    y = nn.relu(nn.conv2d(x, FILTERS))
    return np.sum(y, axis=(2, 3)), np.max(y)


def chain(x: Tensor["f32", 40, 64], y: Tensor["f32", 40, 64]):  # noqa: F821
    """Elementwise work, sums along both axes."""
    z = np.exp(-np.abs(x)) * np.tanh(y) + x * y
    return np.sum(z, axis=0), np.sum(z, axis=1), np.mean(z)


DOUBLES = RNG.standard_normal((301, 77))


def doubles(x: Tensor["f64", 64, 301]):  # noqa: F821
    """A product of which the reference, too, rounds in its last bit."""
    return x @ DOUBLES
