"""The executions of a graph that no other one beats on (seconds, bytes).

Comes in: an `ExecutionSpace`: ops in an order, for each its executions (whole, decomposed, or
together with later ops), and the places in which values lie and between which they can be
converted. Goes out: the Pareto set of `Path`s. Dynamic programming over labels (Martins, 1984): a
`SearchState` is what the rest of a path depends on, a label is the seconds and the peak of bytes on
the way to it.

    seconds = sum over steps
    bytes = max over steps (copies of live values + what executions keep + workspace)

All of it only grows along a path, so of two labels of one state the one that is no smaller in
anything cannot lead to a better path and is dropped. A conversion never brings a value to a place
where it has been before: paths are free of cycles by construction, and there are finitely many.
Executions and conversions are asked for when a state is reached, not before.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Protocol


@dataclass(frozen=True, order=True)
class Residence:
    """Where and how a value lies."""

    layout: str = "plain"
    device: str = "cpu"


@dataclass(frozen=True, order=True)
class Execution:
    """A way to run one op, or several at once.

    covers: the ops, by number in order; the execution runs in the place of the last one. reads:
    values with the place in which each must lie. writes: values with the place in which it leaves
    them. seconds. workspace: bytes while it runs; kept: bytes from there to the end.
    """

    name: str
    covers: tuple[int, ...]
    reads: tuple[tuple[str, Residence], ...]
    writes: tuple[tuple[str, Residence], ...]
    seconds: float
    workspace: int = 0
    kept: int = 0


@dataclass(frozen=True, order=True)
class Transfer:
    """A way to bring a value to another place: seconds, and bytes of workspace."""

    place: Residence
    seconds: float
    workspace: int = 0


class ExecutionSpace(Protocol):
    """A graph with its executions.

    users: for each value the ops that read it. inputs, outputs: where values lie before, and where
    they must lie after; outputs are never freed.
    """

    @property
    def ops(self) -> int:
        """The number of ops, in an order in which each follows what it reads."""
        ...

    @property
    def users(self) -> Mapping[str, frozenset[int]]:
        """The ops that read each value."""
        ...

    @property
    def inputs(self) -> Mapping[str, Residence]:
        """Where the inputs lie."""
        ...

    @property
    def outputs(self) -> Mapping[str, Residence]:
        """Where the outputs must lie."""
        ...

    def executions(self, op: int) -> Iterable[Execution]:
        """The executions whose first op is `op`."""
        ...

    def conversions(self, value: str, place: Residence) -> Iterable[Transfer]:
        """Where a value that lies in `place` can be brought."""
        ...

    def nbytes(self, value: str, place: Residence) -> int:
        """The bytes of a copy of a value."""
        ...


@dataclass(frozen=True, order=True)
class Held:
    """A live value: the places of its copies, and all in which it has been."""

    value: str
    places: tuple[Residence, ...]
    been: tuple[Residence, ...]


@dataclass(frozen=True, order=True)
class SearchState:
    """The op frontier, and what lies where.

    position: ops below it are done, but for those that `waiting` executions cover: they were chosen
    at their first op, and run at their last one.
    """

    position: int = 0
    waiting: tuple[Execution, ...] = ()
    held: tuple[Held, ...] = ()

    @cached_property
    def places(self) -> Mapping[str, tuple[Residence, ...]]:
        """The places of the copies of each live value."""
        return {held.value: held.places for held in self.held}

    @property
    def covered(self) -> frozenset[int]:
        """The ops that waiting executions cover."""
        return frozenset(op for execution in self.waiting for op in execution.covers)


@dataclass(frozen=True)
class SearchStep:
    """One move: an execution, or a value brought from one place to another.

    moved: whether the copy that was converted is freed at once.
    """

    execution: Execution | None = None
    value: str = ""
    before: Residence | None = None
    after: Residence | None = None
    moved: bool = False


# Past an op that runs later.
_SKIP = SearchStep()


@dataclass(frozen=True)
class Path:
    """A whole execution: seconds, the peak of bytes, and the steps in order."""

    seconds: float
    bytes: int
    steps: tuple[SearchStep, ...] = ()

    @property
    def executions(self) -> tuple[Execution, ...]:
        """What runs, in order."""
        return tuple(s.execution for s in self.steps if s.execution is not None)


@dataclass(frozen=True)
class Frontier:
    """The Pareto set, quickest first; `complete` unless a width cut states off."""

    paths: tuple[Path, ...]
    complete: bool = True
    states: int = 0


@dataclass(frozen=True)
class _Label:
    seconds: float
    peak: int
    kept: int = 0
    steps: "tuple[_Label, SearchStep] | None" = None

    def beats(self, other: "_Label") -> bool:
        no_slower = self.seconds <= other.seconds
        return no_slower and self.peak <= other.peak and self.kept <= other.kept

    def path(self) -> Path:
        steps: list[SearchStep] = []
        at = self
        while at.steps is not None:
            at, step = at.steps
            if step != _SKIP:
                steps.append(step)
        return Path(self.seconds, self.peak, tuple(reversed(steps)))


_Layer = list[tuple[float, int, int, SearchState, _Label]]


def frontier(
    space: ExecutionSpace, *, limit: int | None = None, width: int | None = None
) -> Frontier:
    """The paths of which no other one is as quick with as few bytes.

    limit: bytes that no path may exceed. width: labels that are kept at each position, the quickest
    and the smallest; None keeps all, and the set is then exact.
    """
    start = SearchState(0, (), tuple(Held(v, (p,), (p,)) for v, p in sorted(space.inputs.items())))
    number = count()
    first = _Label(0.0, _live_bytes(space, start))
    layers: list[_Layer] = [[] for _ in range(space.ops + 1)]
    layers[0].append((first.seconds, first.peak, next(number), start, first))
    complete, states, ends = True, 0, list[_Label]()
    for layer in layers:
        cut = _cut(layer, width)
        complete = complete and len(cut) == len(layer)
        heapq.heapify(cut)
        settled: dict[SearchState, list[_Label]] = {}
        while cut:
            *_, state, label = heapq.heappop(cut)
            known = settled.setdefault(state, [])
            if any(other.beats(label) for other in known):
                continue
            known.append(label)
            if _ended(space, state):
                ends.append(label)
            for after, more, during, step in _steps(space, state):
                run = step.execution
                kept = label.kept + (0 if run is None else run.kept)
                peak = max(label.peak, kept + during)
                if limit is None or peak <= limit:
                    made = _Label(label.seconds + more, peak, kept, (label, step))
                    target = cut if after.position == state.position else layers[after.position]
                    entry = (made.seconds, made.peak, next(number), after, made)
                    heapq.heappush(target, entry)
        states += len(settled)
    return Frontier(tuple(label.path() for label in _best(ends)), complete, states)


def pareto(points: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    """The points that no other one beats, by ascending seconds."""
    best: list[tuple[float, int]] = []
    for seconds, size in sorted(points):
        if not best or size < best[-1][1]:
            best.append((seconds, size))
    return best


def _best(labels: list[_Label]) -> list[_Label]:
    best: list[_Label] = []
    for label in sorted(labels, key=lambda one: (one.seconds, one.peak)):
        if not best or label.peak < best[-1].peak:
            best.append(label)
    return best


def _cut(layer: _Layer, width: int | None) -> _Layer:
    """The quickest and the smallest labels of a layer."""
    if width is None or len(layer) <= width:
        return layer
    quick = sorted(layer)[: width - width // 2]
    kept = {entry[2] for entry in quick}
    small = sorted(layer, key=lambda e: (e[1], e[0], e[2]))
    return [*quick, *[e for e in small if e[2] not in kept][: width // 2]]


def _ended(space: ExecutionSpace, state: SearchState) -> bool:
    if state.position < space.ops:
        return False
    return all(place in state.places.get(v, ()) for v, place in space.outputs.items())


def _live_bytes(space: ExecutionSpace, state: SearchState) -> int:
    return sum(space.nbytes(held.value, p) for held in state.held for p in held.places)


def _steps(
    space: ExecutionSpace, state: SearchState
) -> Iterator[tuple[SearchState, float, int, SearchStep]]:
    """What can follow: the state, seconds, bytes while it happens, and the step."""
    yield from _conversions(space, state)
    op = state.position
    if op == space.ops:
        return
    waiting = next((e for e in state.waiting if op in e.covers), None)
    if waiting is not None:
        yield from _advanced(space, state, waiting)
        return
    taken = state.covered
    for execution in space.executions(op):
        if taken.isdisjoint(execution.covers):
            chosen = SearchState(op, tuple(sorted((*state.waiting, execution))), state.held)
            yield from _advanced(space, chosen, execution)


def _advanced(
    space: ExecutionSpace, state: SearchState, execution: Execution
) -> Iterator[tuple[SearchState, float, int, SearchStep]]:
    """Past one op of an execution, which runs if it is its last one and all lies as it must."""
    if state.position < execution.covers[-1]:
        yield SearchState(state.position + 1, state.waiting, state.held), 0.0, 0, _SKIP
        return
    if not all(place in state.places.get(value, ()) for value, place in execution.reads):
        return
    waiting = tuple(e for e in state.waiting if e != execution)
    written = tuple(Held(v, (p,), (p,)) for v, p in execution.writes)
    during = _live_bytes(space, state) + execution.workspace
    during += sum(space.nbytes(value, place) for value, place in execution.writes)
    after = SearchState(state.position + 1, waiting, (*state.held, *written))
    held = tuple(sorted(one for one in after.held if _is_live(space, after, one.value)))
    made = SearchState(after.position, waiting, held)
    yield made, execution.seconds, during, SearchStep(execution)


def _is_live(space: ExecutionSpace, state: SearchState, value: str) -> bool:
    """Whether an op that is not done reads the value, or the caller does."""
    if value in space.outputs:
        return True
    left = state.covered
    return any(op >= state.position or op in left for op in space.users.get(value, ()))


def _conversions(
    space: ExecutionSpace, state: SearchState
) -> Iterator[tuple[SearchState, float, int, SearchStep]]:
    """Bring a copy of a value to where the value has not been; the copy may be freed at once."""
    live = _live_bytes(space, state)
    for i, held in enumerate(state.held):
        for place in held.places:
            for way in space.conversions(held.value, place):
                if way.place in held.been:
                    continue
                during = live + space.nbytes(held.value, way.place) + way.workspace
                for moved in (False, True):
                    left = [p for p in held.places if not (moved and p == place)]
                    after = Held(
                        held.value,
                        tuple(sorted((*left, way.place))),
                        tuple(sorted((*held.been, way.place))),
                    )
                    made = (*state.held[:i], after, *state.held[i + 1 :])
                    step = SearchStep(None, held.value, place, way.place, moved)
                    yield (
                        SearchState(state.position, state.waiting, made),
                        way.seconds,
                        during,
                        step,
                    )
