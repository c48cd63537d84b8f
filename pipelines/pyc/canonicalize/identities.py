"""Algebraic identities of single pyc ops: each function names the equation that it applies.

A rewrite takes an op and returns the value that replaces it, or None. Only identities that hold
for every input, signed zeros and NaNs included, stand here: ``x + 0.0`` is not x for ``-0.0``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.interpreter import flush_subnormals
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.ir.pyc import infer_op
from pyc_mlir.dialects.opdef import OPS, FoldWork, Trait, evaluate
from pyc_mlir.dialects.ops.movement import END, START, copied
from pyc_mlir.dialects.types import FLOATS, is_float
from pyc_mlir.pipelines.driver.base import Relation
from pyc_mlir.pipelines.pyc.canonicalize.dequantized import dequantizes_weights
from pyc_mlir.pipelines.pyc.orders import moves
from pyc_mlir.pipelines.pyc.rewriting import (
    constant_array,
    defining_op,
    definition_of,
    params_of,
    splat_of,
)

Rewrite = Callable[[ir.Operation], ir.Value | None]
REWRITES: dict[str, list[Rewrite]] = {}
KEEPS: dict[Rewrite, Relation] = {}
# Operands beyond this are not folded: the compiler would spend more than the program.
_MAX_WORK_BYTES = 1 << 28


def with_trait(trait: Trait, arity: int) -> list[str]:
    """Return the names of the ops of so many operands with a trait."""
    return [n for n, op in OPS.items() if op.has(trait) and len(op.operands) == arity]


def rewrites(keeps: Relation, *names: str) -> Callable[[Rewrite], Rewrite]:
    """Register a rewrite for ops by name, with the equality that it keeps."""

    def register(rewrite: Rewrite) -> Rewrite:
        KEEPS[rewrite] = keeps
        for name in names:
            REWRITES.setdefault(name, []).append(rewrite)
        return rewrite

    return register


def _params(op: ir.Operation) -> dict[str, Any]:
    found = definition_of(op)
    assert found is not None
    return params_of(found, op)


def _made_by(value: ir.Value, name: str) -> ir.Operation | None:
    op = defining_op(value)
    return op if op is not None and op.name == f"pyc.{name}" else None


def _is_same_type(op: ir.Operation, value: ir.Value) -> bool:
    return op.result.type == value.type


def _is_whole(op: ir.Operation, value: ir.Value) -> bool:
    """Return whether `value` has the type of the op's rule: no operand knows more of its sizes."""
    found = definition_of(op)
    assert found is not None
    return _is_same_type(op, value) and infer_op(found, op) == from_mlir(value.type)


def _is(value: Any, wanted: Any) -> bool:
    return bool(value == wanted) and bool(np.signbit(value) == np.signbit(wanted))


@rewrites(Relation.BITS, *(name for name, op in OPS.items() if op.neutral is not None))
def neutral_operand(op: ir.Operation) -> ir.Value | None:
    """``x + -0 = x - 0 = x * 1 = x / 1 = x ** 1 = x | 0 = x & -1 = max(x, lowest) = x``."""
    x, other = op.operands
    splat, definition = splat_of(other), definition_of(op)
    assert definition is not None and definition.neutral is not None
    if splat is None or not _is_whole(op, x):
        return None
    dtype = from_mlir(x.type).dtype
    neutral = definition.neutral(dtype)
    same = bool(splat) == bool(neutral) if dtype == np.bool_ else _is(splat, neutral)
    return x if same else None


@rewrites(Relation.BITS, *with_trait(Trait.COMMUTATIVE, 2))
def constant_to_the_right(op: ir.Operation) -> ir.Value | None:
    """``c + x = x + c``: the other rewrites look at the right operand only."""
    lhs, rhs = op.operands
    if _made_by(lhs, "constant") is None or _made_by(rhs, "constant") is not None:
        return None
    name = op.name[4:]
    return getattr(IRBuilder(), name + "_")(rhs, lhs)


@rewrites(Relation.BITS, *with_trait(Trait.IDEMPOTENT, 2))
def same_operands(op: ir.Operation) -> ir.Value | None:
    """``max(x, x) = min(x, x) = x & x = x | x = x``."""
    lhs, rhs = op.operands
    return lhs if lhs == rhs and _is_same_type(op, lhs) else None


