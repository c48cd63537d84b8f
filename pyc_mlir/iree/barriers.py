"""Barriers that keep IREE from fusing what it then computes wrongly, slowly or not at all.

Comes in: a module before IREE's first phase (operations of IREE's bindings). Each function goes
through it and puts an ``iree_tensor_ext.compute_barrier.start`` before a reader, so that what is
read stands in memory; it returns the number of barriers.

    separate_readers   reads that IREE answers with values that were not computed
    hold_gathered      gathered integers that a larger elementwise op repeats
    share_parts        slices that let parts of a value share code
    part_long_chains   chains of elementwise ops that take LLVM too long
    narrow             dispatches that read more tensors than the runtime binds
    unfuse             all of it: every op on its own
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import pairwise
from math import prod
from typing import Any

from iree.compiler import ir

from pyc_mlir.pipelines.streams.ir import find, index_constant, operations
from pyc_mlir.pipelines.target.target import MOST_BINDINGS

# Keep IREE from reading wrong values in four cases, three of them by fusion.
#
# **A row reduction read in two orders.** IREE 3.13 fuses a reduction with the op that reads its
# result, and computes the result tile by tile. An op that reads it along two of its loops, as
# ``d[i] + d[j]`` in a distance matrix or a softmax plus its transpose, then gets values of tiles
# that were not computed: silently wrong, at every optimization level and under every fusion flag.
# `separate_readers` finds such ops before IREE's first phase and puts an
# ``iree_tensor_ext.compute_barrier.start`` in front of the second reading, so that the reduction is
# computed whole.
#
# Followed are pointwise ops, reshapes and casts; what is read through anything else stands in
# memory already. Placements begin at reductions, products and windows.
#
# **A column reduction read by what it was made of** (on GPUs only). A dispatch that reduces a
# dimension other than the innermost and then uses the result for whole columns, as in
# ``x - x.sum(axis=0)``, races on Vulkan: other values with each run.
#
# **A slice or reshape read at computed places.** A ``tensor.extract`` whose source is a view of a
# part is folded with it into one access of the whole, which the back end then cannot translate
# ("failed to translate the MLIR LLVM dialect"). The view is made to stand in memory first.
#
# **A slice inserted into its own tensor**, as ``x[1:] = x[:-1]``. IREE copies it within the
# tensor's memory, element by element, so that what was overwritten is read where the two meet. A
# ``util.optimization_barrier`` gives the slice memory of its own.

# Where each dimension of a reduction's result (those of size 1 left out) lies in a value that is
# computed from it: a dimension, or a place of its own that equals no other.
Placement = tuple[Any, ...]
Placements = dict[Any, set[Placement]]
_RESHAPES = ("tensor.expand_shape", "tensor.collapse_shape")
_VIEWS = (*_RESHAPES, "tensor.extract_slice")
# The index maps of named products that carry none: a depth of 1 makes them pointwise.
_PRODUCTS: Mapping[str, list[list[Any]]] = {
    "linalg.matmul": [[0, 2], [2, 1], [0, 1]],
    "linalg.batch_matmul": [[0, 1, 3], [0, 3, 2], [0, 1, 2]],
}


def before_first_phase(module: Any, gpu: bool) -> None:
    """Insert the barriers that any module needs."""
    separate_readers(module, gpu)
    hold_gathered(module)
    share_parts(module)
    part_long_chains(module)


def separate_readers(module: Any, gpu: bool = False) -> int:
    """Insert the barriers that `module` (an operation of IREE's bindings) needs; their number."""
    return sum(_separate(block, gpu) for block in _blocks(module))


def blocks_of(op: Any) -> Iterator[Any]:
    """Return the blocks of an op's regions."""
    for region in op.operation.regions:
        yield from region.blocks


def _blocks(module: Any) -> list[Any]:
    return [block for op in module.regions[0].blocks[0] for block in blocks_of(op)]


def _each_block(work: Callable[[Any], int]) -> Callable[[Any], int]:
    """Return a rewrite of a module that does `work` with each block, and sums what it counts."""

    @wraps(work)
    def rewrite(module: Any) -> int:
        return sum(map(work, _blocks(module)))

    return rewrite


def _separate(block: Any, gpu: bool) -> int:
    placements: dict[Any, Placements] = {}
    columns: set[Any] | None = set() if gpu else None
    inserted = 0
    for op in list(block.operations):
        operation = op.operation
        if "indexing_maps" in operation.attributes or operation.name in _PRODUCTS:
            inserted += _visit_structured(operation, placements, columns) + _store_sources(
                operation
            )
        elif operation.name in _RESHAPES:
            placements[operation.results[0]] = _through_view(operation, placements)
        elif operation.name == "tensor.insert_slice" and _is_part_of_itself(operation):
            operation.operands[0] = held(operation.operands[0], operation)
            inserted += 1
        elif operation.name == "tensor.cast":
            placements[operation.results[0]] = placements.get(operation.operands[0], {})
    return inserted


def _visit_structured(op: Any, placements: dict[Any, Placements], columns: set[Any] | None) -> int:
    """Insert barriers for what `op` reads, and place its results.

    `columns` collects the reductions of columns; None where they do no harm.
    """
    maps, loops = _maps_of(op)
    sizes = _loop_sizes(op, maps, loops)
    outputs = maps[len(maps) - len(op.results) :]
    parallel = {d for m in outputs for d in m}
    reduced = set(range(len(sizes))) - parallel
    reads = [
        (i, _renamed(placements.get(op.operands[i], {}), dict(enumerate(m))))
        for i, m in _inputs(maps, op)
    ]
    if any(sizes[d] != 1 for d in reduced):
        if columns is not None and any(m and m[-1] not in reduced for _, m in _inputs(maps, op)):
            columns.update(op.results)
        for result in op.results:
            shape = _shape(result)
            placements[result] = {result: {tuple(i for i, s in enumerate(shape) if s != 1)}}
        return 0
    wide_loops = sum(s != 1 for s in sizes)
    clashes = _clashes(reads, wide_loops)
    for index, found in reads:
        wide = any(root in (columns or ()) and _rank(w) < wide_loops for root, w in found.items())
        if wide and index not in clashes:
            clashes.append(index)
    for index in clashes:
        op.operands[index] = barrier(op.operands[index], op)
    for result, indices in zip(op.results, outputs, strict=True):
        loop_to_dim = {d: i for i, d in enumerate(indices)}
        kept = [found for i, found in reads if i not in clashes]
        placements[result] = _merged(_renamed(found, loop_to_dim) for found in kept)
    return len(clashes)


def loop_sizes(op: Any) -> list[int | None]:
    """Return the size of each loop of a structured op whose maps are known, else nothing."""
    if "indexing_maps" not in op.attributes and op.name not in _PRODUCTS:
        return []
    return _loop_sizes(op, *_maps_of(op))


def _maps_of(op: Any) -> tuple[list[list[Any]], int]:
    """Return the index maps of a structured op, and its number of loops."""
    if "indexing_maps" not in op.attributes:
        maps = _PRODUCTS[op.name]
        return maps, 1 + max(d for m in maps for d in m)
    attributes = list(ir.ArrayAttr(op.attributes["indexing_maps"]))
    return [_dims_of(a) for a in attributes], ir.AffineMapAttr(attributes[0]).value.n_dims


def _dims_of(attribute: Any) -> list[Any]:
    """Return the results of an index map: loop numbers, or text where they are no plain loops."""
    return [
        e.position if isinstance(e, ir.AffineDimExpr) else str(e)
        for e in ir.AffineMapAttr(attribute).value.results
    ]


def _inputs(maps: Sequence[list[Any]], op: Any) -> list[tuple[int, list[Any]]]:
    return list(enumerate(maps[: len(maps) - len(op.results)]))


def _shape(value: Any) -> list[int | None]:
    if not isinstance(value.type, ir.RankedTensorType):
        return []
    type_ = value.type
    return [None if type_.is_dynamic_dim(i) else s for i, s in enumerate(type_.shape)]


def _loop_sizes(op: Any, maps: Sequence[list[Any]], loops: int) -> list[int | None]:
    sizes: list[int | None] = [None] * loops
    for value, dims in zip(op.operands, maps, strict=False):
        for dim, size in zip(dims, _shape(value), strict=False):
            if isinstance(dim, int) and size is not None:
                sizes[dim] = size
    return sizes


def _renamed(placements: Placements, names: Mapping[Any, Any]) -> Placements:
    """Rename each dimension of the placements; one without becomes a place of its own."""
    return {
        root: {tuple(names.get(d, ("lost", d)) for d in placement) for placement in found}
        for root, found in placements.items()
    }


def _merged(parts: Any) -> Placements:
    out: Placements = {}
    for part in parts:
        for root, found in part.items():
            out.setdefault(root, set()).update(found)
    return out


def _clashes(reads: Sequence[tuple[int, Placements]], loops: int) -> list[int]:
    """Return the operands that read a result in another order than an earlier operand does.

    A result with as many dimensions as there are loops is only permuted: IREE does not fuse that.
    """
    first: dict[Any, set[Placement]] = {}
    clashing = []
    for index, placements in reads:
        wrong = any(
            _rank(found) < loops and found != first.get(root, found)
            for root, found in placements.items()
        )
        if wrong:
            clashing.append(index)
            continue
        for root, found in placements.items():
            first.setdefault(root, found)
    return clashing


def _rank(placements: set[Placement]) -> int:
    return len(next(iter(placements)))


def barrier(value: Any, before: Any) -> Any:
    """`value` behind a barrier that stands in front of the op `before`."""
    # An op of a dialect that is not loaded yet would be taken for another one later.
    before.context.get_dialect_descriptor("iree_tensor_ext")
    with ir.InsertionPoint(before), before.location:
        return ir.Operation.create(
            "iree_tensor_ext.compute_barrier.start",
            results=[value.type],
            operands=[value, *dynamic_sizes(value)],
        ).result


def held(value: Any, before: Any) -> Any:
    """`value` in memory of its own when the op `before` begins.

    Dynamic sizes are tied to it: IREE asks for sizes, and sees none through a barrier.
    """
    before.context.get_dialect_descriptor("util")
    before.context.get_dialect_descriptor("flow")
    with ir.InsertionPoint(before), before.location:
        sizes = dynamic_sizes(value)
        held = ir.Operation.create(
            "util.optimization_barrier", results=[value.type], operands=[value]
        ).result
        if not sizes:
            return held
        return ir.Operation.create(
            "flow.tensor.tie_shape", results=[value.type], operands=[held, *sizes]
        ).result


def dynamic_sizes(value: Any) -> list[Any]:
    """Return the dynamic sizes of a tensor in order, at the current insertion point."""
    places = (index_constant(axis) for axis, s in enumerate(_shape(value)) if s is None)
    return [
        ir.Operation.create("tensor.dim", results=[place.type], operands=[value, place]).result
        for place in places
    ]


def _store_sources(op: Any) -> int:
    """Bar each view that the body of `op` reads with ``tensor.extract``; return their number."""
    found = [inner for inner in _extracts(op) if _is_view_of_part(inner.operands[0])]
    for inner in found:
        inner.operands[0] = barrier(inner.operands[0], op)
    return len(found)


def _extracts(op: Any) -> list[Any]:
    """Return the ops of a body that read a tensor at computed places."""
    inner = (i.operation for block in blocks_of(op) for i in block.operations)
    return [i for i in inner if i.name == "tensor.extract"]


def _is_part_of_itself(insert: Any) -> bool:
    """Return whether an op inserts a slice of its own target, at places that may meet."""
    source, target = insert.operands[0], insert.operands[1]
    direct = True
    while isinstance(owner := source.owner, ir.Operation | ir.OpView):
        op = owner.operation
        if op.name not in (*_VIEWS, "tensor.cast"):
            return False
        source = op.operands[0]
        if source == target and op.name == "tensor.extract_slice":
            return not (direct and _are_apart(_ranges(op), _ranges(insert)))
        direct = False
    return False


def _ranges(op: Any) -> list[range | None]:
    parts = ("static_offsets", "static_sizes", "static_strides")
    known = zip(*(ir.DenseI64ArrayAttr(op.attributes[name]) for name in parts), strict=True)
    dynamic = ir.ShapedType.get_dynamic_size()
    return [
        None if dynamic in part else range(part[0], part[0] + part[1] * part[2], part[2])
        for part in known
    ]


def _are_apart(one: Sequence[range | None], other: Sequence[range | None]) -> bool:
    pairs = zip(one, other, strict=True)
    return any(a and b and (a[-1] < b[0] or b[-1] < a[0]) for a, b in pairs)


def _is_view_of_part(value: Any) -> bool:
    """Return whether `value` is reached through views of which one is a slice."""
    owner = value.owner
    while isinstance(owner, ir.Operation | ir.OpView) and owner.operation.name in _VIEWS:
        if owner.operation.name == "tensor.extract_slice":
            return True
        owner = owner.operation.operands[0].owner
    return False


def _through_view(op: Any, placements: dict[Any, Placements]) -> Placements:
    """Follow placements through a reshape; merged or split dimensions get places of their own."""
    groups = [[int(i) for i in g] for g in ir.ArrayAttr(op.attributes["reassociation"])]
    source, result = op.operands[0], op.results[0]
    if op.name == "tensor.expand_shape":
        names = {i: _only(g, _shape(result), ("split", i)) for i, g in enumerate(groups)}
    else:
        shape = _shape(source)
        names = {
            d: i if _only(g, shape, None) == d else ("merged", i, d)
            for i, g in enumerate(groups)
            for d in g
        }
    return _renamed(placements.get(source, {}), names)


def _only(group: Sequence[int], shape: Sequence[int | None], otherwise: Any) -> Any:
    """Return the one dimension of a group whose size is not 1."""
    large = [d for d in group if shape[d] != 1]
    return large[0] if len(large) == 1 else otherwise


# Gather once what is repeated.
#
# IREE fuses a gather, and the arithmetic of its indices, into what reads it. A mask that compares
# positions [batch, queries, 1] with positions [batch, 1, keys] then gathers both for each pair: 570
# us in place of 20 for four sequences of 128. A barrier lets gathered integers stand in memory.
# What is repeated as the index of another gather stays: each row of the latter computes it once.


@_each_block
def hold_gathered(block: Any) -> int:
    """Put barriers behind gathered integers that an elementwise op repeats; return their number."""
    ops = [op.operation for op in block.operations]
    indices, gathered, inserted = set[Any](), set[Any](), 0
    for op in reversed(ops):
        if _extracts(op) or not indices.isdisjoint(op.results):
            indices.update(filter(_is_integer, op.operands))
    for op in ops:
        if op.name in (*_RESHAPES, "tensor.cast"):
            gathered.update(op.results if op.operands[0] in gathered else ())
        if "indexing_maps" not in op.attributes:
            continue
        maps, loops = _maps_of(op)
        sizes, reads = _loop_sizes(op, maps, loops), _inputs(maps, op)
        made = bool(_extracts(op))
        wide = {d for d, size in enumerate(sizes) if size != 1}
        for index, dims in reads if not made else ():
            if op.operands[index] not in gathered:
                continue
            if wide <= set(dims) or not indices.isdisjoint(op.results):
                made = True
            else:
                op.operands[index] = barrier(op.operands[index], op)
                inserted += 1
        if made:
            gathered.update(filter(_is_integer, op.results))
    return inserted


def _is_integer(value: Any) -> bool:
    type_ = value.type
    return isinstance(type_, ir.RankedTensorType) and isinstance(type_.element_type, ir.IntegerType)


# Let parts of a value share code: contiguous slices of one value become views in memory.
#
# IREE clones a slice at a known offset into the dispatch that reads it. Where a value is cut into
# equal parts that are computed alike (`pyc-chunk`), each part would get executables of its own,
# which differ in one number. A barrier behind such slices keeps them out; a contiguous slice in
# memory is only an offset, so nothing is copied. Measured on an encoder cut in 12 parts: half the
# compile time, the same arena and latency.

_SLICE = "tensor.extract_slice"


@_each_block
def share_parts(block: Any) -> int:
    """Put barriers behind the slices of a module; return their number."""
    ops = [op.operation for op in block.operations]
    # With the op that follows: an operation's hash depends on its operands, which change below.
    alike: dict[Any, list[tuple[Any, Any]]] = defaultdict(list)
    for op, after in pairwise(ops):
        if op.name == _SLICE and _is_contiguous(op):
            alike[op.operands[0], str(op.results[0].type)].append((op, after))
    groups = [group for group in alike.values() if _is_cut([op for op, _ in group])]
    for op, after in (pair for group in groups for pair in group):
        whole = op.results[0]
        readers = [(use.owner, use.operand_number) for use in whole.uses]
        view = barrier(whole, after)
        for reader, place in readers:
            reader.operands[place] = view
    return sum(map(len, groups))


def _is_contiguous(op: Any) -> bool:
    """Return whether a slice is one run of memory: whole behind the first cut dimension."""
    source, result = (list(ir.RankedTensorType(v.type).shape) for v in (op.operands[0], op.result))
    strides = ir.DenseI64ArrayAttr(op.attributes["static_strides"])
    if len(op.operands) > 1 or any(s != 1 for s in strides) or len(source) != len(result):
        return False
    cut = [i for i, (a, b) in enumerate(zip(source, result, strict=True)) if a != b]
    return len(cut) == 1 and prod(source[: cut[0]]) == 1


def _is_cut(group: list[Any]) -> bool:
    """Return whether equal slices make up the whole, each part once."""
    ends = (group[0].results[0], group[0].operands[0])
    size, whole = (prod(ir.RankedTensorType(v.type).shape) for v in ends)
    sizes = list(ir.RankedTensorType(group[0].results[0].type).shape)
    offsets = {tuple(ir.DenseI64ArrayAttr(op.attributes["static_offsets"])) for op in group}
    aligned = all(o % s == 0 for offset in offsets for o, s in zip(offset, sizes, strict=True) if s)
    return len(offsets) == len(group) > 1 and aligned and len(group) * size == whole


# Keep the dispatches that IREE forms of elementwise ops within a size.
#
# IREE fuses elementwise ops that follow one another without a limit, and LLVM's time grows faster
# than a function: a chain of 1,600 `tanh` took more than four times as long as one of 400. Comes
# in: a module before IREE's first phase. Where more than MOST_STEPS steps of scalar arithmetic
# would become one dispatch, barriers part them, as `unfuse` does for all ops.

MOST_STEPS = 4096
# A function of `math`, such as a `tanh`, becomes about as many instructions.
_STEPS_OF_FUNCTION = 8


class _Parts:
    """Sets of ops, by number, that may become one dispatch: merged as found (union-find)."""

    def __init__(self) -> None:
        self._first: list[int] = []
        # Of each set, at the place of its first member.
        self._steps: list[int] = []

    def add(self, steps: int) -> int:
        """Begin a set of one op; return the op's number."""
        self._first.append(len(self._first))
        self._steps.append(steps)
        return self._first[-1]

    def of(self, op: int) -> int:
        """Return the first member of the op's set."""
        while self._first[op] != op:
            self._first[op] = self._first[self._first[op]]
            op = self._first[op]
        return op

    def join(self, one: int, other: int) -> bool:
        """Merge two sets; return whether they are one now, and not too large for that."""
        one, other = self.of(one), self.of(other)
        if one == other:
            return True
        if self._steps[one] + self._steps[other] > MOST_STEPS:
            return False
        self._first[other] = one
        self._steps[one] += self._steps[other]
        return True


@_each_block
def part_long_chains(block: Any) -> int:
    """Part chains of elementwise ops of a module; return the number of barriers."""
    parts = _Parts()
    # By the value that an op makes: an op's own hash changes with its operands.
    numbers: dict[Any, int] = {}
    fused: dict[Any, bool] = {}
    barriers = 0
    for op in [o.operation for o in block.operations]:
        if not _is_pointwise(op):
            continue
        number = parts.add(_steps(op))
        for i, value in enumerate(list(op.operands)):
            if value not in numbers:
                continue
            if value not in fused:
                # What others read too stands in memory in any case.
                fused[value] = all(_is_pointwise(u.owner.operation) for u in value.uses)
            if fused[value] and not parts.join(numbers[value], number):
                op.operands[i] = barrier(value, op)
                barriers += 1
        numbers.update(dict.fromkeys(op.results, number))
    return barriers


def _steps(op: Any) -> int:
    names = [o.operation.name for block in blocks_of(op) for o in block.operations]
    return sum(_STEPS_OF_FUNCTION if name.startswith("math.") else 1 for name in names)


def _is_pointwise(op: Any) -> bool:
    if op.name != "linalg.generic":
        return False
    return all("parallel" in str(a) for a in ir.ArrayAttr(op.attributes["iterator_types"]))


# Keep IREE from forming dispatches that read more tensors than its runtime binds.
#
# The runtime of IREE 3.13 binds `MOST_BINDINGS` buffers to a dispatch at most and refuses a program
# that has one with more when it is loaded; the compiler knows no such limit and fuses the sum of 40
# tensors into one dispatch. So the dispatches are counted when they are formed. Where one is too
# wide, the module is taken as it was, `narrow` puts barriers where more tensors come together, and
# dispatches are formed anew.

# What an op and those fused with it read: room for results, and for what bodies read at places.
_MOST_READ = MOST_BINDINGS - 4
_SAME_ELEMENTS = frozenset(
    {"tensor.cast", "tensor.collapse_shape", "tensor.expand_shape", "tensor.extract_slice"}
)
_MADE_INSIDE = frozenset({"linalg.fill", "tensor.empty"})


def widest(module: Any, dispatches: str) -> int:
    """Return the most tensors that one of the ops called `dispatches` reads and writes."""
    values = ({*op.operands, *op.results} for op in find(module, dispatches))
    tensors = (sum(isinstance(v.type, ir.RankedTensorType) for v in of) for of in values)
    return max(tensors, default=0)


@_each_block
def narrow(block: Any) -> int:
    """Insert barriers into a module until no op and all that could be fused with it read too many
    tensors; return their number."""
    read: dict[Any, frozenset[Any]] = {}
    inserted = 0
    for op in operations(block):
        if op.name in _MADE_INSIDE:
            read[op.results[0]] = frozenset()
        elif op.name in _SAME_ELEMENTS:
            source = op.operands[0]
            read[op.results[0]] = read.get(source, frozenset({source}))
        elif op.name.startswith("linalg.") and op.results:
            inserted += _narrow_op(op, read)
    return inserted


def _narrow_op(op: Any, read: dict[Any, frozenset[Any]]) -> int:
    """Insert barriers in front of `op`; return their number and the sources of its results."""
    tensors = [(i, v) for i, v in enumerate(op.operands) if isinstance(v.type, ir.RankedTensorType)]
    parts = {i: read.get(v, frozenset({v})) for i, v in tensors}
    inserted = 0
    # The operand that is made of most goes into memory first.
    for i in sorted(parts, key=lambda i: -len(parts[i])):
        if len(frozenset().union(*parts.values())) <= _MOST_READ or len(parts[i]) < 2:
            break
        value = op.operands[i]
        op.operands[i] = barrier(value, op)
        parts[i] = frozenset({op.operands[i]})
        inserted += 1
    together = frozenset[Any]().union(*parts.values())
    read.update(dict.fromkeys(op.results, together))
    return inserted


# Keep IREE from fusing anything: the last resort when code generation fails on fused ops.
#
# A barrier stands between each op that computes and each tensor that it reads from another one, so
# that every op is a dispatch of its own. What starts a reduction (the outs of an op) stays with it.

# Ops without index maps that IREE fuses with their neighbours.
_FUSED = ("tensor.pad", "tensor.concat")


@_each_block
def unfuse(block: Any) -> int:
    """Part the ops of a module that IREE makes dispatches of; return the number of barriers."""
    barriers = 0
    for op in operations(block):
        is_linalg = op.name.startswith("linalg.")
        if not is_linalg and op.name not in _FUSED:
            continue
        inputs = len(op.operands) - (len(op.results) if is_linalg else 0)
        for i, value in enumerate(list(op.operands)[:inputs]):
            if isinstance(value.type, ir.RankedTensorType) and _is_computed(value):
                op.operands[i] = barrier(value, op)
                barriers += 1
    return barriers


def _is_computed(value: Any) -> bool:
    owner = value.owner
    return not isinstance(owner, ir.Block) and owner.operation.name != "arith.constant"
