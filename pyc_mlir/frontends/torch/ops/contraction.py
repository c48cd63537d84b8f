"""Matrix products, and those of groups of rows with a matrix each (mixtures of experts)."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.ops.movement import END
from pyc_mlir.dialects.types import I64, is_float
from pyc_mlir.frontends.importing.errors import unsupported
from pyc_mlir.frontends.importing.shaping import product, reshape_to, swap_last, take, vector
from pyc_mlir.frontends.importing.sizes import Extent
from pyc_mlir.frontends.torch.ops.handler import AtenCall, aten, operators, promoted


@aten("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default", "vdot.default")
def matmul(b: Any, x: Any, y: Any) -> Any:
    """numpy's matmul."""
    return b.matmul(x, y)


@aten("linear.default")
def linear(b: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    """out = input @ weight^T + bias."""
    matrix = b.type_of(weight).rank == 2
    out = b.matmul(x, swap_last(b, weight) if matrix else weight)
    return out if bias is None else b.add(out, bias)


@aten("addmm.default", "addmv.default", "baddbmm.default", "addbmm.default")
def addmm(n: AtenCall, *, alpha: float = 1, beta: float = 1) -> Any:
    """out = beta * self + alpha * (a @ b); addbmm adds the products of a batch."""
    _, *factors = list(n.arguments)[:3]
    b, made = n.b, n.b.matmul(*map(n.x, factors))
    if n.op == "addbmm":
        made = b.reduce_sum(made, axes=(0,))
    if alpha != 1:
        made = b.mul(made, b.scalar(alpha, made))
    if beta == 0 and is_float(n.dtype):
        return made
    addend = n.x("self", n.dtype)
    return b.add(made, addend if beta == 1 else b.mul(addend, b.scalar(beta, addend)))


@promoted("outer.default")
def outer(b: Any, x: Any, y: Any) -> Any:
    """out[i, j] = self[i] * vec2[j]."""
    return b.mul(b.expand_dims(x, 1), b.expand_dims(y, 0))


# The sizes of 1 and the sums that `torch.nn.Bilinear` requests from `_trilinear`.
_BILINEAR = ((1, 3), (0,), (1, 2), (2, 3))


@aten("_trilinear.default")
def trilinear(
    b: Any, first: Any, second: Any, third: Any, *,
    expand1: list[int], expand2: list[int], expand3: list[int], sumdim: list[int],
) -> Any:  # fmt: skip
    """Build the sum over `sumdim` of i1 i2 i3, each with dimensions of size 1 at its `expand`.

    Of bilinear layers, out[n, o] = sum_ij i1[n, i] i2[o, i, j] i3[n, j], the sum over i is a matrix
    product: the terms of both sums would take o times j times as much as i1.
    """
    if tuple(map(tuple, (expand1, expand2, expand3, sumdim))) == _BILINEAR:
        outputs, inner, width = b.dims(second)
        flat = b.transpose(second, permutation=(1, 0, 2))
        flat = reshape_to(b, flat, (inner, product([outputs, width])))
        partly = reshape_to(b, b.matmul(first, flat), (b.dims(first)[0], outputs, width))
        return b.reduce_sum(b.mul(partly, b.expand_dims(third, 1)), axes=(2,))
    factors = []
    for x, expand in ((first, expand1), (second, expand2), (third, expand3)):
        for axis in sorted(expand):
            x = b.expand_dims(x, axis)
        factors.append(x)
    return b.reduce_sum(b.mul(b.mul(*factors[:2]), factors[2]), axes=tuple(sumdim))


# Rows of a block where their number is dynamic.
_BLOCK = 32


@aten("_grouped_mm.default")
def grouped_mm(n: AtenCall, x: Any, weights: Any) -> Any:
    """out[m] = self[m] @ mat2[g], g being the first group with m < offs[g]; 0 behind the last one.

    self: [rows, k], mat2: [groups, k, n], offs: [groups]. Without `offs`, a batched product.
    """
    ranks = n.b.type_of(x).rank, n.b.type_of(weights).rank
    if n.has("bias") or (ranks, n.has("offs")) not in (((2, 3), True), ((3, 3), False)):
        raise unsupported(
            f"a grouped product of ranks {ranks}: expected groups of rows, [rows, k] and "
            "[groups, k, n] with `offs`, without a bias"
        )
    if not n.has("offs"):
        return n.b.convert(n.b.matmul(x, weights), n.dtype)
    return _by_groups(n, x, weights)


@operators("transformers.grouped_mm_fallback.default")
def _by_groups(n: AtenCall, x: Any, weights: Any) -> Any:
    """Build the grouped product under transformers' name, for types that torch's operator lacks."""
    rows, groups = n.b.dims(x)[0], n.b.dims(weights)[0]
    if not isinstance(groups, int):
        raise unsupported("a dynamic number of groups: expected a static one")
    return n.b.convert(_blockwise(n.b, x, weights, n.x("offs"), rows, groups), n.dtype)


@dataclass(frozen=True)
class _Groups:
    """i64 vectors with an entry for each group: its first row and block, and the ends of both."""

    starts: Any
    ends: Any
    first_blocks: Any
    block_ends: Any


def _blockwise(b: Any, x: Any, weights: Any, offs: Any, rows: Extent, groups: int) -> Any:
    """Build the products of each row with its group's matrix.

    The rows of a group are known only when the program runs, so that no size may depend on them.
    Each group is cut into blocks of as many rows, the last of them partly used: of r rows in g
    groups there are at most r / block + g blocks. The blocks and their groups' matrices are
    gathered, and one batched product computes them. Gale et al., "MegaBlocks", 2023.
    """
    block = max(1, -(-rows // groups)) if isinstance(rows, int) else _BLOCK
    size = b.constant(np.array(block))
    found = _groups(b, b.convert(offs, I64), size, groups)
    # Every block's group, and its rows.
    blocks = _blocks(b, rows, block, groups)
    group = _group_of(b, blocks, found.block_ends)
    first = b.add(
        b.gather(found.starts, group, axis=0),
        b.mul(b.sub(blocks, b.gather(found.first_blocks, group, axis=0)), size),
    )
    within = b.constant(np.arange(block)[None])
    held = b.gather(x, b.add(b.expand_dims(first, 1), within), axis=0)
    products = b.matmul(held, b.gather(weights, group, axis=0))
    # Every row's place among the blocks.
    row = vector(b, rows)
    group = _group_of(b, row, found.ends)
    inside = b.sub(row, b.gather(found.starts, group, axis=0))
    number = b.add(b.gather(found.first_blocks, group, axis=0), b.div(inside, size))
    place = b.add(b.mul(number, size), b.rem(inside, size))
    flat = reshape_to(b, products, (product(b.dims(products)[:2]), b.dims(weights)[2]))
    out = b.gather(flat, place, axis=0)
    known = b.compare(group, b.constant(np.array(groups)), predicate="lt")
    return b.select(b.expand_dims(known, 1), out, b.scalar(0, out))


def _groups(b: Any, ends: Any, size: Any, groups: int) -> _Groups:
    none = b.constant(np.zeros(1, np.int64))
    starts = b.concat(none, take(b, ends, 0, 0, groups - 1), axis=0) if groups > 1 else none
    counts = b.sub(ends, starts)
    number = b.div(b.add(counts, b.sub(size, b.constant(np.array(1)))), size)
    block_ends = b.cumulative(number, axis=0, reduction="add")
    return _Groups(starts, ends, b.sub(block_ends, number), block_ends)


def _blocks(b: Any, rows: Extent, block: int, groups: int) -> Any:
    """0, 1, ... for as many blocks as there may be."""
    if isinstance(rows, int):
        return b.constant(np.arange(min(rows, rows // block + groups)))
    most = b.concat(
        take(b, vector(b, rows), 0, 0, END, block), b.constant(np.zeros(groups, np.int64)), axis=0
    )
    return b.iota_like(most, 0)


def _group_of(b: Any, places: Any, ends: Any) -> Any:
    """Count the ends at or below each place."""
    behind = b.compare(b.expand_dims(places, 1), b.expand_dims(ends, 0), predicate="ge")
    return b.reduce_sum(b.cast(behind, dtype=I64), axes=(1,))
