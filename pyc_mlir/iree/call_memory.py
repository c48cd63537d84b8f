"""How many bytes has one call of a stream function allocated at once, at most?

Comes in: a function at the end of IREE's phase `stream`, where every allocation and every release
stands in the text with the timepoints that it waits for. The host submits work ahead of the
device, so a release counts only for allocations that are sure to come after it: those that wait
for it, and those that the host makes after having waited for it. Never too small, therefore.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyc_mlir.pipelines.stream_ir import find, maker, operations, resources
from pyc_mlir.pipelines.stream_sizes import Size, size_of

_ALLOCATIONS = ("stream.resource.alloca", "stream.resource.alloc")
_DEALLOCATION = "stream.resource.dealloca"
_AWAIT = "stream.timepoint.await"
# What may allocate out of sight.
_ELSEWHERE = "util.call"


@dataclass(frozen=True)
class CallBytes:
    """Sums of bytes, the largest of which is the peak of one call."""

    sums: tuple[Size, ...] = (Size(),)

    def __add__(self, more: Size) -> "CallBytes":
        return CallBytes(tuple(size + more for size in self.sums))

    def at_most(self, other: "CallBytes") -> bool:
        """True if it is proven that this peak is never above the other."""
        return all(any(mine.at_most(theirs) for theirs in other.sums) for mine in self.sums)

    @property
    def known(self) -> int | None:
        """The peak, where it does not depend on the call."""
        if not all(size.known for size in self.sums):
            return None
        return max(size.constant for size in self.sums)

    def __str__(self) -> str:
        known = self.known
        return str(known) if known is not None else " or ".join(map(str, self.sums))


def call_bytes(function: Any, sized: Callable[[Any], Size] = size_of) -> CallBytes | None:
    """The peak of the allocations of one call; None where control flow decides what it allocates.

    What the caller hands in is not counted. `sized` reads the size of one allocation.
    """
    blocks = list(function.regions[0].blocks)
    allocations = [op for name in _ALLOCATIONS for op in find(function, name)]
    if find(function, _ELSEWHERE) or len(blocks) != 1:
        return None
    ops = operations(blocks[0])
    if not set(allocations) <= set(ops):
        return None
    return _walk(ops, sized)


def _walk(ops: list[Any], sized: Callable[[Any], Size]) -> CallBytes:
    """Follow the text; what is live is looked at where something is allocated."""
    live: dict[Any, Size] = {}
    releases: dict[Any, Any] = {}
    passed: set[Any] = set()
    sums = [Size()]
    for op in ops:
        if op.name in _ALLOCATIONS:
            sure = passed | _before(op)
            live = {made: size for made, size in live.items() if releases.get(made) not in sure}
            live[op] = sized(op.operands[0])
            sums.append(sum(live.values(), Size()))
        elif op.name == _DEALLOCATION:
            releases[_allocation(op.operands[0])] = op
        elif op.name == _AWAIT:
            passed |= _before(op)
    return CallBytes(_largest(sums))


def _before(op: Any) -> set[Any]:
    """The ops whose timepoints `op` waits for, and those that they wait for."""
    found: set[Any] = set()
    left = [op]
    while left:
        makers = (maker(v) for v in left.pop().operands if str(v.type) == "!stream.timepoint")
        new = [m for m in makers if m is not None and m not in found]
        found.update(new)
        left += new
    return found


def _allocation(value: Any) -> Any | None:
    """The allocation whose memory a resource is, where waiting is all that lies between."""
    op = maker(value)
    while op is not None and op.name == _AWAIT:
        value = resources(op.operands)[resources(op.results).index(value)]
        op = maker(value)
    return op


def _largest(sums: list[Size]) -> tuple[Size, ...]:
    """Those sums that are not below another one."""
    kept: list[Size] = []
    for size in sums:
        if not any(size.at_most(other) for other in kept):
            kept = [other for other in kept if not other.at_most(size)] + [size]
    return tuple(kept)
