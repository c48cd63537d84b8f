"""An adapted program's calls as rows of the benchmark database, and what follows for its recipes.

    lanes = ServiceLanes(store, program, recipes={"memory_first": recipe_id})
    program.adapt(Selector(observer=lanes))
    ...
    lanes.close()

Comes in: what a selector measures and changes. Goes out: a `Feedback` row for each window of calls
of the arm that serves, transitions of recipes by `promotion.py` (drift suspends, faults
quarantine), and what was learned, which the next process begins with. Calls never wait for the
database: one thread writes.
"""

import itertools
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from queue import SimpleQueue
from secrets import token_hex
from time import monotonic
from typing import Any

import numpy as np

from pyc_mlir.dialects.errors import PycError
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import (
    PROGRAM,
    STABLE,
    Feedback,
    Graph,
    Implementation,
    RecipeState,
    Scope,
    State,
    StateStep,
)
from pyc_mlir.lab.lanes.promotion import MIN_CALLS, QUANTILE, next_step
from pyc_mlir.measure.environment import current_place
from pyc_mlir.runtime.program import Program
from pyc_mlir.runtime.selection.engine import DRIFTED, IN_A_ROW, REBASED, low_quantile
from pyc_mlir.runtime.selection.selector import Observer, Selector, SelectorEvent

SERVICE = "service"
_OUT_OF_USE = (State.SUSPENDED, State.RETIRED, State.QUARANTINED)
_MOST_PROBLEMS = 64
# Windows of one arm and cluster, and the key of both.
_Key = tuple[str, str]


