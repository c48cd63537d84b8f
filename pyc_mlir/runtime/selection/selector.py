"""Choose among implementations of one program in service: routes, log, freezing, persistence.

    selector = Selector(share=0.05, path="learned.json")
    program.adapt(selector)
    ...
    selector.events()                       # what changed, and why
    recipe = selector.freeze()              # no more tries; `Selector(recipe=recipe)` repeats it
    selector.export("log.jsonl"); replay("log.jsonl")      # the same decisions
    Selector(observer=...)                  # what is measured and changed is told to a database

A `Route` is what calls of one cluster of shapes may take: arms by name, the owner's first. Each has
a bandit for each context of load and memory pressure. Most calls only count down; the others take a
lock.
"""

import json
import os
import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.files import read_file, write_file
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.runtime.selection.engine import (
    EXPLORE,
    POLICIES,
    Bandit,
    Change,
    Paired,
    Policy,
    Trial,
)

SCHEMA_VERSION = 1
# Contexts, and what takes an arm that no policy chose.
QUIET, BUSY, TIGHT, WAITING = "quiet", "busy", "tight", "waiting"
SERVED = Trial(0, timed=False)
# Runnable processes for each processor from which a machine is busy.
_BUSY_LOAD = 1.5
# Seconds for which a context is not read again, and readings that count together.
_CONTEXT_SECONDS, _READINGS = 1.0, 8
# Waits for an arena within these readings from which calls stand in each other's way.
_MOST_WAITS = 16
# Calls that take an arm that no policy chose.
_REPEATS = 64
_LOAD = Path("/proc/loadavg")
MOST_ROWS, _MOST_EVENTS, _MOST_ROUTES = 20_000, 256, 256
# Kinds of rows: a bandit was asked, was told seconds, lost an arm.
_CHOSE, _TOLD, _REMOVED = "chose", "told", "removed"


@dataclass(frozen=True)
class SelectorEvent:
    """A change in one route and context: the arms by name, and why."""

    route: str
    context: str
    kind: str
    before: str
    after: str
    why: str
    numbers: Mapping[str, float]

    def __str__(self) -> str:
        arms = f"{self.before} -> {self.after}"
        return f"{self.route} ({self.context}): {self.kind}, {arms}: {self.why}"


@dataclass(frozen=True)
class RouteCount:
    """The calls of one route: by arm, those that were tries, and the seconds that these lost."""

    route: str
    calls: Mapping[str, int]
    tries: int
    lost_seconds: float
    serving: Mapping[str, str]


class Observer:
    """Is told what a selector measures and changes; `lab/lanes/observer.py` keeps it in a database.

    Methods run on the thread of a call, under the selector's lock: none of them may wait. These do
    nothing, for a selector without an observer.
    """

    def begin(self, selector: Any, program: str) -> Mapping[str, Any]:
        """Return what was learned of the program before, as `Selector.learned` gave it."""
        return {}

    def refused(self, arm: str) -> str:
        """Return why an arm may not be taken; empty if it may."""
        return ""

    def timed(self, route: str, context: str, arm: str, seconds: float) -> None:
        """Take the seconds of a call of the arm that serves."""

    def failed(self, route: str, arm: str, why: str) -> None:
        """Take note of an arm that failed or answered wrongly."""

    def changed(self, event: SelectorEvent) -> None:
        """Take note of a change."""


class Arenas(Protocol):
    """The pool of a program's arenas, as a selector asks it."""

    waits: int

    def trim(self) -> None:
        """Let go of the memory of arenas that no call works in."""
        ...


class Route:
    """The arms of one cluster of shapes, and which of them calls take.

    least: the arm with the smallest arena, which serves while memory is short; -1 if all are equal.
    """

    __slots__ = (
        *("_ask", "arms", "bandits", "calls", "context", "expected", "least", "left", "name"),
        *("trial", "tries"),
    )

    def __init__(
        self,
        name: str,
        arms: Sequence[str],
        ask: Callable[["Route"], Trial],
        expected: Sequence[float] = (),
    ) -> None:
        self.name, self.arms, self.expected = name, tuple(arms), tuple(expected)
        self.bandits: dict[str, Bandit] = {}
        self.calls = [0] * len(arms)
        self.tries, self.least = 0, -1
        self.context = QUIET
        self.trial, self.left = SERVED, 0
        self._ask = ask

    def next(self) -> Trial:
        """Return the arm of the next call. Several threads may ask."""
        if self.left > 0:
            self.left -= 1
            return self.trial
        return self._ask(self)


