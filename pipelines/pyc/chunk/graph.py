"""Live values at each op of a function, also if some regions run in parts.

Comes in: a function of one block. Goes out: a `ChunkGraph` of plain data, one node an op, and the
bytes that each item of the program needs: an op, or a region in parts as if it were one op. It is
an estimate in program order, without packing: what is elementwise or row-wise overwrites an operand
that dies, a sum read by one other sum is computed there, reshapes are views, what windows read in
parts is not stored, and arguments, constants and results take no scratch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.pipelines.pyc.chunk.dims import OpCall, hidden_bytes
from pyc_mlir.pipelines.pyc.fuse.channels import Channels
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
            self._read_parts()
        self.users = [[] for _ in self.ops]
        for i, node in enumerate(self.nodes):
            for read in node.reads:
                self.users[read].append(i)
        self.storage = list(range(len(self.ops)))
        for i, node in enumerate(self.nodes):
            if self.has(i, Trait.VIEW) and node.reads:
                self.storage[i] = self.storage[node.reads[0]]
        self._viewed_result(returned)

    def _node(self, i: int, is_result: bool) -> ChunkNode:
        end = self.makes[i] + len(self.ops[i].results)
        # What is no tensor lies in a register of the host.
        made = [t.nbytes for t in self.types[self.makes[i] : end] if t is not None]
        free = self.name(i) == "constant" or is_result
        operands = tuple(self.makers[n] for n in self.operands[i])
        reads = tuple(dict.fromkeys(self.producers[i]))
        return ChunkNode(self._call(i), operands, reads, 0 if free else sum(made))

    def _call(self, i: int) -> OpCall | None:
        """Return the op as data; None for what is no pyc op and for what computes from nothing."""
        definition = self.definitions[i]
        if definition is None or not self.operands[i]:
            return None
        inputs = tuple(map(self.type, self.operands[i]))
        return OpCall(definition, inputs, self.type(self.makes[i]), self.params(i))

    def _read_parts(self) -> None:
        """Give unstored values no bytes; their readers read their operands instead."""
        unstored = Channels.of(self).unstored
        unstored |= {i for i in range(len(self.ops)) if self._is_joined_later(i)}
        self.unstored = unstored
        for i, node in enumerate(self.nodes):
            behind = [p for r in node.reads if r in unstored for p in self.nodes[r].reads]
            reads = tuple(dict.fromkeys([*node.reads, *behind]))
            self.nodes[i] = replace(node, reads=reads, nbytes=0 if i in unstored else node.nbytes)

    def _is_joined_later(self, i: int) -> bool:
        """Return whether a concatenation is part of others, and of one elementwise op, at most.

        Each of these joins all parts by itself, in one pass.
        """
        users = dict.fromkeys(self.users[i])
        if self.name(i) != "concat" or not users or not self.nodes[i].nbytes:
            return False
        others = [u for u in users if self.name(u) != "concat" or self.axis(u) != self.axis(i)]
        return len(others) <= 1 and all(self.has(u, Trait.ELEMENTWISE) for u in others)

    def _viewed_result(self, returned: set[int]) -> None:
        """Take what is returned under another shape for a result too."""
        for i in {self.storage[i] for i in returned}:
            node = self.nodes[i]
            self.nodes[i] = ChunkNode(node.call, node.operands, node.reads, 0)

    def needs(self, parts: Mapping[Region, int]) -> list["ItemMemory"]:
        """Return the bytes for every item, regions running in that many parts; in program order."""
        inside = {i: region for region in parts for i in region.ops}
        ends = {region.end for region in parts}
        items = [(i, inside.get(i)) for i in range(len(self.ops)) if i in ends or i not in inside]
        place = {i: at for at, (i, _) in enumerate(items)}
        place |= {i: place[region.end] for i, region in inside.items()}
        melted = self._melted(inside)
        place |= {i: place[into] for i, into in melted.items()}
        last = self._last_uses(place, melted)
        starts: list[list[int]] = [[] for _ in items]
        for storage in last:
            if storage in ends or storage not in inside:
                starts[place[storage]].append(storage)
        live: dict[int, int] = {}
        found = []
        for at, (i, region) in enumerate(items):
            live.update({s: self.nodes[s].nbytes for s in starts[at]})
            extra = self.nodes[i].hidden if region is None else region.inside_of(parts[region])
            taken = self._taken_over(i, last, at) if region is None else 0
            found.append(ItemMemory(i, region, sum(live.values()) + extra - taken, tuple(live)))
            for storage in [s for s in live if last[s] <= at]:
                del live[storage]
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

    def _last_uses(self, place: Mapping[int, int], melted: Mapping[int, int]) -> dict[int, int]:
        """Return, by storage that takes scratch, the place of the last item that reads it."""
        last: dict[int, int] = {}
        for i in range(len(self.ops)):
            storage = self.storage[i]
            if self.nodes[storage].nbytes and storage not in melted:
                ends = [place[i], *(place[u] for u in self.users[i])]
                last[storage] = max([last.get(storage, 0), *ends])
        return last

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

        members, end = set(ops), ops[-1]
        last: dict[int, int] = {}
        for i in ops:
            for read in self.nodes[i].reads:
                if read in members:
                    last[self.storage[read]] = i
        live: dict[int, int] = {}
        most = 0
        for i in ops:
            if i != end and self.storage[i] == i:
                live[i] = nbytes(i)
            taken = self._taken_over(i, {s: s_end for s, s_end in last.items() if s in live}, i)
            own = nbytes(i) if taken and i != end else 0
            most = max(most, sum(live.values()) + self.nodes[i].hidden - own)
            for storage in [s for s in live if last.get(s, i) <= i]:
                del live[storage]
        return most


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