class ServiceLanes(Observer):
    """The observer of one selector. Threads that call share it; `close` ends its own thread.

    problems: what the database refused; the service goes on without these rows.
    """

    def __init__(
        self,
        store: EvidenceStore,
        program: Program,
        recipes: Mapping[str, str] | None = None,
        window: int = MIN_CALLS,
    ) -> None:
        """Read the states of the program's arms.

        recipes: by the name of an arm, the id of the recipe that it was compiled from, as
        `pyc-tune lanes` lists them; other arms become implementations of their own, which are in
        no lane. window: timed calls of a row. Raises PycError as the database does.
        """
        self._store, self._window = store, max(window, MIN_CALLS)
        self._place = current_place(program.device.kind, program.device.threads or 1)
        self._env = store.add_place(self._place)
        self._graph = _graph_of(store, program)
        self._recipes = dict(recipes or {})
        self._cpu = program.device.kind == "local-sync"
        self._known = {arm: self._states(recipe) for arm, recipe in self._recipes.items()}
        self._impls: dict[str, str] = {}
        self._open: dict[_Key, list[float]] = defaultdict(list)
        # The low quantile of the first window, then of the last ones.
        self._lows: dict[_Key, list[float]] = {}
        self._numbers, self._nonce = itertools.count(), token_hex(4)
        self._selector: Selector | None = None
        self._program = ""
        self.problems: deque[str] = deque(maxlen=_MOST_PROBLEMS)
        self._work: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="pyc-lanes", daemon=True)
        self._thread.start()

    # The observer's methods, on the threads of calls.

    def begin(self, selector: Selector, program: str) -> Mapping[str, Any]:
        """Return what was learned of the program on this machine; {} for nothing."""
        self._selector, self._program = selector, program
        own = {"graph_id": self._graph.graph_id, "artifact_key": program, "origin": SERVICE}
        for made in self._store.find(Implementation, **own):
            arm = made.recipe["arm"]
            self._impls[arm], self._known[arm] = made.id, self._states(made.id)
        return self._store.learned(program, selector.policy.name, self._env)

    def refused(self, arm: str) -> str:
        """Return why the lanes do not let an arm be taken; empty if they do."""
        for state in self._known.get(self._given(arm), ()):
            if state.state in _OUT_OF_USE:
                return f"recipe {state.impl_id[:12]} is {state.state}: {state.reason}"
        return ""

    def timed(self, route: str, context: str, arm: str, seconds: float) -> None:
        """Add a call to its window; a full one is written."""
        key = arm, f"{route}, {context}"
        window = self._open[key]
        window.append(seconds)
        if len(window) >= self._window:
            del self._open[key]
            self._work.put(lambda: self._end(key, window))

    def failed(self, route: str, arm: str, why: str) -> None:
        """Put an arm's recipe in quarantine."""
        self._work.put(lambda: self._fault(route, arm, why))

    def changed(self, event: SelectorEvent) -> None:
        """Keep what was learned; an arm that became slower and goes on gets a new baseline."""
        if event.kind in (REBASED, DRIFTED):
            key = event.before, f"{event.route}, {event.context}"
            self._open.pop(key, None)
            if event.kind == REBASED:
                self._work.put(lambda: self._lows.pop(key, None))
            else:
                # The recipe that the selector left is suspended where it is in use.
                why = f"drift: {event.why} ({event.route}, {event.context})"
                step = StateStep(State.SUSPENDED, why)
                used = (State.PROMOTED, State.SHADOW)
                self._work.put(
                    lambda: self._take(event.before, lambda state: step if state in used else None)
                )
        self._work.put(self._keep)

    # What the thread does.

    def drain(self, seconds: float = 10.0) -> bool:
        """Wait until all that was told is written; return whether it was in time."""
        done = threading.Event()
        self._work.put(done.set)
        return done.wait(seconds)

    def close(self, seconds: float = 10.0) -> None:
        """Keep what was learned and end the thread; what is told later is not written."""
        self._work.put(self._keep)
        self._work.put(None)
        self._thread.join(seconds)

    def _write(self) -> None:
        while (task := self._work.get()) is not None:
            began = monotonic()
            try:
                task()
            except PycError as error:
                self.problems.append(f"{error} (after {monotonic() - began:.3g} s)")

    def _keep(self) -> None:
        selector = self._selector
        if selector is not None:
            given = (self._program, selector.policy.name, self._env, selector.learned())
            self._store.keep_learned(*given)

    def _end(self, key: _Key, seconds: list[float]) -> None:
        """Write a window, and take the step that it leads to."""
        arm, cluster = key
        low, where = low_quantile(seconds), (self._impl(arm), cluster, self._env, self._moment())
        figures = {QUANTILE: low, "p50": float(np.median(seconds))}
        cpu = float(np.mean(seconds)) if self._cpu else None
        samples = np.asarray(seconds, "<f8").tobytes()
        self._store.add(Feedback(*where, len(seconds), figures, cpu, histogram=samples))
        if key not in self._lows:
            self._lows[key] = [low]
            return
        baseline, *lows = self._lows[key]
        lows = [*lows, low][-IN_A_ROW:]
        self._lows[key] = [baseline, *lows]
        self._take(arm, lambda state: next_step(state, baseline, lows))

    def _fault(self, cluster: str, arm: str, why: str) -> None:
        """Write a window of one fault, and put the arm's recipe in quarantine."""
        row = Feedback(self._impl(arm), cluster, self._env, self._moment(), 0, {}, rejected=1)
        self._store.add(row)
        step = next_step(State.SHADOW, 1.0, (), faults=1)
        assert step is not None
        found = StateStep(step.state, f"{step.reason}: {why}")
        # A fault counts in any state, also where the lanes do not know the recipe.
        self._take(arm, lambda state: None if state == State.QUARANTINED else found)

    def _take(self, arm: str, step_in: Callable[[str], StateStep | None]) -> None:
        """Carry out the step that a recipe takes in each lane; the selector takes it no more."""
        impl = self._impl(arm)
        scope = Scope(self._graph.structure_id, "", self._place.hardware, self._place.toolchain)
        places = [(s.scope, s.lane, s.state) for s in self._states(impl)] or [
            (scope, STABLE, State.NEW)
        ]
        for scope, lane, state in places:
            step = step_in(state)
            if step is not None:
                self._store.transition(impl, scope, lane, step.state, SERVICE, step.reason)
                self._known[self._given(arm)] = self._states(impl)
                if self._selector is not None:
                    self._selector.withdraw(arm, f"{step.state}: {step.reason}")

    def _moment(self) -> str:
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        return f"{now} {self._nonce} {next(self._numbers)}"

    def _states(self, impl: str) -> list[RecipeState]:
        here = {"hardware": self._place.hardware, "toolchain": self._place.toolchain}
        return self._store.states(impl_id=impl, **here)

    def _given(self, arm: str) -> str:
        """Return the name by which `recipes` has an arm: of a build, without its hash."""
        name = arm.partition("@")[0]
        return name if name in self._recipes else arm

    def _impl(self, arm: str) -> str:
        """Return the implementation of an arm; one that has no recipe is added.

        Raises PycError (EVIDENCE_CONFLICT) for a recipe that the database does not have.
        """
        if (given := self._given(arm)) in self._recipes:
            return self._recipes[given]
        if arm not in self._impls:
            recipe = {"arm": arm, "artifact": self._program}
            made = Implementation(
                self._graph.graph_id,
                recipe,
                origin=SERVICE,
                artifact_key=self._program,
                normalizer=self._graph.normalizer,
            )
            self._impls[arm] = self._store.add(made)[0]
        return self._impls[arm]


def _graph_of(store: EvidenceStore, program: Program) -> Graph:
    """Return the row of the program's graph.

    A database that does not know the program gets one without a text, under an id of its own: an
    artifact has the module after the passes, and texts are those before.
    """
    graph_id = program.artifact.manifest.graph_id or "none"
    found = store.get(Graph, graph_id)
    if found is None:
        name = f"served {graph_id}"
        found = Graph(name, PROGRAM, name, name, 0)
        store.add(found)
    return found
