"""Rewrites of what IREE 3.13 compiles to wrong numbers: repeated terms, contraction, stores."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from math import prod
from typing import Any

from iree.compiler import ir

from pyc_mlir.pipelines.streams.ir import dialect, find, index_constant, operations

# Keep the code generators from adding a term once that every step of a reduction adds.
#
# The vectorizer of linalg in IREE 3.13 combines the vector of a reduction's terms to one value, and
# that with the accumulator. A term that is no vector, because no element of an input has part in
# it, is combined with the accumulator as it is, once for a whole tile: ``sum(clip(x, 5, 5))`` over
# rows of 7 is 5 (``reduceIfNeeded`` in MLIR's ``Vectorization.cpp``). The term need not be the
# program's: IREE's analysis of integer ranges, its folding, and the fusion of fills make such
# terms. One that depends only on loop indices is taken for a single value as well, or the
# vectorizer fails on it.
#
# `keep_repeats` makes of such a reduction one that the vectorizer leaves alone: the accumulator
# changes under a condition that always holds. LLVM sees that it does, and makes a product of the
# loop that is left; MLIR does not see it.

# The phase before IREE evaluates what depends on constants alone.
BEFORE_CONSTANTS = "preprocessing"
# What makes one number of values in that phase's code: IREE would do so, and then evaluate.
FOLDING = "iree-util-optimize-int-arithmetic,canonicalize"
# Ops whose result has elements of their first operand.
_VIEWS = frozenset(
    {"tensor.cast", "tensor.collapse_shape", "tensor.expand_shape", "tensor.extract_slice"}
)


def keep_repeats(module: Any, constants: bool = False) -> int:
    """Rewrite the reductions of `module` (an operation of IREE's bindings) that repeat one term.

    To be called at the end of the phase `flow`, when ops are folded and fused; and at the end of
    `BEFORE_CONSTANTS` with `constants`, for what IREE evaluates before: any constant of integers
    then counts as one number, since a range analysis may make one of it. Returns how many
    results of reductions are affected.
    """
    reader = _Reader(constants)
    module.walk(reader.visit)
    for op, places in reader.found:
        _guard(op if op.name in ("linalg.generic", "linalg.reduce") else _generalized(op), places)
    return sum(len(places) for _, places in reader.found)


@dataclass
class _Reader:
    """The tensors, in program order, that hold one number or depend on indices alone.

    `found` collects the reductions with such a term, and the results that it goes to.
    """

    constants: bool
    uniform: set[Any] = field(default_factory=set)
    found: list[tuple[Any, list[int]]] = field(default_factory=list)

    def visit(self, op: Any) -> Any:
        """Take the next op in."""
        if self._is_uniform(op):
            self.uniform.update(op.results)
        elif op.name.startswith("linalg.") and op.results and len(op.regions) == 1:
            self._visit_structured(op.operation)
            return ir.WalkResult.SKIP
        return ir.WalkResult.ADVANCE

    def _is_uniform(self, op: Any) -> bool:
        if op.name == "linalg.fill":
            return True
        if op.name in _VIEWS:
            return op.operands[0] in self.uniform
        if op.name != "arith.constant":
            return False
        type_, value = op.results[0].type, op.attributes["value"]
        if not isinstance(type_, ir.RankedTensorType):
            return False
        if self.constants and isinstance(type_.element_type, ir.IntegerType):
            return True
        return isinstance(value, ir.DenseElementsAttr) and value.is_splat

    def _visit_structured(self, op: Any) -> None:
        block = op.regions[0].blocks[0]
        reads = self._reads(op, block)
        written = operations(block)[-1].operands
        if not _reduced_loops(op):
            made = [r for r, v in zip(op.results, written, strict=True) if v not in reads]
            self.uniform.update(made)
            return
        terms = [_term(value, acc) for value, acc in zip(written, _accs(op, block), strict=True)]
        places = [i for i, term in enumerate(terms) if term is not None and term not in reads]
        if places:
            self.found.append((op, places))

    def _reads(self, op: Any, block: Any) -> set[Any]:
        """Return the values of a body that depend on elements of tensors."""
        inputs = len(block.arguments) - len(op.results)
        reads = {
            argument
            for i, (argument, value) in enumerate(zip(block.arguments, op.operands, strict=True))
            if i >= inputs
            or (isinstance(value.type, ir.RankedTensorType) and value not in self.uniform)
        }
        for inner in operations(block):
            if inner.name == "tensor.extract" or any(v in reads for v in inner.operands):
                reads.update(inner.results)
        return reads


def _accs(op: Any, block: Any) -> list[Any]:
    return list(block.arguments)[-len(op.results) :]


def _term(value: Any, acc: Any) -> Any | None:
    """Return what one op combines with the accumulator to `value`; None for another body."""
    if isinstance(value.owner, ir.Block):
        return None
    both = list(value.owner.operation.operands)
    return both[1 - both.index(acc)] if len(both) == 2 and acc in both else None


def _maps(op: Any) -> list[Any]:
    return [ir.AffineMapAttr(m).value for m in dialect("linalg").get_indexing_maps(op)]


def _reduced_loops(op: Any) -> list[int]:
    """Return the loops of a structured op that are none of its results'."""
    maps = _maps(op)
    kept = {ir.AffineDimExpr(e).position for m in maps[-len(op.results) :] for e in m.results}
    return [d for d in range(maps[0].n_dims) if d not in kept]


def _guard(op: Any, places: Sequence[int]) -> None:
    """Let the accumulators at `places` change under a condition."""
    block = op.regions[0].blocks[0]
    end = operations(block)[-1]
    accs = _accs(op, block)
    with op.location, ir.InsertionPoint(end):
        holds = _always(_reduced_loops(op))
        for place in places:
            value = end.operands[place]
            end.operands[place] = _made("arith.select", value.type, holds, value, accs[place])


def _always(loops: Sequence[int]) -> Any:
    """``((i | j | ...) << 1 & 1) == 0`` over the indices of loops.

    All of them: where a loop has one step, its index is a number, and must not decide alone.
    """
    index = ir.IndexType.get()
    one = index_constant(1)
    indices = [
        ir.Operation.create(
            "linalg.index", [index], attributes={"dim": ir.IntegerAttr.get(_i64(), loop)}
        ).result
        for loop in loops
    ]
    together = indices[0]
    for other in indices[1:]:
        together = _made("arith.ori", index, together, other)
    even = _made("arith.shli", index, together, one)
    bit = _made("arith.andi", index, even, one)
    equal = {"predicate": ir.IntegerAttr.get(_i64(), 0)}
    boolean = ir.IntegerType.get_signless(1)
    return ir.Operation.create("arith.cmpi", [boolean], [bit, index_constant(0)], equal).result


def _generalized(op: Any) -> Any:
    """Turn a named op into linalg.generic, whose body may be any."""
    maps = _maps(op)
    reduced = _reduced_loops(op)
    kinds = ["reduction" if d in reduced else "parallel" for d in range(maps[0].n_dims)]
    outputs = len(op.results)
    segments = [len(op.operands) - outputs, outputs]
    with op.location, ir.InsertionPoint(op):
        attributes = {
            "indexing_maps": ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps]),
            "iterator_types": ir.ArrayAttr.get(
                [ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds]
            ),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get(segments),
        }
        types = [r.type for r in op.results]
        made = ir.Operation.create(
            "linalg.generic", types, list(op.operands), attributes, regions=1
        )
        op.regions[0].blocks[0].append_to(made.regions[0])
    for old, new in zip(op.results, made.results, strict=True):
        old.replace_all_uses_with(new)
    op.erase()
    return made


