"""Move copies of a value in front of the op that updates the value in place.

IREE 3.13 copies what is read after an update in place, as a result that is returned beside its
update. Its scheduling of concurrency then puts the copy behind the wave that holds the update: both
read the value, and nothing orders the two. The copy is then one of the updated value, silently.
Comes in: stream IR at the end of the async passes.
"""

from typing import Any

from pyc_mlir.pipelines.streams.ir import EXECUTE, find, maker, operations, storage_of, ties

_CLONE = "stream.async.clone"


def advance_clones(module: Any) -> int:
    """Move each clone in front of the first op that updates its source; the number of moves."""
    return sum(_advance(op) for region in find(module, EXECUTE) for op in _clones(region))


def _clones(region: Any) -> list[Any]:
    return [op for op in operations(region.regions[0].blocks[0]) if op.name == _CLONE]


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
