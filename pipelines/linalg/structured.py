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
PARALLEL, REDUCTION = "parallel", "reduction"


def generic(
    lowering: Lowering,
    inputs: Sequence[LoweredTensor],
    outputs: Sequence[LoweredTensor],
    maps: Sequence[Sequence[Index]],
    iterators: Sequence[str],
    body: Body,
) -> list[LoweredTensor]:
    """Return a linalg.generic; `body` gets one scalar an operand and returns one an output.

    Constants with a single value are not operands: they are written into the body, unless a loop
    has its size from them alone, or nothing else is read.
    """
    passed = [i for i, t in enumerate(inputs) if t.splat is None]
    if len(passed) == len(inputs) or not _suffice(passed, inputs, maps, len(iterators)):
        attributes = lowering.loop_attributes(maps, iterators)
        read = [_as_read(lowering, t, m) for t, m in zip(inputs, maps, strict=False)]
        return structured(lowering, "linalg.generic", read, outputs, attributes, body)
    kept = [maps[i] for i in passed] + list(maps[len(inputs) :])
    attributes = lowering.loop_attributes(kept, iterators)

    def with_scalars(*arguments: ir.Value) -> Sequence[ir.Value]:
        values = iter(arguments)
        full = [
            next(values) if t.splat is None else lowering.scalar(t.splat, t.dtype) for t in inputs
        ]
        return body(*full, *values)

    read = [inputs[i] for i in passed]
    return structured(lowering, "linalg.generic", read, outputs, attributes, with_scalars)


def _suffice(
    passed: Sequence[int],
    inputs: Sequence[LoweredTensor],
    maps: Sequence[Sequence[Index]],
    loops: int,
) -> bool:
    """Return whether the inputs `passed` and the outputs give every loop its size.

    One input at least: IREE 3.13 sums wrongly what an op without inputs makes.
    """
    kept = [*(maps[i] for i in passed), *maps[len(inputs) :]]
    return bool(passed) and {i for m in kept for i in m}.issuperset(range(loops))


def _as_read(lowering: Lowering, x: LoweredTensor, indices: Sequence[Index]) -> LoweredTensor:
    """Return a tensor as it is read: a constant of one value, read at no index, has rank 0."""
    if x.splat is None or len(indices) == x.rank:
        return x
    return lowering.constant(np.array(x.splat, x.dtype))


def structured(
    lowering: Lowering,
    name: str,
    inputs: Sequence[LoweredTensor],
    outputs: Sequence[LoweredTensor],
    attributes: dict[str, Any],
    body: Body,
) -> list[LoweredTensor]:
    """Return a linalg op by name with its region built by `body`."""
    operands = [lowering.value(t) for t in (*inputs, *outputs)]
    segments = lowering.segments(len(inputs), len(outputs))
    op = ir.Operation.create(
        name,
        results=[lowering.tensor_type(t.dims, t.dtype) for t in outputs],
        operands=operands,
        attributes={**attributes, "operandSegmentSizes": segments},
        regions=1,
    )
    types = [lowering.element(t.dtype) for t in (*inputs, *outputs)]
    block = op.regions[0].blocks.append(*types)
    with ir.InsertionPoint(block):
        yielded = body(*block.arguments)
        ir.Operation.create("linalg.yield", operands=list(yielded))
    return [LoweredTensor(t.dtype, t.dims, r) for t, r in zip(outputs, op.results, strict=True)]


def pointwise(
    lowering: Lowering,
    inputs: Sequence[tuple[LoweredTensor, Sequence[int]]],
    dims: Sequence[LoweredDim],
    dtype: np.dtype,
    body: Body,
) -> LoweredTensor:
    """Return one result element for each index of `dims`, from inputs indexed by loop numbers."""
    loops = tuple(range(len(dims)))
    out = lowering.empty(dims, dtype)
    tensors, maps = [t for t, _ in inputs], [tuple(m) for _, m in inputs]
    (result,) = generic(
        lowering, tensors, [out], [*maps, loops], [PARALLEL] * len(dims), lambda *a: [body(*a)]
    )
    return result


def fill(
    lowering: Lowering, dims: Sequence[LoweredDim], dtype: np.dtype, value: Any
) -> LoweredTensor:
    """Return a tensor of one value, as linalg.fill; equal ones are one."""

    def make() -> LoweredTensor:
        scalar = lowering.scalar(value, dtype)
        out = lowering.empty(dims, dtype)
        segments = lowering.segments(1, 1)
        op = ir.Operation.create(
            "linalg.fill",
            results=[lowering.tensor_type(dims, dtype)],
            operands=[scalar, lowering.value(out)],
            attributes={"operandSegmentSizes": segments},
            regions=1,
        )
        element = lowering.element(dtype)
        block = op.regions[0].blocks.append(element, element)
        with ir.InsertionPoint(block):
            ir.Operation.create("linalg.yield", operands=[block.arguments[0]])
        return LoweredTensor(dtype, tuple(dims), op.result)

    data = np.asarray(value, dtype).tobytes()
    return lowering.once("fill", tuple(dims), dtype, data, make=make)


