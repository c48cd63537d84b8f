"""Sorting and the largest elements, by comparisons of all pairs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import BOOL, DTYPES, I64, is_float
from pyc_mlir.frontends.frame.errors import unsupported
from pyc_mlir.frontends.frame.shaping import reshape_to, take
from pyc_mlir.frontends.frame.sizes import Size

# Pairs of elements that a sort may compare.
_MAX_PAIRS = 1 << 26
_I32 = DTYPES["i32"]


def top_k(b: Any, x: Any, k: int) -> tuple[Any, Any]:
    """The k largest along the last dimension and their i32 indices; of equals the first ones."""
    axis = b.type_of(x).rank - 1
    values, indices = sort(b, [x], axis, descending=True, with_index=True)
    return take(b, values, axis, 0, k), b.cast(take(b, indices, axis, 0, k), dtype=_I32)


def sort(
    b: Any, operands: Sequence[Any], axis: int, descending: bool = False, with_index: bool = False
) -> tuple[Any, ...]:
    """The operands in the order of the first one along `axis`; equals keep their order.

    NaN is the largest of floats. `with_index` adds the i64 places that the elements come from.
    """
    dims = b.dims(operands[0])
    rank, size = len(dims), dims[axis]
    if any(isinstance(d, Size) for d in dims):
        raise unsupported("a sort of a dynamic shape")
    rows = int(np.prod([d for i, d in enumerate(dims) if i != axis], dtype=np.int64))
    if rows * size * size > _MAX_PAIRS:
        raise unsupported(
            f"a sort of {size} elements, {rows} times: expected at most {_MAX_PAIRS} pairs"
        )
    last = [d for d in range(rank) if d != axis] + [axis]
    back = tuple(np.argsort(last).tolist())
    flat = [reshape_to(b, b.transpose(x, permutation=tuple(last)), (rows, size)) for x in operands]
    source = _order(b, flat[0], size, descending)
    moved = [dims[d] for d in last]

    def restored(x: Any) -> Any:
        return b.transpose(reshape_to(b, x, moved), permutation=back)

    start = np.arange(rows, dtype=np.int64).reshape(rows, 1) * size
    linear = b.add(source, start)
    out = [b.gather(reshape_to(b, x, (rows * size,)), linear, axis=0) for x in flat]
    return tuple(restored(x) for x in (*out, *([source] if with_index else ())))


def _order(b: Any, keys: Any, size: int, descending: bool) -> Any:
    """i64 [rows, size]: the place of the element that comes to stand at each place."""
    dtype = b.type_of(keys).dtype
    if dtype == BOOL:
        keys = b.cast(keys, dtype=DTYPES["i8"])
    mine, other = b.expand_dims(keys, 2), b.expand_dims(keys, 1)
    before = b.compare(other, mine, predicate="gt" if descending else "lt")
    same = b.compare(other, mine, predicate="eq")
    if is_float(dtype):
        nan_mine, nan_other = (b.compare(v, v, predicate="ne") for v in (mine, other))
        one_nan = (nan_other, b.not_(nan_mine)) if descending else (nan_mine, b.not_(nan_other))
        before = b.or_(before, b.and_(*one_nan))
        same = b.or_(same, b.and_(nan_mine, nan_other))
    place = np.arange(size)
    earlier = (place[None, :] < place[:, None])[None]
    ahead = b.or_(before, b.and_(same, earlier))
    rank = b.reduce_sum(b.cast(ahead, dtype=I64), axes=(2,))
    # rank[r, i] is where element i goes; the place that it comes from is the inverse.
    here = b.compare(b.expand_dims(rank, 1), place.reshape(1, size, 1), predicate="eq")
    return b.argmax(b.cast(here, dtype=DTYPES["i8"]), axis=2)
