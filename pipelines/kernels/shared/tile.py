"""Accumulate a register tile: rows times vectors of columns, over a stretch of the depth.

What the products of this package share: the loop over the depth with its fused multiply-adds, and
memory on a workgroup's stack.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyc_mlir.pipelines.kernels.lang.carrier import Dim
from pyc_mlir.pipelines.kernels.lang.language import Build, Memory, memref
from pyc_mlir.pipelines.kernels.lang.values import Condition, Index, Scalar, Vector, add, fma, tree
from pyc_mlir.pipelines.streams.ir import ir
from pyc_mlir.pipelines.target.target import Target

# Fused multiply-adds that must not wait for each other: latency times the units of current cores.
_CHAINS = 8


@dataclass(frozen=True)
class ProductTile:
    """Sums of `height` rows and `width` vectors: left(row, k) * right(vector, k) over k.

    `ahead(k)` is done once in `unroll` steps (prefetches). `parts` partial sums are kept of each
    (see `partial_sums`).
    """

    k: Build
    height: int
    width: int
    unroll: int
    left: Callable[[int, Index], Scalar]
    right: Callable[[int, Index], Vector]
    ahead: Callable[[Index], None] | None = None
    parts: int = 1

    def accumulate(self, length: Index, sums: Sequence[Vector]) -> list[Vector]:
        """Add the products over `length` steps to `sums`, row by row."""
        k, count, parts = self.k, self.height * self.width, self.parts
        zeros = [k.vector(0.0)] * (count * (parts - 1))

        def steps(at: Index, *kept: Vector) -> list[Vector]:
            if self.ahead is not None:
                self.ahead(at)
            values = list(kept)
            for u in range(self.unroll):
                first = u % parts * count
                values[first : first + count] = self._step(at + u, values[first : first + count])
            return values

        whole = length // self.unroll * self.unroll
        kept = k.loop(0, whole, self.unroll, [*sums, *zeros])(steps)
        totals = [tree(add, kept[i::count]) for i in range(count)]
        if length.number is not None and length.number % self.unroll == 0:
            return totals
        return k.loop(whole, length, 1, totals)(lambda at, *kept: self._step(at, kept))

    def _step(self, at: Index, sums: Sequence[Vector]) -> list[Vector]:
        parts = [self.right(v, at) for v in range(self.width)]
        out = []
        for row in range(self.height):
            x = self.left(row, at).across(self.k.lanes)
            kept = sums[row * self.width : (row + 1) * self.width]
            out += [fma(x, part, total) for part, total in zip(parts, kept, strict=True)]
        return out


def partial_sums(rows: Dim, height: int, width: int, unroll: int) -> int:
    """Count the sums that a tile keeps of each number, so that additions need not wait.

    What a matrix of `rows` has in a tile of `height` decides, and not a lower tile at its bottom:
    the order of additions, and with it each bit of a row, does not depend on where the row lies.
    """
    least = min(rows, height) if isinstance(rows, int) else height
    return max(1, min(unroll, _CHAINS // (least * width)))


def refuse_tile(family: str, height: int, panel: int, target: Target) -> str:
    """Return why `height` rows by `panel` columns do not fit the registers, or "".

    Sums, one row of the panel and one number of the other side are held at once.
    """
    vectors = panel * 4 // target.vector_bytes
    registers = height * vectors + vectors + 1
    if registers > target.vector_registers:
        return f"{family}: expected at most {target.vector_registers} registers, got {registers}"
    return ""


def local(k: Build, size: int) -> Memory:
    """`size` f32 on the workgroup's stack; IREE allows 32 KB a kernel. Not inside of loops."""
    kind = ir.MemRefType.get([size], ir.F32Type.get())
    line = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 64)
    return Memory(memref.alloca(kind, [], [], alignment=line), [Index.of(size)], k.lanes)


def bottom(rows: Index, height: int) -> list[tuple[Index, int, Condition | None]]:
    """Return tiles below a matrix's full ones: (first row, height, condition or none).

    A known rest is one tile; an unknown one is made of powers of two.
    """
    start, rest = rows // height * height, rows % height
    if rest.number is not None:
        return [(start, rest.number, None)] if rest.number else []
    powers = [1 << p for p in range((height - 1).bit_length())]
    return [
        (start + rest // (2 * p) * (2 * p), p, (rest // p % 2).equals(1)) for p in reversed(powers)
    ]
