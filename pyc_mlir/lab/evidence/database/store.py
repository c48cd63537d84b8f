"""`EvidenceStore`: the benchmark database as an API of rows, trials and transitions; its upkeep.

    with EvidenceStore.open("sqlite:///pyc.db") as store:
        env = store.add_place(current_place())
        store.add(graph, workload, implementation, session)
        store.add(*traces)                          # on return they are committed
        trial = store.claim(study_id, "worker-1", seconds=60)
        store.finish(trial, trace)
        store.transition(implementation.id, scope, lane, "candidate", "tuner", "proposed")

Every method is one transaction; what it returned for is kept, whatever is killed afterwards.

Trials are configurations that workers measure under leases:

    waiting -> leased -> done | failed         an expired lease counts as waiting

The lease in the database is the truth about who works on what. A worker that dies lets its lease
expire; the next claim takes the trial over, up to `MAX_ATTEMPTS` times.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar, get_origin, get_type_hints

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.lab.evidence.database.engine import Database
from pyc_mlir.lab.evidence.database.tables import (
    ENVIRONMENTS,
    IMPLEMENTATIONS,
    LEARNED,
    MAINTENANCE,
    METADATA,
    SESSIONS,
    TRACES,
    TRANSITIONS,
    TRIALS,
    VERDICTS,
)
from pyc_mlir.lab.evidence.rows import (
    FOLLOWERS,
    LANES,
    ROWS,
    STABLE,
    EvidenceRow,
    Graph,
    RecipeState,
    Scope,
    State,
    StateStep,
    Trace,
    samples,
)
from pyc_mlir.measure.environment import Environments
from pyc_mlir.util.checksum import canonical, digest

R = TypeVar("R", bound=EvidenceRow)
# Facts that are noted when a row is first added, and are no part of what it is.
_NOTED: Mapping[str, frozenset[str]] = {
    "implementations": frozenset(
        ("parent", "origin", "artifact_key", "compile_seconds", "arena_bytes", "constant_bytes")
    ),
    "studies": frozenset(("budget",)),
}
_INSERTS: Mapping[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
_BATCH = 1000
_ROLLBACK = "rollback of transition"
_COLUMNS = (
    "seq", "impl_id", "structure", "cluster", "hardware", "toolchain", "lane", "state", "reason",
    "decided_by", "at",
)  # fmt: skip
VIEW = sa.table("recipe_states", *map(sa.column, _COLUMNS))
WAITING, LEASED, DONE, FAILED = "waiting", "leased", "done", "failed"
STATES = (WAITING, LEASED, DONE, FAILED)
MAX_ATTEMPTS = 3
_GONE = "its workers ended before it did"


@dataclass(frozen=True)
class StoredTrial:
    """A configuration of a study as the database has it.

    number: its place in the order of the study. attempt: how often it was claimed; with `owner` it
    distinguishes leases. seconds: what the trial took in all, once it is done.
    """

    study_id: str
    config_hash: str
    number: int
    config: Mapping[str, Any]
    state: str = WAITING
    predicted: float | None = None
    owner: str = ""
    lease_until: float | None = None
    attempt: int = 0
    trace_id: str | None = None
    reason: str = ""
    seconds: float | None = None

    @property
    def is_ended(self) -> bool:
        """True if it was measured, or failed for good."""
        return self.state in (DONE, FAILED)


class EvidenceStore(Database):
    """All rows of a benchmark database."""

    def add(self, *rows: EvidenceRow) -> list[str]:
        """Add rows in one transaction; return their ids. What is there already stays as it is.

        Raises PycError (EVIDENCE_CONFLICT) for other contents under a known id, such as another
        text of a graph, and for a row that refers to one that is not there.
        """
        with self.writing() as connection:
            for row in rows:
                _add(connection, METADATA.tables[row.table], columns_of(row))
        return [row.id for row in rows]

    def add_place(self, place: Environments) -> str:
        """Add an environment; return its id."""
        hashes = {n: getattr(place, n) for n in ("id", "hardware", "toolchain", "context")}
        columns = {**hashes, "machine": place.machine, "facts": canonical(place.facts())}
        with self.writing() as connection:
            _add(connection, ENVIRONMENTS, columns)
        return place.id

    def places(self) -> dict[str, Environments]:
        """Return all environments by id."""
        with self.reading() as connection:
            found = connection.execute(sa.select(ENVIRONMENTS)).mappings().all()
        return {
            r["id"]: Environments.from_facts(parse_json(r["facts"]), r["machine"]) for r in found
        }

    def find(self, kind: type[R], **equal: Any) -> list[R]:
        """Return the rows of a kind whose columns equal these, in the order of their keys."""
        table = METADATA.tables[kind.table]
        where = [table.c[name] == _stored(value) for name, value in equal.items()]
        return self._read(kind, sa.select(table).where(*where).order_by(*table.primary_key))

    def get(self, kind: type[R], row_id: str) -> R | None:
        """Return the row with an id; None where there is none."""
        found = self.find(kind, **{"graph_id" if kind is Graph else "id": row_id})
        return found[-1] if found else None

    def beginning_with(self, kind: type[R], start: str) -> list[R]:
        """Return the rows of a kind whose id begins so."""
        table = METADATA.tables[kind.table]
        key = table.c["graph_id" if kind is Graph else "id"]
        begins = key.startswith(start, autoescape=True)
        return self._read(kind, sa.select(table).where(begins).order_by(key))

    def _read(self, kind: type[R], query: sa.Select[Any]) -> list[R]:
        with self.reading() as connection:
            return [from_columns(kind, found) for found in connection.execute(query).mappings()]

    def counts(self) -> dict[str, int]:
        """Return the number of rows of each table."""
        with self.reading() as connection:
            return {
                name: connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
                for name, table in sorted(METADATA.tables.items())
                if name != "maintenance"
            }

    def finish(self, trial: StoredTrial, *traces: Trace, seconds: float | None = None) -> None:
        """End a trial with its traces, all at once; the first one is what it is known by.

        Raises PycError (LEASE_LOST) where the trial is no longer its worker's; the traces are then
        not added.
        """
        with self.writing() as connection:
            for trace in traces:
                _add(connection, METADATA.tables[trace.table], columns_of(trace))
            known = traces[0].id if traces else None
            done: dict[str, Any] = {"trace_id": known, "seconds": seconds}
            self._change(connection, trial, state=DONE, **done)

    def learned(self, program: str, policy: str, env_id: str) -> dict[str, Any]:
        """Return what `keep_learned` was given last; {} for nothing."""
        given = (LEARNED.c.program == program, LEARNED.c.policy == policy)
        query = sa.select(LEARNED.c.routes).where(*given, LEARNED.c.env_id == env_id)
        with self.reading() as connection:
            found = connection.execute(query).scalar_one_or_none()
        return {} if found is None else parse_json(found)

    def keep_learned(
        self, program: str, policy: str, env_id: str, routes: Mapping[str, Any]
    ) -> None:
        """Keep what a selector learned of a program, in place of what was kept before."""
        with self.writing() as connection:
            key = {"program": program, "policy": policy, "env_id": env_id}
            values = {"routes": canonical(routes), "at": self.moment(connection)}
            insert = _INSERTS[connection.dialect.name](LEARNED).values(**key, **values)
            connection.execute(insert.on_conflict_do_update(index_elements=[*key], set_=values))

    def add_trials(
        self,
        study_id: str,
        configs: Sequence[Mapping[str, Any]],
        predicted: Sequence[float | None] = (),
    ) -> int:
        """Append configurations that a study lacks, in order; how many were new."""
        with self.writing() as connection:
            if connection.dialect.name == "postgresql":
                # Two proposers at once would take the same numbers.
                lock = sa.text("SELECT pg_advisory_xact_lock(hashtext(:study))")
                connection.execute(lock, {"study": study_id})
            mine = sa.select(TRIALS.c.config_hash).where(TRIALS.c.study_id == study_id)
            known = set(connection.execute(mine).scalars())
            rows = []
            for place, config in enumerate(configs):
                name = digest(config)
                if name not in known:
                    known.add(name)
                    new = {"study_id": study_id, "config_hash": name, "number": len(known) - 1}
                    new |= {"config": canonical(config), "state": WAITING, "attempt": 0}
                    new |= {"owner": "", "reason": ""}
                    rows.append({**new, "predicted": predicted[place] if predicted else None})
            if rows:
                connection.execute(sa.insert(TRIALS), rows)
            return len(rows)

    def claim(self, study_id: str, owner: str, seconds: float) -> StoredTrial | None:
        """Lease the first trial that waits or whose lease expired; None where there is none.

        A trial whose last attempt expired is failed on the way.
        """
        with self.writing() as connection:
            now = self._now(connection)
            expired = sa.and_(TRIALS.c.state == LEASED, TRIALS.c.lease_until < now)
            in_study = TRIALS.c.study_id == study_id
            lost = sa.and_(in_study, expired, TRIALS.c.attempt >= MAX_ATTEMPTS)
            connection.execute(sa.update(TRIALS).where(lost).values(state=FAILED, reason=_GONE))
            free = sa.and_(in_study, sa.or_(TRIALS.c.state == WAITING, expired))
            query = sa.select(TRIALS).where(free).order_by(TRIALS.c.number).limit(1)
            # On SQLite the transaction holds the only lock there is.
            query = query.with_for_update(skip_locked=True)
            found = connection.execute(query).mappings().first()
            if found is None:
                return None
            taken = {"state": LEASED, "owner": owner, "lease_until": now + seconds}
            taken["attempt"] = found["attempt"] + 1
            one = sa.and_(in_study, TRIALS.c.config_hash == found["config_hash"])
            connection.execute(sa.update(TRIALS).where(one).values(taken))
            return _trial({**found, **taken})

    def renew(self, trial: StoredTrial, seconds: float) -> None:
        """Hold a trial for so long from now. Raises PycError (LEASE_LOST)."""
        with self.writing() as connection:
            self._change(connection, trial, lease_until=self._now(connection) + seconds)

    def fail(self, trial: StoredTrial, reason: str, seconds: float | None = None) -> None:
        """End a trial without a number. Raises PycError (LEASE_LOST)."""
        with self.writing() as connection:
            self._change(connection, trial, state=FAILED, reason=reason, seconds=seconds)

    def release(self, trial: StoredTrial) -> None:
        """Give a trial back that was not measured. Raises PycError (LEASE_LOST)."""
        with self.writing() as connection:
            self._change(connection, trial, state=WAITING, lease_until=None)

    def trials(self, study_id: str) -> list[StoredTrial]:
        """Return the trials of a study in order."""
        query = sa.select(TRIALS).where(TRIALS.c.study_id == study_id).order_by(TRIALS.c.number)
        with self.reading() as connection:
            return [_trial(row) for row in connection.execute(query).mappings()]

    def _change(self, connection: sa.Connection, trial: StoredTrial, **values: Any) -> None:
        """Change a trial that its worker still holds. Raises PycError (LEASE_LOST)."""
        held = sa.and_(
            TRIALS.c.state == LEASED,
            *(
                TRIALS.c[name] == getattr(trial, name)
                for name in ("study_id", "config_hash", "owner", "attempt")
            ),
        )
        if connection.execute(sa.update(TRIALS).where(held).values(values)).rowcount != 1:
            raise PycError(
                ReasonCode.LEASE_LOST,
                f"trial {trial.number} of study {trial.study_id[:12]}: expected the lease of "
                f"{trial.owner!r}, attempt {trial.attempt}, got a trial that is done or another "
                "worker's; drop the result",
            )

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
        with self._moving(impl_id, scope, lane, decided_by) as move:
            return move.to(StateStep(state, reason, verdict_id))

    def walk(
        self, impl_id: str, scope: Scope, lane: str, steps: Sequence[StateStep], decided_by: str
    ) -> list[RecipeState]:
        """Take a recipe through several states at once; a promotion suspends what it replaces.

        Raises PycError as `transition`, NOT_PROMOTED for a second promotion of a structure and
        toolchain on one day (UTC) in the stable lane.
        """
        with self._moving(impl_id, scope, lane, decided_by) as move:
            return [move.promote(s) if s.state == State.PROMOTED else move.to(s) for s in steps]

    def rollback(self, impl_id: str, scope: Scope, lane: str = STABLE, by: str = "") -> RecipeState:
        """Reverse the last transition of a recipe, and what a promotion had replaced comes back.

        Raises PycError (BAD_ARGUMENT) without one, for a quarantine, which nothing lifts, for a
        rollback, which no rollback reverses, and where another recipe took the place since.
        """
        with self._moving(impl_id, scope, lane, by) as move:
            return move.back()

    @contextmanager
    def _moving(self, impl_id: str, scope: Scope, lane: str, by: str) -> "Iterator[_Move]":
        with self.writing() as connection:
            yield _Move(connection, impl_id, scope, lane, by, self.moment(connection))

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


@dataclass(frozen=True)
class _Move:
    """Transitions of one recipe in a scope and lane, in one transaction."""

    connection: sa.Connection
    impl_id: str
    scope: Scope
    lane: str
    by: str
    at: str

    @property
    def _there(self) -> dict[str, str]:
        return {"lane": self.lane, **vars(self.scope)}

    def _hold(self) -> None:
        """Keep others from moving the same recipe until the transaction ends."""
        held = sa.select(IMPLEMENTATIONS.c.id).where(IMPLEMENTATIONS.c.id == self.impl_id)
        self.connection.execute(held.with_for_update())

    def to(self, step: StateStep) -> RecipeState:
        self._hold()
        last = self._last()
        present = State.NEW if last is None else last["to_state"]
        if self.lane not in LANES or step.state not in FOLLOWERS[present]:
            raise self._refused(
                f"a lane of {', '.join(LANES)} and, after {present or 'nothing'}, one of "
                f"{', '.join(FOLLOWERS[present]) or 'none'}, got {str(step.state)!r} "
                f"in {self.lane!r}"
            )
        made = self._append(self.impl_id, present, step.state, step.reason, step.verdict_id)
        if present == State.PROMOTED:
            self._restore()
        return made

    def promote(self, step: StateStep) -> RecipeState:
        """Take the place of what is in use, which is suspended."""
        # Before the recipe itself: whoever waits for the structure holds no recipe.
        self._hold_structure()
        day = self.at.partition("T")[0]
        # Promotions rest on a verdict; a rollback, which names none, does not count.
        query = sa.select(TRANSITIONS.c.impl_id).where(
            TRANSITIONS.c.lane == self.lane,
            TRANSITIONS.c.to_state == State.PROMOTED,
            TRANSITIONS.c.structure == self.scope.structure,
            TRANSITIONS.c.toolchain == self.scope.toolchain,
            TRANSITIONS.c.verdict_id.is_not(None),
            TRANSITIONS.c.at.startswith(day),
        )
        earlier = self.connection.execute(query).scalars().first()
        if self.lane == STABLE and earlier is not None:
            raise PycError(
                ReasonCode.NOT_PROMOTED,
                f"recipe {self.impl_id[:12]}: expected no promotion of this structure and "
                f"toolchain on {day} (UTC), got one of {earlier[:12]}; promote again on another "
                "day, or after a toolchain change",
            )
        for other in self._others():
            self._append(other, State.PROMOTED, State.SUSPENDED, f"replaced by {self.impl_id}")
        return self.to(step)

    def back(self) -> RecipeState:
        """Append the reverse of the last transition."""
        self._hold()
        self._hold_structure()
        last = self._last()
        before, after, reason = (
            (State.NEW, State.NEW, "")
            if last is None
            else (last[n] for n in ("from_state", "to_state", "reason"))
        )
        if (
            last is None
            or before == State.NEW
            or after == State.QUARANTINED
            or reason.startswith(_ROLLBACK)
        ):
            found = "none" if last is None else f"its last state, {after} ({reason})"
            raise self._refused(f"a transition to reverse in lane {self.lane!r}, got {found}")
        others = self._others()
        if before == State.PROMOTED and others:
            raise self._refused(
                f"no other recipe in use in lane {self.lane!r}, got {others[0][:12]}; roll that "
                "back"
            )
        state = self._append(self.impl_id, after, before, f"{_ROLLBACK} {last['seq']}")
        if after == State.PROMOTED:
            self._restore()
        return state

    def _refused(self, expected: str) -> PycError:
        text = f"recipe {self.impl_id[:12]}: expected {expected}"
        return PycError(ReasonCode.BAD_ARGUMENT, text)

    def _hold_structure(self) -> None:
        """Keep others from promoting for the same structure until the transaction ends."""
        if self.connection.dialect.name == "postgresql":
            held = {"scope": f"promotion {self.scope.structure} {self.scope.toolchain}"}
            lock = sa.text("SELECT pg_advisory_xact_lock(hashtext(:scope))")
            self.connection.execute(lock, held)

    def _others(self) -> list[str]:
        """Return the other recipes that are in use here."""
        there = _present(self.connection, {"state": State.PROMOTED, **self._there})
        return [state.impl_id for state in there if state.impl_id != self.impl_id]

    def _restore(self) -> None:
        """Take what a promotion had replaced into use again."""
        for other in _present(self.connection, {"state": State.SUSPENDED, **self._there}):
            if other.reason == f"replaced by {self.impl_id}":
                why = f"back in place of {self.impl_id}"
                self._append(other.impl_id, State.SUSPENDED, State.PROMOTED, why)

    def _last(self) -> Mapping[Any, Any] | None:
        there = {"impl_id": self.impl_id, **self._there}
        where = [TRANSITIONS.c[name] == value for name, value in there.items()]
        query = sa.select(TRANSITIONS).where(*where).order_by(TRANSITIONS.c.seq.desc()).limit(1)
        return self.connection.execute(query).mappings().first()

    def _append(
        self, impl_id: str, before: str, after: str, reason: str, verdict_id: str | None = None
    ) -> RecipeState:
        values = {"impl_id": impl_id, **self._there, "from_state": before, "to_state": after}
        values |= {"reason": reason, "decided_by": self.by, "at": self.at}
        insert = sa.insert(TRANSITIONS).values(**values, verdict_id=verdict_id)
        seq = self.connection.execute(insert.returning(TRANSITIONS.c.seq)).scalar_one()
        return RecipeState(impl_id, self.scope, self.lane, after, reason, self.by, self.at, seq)


def _present(connection: sa.Connection, equal: Mapping[str, str]) -> list[RecipeState]:
    """Return the view's rows whose columns equal these, oldest first."""
    where = [VIEW.c[name] == value for name, value in equal.items()]
    query = sa.select(VIEW).where(*where).order_by(VIEW.c.seq)
    return [_state(row, row["state"]) for row in connection.execute(query).mappings()]


