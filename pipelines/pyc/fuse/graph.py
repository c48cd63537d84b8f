"""One function's block as positions: what `pyc-fuse` asks about ops, their users and shapes."""

from collections import Counter
from collections.abc import Mapping, Sequence

from pyc_mlir.dialects.ir.attributes import definition_of, params_of
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.opdef import OPS, Trait
from pyc_mlir.dialects.ops.quantized import BYTES
from pyc_mlir.dialects.types import Shape, TensorType
from pyc_mlir.pipelines.pyc.fuse.channels import Channels
from pyc_mlir.pipelines.pyc.rewriting import tensor_types

# Of concatenations that get copies of those that they share with others.
_MOST_PARTS = 64


def axis_of(op: ir.Operation) -> int:
    """The axis of a concatenation, from the first dimension on."""
    return params_of(OPS["concat"], op)["axis"] % from_mlir(op.result.type).rank


class FusionGraph:
    """One function's block as positions: names, users and shapes, read once."""

    def __init__(
        self,
        function: ir.Operation,
        seen: Counter[str] | None = None,
        copies: bool = True,
        windows: bool = True,
    ) -> None:
        """`seen` is shared by the functions of a module, as `OpIds` says.

        `copies`: a concatenation that extends another one, which others need too, has a copy of it,
        and is none of its users. `windows`: kernels of windows read parts of images in place of
        their concatenation: what they take so has a copy of it too.
        """
        self.ids = OpIds(function, seen)
        self.ops = [op.operation for op in function.regions[0].blocks[0].operations]
        position = {op: i for i, op in enumerate(self.ops)}
        self.names = [op.name.removeprefix("pyc.") for op in self.ops]
        types = tensor_types(r for op in self.ops for r in op.results)
        self.types = [_result_type(op, types) for op in self.ops]
        self.sizes = [t.nbytes if t is not None and t.is_static else None for t in self.types]
        self.definitions = [definition_of(op) for op in self.ops]
        self.elementwise = [d is not None and d.has(Trait.ELEMENTWISE) for d in self.definitions]
        self.users: list[list[int]] = [[] for _ in self.ops]
        self.producers: list[list[int]] = [[] for _ in self.ops]
        for i, op in enumerate(self.ops):
            for operand in op.operands:
                owner = operand.owner
                made = None if isinstance(owner, ir.Block) else position.get(owner.operation)
                if made is not None:
                    self.users[made].append(i)
                    self.producers[i].append(made)
        self._captured(position)
        self._axes = {i: axis_of(self.ops[i]) for i, n in enumerate(self.names) if n == "concat"}
        self._parts: dict[int, int] = {}
        for i in self._axes:
            self._parts[i] = sum(self._parts.get(p, 1) for p in self.producers[i])
        read = (self.ops, self.producers, self.users)
        self.channels = Channels.of(*read) if windows else Channels()
        for i in self.channels.join - self.channels.unstored:
            self.users[i] = [u for u in self.users[i] if u not in self.channels.unstored]
        self.shared = {i for i in self._axes if copies and self._is_shared(i)}
        for i in self.shared:
            self.users[i] = [user for user in self.users[i] if not self.extends(i, user)]

    def _is_shared(self, i: int) -> bool:
        users = self.users[i]
        return len(users) > 1 and any(self.extends(i, user) for user in users)

    def _captured(self, position: dict[ir.Operation, int]) -> None:
        """Values used inside regions count as used by the op that holds the region."""
        for i, op in enumerate(self.ops):
            for region in op.regions:
                for inner in region.blocks[0].operations:
                    for operand in inner.operation.operands:
                        owner = operand.owner
                        if not isinstance(owner, ir.Block) and owner.operation in position:
                            self.users[position[owner.operation]].append(i)

    def anchor(self, i: int) -> str:
        """Return the kind of the groups that an op starts; empty where it starts none."""
        definition = self.definitions[i]
        return "" if definition is None else definition.anchor

    def shape(self, i: int) -> Shape | None:
        """The shape of an op's result; None for ops of other dialects."""
        type_ = self.types[i]
        return None if type_ is None else type_.shape

    def is_narrow(self, i: int) -> bool:
        """Whether an op's result is bytes."""
        type_ = self.types[i]
        return type_ is not None and type_.dtype in BYTES

    def reads(self, members: Sequence[int]) -> int:
        """How many values from outside the members use."""
        made = {self.ops[i].result for i in members}
        return len({v for i in members for v in self.ops[i].operands} - made)

    def escapes(self, members: Sequence[int]) -> list[int]:
        """The members whose results are used outside."""
        inside = set(members)
        return [i for i in members if not self.users[i] or not inside.issuperset(self.users[i])]

    def closed_prefixes(self, members: Sequence[int]) -> list[int]:
        """The lengths n > 1 for which only ``members[:n][-1]`` escapes, the largest first.

        As asking `escapes` of every prefix, in one walk: an op's users stand behind it.
        """
        place = {member: n for n, member in enumerate(members)}
        lengths, needed = [], 0
        for n, member in enumerate(members):
            if n > 0 and needed <= n:
                lengths.append(n + 1)
            users = self.users[member]
            if not users or not place.keys() >= set(users):
                break
            needed = max(needed, *(place[u] for u in users))
        return lengths[::-1]

    def extends(self, i: int, user: int) -> bool:
        """Whether a concatenation of few parts reads another one, along the same axis."""
        if not self.channels.unstored.isdisjoint((i, user)):
            return False
        same = i in self._axes and self._axes[i] == self._axes.get(user)
        return same and self._parts[user] <= _MOST_PARTS

    def is_part(self, i: int) -> bool:
        """Whether all who read a concatenation join its parts in its place."""
        users = self.users[i]
        return (i in self.shared and not users) or (len(users) == 1 and self.extends(i, users[0]))


def _result_type(op: ir.Operation, types: Mapping[ir.Type, TensorType]) -> TensorType | None:
    is_ours = op.name.startswith("pyc.") and len(op.results) == 1
    return types.get(op.result.type) if is_ours else None
