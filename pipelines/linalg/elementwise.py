"""Elementwise ops to linalg.generic, with numpy's broadcasting in the index maps; ramps and sizes.

A dimension of size 1 that is stretched is dropped from its operand first; dynamic dimensions that
meet are checked to agree.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.irtypes import storage_type
from pyc_mlir.dialects.types import BOOL, I64, is_float, is_unsigned
from pyc_mlir.pipelines.linalg import functions, scalar
from pyc_mlir.pipelines.linalg.functions import Number, power_of_size, power_of_two
from pyc_mlir.pipelines.linalg.lowering import (
    LoweredDim,
    LoweredTensor,
    Lowering,
    PendingPointwise,
    lowers,
    product,
)
from pyc_mlir.pipelines.linalg.structured import (
    Body,
    drop_dims,
    emit_joined,
    emit_reshape,
    pointwise,
)


@lowers("iota")
def iota(
    b: Lowering, *like: LoweredTensor, shape: tuple[int, ...], axis: int, dtype: np.dtype
) -> LoweredTensor:
    """Return the loop index, converted."""
    dims = [like[0].dims[i] if d == -1 else LoweredDim(d) for i, d in enumerate(shape)]
    counted = axis % len(shape)

    def body(_: ir.Value) -> ir.Value:
        index = b.loop(counted)
        if not is_float(dtype):
            return index.make("arith.index_cast", result=storage_type(dtype)).value
        return scalar.cast(index.word().value, I64, dtype)

    return pointwise(b, [], dims, dtype, body)


@lowers("size")
def size(b: Lowering, x: LoweredTensor, *, axes: tuple[int, ...]) -> LoweredTensor:
    """Return the product of sizes, known or computed."""
    total = product(x.dims[a] for a in axes)
    if total.static is not None:
        return b.constant(np.array(total.static, np.int64))
    value = b.count(total).word().value
    return b.made("tensor.from_elements", [value], (), I64)


ONE = LoweredDim(1)
NAMES = sorted(
    {*scalar.FLOAT_OPS, *scalar.OWN_FUNCTIONS, *scalar.INTEGER_OPS, *scalar.SHIFTS, "not"}
)


def broadcast_dims(
    b: Lowering, operands: Sequence[tuple[LoweredDim, ...]]
) -> tuple[LoweredDim, ...]:
    """Return the sizes of the result; dynamic sizes that must agree are checked."""
    if operands.count(operands[0]) == len(operands):
        return operands[0]
    rank = max(len(dims) for dims in operands)
    out = [ONE] * rank
    for dims in operands:
        for i, dim in enumerate(dims, start=rank - len(dims)):
            if out[i] == ONE:
                out[i] = dim
            elif dim != ONE:
                out[i] = b.require_equal(out[i], dim, "broadcast dimensions")
    return tuple(out)


def stretched(
    b: Lowering, x: LoweredTensor, dims: tuple[LoweredDim, ...]
) -> tuple[LoweredTensor, tuple[int, ...]]:
    """Return x and its loop numbers among `dims`, without the dimensions that are stretched."""
    if x.splat is not None:
        return x, ()
    if x.dims == dims:
        return x, tuple(range(len(dims)))
    offset = len(dims) - x.rank
    dropped = [i for i, d in enumerate(x.dims) if d == ONE and dims[offset + i] != ONE]
    kept = tuple(offset + i for i in range(x.rank) if i not in dropped)
    return (drop_dims(b, x, dropped) if dropped else x), kept


def broadcasting(
    b: Lowering, operands: Sequence[LoweredTensor], dtype: np.dtype, body: Body
) -> LoweredTensor:
    """Apply a scalar body under numpy's broadcasting; the result is pending."""
    dims = broadcast_dims(b, [t.dims for t in operands])
    inputs = tuple([stretched(b, t, dims) for t in operands])
    return LoweredTensor(dtype, dims, pending=PendingPointwise(inputs, body))


def emit_pointwise(b: Lowering, tensor: LoweredTensor) -> ir.Value:
    """Return one linalg.generic for a pending tensor and those of its shape below it."""
    leaves: dict[tuple[LoweredTensor, tuple[int, ...]], int] = {}
    _collect(b, tensor, leaves, set())
    sizes = [_on_host(b, leaf) for leaf, _ in leaves]
    computed = any(leaf.splat is None for leaf, _ in leaves)
    if tensor.rank == 0 and computed and all(size is not None for size in sizes):
        made = _scalar_of(b, tensor, dict(zip(leaves, sizes, strict=True)), {})
        return b.value(b.made("tensor.from_elements", [made], (), tensor.dtype))

    def body(*values: ir.Value) -> ir.Value:
        known = {leaf: values[i] for leaf, i in leaves.items()}
        return _scalar_of(b, tensor, known, {})

    out = pointwise(b, list(leaves), tensor.dims, tensor.dtype, body)
    return b.value(out)


def _on_host(b: Lowering, leaf: LoweredTensor) -> Any:
    """Return the scalar that a rank-0 tensor holds, if the host computes with it; else None."""
    if leaf.splat is not None:
        return b.scalar(leaf.splat, leaf.dtype)
    if leaf.rank or not b.is_emitted(leaf):
        return None
    made = b.value(leaf).owner
    if isinstance(made, ir.Block) or made.name != "tensor.from_elements":
        return None
    return made.operands[0]


