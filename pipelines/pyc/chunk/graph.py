"""Live values at each op of a function, and the regions whose ops can run part by part together.

Comes in: a function of one block. Goes out: a `ChunkGraph` of plain data, one node an op, and the
bytes that each item of the program needs: an op, or a region in parts as if it were one op. It is
an estimate in program order, without packing: what is elementwise or row-wise overwrites an operand
that dies, a sum read by one other sum is computed there, reshapes are views, what windows read in
parts is not stored, and arguments, constants and results take no scratch.

`regions` walks back from an op that may end a region to one whose result is to stay inside: an op
belongs to the closure if all that use it do and ask for the same dimension of it. A closure cut off
anywhere is closed too, so that each cut in front of the op in question is a region of its own.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, prod

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.pipelines.pyc.chunk.dims import (
    Dims,
    OpCall,
    Rows,
    cuts_a_product,
    hidden_bytes,
    operand_rows,
)
from pyc_mlir.pipelines.pyc.fuse import Channels
from pyc_mlir.pipelines.pyc.graph import BlockGraph
from pyc_mlir.pipelines.pyc.rewriting import tensor_types


@dataclass(frozen=True)
class ChunkNode:
    """One op: what it is if it may run in parts, the ops that it reads, and its result's bytes.

    `operands` are positions, None for arguments; `reads` adds what regions capture. `nbytes` is 0
    for what takes no scratch.
    """

    call: OpCall | None
    operands: tuple[int | None, ...]
    reads: tuple[int, ...]
    nbytes: int

    @cached_property
    def hidden(self) -> int:
        """Bytes that only the op itself sees."""
        return 0 if self.call is None else hidden_bytes(self.call)


@dataclass(frozen=True)
class Region:
    """Ops of one block, in order, that can run part by part along one dimension.

    `dims` is that dimension of each op's result; the last op's result leaves the region.
    `inside` is the most bytes live at once of what stays inside, all of it run at once; `halos`
    are those of one part by the number of parts, where parts overlap.
    """

    ops: tuple[int, ...]
    dims: tuple[int, ...]
    size: int
    inside: int
    halos: tuple[tuple[int, int], ...] = ()

    def inside_of(self, parts: int) -> int:
        """Return the most bytes live at once inside, one of so many parts at a time."""
        return dict(self.halos).get(parts, -(-self.inside // parts))

    @property
    def end(self) -> int:
        """The op whose result leaves."""
        return self.ops[-1]


class ChunkGraph(BlockGraph):
    """A block whose `nodes` may run in parts; `users` are those of the nodes' reads."""

    def __init__(self, function: ir.Operation, joins: bool = True) -> None:
        """Read a block; `joins`: kernels read, or join in one pass, parts of a concatenation."""
        super().__init__(function)
        returned = set(self.producers[-1])
        self.nodes = [self._node(i, i in returned) for i in range(len(self.ops))]
        self.unstored: frozenset[int] = frozenset()
        if joins:
            later = {i for i in range(len(self.ops)) if self._is_joined_later(i)}
            self.unstored = unstored = Channels.of(self).unstored | later
            # Their readers read their operands instead.
            for i, node in enumerate(self.nodes):
                behind = [p for r in node.reads if r in unstored for p in self.nodes[r].reads]
                reads = tuple(dict.fromkeys([*node.reads, *behind]))
                nbytes = 0 if i in unstored else node.nbytes
                self.nodes[i] = replace(node, reads=reads, nbytes=nbytes)
        self.users = [[] for _ in self.ops]
        for i, node in enumerate(self.nodes):
            for read in node.reads:
                self.users[read].append(i)
        self.storage = list(range(len(self.ops)))
        for i, node in enumerate(self.nodes):
            if self.has(i, Trait.VIEW) and node.reads:
                self.storage[i] = self.storage[node.reads[0]]
        # What is returned under another shape is a result too.
        for i in {self.storage[i] for i in returned}:
            self.nodes[i] = replace(self.nodes[i], nbytes=0)

    def _node(self, i: int, is_result: bool) -> ChunkNode:
        definition, at = self.definitions[i], self.makes[i]
        call = None
        # What computes from nothing, and no pyc ops, do not run in parts.
        if definition is not None and self.operands[i]:
            inputs = tuple(map(self.type, self.operands[i]))
            call = OpCall(definition, inputs, self.type(at), self.params(i))
        # What is no tensor lies in a register of the host.
        made = [t.nbytes for t in self.types[at : at + len(self.ops[i].results)] if t is not None]
        free = self.name(i) == "constant" or is_result
        operands = tuple(self.makers[n] for n in self.operands[i])
        reads = tuple(dict.fromkeys(self.producers[i]))
        return ChunkNode(call, operands, reads, 0 if free else sum(made))

    def call(self, i: int) -> OpCall:
        """Return op `i` as data; it must be one that may run in parts."""
        call = self.nodes[i].call
        assert call is not None, "only ops that run in parts are asked"
        return call

    def along(self, i: int, dim: int) -> Dims:
        """Return the dimension of each operand of op `i` that `dim` of its result runs along."""
        found = self.call(i).dims[dim]
        assert found is not None, "only ops that run in parts are asked"
        return found

    def _is_joined_later(self, i: int) -> bool:
        """Return whether a concatenation is part of others, and of one elementwise op, at most.

        Each of these joins all parts by itself, in one pass.
        """
        users = dict.fromkeys(self.users[i])
        if self.name(i) != "concat" or not users or not self.nodes[i].nbytes:
            return False
        others = [u for u in users if self.name(u) != "concat" or self.axis(u) != self.axis(i)]
        return len(others) <= 1 and all(self.has(u, Trait.ELEMENTWISE) for u in others)

    def needs(self, parts: Mapping[Region, int]) -> list["ItemMemory"]:
        """Return the bytes for every item, regions running in that many parts; in program order."""
        inside = {i: region for region in parts for i in region.ops}
        ends = {region.end for region in parts}
        items = [(i, inside.get(i)) for i in range(len(self.ops)) if i in ends or i not in inside]
        place = {i: at for at, (i, _) in enumerate(items)}
        place |= {i: place[region.end] for i, region in inside.items()}
        melted = self._melted(inside)
        place |= {i: place[into] for i, into in melted.items()}
        # By storage that takes scratch, the place of the last item that reads it.
        last: dict[int, int] = {}
        for i, storage in enumerate(self.storage):
            if self.nodes[storage].nbytes and storage not in melted:
                uses = [place[i], *(place[u] for u in self.users[i])]
                last[storage] = max([last.get(storage, 0), *uses])
        starts: list[list[int]] = [[] for _ in items]
        for storage in last:
            if storage in ends or storage not in inside:
                starts[place[storage]].append(storage)
        lives = enumerate(_lives(starts, last, lambda s: self.nodes[s].nbytes))
        found = []
        for (i, region), (at, live) in zip(items, lives, strict=True):
            extra = self.nodes[i].hidden if region is None else region.inside_of(parts[region])
            taken = self._taken_over(i, last, at) if region is None else 0
            found.append(ItemMemory(i, region, sum(live.values()) + extra - taken, tuple(live)))
        return found

    def _melted(self, inside: Mapping[int, Region]) -> dict[int, int]:
        """Return, by op that is computed within the elementwise op that reads it, that op.

        A sum of two values melts into the sum that reads it, and what it reads lives until then;
        unless the reader is computed with a product that it reads, one after another.
        """
        into: dict[int, int] = {}
        for i in range(len(self.ops) - 1, -1, -1):
            reader = self._elementwise_reader[i]
            if reader is None or i in inside or reader in inside:
                continue
            products = (r for r in self.nodes[reader].reads if self.anchor(r) == "contraction")
            if all(r in inside or len(self.users[r]) > 1 for r in products):
                into[i] = into.get(reader, reader)
        return into

    @cached_property
    def _elementwise_reader(self) -> list[int | None]:
        """For an elementwise op of two values its one reader, if also elementwise and as large."""

        def reader(i: int) -> int | None:
            users = self.users[i]
            read = {s for r in self.nodes[i].reads if self.nodes[s := self.storage[r]].nbytes}
            if len(users) != 1 or not self.has(i, Trait.ELEMENTWISE) or len(read) < 2:
                return None
            same = self.nodes[users[0]].nbytes == self.nodes[i].nbytes
            return users[0] if same and self.has(users[0], Trait.ELEMENTWISE) else None

        return [reader(i) for i in range(len(self.ops))]

    def _taken_over(self, i: int, last: Mapping[int, int], at: int) -> int:
        node = self.nodes[i]
        dying = {self.storage[r] for r in node.reads if last.get(self.storage[r]) == at}
        fits = any(self.nodes[s].nbytes == node.nbytes for s in dying)
        return node.nbytes if self.has(i, Trait.OVERWRITES) and fits else 0

    def inside(self, ops: Sequence[int], shares: Mapping[int, float] | None = None) -> int:
        """Return the most bytes live at once of what a region of these ops keeps to itself.

        `shares` of the ops' results are computed at once; all of them by default.
        """

        def nbytes(i: int) -> int:
            share = 1.0 if shares is None else shares[i]
            return ceil(share * self.nodes[i].nbytes)

        end, place = ops[-1], {i: at for at, i in enumerate(ops)}
        last = {i: place[i] for i in ops if i != end and self.storage[i] == i}
        for at, i in enumerate(ops):
            read = {self.storage[r] for r in self.nodes[i].reads if r in place}
            last.update(dict.fromkeys(read.intersection(last), at))
        starts = [[i] if i in last else [] for i in ops]
        most = 0
        for i, live in zip(ops, _lives(starts, last, nbytes), strict=True):
            taken = i != end and self._taken_over(i, last, place[i]) > 0
            overwritten = nbytes(i) if taken else 0
            most = max(most, sum(live.values()) + self.nodes[i].hidden - overwritten)
        return most


