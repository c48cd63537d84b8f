"""Tensors made from nothing."""

from typing import Any

import numpy as np

from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import expand_to, vector
from pyc_mlir.frontends.importing.sizes import SymbolicSize
from pyc_mlir.frontends.torch.shared.handler import AtenCall, aten


@aten("full.default", "full_like.default", "zeros.default", "zeros_like.default", "ones.default",
      "ones_like.default", "empty.memory_format", "empty_like.default", "empty_strided.default",
      "new_zeros.default", "new_ones.default", "new_full.default", "new_empty.default",
      "new_empty_strided.default", "empty_permuted.default", "fill.Scalar",
      "fill.Tensor")  # fmt: skip
def full(n: AtenCall) -> Any:
    """Fill with one value; 0 for torch's undefined elements (`empty`)."""
    if n.op in ("full", "full_like", "new_full", "fill"):
        name = "value" if n.op == "fill" else "fill_value"
        value = n.x(name, n.dtype)
    else:
        value = n.b.constant(np.array("ones" in n.op).astype(n.dtype))
    return expand_to(n.b, value, n.out_dims)


@aten("scalar_tensor.default")
def scalar(n: AtenCall) -> Any:
    """Build a rank-0 tensor."""
    return n.x("s", n.dtype)


@aten("arange.default", "arange.start", "arange.start_step")
def arange(n: AtenCall) -> Any:
    """start, start + step, ... up to but not including end."""
    b, dtype = n.b, n.dtype
    start, step = n.arg("start", 0), n.arg("step", 1)
    if not any(isinstance(n.arguments.get(k), SymbolicSize) for k in ("start", "end", "step")):
        count = n.out_dims[0]
        assert isinstance(count, int)
        values = np.arange(count, dtype=np.float64 if dtype.kind == "f" else np.int64)
        return b.constant((values * step + start).astype(dtype))
    out = b.convert(vector(b, n.out_dims[0]), dtype)
    if step != 1:
        out = b.mul(out, n.x("step", dtype))
    return out if start == 0 else b.add(out, n.x("start", dtype))


@aten("linspace.default")
def linspace(n: AtenCall) -> Any:
    """Build `steps` numbers from start to end, both included."""
    count = n.out_dims[0]
    start, end = n.static("start"), n.static("end")
    if not isinstance(count, int):
        raise unsupported("a dynamic number of steps: expected a static one")
    return n.b.constant(np.linspace(start, end, count).astype(n.dtype))


@aten("eye.default", "eye.m")
def eye(n: AtenCall) -> Any:
    """Build ones at equal rows and columns."""
    b, (rows, columns) = n.b, n.out_dims
    row = b.reshape(vector(b, rows), shape=(-1, 1))
    column = b.reshape(vector(b, columns), shape=(1, -1))
    return b.convert(b.compare(row, column, predicate="eq"), n.dtype)
