"""Which products of run-time matrices are computed tile by tile? The family ``batch_gemm``."""

from dataclasses import replace
from random import Random

from pyc_mlir.pipelines.kernels.families.batch_gemm import BatchGemm
from pyc_mlir.pipelines.kernels.families.gemm_family import (
    SIZES,
    is_narrow,
    is_packed,
    random_epilogue,
)
from pyc_mlir.pipelines.kernels.families.gemm_family import refusal as refuse_tile
from pyc_mlir.pipelines.kernels.families.gemv import is_streamed
from pyc_mlir.pipelines.kernels.families.products import ORDERS, arrays, cost, reference
from pyc_mlir.pipelines.kernels.match.contraction import find
from pyc_mlir.pipelines.kernels.match.offers import Offer
from pyc_mlir.pipelines.kernels.registry import Arrays, Family
from pyc_mlir.pipelines.kernels.shared.contraction import Contraction
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work

_DEPTHS = (520, 1100)  # of several blocks


def refusal(knobs: BatchGemm, target: Target) -> str:
    """The register tile must fit, and be whole vectors."""
    lanes = target.vector_bytes // 4
    if knobs.panel % lanes:
        return f"batch_gemm: expected a panel in vectors of {lanes}, got {knobs.panel}"
    return refuse_tile(knobs, target)


def sample(random: Random, target: Target) -> tuple[BatchGemm, list[Arrays]]:
    """Random knobs, and three calls: half of the time the tile that ships for the target."""
    knobs = _shipped(random, target) if random.random() < 0.5 else _any(random)
    return knobs, [arrays(knobs, random) for _ in range(3)]


def _shipped(random: Random, target: Target) -> BatchGemm:
    """What a program gets; now and then with several blocks of the depth."""
    what = _what(random)
    if random.random() < 0.25:
        small = random.choice(SIZES[:9])
        what = replace(what, rows=small, depth=random.choice(_DEPTHS))
    cuts = random.choice(((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2)))
    cuts = cuts if what.batch else (1, *cuts[1:])
    return BatchGemm.on(target, what, epilogue=random_epilogue(random), workgroups=cuts)


def _any(random: Random) -> BatchGemm:
    """Knobs that fit 16 registers."""
    what = _what(random)
    cuts = random.choice(((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (3, 2, 2)))
    unroll = random.choice((1, 2, 4))
    return BatchGemm(
        what,
        random_epilogue(random),
        height=random.choice((1, 4, 6)),
        panel=16,
        depth_block=random.choice((unroll, 16, 60, 128)),
        unroll=unroll,
        local=what.transposed or random.random() < 0.5,
        workgroups=cuts if what.batch else (1, *cuts[1:]),
    )


def _what(random: Random) -> Contraction:
    """A product in any order of dimensions, each known or not."""
    orders = random.choice(ORDERS)
    letters = [x for x in orders[2] if x not in "mn"]
    m, n, k = (random.choice((random.choice(SIZES), x)) for x in "mnk")
    return Contraction(tuple(random.choice((1, 2, 3, x)) for x in letters), m, n, k, *orders)


def match(work: Work, target: Target) -> list[Offer]:
    """A kernel for a product of matrices that are not known when compiling."""
    found = find(work)
    if found is None or is_packed(work) or is_streamed(found.what) or is_narrow(found.what.columns):
        return []
    knobs = BatchGemm.on(target, found.what, epilogue=found.epilogue)
    if refusal(knobs, target):
        return []
    return [Offer(knobs, found.covers, found.feeds, cost(knobs, target, found.nominal))]


FAMILY = Family("batch_gemm", BatchGemm, refusal, cost, reference, sample, match)
