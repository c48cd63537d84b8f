"""Simplify pyc programs: MLIR's own canonicalize and CSE, rewrites of single ops, constant folding.

Dead and repeated ops are left to the native passes, which know that pyc ops are pure; rewrites run
over what they leave, in turns with them, until none applies. A rewrite takes an op and returns the
value that replaces it, or None; its docstring names the equation. Identities hold for every input,
signed zeros and NaNs included: ``x + 0.0`` is not x for ``-0.0``. Normal forms are one spelling of
what front ends and users spell in several ways, in every bit of the result; programs of the same
mathematics become the same program, which evidence, recipes and kernels then know as one:

    axis of softmax, norms, argsort    counts from the end, as its default does; others from 0
    axes of reductions                 count from 0, in order
    epsilon, scale in f32              the shortest decimal number that rounds to the same f32
    constant operands of elementwise   no dimension along which they repeat themselves
    reduce_sum(x) / n                  reduce_mean(x)
    reshape(reduce(x))                 reduce(x) that keeps its dimensions, or does not
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from operator import contains
from typing import Any, ClassVar

import numpy as np

from pyc_mlir.dialects.ir.bindings import ir, passmanager
from pyc_mlir.dialects.ir.builder import IRBuilder
from pyc_mlir.dialects.ir.interpreter import flush_subnormals
from pyc_mlir.dialects.ir.irtypes import from_mlir
from pyc_mlir.dialects.ir.pyc import compatible, infer_op
from pyc_mlir.dialects.opdef import OPS, FoldWork, OpDef, Param, Trait, evaluate
from pyc_mlir.dialects.ops.movement import END, START, copied
from pyc_mlir.dialects.ops.quantized import widens_weights
from pyc_mlir.dialects.ops.reduction import reduced_axes, reduced_shape
from pyc_mlir.dialects.types import DTYPES, FLOATS, Shape, TensorType, accumulator, is_float
from pyc_mlir.pipelines.driver.base import PassContext, Relation, option
from pyc_mlir.pipelines.pyc.orders import moves
from pyc_mlir.pipelines.pyc.rewriting import (
    constant_array,
    defining_op,
    definition_of,
    functions_of,
    is_unused,
    made_by,
    params_of,
    pyc_ops,
    replace,
    splat_of,
)

# What a dequantization consists of, and what moves its result.
_STEPS = ("cast", "sub", "mul", "transpose", "reshape")


def _dequantizes_weights(op: ir.Operation) -> bool:
    """Return whether an op computes constant weights that only products read, of any size.

    Unfolded, a product computes weights in a narrow type anew in its inner loop, and no kernel
    takes it: a 3x3 convolution of 171 channels took 43 ms in place of 0.8. Folded, they take four
    times the memory. No step may have more elements than what it reads: a broadcast is not folded.
    """
    pending = [op]
    while pending:
        step = pending.pop()
        out, *given = (from_mlir(v.type) for v in (step.result, *step.operands))
        if step.name[4:] not in _STEPS or not all(t.is_static for t in (out, *given)):
            return False
        weights = step.result
        users = [use.owner.operation for use in weights.uses]
        if not users or out.elements != max(t.elements for t in given):
            return False
        for user in users:
            definition = definition_of(user)
            is_product = definition is not None and definition.anchor == "contraction"
            if is_product and user.operands[1] == weights != user.operands[0]:
                continue
            others = (v for v in user.operands if v != weights)
            if any(made_by(v, "constant", *_STEPS) is None for v in others):
                return False
            pending.append(user)
    return True


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


def _bound(op: ir.Operation) -> tuple[type[OpDef], dict[str, Any]]:
    found = definition_of(op)
    assert found is not None
    return found, params_of(found, op)


def _params(op: ir.Operation) -> dict[str, Any]:
    return _bound(op)[1]


def _is_same_type(op: ir.Operation, value: ir.Value) -> bool:
    return op.result.type == value.type


def _is_whole(op: ir.Operation, value: ir.Value) -> bool:
    """Return whether `value` has the type of the op's rule: no operand knows more of its sizes."""
    found = definition_of(op)
    assert found is not None
    return _is_same_type(op, value) and infer_op(found, op) == from_mlir(value.type)


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
    if dtype == np.bool_:
        return x if bool(splat) == bool(neutral) else None
    return x if splat == neutral and np.signbit(splat) == np.signbit(neutral) else None