class Selector:
    """Learns in service which implementation is the fastest; off unless a program is given one."""

    def __init__(
        self,
        share: float = 0.05,
        *,
        policy: str | Policy = "paired",
        seed: int = 0,
        path: str | Path | None = None,
        recipe: Mapping[str, str] | str | Path | None = None,
        observer: Observer | None = None,
        load: Callable[[], float] | None = None,
        pressure: Callable[[], bool] | None = None,
        clock: Callable[[], float] = monotonic,
        most_rows: int = MOST_ROWS,
    ) -> None:
        """Make a selector for one program.

        share: of all time that tries may lose. policy: `paired`, `thompson`, `ucb` or one of your
        own. path: a file that keeps what was learned over restarts. recipe: what `freeze` returned,
        or its file; then nothing is tried. observer: is told what is measured and changed, and
        knows what was learned before and which arms may not be taken. load: runnable processes for
        each processor; pressure: whether memory is short; both make the context. clock: seconds,
        for which a context holds. most_rows: of the log that are kept for a replay.

        Raises PycError (BAD_ARGUMENT, FILE_ACCESS).
        """
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 0.5:
            raise _bad("share", "a number above 0 and at most 0.5", share)
        if isinstance(policy, str) and policy not in POLICIES:
            raise _bad("policy", f"one of {', '.join(POLICIES)} or a policy", policy)
        if isinstance(policy, str):
            self.policy = Paired(share=share) if policy == "paired" else POLICIES[policy]()
        else:
            self.policy = policy
        self._seed, self._clock = seed, clock
        self._path = None if path is None else Path(path)
        self._recipe = _recipe_of(recipe)
        self._observer = observer or Observer()
        self._withdrawn: dict[str, str] = {}
        # By thread, the arm of its last call, and whether it is the owner's; None keeps none.
        self.latest: dict[int, tuple[str, bool]] | None = None
        self._load, self._pressure = load or MachineLoad(), pressure
        self._arenas: Arenas | None = None
        self._waits: deque[int] = deque(maxlen=_READINGS)
        self._lock = threading.RLock()
        self._routes: dict[str, Route] = {}
        self._rows: deque[tuple[Any, ...]] = deque(maxlen=most_rows)
        self._lost_rows = 0
        self._events: deque[SelectorEvent] = deque(maxlen=_MOST_EVENTS)
        self._context, self._read_at = QUIET, -_CONTEXT_SECONDS
        self._program = ""
        self._report: Callable[[SelectorEvent], None] | None = None
        self._known: dict[str, Any] = {}

    def attach(
        self,
        program: str,
        report: Callable[[SelectorEvent], None] | None = None,
        arenas: Arenas | None = None,
    ) -> None:
        """Begin with a program, named by a hash; what a file knows of another one is left.

        arenas: its pool, for what calls waited, and to free memory when that is short.

        Raises PycError (BAD_ARGUMENT) for a selector that has a program.
        """
        with self._lock:
            if self._program:
                raise _bad("adapt", "a selector of its own for each program", self._program)
            self._program, self._report, self._arenas = program, report, arenas
            if self._path is not None and self._path.exists():
                found = _read(self._path, "what a selector learned")
                same = (program, self.policy.name, SCHEMA_VERSION)
                if (found.get("program"), found.get("policy"), found.get("schema")) == same:
                    self._known = dict(found.get("routes", {}))
                else:
                    self._ignored("", " is of another program")
            self._known = {**self._observer.begin(self, program), **self._known}

    def route(self, name: str, arms: Sequence[str], expected: Sequence[float] = ()) -> Route:
        """Return the route of a cluster of shapes; the first arm is the owner's.

        expected: of each arm, its seconds by those of the first; 0 where nothing is known.
        """
        with self._lock:
            found = self._routes.get(name)
            if found is None and len(self._routes) >= _MOST_ROUTES:
                # What is not known any more serves as the owner said.
                return Route(name, arms[:1], lambda _: SERVED)
            if found is None:
                found = self._routes[name] = Route(name, arms, self._ask, expected)
            return found

    def _ask(self, route: Route) -> Trial:
        with self._lock:
            now = self._clock()
            if now - self._read_at >= _CONTEXT_SECONDS:
                self._context, self._read_at = self._read_context(), now
            context = route.context = self._context
            if self._recipe is not None:
                # What it names serves, without asking again for a while.
                keys = (f"{route.name}|{context}", route.name)
                named = next((self._recipe[k] for k in keys if self._recipe.get(k)), None)
                return self._repeated(route, route.arms.index(named) if named in route.arms else 0)
            if TIGHT in context and route.least >= 0:
                return self._repeated(route, route.least)
            trial = self._bandit(route, context).ask()
            self._note((_CHOSE, route.name, context, trial.arm, trial.why, trial.repeat))
            route.calls[trial.arm] += 1 + trial.repeat
            route.tries += trial.why == EXPLORE
            route.left = trial.repeat
            if trial.repeat:
                route.trial = Trial(trial.arm, timed=False)
            return trial

    def _repeated(self, route: Route, arm: int) -> Trial:
        """Take an arm for a while, without timing it."""
        route.trial, route.left = Trial(arm, timed=False), _REPEATS - 1
        route.calls[arm] += _REPEATS
        return route.trial

    def _read_context(self) -> str:
        found = [BUSY if self._load() > _BUSY_LOAD else QUIET]
        if self._arenas is not None:
            self._waits.append(self._arenas.waits)
            if self._waits[-1] - self._waits[0] > _MOST_WAITS:
                found.append(WAITING)
        if self._pressure is not None and self._pressure():
            found.append(TIGHT)
            if self._arenas is not None:
                self._arenas.trim()
        return ", ".join(found)

    def _bandit(self, route: Route, context: str) -> Bandit:
        if context not in route.bandits:
            text = f"{self._seed}|{route.name}|{context}".encode()
            seed = int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
            given = (len(route.arms), random.Random(seed), route.expected)
            made = self.policy.start(*given)
            known = self._known.get(route.name, {})
            if known.get("arms") == list(route.arms) and context in known.get("contexts", {}):
                try:
                    made.restore(known["contexts"][context])
                except (KeyError, TypeError, ValueError) as error:
                    made = self.policy.start(*given)
                    self._ignored(route.name, f": {error}")
            route.bandits[context] = made
            for arm, name in enumerate(route.arms):
                if why := self._withdrawn.get(name, "") or self._observer.refused(name):
                    self._removed(route, context, arm, why)
        return route.bandits[context]

    def observe(self, route: Route, trial: Trial, seconds: float) -> None:
        """Take the seconds of a timed call."""
        with self._lock:
            context = route.context
            bandit = route.bandits.get(context)
            if bandit is None or self._recipe is not None:
                return
            self._note((_TOLD, route.name, context, trial.arm, trial.why, seconds))
            # The changes come first: a new baseline begins with this call.
            self._changed(route, context, bandit.tell(trial, seconds))
            if trial.why != EXPLORE:
                self._observer.timed(route.name, context, route.arms[trial.arm], seconds)

    def remove(self, route: Route, arm: int, why: str) -> None:
        """Put an arm that failed in quarantine, in all contexts of the route."""
        with self._lock:
            for context in route.bandits:
                self._removed(route, context, arm, why)
            self._observer.failed(route.name, route.arms[arm], why)

    def withdraw(self, arm: str, why: str, fault: bool = False) -> None:
        """Take an arm out of all routes, by its name, for a reason from outside.

        fault: it answered wrongly, which the observer is told.
        """
        with self._lock:
            self._withdrawn[arm] = why
            for route in self._routes.values():
                for context in route.bandits if arm in route.arms else ():
                    self._removed(route, context, route.arms.index(arm), why)
            if fault:
                self._observer.failed("", arm, why)

    def _removed(self, route: Route, context: str, arm: int, why: str) -> None:
        self._note((_REMOVED, route.name, context, arm, why, 0.0))
        self._changed(route, context, route.bandits[context].drop(arm, why))

    def _changed(self, route: Route, context: str, changes: Sequence[Change]) -> None:
        for c in changes:
            route.left = 0
            arms = route.arms[c.before], route.arms[c.after]
            self._record_event(
                SelectorEvent(route.name, context, c.kind, *arms, c.why, dict(c.numbers))
            )
        if changes and self._path is not None:
            self.save(self._path)

    def _ignored(self, route: str, why: str) -> None:
        self._record_event(SelectorEvent(route, QUIET, "ignored", "", "", f"{self._path}{why}", {}))

    def _record_event(self, event: SelectorEvent) -> None:
        self._events.append(event)
        if self._report is not None:
            self._report(event)
        self._observer.changed(event)

    def _note(self, row: tuple[Any, ...]) -> None:
        self._lost_rows += len(self._rows) == self._rows.maxlen
        self._rows.append(row)

    def events(self) -> tuple[SelectorEvent, ...]:
        """Return the latest changes, oldest first."""
        with self._lock:
            return tuple(self._events)

    def counts(self) -> tuple[RouteCount, ...]:
        """Return the calls of each route, and what tries have cost."""
        with self._lock:
            return tuple(
                RouteCount(
                    route.name,
                    dict(zip(route.arms, route.calls, strict=True)),
                    route.tries,
                    sum(float(getattr(b, "lost", 0.0)) for b in route.bandits.values()),
                    {c: route.arms[b.incumbent] for c, b in route.bandits.items()},
                )
                for route in self._routes.values()
            )

    def freeze(self, path: str | Path | None = None) -> dict[str, str]:
        """Try nothing any more; return what serves by route and context, and write it to a file.

        Raises PycError (FILE_ACCESS).
        """
        with self._lock:
            found = {
                f"{route.name}|{context}": route.arms[bandit.incumbent]
                for route in self._routes.values()
                for context, bandit in sorted(route.bandits.items())
            }
            self._recipe = {**(self._recipe or {}), **found}
            for route in self._routes.values():
                route.left = 0
            recipe = dict(self._recipe)
        if path is not None:
            self._write(path, recipe=recipe)
        return recipe

    def learned(self) -> dict[str, Any]:
        """Return all that was learned, by route, as JSON data."""
        with self._lock:
            routes = {
                route.name: {
                    "arms": list(route.arms),
                    "contexts": {c: b.state() for c, b in sorted(route.bandits.items())},
                }
                for route in self._routes.values()
            }
            return {**self._known, **routes}

    def save(self, path: str | Path) -> None:
        """Write what was learned. Raises PycError (FILE_ACCESS)."""
        self._write(path, policy=self.policy.name, routes=self.learned())

    def _write(self, path: str | Path, **data: Any) -> None:
        data = {"schema": SCHEMA_VERSION, "program": self._program, **data}
        write_file(path, json.dumps(data, indent=1, sort_keys=True).encode())

    def export(self, path: str | Path) -> None:
        """Write all that was asked and told, for `replay`. Raises PycError (FILE_ACCESS)."""
        with self._lock:
            head = {
                "schema": SCHEMA_VERSION,
                "program": self._program,
                "policy": self.policy.name,
                "options": {f.name: getattr(self.policy, f.name) for f in fields(self.policy)},  # type: ignore[arg-type]
                "seed": self._seed,
                "lost_rows": self._lost_rows,
                "routes": {r.name: [r.arms, r.expected] for r in self._routes.values()},
                "known": self._known,
                "events": [asdict(e) for e in self._events],
            }
            lines = [json.dumps(head), *(json.dumps(row) for row in self._rows)]
        write_file(path, ("\n".join(lines) + "\n").encode())


