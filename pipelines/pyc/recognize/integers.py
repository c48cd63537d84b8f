"""Products, convolutions and poolings of 8-bit integers, as composites: exact sums in i32.

The largest of dequantized bytes is that of the bytes, dequantized. Of products two spellings are
found. That of integers, as ONNX's MatMulInteger and QLinearConv, is the op's own decomposition:
``matmul(x - zero, w)`` in i32. That of floats, between quantized tensors (QDQ), is

    quantize(relu(conv2d(dequantize(q), dequantize(w)) + bias))

and becomes ``cast(round(f32(integer_conv2d(q, w) + bias) * scale) + zero)``: the sum is exact, and
rounded once by ``scale = (scale of q * scale of w) / scale of the result``, as onnxruntime does. It
differs from what the floats give by one unit, and only where the exact value lies within their
rounding of a tie. Jacob et al., 2018, section 2.2. Weights of unsigned bytes less their zero point
do not fit signed ones: they are the sum of two halves that do, and the depth is twice as large.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.opdef import OPS
from pyc_mlir.dialects.types import DTYPES
from pyc_mlir.pipelines.pyc.rewriting import constant_array, made_by, only_user, params_of, splat_of

_F32, _I32, _I8 = DTYPES["f32"], DTYPES["i32"], DTYPES["i8"]
_BYTES = (_I8, DTYPES["ui8"])
_POOL = "pyc.max_pool2d"
_NAMES = {"pyc.matmul": "integer_matmul", "pyc.conv2d": "integer_conv2d"}
# What moves the elements of quantized values without looking at them.
_MOVES = ("reshape", "transpose")
_LIMIT = 1 << 31


@dataclass(frozen=True)
class Quantized:
    """A value whose number at each place is ``(q - zero) * scale``.

    `moves` are ops between q and the value, the last one first.
    """

    q: ir.Value
    zero: np.ndarray
    scale: np.ndarray
    moves: tuple[ir.Operation, ...] = ()


@dataclass(frozen=True)
class IntegerMatch:
    """A product that can be one of integers: its name, the op to replace, and what makes it.

    `same` is False where the sums are rounded elsewhere than in the program.
    """

    name: str
    root: ir.Operation
    reason: str
    build: Callable[[], ir.Value]
    same: bool = True


def integers(function: ir.Operation) -> Iterator[IntegerMatch]:
    """Yield what is found in a function; each may be replaced before the next is looked for."""
    ops = [op.operation for op in function.regions[0].blocks[0].operations]
    for op in [op for op in ops if op.name in (*_NAMES, _POOL)]:
        match = _of_pool(op) if op.name == _POOL else _of_integers(op) or _of_floats(op)
        if match is not None:
            yield match


def _widened(value: ir.Value, dtype: np.dtype) -> ir.Value | None:
    """Return the bytes that a value of `dtype` is the conversion of."""
    if from_mlir(value.type).dtype != dtype:
        return None
    while (op := made_by(value, "cast")) is not None:
        value = op.operands[0]
        source = from_mlir(value.type).dtype
        if source in _BYTES:
            return value
        if source != _I32:
            return None
    return None


def _of_integers(op: ir.Operation) -> IntegerMatch | None:
    """``matmul(cast(x) - zero, cast(w) - zero of w)`` in i32 of constant weights."""
    x, zero = _shifted(op.operands[0])
    weights = _weights(op.operands[1])
    if x is None or weights is None or not _is_supported(op):
        return None
    if zero is not None and from_mlir(zero.type).shape != ():
        return None
    name = _NAMES[op.name]

    def build() -> ir.Value:
        point = IRBuilder().constant(np.zeros((), _I32)) if zero is None else zero
        return _integer(op, x, weights, point)

    same = "the same operations"
    return IntegerMatch(name, op, same if len(weights) == 1 else f"{same} by parts", build)


def _shifted(value: ir.Value) -> tuple[ir.Value | None, ir.Value | None]:
    """Return the bytes and the zero point of an i32 value; None for what is none."""
    op = made_by(value, "sub")
    if op is None:
        return _widened(value, _I32), None
    return _widened(op.operands[0], _I32), op.operands[1]


def _weights(value: ir.Value) -> tuple[np.ndarray, ...] | None:
    """Return constant weights in i32, less their zero point, as i8, or as a sum of two such."""
    array = constant_array(value)
    if array is None:
        x, zero = _shifted(value)
        known = None if x is None else constant_array(x)
        point: Any = 0 if zero is None else constant_array(zero)
        array = None if known is None or point is None else known.astype(_I32) - point
    return None if array is None or array.dtype != _I32 else _parts(array)


def _parts(whole: np.ndarray) -> tuple[np.ndarray, ...] | None:
    """Return weights as i8, or those of unsigned bytes and a zero point as a sum of two i8."""
    if np.abs(whole + 0.5).max(initial=0) <= 128:
        return (whole.astype(_I8),)
    half = whole >> 1
    fits = np.abs(whole + 1).max() <= 255
    return (half.astype(_I8), (whole - half).astype(_I8)) if fits else None


def _is_supported(op: ir.Operation) -> bool:
    """Return whether the op of integers has this form: weights are a matrix, or filters.

    A convolution has no groups, or one for each channel.
    """
    x, weights = (from_mlir(v.type) for v in op.operands[:2])
    if op.name == "pyc.matmul":
        return weights.rank == 2 and x.rank >= 2
    params = params_of(OPS["conv2d"], op)
    own, axis = (1, 0) if params["layout"] == "NCHW" else (3, 3)
    each = params["groups"] == x.shape[own] == weights.shape[axis]
    return (params["groups"] == 1 or each) and x.shape[own] is not None


def _integer(
    op: ir.Operation, x: ir.Value, parts: tuple[np.ndarray, ...], zero: ir.Value
) -> ir.Value:
    """Build the product of integers; few channels are padded to four, by weights of 0.

    Of weights in two parts the depth is twice as large, but for those of one channel each.
    """
    b, weights = IRBuilder(), parts[0]
    params = {} if op.name == "pyc.matmul" else params_of(OPS["conv2d"], op)
    axis = 1 if params.get("layout") == "NCHW" else from_mlir(x.type).rank - 1
    if len(parts) > 1 and params.get("groups", 1) > 1:
        return b.add(*(_integer(op, x, (part,), zero) for part in parts))
    if len(parts) > 1:
        x = b.concat(x, x, axis=axis)
        weights = np.concatenate(parts, 1 if axis == 1 and params else weights.ndim - 2)
    if not params:
        return b.integer_matmul(x, b.constant(weights), zero)
    missing = max(0, 4 - (from_mlir(x.type).shape[axis] or 4))
    if missing and params["groups"] == 1:
        high = tuple(missing if d == axis else 0 for d in range(4))
        x = b.pad(x, low=(0, 0, 0, 0), high=high)
        own = 1 if axis == 1 else 2
        weights = np.pad(weights, [(0, missing if d == own else 0) for d in range(4)])
    return b.integer_conv2d(x, b.constant(weights), zero, **params)


def dequantized(value: ir.Value) -> Quantized | None:
    """Return what a f32 value is the dequantization of."""
    moves: list[ir.Operation] = []
    while (moved := made_by(value, *_MOVES)) is not None:
        moves.append(moved)
        value = moved.operands[0]
    product = made_by(value, "mul")
    if product is None or from_mlir(value.type).dtype != _F32:
        return None
    scale, shifted = constant_array(product.operands[1]), product.operands[0]
    cast = made_by(shifted, "cast")
    if scale is None or cast is None or not (np.isfinite(scale) & (scale > 0)).all():
        return None
    inner, zero = cast.operands[0], np.zeros((), _I32)
    if (sub := made_by(inner, "sub")) is not None:
        point = constant_array(sub.operands[1])
        if point is None:
            return None
        inner, zero = sub.operands[0], point
    q = inner if from_mlir(inner.type).dtype in _BYTES else _widened(inner, _I32)
    return None if q is None else Quantized(q, zero, scale, tuple(moves))


def _filters(op: ir.Operation) -> tuple[np.ndarray, np.ndarray] | None:
    """Return a product's weights less their zero points, and each column's or filter's scale."""
    found = dequantized(op.operands[1])
    array = None if found is None else constant_array(found.q)
    if found is None or array is None:
        return None
    whole = array.astype(np.int64) - found.zero
    scales = np.broadcast_to(found.scale, whole.shape)
    for move in reversed(found.moves):
        if move.name == "pyc.transpose":
            order = params_of(OPS["transpose"], move)["permutation"]
            whole, scales = whole.transpose(order), scales.transpose(order)
        else:
            shape = [d or 0 for d in from_mlir(move.result.type).shape]
            whole, scales = whole.reshape(shape), scales.reshape(shape)
    nchw = op.name == "pyc.conv2d" and params_of(OPS["conv2d"], op)["layout"] == "NCHW"
    rows = np.moveaxis(scales, 0 if nchw else -1, -1).reshape(-1, scales.shape[0 if nchw else -1])
    return (whole, rows[0]) if (rows == rows[:1]).all() else None


