"""Matrix products."""

from typing import Any

from pyc_mlir.dialects.types import is_float
from pyc_mlir.frontends.frame.shaping import product, reshape_to, swap_last
from pyc_mlir.frontends.torch.frame.handler import AtenCall, aten


@aten("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default", "vdot.default")
def matmul(n: AtenCall) -> Any:
    """numpy's matmul."""
    if n.op == "bmm":
        return n.b.matmul(n.x(), n.x("mat2"))
    other = {"mm": "mat2", "mv": "vec", "dot": "tensor"}.get(n.op, "other")
    return n.b.matmul(n.x(), n.x(other))


@aten("linear.default")
def linear(n: AtenCall) -> Any:
    """out = input @ weight^T + bias."""
    weight = n.x("weight")
    rank = n.rank("weight")
    out = n.b.matmul(n.x("input"), swap_last(n.b, weight) if rank == 2 else weight)
    return n.b.add(out, n.x("bias")) if n.has("bias") else out


@aten("addmm.default", "addmv.default", "baddbmm.default")
def addmm(n: AtenCall) -> Any:
    """out = beta * self + alpha * (a @ b)."""
    first, second = {
        "addmm": ("mat1", "mat2"),
        "addmv": ("mat", "vec"),
        "baddbmm": ("batch1", "batch2"),
    }[n.op]
    b, made = n.b, n.b.matmul(n.x(first), n.x(second))
    alpha, beta = n.static("alpha", 1), n.static("beta", 1)
    if alpha != 1:
        made = b.mul(made, b.scalar(alpha, made))
    if beta == 0 and is_float(n.dtype):
        return made
    addend = n.x("self", n.dtype)
    return b.add(made, addend if beta == 1 else b.mul(addend, b.scalar(beta, addend)))


@aten("outer.default")
def outer(n: AtenCall) -> Any:
    """out[i, j] = self[i] * vec2[j]."""
    x, y = n.x("self", n.dtype), n.x("vec2", n.dtype)
    return n.b.mul(n.b.expand_dims(x, 1), n.b.expand_dims(y, 0))


# The sizes of 1 and the sums that `torch.nn.Bilinear` requests from `_trilinear`.
_BILINEAR = ((1, 3), (0,), (1, 2), (2, 3))


@aten("_trilinear.default")
def trilinear(n: AtenCall) -> Any:
    """The sum over `sumdim` of i1 i2 i3, each with dimensions of size 1 at its `expand`.

    Of bilinear layers, out[n, o] = sum_ij i1[n, i] i2[o, i, j] i3[n, j], the sum over i is a
    matrix product: the terms of both sums would take o times j times as much as i1.
    """
    b = n.b
    expands = tuple(n.ints(f"expand{i}", ()) for i in (1, 2, 3))
    sums = n.ints("sumdim", ())
    if (*expands, sums) == _BILINEAR:
        rows, weight, others = n.x("i1"), n.x("i2"), n.x("i3")
        outputs, inner, width = b.dims(weight)
        flat = b.transpose(weight, permutation=(1, 0, 2))
        flat = reshape_to(b, flat, (inner, product([outputs, width])))
        partly = reshape_to(b, b.matmul(rows, flat), (b.dims(rows)[0], outputs, width))
        return b.reduce_sum(b.mul(partly, b.expand_dims(others, 1)), axes=(2,))
    factors = []
    for i, expand in enumerate(expands, 1):
        factor = n.x(f"i{i}")
        for axis in sorted(expand):
            factor = b.expand_dims(factor, axis)
        factors.append(factor)
    return b.reduce_sum(b.mul(b.mul(factors[0], factors[1]), factors[2]), axes=sums)