def replay(path: str | Path) -> tuple[SelectorEvent, ...]:
    """Ask the policy again with the seconds of an exported log; return the changes.

    Raises PycError: BAD_ARGUMENT for a log that is not whole or no log, REPLAY_MISMATCH where the
    policy answers otherwise.
    """
    lines = read_file(path, "the log of a selector").decode(errors="replace").splitlines()
    try:
        head, *rows = map(parse_json, lines)
        if head["schema"] != SCHEMA_VERSION or head["policy"] not in POLICIES:
            raise ValueError("a log of another version or policy")
        if head["lost_rows"]:
            raise ValueError(f"a log that lacks {head['lost_rows']} rows; raise `most_rows`")
        policy = POLICIES[head["policy"]](**head["options"])
        again = Selector(policy=policy, seed=head["seed"])
        again._known = head["known"]
        routes = {name: again.route(name, *given) for name, given in head["routes"].items()}
        timed: Counter[tuple[str, int, str]] = Counter()
        for number, (kind, name, context, arm, why, value) in enumerate(rows, 2):
            route, bandit = routes[name], again._bandit(routes[name], context)
            if kind == _CHOSE:
                trial = bandit.ask()
                if (trial.arm, trial.why, trial.repeat) != (arm, why, value):
                    raise PycError(
                        ReasonCode.REPLAY_MISMATCH,
                        where=f"{path}, line {number}",
                        expected=f"arm {arm} ({why}) for {name}",
                        got=f"arm {trial.arm} ({trial.why})",
                        remedy="replay with the version of PyC that wrote the log",
                    )
                timed[name, arm, why] += 1
            elif kind == _TOLD:
                if not timed[name, arm, why]:
                    raise ValueError(f"line {number}: seconds of arm {arm}, which was not asked")
                timed[name, arm, why] -= 1
                again._changed(route, context, bandit.tell(Trial(arm, why), value))
            else:
                again._changed(route, context, bandit.drop(arm, why))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            where=str(path),
            expected="a whole log that `Selector.export` wrote",
            got=str(error) or type(error).__name__,
        ) from None
    return again.events()