def _state(row: Mapping[Any, Any], state: str) -> RecipeState:
    scope = Scope(*(row[name] for name in ("structure", "cluster", "hardware", "toolchain")))
    rest = (row[name] for name in ("reason", "decided_by", "at", "seq"))
    return RecipeState(row["impl_id"], scope, row["lane"], state, *rest)


def _trial(row: Mapping[Any, Any]) -> StoredTrial:
    return StoredTrial(**{**row, "config": parse_json(row["config"])})


def columns_of(row: EvidenceRow) -> dict[str, Any]:
    """Return a row as a database keeps it, with its id and the figures that queries go by."""
    own = {} if isinstance(row, Graph) else {"id": row.id}
    figures = row.figures if isinstance(row, Trace) else {}
    return {**own, **{f.name: _stored(getattr(row, f.name)) for f in fields(row)}, **figures}  # type: ignore[arg-type]


def _stored(value: Any) -> Any:
    """Return a field as a database keeps it: samples as bytes, what has parts as canonical JSON."""
    if isinstance(value, np.ndarray):
        return value.tobytes()
    return canonical(value) if isinstance(value, Mapping | tuple) else value


def _add(connection: sa.Connection, table: sa.Table, columns: Mapping[str, Any]) -> None:
    """Insert, or check that the stored row is equal."""
    insert = _INSERTS[connection.dialect.name](table).values(**columns)
    if connection.execute(insert.on_conflict_do_nothing()).rowcount == 1:
        return
    keys = [key == columns[key.name] for key in table.primary_key]
    found = connection.execute(sa.select(table).where(*keys)).mappings().one()
    noted = _NOTED.get(table.name, frozenset())
    odd = [
        n
        for n, v in columns.items()
        if n not in noted and (bytes(found[n]) if isinstance(v, bytes) else found[n]) != v
    ]
    if odd:
        raise PycError(
            ReasonCode.EVIDENCE_CONFLICT,
            f"{table.name} {str(next(iter(columns.values())))[:20]}: expected the `{odd[0]}` that "
            f"is stored, {str(found[odd[0]])[:80]!r}, got {str(columns[odd[0]])[:80]!r}; facts are "
            "added under new ids, never changed",
        )


