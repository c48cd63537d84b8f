"""Kernels, parts and plan chosen together: prices choose, the real plan answers, and again.

    found = co_select(program, limit)

1. **Parts.** Every region that can be computed in parts has offers of (seconds, bytes). At a price
   for a byte each takes the one that costs least; all prices together give few *structures*, from
   the quickest to the smallest.
2. **Kernels.** For each structure `choose` takes the kernels of the fewest seconds that its own
   account of bytes puts within the limit, by prices on memory over time.
3. **Plan.** The quickest of those is planned for real: order, reuse in place, what runs again,
   offsets. What that needs above the account is taken off the structure's limit, and it is chosen
   again. The program as the policy has it is planned first, so that accounts are near from then on.

The quickest choice that the real plan confirmed is kept. A rival, a choice that was made without
this search, wins where it is quicker and its own plan is within the limit.

Everything is counted, not timed: equal programs give equal choices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.memory.selection.sites import Candidate, Chosen, Sites, choose

# Structures that are read, real plans that are made, and the share of the seconds by which another
# choice has to be quicker to be planned too.
STRUCTURES, PLANS, GAIN = 6, 8, 0.01

Names = Mapping[str, str]


@dataclass(frozen=True)
class Part:
    """An offer for a region: its name, predicted seconds, bytes that are needed at its place."""

    name: str
    seconds: float
    nbytes: int


@dataclass(frozen=True)
class CutProgram:
    """A program cut in one way: `parts` by site, and its sites.

    regions: offers by site, the same for all structures of a program.
    """

    parts: Names
    sites: Sites
    regions: Mapping[str, Sequence[Part]] = field(default_factory=dict)


@dataclass(frozen=True)
class Checked:
    """The real plan's verdict on a choice: bytes, whether they fit the limit, added seconds.

    seconds: for what is run again.
    """

    nbytes: int
    fits: bool
    seconds: float = 0.0


class Selectable(Protocol):
    """A program whose choices can be made together."""

    def read(self, parts: Names) -> CutProgram:
        """Read the program under these choices of parts; other sites go by the policy."""
        ...

    def check(self, choices: Names) -> Checked:
        """Plan under choices of parts and kernels."""
        ...


class Rival(Protocol):
    """A choice made elsewhere: what it takes by the same account, and by its own real plan."""

    @property
    def seconds(self) -> float:
        """The predicted seconds."""
        ...

    def fits(self) -> bool:
        """Return whether its real plan is within the limit."""
        ...


@dataclass(frozen=True)
class CoSelected:
    """The quickest confirmed choice: for each site that changes, the candidate that was selected.

    chosen: of its kernels. nbytes: of the real plan. seconds: predicted, with what is run again.
    grounds: for each site of `choices` what it was chosen over. plans, structures: how many.
    """

    choices: Names
    chosen: Chosen
    nbytes: int
    seconds: float
    grounds: Mapping[str, str]
    plans: int
    structures: int

    def __str__(self) -> str:
        """Write the outcome for the log."""
        chosen = self.chosen
        return (
            f"{len(self.choices)} sites changed, {self.nbytes} bytes, predicted "
            f"{self.seconds:.4g} s, the bound {chosen.bound:.4g} s, a megabyte worth "
            f"{1e6 * chosen.price:.4g} s; {self.structures} structures, {self.plans} plans"
        )


def co_select(
    program: Selectable, limit: int, calls: int = 1, rivals: Sequence[Rival] = ()
) -> CoSelected:
    """Select the quickest choice whose real plan is within `limit` bytes, `calls` of it at once.

    limit: for constants and arenas.

    Raises PycError (BUDGET_NOT_FOUND) where there is none, or where a rival is quicker.
    """
    found = _Rounds(program, structures_of(program), limit, calls).best()
    if found is None:
        raise PycError(
            ReasonCode.BUDGET_NOT_FOUND,
            f"co-selection: expected kernels and parts within {limit} bytes, found none",
        )
    for rival in rivals:
        if rival.seconds < found.seconds and rival.fits():
            raise PycError(
                ReasonCode.BUDGET_NOT_FOUND,
                f"co-selection: expected a choice quicker than {rival.seconds:.4g} s, which is "
                f"had without it, found {found.seconds:.4g} s",
            )
    return found


def structures_of(program: Selectable) -> list[CutProgram]:
    """Yield the program as it is, then as parts are chosen at rising prices, each once."""
    found = [program.read({})]
    for parts in at_prices(found[0].regions):
        if parts != found[0].parts:
            found.append(program.read(parts))
    return found


def at_prices(regions: Mapping[str, Sequence[Part]]) -> list[Names]:
    """Yield what regions take as the price for a byte rises; at most `STRUCTURES` steps."""
    if not regions:
        return []

    def at(offers: Sequence[Part], price: float) -> str:
        return min(offers, key=lambda p: (p.seconds + price * p.nbytes, p.nbytes, p.name)).name

    slopes = {0.0}
    for offers in regions.values():
        for a in offers:
            saving = (b for b in offers if b.nbytes < a.nbytes and b.seconds > a.seconds)
            slopes |= {(b.seconds - a.seconds) / (a.nbytes - b.nbytes) for b in saving}
    found: list[Names] = []
    for slope in sorted(slopes):
        # Just above: at the slope itself both ends cost alike.
        parts = {site: at(offers, slope * (1 + 1e-9)) for site, offers in regions.items()}
        if parts not in found:
            found.append(parts)
    if len(found) <= STRUCTURES:
        return found
    last = len(found) - 1
    return [found[round(i * last / (STRUCTURES - 1))] for i in range(STRUCTURES)]


@dataclass
class _Rounds:
    """The rounds of choosing and planning; `shift` is what a structure's real plans need above."""

    program: Selectable
    structures: list[CutProgram]
    limit: int
    calls: int
    plans: int = 0
    shift: dict[int, int] = field(default_factory=dict)
    _known: dict[tuple[int, int], Chosen | None] = field(default_factory=dict)
    _planned: set[tuple[int, tuple[int, ...]]] = field(default_factory=set)

    def best(self) -> CoSelected | None:
        """Return the quickest confirmed choice; None if the real plan confirms none."""
        sites = self.structures[0].sites
        now = Chosen(
            sites.now,
            sites.seconds(sites.now),
            sites.bytes(sites.now, self.calls),
            bound=sites.least_seconds,
        )
        best = self._plan(0, now)
        while self.plans < PLANS:
            offers = [
                (chosen.seconds, number, chosen)
                for number in range(len(self.structures))
                if (chosen := self._chosen(number)) is not None
                and (number, chosen.choice) not in self._planned
            ]
            if not offers:
                break
            seconds, number, chosen = min(offers, key=lambda o: o[:2])
            if best is not None and seconds > best.seconds * (1 - GAIN):
                break
            made = self._plan(number, chosen)
            if made is not None and (best is None or made.seconds < best.seconds):
                best = made
        return best

    def _chosen(self, number: int) -> Chosen | None:
        """Choose the kernels of a structure within what is left of the limit for them."""
        limit = self.limit - self.shift.get(number, self.shift[0])
        if (number, limit) not in self._known:
            sites = self.structures[number].sites
            try:
                found = choose(sites, limit, self.calls, start=sites.now)
            except PycError as error:
                if error.code != ReasonCode.BUDGET_IMPOSSIBLE:
                    raise
                found = None
            self._known[number, limit] = found
        return self._known[number, limit]

    def _plan(self, number: int, chosen: Chosen) -> CoSelected | None:
        structure = self.structures[number]
        self._planned.add((number, chosen.choice))
        self.plans += 1
        own = self.structures[0].parts
        changed = {key: name for key, name in structure.parts.items() if own.get(key) != name}
        grounds = {key: f"in place of {own.get(key)}" for key in changed}
        for site, index in zip(structure.sites.sites, chosen.choice, strict=True):
            if index != site.now:
                changed[site.key] = site.candidates[index].name
                grounds[site.key] = _grounds(site.candidates[site.now], site.candidates[index])
        checked = self.program.check(changed)
        self.shift[number] = checked.nbytes - chosen.nbytes
        if not checked.fits:
            return None
        return CoSelected(
            changed,
            chosen,
            checked.nbytes,
            chosen.seconds + checked.seconds,
            grounds,
            self.plans,
            len(self.structures),
        )


def _grounds(before: Candidate, after: Candidate) -> str:
    texts = (
        f"{c.name} {1e6 * c.seconds:.4g} us, {sum(c.reads.values())} bytes of constants, "
        f"{c.scratch} of scratch"
        for c in (after, before)
    )
    return " in place of ".join(texts)
