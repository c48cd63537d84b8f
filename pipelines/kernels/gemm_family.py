"""What does a matrix product cost and compute? The family ``gemm``: cost, reference, bound."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import erf, sqrt
from random import Random
from typing import Any

import numpy as np

from pyc_mlir.pipelines.cost import Cost, roofline
from pyc_mlir.pipelines.kernels.functions import ERRORS
from pyc_mlir.pipelines.kernels.gemm import ACTIVATIONS, Gemm, pack, unpack
from pyc_mlir.pipelines.kernels.matching import Feed, Node, Offer, Work, is_f32, nominal, sizes
from pyc_mlir.pipelines.kernels.registry import Arrays, Family, refuse_narrow
from pyc_mlir.pipelines.target import Target

ROUNDING = 2.0**-24
_SIZES = (1, 2, 3, 5, 6, 7, 8, 12, 13, 16, 17, 31, 33, 48, 64, 65, 79, 100, 130)
_GELU_SLOPE = 1.13


def refusal(knobs: Gemm, target: Target) -> str:
    """A register tile must fit: sums, one row of B, one number of A."""
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
    flops = 2.0 * rows * knobs.columns * knobs.depth
    outs = rows * knobs.columns * (1 + knobs.residual)
    traffic = 4 * (rows * knobs.depth + knobs.packed_size + outs)
    constants = Cost(constant_bytes=4 * knobs.packed_size)
    return roofline(flops, traffic, target.peak_flops, target.peak_bandwidth) + constants


def reference(knobs: Gemm, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """The exact result in f64, and the error that a kernel may have, element by element."""
    a, packed, *rest = (np.asarray(x, np.float64) for x in arrays)
    b = unpack(knobs, packed)
    value, bound = a @ b, (knobs.depth + 4) * ROUNDING * (np.abs(a) @ np.abs(b))
    if knobs.bias:
        value = value + rest.pop(0)
        bound = bound + ROUNDING * np.abs(value)
    if knobs.activation == "relu":
        value = np.maximum(value, 0)
    if knobs.activation == "gelu":
        bound = _GELU_SLOPE * bound + ERRORS["gelu"][1] * np.maximum(1, np.abs(value))
        value = 0.5 * value * (1 + np.vectorize(erf)(value / sqrt(2)))
    if knobs.residual:
        value = value + rest.pop(0)
    return value, bound + 2 * ROUNDING * np.abs(value) + 2.0**-120


def sample(random: Random) -> tuple[Gemm, list[Arrays]]:
    """Random knobs that fit 16 registers, and three calls."""
    columns, depth = random.choice(_SIZES), random.choice(_SIZES)
    height = random.choice((1, 4, 6))
    unroll = random.choice((1, 2, 4))
    knobs = Gemm(
        random.choice((random.choice(_SIZES), "m")),
        columns,
        depth,
        bias=random.random() < 0.5,
        activation=random.choice(list(ACTIVATIONS)),
        residual=random.random() < 0.3,
        height=height,
        panel=16,
        depth_block=random.choice((unroll, 16, 64, 1024)),
        row_block=height * random.choice((1, 2, 40)),
        strip=16 * random.choice((1, 3)),
        unroll=unroll,
        workgroups=random.choice(((1, 1), (2, 1), (1, 2), (3, 2))),
    )
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _arrays(knobs: Gemm, random: Random) -> Arrays:
    rows = random.choice(_SIZES) if isinstance(knobs.rows, str) else knobs.rows
    values = np.random.default_rng(random.randrange(1 << 30))
    a, b = values.normal(size=(rows, knobs.depth)), values.normal(size=(knobs.depth, knobs.columns))
    arrays = [a, pack(knobs, b.astype(np.float32))]
    arrays += [values.normal(size=knobs.columns)] * knobs.bias
    arrays += [values.normal(size=(rows, knobs.columns))] * knobs.residual
    return [x.astype(np.float32) for x in arrays]


def match(work: Work, target: Target) -> list[Offer]:
    """A product with constant weights, and as much of what follows as the epilogue can do."""
    node = work.nodes[0]
    if node.name != "matmul" or not is_f32(work, node.operands):
        return []
    a, b = (work.type(v) for v in node.operands)
    constant = work.is_constant(node.operands[1]) and sizes(b.shape[:-2]) == 1
    if not constant or min(a.rank, b.rank) < 2 or a.rank < b.rank:
        return []
    rows, depth, columns = sizes(a.shape[:-1]), b.shape[-2], b.shape[-1]
    if not depth or not columns or a.shape[-1] != depth or rows == 0:
        return []
    found = _epilogue(work)
    knobs = Gemm.on(target, rows or "m", columns, depth, **found.fields)
    if refusal(knobs, target):
        return []
    first, second = node.operands
    weights = Feed(second, tuple(range(1, b.rank)))
    feeds = (Feed.matrix(work, first), weights, *found.feeds)
    return [Offer(knobs, found.covers, feeds, cost(knobs, target, {"m": nominal(a.shape[:-1])}))]


@dataclass
class _Epilogue:
    """Fields of Gemm, the feeds that come with them, and the ops that are covered."""

    fields: dict[str, Any] = field(default_factory=dict)
    feeds: tuple[Feed, ...] = ()
    covers: int = 1


def _epilogue(work: Work) -> _Epilogue:
    """The longest run of bias, activation and residual, in this order, each at most once."""
    found = best = _Epilogue()
    order, done = ("bias", "activation", "residual"), 0
    for covers, node in enumerate(work.nodes[1:], start=2):
        step, feeds, value = _step(work, node, work.number_of(covers - 2))
        if step not in order[done:]:
            break
        done = order.index(step) + 1
        found = _Epilogue({**found.fields, step: value}, (*found.feeds, *feeds), covers)
        best = found if work.closed(covers) else best
    return best


def _step(work: Work, node: Node, value: int) -> tuple[str, tuple[Feed, ...], Any]:
    """Which step of the epilogue an op is, of what is fed to it; "" for none."""
    others = [v for v in node.operands if v != value]
    if node.name == "relu" or (node.name == "gelu" and node.params["approximate"] == "none"):
        return "activation", (), node.name
    if node.name != "add" or len(others) != 1 or others[0] >= len(work.inputs):
        return "", (), None
    other, result = work.type(others[0]), node.type
    if other.shape == result.shape and other.rank:
        return "residual", (Feed.matrix(work, others[0]),), True
    if sizes(other.shape) == result.shape[-1] and other.shape[-1:] == result.shape[-1:]:
        return "bias", (Feed(others[0]),), True
    return "", (), None


FAMILY = Family("gemm", Gemm, refusal, cost, reference, sample, match)
