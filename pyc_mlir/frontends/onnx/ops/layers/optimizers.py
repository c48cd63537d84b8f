"""Steps of optimizers, of ONNX's training preview: new weights and states from gradients.

Inputs: the rate R, the number of steps T, then weights, gradients and states, several of each.
"""

from typing import Any

import numpy as np

from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node

_DOMAIN = "ai.onnx.preview.training"


def _tensors(n: OnnxNode, kinds: int) -> list[tuple[Any, ...]]:
    """Return for each weight itself, its gradient and its states."""
    count = (n.count - 2) // kinds
    return [tuple(n.x(2 + k * count + i) for k in range(kinds)) for i in range(count)]


def _ordered(results: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return all new weights, then all first states, ..."""
    return tuple(r for kind in zip(*results, strict=True) for r in kind)


def _regular(n: OnnxNode, x: Any, gradient: Any) -> Any:
    """Add the gradient of the weight's norm to the gradient."""
    b = n.b
    return b.add(b.mul(x, b.scalar(n.attr("norm_coefficient", 0.0), x)), gradient)


def _started(n: OnnxNode) -> Any:
    """i1: steps were made before."""
    return n.b.compare(n.x(1), n.b.constant(np.array(0, np.int64)), predicate="gt")


@node(f"{_DOMAIN}.Momentum")
def momentum(n: OnnxNode) -> Any:
    """v' = alpha v + beta g; x' = x - R v', or x - R (g + alpha v') after Nesterov."""
    b, results = n.b, []
    n.x(0)
    for x, gradient, v in _tensors(n, 3):
        g = _regular(n, x, gradient)
        one, beta = (b.scalar(s, x) for s in (1.0, n.attr("beta")))
        alpha = b.scalar(n.attr("alpha"), x)
        new = b.add(b.mul(alpha, v), b.mul(b.select(_started(n), beta, one), g))
        nesterov = n.attr("mode") == "nesterov"
        direction = b.add(g, b.mul(alpha, new)) if nesterov else new
        results.append((b.sub(x, b.mul(b.convert(n.x(0), b.type_of(x).dtype), direction)), new))
    return _ordered(results)


@node(f"{_DOMAIN}.Adagrad")
def adagrad(n: OnnxNode) -> Any:
    """h' = h + g^2; x' = x - R / (1 + T decay) * g / (sqrt(h') + epsilon). Duchi et al., 2011."""
    b, results = n.b, []
    for x, gradient, h in _tensors(n, 3):
        dtype = b.type_of(x).dtype
        g = _regular(n, x, gradient)
        steps = b.mul(b.cast(n.x(1), dtype=dtype), b.scalar(n.attr("decay_factor", 0.0), x))
        rate = b.div(b.convert(n.x(0), dtype), b.add(b.scalar(1, x), steps))
        new = b.add(h, b.mul(g, g))
        root = b.add(b.sqrt(new), b.scalar(n.attr("epsilon", 0.0), x))
        results.append((b.sub(x, b.div(b.mul(rate, g), root)), new))
    return _ordered(results)


@node(f"{_DOMAIN}.Adam")
def adam(n: OnnxNode) -> Any:
    """Keep running means of gradients and their squares, without bias. Kingma and Ba, 2015."""
    b, results = n.b, []
    for x, gradient, v, h in _tensors(n, 4):
        dtype = b.type_of(x).dtype
        g = _regular(n, x, gradient)
        alpha, beta = n.attr("alpha", 0.9), n.attr("beta", 0.999)
        one = b.scalar(1, x)
        new_v = b.add(b.mul(b.scalar(alpha, x), v), b.mul(b.scalar(1 - alpha, x), g))
        squared = b.mul(b.scalar(1 - beta, x), b.mul(g, g))
        new_h = b.add(b.mul(b.scalar(beta, x), h), squared)
        root = b.add(b.sqrt(new_h), b.scalar(n.attr("epsilon", 0.0), x))
        steps = b.cast(n.x(1), dtype=dtype)
        grown = [b.sub(one, b.pow(b.scalar(s, x), steps)) for s in (alpha, beta)]
        rate = b.convert(n.x(0), dtype)
        unbiased = b.div(b.mul(rate, b.sqrt(grown[1])), grown[0])
        rate = b.select(_started(n), unbiased, rate)
        out = b.sub(x, b.div(b.mul(rate, new_v), root))
        after = b.scalar(1 - n.attr("norm_coefficient_post", 0.0), x)
        results.append((b.mul(after, out), new_v, new_h))
    return _ordered(results)
