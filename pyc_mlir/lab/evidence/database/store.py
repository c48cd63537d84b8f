"""`EvidenceStore`: the benchmark database as an API of rows, trials and transitions.

    with Store.open("sqlite:///pyc.db") as store:
        env = store.add_place(current_place())
        store.add(graph, workload, implementation, session)
        store.add(*traces)                          # on return they are committed
        trial = store.claim(study_id, "worker-1", seconds=60)
        store.finish(trial, trace)
        store.transition(implementation.id, scope, lane, "candidate", "tuner", "proposed")

Every method is one transaction; what it returned for is kept, whatever is killed afterwards.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, TypeVar

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.lab.evidence.database import lanes, trials
from pyc_mlir.lab.evidence.database.engine import READ, as_pyc_errors, connect
from pyc_mlir.lab.evidence.database.tables import ENVIRONMENTS, LEARNED, METADATA, MUTABLE, TRIALS
from pyc_mlir.lab.evidence.database.trials import StoredTrial
from pyc_mlir.lab.evidence.rows import (
    JSON,
    ROWS,
    SAMPLED,
    EvidenceRow,
    Graph,
    Trace,
    samples,
    to_columns,
)
from pyc_mlir.lab.evidence.states import STABLE, RecipeState, Scope, StateStep
from pyc_mlir.measure.environment import Environments
from pyc_mlir.util.checksum import canonical

R = TypeVar("R", bound=EvidenceRow)
# Facts that are noted when a row is first added, and are no part of what it is.
_NOTED: Mapping[str, frozenset[str]] = {
    "implementations": frozenset(
        ("parent", "origin", "artifact_key", "compile_seconds", "arena_bytes", "constant_bytes")
    ),
    "studies": frozenset(("budget",)),
}
_INSERTS: Mapping[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


class EvidenceStore:
    """A connection to a benchmark database; safe to use in threads, one for each process.

    clock: Unix time in seconds for leases and moments; None is the database's own (on SQLite this
    machine's), so that workers on several machines agree.
    """

    def __init__(self, engine: sa.Engine, clock: Callable[[], float] | None = None) -> None:
        self._engine, self._clock, self._process = engine, clock, os.getpid()

    @staticmethod
    def open(url: str, clock: Callable[[], float] | None = None) -> "EvidenceStore":
        """Open or make a database. Raises PycError (DATABASE_UNUSABLE) as `connect`."""
        return EvidenceStore(connect(url), clock)

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    def __enter__(self) -> "EvidenceStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The database's URL without its password."""
        return self._engine.url.render_as_string(hide_password=True)

    # Rows

    def add(self, *rows: EvidenceRow) -> list[str]:
        """Add rows in one transaction; return their ids. What is there already stays as it is.

        Raises PycError (EVIDENCE_CONFLICT) for other contents under a known id, such as another
        text of a graph, and for a row that refers to one that is not there.
        """
        with self.writing() as connection:
            for row in rows:
                _add(connection, METADATA.tables[row.table], _columns(row))
        return [row.id for row in rows]

    def add_new(self, rows: Iterable[EvidenceRow]) -> None:
        """Add many rows that are not there yet, in one transaction, grouped by kind.

        Faster than `add` by far. Raises PycError (EVIDENCE_CONFLICT) where one is there.
        """
        kinds: dict[str, list[dict[str, Any]]] = {}
        for row in rows:
            kinds.setdefault(row.table, []).append(_columns(row))
        with self.writing() as connection:
            for kind in ROWS:
                if kind.table in kinds:
                    connection.execute(sa.insert(METADATA.tables[kind.table]), kinds[kind.table])

    def add_place(self, place: Environments) -> str:
        """Add an environment; return its id."""
        columns = {
            "id": place.id,
            "hardware": place.hardware,
            "toolchain": place.toolchain,
            "context": place.context,
            "machine": place.machine,
            "facts": canonical(place.facts()),
        }
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
        where = [
            table.c[name] == (canonical(value) if name in JSON else value)
            for name, value in equal.items()
        ]
        query = sa.select(table).where(*where).order_by(*table.primary_key)
        with self.reading() as connection:
            return [from_columns(kind, found) for found in connection.execute(query).mappings()]

    def get(self, kind: type[R], row_id: str) -> R | None:
        """Return the row with an id; None where there is none."""
        found = self.find(kind, **{"graph_id" if kind is Graph else "id": row_id})
        return found[-1] if found else None

    def beginning_with(self, kind: type[R], start: str) -> list[R]:
        """Return the rows of a kind whose id begins so."""
        table = METADATA.tables[kind.table]
        key = table.c["graph_id" if kind is Graph else "id"]
        query = sa.select(table).where(key.startswith(start, autoescape=True)).order_by(key)
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

    # Trials

    def add_trials(
        self,
        study_id: str,
        configs: Sequence[Mapping[str, Any]],
        predicted: Sequence[float | None] = (),
    ) -> int:
        """Append configurations that a study lacks; how many were new."""
        with self.writing() as connection:
            return trials.add(connection, study_id, configs, predicted)

    def claim(self, study_id: str, owner: str, seconds: float) -> StoredTrial | None:
        """Lease the next trial of a study for so long; None where none is free."""
        with self.writing() as connection:
            return trials.claim(connection, study_id, owner, seconds, self._now(connection))

    def renew(self, trial: StoredTrial, seconds: float) -> None:
        """Hold a trial for so long from now. Raises PycError (LEASE_LOST)."""
        with self.writing() as connection:
            trials.change(connection, trial, lease_until=self._now(connection) + seconds)

    def finish(self, trial: StoredTrial, *traces: Trace, seconds: float | None = None) -> None:
        """End a trial with its traces, all at once; the first one is what it is known by.

        Raises PycError (LEASE_LOST) where the trial is no longer its worker's; the traces are then
        not added.
        """
        with self.writing() as connection:
            for trace in traces:
                _add(connection, METADATA.tables[trace.table], _columns(trace))
            known = traces[0].id if traces else None
            done: dict[str, Any] = {"trace_id": known, "seconds": seconds}
            trials.change(connection, trial, state=trials.DONE, **done)

    def fail(self, trial: StoredTrial, reason: str, seconds: float | None = None) -> None:
        """End a trial without a number. Raises PycError (LEASE_LOST)."""
        with self.writing() as connection:
            trials.change(connection, trial, state=trials.FAILED, reason=reason, seconds=seconds)

    def release(self, trial: StoredTrial) -> None:
        """Give a trial back that was not measured. Raises PycError (LEASE_LOST)."""
        with self.writing() as connection:
            trials.change(connection, trial, state=trials.WAITING, lease_until=None)

    def trials(self, study_id: str) -> list[StoredTrial]:
        """Return the trials of a study in order."""
        query = sa.select(TRIALS).where(TRIALS.c.study_id == study_id).order_by(TRIALS.c.number)
        with self.reading() as connection:
            return [trials.of_row(row) for row in connection.execute(query).mappings()]

    # States of recipes

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
        """Take a recipe to another state.

        Raises PycError: BAD_ARGUMENT for a state that may not follow the present one,
        EVIDENCE_CONFLICT for an unknown recipe or verdict.
        """
        with self.writing() as connection:
            given = (lane, state, decided_by, reason, verdict_id, self.moment(connection))
            return lanes.move(connection, impl_id, scope, *given)

    def walk(
        self, impl_id: str, scope: Scope, lane: str, steps: Sequence[StateStep], decided_by: str
    ) -> list[RecipeState]:
        """Take a recipe through several states at once; a promotion suspends what it replaces.

        Raises PycError as `transition`, NOT_PROMOTED for a second promotion on one day.
        """
        with self.writing() as connection:
            given = (steps, decided_by, self.moment(connection))
            return lanes.walk(connection, impl_id, scope, lane, *given)

    def rollback(self, impl_id: str, scope: Scope, lane: str = STABLE, by: str = "") -> RecipeState:
        """Reverse the last transition of a recipe, and what a promotion had replaced comes back.

        Raises PycError (BAD_ARGUMENT) without one that can be reversed.
        """
        with self.writing() as connection:
            return lanes.reverse(connection, impl_id, scope, lane, by, self.moment(connection))

    def states(self, **equal: str) -> list[RecipeState]:
        """Return the present states, those whose columns equal these: ``lane="stable"``."""
        with self.reading() as connection:
            return lanes.present(connection, equal)

    def history(self, impl_id: str) -> list[RecipeState]:
        """Return all transitions of a recipe in order, each as the state that it led to."""
        with self.reading() as connection:
            return lanes.history(connection, impl_id)

    # Selectors in service

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

    # Transactions

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Open a transaction that may write. Raises PycError for what the database refuses."""
        with as_pyc_errors(self._engine.url), self._connection() as connection, connection.begin():
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Open a transaction that only reads; on SQLite it waits for no writer."""
        with as_pyc_errors(self._engine.url), self._connection() as connection:
            reader = connection.execution_options(**READ)
            with reader.begin():
                yield reader

    @contextmanager
    def _connection(self) -> Iterator[sa.Connection]:
        if self._process != os.getpid():
            # The parent's connections stay open there; here they would mix two processes' words.
            self._engine.dispose(close=False)
            self._process = os.getpid()
        with self._engine.connect() as connection:
            yield connection

    def _now(self, connection: sa.Connection) -> float:
        if self._clock is not None:
            return self._clock()
        if connection.dialect.name == "postgresql":
            query = sa.text("SELECT extract(epoch FROM clock_timestamp())")
            return float(connection.execute(query).scalar_one())
        return time.time()

    def moment(self, connection: sa.Connection) -> str:
        """Now as a UTC text that sorts by time."""
        at = datetime.fromtimestamp(self._now(connection), UTC)
        return at.isoformat(timespec="microseconds")


