"""Transitions of recipes between states, and the present states as a view over them."""

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.database.tables import IMPLEMENTATIONS, TRANSITIONS
from pyc_mlir.lab.evidence.states import (
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
VIEW = sa.table(
    "recipe_states",
    *(
        sa.column(name)
        for name in (
            "seq", "impl_id", "structure", "cluster", "hardware", "toolchain", "lane", "state",
            "reason", "decided_by", "at",
        )
    ),
)  # fmt: skip


def move(
    connection: sa.Connection,
    impl_id: str,
    scope: Scope,
    lane: str,
    state: str,
    decided_by: str,
    reason: str,
    verdict_id: str | None,
    at: str,
) -> RecipeState:
    """Append a transition; what a recipe replaced comes back when that is no longer in use.

    Raises PycError (BAD_ARGUMENT) for a transition that is none.
    """
    _hold(connection, impl_id)
    before = _last(connection, impl_id, scope, lane)
    present = NEW if before is None else before["to_state"]
    if lane not in LANES or not may_follow(present, state):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"recipe {impl_id[:12]}: expected a lane of {', '.join(LANES)} and, after "
            f"{present or 'nothing'}, one of {', '.join((*FOLLOWERS[present], QUARANTINED))}, got "
            f"{state!r} in {lane!r}",
        )
    given = (present, state, decided_by, reason, verdict_id, at)
    made = _append(connection, impl_id, scope, lane, *given)
    if present == PROMOTED:
        _restore(connection, impl_id, scope, lane, decided_by, at)
    return made


def walk(
    connection: sa.Connection,
    impl_id: str,
    scope: Scope,
    lane: str,
    steps: Sequence[StateStep],
    decided_by: str,
    at: str,
) -> list[RecipeState]:
    """Append transitions one after another; a promotion suspends what it replaces.

    Raises PycError: BAD_ARGUMENT for a step that is none, NOT_PROMOTED for a second promotion of a
    structure and toolchain on one day (UTC) in the stable lane.
    """
    made = []
    for step in steps:
        if step.state == PROMOTED:
            _hold_structure(connection, scope)
            _refuse_second(connection, impl_id, scope, lane, at)
            for other in _promoted(connection, impl_id, scope, lane):
                reason = replaced_by(impl_id)
                ends = (PROMOTED, SUSPENDED)
                _append(connection, other, scope, lane, *ends, decided_by, reason, None, at)
        given = (step.state, decided_by, step.reason, step.verdict_id, at)
        made.append(move(connection, impl_id, scope, lane, *given))
    return made


def replaced_by(impl_id: str) -> str:
    """Return the reason of a suspension by a new incumbent."""
    return f"replaced by {impl_id}"


def _hold_structure(connection: sa.Connection, scope: Scope) -> None:
    """Keep others from promoting for the same structure until the transaction ends."""
    if connection.dialect.name == "postgresql":
        held = {"scope": f"promotion {scope.structure} {scope.toolchain}"}
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(hashtext(:scope))"), held)


def _refuse_second(
    connection: sa.Connection, impl_id: str, scope: Scope, lane: str, at: str
) -> None:
    """Promotions rest on a verdict; a rollback, which names none, does not count."""
    day = at.partition("T")[0]
    query = sa.select(TRANSITIONS.c.impl_id).where(
        TRANSITIONS.c.lane == lane,
        TRANSITIONS.c.to_state == PROMOTED,
        TRANSITIONS.c.structure == scope.structure,
        TRANSITIONS.c.toolchain == scope.toolchain,
        TRANSITIONS.c.verdict_id.is_not(None),
        TRANSITIONS.c.at.startswith(day),
    )
    earlier = connection.execute(query).scalars().first()
    if lane == STABLE and earlier is not None:
        raise PycError(
            ReasonCode.NOT_PROMOTED,
            f"recipe {impl_id[:12]}: expected no promotion of this structure and toolchain on "
            f"{day} (UTC), got one of {earlier[:12]}; promote again on another day, or after a "
            "toolchain change",
        )


def _promoted(connection: sa.Connection, impl_id: str, scope: Scope, lane: str) -> list[str]:
    """Other recipes that are in use in a scope and lane."""
    there = present(connection, {"lane": lane, "state": PROMOTED, **vars(scope)})
    return [state.impl_id for state in there if state.impl_id != impl_id]


