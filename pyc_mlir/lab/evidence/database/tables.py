"""The tables, their indexes, triggers and views, for SQLite and PostgreSQL alike.

The tables of rows follow from the rows' fields and types (`rows.py`). All tables but `trials` and
`learned` are append-only: triggers refuse updates and deletes, save while a transaction of
`collect` has a row in `maintenance`. JSON is stored as canonical text, so that equal data are equal
texts in both engines.

`STEPS[n]` takes a database from version n to n + 1. A step is never changed once it was released:
databases have gone through it. Each runs in a transaction, in the order of the list, on both
engines.
"""

from collections.abc import Callable
from dataclasses import fields
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)

from pyc_mlir.lab.evidence.rows import ROWS, EvidenceRow, Graph, Trace

METADATA = MetaData()
MUTABLE = ("trials", "learned", "maintenance")
# Columns by the type of a field; what is in no table is JSON, as text.
_TYPES: dict[Any, Any] = {
    int: BigInteger, float: Double, bytes: LargeBinary, np.ndarray: LargeBinary,
}  # fmt: skip
# What a column of a name refers to.
_REFERS = {
    "env_id": "environments.id",
    "session_id": "sessions.id",
    "workload_id": "workloads.id",
    "study_id": "studies.id",
    "verdict_id": "verdicts.id",
    "trace_id": "benchmark_traces.id",
    **dict.fromkeys(("impl_id", "candidate", "incumbent", "parent"), "implementations.id"),
}
_INDEXED = {
    ("sessions", "env_id"), ("session_ends", "session_id"), ("benchmark_traces", "session_id"),
    ("benchmark_traces", "impl_id"), ("predictions", "impl_id"), ("verdicts", "candidate"),
    ("transitions", "impl_id"), ("feedback", "impl_id"),
}  # fmt: skip
# Quantiles of a trace, for queries.
_FIGURES = ("p50", "p90", "p95", "min", "cpu_p50")


def _key(name: str = "id") -> Column[Any]:
    return Column(name, Text, primary_key=True)


def _column(table: str, name: str, kind: Any, nullable: bool = False) -> Column[Any]:
    refers = [ForeignKey(_REFERS[name])] if name in _REFERS else []
    indexed = (table, name) in _INDEXED
    return Column(name, _TYPES.get(kind, Text), *refers, nullable=nullable, index=indexed)


def _columns(table: str, kind: Any, *names: str, nullable: bool = False) -> list[Column[Any]]:
    return [_column(table, name, kind, nullable) for name in names]


def _table_of(kind: type[EvidenceRow]) -> Table:
    """Add the table of a kind of rows: graphs have a key of two columns, the others their id."""
    hints, parts = get_type_hints(kind), {}
    for f in fields(kind):  # type: ignore[arg-type]
        hint, optional = hints[f.name], False
        if get_origin(hint) is UnionType:
            (hint,) = (h for h in get_args(hint) if h is not NoneType)
            optional = True
        parts[f.name] = _column(kind.table, f.name, hint, optional)
    if kind is Graph:
        number = Column("normalizer", BigInteger, primary_key=True, autoincrement=False)
        key = {"graph_id": _key("graph_id"), "normalizer": number}
        return Table(kind.table, METADATA, *{**key, **parts, **key}.values())
    made = Table(kind.table, METADATA, _key(), *parts.values())
    if "graph_id" in parts:
        columns = ("graph_id", "normalizer")
        refers = tuple(f"{Graph.table}.{name}" for name in columns)
        made.append_constraint(ForeignKeyConstraint(columns, refers))
    return made


# What the tables below refer to must be known.
GRAPHS = _table_of(Graph)
Index("graphs_by_structure", GRAPHS.c.structure_id)
ENVIRONMENTS = Table(
    "environments",
    METADATA,
    _key(),
    *_columns("environments", str, "hardware", "toolchain", "context", "machine", "facts"),
    Index("environments_by_hash", "hardware", "toolchain"),
)
for _kind in ROWS[1:]:
    _table_of(_kind)
