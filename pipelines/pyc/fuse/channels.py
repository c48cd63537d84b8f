"""Concatenations and slices of channels that are never stored: kernels read what they are made of.

The kernels of convolutions and poolings read images whose channels lie in several tensors, or in a
part of one (`kernels/families/window.py`). Where nothing else reads such an image, it is
part of each group that does, as a copy if there are several.
"""

from dataclasses import dataclass

from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.kernels.families.window import MOST_PARTS, takes_channels
from pyc_mlir.pipelines.kernels.registry import refuse_narrow
from pyc_mlir.pipelines.pyc.graph import BlockGraph
from pyc_mlir.pipelines.target.work import F32

_FAMILIES = ("conv", "depthwise", "pool")


def reads_parts(context: PassContext) -> bool:
    """Return whether a compile has kernels that read images in parts."""
    return not refuse_narrow(context.target) and all(map(context.kernels.take, _FAMILIES))


@dataclass(frozen=True)
class Channels:
    """Positions of ops that `join` or take channels of images, and of those that are `unstored`."""

    join: frozenset[int] = frozenset()
    unstored: frozenset[int] = frozenset()

    @staticmethod
    def of(graph: BlockGraph) -> "Channels":
        """Return what moves channels; of it, only windows or what is unstored read the unstored."""
        parts: dict[int, int] = {}
        for i, producers in enumerate(graph.producers):
            if _moves_channels(graph, i):
                parts[i] = sum(parts.get(p, 1) for p in producers) or 1
        found: set[int] = set()
        for i in sorted(parts, reverse=True):
            users = graph.users[i]
            few = parts[i] <= MOST_PARTS and len(users) > 0
            if few and all(u in found or _reads_parts(graph, u, graph.makes[i]) for u in users):
                found.add(i)
        return Channels(frozenset(parts), frozenset(found))

    def before(self, graph: BlockGraph, window: int) -> list[int]:
        """Return the ops that the group of a window has in front of it, in order."""
        found: set[int] = set()
        pending = list(self.unstored.intersection(graph.producers[window]))
        while pending:
            i = pending.pop()
            found.add(i)
            pending.extend(self.join.intersection(graph.producers[i]) - found)
        return sorted(found)


def _moves_channels(graph: BlockGraph, i: int) -> bool:
    name = graph.name(i)
    if name not in ("concat", "slice"):
        return False
    result = graph.type(graph.makes[i])
    shapes = [graph.type(n).shape for n in graph.operands[i]]
    return result.dtype == F32 and takes_channels(name, graph.params(i), shapes, result.shape)


def _reads_parts(graph: BlockGraph, window: int, images: int) -> bool:
    """Return whether a window's kernel reads the images, and of them nothing else."""
    if not graph.has(window, Trait.WINDOW):
        return False
    own, *others = graph.operands[window]
    params = graph.params(window)
    if own != images or images in others or params["layout"] != "NHWC":
        return False
    if not others:
        return True
    channels, filters = (graph.type(n).shape[3] for n in (images, graph.makes[window]))
    groups = params["groups"]
    depthwise = groups == channels == filters
    return graph.is_constant(others[0]) and (groups == 1 or depthwise)