@dataclass(frozen=True)
class _Chain:
    """The ops after a product up to the quantized result: bias, bounds, scale and zero point."""

    root: ir.Operation
    bias: np.ndarray
    bounds: tuple[tuple[str, np.ndarray], ...]
    scale: np.float32
    zero: float


def _of_floats(op: ir.Operation) -> IntegerMatch | None:
    """Match a product of dequantized values whose result alone is quantized."""
    x = dequantized(op.operands[0])
    weights = _filters(op) if x is not None else None
    if x is None or weights is None or x.scale.size * x.zero.size != 1 or not _is_supported(op):
        return None
    filters, scales = weights
    chain, parts = _chain(op, len(scales)), _parts(filters)
    if chain is None or parts is None:
        return None
    own = np.float32(x.scale.reshape(-1)[0]) * scales.astype(np.float32)
    whole = np.rint(chain.bias / own.astype(np.float64))
    exact = (whole.astype(np.float32) * own == chain.bias).all()
    depth = np.abs(filters).sum(tuple(d for d in range(filters.ndim) if d != _filter_axis(op)))
    if (255 * depth + (np.abs(whole) if exact else 0) >= _LIMIT).any():
        return None
    factor = own / chain.scale
    if not np.isfinite(factor).all():
        return None

    def build() -> ir.Value:
        b = IRBuilder()
        out = _integer(op, _moved(x), parts, b.constant(x.zero.reshape(()).astype(_I32)))
        if exact and whole.any():
            out = b.add(out, b.constant(_aligned(op, whole.astype(_I32))))
        out = b.mul(b.cast(out, dtype=_F32), b.constant(_aligned(op, factor)))
        if not exact:
            shift = (chain.bias / chain.scale).astype(np.float32)
            out = b.add(out, b.constant(_aligned(op, shift)))
        for name, bound in chain.bounds:
            limit = b.constant((bound / chain.scale).astype(np.float32))
            is_relu = name == "maximum" and bound == 0
            out = b.relu(out) if is_relu else getattr(b, name)(out, limit)
        out = b.round(out)
        if chain.zero:
            out = b.add(out, b.scalar(chain.zero, out))
        return b.cast(out, dtype=from_mlir(chain.root.result.type).dtype)

    reason = "exact sums, rounded once: one unit apart where the floats are at a tie"
    return IntegerMatch(f"quantized {_NAMES[op.name][8:]}", chain.root, reason, build, same=False)


