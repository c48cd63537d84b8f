"""Activation functions."""

from typing import Any

from pyc_mlir.dialects import functions
from pyc_mlir.dialects.functions import accumulated
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.torch.shared.handler import AtenCall, aten


@aten("relu.default", "silu.default")
def same(n: AtenCall) -> Any:
    """Build one pyc op."""
    return getattr(n.b, n.op)(n.x())


@aten("gelu.default")
def gelu(n: AtenCall) -> Any:
    """pyc.gelu, exact or with tanh."""
    return n.b.gelu(n.x(), approximate=n.arg("approximate", "none"))


@aten("softplus.default")
def softplus(n: AtenCall) -> Any:
    """out = ln(1 + e^(beta x)) / beta; x itself where beta x is above the threshold."""
    b, beta, threshold = n.b, n.static("beta", 1), n.static("threshold", 20)

    def formula(x: Any) -> Any:
        scaled = x if beta == 1 else b.mul(x, b.scalar(beta, x))
        smooth = functions.softplus(b, scaled)
        smooth = smooth if beta == 1 else b.div(smooth, b.scalar(beta, x))
        return b.select(b.compare(scaled, b.scalar(threshold, x), predicate="gt"), x, smooth)

    return accumulated(b, n.x(), formula)


@aten("mish.default")
def mish(n: AtenCall) -> Any:
    """out = x * tanh(softplus(x)). Misra, 2019."""
    return functions.mish(n.b, n.x())


@aten("elu.default")
def elu(n: AtenCall) -> Any:
    """out = scale * x where x > 0, else scale * alpha * (e^(x * input_scale) - 1)."""
    b = n.b
    alpha, scale, inner = (n.static(k, 1) for k in ("alpha", "scale", "input_scale"))

    def formula(x: Any) -> Any:
        low = functions.expm1(b, b.mul(x, b.scalar(inner, x)))
        low = b.mul(low, b.scalar(alpha * scale, x))
        positive = b.compare(x, b.scalar(0, x), predicate="gt")
        return b.select(positive, b.mul(x, b.scalar(scale, x)), low)

    return accumulated(b, n.x(), formula)


@aten("leaky_relu.default")
def leaky_relu(n: AtenCall) -> Any:
    """out = x where x > 0, else negative_slope * x."""
    b, x = n.b, n.x()
    low = b.mul(x, b.scalar(n.static("negative_slope", 0.01), x))
    return b.select(b.compare(x, b.scalar(0, x), predicate="gt"), x, low)


@aten("_prelu_kernel.default")
def prelu(n: AtenCall) -> Any:
    """out = x where x > 0, else weight * x."""
    b, x = n.b, n.x()
    low = b.mul(x, n.x("weight"))
    return b.select(b.compare(x, b.scalar(0, x), predicate="gt"), x, low)


@aten("hardtanh.default", "relu6.default")
def hardtanh(n: AtenCall) -> Any:
    """out = min(max(x, min_val), max_val)."""
    b, x = n.b, n.x()
    low, high = (0, 6) if n.op == "relu6" else (n.static("min_val", -1), n.static("max_val", 1))
    return b.clip(x, b.scalar(low, x), b.scalar(high, x))


@aten("hardsigmoid.default", "hardswish.default")
def hard(n: AtenCall) -> Any:
    """out = min(max(x + 3, 0), 6) / 6, times x for hardswish. Howard et al., 2019."""
    b = n.b

    def formula(x: Any) -> Any:
        gate = b.clip(b.add(x, b.scalar(3, x)), b.scalar(0, x), b.scalar(6, x))
        # torch's order: the product first.
        top = b.mul(x, gate) if n.op == "hardswish" else gate
        return b.div(top, b.scalar(6, x))

    return accumulated(b, n.x(), formula)


@aten("softmax.int", "_softmax.default", "log_softmax.int", "_log_softmax.default",
      "_safe_softmax.default")  # fmt: skip
def softmax(n: AtenCall) -> Any:
    """pyc.softmax or pyc.log_softmax along `dim`."""
    x = n.x("self", n.dtype)
    if not n.rank():
        return n.b.mul(x, n.b.scalar(0, x)) if "log" in n.op else n.b.div(x, x)
    op = n.b.log_softmax if "log" in n.op else n.b.softmax
    out = op(x, axis=n.axis())
    if n.op != "_safe_softmax":
        return out
    best = n.b.reduce_max(x, axes=(n.axis(),), keepdims=True)
    nothing = n.b.compare(best, n.b.scalar(float("-inf"), x), predicate="eq")
    return n.b.select(nothing, n.b.scalar(0, x), out)


@aten("glu.default")
def glu(n: AtenCall) -> Any:
    """out = a * sigmoid(b), the halves of x along `dim`. Dauphin et al., 2017."""
    from pyc_mlir.dialects.ops.movement import END
    from pyc_mlir.frontends.importing.shaping import take

    axis = n.axis("dim", -1)
    size = n.type().shape[axis]
    if size is None:
        raise unsupported("a dynamic dimension in halves: expected a static one")
    first, second = (
        take(n.b, n.x(), axis, start, stop) for start, stop in ((0, size // 2), (size // 2, END))
    )
    return n.b.mul(first, n.b.sigmoid(second))