@rewrites(Relation.BITS, *with_trait(Trait.COMMUTATIVE, 2))
def constant_to_the_right(op: ir.Operation) -> ir.Value | None:
    """``c + x = x + c``: the other rewrites look at the right operand only."""
    lhs, rhs = op.operands
    if made_by(lhs, "constant") is None or made_by(rhs, "constant") is not None:
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
    return x if made_by(x, op.name[4:]) is not None and _is_same_type(op, x) else None


@rewrites(Relation.BITS, *with_trait(Trait.INVOLUTION, 1))
def involution(op: ir.Operation) -> ir.Value | None:
    """``f(f(x)) = x``."""
    inner = made_by(op.operands[0], op.name[4:])
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
    inner = made_by(x, "cast")
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
    inner = made_by(x, "transpose")
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
    x, *like = op.operands
    out, entries = from_mlir(op.result.type), _params(op)["shape"]
    if _is_same_type(op, x):
        more = out.rank if like == [x] else 0
        own = ((d, -1, copied(i), copied(i + more)) for i, d in enumerate(out.shape))
        if out.is_static or all(map(contains, own, entries)):
            return x
    if not out.is_static:
        return None
    inner = made_by(x, "reshape")
    if inner is None and not like:
        return None
    source = x if inner is None else inner.operands[0]
    return IRBuilder().reshape(source, shape=tuple(d or 0 for d in out.shape))


@rewrites(Relation.BITS, "reshape")
def rows_apart(op: ir.Operation) -> ir.Value | None:
    """``reshape(f(reshape(x, [-1, k])), [..., n]) = f(reshape(x, [..., k]))`` for an f of rows.

    f are products by matrices and elementwise ops. What follows has its shape then, and joins it.
    """
    rows, *like = op.operands
    (_, columns), lead = _sides(rows), _params(op)["shape"][:-1]
    out = from_mlir(op.result.type).shape
    passed = any(-4 < e < -1 for e in lead)
    if len(out) < 3 or columns is None or columns != out[-1] or passed:
        return None
    steps = _of_rows(rows, out[:-1])
    inside = {op, *steps}
    users = (use.owner.operation for step in steps for use in step.result.uses)
    if not steps or not inside.issuperset(users):
        return None
    b, made = IRBuilder(), dict[ir.Value, ir.Value]()
    for step in steps:
        operands = list(step.operands)
        for i in _row_operands(step):
            value = operands[i]
            if value not in made:
                source = value.owner.operands[0]
                # Dimensions of `like` are counted behind those of the operand.
                more = from_mlir(source.type).rank - 2
                entries = (e if e >= -1 else e - more for e in lead)
                made[value] = b.reshape(source, *like, shape=(*entries, _sides(value)[1]))
            operands[i] = made[value]
        made[step.result] = b.build(_bound(step)[0], *operands, **_params(step))
    return made[rows]


def _sides(value: ir.Value) -> tuple[int | None, int | None]:
    """Return the rows and the columns of a matrix; None for others."""
    shape = from_mlir(value.type).shape
    return (shape[0], shape[1]) if len(shape) == 2 else (None, None)


def _row_operands(op: ir.Operation) -> list[int]:
    """Return the operands whose rows become rows of the result."""
    if op.name == "pyc.matmul":
        return [0]
    return [i for i, v in enumerate(op.operands) if _sides(v)[0] != 1 and _sides(v)[1] is not None]


