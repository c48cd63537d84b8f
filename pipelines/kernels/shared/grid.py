"""The grid of a product: large shares, one a core, or the items of a batch; one workgroup
where work is small.

A workgroup that another core takes over costs a wake-up of some microseconds, so that small work
stays together. Sizes that are not known count with the nominal dimension where work is weighed.
"""

from math import prod

from pyc_mlir.pipelines.kernels.lang.carrier import Dim
from pyc_mlir.pipelines.kernels.lang.language import Build
from pyc_mlir.pipelines.kernels.lang.values import Index, least
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target

_TILES_A_SHARE = 8
_BATCH_SHARES_A_CORE = 8


def known(dim: Dim) -> int:
    """Return a size, the nominal one for a dynamic dimension."""
    return dim if isinstance(dim, int) else NOMINAL_DIMENSION


def cores_for(target: Target, flops: float, read_bytes: float) -> int:
    """Return the cores that a kernel should have: one, or all of the target's."""
    return CostModel(target).cores_for(flops, read_bytes)


def cut_matrix(cores: int, rows: Dim, columns: Dim, tile: tuple[int, int]) -> tuple[int, int]:
    """Return shares of rows and of columns for `cores`: rows if each share has many tiles.

    Columns otherwise, so that few or unknown rows are done by all; `tile` is rows and columns of
    the register tile.
    """
    if isinstance(rows, int) and rows >= cores * tile[0] * _TILES_A_SHARE:
        return cores, 1
    panels = known(columns) // tile[1]
    shares = max(1, min(cores, panels))
    left = cores // shares if isinstance(rows, int) else 1
    return max(1, min(left, known(rows) // tile[0])), shares


def cut_batch(cores: int, batch: tuple[Dim, ...]) -> int:
    """Return shares of a batch: all, up to eight a core; one a core of an unknown number.

    Of more, as many as come out even, if any do. A core that is awake takes shares while another
    wakes up: 12 shares in place of 2 took 0.92 of the time of a batched product of 0.22 ms.
    """
    count = prod(d for d in batch if isinstance(d, int))
    if any(isinstance(d, str) for d in batch):
        return cores
    if cores == 1:
        return 1
    most = _BATCH_SHARES_A_CORE * cores
    if count <= most:
        return count
    return next((n for n in range(most, cores - 1, -cores) if count % n == 0), most)


def share(k: Build, dimension: int, parts: int, count: Index) -> tuple[Index, Index]:
    """Return this workgroup's share, of `parts` along a dimension of the grid, of `count`."""
    if parts == 1:
        return Index.of(0), count
    size = count.ceildiv(parts)
    first = least(k.workgroup(dimension) * size, count)
    return first, least(first + size, count)