@rewrites(Relation.BITS, *with_trait(Trait.IDEMPOTENT, 1))
def idempotent(op: ir.Operation) -> ir.Value | None:
    """``f(f(x)) = f(x)``."""
    (x,) = op.operands
    return x if _made_by(x, op.name[4:]) is not None and _is_same_type(op, x) else None


@rewrites(Relation.BITS, *with_trait(Trait.INVOLUTION, 1))
def involution(op: ir.Operation) -> ir.Value | None:
    """``f(f(x)) = x``."""
    inner = _made_by(op.operands[0], op.name[4:])
    if inner is None or not _is_same_type(op, inner.operands[0]):
        return None
    return inner.operands[0]


@rewrites(Relation.BITS, "select")
def known_condition(op: ir.Operation) -> ir.Value | None:
    """``select(true, a, b) = a``; ``select(c, a, a) = a``."""
    condition, a, b = op.operands
    splat = splat_of(condition)
    chosen = a if a == b or (splat is not None and bool(splat)) else b
    if splat is None and a != b:
        return None
    return chosen if _is_whole(op, chosen) else None


@rewrites(Relation.BITS, "cast")
def redundant_cast(op: ir.Operation) -> ir.Value | None:
    """``cast(x, own dtype) = x``; ``cast(cast(x, wider float), own dtype) = x``."""
    (x,) = op.operands
    if _is_same_type(op, x):
        return x
    inner = _made_by(x, "cast")
    if inner is None or not _is_same_type(op, inner.operands[0]):
        return None
    source, middle = (from_mlir(v.type).dtype for v in (inner.operands[0], x))
    exact = {source, middle} <= FLOATS and middle.itemsize > source.itemsize
    return inner.operands[0] if exact else None


@rewrites(Relation.BITS, "transpose")
def composed_transpose(op: ir.Operation) -> ir.Value | None:
    """``transpose(transpose(x, p), q) = transpose(x, p[q])``; the identity is x."""
    (x,) = op.operands
    order = _params(op)["permutation"]
    if order == tuple(range(len(order))) and _is_same_type(op, x):
        return x
    inner = _made_by(x, "transpose")
    if inner is None:
        return None
    first = _params(inner)["permutation"]
    return IRBuilder().transpose(inner.operands[0], permutation=tuple(first[q] for q in order))


@rewrites(Relation.BITS, "transpose")
def unmoved(op: ir.Operation) -> ir.Value | None:
    """``transpose(x, p) = reshape(x)`` where only dimensions of size 1 change places."""
    (x,) = op.operands
    shape, order = from_mlir(x.type).shape, _params(op)["permutation"]
    if moves(shape, order):
        return None
    entries = (copied(d) if shape[d] is None else shape[d] or 0 for d in order)
    return IRBuilder().reshape(x, shape=tuple(entries))


@rewrites(Relation.BITS, "reshape")
def composed_reshape(op: ir.Operation) -> ir.Value | None:
    """``reshape(x, own shape) = x``; ``reshape(reshape(x), s) = reshape(x, s)`` for a known s."""
    (x,) = op.operands
    out = from_mlir(op.result.type)
    if out.is_static and _is_same_type(op, x):
        return x
    inner = _made_by(x, "reshape")
    if inner is None or not out.is_static:
        return None
    return IRBuilder().reshape(inner.operands[0], shape=tuple(d or 0 for d in out.shape))


@rewrites(Relation.BITS, "broadcast_to", "slice", "pad")
def same_shape(op: ir.Operation) -> ir.Value | None:
    """Drop a broadcast, a slice with steps of 1, or a pad that keeps a known shape."""
    x = op.operands[0]
    if not from_mlir(x.type).is_static or not _is_same_type(op, x):
        return None
    if op.name == "pyc.slice" and any(s != 1 for s in _params(op)["steps"]):
        return None
    return x


