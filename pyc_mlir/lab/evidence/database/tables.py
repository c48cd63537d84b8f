"""The tables, their indexes, triggers and views, for SQLite and PostgreSQL alike.

All but `trials` and `learned` are append-only: triggers refuse updates and deletes, save while a
transaction of `Store.collect` has a row in `maintenance`. JSON is stored as canonical text, so that
equal data are equal texts in both engines.
"""

from sqlalchemy import (
    BigInteger,
    Column,
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
from sqlalchemy.schema import SchemaItem

METADATA = MetaData()
MUTABLE = ("trials", "learned", "maintenance")
# Integers that count up by themselves: SQLite does that for INTEGER keys only.
_SEQUENCE = BigInteger().with_variant(Integer, "sqlite")


def _key(name: str = "id") -> Column[str]:
    return Column(name, Text, primary_key=True)


def _to(name: str, target: str, index: bool = False, nullable: bool = False) -> Column[str]:
    return Column(name, Text, ForeignKey(target), nullable=nullable, index=index)


def _text(*names: str) -> list[Column[str]]:
    return [Column(name, Text, nullable=False) for name in names]


def _integer(*names: str) -> list[Column[int]]:
    return [Column(name, BigInteger, nullable=False) for name in names]


def _number(*names: str, nullable: bool = False) -> list[Column[float]]:
    return [Column(name, Double, nullable=nullable) for name in names]


def _graph() -> list[SchemaItem]:
    """Return the id of the graph that a row is about."""
    return [
        *_text("graph_id"),
        *_integer("normalizer"),
        ForeignKeyConstraint(
            ("graph_id", "normalizer"),
            ("canonical_graphs.graph_id", "canonical_graphs.normalizer"),
        ),
    ]


GRAPHS = Table(
    "canonical_graphs",
    METADATA,
    _key("graph_id"),
    Column("normalizer", BigInteger, primary_key=True, autoincrement=False),
    *_text("kind", "structure_id", "text"),
    *_integer("ops"),
    Index("graphs_by_structure", "structure_id"),
)
ENVIRONMENTS = Table(
    "environments",
    METADATA,
    _key(),
    *_text("hardware", "toolchain", "context", "machine", "facts"),
    Index("environments_by_hash", "hardware", "toolchain"),
)
WORKLOADS = Table(
    "workloads", METADATA, _key(), *_graph(), *_text("dims", "dtypes", "data", "cluster")
)
IMPLEMENTATIONS = Table(
    "implementations",
    METADATA,
    _key(),
    *_graph(),
    *_text("recipe", "knobs", "origin", "artifact_key"),
    _to("parent", "implementations.id", nullable=True),
    *_number("compile_seconds", nullable=True),
    Column("arena_bytes", BigInteger),
    Column("constant_bytes", BigInteger),
    Index("implementations_by_graph", "graph_id"),
)
SESSIONS = Table(
    "sessions",
    METADATA,
    _key(),
    _to("env_id", "environments.id", index=True),
    *_text("nonce", "started", "probe"),
    *_integer("protocol", "rounds", "order_seed", "processes"),
)
SESSION_ENDS = Table(
    "session_ends",
    METADATA,
    _key(),
    _to("session_id", "sessions.id", index=True),
    *_text("ended", "probe"),
    *_number("steal", "load"),
)
TRACES = Table(
    "benchmark_traces",
    METADATA,
    _key(),
    _to("session_id", "sessions.id", index=True),
    _to("impl_id", "implementations.id", index=True),
    _to("workload_id", "workloads.id"),
    *_integer("process", "calls", "n"),
    *_text("constants", "status", "reason"),
    *_number("p50", "p90", "p95", "min", "cpu_p50", nullable=True),
    Column("wall", LargeBinary, nullable=False),
    Column("cpu", LargeBinary, nullable=False),
    Column("peak_bytes", BigInteger),
)
STUDIES = Table(
    "studies",
    METADATA,
    _key(),
    *_graph(),
    *_text("workloads", "objective", "space_hash", "strategy", "budget", "nonce"),
    _to("env_id", "environments.id"),
    *_integer("seed"),
)
TRIALS = Table(
    "trials",
    METADATA,
    Column("study_id", Text, ForeignKey("studies.id"), primary_key=True),
    _key("config_hash"),
    *_integer("number", "attempt"),
    *_text("config", "state", "owner", "reason"),
    *_number("predicted", "lease_until", "seconds", nullable=True),
    _to("trace_id", "benchmark_traces.id", nullable=True),
    Index("trials_by_state", "study_id", "state", "number"),
)
PREDICTIONS = Table(
    "predictions",
    METADATA,
    _key(),
    *_text("model"),
    _to("impl_id", "implementations.id", index=True),
    _to("workload_id", "workloads.id"),
    _to("env_id", "environments.id"),
    *_number("seconds", "lo", "hi"),
    Column("bytes", BigInteger),
)
VERDICTS = Table(
    "verdicts",
    METADATA,
    _key(),
    _to("candidate", "implementations.id", index=True),
    _to("incumbent", "implementations.id"),
    _to("workload_id", "workloads.id"),
    *_text("hardware", "toolchain", "sessions", "rule", "answer"),
    *_number("ratio", "lo", "hi", "alpha"),
)
TRANSITIONS = Table(
    "transitions",
    METADATA,
    Column("seq", _SEQUENCE, primary_key=True, autoincrement=True),
    _to("impl_id", "implementations.id", index=True),
    *_text("structure", "cluster", "hardware", "toolchain", "lane"),
    *_text("from_state", "to_state", "reason", "decided_by", "at"),
    _to("verdict_id", "verdicts.id", nullable=True),
    sqlite_autoincrement=True,
)
BASELINES = Table(
    "baselines",
    METADATA,
    _key(),
    *_text("name", "numbers", "frozen"),
    *_integer("version"),
    _to("impl_id", "implementations.id"),
    _to("workload_id", "workloads.id"),
    _to("env_id", "environments.id"),
)
FEEDBACK = Table(
    "feedback",
    METADATA,
    _key(),
    _to("impl_id", "implementations.id", index=True),
    _to("env_id", "environments.id"),
    *_text("cluster", "window", "low"),
    *_integer("count", "rejected"),
    *_number("cpu", nullable=True),
    Column("histogram", LargeBinary, nullable=False),
)
# What selectors learned in service: of a program by the hash of its code, under a policy.
LEARNED = Table(
    "learned",
    METADATA,
    _key("program"),
    _key("policy"),
    Column("env_id", Text, ForeignKey("environments.id"), primary_key=True),
    *_text("routes", "at"),
)
MAINTENANCE = Table("maintenance", METADATA, _key("reason"))
SCHEMA_VERSION = Table(
    "schema_version",
    METADATA,
    Column("version", BigInteger, primary_key=True, autoincrement=False),
    *_text("at"),
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