def _of_rows(rows: ir.Value, lead: Shape) -> list[ir.Operation]:
    """Return the ops in order that compute rows from reshapes of what has the dimensions `lead`.

    None where other ops do.
    """
    steps: dict[ir.Operation, None] = {}

    def reach(value: ir.Value) -> bool:
        op = defining_op(value)
        if op is None or op in steps:
            return op is not None
        if op.name == "pyc.reshape":
            return from_mlir(op.operands[0].type).shape[: len(lead)] == lead
        definition = definition_of(op)
        if definition is None or _sides(value)[1] is None:
            return False
        matrix = op.name == "pyc.matmul" and None not in _sides(op.operands[1])
        given = _row_operands(op)
        known = matrix or (definition.has(Trait.ELEMENTWISE) and given)
        if not known or not all(reach(op.operands[i]) for i in given):
            return False
        steps[op] = None
        return True

    return list(steps) if reach(rows) else []


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
    if any(made_by(v, "constant") is None for v in op.operands):
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
    if large or (out.nbytes > max(max_bytes, stored) and not _dequantizes_weights(op)):
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


_SPELLED = tuple(
    name for name, op in OPS.items() if {p.name for p in op.params} & {"axis", "axes", "epsilon"}
)
_BROADCAST = tuple(
    name for name, op in OPS.items() if op.has(Trait.ELEMENTWISE) and len(op.operands) > 1
)


@rewrites(Relation.REALS, *_SPELLED, "attention")
def spelled_parameters(op: ir.Operation) -> ir.Value | None:
    """Return axes and small numbers as the module says."""
    definition, given = _bound(op)
    ranks = from_mlir((op.operands[0] if len(op.operands) else op.result).type).rank
    rank = from_mlir(op.result.type).rank if definition.name == "iota" else ranks
    is_f32 = from_mlir(op.result.type).dtype == DTYPES["f32"]
    wanted = {p.name: _spelled(p, given[p.name], rank, is_f32) for p in definition.params}
    if wanted == given:
        return None
    return IRBuilder().build(definition, *op.operands, **wanted)


def _spelled(param: Param, value: Any, rank: int, is_f32: bool) -> Any:
    if param.name == "axis":
        from_end = isinstance(param.default, int) and param.default < 0
        return value % rank - (rank if from_end else 0)
    if param.name == "axes":
        return tuple(sorted(a % rank for a in value))
    if param.kind is float and is_f32:
        # "9.99999975e-06", an f32 that a model stores, is the rounding of 1e-5.
        return float(str(np.float32(value)))
    return value


@rewrites(Relation.BITS, *_BROADCAST)
def repeated_constant(op: ir.Operation) -> ir.Value | None:
    """``x + c = x + c[:1]`` for a constant that repeats itself along a dimension which x has."""
    builder = IRBuilder()
    slim = [_slim(value) for value in op.operands]
    if all(array is None for array in slim):
        return None
    definition, given = _bound(op)
    before = [from_mlir(value.type) for value in op.operands]
    after = [
        type_ if array is None else TensorType(array.shape, array.dtype)
        for type_, array in zip(before, slim, strict=True)
    ]
    # Where the constant alone says a size, the program checks it.
    if definition.infer(*after, **given) != definition.infer(*before, **given):
        return None
    made = [v if a is None else a for v, a in zip(op.operands, slim, strict=True)]
    return builder.build(definition, *made, **given)


def _slim(value: ir.Value) -> np.ndarray | None:
    """Return a constant without the dimensions along which it repeats; None if it has none."""
    rank = from_mlir(value.type).rank
    if not rank:
        return None
    if (splat := splat_of(value)) is not None:
        return np.asarray(splat)
    array = constant_array(value)
    if array is None or not array.size:
        return None
    slim = array
    for axis in range(rank):
        first, rest = np.split(slim, [1], axis)
        # Of most constants the first two elements say that they do not repeat themselves.
        second = np.split(rest, [1], axis)[0]
        if rest.size and _is_repeated(first, second) and _is_repeated(first, rest):
            slim = first
    while slim.ndim and slim.shape[0] == 1:
        slim = slim[0]
    return np.ascontiguousarray(slim) if slim.ndim < rank or slim.size < array.size else None


def _is_repeated(first: np.ndarray, rest: np.ndarray) -> bool:
    bits = np.dtype(f"u{first.dtype.itemsize}")
    return bool((rest.view(bits) == first.view(bits)).all())