def _lives(
    starts: Sequence[Sequence[int]], last: Mapping[int, int], nbytes: Callable[[int], int]
) -> Iterator[Mapping[int, int]]:
    """Yield the bytes of each value that is live at an item, from its start to its last use."""
    live: dict[int, int] = {}
    for at, begun in enumerate(starts):
        live.update({storage: nbytes(storage) for storage in begun})
        yield live
        for storage in [s for s in live if last[s] <= at]:
            del live[storage]


@dataclass(frozen=True)
class ItemMemory:
    """The memory of one item of the program: `nbytes` in all, of results of ops `live` and own."""

    op: int
    region: Region | None
    nbytes: int
    live: tuple[int, ...]


def is_static(function: ir.Operation) -> bool:
    """Return whether a function has one block and no dynamic size."""
    blocks = function.regions[0].blocks
    if len(blocks) != 1:
        return False
    made = (r for op in blocks[0].operations for r in op.operation.results)
    return all(type_.is_static for type_ in tensor_types([*blocks[0].arguments, *made]).values())


# The numbers of parts that are offered.
PARTS = (2, 3, 4, 6, 8, 12)
# How far a region may reach in the program, in ops.
WINDOW = 64
# A region's result is at most this share of the largest value inside.
RESULT_SHARE = 0.5


