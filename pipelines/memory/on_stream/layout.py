"""IREE's own placement of a region's transients: an `ArenaLayout` read from the output of its
passes.

IREE's ``iree-stream-layout-slices`` replaces each result of a ``stream.resource.pack`` by a
constant offset and forgets which was which. So remember one use of each before (`watch`), and read
the constants there after (`WatchedPack.layout`). Nothing is edited.
"""

from dataclasses import dataclass
from typing import Any

from pyc_mlir.pipelines.memory.layout import ArenaLayout
from pyc_mlir.pipelines.memory.picture import layout_of_slices
from pyc_mlir.pipelines.streams.ir import constant_of, group, ir, operations

_CMD_DISPATCH = "stream.cmd.dispatch"


@dataclass(frozen=True)
class WatchedPack:
    """A pack's slices (first step, last step, bytes), who writes each, and a use of its offset.

    The ops in `uses` live until IREE's later passes rewrite them: read the layout right after
    the slices are laid out.
    """

    slices: tuple[tuple[int, int, int], ...]
    writers: tuple[str, ...]
    uses: tuple[tuple[Any, int], ...]

    def layout(self, seconds: float = 0.0) -> ArenaLayout | None:
        """Return the layout; None where an offset is no constant. `seconds` are predicted."""
        offsets = [constant_of(op.operands[place]) for op, place in self.uses]
        known = [offset for offset in offsets if offset is not None]
        if len(known) < len(offsets):
            return None
        return layout_of_slices(self.slices, known, names=self.writers, seconds=seconds)


def watch(execute: Any, pack: Any, alignment: int = 64) -> WatchedPack | None:
    """Remember a pack whose memory the ``stream.cmd.execute`` works in; None for unknown sizes."""
    sizes = [constant_of(v) for v in group(pack, 1)]
    if group(pack, 0) or None in sizes:
        return None
    order = {op: i for i, op in enumerate(_inner(execute))}
    ends = [ir.IntegerAttr(a).value for a in ir.ArrayAttr(pack.attributes["lifetime_intervals"])]
    rounded = [-(-(size or 0) // alignment) * alignment for size in sizes]
    slices, writers, uses = [], [], []
    for *slice_, offset in zip(ends[::2], ends[1::2], rounded, list(pack.results)[1:], strict=True):
        places = [(use.owner.operation, use.operand_number) for use in offset.uses]
        if places:
            first, last, size = slice_
            slices.append((first, last, size))
            uses.append(places[0])
            within = [op for op, _ in places if op in order]
            writers.append(_name(min(within, key=lambda op: order[op], default=None)))
    return WatchedPack(tuple(slices), tuple(writers), tuple(uses))


def _inner(op: Any) -> list[Any]:
    """Return all ops under one, in the order of the text."""
    found = []
    for region in op.regions:
        for block in region.blocks:
            for child in operations(block):
                found += [child, *_inner(child)]
    return found


def _name(op: Any | None) -> str:
    """Name the dispatch that an op calls, else what the op does; empty without one."""
    if op is None:
        return ""
    if op.name != _CMD_DISPATCH:
        return op.name.rpartition(".")[2]
    return str(ir.ArrayAttr(op.attributes["entry_points"])[0]).rpartition("@")[2]
