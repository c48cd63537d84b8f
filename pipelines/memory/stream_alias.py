"""Results of a dispatch that may reuse an operand's storage, by a proof from its body.

Comes in: a module of stream IR whose executables still hold linalg on tensors. Goes out, by
dispatch symbol, pairs (binding written, binding read): if nothing else needs the operand any more,
result and operand may be the same bytes. XLA and one-shot bufferization ask the same question of
one op; here a dispatch is many ops, and the code generator decides on loops and recomputation, so
two forms are accepted that hold for every tiling which writes an element once:

- **point by point**: each element of the result is computed from the operand's element at the very
  same place, and from nothing else of it;
- **row by row**: an element at ``[p, q]`` needs of the operand only the row ``[p, *]``, and needs
  more than its own place only through reductions over all of ``q``, which are complete before
  anything of the row is written.

All other results of the dispatch must be independent of the operand: one that is computed again
after the first was written would read what is no longer there. What is not understood (views,
gathers, windows, products over the operand, nested regions) proves nothing. A generated kernel,
whose body is loops over memory, brings pairs that its generator has proven (streams/ir.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyc_mlir.pipelines.streams.ir import (
    CONCURRENT,
    DISPATCH,
    EXECUTE,
    constant_of,
    declared_in_place,
    dispatched,
    find,
    group,
    ir,
    maker,
    operations,
    resources,
    storage_of,
    symbol_of,
    ties,
)

POINTS, ROWS = "points", "rows"
# (binding written, binding read)
Pairs = frozenset[tuple[int, int]]
_TENSOR = "!iree_tensor_ext.dispatch.tensor<"
_LOAD = "iree_tensor_ext.dispatch.tensor.load"
_STORE = "iree_tensor_ext.dispatch.tensor.store"
_SUBSPAN = "stream.binding.subspan"


@dataclass(frozen=True)
class Alias:
    """The dependence of a value on an operand.

    dims: for each dimension of the value the operand's dimension that it runs along, or None.
    rows: the dimensions of the operand that stay when the others have been reduced; None while
        nothing was reduced.
    """

    dims: tuple[int | None, ...]
    rows: frozenset[int] | None = None


@dataclass(frozen=True)
class Bodies:
    """The pairs of every dispatch of a module, by symbol (``executable::function``)."""

    pairs: Mapping[str, Pairs]

    @staticmethod
    def of(module: Any, forms: frozenset[str]) -> "Bodies":
        """Read all executables of `module`; `forms` are those of POINTS and ROWS to accept.

        What a kernel declares is accepted with any form. Raises PycError (INVALID_IR) where that
        is not well formed.
        """
        functions = dispatched(module) if forms else {}
        return Bodies({symbol: _Body(f).pairs(forms) for symbol, f in functions.items()})

    def __call__(self, symbol: str) -> Pairs:
        """Return the pairs of one dispatch; none for what is no dispatch."""
        return self.pairs.get(symbol, frozenset())


class _Unknown(Exception):
    """An operand reaches something that is not understood."""


class _Body:
    """One dispatched function: a single block of ops on tensors."""

    def __init__(self, function: Any) -> None:
        self.function = function
        blocks = list(function.regions[0].blocks)
        self.ops = operations(blocks[0]) if len(blocks) == 1 else []
        arguments = list(blocks[0].arguments) if blocks else []
        self.bindings = [a for a in arguments if str(a.type) == "!stream.binding"]
        self.spans = {
            op.results[0]: op for op in self.ops if op.name == _SUBSPAN and self._is_whole_span(op)
        }

    def pairs(self, forms: frozenset[str]) -> Pairs:
        found = set(declared_in_place(self.function, len(self.bindings)))
        for binding, op in self._moves(_LOAD):
            try:
                aliases = self._follow(op.results[0])
            except _Unknown:
                continue
            reached = [
                (w, store) for w, store in self._moves(_STORE) if store.operands[0] in aliases
            ]
            if len(reached) != 1 or not self._only_mention(binding):
                continue
            written, store = reached[0]
            stored = store.operands[0]
            form = _form(aliases[stored], len(ir.RankedTensorType(stored.type).shape))
            same_type = stored.type == op.results[0].type and self._only_mention(written)
            if same_type and form in forms:
                found.add((written, binding))
        return frozenset(found)

    def _moves(self, name: str) -> Iterator[tuple[int, Any]]:
        for op in self.ops:
            if op.name != name:
                continue
            span = self.spans.get(op.operands[-1] if name == _STORE else op.operands[0])
            if span is not None and _moves_all(op):
                yield self.bindings.index(span.operands[0]), op

    def _is_whole_span(self, op: Any) -> bool:
        """Return whether the span begins where the binding begins."""
        offset = op.operands[1].owner
        known = not isinstance(offset, ir.Block) and offset.operation.name == "arith.constant"
        return known and ir.IntegerAttr(offset.operation.attributes["value"]).value == 0

    def _only_mention(self, binding: int) -> bool:
        """Return whether the binding has one span, and that one load or store."""
        spans = list(self.bindings[binding].uses)
        return len(spans) == 1 and len(list(spans[0].owner.operation.results[0].uses)) == 1

    def _follow(self, loaded: Any) -> dict[Any, frozenset[Alias]]:
        """Find how every value that is computed from `loaded` depends on it. Raises _Unknown."""
        rank = len(ir.RankedTensorType(loaded.type).shape)
        aliases = {loaded: frozenset({Alias(tuple(range(rank)))})}
        for op in self.ops:
            _require_no_capture(op, aliases)
            read = [i for i, v in enumerate(op.operands) if v in aliases]
            if not read or op.name == _STORE:
                continue
            if op.name != "linalg.generic" or len(op.results) != 1:
                raise _Unknown
            through = (_through(op, i, alias) for i in read for alias in aliases[op.operands[i]])
            aliases[op.results[0]] = frozenset(through)
        return aliases


def _require_no_capture(op: Any, aliases: Mapping[Any, Any]) -> None:
    for region in op.regions:
        for block in region.blocks:
            for inner in operations(block):
                if any(v in aliases for v in inner.operands):
                    raise _Unknown
                _require_no_capture(inner, aliases)


def _moves_all(op: Any) -> bool:
    """Return whether a load or store moves all of its binding, whose shape is known."""
    tensor = op.results[0] if op.name == _LOAD else op.operands[0]
    span = op.operands[0] if op.name == _LOAD else op.operands[1]
    access = "readonly" if op.name == _LOAD else "writeonly"
    operands = 1 if op.name == _LOAD else 2
    spans_all = str(span.type) == f"{_TENSOR}{access}:{tensor.type}>"
    return spans_all and len(op.operands) == operands and "?" not in str(tensor.type)


def _through(op: Any, operand: int, alias: Alias) -> Alias:
    """Return the dependence of a generic's result from that of its operand. Raises _Unknown."""
    maps = [ir.AffineMapAttr(a).value for a in ir.ArrayAttr(op.attributes["indexing_maps"])]
    if operand == len(maps) - 1:
        raise _Unknown
    loops = [_loop(e) for e in maps[operand].results]
    kept = [_loop(e) for e in maps[-1].results]
    if len(set(loops)) != len(loops) or len(set(kept)) != len(kept):
        raise _Unknown
    along = dict(zip(loops, alias.dims, strict=True))
    dims = tuple(along.get(loop) for loop in kept)
    lost = {d for loop, d in along.items() if d is not None and loop not in kept}
    if not lost:
        return replace(alias, dims=dims)
    # Reduced: what is left must be whole, of nothing but dimensions of the operand.
    rows = frozenset(d for d in dims if d is not None)
    if None in dims or not rows or (alias.rows is not None and rows != alias.rows):
        raise _Unknown
    return Alias(dims, rows)


