"""The region around a value whose ops can run part by part together.

Comes in: a `ChunkGraph`, an op whose result is to stay inside, and an op that may end the region.
Goes out: regions. Walking back from the end, an op belongs to the closure if all that use it do and
ask for the same dimension of it. A closure cut off anywhere is closed too, so that each cut in
front of the op in question is a region of its own.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from math import prod

from pyc_mlir.dialects.types import TensorType
from pyc_mlir.pipelines.pyc.chunk.dims import (
    Dims,
    OpCall,
    Rows,
    cuts_a_product,
    operand_rows,
)
from pyc_mlir.pipelines.pyc.chunk.graph import ChunkGraph, Region

# The numbers of parts that are offered.
PARTS = (2, 3, 4, 6, 8, 12)
# How far a region may reach in the program, in ops.
WINDOW = 64
# A region's result is at most this share of the largest value inside.
RESULT_SHARE = 0.5


def regions(graph: ChunkGraph, op: int, end: int, taken: AbstractSet[int]) -> Iterator[Region]:
    """Yield the regions from `end` back to `op` or further, cut along the outermost dimension."""
    call = graph.nodes[end].call
    dim = None if call is None else _outermost(call.out)
    if call is None or dim is None or call.dims[dim] is None:
        return
    dims = _closure(graph, end, dim, taken)
    if op not in dims or (op == end and not graph.nodes[op].hidden):
        return
    size = call.out.shape[dim]
    assert size is not None
    members = sorted(dims)
    for first in members:
        if first > op:
            break
        ops = tuple(i for i in members if i >= first)
        read = {r for i in ops for r in graph.nodes[i].reads}
        if not read.isdisjoint(graph.unstored.difference(ops)):
            continue  # parts of it could only be read if it were stored
        inside = graph.inside(ops) + _copies(graph, ops, dims)
        largest = max(graph.nodes[i].nbytes * (i != end) + graph.nodes[i].hidden for i in ops)
        if call.out.nbytes <= RESULT_SHARE * largest:
            region = Region(ops, tuple(dims[i] for i in ops), size, inside)
            yield replace(region, halos=_halos(graph, region))


def rows_of(graph: ChunkGraph, region: Region, parts: int, number: int) -> dict[int, Rows]:
    """Return the rows of each op's result that part `number` computes, halos included."""
    each = region.size // parts
    found: dict[int, Rows] = {region.end: (number * each, (number + 1) * each)}
    for i, dim in zip(reversed(region.ops), reversed(region.dims), strict=True):
        call, rows = call_of(graph, i), found[i]
        needed = operand_rows(call, dim, rows)
        operands = zip(graph.nodes[i].operands, along(graph, i, dim), strict=True)
        for operand in {o for o, at in operands if at is not None and o in region.ops}:
            assert operand is not None
            first, end = found.get(operand, needed)
            found[operand] = (min(first, needed[0]), max(end, needed[1]))
    return found


def has_windows(graph: ChunkGraph, region: Region) -> bool:
    """Return whether parts of a region overlap inside: whether windows slide along what is cut."""
    pairs = zip(region.ops, region.dims, strict=True)
    return any(call_of(graph, i).windows[dim] for i, dim in pairs)


def shares(graph: ChunkGraph, region: Region, parts: int) -> dict[int, float]:
    """Return the share of each op's result that the part which needs most of it computes."""
    if not has_windows(graph, region):
        return dict.fromkeys(region.ops, 1 / parts)
    every = [rows_of(graph, region, parts, number) for number in range(parts)]
    return {
        i: max(rows[i][1] - rows[i][0] for rows in every) / (call_of(graph, i).out.shape[dim] or 1)
        for i, dim in zip(region.ops, region.dims, strict=True)
    }


def _halos(graph: ChunkGraph, region: Region) -> tuple[tuple[int, int], ...]:
    """Return, by number of parts, the bytes that they keep inside, where they overlap."""
    if not has_windows(graph, region):
        return ()
    counts = [n for n in PARTS if region.size % n == 0]
    return tuple((n, graph.inside(region.ops, shares(graph, region, n))) for n in counts)


def _outermost(out: TensorType) -> int | None:
    """Return the first dimension above 1: parts along it lie in one piece."""
    return next((i for i, d in enumerate(out.shape) if d is not None and d > 1), None)


def _closure(graph: ChunkGraph, end: int, dim: int, taken: AbstractSet[int]) -> dict[int, int]:
    """Return the dimension of every op that can run in parts along with `end`."""
    dims = {end: dim}
    requested: dict[int, set[int | None]] = {}

    def ask(i: int) -> None:
        for operand, wanted in zip(graph.nodes[i].operands, along(graph, i, dims[i]), strict=True):
            if operand is not None:
                requested.setdefault(operand, set()).add(wanted)

    ask(end)
    for i in range(end - 1, max(-1, end - WINDOW), -1):
        wanted = requested.get(i, set())
        if len(wanted) != 1 or i in taken or not dims.keys() >= set(graph.users[i]):
            continue
        (at,) = wanted
        call = graph.nodes[i].call
        if at is not None and call is not None and call.dims[at] is not None:
            dims[i] = at
            ask(i)
    return dims


def along(graph: ChunkGraph, i: int, dim: int) -> Dims:
    """Return the dimension of each operand of op `i` that `dim` of its result runs along."""
    found = call_of(graph, i).dims[dim]
    assert found is not None, "only ops that run in parts are asked"
    return found


def call_of(graph: ChunkGraph, i: int) -> OpCall:
    """Return op `i` as data; it must be one that may run in parts."""
    call = graph.nodes[i].call
    assert call is not None, "only ops that run in parts are asked"
    return call


def cuts_products(graph: ChunkGraph, region: Region) -> bool:
    """Return whether rows of matrix products are cut, whose sums may then be rounded otherwise."""
    pairs = zip(region.ops, region.dims, strict=True)
    return any(cuts_a_product(call_of(graph, i), dim) for i, dim in pairs)


def _copies(graph: ChunkGraph, ops: tuple[int, ...], dims: dict[int, int]) -> int:
    """Return the bytes of operands from outside whose parts do not lie in one piece."""
    total = 0
    for i in ops:
        inputs = call_of(graph, i).inputs
        operands = zip(graph.nodes[i].operands, inputs, along(graph, i, dims[i]), strict=True)
        for operand, type_, at in operands:
            if operand not in dims and at is not None and prod(_sizes(type_)[:at]) > 1:
                total += type_.nbytes
    return total


def _sizes(type_: TensorType) -> list[int]:
    return [d for d in type_.shape if d is not None]
