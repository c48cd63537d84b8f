"""Convolutions and products of bytes with constant weights: knobs and code of the family ``int8``.

A direct convolution as that of f32 (`families/conv/direct.py`), whose loops it has, on four
channels at a time: a quad of x is broadcast, and each lane adds its four products with the quad of
weights of one filter, exactly, in i32. Taps beyond the image are left out; what the zero point of x
adds follows from sums of the weights over the taps that are met, a table that is laid out with
them. Then a bias in i32, the numbers as f32, the epilogue, and the conversion to bytes. A product
is a convolution of one tap whose row of pixels is the matrix. The form ``amx`` takes whole tiles
instead (`byte_tiles.py`).
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.kernels.families.conv.direct import DirectConv, _cut
from pyc_mlir.pipelines.kernels.families.conv.sources import Piece
from pyc_mlir.pipelines.kernels.families.conv.window import PIXELS_OF_RESULT, ConvAxis, pixels_of
from pyc_mlir.pipelines.kernels.families.int8.byte_loops import DirectBytes, zero_point
from pyc_mlir.pipelines.kernels.families.int8.byte_tiles import TiledBytes, fits_tiles
from pyc_mlir.pipelines.kernels.families.int8.dot import AMX, FORMS, MADD, QUAD, VNNI, best_dot
from pyc_mlir.pipelines.kernels.families.int8.narrow import BOUNDS, NARROW, Narrow
from pyc_mlir.pipelines.kernels.families.int8.tile_window import TileWindow
from pyc_mlir.pipelines.kernels.families.int8.weights import ByteFilters, TapSums
from pyc_mlir.pipelines.kernels.families.packing import Panels
from pyc_mlir.pipelines.kernels.lang.carrier import Dim, Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Memory
from pyc_mlir.pipelines.kernels.lang.pointwise import InKernel
from pyc_mlir.pipelines.kernels.lang.tiles import COLUMNS
from pyc_mlir.pipelines.kernels.shared.grid import cores_for
from pyc_mlir.pipelines.target.target import Target

# Results: i32 sums, f32 after the epilogue, or bytes after it.
RESULTS = {"i32": "i32", "f32": "f32", "i8": "i8", "ui8": "i8"}


@dataclass(frozen=True)
class ByteConv(DirectConv):
    """The knobs of y = epilogue(f32(conv2d(x - zero, w) + bias)), as `DirectConv`.

    `signed`: x is of i8, else of ui8. `shifted`: x has a zero point that is not 0. `bias`: i32 for
    each filter. `result` is the type of y; that of i32 has no epilogue, one of bytes is made by
    `narrow`. `form` is how products are added.
    """

    signed: bool = False
    shifted: bool = False
    bias: bool = False
    result: str = "f32"
    form: str = MADD
    narrow: Narrow = NARROW

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        super().__post_init__()
        if self.groups > 1 or self.parts or self.planar:
            raise _refusal("NHWC images without groups", self)
        if self.form not in FORMS or self.result not in RESULTS:
            raise _refusal(f"a form of {FORMS} and a result of {tuple(RESULTS)}", self)
        if self.form == AMX:
            known = not self.rows.name and not self.columns.name
            if not fits_tiles(self.width, self.panel) or not (self.window.is_product or known):
                raise _refusal("a block of whole tiles, and windows over known sizes", self)
        if (self.window.chunk if self.form == AMX else self.channels) < QUAD:
            raise _refusal(f"{QUAD} channels or more", self)
        if self.result in BOUNDS and self.narrow.dtype != self.result:
            raise _refusal(f"a conversion to {self.result}", self.narrow)
        if self.result == "i32" and self.epilogue.steps:
            raise _refusal("no epilogue of i32", self.epilogue)

    @staticmethod
    def for_bytes(
        target: Target,
        images: Dim,
        axes: tuple[ConvAxis, ConvAxis],
        channels: int,
        filters: int,
        **others: Any,
    ) -> "ByteConv":
        """Return the knobs for a target's registers and cores; `others` are further fields."""
        form = others.get("form", best_dot(target))
        if form == AMX:
            made = ByteConv(images, *axes, channels, filters, form=form, width=32, panel=32)
            cores = cores_for(target, made.flops, float(made.weights))
            return replace(made, **{"workgroups": _cut(cores, made, made.panel), **others})
        made = ByteConv(images, *axes, channels, filters, form=form)
        lanes = target.vector_bytes // 4
        vectors = 2 if target.vector_registers < 32 else 4
        spare = 2 if form == VNNI else 4 if target.vector_registers >= 32 else 3
        width = (target.vector_registers - spare - vectors) // vectors
        if made.columns.outputs < width and not made.columns.name:
            width = max(1, made.columns.outputs)
        panel = -(-vectors * lanes // 16) * 16
        made = replace(made, width=width, panel=panel)
        cores = cores_for(target, made.flops, float(made.weights))
        return replace(made, **{"workgroups": _cut(cores, made, panel), **others})

    @property
    def panels(self) -> Panels:
        """How the words of the weights are cut."""
        return replace(self.filters_layout.panels, panel=self.panel)

    @property
    def filters_layout(self) -> ByteFilters:
        """How the weights are laid out."""
        if self.form != AMX:
            return ByteFilters(self.taps, self.channels, self.filters, self.panel, self.form)
        runs, depth = self.window.runs
        return ByteFilters(runs, depth, self.filters, COLUMNS, self.form, self.window.chunk)

    @property
    def window(self) -> TileWindow:
        """The geometry of the window in tiles."""
        return TileWindow(self.rows, self.columns, self.channels)

    @property
    def is_copied(self) -> bool:
        """True where the kernel copies the image with its border."""
        return self.form == AMX and self.window.is_copied

    @property
    def corrects(self) -> bool:
        """True where a zero point, or that of bytes without a sign, is taken off the sums."""
        return self.shifted or (self.signed and self.form == VNNI)

    def kernel(self, name: str) -> Kernel:
        """Return the kernel `name`.

        Its operands are x, w, [zero], [sums], [bias], the epilogue's, y, [a copy of x].
        """
        sums = TapSums(self.rows, self.columns, self.channels, self.filters)
        taken = [
            Operand("x", (self.images, self.rows.dim, self.columns.dim, self.channels), dtype="i8"),
            Operand("w", (self.panels.size,), dtype="i32", layout=self.filters_layout),
        ]
        if self.shifted:
            taken.append(Operand("zero", (1,), dtype="i32"))
        if self.corrects:
            taken.append(Operand("sums", (sums.size,), dtype="i32", layout=sums))
        if self.bias:
            taken.append(Operand("bias", (self.filters,), dtype="i32"))
        matrix = pixels_of(self.images, self.output_dims)
        taken += self.epilogue.operands("e", matrix, self.filters)
        result = (self.images, *self.output_dims, self.filters)
        taken.append(Operand("y", result, "out", RESULTS[self.result]))
        if self.is_copied:
            shares = (math.prod(self.workgroups), self.window.copied_bytes(self.workgroups[0]))
            taken.append(Operand("copy", shares, "out", "i8"))
        return Kernel(
            name, tuple(taken), lambda size: self.workgroups, self._body, merged=PIXELS_OF_RESULT
        )

    def _body(self, k: Build, *memory: Memory) -> None:
        x, w, *rest = memory
        copy = rest.pop() if self.is_copied else None
        zero = rest.pop(0) if self.shifted else None
        sums = rest.pop(0) if self.corrects else None
        bias = rest.pop(0) if self.bias else None
        *reads, y = rest
        pieces = (Piece(x, 0, 0, self.channels),)
        epilogue = InKernel(k, self.epilogue, tuple(reads))
        made = DirectBytes(k, self, pieces, w, y, epilogue, sums_of_taps=sums, bias=bias)
        if zero is not None or sums is not None:
            made.zero.append(zero_point(k, zero, 128 if self.signed and self.form == VNNI else 0))
        if self.form == AMX:
            TiledBytes.of(made, copy).build()
        else:
            made.build()


def _refusal(expected: str, came: object) -> PycError:
    return PycError(ReasonCode.BAD_ARGUMENT, f"int8 kernel: expected {expected}, got {came!r}")
