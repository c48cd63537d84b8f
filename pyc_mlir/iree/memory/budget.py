"""Check a program against a budget of device memory; compute the bytes left for its arenas.

    constants + inputs + outputs + concurrency x arena <= budget

All but the arena is fixed by the program. A refusal says what is fixed, what the smallest arena
found is, the budget that would be kept with it, and what it costs in predicted latency.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.memory.calls import CallAllocations
from pyc_mlir.iree.memory.versions import Version
from pyc_mlir.pipelines.streams.sizes import ByteSize
from pyc_mlir.util.units import quantity


@dataclass(frozen=True)
class ByteBudget:
    """`total` bytes for a program and `concurrency` calls of it at once.

    inputs: bytes of one call's arguments; None where they depend on it. largest: sizes, in words.
    """

    total: int
    inputs: int | None
    concurrency: int = 1
    largest: str = ""

    def allowance(self, constants: int | None, outputs: int | None) -> int:
        """Return the bytes that the arena of one call may have beside constants and results.

        Negative where what is fixed does not fit already. Raises PycError (BUDGET_NOT_FOUND) where
        it is not known.
        """
        parts = {"constants": constants, "inputs": self.inputs, "outputs": outputs}
        unknown = [name for name, size in parts.items() if size is None]
        if unknown:
            raise _unbounded("sizes that are", f"unknown {' and '.join(unknown)}")
        left = self.total - sum(size or 0 for size in parts.values())
        return left // self.concurrency

    def needed(self, need: "SmallestProgram") -> int:
        """Return the bytes in all."""
        fixed = need.constants + (self.inputs or 0) + need.outputs
        return fixed + self.concurrency * need.arena


@dataclass(frozen=True)
class SmallestProgram:
    """The smallest program found: its constants, results and one arena, in bytes, and its latency.

    preferred, seconds: predicted seconds of the preferred plan and of this one.
    """

    constants: int
    outputs: int
    arena: int
    preferred: float
    seconds: float

    @property
    def slower(self) -> float:
        """The latency that it costs, as a share of the preferred plan's."""
        return self.seconds / self.preferred - 1.0 if self.preferred else 0.0


class BudgetNotKept(PycError):
    """No program within the budget; `smallest` bytes were possible.

    The code says whether it has been proven that none exists for the dispatches that PyC makes of
    the program. `optional` says that only functions that can be left out do not keep the budget.
    """

    def __init__(
        self, budget: ByteBudget, need: SmallestProgram, *, proven: bool, optional: bool = False
    ) -> None:
        self.budget, self.need, self.proven = budget, need, proven
        self.optional = optional
        self.smallest = budget.needed(need)
        several = budget.concurrency > 1
        arenas = f"{budget.concurrency} x {need.arena}" if several else str(need.arena)
        at = f" for {budget.largest}" if budget.largest else ""
        super().__init__(
            ReasonCode.BUDGET_IMPOSSIBLE if proven else ReasonCode.BUDGET_NOT_FOUND,
            f"memory budget: expected at most {budget.total} bytes, got a program that needs "
            f"{self.smallest} ({quantity(self.smallest, 'B')}) with the smallest plan found{at}: "
            f"constants {need.constants}, inputs {budget.inputs}, outputs {need.outputs}, arena "
            f"{arenas}; give it {self.smallest} bytes, at {need.slower:+z.1%} predicted latency"
            f"{', or declare narrower ranges' if at else ''}",
        )

    def or_better(self, other: "BudgetNotKept") -> "BudgetNotKept":
        """Return the refusal after a second search over other dispatches: the smaller need."""
        best = other if other.smallest < self.smallest else self
        need = replace(best.need, preferred=self.need.preferred)
        proven = self.proven and other.proven
        return BudgetNotKept(self.budget, need, proven=proven)


@dataclass(frozen=True)
class NeedAtOnce:
    """The needs of one call at one time: `fixed` bytes, and the arenas of these regions."""

    fixed: int
    regions: frozenset[int]


