"""Rewrites of what IREE 3.13 would make of a module, at the ends of its phases.

keep_returned_arguments, keep_arguments, separate_results   memory of results and arguments
advance_clones     copies that IREE would make after what overwrites their source
keep_repeats       reductions of one repeated term
forbid_contraction products and sums that would become one rounding
flatten_stores     stores of single elements that would write too much
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from math import prod
from typing import Any

from pyc_mlir.iree.barriers import held
from pyc_mlir.pipelines.streams.ir import (
    EXECUTE,
    UNTIED,
    dialect,
    find,
    group,
    index_constant,
    ir,
    maker,
    number_of,
    operations,
    resources,
    storage_of,
    ties,
)

# Give every result of a program memory of its own, and leave arguments as they are.
#
# Two results that are one value come out of value numbering as one buffer, and a result that is an
# argument as the argument itself; a write into one would then change the other. And IREE takes
# arguments as its own: it writes a part of one in place if nothing reads it afterwards. Comes in
# three times: the module before IREE's first phase, where `keep_returned_arguments` keeps arguments
# that are returned apart from their results; at the end of phase `flow`, where `keep_arguments`
# reads each argument once more at the end, so that IREE copies it before it writes; and after IREE
# has elided copies (versions.py, `to_async`), where `separate_results` copies each result whose
# memory is there already. All copies are part of the memory plan. The entry with an arena
# (arena_entry.py) needs the last ones only for results that take no buffer.

BARRIER = "util.optimization_barrier"
ARGUMENT = "hal.tensor.import"
_RETURNS = ("func.return", "util.return")
_AWAIT, _EXPORT, _IMPORT = "stream.timepoint.await", "stream.tensor.export", "stream.tensor.import"
# Ops whose first resource is the memory of their result; a wait's results are its operands.
_HANDED_ON = (BARRIER, "stream.resource.transients")
_STUB = "iree.abi.stub"


def at_end_of_flow(module: Any) -> None:
    """Flatten stores, guard reductions of one term, and read each argument at the end."""
    flatten_stores(module)
    keep_repeats(module)
    keep_arguments(module)


def after_elided_copies(module: Any) -> None:
    """Order copies before updates, give results memory of their own, and check the module."""
    advance_clones(module)
    separate_results(module)
    module.verify()


def keep_returned_arguments(module: Any) -> int:
    """Put a barrier behind each returned argument of `module`, which no phase has changed yet.

    Else IREE folds the result to the argument's buffer view. Returns the number of barriers.
    """
    returns = [op for name in _RETURNS for op in find(module, name)]
    return sum(_keep(op, i) for op in returns for i in range(len(op.operands)))


def _keep(returned: Any, number: int) -> bool:
    value = returned.operands[number]
    if maker(value) is not None or not isinstance(value.type, ir.RankedTensorType):
        return False
    if value.owner != value.owner.region.blocks[0]:
        return False
    returned.operands[number] = held(value, returned)
    return True


def keep_arguments(module: Any) -> int:
    """Put a barrier that reads each argument at the end of its function; the number of barriers.

    `module` is at the end of phase `flow`. IREE elides its copy of a value that is written in place
    where that is the last use; the barriers go once it has decided (`separate_results`).
    """
    stubs = [f for f in find(module, "util.func") if _STUB in f.attributes]
    return sum(_read_last(f, returned) for f in stubs for returned in find(f, "util.return"))


def _read_last(function: Any, returned: Any) -> int:
    start = operations(function.regions[0].blocks[0])
    arguments = [op.results[0] for op in start if op.name == ARGUMENT]
    with ir.InsertionPoint(returned), returned.location:
        for value in arguments:
            _made(BARRIER, value.type, value)
    return len(arguments)


def separate_results(module: Any) -> int:
    """Copy results whose memory is an argument's or another result's; the number of copies.

    `module` is IREE's stream IR at the end of its async passes.
    """
    copies = 0
    for function in find(module, "util.func"):
        if _STUB in function.attributes:
            copies += sum(_separate(op) for op in find(function, "util.return"))
            # Those that stood between an argument and results.
            for barrier in find(function, BARRIER):
                source = maker(barrier.operands[0])
                if source is not None and source.name == _IMPORT:
                    barrier.results[0].replace_all_uses_with(barrier.operands[0])
                    barrier.erase()
    return copies


def _separate(returned: Any) -> int:
    taken: set[Any] = set()
    shared: list[int] = []
    for number, value in enumerate(returned.operands):
        export = maker(value)
        if export is None or export.name != _EXPORT:
            continue
        memory = _memory(export.operands[0])
        if memory in taken or _is_given(memory):
            shared.append(number)
        taken.add(memory)
    if shared:
        _copy(returned, shared)
    return len(shared)


def _memory(value: Any) -> Any:
    while True:
        value = storage_of(value)
        op = maker(value)
        if op is not None and op.name == _AWAIT:
            value = op.operands[number_of(value)]
        elif op is not None and op.name in _HANDED_ON:
            value = op.operands[0]
        else:
            return value


def _is_given(memory: Any) -> bool:
    """Return whether memory is an argument's, as a caller sees it: not a buffer for a result."""
    op = maker(memory)
    return op is not None and op.name == _IMPORT and str(op.operands[0].type) == "!hal.buffer_view"


