"""Matrix products."""

from typing import Any

from pyc_mlir.dialects.types import is_float
from pyc_mlir.frontends.frame.shaping import swap_last
from pyc_mlir.frontends.torch.frame.handler import Node, aten


@aten("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default", "vdot.default")
def matmul(n: Node) -> Any:
    """numpy's matmul."""
    if n.op == "bmm":
        return n.b.matmul(n.x(), n.x("mat2"))
    other = {"mm": "mat2", "mv": "vec", "dot": "tensor"}.get(n.op, "other")
    return n.b.matmul(n.x(), n.x(other))


@aten("linear.default")
def linear(n: Node) -> Any:
    """out = input @ weight^T + bias."""
    weight = n.x("weight")
    rank = n.rank("weight")
    out = n.b.matmul(n.x("input"), swap_last(n.b, weight) if rank == 2 else weight)
    return n.b.add(out, n.x("bias")) if n.has("bias") else out


@aten("addmm.default", "addmv.default", "baddbmm.default")
def addmm(n: Node) -> Any:
    """out = beta * self + alpha * (a @ b)."""
    first, second = {
        "addmm": ("mat1", "mat2"),
        "addmv": ("mat", "vec"),
        "baddbmm": ("batch1", "batch2"),
    }[n.op]
    b, product = n.b, n.b.matmul(n.x(first), n.x(second))
    alpha, beta = n.static("alpha", 1), n.static("beta", 1)
    if alpha != 1:
        product = b.mul(product, b.scalar(alpha, product))
    if beta == 0 and is_float(n.dtype):
        return product
    addend = n.x("self", n.dtype)
    return b.add(product, addend if beta == 1 else b.mul(addend, b.scalar(beta, addend)))


@aten("outer.default")
def outer(n: Node) -> Any:
    """out[i, j] = self[i] * vec2[j]."""
    x, y = n.x("self", n.dtype), n.x("vec2", n.dtype)
    return n.b.mul(n.b.expand_dims(x, 1), n.b.expand_dims(y, 0))