@rewrites(Relation.BITS, "gather")
def even_indices(op: ir.Operation) -> ir.Value | None:
    """``gather(x, [a, a + s, ...]) = x[a::s]`` for constant indices within a known size."""
    x, given = op.operands
    indices, axis = constant_array(given), _params(op)["axis"]
    type_ = from_mlir(x.type)
    axis, size = axis % type_.rank, type_.shape[axis]
    if indices is None or not indices.size or size is None:
        return None
    flat = indices.astype(np.int64).reshape(-1)
    flat = np.where(flat < 0, flat + size, flat)
    steps = np.unique(np.diff(flat))
    step = int(steps[0]) if steps.size else 1
    if steps.size > 1 or step == 0 or flat.min() < 0 or flat.max() >= size:
        return None
    first, stop = int(flat[0]), int(flat[-1]) + (1 if step > 0 else -1)
    bounds = [[START] * type_.rank, [END] * type_.rank, [1] * type_.rank]
    for entries, value in zip(bounds, (first, stop if stop >= 0 else START, step), strict=True):
        entries[axis] = value
    b = IRBuilder()
    out = b.slice(x, **dict(zip(("starts", "stops", "steps"), map(tuple, bounds), strict=True)))
    if indices.ndim == 1:
        return out
    shape = [copied(i) if d is None else d for i, d in enumerate(type_.shape)]
    return b.reshape(out, shape=(*shape[:axis], *indices.shape, *shape[axis + 1 :]))


@rewrites(Relation.BITS, "concat")
def empty_part(op: ir.Operation) -> ir.Value | None:
    """``concat(x, empty) = x``."""
    lhs, rhs = op.operands
    axis = _params(op)["axis"]
    for part, other in ((lhs, rhs), (rhs, lhs)):
        if from_mlir(part.type).shape[axis] == 0 and _is_whole(op, other):
            return other
    return None


@rewrites(Relation.BITS, "size")
def known_size(op: ir.Operation) -> ir.Value | None:
    """``size(x)`` of known dimensions is a constant."""
    shape = from_mlir(op.operands[0].type).shape
    sizes = [shape[a] for a in _params(op)["axes"]]
    if None in sizes:
        return None
    return IRBuilder().constant(np.array(np.prod(np.array(sizes, np.int64)), np.int64))


@rewrites(Relation.BITS, "mul")
def integer_zero(op: ir.Operation) -> ir.Value | None:
    """``x * 0 = 0`` for integers of a known shape."""
    out = from_mlir(op.result.type)
    splat = splat_of(op.operands[1])
    known = out.is_static and from_mlir(op.operands[0].type).is_static
    if splat is None or is_float(out.dtype) or splat != 0 or not known:
        return None
    zero = np.zeros((), out.dtype)
    return IRBuilder().constant(np.broadcast_to(zero, [d or 0 for d in out.shape]))


def can_fold(op: ir.Operation, max_bytes: int, work: FoldWork) -> bool:
    """Return whether an op's operands are constants, its result is not large and work is left.

    The weights of products may be large. The work is then taken.
    """
    found = definition_of(op)
    if found is None or found.name == "constant" or not len(op.operands):
        return False
    if any(_made_by(v, "constant") is None for v in op.operands):
        return False
    out, *given = (from_mlir(v.type) for v in (op.result, *op.operands))
    if not all(t.is_static for t in (out, *given)):
        return False
    # A splat is stored as one element, however large the tensor is.
    stored = sum(
        t.nbytes if splat_of(v) is None else t.dtype.itemsize
        for t, v in zip(given, op.operands, strict=True)
    )
    large = sum(t.nbytes for t in given) > _MAX_WORK_BYTES
    if large or (out.nbytes > max(max_bytes, stored) and not dequantizes_weights(op)):
        return False
    return work.takes(found, given, out, **_params(op))


@rewrites(Relation.BITS)
def fold(op: ir.Operation) -> ir.Value | None:
    """``f(c, ...)`` of constants is a constant."""
    found = definition_of(op)
    assert found is not None
    arrays = [constant_array(v) for v in op.operands]
    assert all(a is not None for a in arrays)
    result = evaluate(found, [a for a in arrays if a is not None], **_params(op))
    return IRBuilder().constant(flush_subnormals(result))
