"""Store the images of convolutional networks with their channels last (NHWC).

Comes in: functions of pyc ops in which convolutions and poolings are NCHW, as ONNX and torch have
them. Goes out: the same, with regions around convolutions on tensors that are stored in another
order: weights and other constants are laid out here, the transposes of the program vanish into the
order, and new ones stand only where a region meets the rest, one for each value. Arguments and
results stay as they are. Generated kernels run their vectors over channels, hence NHWC.

Analysis gives each op a step (`orders.py`), steps that share stored values are a region, each
region is one choice, and only `_Rewriter` touches the program. docs/design-notes/layout.md has the
reasons and what was turned down.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder, create
from pyc_mlir.dialects.ir.ids import OpIds
from pyc_mlir.dialects.opdef import OPS, Trait
from pyc_mlir.dialects.ops.movement import copied
from pyc_mlir.dialects.ops.quantized import BYTES
from pyc_mlir.pipelines.choices.choices import Alternative, Site
from pyc_mlir.pipelines.driver.base import PassContext, Relation, option, require_target
from pyc_mlir.pipelines.kernels.lang.attributes import ATTRIBUTE
from pyc_mlir.pipelines.kernels.registry import refuse_narrow
from pyc_mlir.pipelines.pyc.graph import BlockGraph
from pyc_mlir.pipelines.pyc.groups import Members
from pyc_mlir.pipelines.pyc.orders import (
    Order,
    OrderedOp,
    between,
    moves,
    normal,
    step_of,
    stored_shape,
    widened,
)
from pyc_mlir.pipelines.pyc.rewriting import carry_marks, constant_array, functions_of, is_unused
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel, totals
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, float_type, nominal

KEEP, CHANNELS_LAST = "keep", "NHWC"
_CONVOLUTIONS = ("conv2d", "integer_conv2d")


@dataclass(frozen=True)
class Layout:
    """Store regions around convolutions with channels last, where that is predicted to pay."""

    name: ClassVar[str] = "pyc-layout"
    relation: ClassVar[Relation] = Relation.REALS
    target: str = option("", "the target that costs are for; empty: the compile's")

    def __post_init__(self) -> None:
        """Raise PycError (INVALID_PIPELINE) for a target that does not exist."""
        require_target(self.target)

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Choose for every region of every function of one block."""
        counts = {"regions": 0, "channels last": 0, "conversions": 0}
        target = Target.named(self.target) if self.target else context.target
        model = CostModel(target, None if self.target else context.calibration)
        seen: Counter[str] = Counter()
        for function in functions_of(module):
            if len(function.regions[0].blocks) != 1:
                continue
            graph = LayoutGraph(function)
            regions = plan(graph)
            ids = OpIds(function, seen) if regions else None
            chosen = [r for r in regions if ids and _choose(graph, r, ids, context, model)]
            steps = dict(sorted((i, step) for region in chosen for i, step in region.items()))
            rewriter = _Rewriter(graph, steps)
            rewriter.run()
            counts["regions"] += len(chosen)
            counts["channels last"] += sum(_is_window(graph.works[i]) for i in steps)
            counts["conversions"] += rewriter.conversions
        return counts


class LayoutGraph(BlockGraph):
    """A block with each lone op as `Work`; None for groups, other dialects, attached kernels."""

    def __init__(self, function: ir.Operation) -> None:
        super().__init__(function)
        self.works: list[Work | None] = []
        for op in self.ops:
            is_lone = op.name.startswith("pyc.") and not len(op.regions)
            members = Members.of(op) if is_lone and ATTRIBUTE not in op.attributes else None
            self.works.append(members and members.work())


def _is_window(work: Work | None) -> bool:
    """Return whether an op has a layout of its own: convolution or pooling."""
    return work is not None and "layout" in work.nodes[0].params


Region = Mapping[int, OrderedOp]


@dataclass(frozen=True)
class Conversion:
    """A value that is needed in another order than it is stored in."""

    value: int
    have: Order | None
    need: Order | None


def plan(graph: LayoutGraph) -> list[Region]:
    """Return the regions with convolutions, and those that only lose transposes."""
    steps: dict[int, OrderedOp] = {}
    stored: dict[int, Order] = {}
    for i, work in enumerate(graph.works):
        step = work and step_of(work, [stored.get(n) for n in graph.reads[i]])
        if step and not _is_slow_in_iree(graph, i):
            steps[i] = step
            if step.out is not None:
                stored[graph.makes[i]] = step.out
    found = []
    for region in _connected(graph, steps, stored):
        if not any(graph.name(i) in _CONVOLUTIONS for i in region):
            left = any(_bytes_moved(graph, c) for c in conversions(graph, region))
            if left or not any(_is_moving_transpose(graph, i) for i in region):
                continue
        found.append(region)
    return found


