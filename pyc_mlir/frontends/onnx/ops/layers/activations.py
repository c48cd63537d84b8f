"""Activation functions. Those without a pyc op are short compositions."""

from typing import Any

from pyc_mlir.dialects import functions
from pyc_mlir.frontends.onnx.shared.handler import OnnxNode, node


def where(n: OnnxNode, predicate: str, bound: float, yes: Any, no: Any) -> Any:
    """out = yes where x <predicate> bound, else no."""
    return n.b.select(n.b.compare(n.x(), n.number(bound), predicate=predicate), yes, no)


def _exp_minus_one(n: OnnxNode, x: Any) -> Any:
    """e^x - 1 for x <= 0; positive x are cut to 0, so that the branch not taken stays finite."""
    return functions.expm1(n.b, n.b.minimum(x, n.number(0)))


@node("Gelu")
def gelu(n: OnnxNode) -> Any:
    """pyc.gelu, exact or with tanh."""
    return n.b.gelu(n.x(), approximate=n.attr("approximate", "none"))


@node("LeakyRelu")
def leaky_relu(n: OnnxNode) -> Any:
    """out = alpha * x where x < 0, else x."""
    return where(n, "lt", 0, n.b.mul(n.x(), n.number(n.attr("alpha", 0.01))), n.x())


@node("PRelu")
def prelu(n: OnnxNode) -> Any:
    """out = slope * x where x < 0, else x."""
    return where(n, "lt", 0, n.b.mul(n.x(0), n.x(1)), n.x(0))


@node("Elu")
def elu(n: OnnxNode) -> Any:
    """out = alpha * (e^x - 1) where x < 0, else x."""
    bent = n.b.mul(n.number(n.attr("alpha", 1.0)), _exp_minus_one(n, n.x()))
    return where(n, "lt", 0, bent, n.x())


@node("Celu")
def celu(n: OnnxNode) -> Any:
    """out = max(0, x) + min(0, alpha * (e^(x/alpha) - 1))."""
    b, alpha = n.b, n.number(n.attr("alpha", 1.0))
    bent = b.mul(alpha, _exp_minus_one(n, b.div(n.x(), alpha)))
    return b.add(b.maximum(n.x(), n.number(0)), b.minimum(n.number(0), bent))


@node("Selu")
def selu(n: OnnxNode) -> Any:
    """out = gamma * x where x > 0, else gamma * alpha * (e^x - 1). Klambauer et al., 2017."""
    alpha, gamma = (
        n.attr("alpha", 1.67326319217681884765625),
        n.attr("gamma", 1.05070102214813232421875),
    )
    bent = n.b.mul(n.number(gamma * alpha), _exp_minus_one(n, n.x()))
    return where(n, "gt", 0, n.b.mul(n.number(gamma), n.x()), bent)


@node("ThresholdedRelu")
def thresholded_relu(n: OnnxNode) -> Any:
    """out = x where x > alpha, else 0."""
    return where(n, "gt", n.attr("alpha", 1.0), n.x(), n.number(0))


@node("Shrink")
def shrink(n: OnnxNode) -> Any:
    """out = x + bias where x < -lambd, x - bias where x > lambd, else 0."""
    bias, limit = n.number(n.attr("bias", 0.0)), n.attr("lambd", 0.5)
    inner = where(n, "gt", limit, n.b.sub(n.x(), bias), n.number(0))
    return where(n, "lt", -limit, n.b.add(n.x(), bias), inner)


@node("Softplus")
def softplus(n: OnnxNode) -> Any:
    """out = max(x, 0) + ln(1 + e^-|x|), which neither overflows nor loses small values."""
    return functions.softplus(n.b, n.x())


@node("Softsign")
def softsign(n: OnnxNode) -> Any:
    """out = x / (1 + |x|)."""
    return n.b.div(n.x(), n.b.add(n.number(1), n.b.abs(n.x())))


@node("Mish")
def mish(n: OnnxNode) -> Any:
    """out = x * tanh(softplus(x)). Misra, 2019."""
    return functions.mish(n.b, n.x())


@node("HardSigmoid")
def hard_sigmoid(n: OnnxNode) -> Any:
    """out = max(0, min(1, alpha * x + beta))."""
    return _hard_sigmoid(n, n.attr("alpha", 0.2), n.attr("beta", 0.5))


@node("HardSwish")
def hard_swish(n: OnnxNode) -> Any:
    """out = x * max(0, min(1, x / 6 + 0.5))."""
    return n.b.mul(n.x(), _hard_sigmoid(n, 1 / 6, 0.5))


def _hard_sigmoid(n: OnnxNode, alpha: float, beta: float) -> Any:
    b = n.b
    line = b.add(b.mul(n.x(), n.number(alpha)), n.number(beta))
    return b.clip(line, n.number(0), n.number(1))


@node("Softmax")
def softmax(n: OnnxNode) -> Any:
    """pyc.softmax along `axis`."""
    return n.b.softmax(n.x(), axis=n.attr("axis", -1))


@node("LogSoftmax")
def log_softmax(n: OnnxNode) -> Any:
    """pyc.log_softmax along `axis`."""
    return n.b.log_softmax(n.x(), axis=n.attr("axis", -1))


@node("Hardmax")
def hardmax(n: OnnxNode) -> Any:
    """out = 1 at the first maximum along `axis`, else 0."""
    b, axis = n.b, n.attr("axis", -1) % n.type().rank
    best = b.argmax(n.x(), axis=axis, keepdims=True)
    here = b.compare(b.iota_like(n.x(), axis), best, predicate="eq")
    return b.cast(here, dtype=n.type().dtype)