def regions(graph: ChunkGraph, op: int, end: int, taken: AbstractSet[int]) -> Iterator[Region]:
    """Yield the regions from `end` back to `op` or further, cut along the outermost dimension."""
    call = graph.nodes[end].call
    if call is None:
        return
    # Parts along the first dimension above 1 lie in one piece.
    dim = next((i for i, d in enumerate(call.out.shape) if d is not None and d > 1), None)
    if dim is None or call.dims[dim] is None:
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
            if has_windows(graph, region):
                counts = [n for n in PARTS if size % n == 0]
                kept = ((n, graph.inside(ops, shares(graph, region, n))) for n in counts)
                region = replace(region, halos=tuple(kept))
            yield region


def rows_of(graph: ChunkGraph, region: Region, parts: int, number: int) -> dict[int, Rows]:
    """Return the rows of each op's result that part `number` computes, halos included."""
    each = region.size // parts
    found: dict[int, Rows] = {region.end: (number * each, (number + 1) * each)}
    for i, dim in zip(reversed(region.ops), reversed(region.dims), strict=True):
        call, rows = graph.call(i), found[i]
        needed = operand_rows(call, dim, rows)
        operands = zip(graph.nodes[i].operands, graph.along(i, dim), strict=True)
        for operand in {o for o, at in operands if at is not None and o in region.ops}:
            assert operand is not None
            first, end = found.get(operand, needed)
            found[operand] = (min(first, needed[0]), max(end, needed[1]))
    return found


def has_windows(graph: ChunkGraph, region: Region) -> bool:
    """Return whether parts of a region overlap inside: whether windows slide along what is cut."""
    pairs = zip(region.ops, region.dims, strict=True)
    return any(graph.call(i).windows[dim] for i, dim in pairs)


def shares(graph: ChunkGraph, region: Region, parts: int) -> dict[int, float]:
    """Return the share of each op's result that the part which needs most of it computes."""
    if not has_windows(graph, region):
        return dict.fromkeys(region.ops, 1 / parts)
    every = [rows_of(graph, region, parts, number) for number in range(parts)]
    return {
        i: max(rows[i][1] - rows[i][0] for rows in every) / (graph.call(i).out.shape[dim] or 1)
        for i, dim in zip(region.ops, region.dims, strict=True)
    }


def _closure(graph: ChunkGraph, end: int, dim: int, taken: AbstractSet[int]) -> dict[int, int]:
    """Return the dimension of every op that can run in parts along with `end`."""
    dims = {end: dim}
    requested: dict[int, set[int | None]] = {}

    def ask(i: int) -> None:
        for operand, wanted in zip(graph.nodes[i].operands, graph.along(i, dims[i]), strict=True):
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


def cuts_products(graph: ChunkGraph, region: Region) -> bool:
    """Return whether rows of matrix products are cut, whose sums may then be rounded otherwise."""
    pairs = zip(region.ops, region.dims, strict=True)
    return any(cuts_a_product(graph.call(i), dim) for i, dim in pairs)


def _copies(graph: ChunkGraph, ops: tuple[int, ...], dims: dict[int, int]) -> int:
    """Return the bytes of operands from outside whose parts do not lie in one piece."""
    total = 0
    for i in ops:
        inputs = graph.call(i).inputs
        operands = zip(graph.nodes[i].operands, inputs, graph.along(i, dims[i]), strict=True)
        for operand, type_, at in operands:
            sizes = [d for d in type_.shape if d is not None]
            if operand not in dims and at is not None and prod(sizes[:at]) > 1:
                total += type_.nbytes
    return total
