"""The usual epilogues of a product, the operands that they may overwrite, and the stores."""

from collections.abc import Sequence

from pyc_mlir.pipelines.kernels.lang.carrier import Dim
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Index, Vector


def overwritable(program: Pointwise, rows: Dim, once: bool) -> tuple[tuple[str, str], ...]:
    """Return what c may replace: what is read where c is written, if c is written `once`.

    Where the depth is summed in blocks, c holds partial sums before the epilogue reads.
    """
    reads = enumerate(program.reads) if once else ()
    return tuple(("c", f"e{n}") for n, read in reads if read.is_alike(rows))


def store_tile(
    k: Build,
    epilogue: InKernel,
    c: Memory,
    spots: Sequence[tuple[Index, Lanes]],
    sums: Sequence[Vector],
    width: int,
    kept: Memory | None,
) -> None:
    """Store what the epilogue makes of a tile's sums: rows of `width` vectors at their `spots`.

    With `kept`, memory for a tile's sums, the epilogue is a loop over the rows: unrolled, a heavy
    one would be most of the code. The sums wait there, since C may be memory that it reads.
    """
    if kept is None:
        for first in range(0, len(spots), width):
            apply, row = epilogue.row(spots[first][0]), slice(first, first + width)
            for (i, at), value in zip(spots[row], sums[row], strict=True):
                c.store(apply(value, at), i, at)
        return
    for n, value in enumerate(sums):
        kept.store(value, Index.of(n * k.lanes))
    with k.range(len(sums) // width) as r:
        i = spots[0][0] + r
        apply = epilogue.row(i)
        for v, (_, at) in enumerate(spots[:width]):
            c.store(apply(kept.load((r * width + v) * k.lanes), at), i, at)