def reshape(lowering: Lowering, x: LoweredTensor, dims: Sequence[LoweredDim]) -> LoweredTensor:
    """Return x under other sizes with the same product, by collapse_shape and expand_shape.

    The caller has shown or checked that the products agree.
    """
    x = x if x.source is None else x.source
    dims = list(dims)
    if tuple(dims) == x.dims:
        return x
    sizes = [d.static for d in dims if d.static is not None]
    if x.splat is not None and len(sizes) == len(dims):
        return lowering.constant(np.broadcast_to(np.array(x.splat, x.dtype), sizes))
    if product(dims).static == 0:
        return lowering.empty(dims, x.dtype)
    if reassociation(list(x.dims), dims) is None:
        lowering.require_equal(product(x.dims), product(dims), "sizes of a reshape")
    return LoweredTensor(x.dtype, tuple(dims), source=x)


def emit_reshape(lowering: Lowering, tensor: LoweredTensor) -> ir.Value:
    """collapse_shape to the sizes that both sides share, then expand_shape."""
    x, dims = tensor.source, list(tensor.dims)
    assert x is not None
    groups = reassociation(list(x.dims), dims)
    if groups is None:
        flat = _collapse(lowering, x, [product(dims)], [list(range(x.rank))])
        return lowering.value(_expand(lowering, flat, dims, None))
    middle = [product(x.dims[i] for i in left) for left, _ in groups]
    collapsed = _collapse(lowering, x, middle, [left for left, _ in groups])
    return lowering.value(_expand(lowering, collapsed, dims, [right for _, right in groups]))


def _groups_attr(groups: Sequence[Sequence[int]]) -> ir.ArrayAttr:
    i64 = ir.IntegerType.get_signless(64)
    return ir.ArrayAttr.get(
        [ir.ArrayAttr.get([ir.IntegerAttr.get(i64, i) for i in g]) for g in groups]
    )


def _collapse(
    lowering: Lowering,
    x: LoweredTensor,
    dims: Sequence[LoweredDim],
    groups: Sequence[Sequence[int]],
) -> LoweredTensor:
    if len(dims) == x.rank:
        return lowering.with_dims(x, dims) if tuple(dims) != x.dims else x
    # A collapsed size is static only if all of its parts are: collapse to what they say, then cast.
    natural = [product(x.dims[i] for i in g) for g in groups] if groups[0:] else []
    op = ir.Operation.create(
        "tensor.collapse_shape",
        results=[lowering.tensor_type(natural, x.dtype)],
        operands=[lowering.value(x)],
        attributes={"reassociation": _groups_attr(groups)},
    )
    out = LoweredTensor(x.dtype, tuple(natural), op.result)
    return out if tuple(natural) == tuple(dims) else lowering.with_dims(out, dims)


def _expand(
    lowering: Lowering,
    x: LoweredTensor,
    dims: Sequence[LoweredDim],
    groups: Sequence[Sequence[int]] | None,
) -> LoweredTensor:
    if groups is None:
        groups = [list(range(len(dims)))]
        if not dims:
            return _collapse(lowering, x, [], [])
    if len(dims) == x.rank:
        return x
    dynamic = ir.ShapedType.get_dynamic_size()
    static = [dynamic if d.static is None else d.static for d in dims]
    op = ir.Operation.create(
        "tensor.expand_shape",
        results=[lowering.tensor_type(dims, x.dtype)],
        operands=[lowering.value(x), *lowering.sizes(dims)],
        attributes={
            "reassociation": _groups_attr(groups),
            "static_output_shape": ir.DenseI64ArrayAttr.get(static),
        },
    )
    return LoweredTensor(x.dtype, tuple(dims), op.result)


def drop_dims(lowering: Lowering, x: LoweredTensor, axes: Sequence[int]) -> LoweredTensor:
    """Return x without the dimensions `axes`, which have size 1."""
    return reshape(lowering, x, [d for i, d in enumerate(x.dims) if i not in axes])