def _columns(row: EvidenceRow) -> dict[str, Any]:
    """Return a row as a database keeps it, with its id and the figures that queries go by."""
    own = {} if isinstance(row, Graph) else {"id": row.id}
    figures = row.figures if isinstance(row, Trace) else {}
    return {**own, **to_columns(row), **figures}


def _add(connection: sa.Connection, table: sa.Table, columns: Mapping[str, Any]) -> None:
    """Insert, or check that the stored row is equal."""
    insert = _INSERTS[connection.dialect.name](table).values(**columns)
    if connection.execute(insert.on_conflict_do_nothing()).rowcount == 1:
        return
    keys = [key == columns[key.name] for key in table.primary_key]
    found = connection.execute(sa.select(table).where(*keys)).mappings().one()
    noted = _NOTED.get(table.name, frozenset())
    odd = [n for n, v in columns.items() if n not in noted and not _same(found[n], v)]
    if odd:
        raise PycError(
            ReasonCode.EVIDENCE_CONFLICT,
            f"{table.name} {str(next(iter(columns.values())))[:20]}: expected the `{odd[0]}` that "
            f"is stored, {str(found[odd[0]])[:80]!r}, got {str(columns[odd[0]])[:80]!r}; facts are "
            "added under new ids, never changed",
        )


def _same(stored: Any, given: Any) -> bool:
    return bytes(stored) == given if isinstance(given, bytes) else stored == given


def from_columns(kind: type[R], found: Mapping[Any, Any]) -> R:
    """Return a row from its columns. Raises ValueError for columns that are no such row."""
    values: dict[str, Any] = {}
    for f in fields(kind):  # type: ignore[arg-type]
        value = found[f.name]
        if f.name in JSON:
            value = parse_json(value)
            value = tuple(value) if isinstance(value, list) else value
        elif f.name in SAMPLED and kind.table == Trace.table:
            value = samples(np.frombuffer(bytes(value), "<f8"))
        values[f.name] = bytes(value) if isinstance(value, memoryview) else value
    return kind(**values)


APPEND_ONLY = tuple(name for name in METADATA.tables if name not in MUTABLE)
