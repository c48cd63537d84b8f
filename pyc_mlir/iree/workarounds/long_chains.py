"""Keep the dispatches that IREE forms of elementwise ops within a size.

IREE fuses elementwise ops that follow one another without a limit, and LLVM's time grows faster
than a function: a chain of 1,600 `tanh` took more than four times as long as one of 400. Comes in:
a module before IREE's first phase. Where more than MOST_STEPS steps of scalar arithmetic would
become one dispatch, barriers part them, as `unfuse` does for all ops.
"""

from dataclasses import dataclass, field
from typing import Any

from iree.compiler import ir

from pyc_mlir.iree.workarounds.read_hazards import barrier, blocks_of

MOST_STEPS = 4096
# A function of `math`, such as a `tanh`, becomes about as many instructions.
_STEPS_OF_FUNCTION = 8


@dataclass
class _Parts:
    """Sets of ops that may become one dispatch, merged as they are found (union-find).

    steps: of each set, by its first member.
    """

    first: dict[Any, Any] = field(default_factory=dict)
    steps: dict[Any, int] = field(default_factory=dict)

    def add(self, op: Any) -> None:
        """Begin a set."""
        self.first[op], self.steps[op] = op, _steps(op)

    def of(self, op: Any) -> Any:
        """The first member of the op's set."""
        while self.first[op] != op:
            self.first[op] = self.first[self.first[op]]
            op = self.first[op]
        return op

    def join(self, one: Any, other: Any) -> bool:
        """Merge two sets unless they are too large together."""
        one, other = self.of(one), self.of(other)
        if one == other:
            return True
        if self.steps[one] + self.steps[other] > MOST_STEPS:
            return False
        self.first[other] = one
        self.steps[one] += self.steps[other]
        return True


def part_long_chains(module: Any) -> int:
    """Part chains of elementwise ops of `module`; the number of barriers."""
    return sum(_part(block) for op in module.regions[0].blocks[0] for block in blocks_of(op))


def _part(block: Any) -> int:
    parts = _Parts()
    fused: dict[Any, bool] = {}
    barriers = 0
    for op in [o.operation for o in block.operations]:
        if not _is_pointwise(op):
            continue
        parts.add(op)
        for i, value in enumerate(list(op.operands)):
            made = value.owner
            maker = None if isinstance(made, ir.Block) else made.operation
            if maker not in parts.first:
                continue
            if maker not in fused:
                # What others read too stands in memory in any case.
                fused[maker] = all(_is_pointwise(u.owner.operation) for u in value.uses)
            if fused[maker] and not parts.join(maker, op):
                op.operands[i] = barrier(value, op)
                barriers += 1
    return barriers


def _steps(op: Any) -> int:
    names = [o.operation.name for block in blocks_of(op) for o in block.operations]
    return sum(_STEPS_OF_FUNCTION if name.startswith("math.") else 1 for name in names)


def _is_pointwise(op: Any) -> bool:
    """Whether an op is a generic without reductions."""
    if op.name != "linalg.generic":
        return False
    return all("parallel" in str(a) for a in ir.ArrayAttr(op.attributes["iterator_types"]))