def _copy(returned: Any, numbers: Sequence[int]) -> None:
    """Return copies of these results, made at the end of the last execution region."""
    exports: list[Any] = [maker(returned.operands[n]) for n in numbers]
    sources = [e.operands[0] for e in exports]
    sizes = [e.operands[len(e.operands) - 1] for e in exports]
    with returned.location, ir.InsertionPoint(returned):
        region = _last_region(returned, [*sources, *sizes])
        if region is None:
            region = _new_region(exports[0])
        values, done = _with_copies(region, sources, sizes)
        count = len(values)
        awaited = ir.Operation.create(
            _AWAIT,
            results=[v.type for v in values],
            operands=[*values, *sizes, done],
            attributes={"operandSegmentSizes": ir.DenseI32ArrayAttr.get([count, count, 1])},
        )
        for number, export, value in zip(numbers, exports, awaited.results, strict=True):
            copied = export.clone(ip=ir.InsertionPoint(returned))
            copied.operands[0] = value
            returned.operands[number] = copied.results[0]
    for export in dict.fromkeys(exports):
        if not list(export.results[0].uses):
            export.erase()


def _last_region(returned: Any, needed: Sequence[Any]) -> Any | None:
    ops = operations(returned.block)
    regions = [op for op in ops if op.name == EXECUTE]
    if not regions:
        return None
    place = {op: i for i, op in enumerate(ops)}
    last = regions[-1]
    makers = (maker(_awaited(value)) for value in needed)
    known = all(op is None or place.get(op, -1) <= place[last] for op in makers)
    return last if known else None


def _awaited(value: Any) -> Any:
    """Return what an operand of an export is before the host waited for it."""
    op = maker(value)
    while op is not None and op.name in (_AWAIT, *_HANDED_ON):
        value = op.operands[number_of(value)]
        op = maker(value)
    return value


def _new_region(export: Any) -> Any:
    region = ir.Operation.create(
        EXECUTE,
        results=[ir.Type.parse("!stream.timepoint")],
        attributes={
            **{n: export.attributes[n] for n in ("affinity",) if n in export.attributes},
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([0, 0, 0, 0]),
            "tied_operands": ir.ArrayAttr.get([]),
        },
        regions=1,
    )
    with ir.InsertionPoint(region.regions[0].blocks.append()):
        ir.Operation.create("stream.yield", operands=[])
    return region


def _with_copies(
    region: Any, sources: Sequence[Any], sizes: Sequence[Any]
) -> tuple[list[Any], Any]:
    """Put an execution region in the place of `region` that also copies; the copies, its end."""
    block = region.regions[0].blocks[0]
    end = operations(block)[-1]
    yielded = resources(end.operands)
    captured: dict[Any, Any] = {}
    parts = [group(region, n) for n in range(4)]
    with ir.InsertionPoint(end), region.location:
        made = []
        for value, size in zip(map(_awaited, sources), sizes, strict=True):
            inside = captured.get(value)
            if maker(value) == region:
                inside = yielded[number_of(value)]
            elif inside is None:
                captured[value] = inside = block.add_argument(value.type, region.location)
                parts[0].append(value)
                parts[1].append(size)
            made.append(_made("stream.async.clone", value.type, inside, size, size))
        kept = [end.operands[i] for i in range(len(end.operands))][len(yielded) :]
        ir.Operation.create("stream.yield", operands=[*yielded, *made, *kept, *sizes])
    end.erase()
    parts[2] += sizes
    attributes = {name: region.attributes[name] for name in region.attributes}
    counts = ir.DenseI32ArrayAttr.get([len(p) for p in parts], region.context)
    attributes["operandSegmentSizes"] = counts
    if len(tied := list(ir.ArrayAttr(attributes["tied_operands"]))):
        none = ir.IntegerAttr.get(ir.IndexType.get(region.context), UNTIED)
        attributes["tied_operands"] = ir.ArrayAttr.get([*tied, *[none] * len(made)], region.context)
    *types, timepoint = [r.type for r in region.results]
    grown = ir.Operation.create(
        EXECUTE,
        results=[*types, *(m.type for m in made), timepoint],
        operands=[v for part in parts for v in part],
        attributes=attributes,
        regions=1,
        ip=ir.InsertionPoint(region),
        loc=region.location,
    )
    block.append_to(grown.regions[0])
    *values, done = grown.results
    for before, after in zip(region.results, [*values[: len(types)], done], strict=True):
        before.replace_all_uses_with(after)
    region.erase()
    return values[len(types) :], done