class MachineLoad:
    """The runnable processes for each processor: the mean of the last readings, which are new.

    Linux's own averages need a minute to follow.
    """

    def __init__(self) -> None:
        self._cpus = os.cpu_count() or 1
        self._readings: deque[float] = deque(maxlen=_READINGS)

    def __call__(self) -> float:
        """Read once more; return the mean."""
        try:
            running = float(_LOAD.read_text().split()[3].partition("/")[0])
        except (OSError, IndexError, ValueError):
            return 0.0
        self._readings.append(running / self._cpus)
        return sum(self._readings) / len(self._readings)


def _recipe_of(given: Mapping[str, str] | str | Path | None) -> dict[str, str] | None:
    """Return a recipe. Raises PycError (BAD_ARGUMENT, FILE_ACCESS)."""
    if given is None:
        return None
    found: Any = given
    if not isinstance(given, Mapping):
        data = _read(given, "a recipe of a selector")
        found = data.get("recipe") if data.get("schema") == SCHEMA_VERSION else None
    texts = isinstance(found, Mapping) and all(
        isinstance(k, str) and isinstance(v, str) for k, v in found.items()
    )
    if not texts:
        raise _bad("recipe", "arms by route, as `freeze` returns them", found)
    return dict(found)


def _read(path: str | Path, expected: str) -> dict[str, Any]:
    """Read a JSON object. Raises PycError (FILE_ACCESS, BAD_ARGUMENT)."""
    try:
        found = parse_json(read_file(path, expected))
        if not isinstance(found, dict):
            raise ValueError("no object")
    except ValueError as error:
        raise PycError(
            ReasonCode.BAD_ARGUMENT, where=str(path), expected=expected, got=str(error)
        ) from None
    return found


def _bad(name: str, expected: str, got: object) -> PycError:
    return PycError(
        ReasonCode.BAD_ARGUMENT, where=f"selector: {name}", expected=expected, got=repr(got)[:80]
    )