IMPLEMENTATIONS = METADATA.tables["implementations"]
SESSIONS, TRACES = METADATA.tables["sessions"], METADATA.tables[Trace.table]
VERDICTS = METADATA.tables["verdicts"]
Index("implementations_by_graph", IMPLEMENTATIONS.c.graph_id)
for _column_of in (
    *_columns(Trace.table, int, "n"),
    *_columns(Trace.table, float, *_FIGURES, nullable=True),
):
    TRACES.append_column(_column_of)
TRIALS = Table(
    "trials",
    METADATA,
    Column("study_id", Text, ForeignKey("studies.id"), primary_key=True),
    _key("config_hash"),
    *_columns("trials", int, "number", "attempt"),
    *_columns("trials", str, "config", "state", "owner", "reason"),
    *_columns("trials", float, "predicted", "lease_until", "seconds", nullable=True),
    *_columns("trials", str, "trace_id", nullable=True),
    Index("trials_by_state", "study_id", "state", "number"),
)
TRANSITIONS = Table(
    "transitions",
    METADATA,
    # Integers that count up by themselves: SQLite does that for INTEGER keys only.
    Column(
        "seq", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    ),
    *_columns("transitions", str, "impl_id", "structure", "cluster", "hardware", "toolchain"),
    *_columns("transitions", str, "lane", "from_state", "to_state", "reason", "decided_by", "at"),
    *_columns("transitions", str, "verdict_id", nullable=True),
    sqlite_autoincrement=True,
)
# What selectors learned in service: of a program by the hash of its code, under a policy.
LEARNED = Table(
    "learned",
    METADATA,
    _key("program"),
    _key("policy"),
    Column("env_id", Text, ForeignKey("environments.id"), primary_key=True),
    *_columns("learned", str, "routes", "at"),
)
MAINTENANCE = Table("maintenance", METADATA, _key("reason"))
SCHEMA_VERSION = Table(
    "schema_version",
    METADATA,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    *_columns("schema_version", str, "at"),
)
# The newest transition of a recipe in a scope and lane is its state.
STATES_VIEW = """
CREATE VIEW recipe_states AS
SELECT t.seq, t.impl_id, t.structure, t.cluster, t.hardware, t.toolchain, t.lane,
       t.to_state AS state, t.reason, t.decided_by, t.at
FROM transitions t
WHERE t.seq = (
  SELECT max(u.seq) FROM transitions u
  WHERE u.impl_id = t.impl_id AND u.structure = t.structure AND u.cluster = t.cluster
    AND u.hardware = t.hardware AND u.toolchain = t.toolchain AND u.lane = t.lane)
"""
_POSTGRES_FUNCTION = """
CREATE FUNCTION refuse_change() RETURNS trigger AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM maintenance) THEN
    RAISE EXCEPTION '% is append-only', TG_TABLE_NAME;
  END IF;
  RETURN OLD;
END $$ LANGUAGE plpgsql
"""


def append_only(dialect: str) -> list[str]:
    """Statements that make triggers for every table whose rows are facts."""
    guarded = [name for name in METADATA.tables if name not in MUTABLE]
    if dialect == "postgresql":
        return [
            _POSTGRES_FUNCTION,
            *(
                f"CREATE TRIGGER {name}_is_append_only BEFORE UPDATE OR DELETE ON {name} "
                "FOR EACH ROW EXECUTE FUNCTION refuse_change()"
                for name in guarded
            ),
        ]
    return [
        f"CREATE TRIGGER {name}_refuses_{change} BEFORE {change} ON {name} "
        "WHEN NOT EXISTS (SELECT 1 FROM maintenance) "
        f"BEGIN SELECT RAISE(ABORT, '{name} is append-only'); END"
        for name in guarded
        for change in ("UPDATE", "DELETE")
    ]


def _first(connection: Connection) -> None:
    """Make all tables."""
    METADATA.create_all(connection)
    for statement in (STATES_VIEW, *append_only(connection.dialect.name)):
        connection.exec_driver_sql(statement.replace("%", "%%"))


def _second(connection: Connection) -> None:
    """Add the table of what selectors learned; a database that is new has it already."""
    LEARNED.create(connection, checkfirst=True)


STEPS: list[Callable[[Connection], None]] = [_first, _second]