def _loop(expression: Any) -> int:
    if not isinstance(expression, ir.AffineDimExpr):
        raise _Unknown
    return expression.position


def _form(aliases: frozenset[Alias], rank: int) -> str | None:
    identity = tuple(range(rank))
    rows = {alias.rows for alias in aliases} - {None}
    if not rows:
        return POINTS if all(alias.dims == identity for alias in aliases) else None
    (kept, *more) = rows
    in_rows = tuple(d if d in (kept or ()) else None for d in identity)
    wanted = {None: identity, kept: in_rows}
    fits = not more and all(alias.dims == wanted[alias.rows] for alias in aliases)
    return ROWS if fits else None


_IMPORT = "stream.tensor.import"
# Ops that ask what a view is: its shape and type.
_QUESTIONS = "hal.buffer_view."
# Groups of a dispatch's operands: one value for each resource.
_OFFSETS, _LENGTHS = 3, 5


@dataclass(frozen=True)
class _Touch:
    """One op that reads or writes a memory: in which step, and as which of its resources."""

    step: int
    op: Any
    place: int


def donations(
    function: Any, result_of: Callable[[Any], int | None], bodies: Bodies
) -> tuple[tuple[int, int], ...]:
    """Return pairs (number of the argument, number of the result), sorted.

    `result_of` tells of an import op the result whose memory it brings in, None for an input's.
    """
    executes = find(function, EXECUTE)
    if len(executes) != 1:
        return ()
    (execute,) = executes
    # Imported memory that is used within the region alone (its result may be tied).
    imports = [
        op
        for op in find(function, _IMPORT)
        if all(use.owner.operation == execute for use in op.results[0].uses)
    ]
    numbers = {op: result_of(op) for op in imports}
    inputs = {op: number for op in imports if (number := _input(op, numbers[op])) is not None}
    touched = _touches(execute)
    return tuple(
        sorted(
            (number, result)
            for input_, number in inputs.items()
            for memory, result in numbers.items()
            if result is not None
            and _same_size(input_, memory)
            and _is_free(touched, input_.results[0], memory.results[0], bodies)
        )
    )


