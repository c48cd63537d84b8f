"""The view of a block that `pyc-fuse` reads: ops, their users and shapes."""

from collections import Counter
from collections.abc import Sequence

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.dialects.ops.quantized import BYTES
from pyc_mlir.pipelines.pyc.fuse.channels import Channels
from pyc_mlir.pipelines.pyc.graph import BlockGraph

# Of concatenations that get copies of those that they share with others.
_MOST_PARTS = 64


class FusionGraph(BlockGraph):
    """A block of which concatenations and slices of channels may be made part by part.

    `users` leaves out what has a copy of such an op.
    """

    def __init__(
        self,
        function: ir.Operation,
        seen: Counter[str] | None = None,
        copies: bool = True,
        windows: bool = True,
    ) -> None:
        """Read a block; `seen` is shared by the functions of a module, as `OpIds` says.

        `copies`: a concatenation that extends another one, which others need too, has a copy of it,
        and is none of its users. `windows`: kernels of windows read parts of images in place of
        their concatenation: what they take so has a copy of it too.
        """
        super().__init__(function)
        self.ids = OpIds(function, seen)
        self.names = [self.name(i) for i in range(len(self.ops))]
        results = [self.result(i) for i in range(len(self.ops))]
        self.shapes = [None if t is None else t.shape for t in results]
        self.sizes = [t.nbytes if t is not None and t.is_static else None for t in results]
        self.elementwise = [self.has(i, Trait.ELEMENTWISE) for i in range(len(self.ops))]
        self._axes = {i: self.axis(i) for i, n in enumerate(self.names) if n == "concat"}
        self._parts: dict[int, int] = {}
        for i in self._axes:
            self._parts[i] = sum(self._parts.get(p, 1) for p in self.producers[i])
        self.channels = Channels.of(self) if windows else Channels()
        for i in self.channels.join - self.channels.unstored:
            self.users[i] = [u for u in self.users[i] if u not in self.channels.unstored]
        self.shared = {i for i in self._axes if copies and self._is_shared(i)}
        for i in self.shared:
            self.users[i] = [user for user in self.users[i] if not self.extends(i, user)]

    def _is_shared(self, i: int) -> bool:
        users = self.users[i]
        return len(users) > 1 and any(self.extends(i, user) for user in users)

    def inputs(self, members: Sequence[int]) -> int:
        """Return how many values from outside the members use."""
        return len({n for i in members for n in self.reads[i]} - {self.makes[i] for i in members})

    def is_narrow(self, i: int) -> bool:
        """Return whether an op's result is bytes."""
        type_ = self.result(i)
        return type_ is not None and type_.dtype in BYTES

    def escapes(self, members: Sequence[int]) -> list[int]:
        """Return the members whose results are used outside."""
        inside = set(members)
        return [i for i in members if not self.users[i] or not inside.issuperset(self.users[i])]

    def closed_prefixes(self, members: Sequence[int]) -> list[int]:
        """Return the lengths n > 1 for which only ``members[:n][-1]`` escapes, the largest first.

        The same as `escapes` of every prefix, in one walk: an op's users stand behind it.
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
        """Return whether a concatenation of few parts reads another one, along the same axis."""
        if not self.channels.unstored.isdisjoint((i, user)):
            return False
        same = i in self._axes and self._axes[i] == self._axes.get(user)
        return same and self._parts[user] <= _MOST_PARTS

    def is_part(self, i: int) -> bool:
        """Return whether all who read a concatenation join its parts in its place."""
        users = self.users[i]
        return (i in self.shared and not users) or (len(users) == 1 and self.extends(i, users[0]))
