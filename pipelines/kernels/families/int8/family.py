"""The kernel family ``int8``: products and convolutions of bytes, with what follows.

Prices, checks and offers of the kernels that `byte_conv.py` builds. The sums are exact: an
operation that differs from numpy's integers is an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.kernels.families.conv.window import ConvAxis
from pyc_mlir.pipelines.kernels.families.int8.byte_conv import ByteConv
from pyc_mlir.pipelines.kernels.families.int8.chain import after_sums, bias_of
from pyc_mlir.pipelines.kernels.families.int8.dot import AMX, VNNI, best_dot, has_dot
from pyc_mlir.pipelines.kernels.lang.tiles import COLUMNS, ROW_BYTES, ROWS
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView
from pyc_mlir.pipelines.kernels.registry import Family, refuse_narrow
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_constants import constant
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, sizes

# Rows of a product of tiles that take as long as the load of a tile.
_LOADING_ROWS = 8
# Operations of f32 in whose time a sum is converted, and one of a tile stored and loaded before.
_FINISHING_FLOPS = {AMX: 30, VNNI: 15}


def refusal(knobs: ByteConv, target: Target) -> str:
    """Return the reason against knobs: no such instruction, or a tile beyond the registers."""
    if reason := refuse_narrow(target):
        return reason
    if not has_dot(target, knobs.form):
        return f"int8: expected a target with the form {knobs.form}, got {target.name}"
    if knobs.form == AMX:
        return ""
    vectors = knobs.panel * 4 // target.vector_bytes
    registers = knobs.width * vectors + vectors
    if registers > target.vector_registers:
        return f"int8: expected at most {target.vector_registers} registers, got {registers}"
    return ""


def cost(knobs: ByteConv, target: Target, sizes: Mapping[str, int]) -> Cost:
    """Count each tensor once across memory; the packed weights are constants."""
    images = knobs.images if isinstance(knobs.images, int) else sizes[knobs.images]
    rows, columns = (
        axis.of(sizes[axis.name]) if axis.name else axis for axis in (knobs.rows, knobs.columns)
    )
    pixels = images * rows.outputs * columns.outputs
    flops = pixels * knobs.filters * (2.0 * knobs.taps * knobs.channels + knobs.epilogue.flops)
    out = 1 if knobs.result in ("i8", "ui8") else 4
    read = images * rows.size * columns.size * knobs.channels + 4 * knobs.panels.size
    traffic = read + out * pixels * knobs.filters
    traffic += knobs.epilogue.read_bytes(pixels, knobs.filters)
    done = tile_flops(knobs, pixels) if knobs.form == AMX else flops
    share = constant(f"kernel.int8.{knobs.form}")
    done += share * _FINISHING_FLOPS.get(knobs.form, 0) * pixels * knobs.filters
    made = CostModel(target).kernel(f"int8.{knobs.form}", done, traffic)
    return replace(made, flops=flops, constant_bytes=4 * knobs.panels.size)


def tile_flops(knobs: ByteConv, pixels: int) -> float:
    """Return the operations of whole tiles that take as long as a call.

    A product of tiles takes a cycle for each row, at least those of loading one. The epilogue is
    counted at the speed of f32.
    """
    window = knobs.window
    wide = pixels if window.is_product else knobs.columns.outputs
    height = -(-wide // -(-wide // ROWS))
    tiles = pixels // wide * -(-wide // ROWS) * -(-knobs.filters // COLUMNS)
    products = 2.0 * COLUMNS * ROW_BYTES * max(height, _LOADING_ROWS) * tiles * window.steps
    after = constant("kernel.int8.amx") * knobs.epilogue.flops
    return products + after * pixels * knobs.filters


def match(work: Work, target: Target) -> list[KernelOffer]:
    """Match a product or convolution with constant weights and the ops after it that fit."""
    node = work.nodes[0]
    if node.name not in ("integer_matmul", "integer_conv2d") or refuse_narrow(target):
        return []
    x, weights, zero = node.operands
    if not work.is_constant(weights) or work.type(weights).dtype != DTYPES["i8"]:
        return []
    shape, out = work.type(x).shape, node.type
    cut = out.rank - 1
    channels, filters = shape[-1], out.shape[-1]
    if not channels or not filters:
        return []
    if node.name == "integer_matmul":
        rows = sizes(shape[:-1])
        if rows == 0:
            return []
        pixels = ConvAxis(rows or NOMINAL_DIMENSION, name="" if rows else "m")
        images, axes, feed = 1, (ConvAxis(1), pixels), Feed(x, (0, 0, len(shape) - 1))
    else:
        found = images_of(work, shape, 1)
        if found is None:
            return []
        images, axes = found
        feed = Feed(x, (1, 2, 3))
        if all(a == ConvAxis(a.size) for a in axes) and isinstance(images, int):
            pixels = ConvAxis(images * axes[0].size * axes[1].size)
            images, axes, feed = 1, (ConvAxis(1), pixels), Feed(x, (0, 0, 3))
    shifted = not (work.is_constant(zero) and work.inputs[zero].magnitude == 0)
    bias, first = bias_of(work, filters)
    after = after_sums(work, first, MatrixView(out.shape, cut))
    if after.result == "i32":
        bias = None
    common = dict(
        epilogue=after.program, result=after.result, narrow=after.narrow,
        signed=work.type(x).dtype == DTYPES["i8"], shifted=shifted, bias=bias is not None,
    )  # fmt: skip
    held = not shifted or _is_byte(work, zero, work.type(x).dtype)
    knobs = _best(target, (images, axes, channels, filters), common, held)
    if knobs is None:
        return []
    flat = Feed(weights, (work.type(weights).rank - 1,))
    feeds = [feed, flat]
    if shifted:
        feeds.append(Feed(zero))
    if knobs.corrects:
        feeds.append(flat)
    if bias is not None:
        feeds.append(Feed(bias))
    offered = _priced(knobs, target)
    return [KernelOffer(knobs, after.covers, (*feeds, *after.feeds), offered)]


def _best(
    target: Target, sizes: tuple[Any, Any, int, int], common: Mapping[str, Any], held: bool
) -> ByteConv | None:
    """Return the knobs of the form that is predicted to be the fastest; None if none fits.

    held: the zero point fits a byte, so that a copy's border can hold it.
    """
    made = []
    for form in (best_dot(target), AMX):
        try:
            knobs = ByteConv.for_bytes(target, *sizes, form=form, **common)
        except PycError:
            continue
        if not refusal(knobs, target) and (held or not knobs.is_copied):
            made.append(knobs)
    return min(made, key=lambda knobs: _priced(knobs, target).seconds, default=None)


def _priced(knobs: ByteConv, target: Target) -> Cost:
    """Return the cost, sizes that are not known being the nominal one."""
    return cost(knobs, target, dict.fromkeys(knobs.kernel("k").sizes, NOMINAL_DIMENSION))


def _is_byte(work: Work, zero: int, dtype: np.dtype) -> bool:
    """Return whether a zero point is known, and a number of the type of x."""
    read = work.inputs[zero].array if work.is_constant(zero) else None
    info = np.iinfo(dtype)
    return read is not None and bool(info.min <= int(read().item()) <= info.max)


def images_of(work: Work, shape: Any, groups: int) -> tuple[Any, tuple[ConvAxis, ConvAxis]] | None:
    """Return images and axes of an NHWC convolution of known sizes with so many groups."""
    node = work.nodes[0]
    if node.params["groups"] != groups:
        return None
    return images_of_window(shape, node.params, work.type(node.operands[1]).shape[:2])


def images_of_window(
    shape: Any, params: Mapping[str, Any], kernel: Sequence[int | None]
) -> tuple[Any, tuple[ConvAxis, ConvAxis]] | None:
    """Return images and axes of a window over NHWC images of known sizes."""
    if params["layout"] != "NHWC" or None in (*shape[1:], *kernel):
        return None
    pads, axes = params["pads"], []
    for axis in (0, 1):
        window = (kernel[axis] or 0, params["strides"][axis], pads[axis], pads[axis + 2])
        try:
            axes.append(ConvAxis(shape[1 + axis], *window, params["dilations"][axis]))
        except PycError:
            return None
    return ("n" if shape[0] is None else shape[0]), (axes[0], axes[1])


FAMILY = Family("int8", ByteConv, refusal, cost, match)
