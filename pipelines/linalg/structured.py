"""Structured ops as values: linalg.generic and its named forms, fills, reshapes, pads.

Index maps are given as tuples of loop numbers (``(0, 2)`` is ``(d0, d1, d2) -> (d0, d2)``) or of
affine expressions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.pipelines.linalg.lowering import (
    Index,
    LoweredDim,
    LoweredTensor,
    Lowering,
    product,
    reassociation,
)

Body = Callable[..., Sequence[ir.Value]]


def generic(
    b: Lowering,
    inputs: Sequence[LoweredTensor],
    outputs: Sequence[LoweredTensor],
    maps: Sequence[Sequence[Index]],
    body: Body,
) -> list[LoweredTensor]:
    """Return a linalg.generic; `body` gets one scalar an operand and returns one an output.

    maps: by operand; loops that the map of an output lacks are reduced. Constants with a single
    value are not operands: they are written into the body, unless a loop has its size from them
    alone, or nothing else is read.
    """
    made = maps[len(inputs)]
    loops = range(1 + max((i for m in maps for i in m if isinstance(i, int)), default=-1))
    kinds = ["parallel" if i in made else "reduction" for i in loops]
    passed = [i for i, t in enumerate(inputs) if t.splat is None]
    kept = [maps[i] for i in passed] + list(maps[len(inputs) :])
    # One input at least: IREE 3.13 sums wrongly what an op without inputs makes.
    if (
        not passed
        or passed == [*range(len(inputs))]
        or not {i for m in kept for i in m} >= {*loops}
    ):
        # A constant of one value, read at no index, has rank 0.
        read = [
            t if t.splat is None or len(m) == t.rank else b.constant(np.array(t.splat, t.dtype))
            for t, m in zip(inputs, maps, strict=False)
        ]
        attributes = b.loop_attributes(maps, kinds)
        return structured(b, "linalg.generic", read, outputs, attributes, body)

    def with_scalars(*arguments: ir.Value) -> Sequence[ir.Value]:
        values = iter(arguments)
        full = [next(values) if t.splat is None else b.scalar(t.splat, t.dtype) for t in inputs]
        return body(*full, *values)

    read = [inputs[i] for i in passed]
    attributes = b.loop_attributes(kept, kinds)
    return structured(b, "linalg.generic", read, outputs, attributes, with_scalars)


def structured(
    b: Lowering,
    name: str,
    inputs: Sequence[LoweredTensor | ir.Value],
    outputs: Sequence[LoweredTensor],
    attributes: dict[str, Any],
    body: Body,
) -> list[LoweredTensor]:
    """Return a linalg op by name with its region built by `body`; inputs may be scalars."""
    operands, types = [], []
    for given in (*inputs, *outputs):
        is_tensor = isinstance(given, LoweredTensor)
        operands.append(b.value(given) if is_tensor else given)
        types.append(b.element(given.dtype) if is_tensor else given.type)
    segments = b.segments(len(inputs), len(outputs))
    op = ir.Operation.create(
        name,
        results=[b.tensor_type(t.dims, t.dtype) for t in outputs],
        operands=operands,
        attributes={**attributes, "operandSegmentSizes": segments},
        regions=1,
    )
    block = op.regions[0].blocks.append(*types)
    with ir.InsertionPoint(block):
        yielded = body(*block.arguments)
        ir.Operation.create("linalg.yield", operands=list(yielded))
    return [LoweredTensor(t.dtype, t.dims, r) for t, r in zip(outputs, op.results, strict=True)]


def pointwise(
    b: Lowering,
    inputs: Sequence[tuple[LoweredTensor, Sequence[int]]],
    dims: Sequence[LoweredDim],
    dtype: np.dtype,
    body: Body,
) -> LoweredTensor:
    """Return one result element for each index of `dims`, from inputs indexed by loop numbers."""
    out = b.empty(dims, dtype)
    maps = [*(m for _, m in inputs), range(len(dims))]
    (result,) = generic(b, [t for t, _ in inputs], [out], maps, lambda *a: [body(*a)])
    return result


def fill(b: Lowering, dims: Sequence[LoweredDim], dtype: np.dtype, value: Any) -> LoweredTensor:
    """Return a tensor of one value, as linalg.fill; equal ones are one."""

    def make() -> LoweredTensor:
        scalar, out = b.scalar(value, dtype), b.empty(dims, dtype)
        (made,) = structured(b, "linalg.fill", [scalar], [out], {}, lambda value, _: [value])
        return made

    data = np.asarray(value, dtype).tobytes()
    return b.once("fill", tuple(dims), dtype, data, make=make)


def reshape(b: Lowering, x: LoweredTensor, dims: Sequence[LoweredDim]) -> LoweredTensor:
    """Return x under other sizes with the same product, by collapse_shape and expand_shape.

    The caller has shown or checked that the products agree.
    """
    x = x if x.source is None else x.source
    dims = list(dims)
    if tuple(dims) == x.dims:
        return x
    sizes = [d.static for d in dims if d.static is not None]
    if x.splat is not None and len(sizes) == len(dims):
        return b.constant(np.broadcast_to(np.array(x.splat, x.dtype), sizes))
    if product(dims).static == 0:
        return b.empty(dims, x.dtype)
    if reassociation(list(x.dims), dims) is None:
        b.require_equal(product(x.dims), product(dims), "sizes of a reshape")
    return LoweredTensor(x.dtype, tuple(dims), source=x)


def emit_reshape(b: Lowering, tensor: LoweredTensor) -> ir.Value:
    """collapse_shape to the sizes that both sides share, then expand_shape."""
    x, dims = tensor.source, list(tensor.dims)
    assert x is not None
    groups = reassociation(list(x.dims), dims)
    if groups is None:
        flat = _collapse(b, x, [product(dims)], [list(range(x.rank))])
        return b.value(_expand(b, flat, dims, None))
    middle = [product(x.dims[i] for i in left) for left, _ in groups]
    collapsed = _collapse(b, x, middle, [left for left, _ in groups])
    return b.value(_expand(b, collapsed, dims, [right for _, right in groups]))


def _groups_attr(groups: Sequence[Sequence[int]]) -> ir.ArrayAttr:
    i64 = ir.IntegerType.get_signless(64)
    return ir.ArrayAttr.get(
        [ir.ArrayAttr.get([ir.IntegerAttr.get(i64, i) for i in g]) for g in groups]
    )


def _collapse(
    b: Lowering, x: LoweredTensor, dims: Sequence[LoweredDim], groups: Sequence[Sequence[int]]
) -> LoweredTensor:
    if len(dims) == x.rank:
        return b.with_dims(x, dims) if tuple(dims) != x.dims else x
    # A collapsed size is static only if all of its parts are: collapse to what they say, then cast.
    natural = [product(x.dims[i] for i in g) for g in groups] if groups[0:] else []
    out = b.made(
        "tensor.collapse_shape", [b.value(x)], natural, x.dtype, reassociation=_groups_attr(groups)
    )
    return out if tuple(natural) == tuple(dims) else b.with_dims(out, dims)


def _expand(
    b: Lowering,
    x: LoweredTensor,
    dims: Sequence[LoweredDim],
    groups: Sequence[Sequence[int]] | None,
) -> LoweredTensor:
    if groups is None:
        groups = [list(range(len(dims)))]
        if not dims:
            return _collapse(b, x, [], [])
    if len(dims) == x.rank:
        return x
    return b.made(
        "tensor.expand_shape",
        [b.value(x), *b.sizes(dims)],
        dims,
        x.dtype,
        reassociation=_groups_attr(groups),
        static_output_shape=static_or_dynamic(dims),
    )


def drop_dims(b: Lowering, x: LoweredTensor, axes: Sequence[int]) -> LoweredTensor:
    """Return x without the dimensions `axes`, which have size 1."""
    return reshape(b, x, [d for i, d in enumerate(x.dims) if i not in axes])


def pad(
    b: Lowering, x: LoweredTensor, low: Sequence[int], high: Sequence[int], value: Any
) -> LoweredTensor:
    """Return x with constant borders, as tensor.pad."""
    if not any(low) and not any(high):
        return x
    grown = zip(x.dims, low, high, strict=True)
    dims = [sum_of(b, d, LoweredDim(sum(by))) if any(by) else d for d, *by in grown]
    if (
        LoweredDim(0) in x.dims
    ):  # All border: for IREE a fill, which it sums wrongly; see `generic`.
        border = b.constant(np.array(value, x.dtype))
        return pointwise(b, [(border, ())], dims, x.dtype, lambda v, _: v)
    scalar = b.scalar(value, x.dtype)
    op = ir.Operation.create(
        "tensor.pad",
        results=[b.tensor_type(dims, x.dtype)],
        operands=[b.value(x)],
        attributes={
            "static_low": ir.DenseI64ArrayAttr.get(list(low)),
            "static_high": ir.DenseI64ArrayAttr.get(list(high)),
            "operandSegmentSizes": b.segments(1, 0, 0),
        },
        regions=1,
    )
    block = op.regions[0].blocks.append(*[b.index] * x.rank)
    with ir.InsertionPoint(block):
        ir.Operation.create("tensor.yield", operands=[scalar])
    return LoweredTensor(x.dtype, tuple(dims), op.result)


def static_or_dynamic(dims: Sequence[LoweredDim]) -> ir.Attribute:
    """Return sizes or offsets as ops list them: known ones inline, others marked dynamic."""
    dynamic = ir.ShapedType.get_dynamic_size()
    return ir.DenseI64ArrayAttr.get([dynamic if d.static is None else d.static for d in dims])


def sum_of(b: Lowering, x: LoweredDim, y: LoweredDim) -> LoweredDim:
    """Return the sum of two sizes: a multiple of what both are multiples of, or computed."""
    if x.atoms == y.atoms:
        return LoweredDim(x.coefficient + y.coefficient, x.atoms)
    return b.atom(b.count(x) + b.count(y))


def emit_joined(b: Lowering, tensor: LoweredTensor) -> ir.Value:
    """Return a concatenation: each part is inserted at its place of one uninitialized tensor."""
    assert tensor.joined is not None
    parts, axis = tensor.joined
    out = b.empty(tensor.dims, tensor.dtype)
    start = LoweredDim(0)
    for n, part in enumerate(parts):
        out = insert(b, part, out, [start if i == axis else LoweredDim(0) for i in range(out.rank)])
        if n + 1 < len(parts):
            start = sum_of(b, start, part.dims[axis]) if n else part.dims[axis]
    return b.value(out)


def insert(
    b: Lowering, source: LoweredTensor, into: LoweredTensor, offsets: Sequence[LoweredDim]
) -> LoweredTensor:
    """tensor.insert_slice with unit strides. Nothing has no place: its offset may be the end."""
    if LoweredDim(0) in source.dims:
        return into
    offset_values, size_values = b.sizes(offsets), b.sizes(source.dims)
    return b.made(
        "tensor.insert_slice",
        [b.value(source), b.value(into), *offset_values, *size_values],
        into.dims,
        into.dtype,
        static_offsets=static_or_dynamic(offsets),
        static_sizes=static_or_dynamic(source.dims),
        static_strides=ir.DenseI64ArrayAttr.get([1] * into.rank),
        operandSegmentSizes=b.segments(1, 1, len(offset_values), len(size_values), 0),
    )


def extract(
    b: Lowering,
    x: LoweredTensor,
    offsets: Sequence[LoweredDim],
    sizes: Sequence[LoweredDim],
    steps: Sequence[int],
) -> LoweredTensor:
    """tensor.extract_slice; `steps` are positive. Nothing has no place, as in `insert`."""
    if LoweredDim(0) in sizes:
        return b.empty(sizes, x.dtype)
    offset_values, size_values = b.sizes(offsets), b.sizes(sizes)
    return b.made(
        "tensor.extract_slice",
        [b.value(x), *offset_values, *size_values],
        sizes,
        x.dtype,
        static_offsets=static_or_dynamic(offsets),
        static_sizes=static_or_dynamic(sizes),
        static_strides=ir.DenseI64ArrayAttr.get(list(steps)),
        operandSegmentSizes=b.segments(1, len(offset_values), len(size_values), 0),
    )
