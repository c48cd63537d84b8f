"""The kernel family ``int8_depthwise``: a convolution of each channel of bytes with its own window.

The loops are those of the f32 family (`families/conv/channelwise.py`) on bytes that are widened to
f32 where they are loaded. Products of bytes and their sums over a window are whole numbers below
2^24, which f32 holds: the sums are exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.choices.space import KnobSpace
from pyc_mlir.pipelines.kernels.families.conv.channelwise import WEIGHTED, Channelwise, Geometry
from pyc_mlir.pipelines.kernels.families.conv.sources import Piece
from pyc_mlir.pipelines.kernels.families.conv.window import PIXELS_OF_RESULT
from pyc_mlir.pipelines.kernels.families.int8.byte_conv import RESULTS
from pyc_mlir.pipelines.kernels.families.int8.chain import after_sums, bias_of
from pyc_mlir.pipelines.kernels.families.int8.family import images_of
from pyc_mlir.pipelines.kernels.families.int8.narrow import BOUNDS, NARROW, Narrow
from pyc_mlir.pipelines.kernels.knobs import no_kernel
from pyc_mlir.pipelines.kernels.lang.carrier import Kernel, Operand
from pyc_mlir.pipelines.kernels.lang.language import Build, Lanes, Memory, Place
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, InKernel, Pointwise
from pyc_mlir.pipelines.kernels.lang.values import Vector, arith, int_vector
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView
from pyc_mlir.pipelines.kernels.registry import Family
from pyc_mlir.pipelines.kernels.variants import knob_space
from pyc_mlir.pipelines.streams.ir import ir
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work

# The largest whole number up to which f32 holds all.
_EXACT = 1 << 24


@dataclass(frozen=True)
class Widened:
    """Weights [taps, channels] of i8 as f32."""

    taps: int
    channels: int

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the weights."""
        return self.taps, self.channels

    def pack(self, array: np.ndarray) -> np.ndarray:
        """Return the numbers as f32."""
        return array.astype(np.float32)


@dataclass(frozen=True)
class ByteDepthwise:
    """The knobs of y = epilogue(f32(depthwise(x - zero, w) + bias)) of bytes x.

    `signed`, `shifted`, `bias`, `result` and `narrow` are as in `ByteConv`.
    """

    images: Geometry
    epilogue: Pointwise = NOTHING
    signed: bool = False
    shifted: bool = False
    bias: bool = False
    result: str = "f32"
    narrow: Narrow = NARROW

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for knobs that make no kernel."""
        narrow = self.result not in BOUNDS or self.narrow.dtype == self.result
        if self.images.parts or self.result not in RESULTS or not narrow:
            expected = f"whole images, a result of {tuple(RESULTS)} that `narrow` makes"
            raise no_kernel("int8_depthwise", expected, self)

    def kernel(self, name: str) -> Kernel:
        """Build the kernel `name`: operands x, w, [zero], [bias], the epilogue's, then y."""
        images = self.images
        (x,), layout = images.sources, Widened(images.taps, images.channels)
        taken = [replace(x, dtype="i8"), Operand("w", layout.shape, layout=layout)]
        if self.shifted:
            taken.append(Operand("zero", (1,), dtype="i32"))
        if self.bias:
            taken.append(Operand("bias", (images.channels,), dtype="i32"))
        taken += self.epilogue.operands("e", images.matrix_rows, images.channels)
        taken.append(replace(images.result, dtype=RESULTS[self.result]))
        return Kernel(
            name,
            tuple(taken),
            lambda size: (images.workgroups,),
            self._body,
            merged=PIXELS_OF_RESULT,
        )

    def _body(self, k: Build, *memory: Memory) -> None:
        x, w, *rest = memory
        i32 = ir.VectorType.get([1], ir.IntegerType.get_signless(32))
        zero = (
            as_float(rest.pop(0).load_as(i32, 0)).lane(0).across(k.lanes) if self.shifted else None
        )
        bias = rest.pop(0) if self.bias else None
        *reads, y = rest
        pieces = (Piece(BytesRead(x, k.lanes, self.signed, zero), 0, 0, self.images.channels),)
        epilogue = _Biased(k, self.epilogue, tuple(reads), bias)
        result = y if self.result == "f32" else _Result(y, k, self)
        Channelwise(k, self.images, WEIGHTED, pieces, w, result, epilogue).build()


class BytesRead(Memory):
    """Memory of bytes that is read as f32, less a zero point."""

    __slots__ = ("_memory", "_signed", "_zero")

    def __init__(
        self, memory: Memory, lanes: int, signed: bool, zero: Vector | None = None
    ) -> None:
        self._memory, self._lanes, self._signed, self._zero = memory, lanes, signed, zero
        self.shape = memory.shape

    def load(self, *place: Place) -> Vector:
        """Load bytes as numbers; 0 less the zero point in lanes that the mask excludes."""
        kind = ir.VectorType.get([self._lanes], ir.IntegerType.get_signless(8))
        narrow = self._memory.load_as(kind, *place)
        widen = arith.extsi if self._signed else arith.extui
        whole = widen(int_vector(self._lanes), narrow)
        number = as_float(whole)
        return number if self._zero is None else number - self._zero


