"""Upkeep of a benchmark database: check its rows, and remove unreferenced ones."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import sqlalchemy as sa

from pyc_mlir.dialects.util.json_input import parse_json
from pyc_mlir.lab.evidence.database.store import EvidenceStore, from_columns
from pyc_mlir.lab.evidence.database.tables import (
    ENVIRONMENTS,
    MAINTENANCE,
    METADATA,
    SESSIONS,
    TRACES,
    TRIALS,
    VERDICTS,
)
from pyc_mlir.lab.evidence.rows import ROWS, EvidenceRow, Graph, Trace

_BATCH = 1000


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
