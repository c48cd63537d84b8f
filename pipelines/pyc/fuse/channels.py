"""Concatenations and slices of channels that are never stored: kernels read what they are made of.

The kernels of convolutions and poolings read images whose channels lie in several tensors, or in a
part of one (`kernels/families/conv/sources.py`). Where nothing else reads such an image, it is
part of each group that does, as a copy if there are several.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.opdef import Trait
from pyc_mlir.pipelines.driver.base import PassContext
from pyc_mlir.pipelines.kernels.families.conv.sources import MOST_PARTS, takes_channels
from pyc_mlir.pipelines.kernels.registry import refuse_narrow
from pyc_mlir.pipelines.pyc.rewriting import definition_of, params_of
from pyc_mlir.pipelines.target.work import F32

_FAMILIES = ("conv", "depthwise", "pool")


def reads_parts(context: PassContext) -> bool:
    """Whether a compile has kernels that read images in parts."""
    return not refuse_narrow(context.target) and all(map(context.takes, _FAMILIES))


@dataclass(frozen=True)
class Channels:
    """Positions of ops that `join` or take channels of images, and of those that are `unstored`."""

    join: frozenset[int] = frozenset()
    unstored: frozenset[int] = frozenset()

    @staticmethod
    def of(
        ops: Sequence[ir.Operation],
        producers: Sequence[Sequence[int]],
        users: Sequence[Sequence[int]],
    ) -> "Channels":
        """Unstored is what only windows read, or others that are unstored."""
        parts: dict[int, int] = {}
        for i, op in enumerate(ops):
            if _moves_channels(op):
                parts[i] = sum(parts.get(p, 1) for p in producers[i]) or 1
        found: set[int] = set()
        for i in sorted(parts, reverse=True):
            few = parts[i] <= MOST_PARTS and len(users[i]) > 0
            if few and all(u in found or _reads_parts(ops[u], ops[i].result) for u in users[i]):
                found.add(i)
        return Channels(frozenset(parts), frozenset(found))

    def before(self, producers: Sequence[Sequence[int]], window: int) -> list[int]:
        """The ops that the group of a window has in front of it, in order."""
        found: set[int] = set()
        pending = list(self.unstored.intersection(producers[window]))
        while pending:
            i = pending.pop()
            found.add(i)
            pending.extend(self.join.intersection(producers[i]) - found)
        return sorted(found)


def _moves_channels(op: ir.Operation) -> bool:
    definition = definition_of(op)
    if definition is None or definition.name not in ("concat", "slice"):
        return False
    result = from_mlir(op.result.type)
    shapes = [from_mlir(v.type).shape for v in op.operands]
    params = params_of(definition, op)
    return result.dtype == F32 and takes_channels(definition.name, params, shapes, result.shape)


def _reads_parts(window: ir.Operation, images: ir.Value) -> bool:
    """Whether a window's kernel reads the images and nothing else of them."""
    definition = definition_of(window)
    if definition is None or not definition.has(Trait.WINDOW):
        return False
    own, *others = window.operands
    params = params_of(definition, window)
    if own != images or images in others or params["layout"] != "NHWC":
        return False
    if not others:
        return True
    (weights,) = others
    maker = weights.owner
    constant = not isinstance(maker, ir.Block) and maker.operation.name == "pyc.constant"
    channels, filters = (from_mlir(v.type).shape[3] for v in (images, window.result))
    return (
        constant
        and params["groups"] in (1, channels)
        and (params["groups"] == 1 or channels == filters)
    )
