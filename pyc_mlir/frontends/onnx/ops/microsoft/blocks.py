"""Numbers of few bits in bytes, and what their blocks along the last axis share."""

from typing import Any

import numpy as np

from pyc_mlir.frontends.importing.shaping import expand_to, merge, take


def unpacked(b: Any, x: Any, bits: int) -> Any:
    """Unpack bytes into numbers of `bits` bits along the last axis, the lowest first."""
    if bits == 8:
        return x
    low = b.and_(x, b.constant(np.array(15, np.uint8)))
    high = b.shift_right(x, b.constant(np.array(4, np.uint8)))
    rank = b.type_of(x).rank
    both = b.concat(b.expand_dims(low, rank), b.expand_dims(high, rank), axis=rank)
    return merge(b, both, rank - 1)


def take_last(b: Any, x: Any, count: int) -> Any:
    """Return the first `count` entries of the last axis."""
    return take(b, x, b.type_of(x).rank - 1, 0, count)


def in_blocks(b: Any, x: Any, block: int, depth: int) -> Any:
    """Repeat each entry of the last axis `block` times in a row, `depth` in all."""
    rank = b.type_of(x).rank
    wide = expand_to(b, b.expand_dims(x, rank), (*b.dims(x), block))
    return take_last(b, merge(b, wide, rank - 1), depth)
