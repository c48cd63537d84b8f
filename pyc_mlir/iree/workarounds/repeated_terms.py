"""Keep the code generators from adding a term once that every step of a reduction adds.

The vectorizer of linalg in IREE 3.13 combines the vector of a reduction's terms to one value, and
that with the accumulator. A term that is no vector, because no element of an input has part in it,
is combined with the accumulator as it is, once for a whole tile: ``sum(clip(x, 5, 5))`` over rows
of 7 is 5 (``reduceIfNeeded`` in MLIR's ``Vectorization.cpp``). The term need not be the program's:
IREE's analysis of integer ranges, its folding, and the fusion of fills make such terms. One that
depends only on loop indices is taken for a single value as well, or the vectorizer fails on it.

`keep_repeats` makes of such a reduction one that the vectorizer leaves alone: the accumulator
changes under a condition that always holds. LLVM sees that it does, and makes a product of the loop
that is left; MLIR does not see it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from iree.compiler import ir

from pyc_mlir.pipelines.streams.ir import dialect, index_constant, operations

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
