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
from pyc_mlir.dialects.types import TensorType
from pyc_mlir.pipelines.pyc.chunk.dims import OpCall, hidden_bytes
from pyc_mlir.pipelines.pyc.fuse.channels import Channels
from pyc_mlir.pipelines.pyc.rewriting import definition_of, params_of, tensor_types, values_read


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

    @property
    def name(self) -> str:
        """The op's name, empty where it must run whole."""
        return "" if self.call is None else self.call.definition.name

    @property
    def anchor(self) -> str:
        """The kind of the groups that the op starts, empty where it starts none."""
        return "" if self.call is None else self.call.definition.anchor

    def has(self, traits: Trait) -> bool:
        """Return whether the op has one of these traits and may run in parts."""
        return self.call is not None and self.call.definition.has(traits)

    @property
    def is_elementwise(self) -> bool:
        """True where an element of the result needs only the elements of the same place."""
        return self.has(Trait.ELEMENTWISE)


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
        """The most bytes live at once of what stays inside, one of so many parts at a time."""
        return dict(self.halos).get(parts, -(-self.inside // parts))

    @property
    def end(self) -> int:
        """The op whose result leaves."""
        return self.ops[-1]


class ChunkGraph:
    """A function's block as data, read once."""

    def __init__(self, function: ir.Operation, joins: bool = True) -> None:
        """`joins`: kernels read parts in place of their concatenation, or join them in one pass."""
        self.ops = [op.operation for op in function.regions[0].blocks[0].operations]
        made = {r: i for i, op in enumerate(self.ops) for r in op.results}
        returned = {made[v] for v in self.ops[-1].operands if v in made}
        types = tensor_types(_values(function.regions[0].blocks[0]))
        self.nodes = [_node(op, made, types, i in returned) for i, op in enumerate(self.ops)]
        self.unstored: frozenset[int] = frozenset()
        if joins:
            self._read_parts()
        self.users = self._users()
        self.storage = list(range(len(self.ops)))
        for i, node in enumerate(self.nodes):
            if node.has(Trait.VIEW) and node.reads:
                self.storage[i] = self.storage[node.reads[0]]
        self._viewed_result(returned)

    def _users(self) -> list[list[int]]:
        users: list[list[int]] = [[] for _ in self.ops]
        for i, node in enumerate(self.nodes):
            for read in node.reads:
                users[read].append(i)
        return users

    def _read_parts(self) -> None:
        """What is not stored takes no bytes, and who reads it reads what it is made of."""
        users = self._users()
        unstored = Channels.of(self.ops, [node.reads for node in self.nodes], users).unstored
        unstored |= {i for i in range(len(self.ops)) if self._is_joined_later(i, users[i])}
        self.unstored = unstored
        for i, node in enumerate(self.nodes):
            behind = [p for r in node.reads if r in unstored for p in self.nodes[r].reads]
            reads = tuple(dict.fromkeys([*node.reads, *behind]))
            self.nodes[i] = replace(node, reads=reads, nbytes=0 if i in unstored else node.nbytes)

    def _is_joined_later(self, i: int, users: Sequence[int]) -> bool:
        """Whether a concatenation is part of others, and of one elementwise op, at most.

        Each of these joins all parts by itself, in one pass.
        """
        node = self.nodes[i]
        others = [u for u in users if self._axis(u) is None or self._axis(u) != self._axis(i)]
        fused = all(self.nodes[u].is_elementwise for u in others) and len(others) <= 1
        return self._axis(i) is not None and len(users) > 0 and fused and node.nbytes > 0

    def _axis(self, i: int) -> int | None:
        """The axis of a concatenation; None for other ops."""
        call = self.nodes[i].call
        if call is None or call.definition.name != "concat":
            return None
        return call.params["axis"] % call.out.rank

    def _viewed_result(self, returned: set[int]) -> None:
        """What is returned under another shape is a result too."""
        for i in {self.storage[i] for i in returned}:
            node = self.nodes[i]
            self.nodes[i] = ChunkNode(node.call, node.operands, node.reads, 0)

    def needs(self, parts: Mapping[Region, int]) -> list["ItemMemory"]:
        """Bytes for every item, regions running in that many parts; in program order."""
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
        """By op that is computed within the elementwise op which reads it: that op.

        A sum of two values melts into the sum that reads it, and what it reads lives until then;
        unless the reader is computed with a product that it reads, one after another.
        """
        into: dict[int, int] = {}
        for i in range(len(self.ops) - 1, -1, -1):
            reader = self._elementwise_reader[i]
            if reader is None or i in inside or reader in inside:
                continue
            products = (
                r for r in self.nodes[reader].reads if self.nodes[r].anchor == "contraction"
            )
            if all(r in inside or len(self.users[r]) > 1 for r in products):
                into[i] = into.get(reader, reader)
        return into

    @cached_property
    def _elementwise_reader(self) -> list[int | None]:
        """For an elementwise op of two values its one reader, if also elementwise and as large."""

        def reader(i: int) -> int | None:
            users = self.users[i]
            read = {s for r in self.nodes[i].reads if self.nodes[s := self.storage[r]].nbytes}
            if len(users) != 1 or not self.nodes[i].is_elementwise or len(read) < 2:
                return None
            same = self.nodes[users[0]].nbytes == self.nodes[i].nbytes
            return users[0] if same and self.nodes[users[0]].is_elementwise else None

        return [reader(i) for i in range(len(self.ops))]

    def _last_uses(self, place: Mapping[int, int], melted: Mapping[int, int]) -> dict[int, int]:
        """By storage that takes scratch: the place of the last item that reads it."""
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
        return node.nbytes if node.has(Trait.OVERWRITES) and fits else 0

    def inside(self, ops: Sequence[int], shares: Mapping[int, float] | None = None) -> int:
        """The most bytes live at once of what a region of these ops keeps to itself.

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
    """What one item of the program needs: `nbytes` in all, of the results of ops `live` and own."""

    op: int
    region: Region | None
    nbytes: int
    live: tuple[int, ...]


def _node(
    op: ir.Operation,
    made: Mapping[ir.Value, int],
    types: Mapping[ir.Type, TensorType],
    is_result: bool,
) -> ChunkNode:
    own = list(op.operands)
    reads = tuple(dict.fromkeys([made[v] for v in values_read(op) if v in made]))
    free = op.name == "pyc.constant" or is_result
    # What is no tensor lies in a register of the host.
    nbytes = [types[r.type].nbytes for r in op.results if r.type in types]
    operands = tuple([made.get(v) for v in own])
    return ChunkNode(_call(op, own, types), operands, reads, 0 if free else sum(nbytes))


def _call(
    op: ir.Operation, operands: Sequence[ir.Value], types: Mapping[ir.Type, TensorType]
) -> OpCall | None:
    """The op as data; None for what is no pyc op and for what computes from nothing."""
    definition = definition_of(op)
    if definition is None or not operands:
        return None
    inputs = tuple([types[v.type] for v in operands])
    return OpCall(definition, inputs, types[op.result.type], params_of(definition, op))


def _values(block: ir.Block) -> list[ir.Value]:
    """The arguments and results of a block."""
    return [*block.arguments, *(r for op in block.operations for r in op.operation.results)]


def is_static(function: ir.Operation) -> bool:
    """Whether a function has one block and no dynamic size."""
    blocks = function.regions[0].blocks
    if len(blocks) != 1:
        return False
    return all(type_.is_static for type_ in tensor_types(_values(blocks[0])).values())
