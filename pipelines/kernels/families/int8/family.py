"""The kernel family ``int8``: products and convolutions of bytes, with what follows.

Prices, checks and offers of the kernels that `byte_conv.py` builds. The sums are exact: an
operation that differs from numpy's integers is an error.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from random import Random
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.kernels.families.conv.window import ConvAxis, random_axis, under_taps
from pyc_mlir.pipelines.kernels.families.gemm import contents
from pyc_mlir.pipelines.kernels.families.int8.byte_conv import ByteConv
from pyc_mlir.pipelines.kernels.families.int8.chain import after_sums, bias_of
from pyc_mlir.pipelines.kernels.families.int8.dot import AMX, VNNI, best_dot, has_dot
from pyc_mlir.pipelines.kernels.families.int8.narrow import BOUNDS, NARROW, Narrow
from pyc_mlir.pipelines.kernels.lang.pointwise import NOTHING, evaluate
from pyc_mlir.pipelines.kernels.lang.tiles import COLUMNS, ROW_BYTES, ROWS
from pyc_mlir.pipelines.kernels.lang.values import ROUNDING
from pyc_mlir.pipelines.kernels.match.offers import Feed, KernelOffer
from pyc_mlir.pipelines.kernels.match.pointwise import MatrixView
from pyc_mlir.pipelines.kernels.registry import Arrays, Family, refuse_narrow
from pyc_mlir.pipelines.kernels.shared.epilogues import layer
from pyc_mlir.pipelines.kernels.shared.grid import known
from pyc_mlir.pipelines.target.cost import NOMINAL_DIMENSION, Cost
from pyc_mlir.pipelines.target.cost_constants import constant
from pyc_mlir.pipelines.target.cost_model import CostModel
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.pipelines.target.work import Work, sizes

# Rows of a product of tiles that take as long as the load of a tile.
_LOADING_ROWS = 8
# Operations of f32 in whose time a sum is converted, and one of a tile stored and loaded before.
_FINISHING_FLOPS = {AMX: 30, VNNI: 15}
_I32 = DTYPES["i32"]
_BYTES = (DTYPES["i8"], DTYPES["ui8"])


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


def reference(knobs: ByteConv, arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Compute the result by numpy's integers, and the error allowed to the ops after the sums."""
    x, packed, *rest = arrays
    x = x.view(np.int8 if knobs.signed else np.uint8).astype(np.int64)
    knobs = replace(knobs, columns=replace(knobs.columns, size=x.shape[2], name=""))
    zero = int(rest.pop(0)[0]) if knobs.shifted else 0
    if knobs.corrects:
        rest.pop(0)
    bias = rest.pop(0) if knobs.bias else 0
    w = knobs.filters_layout.unpack(packed).astype(np.int64)
    w = w.reshape(knobs.taps, knobs.channels, knobs.filters)
    total: Any = 0
    for tap, met in under_taps(x - zero, knobs.rows, knobs.columns, 0):
        total = total + met @ w[tap]
    total = total + bias
    if knobs.result == "i32":
        return total.astype(np.float64), np.zeros(total.shape)
    matrix = total.reshape(-1, knobs.filters).astype(np.float64)
    exact, bound = evaluate(knobs.epilogue, matrix, rest, ROUNDING * np.abs(matrix))
    if knobs.result in BOUNDS:
        exact, bound = knobs.narrow.reference(exact, bound)
    return exact.reshape(total.shape), bound.reshape(total.shape)


_CHANNELS = (4, 5, 8, 11, 16, 33, 64, 70, 130)
_FILTERS = (1, 3, 8, 15, 16, 17, 33, 64, 79)


def sample(random: Random, target: Target) -> tuple[ByteConv, list[Arrays]]:
    """Draw knobs and three calls."""
    rows, columns = (random_axis(random) for _ in "ab")
    if random.random() < 0.4:
        rows, columns = ConvAxis(1), ConvAxis(random.choice((1, 5, 14, 40)))
        columns = replace(columns, name=random.choice(("", "wide")))
    result = random.choice(("i32", "f32", "i8", "ui8"))
    epilogue = NOTHING if result == "i32" else layer(bias=random.random() < 0.5, activation="relu")
    narrow = NARROW
    if result in BOUNDS:
        narrow = Narrow.random(random, result)
    knobs = ByteConv.for_bytes(
        target, random.choice((1, 2)), (rows, columns), random.choice(_CHANNELS),
        random.choice(_FILTERS), epilogue=epilogue, result=result, narrow=narrow,
        signed=random.random() < 0.5, shifted=random.random() < 0.5, bias=random.random() < 0.5,
        workgroups=random.choice(((1, 1), (2, 1), (1, 2))),
    )  # fmt: skip
    if has_dot(target, VNNI) and random.random() < 0.5:
        knobs = replace(knobs, form="madd")
    if has_dot(target, AMX) and random.random() < 0.6:
        knobs = _in_tiles(knobs, random)
    return knobs, [_arrays(knobs, random) for _ in range(3)]


def _in_tiles(knobs: ByteConv, random: Random) -> ByteConv:
    """Return the same kernel in tiles, for another block, if tiles have its window."""
    kept = {f.name: getattr(knobs, f.name) for f in fields(ByteConv)}
    width, panel = random.choice(((32, 32), (32, 32), (16, 32), (16, 48), (32, 16)))
    try:
        return ByteConv(**{**kept, "form": AMX, "width": width, "panel": panel})
    except PycError:
        return knobs


def _arrays(knobs: ByteConv, random: Random) -> Arrays:
    values = np.random.default_rng(random.randrange(1 << 30))
    wide = random.choice((1, 5, 14, 33)) if knobs.columns.name else knobs.columns.size
    known_axis = replace(knobs.columns, size=wide, name="")
    shape = (known(knobs.images), knobs.rows.size, wide, knobs.channels)
    w = values.integers(-128, 128, (knobs.taps * knobs.channels, knobs.filters)).astype(np.int8)
    arrays = [values.integers(-128, 128, shape).astype(np.int8), knobs.filters_layout.pack(w)]
    operands = {o.name: o for o in knobs.kernel("k").operands}
    if knobs.shifted:
        bounds = (-128, 128) if knobs.signed else (0, 256)
        bounds = bounds if knobs.is_copied else (-128, 256)
        arrays.append(values.integers(*bounds, 1).astype(np.int32))
    if knobs.corrects:
        layout = operands["sums"].layout
        assert layout is not None
        arrays.append(layout.pack(w))
    if knobs.bias:
        arrays.append(values.integers(-9999, 9999, knobs.filters).astype(np.int32))
    pixels = known(knobs.images) * knobs.rows.outputs * known_axis.outputs
    reads = contents(knobs.epilogue, pixels, knobs.filters, values)
    return [*arrays, *(a.astype(np.float32) for a in reads)]


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


FAMILY = Family("int8", ByteConv, refusal, cost, reference, sample, match)
