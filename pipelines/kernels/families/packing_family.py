"""What does packing cost and give? The family ``packing``: numbers are moved, none is changed."""

from collections.abc import Mapping
from random import Random

import numpy as np

from pyc_mlir.pipelines.kernels.families.gemm import Gemm, pack
from pyc_mlir.pipelines.kernels.families.packing import Packing
from pyc_mlir.pipelines.kernels.registry import Arrays, Family, refuse_narrow
from pyc_mlir.pipelines.target.cost import Cost, roofline
from pyc_mlir.pipelines.target.target import Target

_SIZES = (1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 79, 130)


def refusal(knobs: Packing, target: Target) -> str:
    """Nothing beyond what every family asks for."""
    return refuse_narrow(target)


def cost(knobs: Packing, target: Target, sizes: Mapping[str, int]) -> Cost:
    """B is read once and its panels are written once."""
    traffic = 4 * (knobs.columns * knobs.depth + knobs.panels.size)
    return roofline(0.0, traffic, target.peak_flops, target.peak_bandwidth)


def reference(knobs: Packing, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """The panels, exactly: every error is below the smallest number."""
    b = arrays[0].T if knobs.transposed else arrays[0]
    like = Gemm(1, knobs.columns, knobs.depth, panel=knobs.panel, strip=knobs.panel)
    packed = pack(like, b).astype(np.float64)
    return packed, np.full_like(packed, np.finfo(np.float64).tiny)


def sample(random: Random, target: Target) -> tuple[Packing, list[Arrays]]:
    """Random knobs and three calls."""
    knobs = Packing(
        random.choice(_SIZES),
        random.choice(_SIZES),
        panel=random.choice((16, 32, 64)),
        transposed=random.random() < 0.5,
        workgroups=random.choice((1, 2, 3)),
    )
    shape = knobs.kernel("k").operands[0].shape
    values = np.random.default_rng(random.randrange(1 << 30))
    sizes = [d for d in shape if isinstance(d, int)]
    return knobs, [[values.normal(size=sizes).astype(np.float32)] for _ in range(3)]


FAMILY = Family("packing", Packing, refusal, cost, reference, sample)
"""The family ``packing`` answers no group of ops: `Gemm.packing` asks for it."""