def pad(
    lowering: Lowering, x: LoweredTensor, low: Sequence[int], high: Sequence[int], value: Any
) -> LoweredTensor:
    """Return x with constant borders, as tensor.pad."""
    if not any(low) and not any(high):
        return x
    dims = [grow(lowering, d, a + b) for d, a, b in zip(x.dims, low, high, strict=True)]
    if (
        LoweredDim(0) in x.dims
    ):  # All border: for IREE a fill, which it sums wrongly; see `_suffice`.
        border = lowering.constant(np.array(value, x.dtype))
        return pointwise(lowering, [(border, ())], dims, x.dtype, lambda v, _: v)
    scalar = lowering.scalar(value, x.dtype)
    op = ir.Operation.create(
        "tensor.pad",
        results=[lowering.tensor_type(dims, x.dtype)],
        operands=[lowering.value(x)],
        attributes={
            "static_low": ir.DenseI64ArrayAttr.get(list(low)),
            "static_high": ir.DenseI64ArrayAttr.get(list(high)),
            "operandSegmentSizes": lowering.segments(1, 0, 0),
        },
        regions=1,
    )
    block = op.regions[0].blocks.append(*[lowering.index] * x.rank)
    with ir.InsertionPoint(block):
        ir.Operation.create("tensor.yield", operands=[scalar])
    return LoweredTensor(x.dtype, tuple(dims), op.result)


def grow(lowering: Lowering, dim: LoweredDim, by: int) -> LoweredDim:
    """Return the size `dim + by`."""
    if by == 0:
        return dim
    if dim.static is not None:
        return LoweredDim(dim.static + by)
    return lowering.atom(lowering.count(dim) + by)


def static_or_dynamic(dims: Sequence[LoweredDim]) -> ir.Attribute:
    """Return sizes or offsets as ops list them: known ones inline, others marked dynamic."""
    dynamic = ir.ShapedType.get_dynamic_size()
    return ir.DenseI64ArrayAttr.get([dynamic if d.static is None else d.static for d in dims])


def sum_of(lowering: Lowering, a: LoweredDim, b: LoweredDim) -> LoweredDim:
    """Return the sum of two sizes: a multiple of what both are multiples of, or computed."""
    if a.atoms == b.atoms:
        return LoweredDim(a.coefficient + b.coefficient, a.atoms)
    return lowering.atom(lowering.count(a) + lowering.count(b))


def emit_joined(lowering: Lowering, tensor: LoweredTensor) -> ir.Value:
    """Return a concatenation: each part is inserted at its place of one uninitialized tensor."""
    assert tensor.joined is not None
    parts, axis = tensor.joined
    out = lowering.empty(tensor.dims, tensor.dtype)
    start = LoweredDim(0)
    for n, part in enumerate(parts):
        out = insert(
            lowering, part, out, [start if i == axis else LoweredDim(0) for i in range(out.rank)]
        )
        if n + 1 < len(parts):
            start = sum_of(lowering, start, part.dims[axis]) if n else part.dims[axis]
    return lowering.value(out)


def insert(
    lowering: Lowering, source: LoweredTensor, into: LoweredTensor, offsets: Sequence[LoweredDim]
) -> LoweredTensor:
    """tensor.insert_slice with unit strides. Nothing has no place: its offset may be the end."""
    if LoweredDim(0) in source.dims:
        return into
    offset_values, size_values = lowering.sizes(offsets), lowering.sizes(source.dims)
    operands = [lowering.value(source), lowering.value(into), *offset_values, *size_values]
    segments = [1, 1, len(offset_values), len(size_values), 0]
    op = ir.Operation.create(
        "tensor.insert_slice",
        results=[lowering.tensor_type(into.dims, into.dtype)],
        operands=operands,
        attributes={
            "static_offsets": static_or_dynamic(offsets),
            "static_sizes": static_or_dynamic(source.dims),
            "static_strides": ir.DenseI64ArrayAttr.get([1] * into.rank),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get(segments),
        },
    )
    return LoweredTensor(into.dtype, into.dims, op.result)


def extract(
    lowering: Lowering,
    x: LoweredTensor,
    offsets: Sequence[LoweredDim],
    sizes: Sequence[LoweredDim],
    steps: Sequence[int],
) -> LoweredTensor:
    """tensor.extract_slice; `steps` are positive. Nothing has no place, as in `insert`."""
    if LoweredDim(0) in sizes:
        return lowering.empty(sizes, x.dtype)
    offset_values, size_values = lowering.sizes(offsets), lowering.sizes(sizes)
    op = ir.Operation.create(
        "tensor.extract_slice",
        results=[lowering.tensor_type(sizes, x.dtype)],
        operands=[lowering.value(x), *offset_values, *size_values],
        attributes={
            "static_offsets": static_or_dynamic(offsets),
            "static_sizes": static_or_dynamic(sizes),
            "static_strides": ir.DenseI64ArrayAttr.get(list(steps)),
            "operandSegmentSizes": lowering.segments(1, len(offset_values), len(size_values), 0),
        },
    )
    return LoweredTensor(x.dtype, tuple(sizes), op.result)
