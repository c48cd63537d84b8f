import numpy as np

from pyc_mlir import Tensor, nn

w = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)


def layer(x: Tensor["f32", 32, 64]):
    return nn.gelu(x @ w + 1.0) * 2.0


def soft(x: Tensor["f32", 32, 64]):
    return nn.softmax(x)
