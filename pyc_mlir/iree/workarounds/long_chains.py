"""Keep the dispatches that IREE forms of elementwise ops within a size.

IREE fuses elementwise ops that follow one another without a limit, and LLVM's time grows faster
than a function: a chain of 1,600 `tanh` took more than four times as long as one of 400. Comes in:
a module before IREE's first phase. Where more than MOST_STEPS steps of scalar arithmetic would
become one dispatch, barriers part them, as `unfuse` does for all ops.
"""

from typing import Any

from iree.compiler import ir

from pyc_mlir.iree.workarounds.read_hazards import barrier, blocks_of

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


def part_long_chains(module: Any) -> int:
    """Part chains of elementwise ops of `module`; return the number of barriers."""
    return sum(_part(block) for op in module.regions[0].blocks[0] for block in blocks_of(op))


def _part(block: Any) -> int:
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
    """Return whether an op is a generic without reductions."""
    if op.name != "linalg.generic":
        return False
    return all("parallel" in str(a) for a in ir.ArrayAttr(op.attributes["iterator_types"]))