def reverse(
    connection: sa.Connection, impl_id: str, scope: Scope, lane: str, by: str, at: str
) -> RecipeState:
    """Append the reverse of the last transition; what a promotion had replaced comes back.

    Raises PycError (BAD_ARGUMENT) without one, for a quarantine, which nothing lifts, for a
    rollback, which no rollback reverses, and where another recipe took the place since.
    """
    _hold(connection, impl_id)
    _hold_structure(connection, scope)
    last = _last(connection, impl_id, scope, lane)
    if (
        last is None
        or last["from_state"] == NEW
        or last["to_state"] == QUARANTINED
        or last["reason"].startswith(_ROLLBACK)
    ):
        last_state = (
            "none" if last is None else f"its last state, {last['to_state']} ({last['reason']})"
        )
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"recipe {impl_id[:12]}: expected a transition to reverse in lane {lane!r}, "
            f"got {last_state}",
        )
    others = _promoted(connection, impl_id, scope, lane)
    if last["from_state"] == PROMOTED and others:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"recipe {impl_id[:12]}: expected no other recipe in use in lane {lane!r}, got "
            f"{others[0][:12]}; roll that back",
        )
    reason = f"{_ROLLBACK} {last['seq']}"
    ends = (last["to_state"], last["from_state"])
    state = _append(connection, impl_id, scope, lane, *ends, by, reason, None, at)
    if last["to_state"] == PROMOTED:
        _restore(connection, impl_id, scope, lane, by, at)
    return state


def _restore(
    connection: sa.Connection, impl_id: str, scope: Scope, lane: str, by: str, at: str
) -> None:
    """Take what a promotion had replaced into use again."""
    for other in present(connection, {"lane": lane, "state": SUSPENDED, **vars(scope)}):
        if other.reason == replaced_by(impl_id):
            reason, ends = f"back in place of {impl_id}", (SUSPENDED, PROMOTED)
            _append(connection, other.impl_id, scope, lane, *ends, by, reason, None, at)


def present(connection: sa.Connection, equal: Mapping[str, str]) -> list[RecipeState]:
    """Return the view's rows whose columns equal these, oldest first."""
    where = [VIEW.c[name] == value for name, value in equal.items()]
    query = sa.select(VIEW).where(*where).order_by(VIEW.c.seq)
    return [_state(row, row["state"]) for row in connection.execute(query).mappings()]


def history(connection: sa.Connection, impl_id: str) -> list[RecipeState]:
    """Return all transitions of a recipe in order."""
    query = sa.select(TRANSITIONS).where(TRANSITIONS.c.impl_id == impl_id)
    rows = connection.execute(query.order_by(TRANSITIONS.c.seq)).mappings()
    return [_state(row, row["to_state"]) for row in rows]


def _hold(connection: sa.Connection, impl_id: str) -> None:
    """Keep others from moving the same recipe until the transaction ends."""
    held = sa.select(IMPLEMENTATIONS.c.id).where(IMPLEMENTATIONS.c.id == impl_id)
    connection.execute(held.with_for_update())


def _last(
    connection: sa.Connection, impl_id: str, scope: Scope, lane: str
) -> Mapping[Any, Any] | None:
    there = {"impl_id": impl_id, "lane": lane, **vars(scope)}
    where = [TRANSITIONS.c[name] == value for name, value in there.items()]
    query = sa.select(TRANSITIONS).where(*where).order_by(TRANSITIONS.c.seq.desc()).limit(1)
    return connection.execute(query).mappings().first()


def _append(
    connection: sa.Connection,
    impl_id: str,
    scope: Scope,
    lane: str,
    before: str,
    after: str,
    decided_by: str,
    reason: str,
    verdict_id: str | None,
    at: str,
) -> RecipeState:
    values = {
        "impl_id": impl_id,
        **vars(scope),
        "lane": lane,
        "from_state": before,
        "to_state": after,
        "reason": reason,
        "decided_by": decided_by,
        "verdict_id": verdict_id,
        "at": at,
    }
    insert = sa.insert(TRANSITIONS).values(values).returning(TRANSITIONS.c.seq)
    seq = connection.execute(insert).scalar_one()
    return RecipeState(impl_id, scope, lane, after, reason, decided_by, at, seq)


def _state(row: Mapping[Any, Any], state: str) -> RecipeState:
    scope = Scope(*(row[name] for name in ("structure", "cluster", "hardware", "toolchain")))
    return RecipeState(
        row["impl_id"],
        scope,
        row["lane"],
        state,
        row["reason"],
        row["decided_by"],
        row["at"],
        row["seq"],
    )