def _of_pool(op: ir.Operation) -> IntegerMatch | None:
    """``max_pool2d((q - zero) * scale)`` with one scale and zero point: larger bytes are larger."""
    x = dequantized(op.operands[0])
    if x is None or x.scale.size * x.zero.size != 1 or constant_array(x.q) is not None:
        return None

    def build() -> ir.Value:
        b = IRBuilder()
        q = b.max_pool2d(_moved(x), **params_of(OPS["max_pool2d"], op))
        whole = b.sub(b.cast(q, dtype=_I32), b.constant(x.zero.reshape(()).astype(_I32)))
        return b.mul(b.cast(whole, dtype=_F32), b.constant(x.scale.reshape(()).astype(_F32)))

    return IntegerMatch("quantized max_pool2d", op, "the same bytes", build)


def _moved(x: Quantized) -> ir.Value:
    """Return the bytes of a value where its ops move them to."""
    b, q = IRBuilder(), x.q
    for move in reversed(x.moves):
        op = OPS[move.name[4:]]
        q = b.build(op, q, **params_of(op, move))
    return q


def _filter_axis(op: ir.Operation) -> int:
    nchw = op.name == "pyc.conv2d" and params_of(OPS["conv2d"], op)["layout"] == "NCHW"
    return 0 if nchw else from_mlir(op.operands[1].type).rank - 1


