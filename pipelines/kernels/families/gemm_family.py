"""What does a product with packed weights cost and compute? The family ``gemm``."""

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np

from pyc_mlir.pipelines.kernels.families.gemm import Gemm, pack, unpack
from pyc_mlir.pipelines.kernels.lang.pointwise import Pointwise, evaluate
from pyc_mlir.pipelines.kernels.lang.values import ROUNDING
from pyc_mlir.pipelines.kernels.match.offers import Feed, Offer
from pyc_mlir.pipelines.kernels.match.pointwise import View, longest
from pyc_mlir.pipelines.kernels.match.pointwise_samples import random_program
from pyc_mlir.pipelines.kernels.registry import Arrays, Family, refuse_narrow
from pyc_mlir.pipelines.kernels.shared.epilogues import layer
from pyc_mlir.pipelines.target.cost import Cost, roofline
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, is_f32, nominal, sizes

_NARROW = 5
SIZES = (1, 2, 3, 5, 6, 7, 8, 12, 13, 16, 17, 31, 33, 48, 64, 65, 79, 100, 130)
_DEPTHS = (1025, 1500, 2100)  # of two or three blocks


def refusal(knobs: Any, target: Target) -> str:
    """A register tile must fit: sums, one row of B, one number of A (of any family's tile)."""
    if reason := refuse_narrow(target):
        return reason
    vectors = knobs.panel * 4 // target.vector_bytes
    registers = knobs.height * vectors + vectors + 1
    if registers > target.vector_registers:
        return f"gemm: expected at most {target.vector_registers} registers, got {registers}"
    return ""


def cost(knobs: Gemm, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Each matrix crosses memory once; the packed weights are constants."""
    rows = knobs.rows if isinstance(knobs.rows, int) else sizes[knobs.rows]
    outs = rows * knobs.columns
    flops = outs * (2.0 * knobs.depth + knobs.epilogue.flops)
    read = knobs.epilogue.read_bytes(rows, knobs.columns)
    traffic = 4 * (rows * knobs.depth + knobs.panels.size + outs) + read
    constants = Cost(constant_bytes=4 * knobs.panels.size)
    return roofline(flops, traffic, target.peak_flops, target.peak_bandwidth) + constants


def reference(knobs: Gemm, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """The exact result in f64, and the error that a kernel may have, element by element."""
    a, packed, *reads = (np.asarray(x, np.float64) for x in arrays)
    b = unpack(knobs, packed)
    with np.errstate(invalid="ignore"):
        value, sizes = a @ b, np.abs(a) @ np.abs(b)
    return evaluate(knobs.epilogue, value, reads, slack(value, sizes, knobs.depth))


def slack(value: np.ndarray, sizes: np.ndarray, depth: int) -> np.ndarray:
    """The error of sums of `depth` products in any order (Higham, 2002, section 3.1).

    `sizes` are the sums of the products' sizes. What an infinity has made infinite is exact.
    """
    return np.where(np.isinf(value), 0.0, (depth + 4) * ROUNDING * sizes + 2.0**-120)


def sample(random: Random, target: Target) -> tuple[Gemm, list[Arrays]]:
    """Random knobs, and three calls: half of the time the tile that ships for the target."""
    knobs = _shipped(random, target) if random.random() < 0.5 else _any(random)
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _shipped(random: Random, target: Target) -> Gemm:
    """What a program gets; now and then with B far from the caches, or in blocks of the depth."""
    far = random.random() < 0.25
    rows = random.randint(1, 6) if far else random.choice((random.choice(SIZES), "m"))
    depth = random.choice(SIZES if random.random() < 0.7 else _DEPTHS)
    cuts = random.choice(((1, 1), (2, 1), (1, 2)))
    others = {"epilogue": random_epilogue(random), "far": far, "workgroups": cuts}
    return Gemm.on(target, rows, random.choice(SIZES), depth, **others)


def _any(random: Random) -> Gemm:
    """Knobs that fit 16 registers."""
    height = random.choice((1, 4, 6))
    unroll = random.choice((1, 2, 4))
    return Gemm(
        random.choice((random.choice(SIZES), "m")),
        random.choice(SIZES),
        random.choice(SIZES),
        random_epilogue(random),
        height=height,
        panel=16,
        depth_block=random.choice((unroll, 16, 64, 1024)),
        row_block=height * random.choice((1, 2, 40)),
        strip=16 * random.choice((1, 3)),
        unroll=unroll,
        workgroups=random.choice(((1, 1), (2, 1), (1, 2), (3, 2))),
    )


def random_epilogue(random: Random) -> Pointwise:
    """That of a layer, or any program."""
    if random.random() < 0.5:
        return random_program(random, 3)
    return layer(
        bias=random.random() < 0.5,
        activation=random.choice(("", "relu", "gelu", "tanh")),
        residual=random.random() < 0.3,
    )


def _arrays(knobs: Gemm, random: Random) -> Arrays:
    rows = random.choice(SIZES) if isinstance(knobs.rows, str) else knobs.rows
    values = np.random.default_rng(random.randrange(1 << 30))
    a, b = values.normal(size=(rows, knobs.depth)), values.normal(size=(knobs.depth, knobs.columns))
    arrays = [a, pack(knobs, b.astype(np.float32))]
    arrays += contents(knobs.epilogue, rows, knobs.columns, values)
    return [x.astype(np.float32) for x in arrays]


def contents(
    program: Pointwise, rows: int, columns: int, values: np.random.Generator
) -> list[np.ndarray]:
    """Random numbers for what an epilogue reads."""
    shapes = [o.shape for o in program.operands("e", rows, columns)]
    return [values.normal(size=[d for d in s if isinstance(d, int)]) for s in shapes]


def match(work: Work, target: Target) -> list[Offer]:
    """A product with constant weights, and as much of what follows as the epilogue can do."""
    if not is_packed(work):
        return []
    node = work.nodes[0]
    a, b = (work.type(v) for v in node.operands)
    rows, depth, columns = sizes(a.shape[:-1]), b.shape[-2], b.shape[-1]
    if not depth or not columns or a.shape[-1] != depth or rows == 0:
        return []
    covers, found = longest(work, 1, View(node.type.shape, node.type.rank - 1))
    knobs = Gemm.on(target, rows or "m", columns, depth, epilogue=found.program)
    if refusal(knobs, target):
        return []
    first, second = node.operands
    weights = Feed(second, (b.rank - 1,))
    feeds = (Feed.matrix(work, first), weights, *found.feeds)
    return [Offer(knobs, covers, feeds, cost(knobs, target, {"m": nominal(a.shape[:-1])}))]


def is_packed(work: Work) -> bool:
    """Is it a product with one constant matrix of more than a few columns?"""
    node = work.nodes[0]
    if node.name != "matmul" or not is_f32(work, node.operands):
        return False
    a, b = (work.type(v) for v in node.operands)
    constant = work.is_constant(node.operands[1]) and sizes(b.shape[:-2]) == 1
    return constant and 2 <= b.rank <= a.rank and not is_narrow(b.shape[-1])


def is_narrow(columns: int | str | None) -> bool:
    """Are there so few columns that most lanes of a tile would be idle?"""
    return isinstance(columns, int) and columns < _NARROW


FAMILY = Family("gemm", Gemm, refusal, cost, reference, sample, match)