def _made(name: str, result: Any, *operands: Any) -> Any:
    return ir.Operation.create(name, [result], operands).result


def _i64() -> Any:
    return ir.IntegerType.get_signless(64)


# Keep code generators from contracting a product and a sum into one fused multiply-add.
#
# A product that several ops read is computed again next to each of them, within a dispatch and
# across dispatches. Where one copy is contracted with the sum that reads it and another is rounded,
# ``y = x * s`` has two values: ``y - max(y)`` is then not 0 at the maximum but what rounding took
# off, which exceeds any bound for large x. So each product of a program is rounded. Products of
# matrices are fused explicitly before this point (`vector.contract`, `vector.fma`) and stay fused.
#
# Who would contract: LLVM on CPUs, since IREE marks all sums and products with ``contract`` at the
# end of its code generation (``AddFastMathFlags.cpp``), and Vulkan drivers, which may contract what
# is not decorated ``NoContraction`` (SPIR-V specification, section 3.20). For CUDA, IREE marks
# nothing, and LLVM writes instructions that round (``mul.rn``).

# The phase at whose end the code of dispatches is in the dialect of its back end.
AFTER = "executable-targets"
_LLVM = frozenset({"llvm.fmul", "llvm.fadd", "llvm.fsub", "llvm.fneg"})
_SPIRV = frozenset({"spirv.FMul", "spirv.FAdd", "spirv.FSub"})


