"""Search for a packing below a capacity: place an interval, or postpone it.

One takes the interval that can rest lowest in a section and places it there; when no packing
follows, it is postponed: it must lie on top of something that is still free, which raises its
lowest offset, and so on until it is placed or nothing fits ("schedule or postpone", Le Pape et al.,
1994). Complete: bottom-up packings are enough, and in them everything rests on the ground or on
something else. What follows from a choice is deduced in part.py. As in Moffitt's MiniMalloc
(ASPLOS 2023) parts that fall apart in time are searched one after another, so that they do not
multiply; but the next place comes first here, the section that is lowest and leaves fewest
choices, and then who takes it. Attempts are short and differ in taste (weights of life, size and
load, noise, lowest against fewest); their lengths follow Luby et al. (1993).
"""

from collections.abc import Callable

import numpy as np

from pyc_mlir.pipelines.memory.packing.intervals import Intervals, Ints, scale
from pyc_mlir.pipelines.memory.packing.part import PackingPart, PackingState

# Steps of the shortest attempt, above one for each interval.
STEPS = 150
# Weights of few choices against a low place, in mean sizes: from e**-FEW to e**FEW.
FEW = 4.0
# Parts in parts are searched apart down to this depth (each takes a level of recursion).
DEPTH = 100
# The work of building a part, in calls of `deduce`.
BUILD = 3


class _Enough(Exception):
    """The attempt has taken its steps."""


class Fit:
    """The search for one component of intervals with one alignment; `attempt` goes on."""

    def __init__(
        self, intervals: Intervals, random: np.random.Generator, spend: Callable[[float], None]
    ) -> None:
        self.size, self.unit = scale(intervals)
        self.random, self.spend = random, spend
        self.part = PackingPart.of(
            np.arange(len(intervals)), intervals.lower, intervals.upper, self.size
        )
        spend(BUILD * self.part.work)
        first, past, _ = intervals.sections
        load = np.array([intervals.load[a:b].max() for a, b in zip(first, past, strict=True)])
        life = intervals.upper - intervals.lower
        self.features = np.log(np.stack((life, np.maximum(self.size, 1), load)))
        self.offsets = np.zeros(len(intervals), np.int64)

    def attempt(self, capacity: int, length: int) -> bool | None:
        """Return whether all fits below `capacity` bytes: then `offsets` says how, in bytes.

        None: still open after the steps of an attempt of `length` (1 and up).
        """
        self.steps = len(self.size) + STEPS * length
        self._taste()
        self.capacity = capacity // self.unit
        start = self.part.deduce(np.zeros_like(self.part.size), self.part.loads, self.capacity)
        try:
            found = start is not None and self._search(self.part, start, 0)
        except _Enough:
            return None
        if found:
            self.offsets *= self.unit
        return found

    def above(self, capacity: int) -> int:
        """Return the least arena that is larger than `capacity` bytes."""
        return (capacity // self.unit + 1) * self.unit

    def _taste(self) -> None:
        """Draw what this attempt prefers."""
        weights = self.random.random(3)
        weights[2] *= self.random.choice([1, 3])
        noise = self.random.choice([0.1, 0.3, 1.0]) * self.random.random(len(self.size))
        self.taste = weights @ self.features + noise
        self.few = self.size.mean() * np.exp(self.random.uniform(-FEW, FEW))

    def _search(self, part: PackingPart, start: PackingState, depth: int) -> bool:
        """Search depth first; write down the offsets of a packing that is found."""
        taken: list[tuple[PackingState, int]] = []
        state: PackingState | None = start
        while True:
            if state is None:
                if not taken:
                    return False
                state, chosen = taken.pop()
                self.spend(part.work)
                state = part.postponed(state, chosen, self.capacity)
                continue
            self.steps -= 1
            if self.steps < 0:
                raise _Enough
            self.spend(2 * part.work)
            chosen = self._choice(part, state)
            taken.append((state, chosen))
            state = part.placed(state, chosen, self.capacity)
            if state is None:
                continue
            pieces = part.pieces(state.lowest)
            if len(pieces) == 1 and (2 * len(pieces[0]) > len(part.size) or depth > DEPTH):
                continue
            if all(self._piece(part, state, piece, depth) for piece in pieces):
                break
            state = None
        for state, chosen in taken:
            self.offsets[part.number[chosen]] = state.lowest[chosen]
        return True

    def _piece(self, part: PackingPart, state: PackingState, piece: Ints, depth: int) -> bool:
        """Search a piece of a part."""
        if len(piece) == 1:
            self.offsets[part.number[piece]] = state.lowest[piece]
            return True
        few = PackingPart.of(
            part.number[piece], part.first[piece], part.past[piece], part.size[piece]
        )
        order = np.argsort(part.first[piece], kind="stable")
        self.spend(BUILD * few.work)
        start = few.deduce(state.lowest[piece][order], few.loads, self.capacity)
        return start is not None and self._search(few, start, depth + 1)

    def _choice(self, part: PackingPart, state: PackingState) -> int:
        """Choose the interval to place next: in the section that is low and leaves few choices."""
        lowest, floor = state.lowest, state.floor
        fits = lowest[part.members] == floor[part.which]
        choices = np.add.reduceat(fits, part.of_section, dtype=np.int64)
        section = (floor + self.few * choices).argmin()
        taste = self.taste[part.number]
        rivals = part.members[(part.which == section) & fits]
        chosen = rivals[taste[rivals].argmax()]
        ends = lowest + part.size
        while True:
            under = (part.meets[chosen] & (ends <= lowest[chosen])).nonzero()[0]
            if not len(under):
                return int(chosen)
            under = under[lowest[under] == lowest[under].min()]
            chosen = under[taste[under].argmax()]


def luby(k: int) -> int:
    """1, 1, 2, 1, 1, 2, 4, ...: the k-th length of attempts, from 1."""
    while True:
        power = k.bit_length()
        if k + 1 == 1 << power:
            return 1 << (power - 1)
        k -= (1 << (power - 1)) - 1
