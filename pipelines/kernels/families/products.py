"""Cost and reference of products of run-time matrices. For families whose knobs have a
`Contraction` called `what` and an `epilogue`: cost, reference with its bound, random arguments.
"""

from collections.abc import Mapping
from math import prod
from random import Random
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.kernels.families.gemm import SIZES, contents, slack
from pyc_mlir.pipelines.kernels.lang.language import HALVES
from pyc_mlir.pipelines.kernels.lang.pointwise import evaluate
from pyc_mlir.pipelines.kernels.lang.pointwise_ops import stored
from pyc_mlir.pipelines.kernels.registry import Arrays
from pyc_mlir.pipelines.target.cost import Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target

ORDERS = (
    ("bmk", "bkn", "bmn"),
    ("bmk", "bnk", "bmn"),
    ("mk", "bkn", "bmn"),
    ("bkm", "nk", "mbn"),
    ("bmck", "bnck", "bcmn"),
    ("bcmk", "bkcn", "bmcn"),
    ("mk", "nk", "mn"),
    ("mk", "kn", "mn"),
)


def product_cost(family: str, knobs: Any, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Return the cost of a kernel of `family`: each operand crosses memory once."""
    known = {x: d if isinstance(d, int) else sizes[d] for x, d in knobs.what.sizes.items()}
    left, right, out = (prod(known[x] for x in o) for o in knobs.what.orders)
    flops = 2.0 * prod(known.values()) + out * knobs.epilogue.flops
    read = knobs.epilogue.read_bytes(out // known["n"], known["n"])
    traffic = 4 * (left + right + out) + read
    traffic //= 2 if knobs.dtype in HALVES else 1
    return CostModel(target).kernel(family, flops, traffic)


def reference(knobs: Any, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return the exact result in f64, and the error that a kernel may have, element by element."""
    a, b, *reads = (np.asarray(x, np.float64) for x in arrays)
    left, right, result = knobs.what.orders
    spec = f"{left},{right}->{result}"
    with np.errstate(invalid="ignore"):
        value, sizes = np.einsum(spec, a, b), np.einsum(spec, np.abs(a), np.abs(b))
    bound = slack(value, sizes, a.shape[left.index("k")])
    flat = (-1, value.shape[-1])
    made = evaluate(knobs.epilogue, value.reshape(flat), reads, bound.reshape(flat))
    if knobs.dtype in HALVES:
        made = stored(knobs.dtype, *made)
    return made[0].reshape(value.shape), made[1].reshape(value.shape)


def arrays(knobs: Any, random: Random) -> Arrays:
    """Draw arguments of a call, and dynamic sizes."""
    values = np.random.default_rng(random.randrange(1 << 30))
    dims = {
        x: d if isinstance(d, int) else random.choice(SIZES if x in "mnk" else SIZES[:4])
        for x, d in knobs.what.sizes.items()
    }
    rows = prod(dims[x] for x in knobs.what.result[:-1])
    made = [values.normal(size=[dims[x] for x in o]) for o in knobs.what.orders[:2]]
    made += contents(knobs.epilogue, rows, dims["n"], values)
    return [x.astype(DTYPES[knobs.dtype]) for x in made]