@dataclass
class Shares:
    """The shares that the regions of one function have of the bytes that a call may allocate.

    smallest: the fewest bytes that are known to do for each region. What they leave of the
    allowance goes to whichever region is chosen for first.
    times: which regions have their arenas at once; all of them where nothing is said.
    """

    allowance: int
    smallest: dict[int, int]
    times: tuple[NeedAtOnce, ...] = ()

    def __post_init__(self) -> None:
        self.times = self.times or (NeedAtOnce(0, frozenset(self.smallest)),)

    @property
    def needed(self) -> int:
        """The bytes of a call in which every region takes its smallest."""
        return max(0, *map(self._needed, self.times))

    @property
    def spare(self) -> int:
        """The bytes left if every region takes its smallest; negative if they do not fit."""
        return self.allowance - self.needed

    def allowed(self, region: int) -> int:
        """Return the bytes that one region may take now."""
        full = [self._needed(time) for time in self.times if region in time.regions]
        return self.smallest[region] + self.allowance - max(full, default=0)

    def take(self, region: int, size: int) -> None:
        """Give one region that many."""
        self.smallest[region] = size

    def _needed(self, time: NeedAtOnce) -> int:
        return time.fixed + sum(self.smallest[region] for region in time.regions)


def squeeze(shares: Shares, regions: Sequence[int], within: Callable[[int, int], int]) -> None:
    """Make regions smaller, the largest first, until they fit or none can be.

    `within(region, bytes)` answers with the bytes of a plan, of at most so many if there is one.
    """
    for region in sorted(regions, key=lambda r: (-shares.smallest[r], r)):
        allowed = shares.allowed(region)
        if allowed < shares.smallest[region]:
            found = within(region, max(0, allowed))
            shares.take(region, min(found, shares.smallest[region]))


# Share a budget among the regions of each function of a version.
#
# Comes in: versions of one module, in which all that is allocated has its size, and when which part
# is there. Goes out: `Shares`, in numbers, those of the largest call where dimensions have ranges.


def shares_of(
    budget: ByteBudget, version: Version, versions: Mapping[int, Sequence[Version]]
) -> dict[str, Shares]:
    """Return the shares by function; a region's smallest is that of its `versions`.

    Raises PycError (BUDGET_NOT_FOUND) where a size is not known, nor bounded.
    """
    found = {}
    for name, call in version.allocations.calls.items():
        if call.moments is None:
            raise PycError(
                ReasonCode.BUDGET_NOT_FOUND,
                "memory budget: expected a program whose allocations are known at compile time, "
                "got one whose control flow decides them; unroll its loops and conditions",
            )
        outputs = None if call.outputs is None else call.outputs.largest
        allowance = budget.allowance(version.allocations.constants, outputs)
        own = [i for i, region in enumerate(version.regions) if region.function == name]
        smallest = {i: min(arena_bytes(v, i) for v in versions[i]) for i in own}
        found[name] = Shares(allowance, smallest, _times(call, budget.concurrency))
    return found


def arena_bytes(version: Version, region: int) -> int:
    """Return the bytes of a region's arena. Raises PycError (BUDGET_NOT_FOUND) without a bound."""
    return _largest(version.arenas[region], "an arena")


def _times(call: CallAllocations, concurrency: int) -> tuple[NeedAtOnce, ...]:
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
    return tuple(NeedAtOnce(*need) for need in needs)


def _largest(size: ByteSize, what: str) -> int:
    """Return the largest size. Raises PycError (BUDGET_NOT_FOUND) if it depends on the call."""
    if size.largest is None:
        raise _unbounded(f"{what} whose size is", f"{size} bytes")
    return size.largest


def _unbounded(expected: str, got: str) -> PycError:
    return PycError(
        ReasonCode.BUDGET_NOT_FOUND,
        f"memory budget: expected {expected} known at compile time, got {got}; give static shapes "
        "in `inputs`, or declare ranges of dimensions; where values that the program computes "
        "decide the size, leave the budget out, or end the model before them (`outputs`)",
    )