# Move copies of a value in front of the op that updates the value in place.
#
# IREE 3.13 copies what is read after an update in place, as a result that is returned beside its
# update. Its scheduling of concurrency then puts the copy behind the wave that holds the update:
# both read the value, and nothing orders the two. The copy is then one of the updated value,
# silently. Comes in: stream IR at the end of the async passes.

_CLONE = "stream.async.clone"


def advance_clones(module: Any) -> int:
    """Move each clone in front of the first op that updates its source; the number of moves."""
    blocks = (region.regions[0].blocks[0] for region in find(module, EXECUTE))
    clones = (op for block in blocks for op in operations(block) if op.name == _CLONE)
    return sum(map(_advance, clones))


def _advance(clone: Any) -> bool:
    memory = storage_of(clone.operands[0])
    before = []
    for op in operations(clone.block):
        if op == clone:
            break
        before.append(op)
    late = [op for op in before if any(_is_update(o, r, clone, memory) for r, o in ties(op))]
    if late:
        clone.move_before(late[0])
    return bool(late)


def _is_update(operand: Any, result: Any, clone: Any, memory: Any) -> bool:
    """Return whether an update in place changes the value that a clone reads.

    The clone reads a value of this memory that was there before the update, not its result.
    """
    source = clone.operands[0]
    return storage_of(operand) == memory and not _comes_from(source, result)


def _comes_from(value: Any, result: Any) -> bool:
    """Return whether a value is a result, or what later updates of it in place gave."""
    while value != result:
        op = maker(value)
        tied = [] if op is None else [o for r, o in ties(op) if r == value]
        if not tied:
            return False
        value = tied[0]
    return True


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
    stores = [op for op in find(module, _STORE) if ir.RankedTensorType(op.result.type).rank > 1]
    for op in stores:
        _flatten(op)
    return len(stores)


def _flatten(op: Any) -> None:
    """Reshape to one dimension, store at the row-major place, reshape back."""
    of = ir.RankedTensorType(op.results[0].type)
    value, target, *rest = op.operands
    dims, indices = rest[: len(rest) - len(of.shape)], rest[len(rest) - len(of.shape) :]
    unread = list(dims)
    with op.location, ir.InsertionPoint(op):
        known = [not ir.ShapedType.is_dynamic_size(size) for size in of.shape]
        sizes = [
            index_constant(size) if is_known else unread.pop(0)
            for size, is_known in zip(of.shape, known, strict=True)
        ]
        place, of_index = indices[0], ir.IndexType.get()
        for size, index in zip(sizes[1:], indices[1:], strict=True):
            place = _made("arith.addi", of_index, _made("arith.muli", of_index, place, size), index)
        length = [reduce(partial(_made, "arith.muli", of_index), sizes)] if dims else []
        elements = ir.ShapedType.get_dynamic_size() if dims else prod(of.shape)
        flat = ir.RankedTensorType.get([elements], of.element_type)
        row = _segmented(_RESHAPE, flat, [target], dims, length)
        written = _segmented(_STORE, flat, [value], [row], length, [place])
        op.results[0].replace_all_uses_with(_segmented(_RESHAPE, of, [written], length, dims))
    op.erase()


def _segmented(name: str, result: Any, *operands: list[Any]) -> Any:
    segments = {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(o) for o in operands])}
    flat = [value for segment in operands for value in segment]
    return ir.Operation.create(name, [result], flat, segments).result
