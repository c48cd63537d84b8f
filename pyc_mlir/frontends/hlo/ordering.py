"""Sorting and the largest elements by pyc.argsort."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.frontends.hlo.elementwise import total_order_key
from pyc_mlir.frontends.hlo.movement import transposed
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import reshape_to
from pyc_mlir.frontends.importing.sizes import SymbolicSize


def top_k(b: Any, x: Any, k: int) -> tuple[Any, Any]:
    """Return the k largest along the last dimension and their i32 indices; ties by place.

    The order is XLA's total order of floats: 0 is larger than -0, and NaN the largest.
    """
    axis = b.type_of(x).rank - 1
    order = b.argsort(total_order_key(b, x), axis=axis, descending=True, count=k)
    return _along(b, x, order, axis), b.cast(order, dtype=DTYPES["i32"])


def sort(
    b: Any, operands: Sequence[Any], axis: int, descending: bool = False, total: bool = False
) -> tuple[Any, ...]:
    """Sort the operands by the first one along `axis`; equals keep their order.

    NaN is the largest of floats. total: by the total order, in which -0 and 0 are no equals.
    """
    keys = total_order_key(b, operands[0]) if total else operands[0]
    order = b.argsort(keys, axis=axis, descending=descending)
    return tuple(_along(b, x, order, axis) for x in operands)


def _along(b: Any, x: Any, order: Any, axis: int) -> Any:
    """x taken at `order` along `axis`, by linear indices into its rows."""
    dims, wanted = b.dims(x), b.dims(order)
    if len(dims) == 1:
        return b.gather(x, order, axis=0)
    if any(isinstance(d, SymbolicSize) for d in dims):
        raise unsupported("a sort of several rows of dynamic shape")
    last = [d for d in range(len(dims)) if d != axis] + [axis]
    rows = int(np.prod([dims[d] for d in last[:-1]], dtype=np.int64))
    size, count = dims[axis], wanted[axis]
    flat = reshape_to(b, transposed(b, x, last), (rows * size,))
    start = np.arange(rows, dtype=np.int64).reshape(rows, 1) * size
    linear = b.add(reshape_to(b, transposed(b, order, last), (rows, count)), start)
    taken = reshape_to(b, b.gather(flat, linear, axis=0), [wanted[d] for d in last])
    return transposed(b, taken, tuple(np.argsort(last).tolist()))