def _is_slow_in_iree(graph: LayoutGraph, i: int) -> bool:
    """Return whether an op is a convolution of several taps whose weights are not constant.

    No kernel takes it, and IREE would fuse the transpose of its weights into it: 60 ms in place of
    0.6 for 8 images of 8x8x64 and 128 filters of 3x3. Filters of 1x1 are a product of matrices,
    which gains: 0.24 ms in place of 0.46.
    """
    if graph.name(i) != "conv2d" or graph.is_constant(graph.reads[i][1]):
        return False
    return graph.type(graph.reads[i][1]).shape[2:] != (1, 1)


def _connected(graph: LayoutGraph, steps: Region, stored: Mapping[int, Order]) -> Iterator[Region]:
    """Yield steps that hand stored values to each other, in program order."""
    root = {i: i for i in steps}
    maker = {graph.makes[i]: i for i in steps}

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = i = root[root[i]]
        return i

    for i, step in steps.items():
        for n, need in zip(graph.reads[i], step.needs, strict=True):
            if need is not None and n in stored:
                low, high = sorted((find(i), find(maker[n])))
                root[high] = low
    regions: dict[int, dict[int, OrderedOp]] = {}
    for i, step in steps.items():
        regions.setdefault(find(i), {})[i] = step
    yield from regions.values()


def conversions(graph: LayoutGraph, region: Region) -> list[Conversion]:
    """Return the conversions where a region meets the rest, and inside; one for each value."""
    found: dict[Conversion, None] = {}
    own = {graph.makes[i]: step.out for i, step in region.items()}
    for i, step in region.items():
        for n, need in zip(graph.reads[i], step.needs, strict=True):
            if not graph.is_constant(n):
                found[Conversion(n, own.get(n), need)] = None
        n = graph.makes[i]
        if any(reader not in region for reader in graph.readers[n]):
            found[Conversion(n, step.out, None)] = None
    return [c for c in found if c.have != c.need]


def _bytes_moved(graph: LayoutGraph, conversion: Conversion) -> int:
    """Return the bytes of the value; 0 where a reshape does."""
    type_, have, need = graph.type(conversion.value), conversion.have, conversion.need
    rank = len(need or type_.shape)
    shape = (1,) * (rank - type_.rank) + stored_shape(type_.shape, have)
    moving = moves(shape, between(have, need, rank))
    return nominal(shape) * type_.dtype.itemsize if moving else 0


def _is_moving_transpose(graph: LayoutGraph, i: int) -> bool:
    """Return whether the program itself moves elements there."""
    if not graph.has(i, Trait.PERMUTES):
        return False
    return moves(graph.type(graph.reads[i][0]).shape, graph.params(i)["permutation"])


def _choose(
    graph: LayoutGraph, region: Region, ids: OpIds, context: PassContext, model: CostModel
) -> bool:
    """Return whether the region is stored with channels last; of equal costs `keep` is first."""
    windows = [w for i in region if (w := graph.works[i]) is not None and _is_window(w)]
    before = [graph.type(graph.makes[i]) for i in region if _is_moving_transpose(graph, i)]
    own = [nominal(t.shape) * t.dtype.itemsize for t in before]
    moved = [b for c in conversions(graph, region) if (b := _bytes_moved(graph, c))]
    keep = _summed([*(model.work(w) for w in windows), *(_copy(model, b) for b in own)])
    inside = [_in_kernel(model, context, w) for w in windows]
    last = _summed([*inside, *(_copy(model, b) for b in moved)])
    offers = [
        Alternative(KEEP, keep, _reason(windows, own)),
        Alternative(CHANNELS_LAST, last, _reason(windows, moved)),
    ]
    op = graph.ops[next((i for i in region if _is_window(graph.works[i])), min(region))]
    site = Site(Layout.name, ids[op], str(op.location), ids.by_type[op])
    ranked = sorted(offers, key=lambda offer: offer.cost or Cost())
    return context.choices.choose(site, ranked).name == CHANNELS_LAST


def _summed(costs: list[Cost]) -> Cost:
    return sum(costs, Cost())


def _copy(model: CostModel, nbytes: int) -> Cost:
    """Return the cost of a transpose: every byte is read and written."""
    cost = model.copy(2 * nbytes)
    return replace(cost, seconds=cost.seconds + model.dispatch_seconds)


