"""The cost of products of run-time matrices, whose knobs have a `Contraction` and an `epilogue`."""

from collections.abc import Mapping
from math import prod
from typing import Any

from pyc_mlir.pipelines.kernels.lang.language import HALVES
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target


def product_cost(family: str, knobs: Any, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Return the cost of a kernel of `family`: each operand crosses memory once."""
    known = {x: d if isinstance(d, int) else sizes[d] for x, d in knobs.what.sizes.items()}
    left, right, out = (prod(known[x] for x in o) for o in knobs.what.orders)
    flops = 2.0 * prod(known.values()) + out * knobs.epilogue.flops
    read = knobs.epilogue.read_bytes(out // known["n"], known["n"])
    traffic = 4 * (left + right + out) + read
    traffic //= 2 if knobs.dtype in HALVES else 1
    return CostModel(target).kernel(family, flops, traffic)
