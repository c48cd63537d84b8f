"""Inputs whose memory a result may take over, by a proof from the order of the plan.

Comes in: a function of stream IR in which a plan's order stands (after `apply_plan`), and which
results are written into memory of the caller. Goes out: pairs (input, result). The result may be
the very bytes of the input if

- every op that reads the input comes before the first op that writes the result: earlier in the
  region and not in the same wave, so that IREE puts a barrier between them; or
- the one op that writes the result reads the input too, all of it, and its body is proven to read
  each number before it writes it (on_stream/alias.py).

What reads the result itself comes after that first write.

XLA asks the same of a module's schedule (``HloInputOutputAliasConfig``, copy insertion). Whatever
is not seen through proves nothing: several regions, an input that something else uses, a write of
a part of the result.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyc_mlir.pipelines.memory.on_stream.alias import Bodies
from pyc_mlir.pipelines.streams.ir import (
    CONCURRENT,
    DISPATCH,
    EXECUTE,
    constant_of,
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
    imports = [op for op in find(function, _IMPORT) if _is_only_for(op, execute)]
    numbers = {op: result_of(op) for op in imports}
    inputs = {op: number for op in imports if (number := _input(op, numbers[op])) is not None}
    touched = _touches(execute)
    return tuple(
        sorted(
            (number, result)
            for input_, number in inputs.items()
            for memory, result in numbers.items()
            if result is not None
            and _alike(input_, memory)
            and _is_free(touched, input_.results[0], memory.results[0], bodies)
        )
    )


def _is_only_for(import_: Any, execute: Any) -> bool:
    """Return whether imported memory is used within the region alone (its result may be tied)."""
    return all(use.owner.operation == execute for use in import_.results[0].uses)


def _input(import_: Any, result: int | None) -> int | None:
    """Return the argument that an import brings in, if nothing else hands it on."""
    source = import_.operands[0]
    if result is not None or maker(source) is not None or str(source.type) != "!hal.buffer_view":
        return None
    users = [use.owner.operation for use in source.uses]
    others = [op for op in users if op != import_ and not op.name.startswith(_QUESTIONS)]
    return None if others else ir.BlockArgument(source).arg_number


def _alike(input_: Any, memory: Any) -> bool:
    """Return whether both have the same, known number of bytes."""
    sizes = [constant_of(op.operands[len(op.operands) - 1]) for op in (input_, memory)]
    return sizes[0] is not None and sizes[0] == sizes[1]


@dataclass(frozen=True)
class _Touches:
    """The readers and the writers of each memory that the region captures."""

    reads: dict[Any, list[_Touch]]
    writes: dict[Any, list[_Touch]]


def _touches(execute: Any) -> _Touches:
    found = _Touches({}, {})
    for step, op in _steps(execute.regions[0].blocks[0]):
        tied = {operand for _, operand in ties(op)}
        for place, operand in enumerate(resources(op.operands)):
            kind = found.writes if operand in tied else found.reads
            kind.setdefault(storage_of(operand), []).append(_Touch(step, op, place))
    return found


def _steps(block: Any) -> Iterator[tuple[int, Any]]:
    """Return the ops of a region; those of one wave have the same step."""
    for step, op in enumerate(operations(block)[:-1]):
        inner = operations(op.regions[0].blocks[0])[:-1] if op.name == CONCURRENT else [op]
        for leaf in inner:
            yield step, leaf


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
    whole = op.name == DISPATCH and len(op.results) == 1 and _whole(op, read) and _whole(op, write)
    if not whole or len(ir.ArrayAttr(op.attributes["entry_points"])) != 1:
        return False
    return (write.place, read.place) in bodies(symbol_of(op))


def _whole(op: Any, touch: _Touch) -> bool:
    """Return whether a dispatch gets all of the memory."""
    offset, length = (constant_of(group(op, g)[touch.place]) for g in (_OFFSETS, _LENGTHS))
    import_ = maker(storage_of(resources(op.operands)[touch.place]))
    size = None if import_ is None else constant_of(import_.operands[len(import_.operands) - 1])
    return offset == 0 and size is not None and length == size
