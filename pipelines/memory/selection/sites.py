"""Choosing the kernels of a program together: its sites as a `SelectionProblem`, and the answer.

Comes in: `Sites`, plain data of one program: for each site its alternatives with seconds, scratch
memory and constants, and the bytes of values that live at each step. Goes out: `Chosen`, one
alternative for each site, of the fewest predicted seconds within a limit:

    minimize    sum of seconds
    so that     constants + calls * (live[t] + scratch at t) <= limit, at every step t

A constant counts once, whatever sites read it in that form. It is a node of its own, present or
absent, which the candidates of its readers force to be present.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.memory.selection.problem import FORBIDDEN, Edge, SelectionProblem
from pyc_mlir.pipelines.memory.selection.select import select

# Seconds are added up as whole nanoseconds, so that equal sums compare equal.
NANO = 1e9
# Units of work of a search: so many for a site, and at most.
SITE_WORK, MOST_WORK = 20_000, 2_000_000
ABSENT, PRESENT = 0, 1


@dataclass(frozen=True)
class Candidate:
    """An alternative of a site.

    seconds: predicted. scratch: bytes that it takes while it runs, beside what it reads and writes.
    constants: bytes of what it reads, by a key that says which constant in which form.
    """

    name: str
    seconds: float
    scratch: int = 0
    constants: Mapping[str, int] | None = None

    @property
    def reads(self) -> Mapping[str, int]:
        """The constants, none where nothing is said."""
        return self.constants or {}


@dataclass(frozen=True)
class SiteCandidates:
    """A site by its key: the step at which it runs, its candidates, the number of the present."""

    key: str
    step: int
    candidates: tuple[Candidate, ...]
    now: int = 0


@dataclass(frozen=True)
class Sites:
    """The sites of a program, and bytes of its values at each step without scratch memory.

    fixed_seconds: what no site decides.
    """

    sites: tuple[SiteCandidates, ...]
    live: tuple[int, ...]
    fixed_seconds: float = 0.0

    @property
    def now(self) -> tuple[int, ...]:
        """The choice that the program has."""
        return tuple(site.now for site in self.sites)

    def seconds(self, choice: Sequence[int]) -> float:
        """Predict the seconds of a choice."""
        total = sum(_nano(s.candidates[c]) for s, c in zip(self.sites, choice, strict=True))
        return self.fixed_seconds + total / NANO

    @property
    def least_seconds(self) -> float:
        """The seconds of the quickest candidates, whatever they take."""
        return self.fixed_seconds + sum(min(map(_nano, s.candidates)) for s in self.sites) / NANO

    def constants(self, choice: Sequence[int]) -> int:
        """Return the bytes of the constants that a choice reads, each once."""
        found: dict[str, int] = {}
        for site, index in zip(self.sites, choice, strict=True):
            found.update(site.candidates[index].reads)
        return sum(found.values())

    def peak(self, choice: Sequence[int]) -> int:
        """Return the most bytes of values and scratch memory at any step."""
        used = list(self.live)
        for site, index in zip(self.sites, choice, strict=True):
            used[site.step] += site.candidates[index].scratch
        return max(used, default=0)

    def bytes(self, choice: Sequence[int], calls: int = 1) -> int:
        """Return the bytes of constants and the peaks of so many calls at once."""
        return self.constants(choice) + calls * self.peak(choice)


@dataclass(frozen=True)
class Chosen:
    """A candidate for each site; predicted seconds and bytes.

    price: seconds that one byte at every step would be worth, the sum of the prices over time.
    bound: seconds below which no choice within the limit lies.
    """

    choice: tuple[int, ...]
    seconds: float
    nbytes: int
    price: float = 0.0
    bound: float = 0.0


def choose(
    sites: Sites,
    limit: int,
    calls: int = 1,
    start: Sequence[int] | None = None,
    work: int | None = None,
) -> Chosen:
    """Choose the fewest seconds that were found within `limit` bytes.

    start: a choice that the result is no slower than, if it is within the limit. work: units of
    it; by default as many as the program has sites.

    Raises PycError (BUDGET_IMPOSSIBLE) where none was found within it.
    """
    if limit < calls * max(sites.live, default=0):
        raise PycError(
            ReasonCode.BUDGET_IMPOSSIBLE,
            f"selection: expected room for the values of a program, got {limit} bytes",
        )
    work = work or min(MOST_WORK, SITE_WORK * (1 + len(sites.sites)))
    network = _Network(sites, limit, calls)
    begin = None if start is None else network.with_constants(start)
    found = select(network.problem, work, begin)
    choice = tuple(int(c) for c in found.choice[: len(sites.sites)])
    bound = sites.fixed_seconds + found.bound / NANO
    return Chosen(
        choice, sites.seconds(choice), sites.bytes(choice, calls), found.price / NANO, bound
    )


def _nano(candidate: Candidate) -> int:
    return round(candidate.seconds * NANO)


@dataclass(frozen=True)
class _Network:
    """The problem: first a node for each site, then one for each constant, one for each step."""

    sites: Sites
    limit: int
    calls: int

    @cached_property
    def _sizes(self) -> dict[str, int]:
        candidates = (candidate for site in self.sites.sites for candidate in site.candidates)
        return {key: size for candidate in candidates for key, size in candidate.reads.items()}

    @cached_property
    def problem(self) -> SelectionProblem:
        steps, calls = len(self.sites.live), self.calls
        sites, sizes = self.sites.sites, self._sizes
        nothing = np.zeros(1)
        costs = [np.array([float(_nano(w)) for w in s.candidates]) for s in sites]
        costs += [np.zeros(2) for _ in sizes] + [nothing] * steps
        usages = [np.array([float(calls * w.scratch) for w in s.candidates]) for s in sites]
        usages += [np.array([0.0, size]) for size in sizes.values()]
        usages += [np.array([float(calls * size)]) for size in self.sites.live]
        lives = [(s.step, s.step + 1) for s in sites]
        lives += [(0, steps)] * len(sizes) + [(t, t + 1) for t in range(steps)]
        table = np.array(lives, np.int64).reshape(-1, 2)
        return SelectionProblem(costs, usages, table, self._edges(), float(self.limit))

    def _edges(self) -> list[Edge]:
        """Return the costs of reading a constant: a reader forces it; a lone reader owns it."""
        readers: dict[str, list[int]] = {key: [] for key in self._sizes}
        for number, site in enumerate(self.sites.sites):
            for key in dict.fromkeys(k for candidate in site.candidates for k in candidate.reads):
                readers[key].append(number)
        edges = []
        for node, (key, those) in enumerate(readers.items(), len(self.sites.sites)):
            for number in those:
                candidates = self.sites.sites[number].candidates
                table = np.zeros((len(candidates), 2))
                for i, candidate in enumerate(candidates):
                    if key in candidate.reads:
                        table[i, ABSENT] = FORBIDDEN
                    elif len(those) == 1:
                        table[i, PRESENT] = FORBIDDEN
                edges.append(Edge(number, node, table))
        return edges

    def with_constants(self, choice: Sequence[int]) -> np.ndarray:
        read = {
            k for s, c in zip(self.sites.sites, choice, strict=True) for k in s.candidates[c].reads
        }
        constants = [PRESENT if key in read else ABSENT for key in self._sizes]
        return np.array([*choice, *constants, *[0] * len(self.sites.live)], np.int64)