def _input(import_: Any, result: int | None) -> int | None:
    """Return the argument that an import brings in, if nothing else hands it on."""
    source = import_.operands[0]
    if result is not None or maker(source) is not None or str(source.type) != "!hal.buffer_view":
        return None
    users = [use.owner.operation for use in source.uses]
    handed_on = [op for op in users if op != import_ and not op.name.startswith(_QUESTIONS)]
    return None if handed_on else ir.BlockArgument(source).arg_number


def _same_size(input_: Any, memory: Any) -> bool:
    sizes = [constant_of(op.operands[len(op.operands) - 1]) for op in (input_, memory)]
    return sizes[0] is not None and sizes[0] == sizes[1]


@dataclass(frozen=True)
class _Touches:
    """The readers and the writers of each memory that the region captures."""

    reads: dict[Any, list[_Touch]]
    writes: dict[Any, list[_Touch]]


def _touches(execute: Any) -> _Touches:
    found = _Touches({}, {})
    # Ops of one wave have the same step.
    for step, outer in enumerate(operations(execute.regions[0].blocks[0])[:-1]):
        wave = operations(outer.regions[0].blocks[0])[:-1] if outer.name == CONCURRENT else [outer]
        for op in wave:
            tied = {operand for _, operand in ties(op)}
            for place, operand in enumerate(resources(op.operands)):
                kind = found.writes if operand in tied else found.reads
                kind.setdefault(storage_of(operand), []).append(_Touch(step, op, place))
    return found


def _is_free(touched: _Touches, input_: Any, memory: Any, bodies: Bodies) -> bool:
    reads, writes = touched.reads.get(input_, []), touched.writes.get(memory, [])
    if not writes or input_ in touched.writes:
        return False
    first = min(w.step for w in writes)
    # A result may be read once it was written; what reads it earlier reads something else.
    if any(r.step <= first for r in touched.reads.get(memory, [])):
        return False
    late = [r for r in reads if r.step >= first]
    return not late or _in_place(late, writes, bodies)


def _in_place(late: Sequence[_Touch], writes: Sequence[_Touch], bodies: Bodies) -> bool:
    """Return whether only the writing op still reads, and does so number by number."""
    if len(late) != 1 or len(writes) != 1 or late[0].op != writes[0].op:
        return False
    (read,), (write,) = late, writes
    op = write.op
    single = op.name == DISPATCH and len(op.results) == 1
    if not (single and _takes_all(op, read) and _takes_all(op, write)):
        return False
    if len(ir.ArrayAttr(op.attributes["entry_points"])) != 1:
        return False
    return (write.place, read.place) in bodies(symbol_of(op))


def _takes_all(op: Any, touch: _Touch) -> bool:
    offset, length = (constant_of(group(op, g)[touch.place]) for g in (_OFFSETS, _LENGTHS))
    import_ = maker(storage_of(resources(op.operands)[touch.place]))
    size = None if import_ is None else constant_of(import_.operands[len(import_.operands) - 1])
    return offset == 0 and size is not None and length == size