@rewrites(Relation.REALS, "div", "mul")
def mean_of_sum(op: ir.Operation) -> ir.Value | None:
    """``reduce_sum(x) / n = reduce_mean(x)``; times 1/n only for powers of two, in every bit."""
    total, count = op.operands
    sums, number = defining_op(total), splat_of(count)
    if sums is None or sums.name != "pyc.reduce_sum" or number is None:
        return None
    x = from_mlir(sums.operands[0].type)
    _, given = _bound(sums)
    sizes = [x.shape[a] for a in given["axes"]]
    # The mean of 16-bit floats is computed in f32, the sum here is not.
    if None in sizes or not is_float(x.dtype) or accumulator(x.dtype) != x.dtype:
        return None
    n = math.prod(d or 0 for d in sizes)
    wanted = n if op.name == "pyc.div" else (1 / n if n and n & (n - 1) == 0 else None)
    if wanted is None or number != wanted or from_mlir(count.type).rank:
        return None
    return IRBuilder().reduce_mean(sums.operands[0], **given)


@rewrites(Relation.BITS, "reshape")
def kept_dimensions(op: ir.Operation) -> ir.Value | None:
    """Return a reshape that only drops, or adds, the dimensions of size 1 that a reduction made."""
    made, out = defining_op(op.operands[0]), from_mlir(op.result.type)
    definition = None if made is None else definition_of(made)
    if made is None or definition is None or not definition.has(Trait.REDUCES) or not out.is_static:
        return None
    given = params_of(definition, made)
    x, other = made.operands[0], {**given, "keepdims": not given["keepdims"]}
    axes = [a % from_mlir(x.type).rank for a in reduced_axes(given)]
    if reduced_shape(from_mlir(x.type).shape, axes, other["keepdims"]) != out.shape:
        return None
    return IRBuilder().build(definition, x, **other)


@dataclass(frozen=True)
class Canonicalize:
    """Fold constants and algebraic identities; remove dead and repeated ops."""

    name: ClassVar[str] = "pyc-canonicalize"
    max_iterations: int = option(10, "rounds of rewrites at most")
    max_fold_bytes: int = option(
        1 << 20,
        "fold a constant larger than its operands up to this; dequantized weights of any size",
    )

    keep_bytes: bool = option(False, "leave the conversions of constant bytes as they are")

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Rewrite until nothing applies or the rounds are used up."""
        counts = {"identities": 0, "folded constants": 0, "rounds": 0}
        _clean(module)
        while counts["rounds"] < self.max_iterations:
            blocks = (function.regions[0].blocks[0] for function in functions_of(module))
            # In order, so that folded operands fold their users.
            ops = (op for block in blocks for op in list(pyc_ops(block)))
            if not sum(self._simplify(op, context.folding, counts) for op in ops):
                break
            counts["rounds"] += 1
            _clean(module)
        return counts

    def _simplify(self, op: ir.Operation, work: FoldWork, counts: dict[str, int]) -> bool:
        # What may be quantized weights, pyc-recognize reads.
        kept = self.keep_bytes and op.name == "pyc.cast"
        kept = kept and widens_weights("cast", from_mlir(op.operands[0].type))
        folds = not kept and can_fold(op, self.max_fold_bytes, work)
        rewrites = (fold,) if folds else REWRITES.get(op.name[4:], ())
        if not rewrites:
            return False
        with ir.InsertionPoint(op), op.location:
            done = next(((r, v) for r in rewrites if (v := r(op)) is not None), None)
        if done is None:
            return False
        rewrite, value = done
        if not compatible(from_mlir(op.result.type), from_mlir(value.type)):
            # What was made in vain goes; a value that was there before has uses.
            maker = defining_op(value)
            if maker is not None and is_unused(maker):
                maker.erase()
            return False
        counts["folded constants" if folds else "identities"] += 1
        replace(op, value, KEEPS[rewrite], rewrite.__name__)
        return True


def _clean(module: ir.Module) -> None:
    """Drop dead ops and common subexpressions, by the native passes.

    The result is verified once, after the whole pass.
    """
    with module.context:
        manager = passmanager.PassManager.parse("builtin.module(func.func(canonicalize,cse))")
        manager.enable_verifier(False)
        manager.run(module.operation)
