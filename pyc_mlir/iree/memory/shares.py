"""Share a budget among the regions of each function of a version.

Comes in: versions of one module, in which all that is allocated has its size, and when which part
is there. Goes out: `Shares`, in numbers, those of the largest call where dimensions have ranges.
"""

from collections.abc import Mapping, Sequence

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.memory.budget import ByteBudget, Shares, Together
from pyc_mlir.iree.memory.call_memory import CallAllocations
from pyc_mlir.iree.memory.versions import Version
from pyc_mlir.pipelines.streams.sizes import ByteSize


def shares_of(
    budget: ByteBudget, version: Version, versions: Mapping[int, Sequence[Version]]
) -> dict[str, Shares]:
    """Return the shares by function; a region's smallest is that of its `versions`.

    Raises PycError (BUDGET_NOT_FOUND) where a size is not known, nor bounded.
    """
    found = {}
    for name, call in version.calls.items():
        if call.moments is None:
            raise PycError(
                ReasonCode.BUDGET_NOT_FOUND,
                "memory budget: expected a program whose allocations are known at compile time, "
                "got one whose control flow decides them; unroll its loops and conditions",
            )
        outputs = None if call.outputs is None else call.outputs.largest
        allowance = budget.allowance(version.constants, outputs)
        own = [i for i, region in enumerate(version.regions) if region.function == name]
        smallest = {i: min(arena_bytes(v, i) for v in versions[i]) for i in own}
        found[name] = Shares(allowance, smallest, _times(call, budget.concurrency))
    return found


def arena_bytes(version: Version, region: int) -> int:
    """Return the bytes of a region's arena. Raises PycError (BUDGET_NOT_FOUND) without a bound."""
    return _largest(version.arenas[region], "an arena")


def _times(call: CallAllocations, concurrency: int) -> tuple[Together, ...]:
    """Return what a call needs besides its outputs, which count once.

    One call needs its outputs only from the moment on where they are made; of several, each may be
    in its largest moment while another one's outputs are there. Raises PycError (BUDGET_NOT_FOUND)
    for what is not known.
    """
    assert call.moments is not None and call.outputs is not None, "an allowance was given"
    outputs = _largest(call.outputs, "outputs")
    needs = {}
    for moment in call.moments:
        made = _largest(moment.results, "outputs") - outputs
        beside = call.padding if concurrency > 1 else made
        needs[_largest(moment.fixed, "memory") + beside, moment.arenas] = None
    return tuple(Together(*need) for need in needs)


def _largest(size: ByteSize, what: str) -> int:
    """Return the largest size. Raises PycError (BUDGET_NOT_FOUND) if it depends on the call."""
    if size.largest is None:
        raise PycError(
            ReasonCode.BUDGET_NOT_FOUND,
            f"memory budget: expected {what} whose size is known at compile time, got "
            f"{size} bytes; give static shapes in `inputs`, or declare ranges of dimensions",
        )
    return size.largest