def forbid_contraction(module: Any) -> int:
    """Forbid contraction in all executables of `module` (an operation of IREE's bindings).

    To be called at the end of the phase AFTER. Returns the number of ops that changed.
    """
    with module.context:
        rounded = ir.Attribute.parse("#llvm.fastmath<none>")
        decoration = ir.UnitAttr.get()
    changed = 0

    def visit(op: Any) -> Any:
        nonlocal changed
        name = op.name
        if name in _LLVM:
            op.attributes["fastmathFlags"] = rounded
            changed += 1
        elif name in _SPIRV:
            op.attributes["no_contraction"] = decoration
            changed += 1
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    return changed


# Keep IREE from writing too much where one element of a tensor is replaced.
#
# IREE 3.13 makes ``flow.tensor.store`` a fill whose length it takes from the place behind the last
# element that is written, counted in the tensor's strides: five elements instead of one in a row of
# four, silently, or past the end of the buffer (EncodeHostTensors, `stream.tensor.fill` with more
# than one dimension). Along a single dimension the count is right, so the tensor is written as one.

_STORE, _RESHAPE = "flow.tensor.store", "flow.tensor.reshape"


def flatten_stores(module: Any) -> int:
    """Rewrite the stores of `module` into tensors of several dimensions; how many.

    To be called at the end of phase `flow`, which makes these stores.
    """
    stores = [op for op in find(module, _STORE) if len(_type(op.results[0]).shape) > 1]
    for op in stores:
        _flatten(op)
    return len(stores)


def _flatten(op: Any) -> None:
    """Reshape to one dimension, store at the row-major place, reshape back."""
    of = _type(op.results[0])
    value, target, *rest = op.operands
    dims, indices = rest[: len(rest) - len(of.shape)], rest[len(rest) - len(of.shape) :]
    unread = list(dims)
    with op.location, ir.InsertionPoint(op):
        known = [not ir.ShapedType.is_dynamic_size(size) for size in of.shape]
        sizes = [
            _constant(size) if is_known else unread.pop(0)
            for size, is_known in zip(of.shape, known, strict=True)
        ]
        place = indices[0]
        for size, index in zip(sizes[1:], indices[1:], strict=True):
            place = _index("addi", _index("muli", place, size), index)
        length = [reduce(partial(_index, "muli"), sizes)] if dims else []
        elements = ir.ShapedType.get_dynamic_size() if dims else prod(of.shape)
        flat = ir.RankedTensorType.get([elements], of.element_type)
        row = _segmented(_RESHAPE, flat, [target], dims, length)
        written = _segmented(_STORE, flat, [value], [row], length, [place])
        op.results[0].replace_all_uses_with(_segmented(_RESHAPE, of, [written], length, dims))
    op.erase()


def _segmented(name: str, result: Any, *operands: list[Any]) -> Any:
    """Return the result of an op whose operands come in segments."""
    segments = {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(o) for o in operands])}
    flat = [value for segment in operands for value in segment]
    return ir.Operation.create(name, [result], flat, segments).result


def _index(kind: str, a: Any, b: Any) -> Any:
    return ir.Operation.create(f"arith.{kind}", [ir.IndexType.get()], [a, b]).result


def _constant(value: int) -> Any:
    index = ir.IndexType.get()
    attributes = {"value": ir.IntegerAttr.get(index, value)}
    return ir.Operation.create("arith.constant", [index], [], attributes).result


def _type(value: Any) -> Any:
    return ir.RankedTensorType(value.type)