def from_columns(kind: type[R], found: Mapping[Any, Any]) -> R:
    """Return a row from its columns. Raises ValueError for columns that are no such row."""
    values: dict[str, Any] = {}
    for name, hint in _hints(kind).items():
        value = found[name]
        if get_origin(hint) in (tuple, Mapping):
            value = parse_json(value)
            value = tuple(value) if isinstance(value, list) else value
        elif hint is np.ndarray:
            value = samples(np.frombuffer(bytes(value), "<f8"))
        values[name] = bytes(value) if isinstance(value, memoryview) else value
    return kind(**values)


@cache
def _hints(kind: type[EvidenceRow]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {f.name: hints[f.name] for f in fields(kind)}  # type: ignore[arg-type]


def problems(store: EvidenceStore) -> Iterator[str]:
    """Yield the faults of the rows: ids and figures that do not follow from the contents.

    Every row is read again; on SQLite the file's own structure is checked first.
    """
    with store.reading() as connection:
        if connection.dialect.name == "sqlite":
            for (problem,) in connection.exec_driver_sql("PRAGMA integrity_check"):
                if problem != "ok":
                    yield f"file: {problem}"
        for kind in ROWS:
            table = METADATA.tables[kind.table]
            found = connection.execution_options(yield_per=_BATCH).execute(sa.select(table))
            for columns in found.mappings():
                name = columns["graph_id" if kind is Graph else "id"]
                try:
                    row = from_columns(kind, columns)
                    wrong = _wrong(row, columns)
                except (ValueError, TypeError, KeyError) as error:
                    wrong = str(error)
                if wrong:
                    yield f"{kind.table} {name}: {wrong}"


def _wrong(row: EvidenceRow, columns: sa.RowMapping) -> str:
    if isinstance(row, Graph):
        named = hashlib.sha256(row.text.encode()).hexdigest()
        odd = row.kind == "work" and not row.graph_id.endswith(named)
        return "expected the id that its text has" if odd else ""
    if row.id != columns["id"]:
        return "expected the id that its contents have"
    if isinstance(row, Trace) and any(columns[n] != v for n, v in row.figures.items()):
        return "expected the quantiles that its samples have"
    return ""


@dataclass(frozen=True)
class Collected:
    """The rows that `collect` removed or would remove: traces, and of which toolchains."""

    traces: int
    toolchains: tuple[str, ...]


def collect(store: EvidenceStore, keep: int, dry_run: bool = False) -> Collected:
    """Remove the traces of all but the `keep` toolchains that were measured last.

    Traces of trials, and of sessions that a verdict names, stay: decisions rest on them.
    """
    with store.writing() as connection:
        last = sa.func.max(SESSIONS.c.started)
        by_age = (
            sa.select(ENVIRONMENTS.c.toolchain)
            .join(SESSIONS, SESSIONS.c.env_id == ENVIRONMENTS.c.id)
            .group_by(ENVIRONMENTS.c.toolchain)
            .order_by(last.desc(), ENVIRONMENTS.c.toolchain)
        )
        old = tuple(connection.execute(by_age).scalars().all()[keep:])
        judged: set[str] = set()
        for text in connection.execute(sa.select(VERDICTS.c.sessions)).scalars():
            judged.update(parse_json(text))
        sessions = (
            sa.select(SESSIONS.c.id)
            .join(ENVIRONMENTS, SESSIONS.c.env_id == ENVIRONMENTS.c.id)
            .where(ENVIRONMENTS.c.toolchain.in_(old))
        )
        free = [s for s in connection.execute(sessions).scalars() if s not in judged]
        used = sa.select(TRIALS.c.trace_id).where(TRIALS.c.trace_id.is_not(None))
        removed = 0
        connection.execute(sa.insert(MAINTENANCE).values(reason="collect"))
        for start in range(0, len(free), _BATCH):
            some = TRACES.c.session_id.in_(free[start : start + _BATCH])
            where = sa.and_(some, TRACES.c.id.not_in(used))
            removed += connection.execute(sa.delete(TRACES).where(where)).rowcount
        connection.execute(sa.delete(MAINTENANCE))
        if dry_run:
            connection.rollback()
    return Collected(removed, old)