@dataclass(frozen=True)
class _Biased(InKernel):
    """A program behind the addition of a bias."""

    bias: Memory | None = None

    def row(self, i: Any) -> Any:
        """Return the program on the sums at a place of row `i`."""
        apply, bias = super().row(i), self.bias
        if bias is None:
            return apply
        kind = int_vector(self.k.lanes)
        return lambda own, at: apply(own + as_float(bias.load_as(kind, at)), at)


class _Result(Memory):
    """Memory of a result in integers: bytes, or the sums in i32."""

    __slots__ = ("_k", "_knobs", "_memory")

    def __init__(self, memory: Memory, k: Build, knobs: ByteDepthwise) -> None:
        self._memory, self._k, self._knobs, self.shape = memory, k, knobs, memory.shape

    def store(self, value: Vector, *place: Place, streaming: bool = False) -> None:
        """Write a vector."""
        *head, at = place
        assert isinstance(at, Lanes)
        if self._knobs.result == "i32":
            whole = arith.fptosi(int_vector(value.lanes), value.value)
            self._memory.store_as(whole, *head, at.start, mask=at.mask)
            return
        self._knobs.narrow.store(self._k, self._memory, [value], head, at.start, mask=at.mask)


def as_float(whole: Any) -> Vector:
    """Return 32-bit integers as f32."""
    lanes = ir.VectorType(whole.type).shape[0]
    return Vector(arith.sitofp(ir.VectorType.get([lanes], ir.F32Type.get()), whole))


def refusal(knobs: ByteDepthwise, target: Target) -> str:
    """Refuse sums, a row of weights and a number of x that do not fit the registers."""
    return knobs.images.refusal(target)


def cost(knobs: ByteDepthwise, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count each tensor as crossing memory once."""
    images = knobs.images
    pixels = images.pixels(sizes)
    flops = pixels * images.channels * (2.0 * images.taps + knobs.epilogue.flops)
    count = images.images if isinstance(images.images, int) else sizes[images.images]
    read = count * images.rows.size * images.columns.size
    out = 1 if knobs.result in BOUNDS else 4
    traffic = images.channels * (read + out * pixels + 4 * images.taps)
    traffic += knobs.epilogue.read_bytes(pixels, images.channels)
    return CostModel(target).kernel("depthwise", flops, traffic)


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Offer a convolution of bytes with a group for each channel, with constant weights."""
    node = work.nodes[0]
    if node.name != "integer_conv2d":
        return []
    x, weights, zero = node.operands
    shape, channels = work.type(x).shape, work.type(x).shape[-1]
    found = images_of(work, shape, channels) if channels else None
    if (
        not channels
        or found is None
        or not work.is_constant(weights)
        or work.type(weights).shape[2] != 1
    ):
        return []
    images, axes = found
    kind = work.type(weights)
    if kind.shape[2:] != (1, channels) or kind.dtype != DTYPES["i8"]:
        return []
    bias, first = bias_of(work, channels)
    most = axes[0].kernel * axes[1].kernel * 2 * 255 * 128
    if most + (0 if bias is None else work.inputs[bias].magnitude) >= _EXACT:
        return []
    after = after_sums(work, first, MatrixView(node.type.shape, 3))
    if after.result == "i32":
        bias = None
    shifted = not (work.is_constant(zero) and work.inputs[zero].magnitude == 0)
    geometry = Geometry.on(target, images, *axes, channels)
    signed = work.type(x).dtype == DTYPES["i8"]
    given = (after.program, signed, shifted, bias is not None, after.result, after.narrow)
    knobs = ByteDepthwise(geometry, *given)
    if refusal(knobs, target):
        return []
    feeds = [Feed(x, (1, 2, 3)), Feed(weights, (3,))]
    if shifted:
        feeds.append(Feed(zero))
    if bias is not None:
        feeds.append(Feed(bias))
    named = dict.fromkeys(knobs.kernel("k").sizes, NOMINAL_DIMENSION)
    return [KernelOffer(knobs, after.covers, (*feeds, *after.feeds), cost(knobs, target, named))]


def space(offer: KernelOffer, target: Target) -> KnobSpace | None:
    """Vary the outputs of a register tile, and shares of rows."""
    knobs: ByteDepthwise = offer.knobs
    return knob_space(knobs, knobs.images.to_try(target), lambda made: refusal(made, target))


FAMILY = Family("int8_depthwise", ByteDepthwise, refusal, cost, match, space)
