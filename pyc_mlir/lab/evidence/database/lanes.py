"""Transitions of recipes between states, and the present states as a view over them."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.engine import Database
from pyc_mlir.lab.evidence.database.tables import IMPLEMENTATIONS, TRANSITIONS
from pyc_mlir.lab.evidence.rows import (
    FOLLOWERS,
    LANES,
    NEW,
    PROMOTED,
    QUARANTINED,
    STABLE,
    SUSPENDED,
    RecipeState,
    Scope,
    StateStep,
    may_follow,
)

_ROLLBACK = "rollback of transition"
_COLUMNS = (
    "seq", "impl_id", "structure", "cluster", "hardware", "toolchain", "lane", "state", "reason",
    "decided_by", "at",
)  # fmt: skip
VIEW = sa.table("recipe_states", *map(sa.column, _COLUMNS))


class RecipeStates(Database):
    """The states of recipes. Every method is one transaction."""

    def transition(
        self,
        impl_id: str,
        scope: Scope,
        lane: str,
        state: str,
        decided_by: str,
        reason: str,
        verdict_id: str | None = None,
    ) -> RecipeState:
        """Take a recipe to another state; what it replaced comes back when it leaves its place.

        Raises PycError: BAD_ARGUMENT for a state that may not follow the present one,
        EVIDENCE_CONFLICT for an unknown recipe or verdict.
        """
        with self.writing() as connection:
            move = _Move(connection, impl_id, scope, lane, decided_by, self.moment(connection))
            return move.to(StateStep(state, reason, verdict_id))

    def walk(
        self, impl_id: str, scope: Scope, lane: str, steps: Sequence[StateStep], decided_by: str
    ) -> list[RecipeState]:
        """Take a recipe through several states at once; a promotion suspends what it replaces.

        Raises PycError as `transition`, NOT_PROMOTED for a second promotion of a structure and
        toolchain on one day (UTC) in the stable lane.
        """
        with self.writing() as connection:
            move = _Move(connection, impl_id, scope, lane, decided_by, self.moment(connection))
            return [move.promote(s) if s.state == PROMOTED else move.to(s) for s in steps]

    def rollback(self, impl_id: str, scope: Scope, lane: str = STABLE, by: str = "") -> RecipeState:
        """Reverse the last transition of a recipe, and what a promotion had replaced comes back.

        Raises PycError (BAD_ARGUMENT) without one, for a quarantine, which nothing lifts, for a
        rollback, which no rollback reverses, and where another recipe took the place since.
        """
        with self.writing() as connection:
            return _Move(connection, impl_id, scope, lane, by, self.moment(connection)).back()

    def states(self, **equal: str) -> list[RecipeState]:
        """Return the present states, those whose columns equal these: ``lane="stable"``."""
        with self.reading() as connection:
            return _present(connection, equal)

    def history(self, impl_id: str) -> list[RecipeState]:
        """Return all transitions of a recipe in order, each as the state that it led to."""
        query = sa.select(TRANSITIONS).where(TRANSITIONS.c.impl_id == impl_id)
        with self.reading() as connection:
            rows = connection.execute(query.order_by(TRANSITIONS.c.seq)).mappings()
            return [_state(row, row["to_state"]) for row in rows]


class _Move:
    """Transitions of one recipe in a scope and lane, in one transaction."""

    def __init__(
        self,
        connection: sa.Connection,
        impl_id: str,
        scope: Scope,
        lane: str,
        decided_by: str,
        at: str,
    ) -> None:
        self._connection, self._impl_id, self._by, self._at = connection, impl_id, decided_by, at
        self._scope, self._lane = scope, lane
        self._there = {"lane": lane, **vars(scope)}

    def _hold(self) -> None:
        """Keep others from moving the same recipe until the transaction ends."""
        held = sa.select(IMPLEMENTATIONS.c.id).where(IMPLEMENTATIONS.c.id == self._impl_id)
        self._connection.execute(held.with_for_update())

    def to(self, step: StateStep) -> RecipeState:
        self._hold()
        last = self._last()
        present = NEW if last is None else last["to_state"]
        if self._lane not in LANES or not may_follow(present, step.state):
            raise self._refused(
                f"a lane of {', '.join(LANES)} and, after {present or 'nothing'}, one of "
                f"{', '.join((*FOLLOWERS[present], QUARANTINED))}, got {step.state!r} in "
                f"{self._lane!r}"
            )
        made = self._append(self._impl_id, present, step.state, step.reason, step.verdict_id)
        if present == PROMOTED:
            self._restore()
        return made

    def promote(self, step: StateStep) -> RecipeState:
        """Take the place of what is in use, which is suspended."""
        # Before the recipe itself: whoever waits for the structure holds no recipe.
        self._hold_structure()
        day = self._at.partition("T")[0]
        # Promotions rest on a verdict; a rollback, which names none, does not count.
        query = sa.select(TRANSITIONS.c.impl_id).where(
            TRANSITIONS.c.lane == self._lane,
            TRANSITIONS.c.to_state == PROMOTED,
            TRANSITIONS.c.structure == self._scope.structure,
            TRANSITIONS.c.toolchain == self._scope.toolchain,
            TRANSITIONS.c.verdict_id.is_not(None),
            TRANSITIONS.c.at.startswith(day),
        )
        earlier = self._connection.execute(query).scalars().first()
        if self._lane == STABLE and earlier is not None:
            raise PycError(
                ReasonCode.NOT_PROMOTED,
                f"recipe {self._impl_id[:12]}: expected no promotion of this structure and "
                f"toolchain on {day} (UTC), got one of {earlier[:12]}; promote again on another "
                "day, or after a toolchain change",
            )
        for other in self._others():
            self._append(other, PROMOTED, SUSPENDED, f"replaced by {self._impl_id}")
        return self.to(step)

    def back(self) -> RecipeState:
        """Append the reverse of the last transition."""
        self._hold()
        self._hold_structure()
        last = self._last()
        before, after, reason = (
            (NEW, NEW, "")
            if last is None
            else (last[n] for n in ("from_state", "to_state", "reason"))
        )
        if last is None or before == NEW or after == QUARANTINED or reason.startswith(_ROLLBACK):
            found = "none" if last is None else f"its last state, {after} ({reason})"
            raise self._refused(f"a transition to reverse in lane {self._lane!r}, got {found}")
        others = self._others()
        if before == PROMOTED and others:
            raise self._refused(
                f"no other recipe in use in lane {self._lane!r}, got {others[0][:12]}; roll that "
                "back"
            )
        state = self._append(self._impl_id, after, before, f"{_ROLLBACK} {last['seq']}")
        if after == PROMOTED:
            self._restore()
        return state

    def _refused(self, expected: str) -> PycError:
        text = f"recipe {self._impl_id[:12]}: expected {expected}"
        return PycError(ReasonCode.BAD_ARGUMENT, text)

    def _hold_structure(self) -> None:
        """Keep others from promoting for the same structure until the transaction ends."""
        if self._connection.dialect.name == "postgresql":
            held = {"scope": f"promotion {self._scope.structure} {self._scope.toolchain}"}
            lock = sa.text("SELECT pg_advisory_xact_lock(hashtext(:scope))")
            self._connection.execute(lock, held)

    def _others(self) -> list[str]:
        """Return the other recipes that are in use here."""
        there = _present(self._connection, {"state": PROMOTED, **self._there})
        return [state.impl_id for state in there if state.impl_id != self._impl_id]

    def _restore(self) -> None:
        """Take what a promotion had replaced into use again."""
        for other in _present(self._connection, {"state": SUSPENDED, **self._there}):
            if other.reason == f"replaced by {self._impl_id}":
                why = f"back in place of {self._impl_id}"
                self._append(other.impl_id, SUSPENDED, PROMOTED, why)

    def _last(self) -> Mapping[Any, Any] | None:
        there = {"impl_id": self._impl_id, **self._there}
        where = [TRANSITIONS.c[name] == value for name, value in there.items()]
        query = sa.select(TRANSITIONS).where(*where).order_by(TRANSITIONS.c.seq.desc()).limit(1)
        return self._connection.execute(query).mappings().first()

    def _append(
        self, impl_id: str, before: str, after: str, reason: str, verdict_id: str | None = None
    ) -> RecipeState:
        values = {"impl_id": impl_id, **self._there, "from_state": before, "to_state": after}
        values |= {"reason": reason, "decided_by": self._by, "at": self._at}
        insert = sa.insert(TRANSITIONS).values(**values, verdict_id=verdict_id)
        seq = self._connection.execute(insert.returning(TRANSITIONS.c.seq)).scalar_one()
        return RecipeState(impl_id, self._scope, self._lane, after, reason, self._by, self._at, seq)


def _present(connection: sa.Connection, equal: Mapping[str, str]) -> list[RecipeState]:
    """Return the view's rows whose columns equal these, oldest first."""
    where = [VIEW.c[name] == value for name, value in equal.items()]
    query = sa.select(VIEW).where(*where).order_by(VIEW.c.seq)
    return [_state(row, row["state"]) for row in connection.execute(query).mappings()]


def _state(row: Mapping[Any, Any], state: str) -> RecipeState:
    scope = Scope(*(row[name] for name in ("structure", "cluster", "hardware", "toolchain")))
    rest = (row[name] for name in ("reason", "decided_by", "at", "seq"))
    return RecipeState(row["impl_id"], scope, row["lane"], state, *rest)
