"""The kernel family ``packed``: prices, checks and offers of products with weights of few bits."""

from collections.abc import Mapping
from dataclasses import replace
from random import Random

import numpy as np

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.families.gemm import contents, random_epilogue, slack
from pyc_mlir.pipelines.kernels.families.packed.product import PackedProduct, can_round, has_table
from pyc_mlir.pipelines.kernels.families.packed.weights import (
    BlockPoints,
    Blocks,
    BlockScales,
    BlockWords,
    out_of_panels,
)
from pyc_mlir.pipelines.kernels.lang.pointwise import evaluate
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView, longest
from pyc_mlir.pipelines.kernels.registry import Arrays, Family, refuse_narrow
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


def reference(knobs: PackedProduct, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact result in f64, and the error that a kernel may have, element by element."""
    blocks = knobs.blocks
    x, words, scale, *reads = arrays
    numbers = BlockWords(blocks).unpack(words).astype(np.float64)
    if knobs.shifted:
        points = out_of_panels(reads.pop(0), blocks.scales).astype(np.float64) + 1
        numbers += np.repeat(points, blocks.block, axis=0)[: blocks.depth]
    scales = np.repeat(out_of_panels(scale, blocks.scales), blocks.block, axis=0)
    w, wide = numbers * scales[: blocks.depth], x.astype(np.float64)
    value, terms = wide @ w, np.abs(wide) @ np.abs(w)
    bound = slack(value, terms, blocks.depth + 2)
    if knobs.rounds:
        bound = bound + rounding_of_blocks(wide, w, blocks.block)
    return evaluate(knobs.epilogue, value, reads, bound)


def rounding_of_blocks(x: np.ndarray, w: np.ndarray, block: int) -> np.ndarray:
    """Return how far sums may be off whose x is rounded to bytes block by block, at worst."""
    starts = range(0, x.shape[1], block)
    steps = np.maximum.reduceat(np.abs(x), starts, axis=1) / 127
    return steps / 2 @ np.add.reduceat(np.abs(w), starts, axis=0)


def sample(random: Random, target: Target) -> tuple[PackedProduct, list[Arrays]]:
    """Draw knobs and three calls."""
    bits, block = random.choice((4, 4, 8)), random.choice((16, 32, 64))
    depth = 8 * random.choice((1, 2, 3, 4, 8, 8, 9, 12, 16, 20))
    blocks = Blocks(random.choice((1, 15, 16, 17, 33, 64, 100, 129, 200)), depth, block, bits, 16)
    rows = random.choice((1, 1, 2, 3, 5, 12, 13, 30, "m"))
    knobs = PackedProduct.on(
        target,
        rows,
        blocks,
        shifted=random.random() < 0.4,
        epilogue=random_epilogue(random),
        workgroups=random.choice((1, 1, 2)),
    )
    if random.random() < 0.3:
        knobs = replace(knobs, deep=random.choice((8, 24, 64)), tall=random.choice((1, 4)))
    if random.random() < 0.2:
        knobs = replace(knobs, table=False)
    if can_round(knobs, target) and random.random() < 0.8:
        knobs = knobs.rounding()
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _arrays(knobs: PackedProduct, random: Random) -> Arrays:
    blocks, values = knobs.blocks, np.random.default_rng(random.randrange(1 << 30))
    rows = random.choice((1, 1, 2, 7, 12, 25)) if isinstance(knobs.rows, str) else knobs.rows
    packed = values.integers(0, 256, BlockWords(blocks).shape).astype(np.uint8)
    scale = values.random((blocks.columns, blocks.count)).astype(np.float32)
    arrays = [values.normal(size=(rows, blocks.depth)).astype(np.float32)]
    arrays += [BlockWords(blocks).pack(packed), BlockScales(blocks).pack(scale)]
    if knobs.shifted:
        point = values.integers(0, 1 << blocks.bits, scale.shape).astype(np.uint8)
        arrays.append(BlockPoints(blocks).pack(point))
    reads = contents(knobs.epilogue, rows, blocks.columns, values)
    return [*arrays, *(a.astype(np.float32) for a in reads)]


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


FAMILY = Family("packed", PackedProduct, refusal, cost, reference, sample, match, space)
