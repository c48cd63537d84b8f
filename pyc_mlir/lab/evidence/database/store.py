"""`EvidenceStore`: the benchmark database as an API of rows, trials and transitions.

    with EvidenceStore.open("sqlite:///pyc.db") as store:
        env = store.add_place(current_place())
        store.add(graph, workload, implementation, session)
        store.add(*traces)                          # on return they are committed
        trial = store.claim(study_id, "worker-1", seconds=60)
        store.finish(trial, trace)
        store.transition(implementation.id, scope, lane, "candidate", "tuner", "proposed")

Every method is one transaction; what it returned for is kept, whatever is killed afterwards.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.lab.evidence.database.lanes import RecipeStates
from pyc_mlir.lab.evidence.database.tables import ENVIRONMENTS, LEARNED, METADATA, MUTABLE
from pyc_mlir.lab.evidence.database.trials import DONE, StoredTrial, TrialQueue
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


class EvidenceStore(TrialQueue, RecipeStates):
    """All rows of a benchmark database."""

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
        where = [
            table.c[name] == (canonical(value) if name in JSON else value)
            for name, value in equal.items()
        ]
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
                _add(connection, METADATA.tables[trace.table], _columns(trace))
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
