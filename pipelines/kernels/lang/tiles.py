"""Tile registers of x86 (AMX): eight matrices of at most 16 rows of 64 bytes, and their products.

A kernel configures the shapes of its tiles, loads rows that lie a pitch apart, adds products to a
tile of 32-bit sums, stores the sums, and releases the tiles before it ends:

    total[m, n] += sum over k of left[m, k] * right[k, n]

`left` holds groups of neighbouring k in its rows as memory does: four bytes, or two bf16. A row of
`right` holds such a group for each column: [k / group][columns][group]. Sums of bytes are exact in
i32. Sums of bf16 are f32: a product adds the even k and the odd k of a tile separately, each
product rounded once with its addition, and then both to the total; subnormal numbers count as zero.
A process that did not ask the system for tiles before (`runtime/device.py`) is ended at the first
instruction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyc_mlir.pipelines.kernels.lang.language import ELEMENTS, Build, Memory, llvm, memref
from pyc_mlir.pipelines.kernels.lang.values import Index, IndexLike, arith, vector
from pyc_mlir.pipelines.streams.ir import ir
from pyc_mlir.pipelines.target.target import Target

TILES, ROWS, ROW_BYTES = 8, 16, 64
# Columns of a tile of 32-bit sums.
COLUMNS = ROW_BYTES // 4
# The features, in Linux's names, and the products: by the types of left and right.
_TILE = "amx_tile"
FEATURES = {"i8": "amx_int8", "bf16": "amx_bf16"}
PRODUCTS = {
    ("ui8", "i8"): "tdpbusd",
    ("i8", "i8"): "tdpbssd",
    ("i8", "ui8"): "tdpbsud",
    ("ui8", "ui8"): "tdpbuud",
    ("bf16", "bf16"): "tdpbf16ps",
}
# The configuration: palette 1, then the bytes of a row at 16 (two each), the rows at 48.
_CONFIGURATION, _WIDTHS, _HEIGHTS = 64, 16, 48


def has_tiles(target: Target, dtype: str) -> bool:
    """Return whether the CPU has tiles with products of ``i8`` or ``bf16``."""
    return {_TILE, FEATURES[dtype]} <= target.needs


@dataclass(frozen=True)
class TileShape:
    """The shape of a tile: rows, known when the kernel runs at the latest, and bytes of a row."""

    rows: IndexLike
    row_bytes: int = ROW_BYTES


class Tiles:
    """The tile registers, by number; made outside of loops, since it takes memory of the stack."""

    def __init__(self, k: Build) -> None:
        self.k = k
        self._held = local_memory(k, _CONFIGURATION, "i8")

    def configure(self, shapes: Sequence[TileShape]) -> None:
        """Set the shapes of tiles 0 and on; what tiles held is lost. No shape has 0 rows."""
        assert 0 < len(shapes) <= TILES, "one to eight tiles"
        plain, later = [0] * _CONFIGURATION, []
        plain[0] = 1
        for n, shape in enumerate(shapes):
            rows = Index.of(shape.rows)
            assert 0 < shape.row_bytes <= ROW_BYTES
            plain[_WIDTHS + 2 * n] = shape.row_bytes
            if rows.number is None:
                later.append((n, rows))
            else:
                assert 0 < rows.number <= ROWS
                plain[_HEIGHTS + n] = rows.number
        i8 = ELEMENTS["i8"]()
        kind = ir.VectorType.get([_CONFIGURATION], i8)
        numbers = [ir.IntegerAttr.get(i8, n) for n in plain]
        self._held.store_as(
            arith.constant(kind, ir.DenseElementsAttr.get(numbers, kind)), Index.of(0)
        )
        for n, rows in later:
            one = vector.broadcast(ir.VectorType.get([1], i8), arith.index_cast(i8, rows.value))
            self._held.store_as(one, Index.of(_HEIGHTS + n))
        self._call("ldtilecfg", [_pointer(self._held.address(0))])

    def zero(self, tile: int) -> None:
        """Set a tile to zeros."""
        self._call("tilezero", [_number(tile)])

    def load(self, tile: int, address: IndexLike, pitch: IndexLike) -> None:
        """Load the rows of a tile, the first from an address (`Memory.address`), `pitch` apart."""
        self._call("tileloadd64", [_number(tile), _pointer(address), _bytes(pitch)])

    def store(self, tile: int, address: IndexLike, pitch: IndexLike) -> None:
        """Store the rows of a tile, the first at an address, `pitch` bytes apart."""
        self._call("tilestored64", [_number(tile), _pointer(address), _bytes(pitch)])

    def add_product(
        self, total: int, left: int, right: int, dtypes: tuple[str, str] = ("ui8", "i8")
    ) -> None:
        """Add the product of two tiles, whose elements have these types, to the sums of a third."""
        self._call(PRODUCTS[dtypes], [_number(tile) for tile in (total, left, right)])

    def release(self) -> None:
        """Give the tiles back: required before the kernel ends."""
        self._call("tilerelease", [])

    def _call(self, name: str, operands: list[Any]) -> None:
        llvm.call_intrinsic(None, f"llvm.x86.{name}", operands, [], [])


def local_memory(k: Build, size: int, dtype: str) -> Memory:
    """Return `size` numbers on the workgroup's stack, from a cache line on. Not inside of loops."""
    line = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 64)
    held = memref.alloca(ir.MemRefType.get([size], ELEMENTS[dtype]()), [], [], alignment=line)
    return Memory(held, [Index.of(size)], k.lanes, dtype)


def _pointer(address: IndexLike) -> Any:
    return llvm.inttoptr(llvm.PointerType.get(), _bytes(address))


def _number(tile: int) -> Any:
    assert 0 <= tile < TILES, "tiles 0 to 7"
    return arith.constant(ir.IntegerType.get_signless(8), tile)


def _bytes(count: IndexLike) -> Any:
    return arith.index_cast(ir.IntegerType.get_signless(64), Index.of(count).value)