def _aligned(op: ir.Operation, vector: np.ndarray) -> np.ndarray:
    """Return a number for each filter as it broadcasts to the result."""
    return vector.reshape(-1, 1, 1) if _filter_axis(op) == 0 else vector


def _chain(op: ir.Operation, filters: int) -> _Chain | None:
    """Follow the only readers of a product to the cast to bytes; None where there is none."""
    bias, bounds = np.zeros(filters, np.float32), []
    value, named = op.result, _filter_axis(op)
    shape = from_mlir(value.type).shape
    while True:
        user = only_user(value)
        if user is None or from_mlir(user.result.type).shape != shape:
            return None
        name = user.name[4:]
        array = constant_array(user.operands[1]) if len(user.operands) == 2 else None
        if name == "relu":
            bounds.append(("maximum", np.zeros((), np.float32)))
        elif name in ("maximum", "minimum") and array is not None and array.size == 1:
            bounds.append((name, array.reshape(())))
        elif name == "clip" and len(user.operands) == 3:
            ends = [constant_array(v) for v in user.operands[1:]]
            if any(e is None or e.size != 1 for e in ends):
                return None
            names = ("maximum", "minimum")
            bounds += [
                (n, e.reshape(())) for n, e in zip(names, ends, strict=True) if e is not None
            ]
        elif name == "add" and array is not None and not bounds and not bias.any():
            # It varies along the filters at most.
            full = array.reshape((1,) * (len(shape) - array.ndim) + array.shape)
            size = full.shape[1 if named == 0 else len(shape) - 1]
            if full.size != size or size not in (1, filters):
                return None
            bias = np.broadcast_to(array.reshape(-1), (filters,)).astype(np.float32)
        else:
            break
        value = user.result
    scale = np.float32(1)
    if name == "div" and array is not None and array.size == 1 and user.operands[0] == value:
        scale, value = np.float32(array.reshape(-1)[0]), user.result
        user = only_user(value)
    if user is None or user.name != "pyc.round" or not scale > 0:
        return None
    value, zero = user.result, 0.0
    user = only_user(value)
    if user is not None and user.name == "pyc.add":
        point = splat_of(user.operands[1])
        if point is None:
            return None
        zero, value = float(point), user.result
        user = only_user(value)
    if user is None or user.name != "pyc.cast" or from_mlir(user.result.type).dtype not in _BYTES:
        return None
    least = float(np.iinfo(from_mlir(user.result.type).dtype).min)
    kept = [b for b in bounds if not (b[0] == "maximum" and b[1] == 0 and zero == least)]
    return _Chain(user, bias, tuple(kept), scale, zero)