def _in_kernel(model: CostModel, context: PassContext, work: Work) -> Cost:
    """Return the cost in NHWC: of a generated kernel where there can be one."""
    node = work.nodes[0]
    computed_weights = not all(work.is_constant(v) for v in node.operands[1:2])
    if node.name == "integer_conv2d" and not refuse_narrow(model.target) and not computed_weights:
        return (
            model.kernel("int8.madd", *totals(work))
            if context.kernels.take("int8")
            else model.work(work)
        )
    if node.name == "max_pool2d" and node.type.dtype in BYTES:
        kept = context.kernels.take("int8_pool") and not refuse_narrow(model.target)
        return model.kernel("pool", *totals(work)) if kept else model.work(work)
    family = "resize" if node.name == "resize" else "pool"
    if node.name == "conv2d":
        by_channel = node.params["groups"] > 1 and work.type(node.operands[1]).shape[1] == 1
        family = "depthwise" if by_channel else "conv"
    missing = refuse_narrow(model.target) or not context.kernels.take(family)
    missing = missing or not _has_kernel(work, family)
    if missing or not float_type(work, [work.number_of(0)]) or computed_weights:
        return model.work(work)
    return model.kernel(family, *totals(work))


def _has_kernel(work: Work, family: str) -> bool:
    """Return whether the size of the images is known, or of no matter to the family.

    A pooling takes any where each window meets an image of every size.
    """
    node = work.nodes[0]
    unknown = [axis for axis in (0, 1) if work.type(node.operands[0]).shape[2 + axis] is None]
    if family != "pool":
        return family != "resize" or not unknown
    pads, taps = node.params["pads"], node.params["kernel"]
    return all(pads[a] + pads[a + 2] < taps[a] for a in unknown)


def _reason(windows: list[Work], moved: list[int]) -> str:
    return (
        f"{len(windows)} convolutions and poolings, {len(moved)} transposes of {sum(moved)} bytes"
    )


class _Rewriter:
    """Replaces ops by their steps, one after another, and erases them."""

    def __init__(self, graph: LayoutGraph, steps: Region) -> None:
        self.graph, self.steps = graph, steps
        self.builder = IRBuilder()
        self.conversions = 0
        self.own = {graph.makes[i]: step.out for i, step in steps.items()}
        self.stored: dict[tuple[int, Order | None, bool], ir.Value] = {}

    def run(self) -> None:
        """Rewrite all steps."""
        graph = self.graph
        for i, step in self.steps.items():
            op = graph.ops[i]
            with ir.InsertionPoint(op), op.location:
                pairs = zip(graph.reads[i], step.needs, strict=True)
                bare, n = graph.has(i, Trait.ELEMENTWISE), graph.makes[i]
                operands = [self._value(v, need, bare) for v, need in pairs]
                made = operands[0]
                if step.params is not None:
                    type_ = graph.type(n)
                    out = type_.with_shape(stored_shape(type_.shape, step.out))
                    made = create(OPS[graph.name(i)], operands, dict(step.params), out)
                    carry_marks(op, made.owner.operation)
                self.stored[n, step.out, False] = made
                if any(reader not in self.steps for reader in graph.readers[n]):
                    op.result.replace_all_uses_with(self._value(n, None, False))
        constants = {n for i in self.steps for n in graph.reads[i] if graph.is_constant(n)}
        makers = {i for n in constants if (i := graph.makers[n]) is not None}
        for i in sorted(makers.union(self.steps), reverse=True):
            if is_unused(graph.ops[i]):
                graph.ops[i].erase()

    def _value(self, n: int, need: Order | None, bare: bool) -> ir.Value:
        """Return a value in the order needed; `bare`: a constant without leading sizes of 1."""
        graph = self.graph
        bare = bare and need is not None and graph.is_constant(n)
        known = self.stored.get((n, need, bare))
        if known is not None:
            return known
        have = self.own.get(n)
        value = graph.values[n] if n not in self.own else self.stored[n, have, False]
        if have != need:
            array = constant_array(value) if graph.is_constant(n) else None
            if array is not None:
                value = self.builder.constant(_laid_out(array, need or (), bare))
            else:
                value = self._converted(value, have, need)
        self.stored[n, need, bare] = value
        return value

    def _converted(self, value: ir.Value, have: Order | None, need: Order | None) -> ir.Value:
        """Return a transpose, or a reshape where the elements stay in their places."""
        shape = self.builder.type_of(value).shape
        rank = len(need or shape)
        entries = [copied(d) if size is None else size for d, size in enumerate(shape)]
        if rank > len(shape):
            value = self.builder.reshape(value, shape=(*[1] * (rank - len(shape)), *entries))
            return self._converted(value, have and widened(have, rank), need)
        permutation = between(have, need, rank)
        if normal(permutation) is None:
            return value
        if moves(shape, permutation):
            self.conversions += 1
            return self.builder.transpose(value, permutation=permutation)
        return self.builder.reshape(value, shape=tuple(entries[p] for p in permutation))


def _laid_out(array: np.ndarray, order: Order, bare: bool) -> np.ndarray:
    """Return a constant in an order, with dimensions of size 1 in front, or without them."""
    full = array.reshape((1,) * (len(order) - array.ndim) + array.shape).transpose(order)
    if not bare:
        return full
    lead = next((d for d, size in enumerate(full.shape) if size != 1), full.ndim)
    return full.reshape(full.shape[lead:])
