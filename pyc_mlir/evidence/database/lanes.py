"""Transitions of recipes between states, and the present states as a view over them."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.evidence.database.tables import IMPLEMENTATIONS, TRANSITIONS
from pyc_mlir.evidence.states import FOLLOWERS, LANES, NEW, QUARANTINED, Scope, State, may_follow

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
) -> State:
    """Append a transition. Raises PycError (BAD_ARGUMENT) for one that is none."""
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
    return _append(
        connection, impl_id, scope, lane, present, state, decided_by, reason, verdict_id, at
    )


def reverse(
    connection: sa.Connection, impl_id: str, scope: Scope, lane: str, by: str, at: str
) -> State:
    """Append the reverse of the last transition.

    Raises PycError (BAD_ARGUMENT) without one, and for a quarantine, which nothing lifts.
    """
    _hold(connection, impl_id)
    last = _last(connection, impl_id, scope, lane)
    if last is None or last["from_state"] == NEW or last["to_state"] == QUARANTINED:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"recipe {impl_id[:12]}: expected a transition to reverse in lane {lane!r}, got "
            f"{'none' if last is None else 'its last state, ' + last['to_state']}",
        )
    reason = f"rollback of transition {last['seq']}"
    ends = (last["to_state"], last["from_state"])
    return _append(connection, impl_id, scope, lane, *ends, by, reason, None, at)


def present(connection: sa.Connection, equal: Mapping[str, str]) -> list[State]:
    """The view's rows whose columns equal these, oldest first."""
    where = [VIEW.c[name] == value for name, value in equal.items()]
    query = sa.select(VIEW).where(*where).order_by(VIEW.c.seq)
    return [_state(row, row["state"]) for row in connection.execute(query).mappings()]


def history(connection: sa.Connection, impl_id: str) -> list[State]:
    """All transitions of a recipe in order."""
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
) -> State:
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
    return State(impl_id, scope, lane, after, reason, decided_by, at, seq)


def _state(row: Mapping[Any, Any], state: str) -> State:
    scope = Scope(*(row[name] for name in ("structure", "cluster", "hardware", "toolchain")))
    return State(
        row["impl_id"],
        scope,
        row["lane"],
        state,
        row["reason"],
        row["decided_by"],
        row["at"],
        row["seq"],
    )