def emit(b: Lowering, tensor: LoweredTensor) -> ir.Value:
    """Emit what is not a constant and has no value yet."""
    if tensor.source is not None:
        return emit_reshape(b, tensor)
    if tensor.joined is not None:
        return emit_joined(b, tensor)
    return emit_pointwise(b, tensor)


def _collect(
    b: Lowering,
    tensor: LoweredTensor,
    leaves: dict[tuple[LoweredTensor, tuple[int, ...]], int],
    seen: set[LoweredTensor],
) -> None:
    """Collect the inputs that are read from memory, in order of first use."""
    assert tensor.pending is not None
    seen.add(tensor)
    for child, loops in tensor.pending.inputs:
        # A pending input over the same loops is computed in the same body.
        same = len(loops) == tensor.rank and child.dims == tensor.dims
        if not (same and b.is_pending(child)):
            leaves.setdefault((child, loops), len(leaves))
        elif child not in seen:
            _collect(b, child, leaves, seen)


def _scalar_of(
    b: Lowering,
    tensor: LoweredTensor,
    known: dict[tuple[LoweredTensor, tuple[int, ...]], ir.Value],
    done: dict[LoweredTensor, ir.Value],
) -> ir.Value:
    """Return the scalar of a pending tensor, each one computed once."""
    if tensor not in done:
        assert tensor.pending is not None
        values = [
            known[(child, loops)] if (child, loops) in known else _scalar_of(b, child, known, done)
            for child, loops in tensor.pending.inputs
        ]
        done[tensor] = tensor.pending.body(*values)
    return done[tensor]


@lowers(*NAMES)
def elementwise(b: Lowering, *operands: LoweredTensor, name: str) -> LoweredTensor:
    """Lower ops with one scalar form and no parameters."""
    dtype = operands[0].dtype
    return broadcasting(b, operands, dtype, lambda *values: scalar.apply(name, values, dtype))


@lowers("compare")
def compare(
    b: Lowering, lhs: LoweredTensor, rhs: LoweredTensor, *, predicate: str
) -> LoweredTensor:
    """cmpf or cmpi."""

    def body(*values: ir.Value) -> ir.Value:
        x, y = (scalar.widen(value, lhs.dtype) for value in values)
        return functions.compare(predicate, x, y, unsigned=is_unsigned(lhs.dtype))

    return broadcasting(b, [lhs, rhs], BOOL, body)


@lowers("select")
def select(b: Lowering, *operands: LoweredTensor) -> LoweredTensor:
    """arith.select."""
    return broadcasting(b, operands, operands[1].dtype, functions.select)


@lowers("bitcast")
def bitcast(b: Lowering, x: LoweredTensor, *, dtype: np.dtype) -> LoweredTensor:
    """arith.bitcast; nothing between integers."""
    out = b.element(dtype)

    def body(value: ir.Value) -> ir.Value:
        return value if value.type == out else functions.emit("arith.bitcast", value, result=out)

    return broadcasting(b, [x], dtype, body)


@lowers("cast")
def cast(b: Lowering, x: LoweredTensor, *, dtype: np.dtype) -> LoweredTensor:
    """Return the conversions of arith, saturating."""
    return broadcasting(b, [x], dtype, lambda v: scalar.cast(v, x.dtype, dtype))


@lowers("pow")
def power(b: Lowering, x: LoweredTensor, y: LoweredTensor) -> LoweredTensor:
    """Compute elementwise; the constant base 2 needs no logarithm."""
    dtype = x.dtype

    def body(*values: ir.Value) -> ir.Value:
        if x.splat == 2:
            return scalar.narrow(power_of_two(scalar.widen(values[1], dtype)), dtype)
        base, exponent = (Number(scalar.widen(v, dtype)) for v in values)
        return scalar.narrow(raise_to(base, exponent, b.f64_math).value, dtype)

    return broadcasting(b, [x, y], dtype, body)


def raise_to(x: Number, y: Number, f64_math: bool) -> Number:
    """Return x ** y for two f32 or two f64 with the signs and special values of C99 (annex F).

    IREE 3.13 computes it for positive bases alone: a negative base, 0 ** 0 and odd powers of -0 are
    wrong, in f64 also much of the rest. So |x| is raised and the sign is put on.
    f64_math: f32 may be computed in f64; targets without it raise |x| by math.powf.
    """
    zero, one, half, nan = map(x.constant, (0.0, 1.0, 0.5, math.nan))
    size = abs(x)
    value = Number(power_of_size(size.value, y.value)) if f64_math else size.make("math.powf", y)
    value = size.compare("eq", one).where(one, value)
    halved = y * half
    odd = (halved - halved.make("math.floor")).compare("eq", half)
    negative = one.make("math.copysign", x).compare("lt", zero)
    signed = (odd & negative).where(-value, value)
    fractional = y.make("math.floor").compare("lt", y)
    finite = x.compare("lt", zero) & x.constant(-math.inf).compare("lt", x)
    signed = (finite & fractional).where(nan, signed)
    unordered = x.compare("unordered", x) | y.compare("unordered", y)
    certain = y.compare("eq", zero) | x.compare("eq", one)
    return certain.where(one, unordered.where(nan, signed))
