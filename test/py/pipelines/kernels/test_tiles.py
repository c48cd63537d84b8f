"""Tile registers: products of each type against numpy, in tiles of fewer rows and bytes."""

import ml_dtypes
import numpy as np
import pytest
from kernel_runs import Kernels

from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.tiles import COLUMNS, PRODUCTS, Tiles, TileShape, has_tiles
from pyc_mlir.pipelines.kernels.lang.values import least
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import host_cpu

NUMPY = {"ui8": np.uint8, "i8": np.int8, "bf16": ml_dtypes.bfloat16}
STEPS = 3


@pytest.fixture(scope="module")
def target():
    cpu = host_cpu()
    if cpu is None:
        pytest.skip("the system does not tell what its CPU has")
    host = Target.named("cpu").on(cpu)
    if not has_tiles(host, "i8") or not has_tiles(host, "bf16"):
        pytest.skip("no tile registers here, or none for this process")
    return host


def product(name, dtypes, row_bytes):
    """y[m, 16] = a[m, depth] @ b, for m of any size, in tiles of 16 rows and a last one."""
    left, right = ("bf16", "bf16") if dtypes[0] == "bf16" else ("i8", "i8")
    size = 2 if left == "bf16" else 1
    depth, groups = STEPS * row_bytes // size, row_bytes // 4

    def body(k, a, b, y):
        rows, tiles = a.shape[0], Tiles(k)
        with k.range(0, rows, 16) as row:
            own = TileShape(least(rows - row, 16))
            tiles.configure([own, TileShape(own.rows, row_bytes), TileShape(groups)])
            tiles.zero(0)
            with k.range(STEPS) as step:
                tiles.load(1, a.address(row, step * (row_bytes // size)), depth * size)
                tiles.load(2, b.address(step * groups, 0), 64)
                tiles.add_product(0, 1, 2, dtypes)
            tiles.store(0, y.address(row, 0), 64)
        tiles.release()

    operands = (
        Operand("a", ("m", depth), dtype=left),
        Operand("b", (STEPS * groups, 64 // size), dtype=right),
        Operand("y", ("m", COLUMNS), "out", "f32" if left == "bf16" else "i32"),
    )
    return Kernel(name, operands, lambda s: (1,), body)


CASES = [(dtypes, row_bytes) for dtypes in PRODUCTS for row_bytes in (4, 20, 64)]


@pytest.fixture(scope="module")
def kernels(target):
    return Kernels(target, [product(f"k{n}", *case) for n, case in enumerate(CASES)])


@pytest.mark.parametrize("rows", [1, 15, 16, 37])
def test_products_of_tiles_equal_numpy(kernels, rows):
    values = np.random.default_rng(rows)
    for n, (dtypes, row_bytes) in enumerate(CASES):
        left, right = (NUMPY[d] for d in dtypes)
        group = 4 // np.dtype(left).itemsize
        depth = STEPS * row_bytes // np.dtype(left).itemsize
        a, b = ((values.integers(0, 256, s) - 128) for s in ((rows, depth), (depth, COLUMNS)))
        a, b = a.astype(left), b.astype(right)
        laid = b.reshape(depth // group, group, COLUMNS).transpose(0, 2, 1)
        laid = laid.reshape(depth // group, -1)
        held = [x if left == NUMPY["bf16"] else x.view(np.int8) for x in (a, laid)]
        y = kernels.run(f"k{n}", *held)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        # Whole numbers below 2^24: no sum of f32 is rounded either.
        np.testing.assert_array_equal(y, exact)
