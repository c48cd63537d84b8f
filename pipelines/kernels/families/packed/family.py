"""The kernel family ``packed``: prices, checks and offers of products with weights of few bits."""

from collections.abc import Mapping

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.families.packed.product import PackedProduct, can_round, has_table
from pyc_mlir.pipelines.kernels.families.packed.weights import (
    Blocks,
)
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView, longest
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow
from pyc_mlir.pipelines.kernels.shared.grid import known
from pyc_mlir.pipelines.kernels.shared.tile import refuse_tile
from pyc_mlir.pipelines.kernels.variants import knob_space, shares
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, nominal, sizes


def refusal(knobs: PackedProduct, target: Target) -> str:
    """Return the reason against knobs: a tile that does not fit the registers."""
    if reason := refuse_narrow(target):
        return reason
    if knobs.table and not has_table(target):
        return f"packed: expected a target with a table of f32 in a register, got {target.name}"
    if knobs.rounds and not can_round(knobs, target):
        return f"packed: expected a target with sums of four products of bytes, got {target.name}"
    if (
        knobs.many
        and not knobs.rounds
        and (reason := refuse_tile("packed", knobs.tall, knobs.blocks.panel, target))
    ):
        return reason
    needed = knobs.height * knobs.vectors + 2 * knobs.vectors
    if needed > target.vector_registers:
        return f"packed: expected at most {target.vector_registers} registers, got {needed}"
    return ""


def cost(knobs: PackedProduct, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count each tensor as crossing memory once; weights are read packed."""
    blocks = knobs.blocks
    rows = knobs.rows if isinstance(knobs.rows, int) else sizes[knobs.rows]
    flops = rows * blocks.columns * (2.0 * blocks.depth + knobs.epilogue.flops)
    held = 4 * blocks.words.size + (4 + knobs.shifted) * blocks.scales.size
    traffic = held + 4 * rows * (blocks.depth + blocks.columns)
    traffic += knobs.epilogue.read_bytes(rows, blocks.columns)
    kind = "packed.rounded" if knobs.rounds else "packed"
    return CostModel(target).kernel(kind, flops, traffic)


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a product with constant packed weights, and as much of what follows as fits."""
    node = work.nodes[0]
    if node.name != "block_matmul" or refuse_narrow(target):
        return []
    x, weight, scale, point = node.operands
    if not all(work.is_constant(v) for v in (weight, scale, point)):
        return []
    shape, bits = work.type(x).shape, node.params["bits"]
    columns, count, held = (d or 0 for d in work.type(weight).shape)
    rows, depth = sizes(shape[:-1]), shape[-1] or 0
    if rows == 0 or not columns or not count:
        return []
    blocks = Blocks(columns, depth, 8 * held // bits, bits, 16)
    array = work.inputs[point].array
    assert array is not None
    shifted = bool((array() != blocks.sign).any())
    covers, found = longest(work, 1, MatrixView(node.type.shape, node.type.rank - 1))
    try:
        knobs = PackedProduct.on(
            target, rows or "m", blocks, shifted=shifted, epilogue=found.program
        )
    except PycError:
        return []
    if node.params["accuracy"] == "int8" and can_round(knobs, target):
        knobs = knobs.rounding()
    feeds = [Feed.matrix(work, x), Feed(weight, (1, 2)), Feed(scale, (1,))]
    if shifted:
        feeds.append(Feed(point, (1,)))
    price = cost(knobs, target, {"m": nominal(shape[:-1])})
    return [KernelOffer(knobs, covers, (*feeds, *found.feeds), price)]


_HEIGHTS = (4, 6, 8, 12)


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Vary the register tile of several rows, and shares of panels."""
    knobs: PackedProduct = offer.knobs
    # A height does not make few rows of many: those have scratch memory.
    rows = knobs.rows if isinstance(knobs.rows, int) else max(_HEIGHTS) + 1
    heights = [h for h in _HEIGHTS if (rows > h) == knobs.many]
    tiles = {"height": heights, "vectors": (1, 2, 4)} if knobs.rows != 1 else {}
    return knob_space(
        knobs,
        {**tiles, "workgroups": shares(target, known(knobs.blocks.words.full))},
        lambda made: refusal(made, target),
    )


FAMILY = Family("packed", PackedProduct, refusal, cost, match, space)
