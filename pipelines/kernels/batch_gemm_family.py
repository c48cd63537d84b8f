"""What do products of run-time matrices cost and compute? The family ``batch_gemm``."""

from collections.abc import Mapping
from math import prod
from random import Random

import numpy as np

from pyc_mlir.pipelines.cost import Cost, roofline
from pyc_mlir.pipelines.kernels.batch_gemm import BatchGemm
from pyc_mlir.pipelines.kernels.gemm_family import ROUNDING, SIZES, contents, random_layer
from pyc_mlir.pipelines.kernels.gemm_family import refusal as refuse_tile
from pyc_mlir.pipelines.kernels.pointwise import evaluate
from pyc_mlir.pipelines.kernels.registry import Arrays, Family
from pyc_mlir.pipelines.target import Target

_ORDERS = (
    ("bmk", "bkn", "bmn"),
    ("bmk", "bnk", "bmn"),
    ("mk", "bkn", "bmn"),
    ("bkm", "nk", "mbn"),
    ("bmck", "bnck", "bcmn"),
    ("bcmk", "bkcn", "bmcn"),
    ("mk", "nk", "mn"),
    ("mk", "kn", "mn"),
)


def refusal(knobs: BatchGemm, target: Target) -> str:
    """The register tile must fit, and be whole vectors."""
    lanes = target.vector_bytes // 4
    if knobs.panel % lanes:
        return f"batch_gemm: expected a panel in vectors of {lanes}, got {knobs.panel}"
    return refuse_tile(knobs, target)


def cost(knobs: BatchGemm, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Each operand crosses memory once."""
    known = {x: d if isinstance(d, int) else sizes[d] for x, d in knobs.sizes.items()}
    left, right, out = (prod(known[x] for x in o) for o in knobs.orders)
    flops = 2.0 * prod(known.values()) + out * knobs.epilogue.flops
    read = knobs.epilogue.read_bytes(out // known["n"], known["n"])
    traffic = 4 * (left + right + out) + read
    return roofline(flops, traffic, target.peak_flops, target.peak_bandwidth)


def reference(knobs: BatchGemm, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """The exact result in f64, and the error that a kernel may have, element by element."""
    a, b, *reads = (np.asarray(x, np.float64) for x in arrays)
    left, right, result = knobs.orders
    spec = f"{left},{right}->{result}"
    value = np.einsum(spec, a, b)
    steps = a.shape[left.index("k")] + 4
    bound = steps * ROUNDING * np.einsum(spec, np.abs(a), np.abs(b)) + 2.0**-120
    flat = (-1, value.shape[-1])
    made = evaluate(knobs.epilogue, value.reshape(flat), reads, bound.reshape(flat))
    return made[0].reshape(value.shape), made[1].reshape(value.shape)


def sample(random: Random) -> tuple[BatchGemm, list[Arrays]]:
    """Random knobs that fit 16 registers, and three calls."""
    orders = random.choice(_ORDERS)
    letters = [x for x in orders[2] if x not in "mn"]
    m, n, k = (random.choice((random.choice(SIZES), x)) for x in "mnk")
    unroll = random.choice((1, 2, 4))
    knobs = BatchGemm(
        tuple(random.choice((1, 2, 3, x)) for x in letters),
        *(m, n, k),
        *orders,
        random_layer(random),
        height=random.choice((1, 4, 6)),
        panel=16,
        depth_block=random.choice((unroll, 16, 60, 128)),
        unroll=unroll,
        local=orders[1][-1] == "k" or random.random() < 0.5,
        workgroups=random.choice(((1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (3, 2, 2))),
    )
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _arrays(knobs: BatchGemm, random: Random) -> Arrays:
    values = np.random.default_rng(random.randrange(1 << 30))
    dims = {
        x: d if isinstance(d, int) else random.choice(SIZES if x in "mnk" else SIZES[:4])
        for x, d in knobs.sizes.items()
    }
    rows = prod(dims[x] for x in knobs.result[:-1])
    arrays = [values.normal(size=[dims[x] for x in o]) for o in knobs.orders[:2]]
    arrays += contents(knobs.epilogue, rows, dims["n"], values)
    return [x.astype(np.float32) for x in arrays]


FAMILY = Family("batch_gemm", BatchGemm, refusal, cost, reference, sample)
