"""The rows of the benchmark database as frozen data; nothing here needs a database.

    Graph --< Implementation --< Trace >-- Session >-- Place
      |             |              |
      +--< Workload +--------------+          (a trace: one process's samples of one implementation)

Rows are facts: they are added, never changed. An id is the SHA-256 of what makes a row that row
(`identity`); adding a row again changes nothing, adding another one under its id is refused. Times
are seconds; moments are UTC as ISO texts. Samples are f64, by the wall clock and as CPU time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.environment import Environments
from pyc_mlir.runtime.selection.verdict import MIN_ROUNDS, Judgement, Rounds, VerdictKind
from pyc_mlir.util.checksum import digest

# Kinds of graphs.
PROGRAM, WORK = "program", "work"
WARM, COLD = "warm", "cold"
# The clocks: what a user waits for, and the CPU time of the calling thread.
WALL, CPU = "wall", "cpu"
CONSTANTS = (WARM, COLD)
# In the probe of a session's end: 1 where the machine was no place to measure.
DISTURBED = "disturbed"

Samples = np.ndarray


class Status(StrEnum):
    """The outcome of a trace.

    Measured; wrong results; the process ended; it took too long; nothing was made.
    """

    OK = "ok"
    WRONG = "wrong"
    CRASH = "crash"
    TIMEOUT = "timeout"
    REFUSED = "refused"


def samples(values: Any = ()) -> Samples:
    """Return seconds as an f64 array that cannot be written to."""
    array = np.array(values, dtype="<f8").reshape(-1)
    array.flags.writeable = False
    return array


class EvidenceRow:
    """Base of the rows: `table` names where they lie, `identity` the fields that make the id."""

    table: ClassVar[str]
    identity: ClassVar[tuple[str, ...]]

    @cached_property
    def id(self) -> str:
        """SHA-256 of the identity, in hex."""
        return digest([self.table, *(getattr(self, name) for name in self.identity)])


@dataclass(frozen=True)
class Graph(EvidenceRow):
    """A program or a kernel's work by its canonical text.

    graph_id: `OpIds.graph_id` of a program, `work_id` of a work. kind: ``program`` or ``work``.
    structure_id: of a program with constants by type; of a work its own id again.
    """

    table = "canonical_graphs"
    identity = ("graph_id", "normalizer")

    graph_id: str
    kind: str
    structure_id: str
    text: str
    ops: int
    normalizer: int = 1

    @property
    def id(self) -> str:  # type: ignore[override]
        """The graph's own id."""
        return self.graph_id


@dataclass(frozen=True)
class Workload(EvidenceRow):
    """The data that a graph is run on: sizes of dynamic dimensions, types, and how data are made.

    data: such as ``{"seed": 0, "distribution": "normal"}``. cluster: workloads of one name count
    together when recipes are promoted.
    """

    table = "workloads"
    identity = ("graph_id", "normalizer", "dims", "dtypes", "data")

    graph_id: str
    dims: Mapping[str, int] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    cluster: str = ""
    normalizer: int = 1


@dataclass(frozen=True)
class Implementation(EvidenceRow):
    """A way to compile a graph: its recipe, {site or pass: choice}, and what it came to.

    knobs: as the kernel's alternative names them. parent: the implementation that it was made from.
    origin: who proposed it (``heuristic``, ``tuner``, ``wisdom <hash>``).
    artifact_key: in the cache.
    """

    table = "implementations"
    identity = ("graph_id", "normalizer", "recipe")

    graph_id: str
    recipe: Mapping[str, str]
    knobs: str = ""
    parent: str | None = None
    origin: str = ""
    artifact_key: str = ""
    compile_seconds: float | None = None
    arena_bytes: int | None = None
    constant_bytes: int | None = None
    normalizer: int = 1


@dataclass(frozen=True)
class Session(EvidenceRow):
    """Measurements that were interleaved in one sitting; only within it are times comparable.

    protocol: version of how rounds are done. probe: what an A/A probe measured before. nonce: any
    text that no other session has.
    """

    table = "sessions"
    identity = ("env_id", "nonce")

    env_id: str
    nonce: str
    protocol: int
    rounds: int
    order_seed: int
    processes: int
    started: str
    probe: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SessionEnd(EvidenceRow):
    """How a session ended: the probe again, the share of stolen time, the load.

    A session without this row was killed: its traces stand, its second probe is missing.
    """

    table = "session_ends"
    identity = ("session_id",)

    session_id: str
    ended: str
    probe: Mapping[str, float] = field(default_factory=dict)
    steal: float = 0.0
    load: float = 0.0


@dataclass(frozen=True, eq=False)
class Trace(EvidenceRow):
    """The samples of one process: seconds of each of `n` timings of `calls` calls.

    Samples that were just taken have no session yet. process: its number there. constants:
    ``warm`` or ``cold``. reason: why there is no number where `status` is not ``ok``.

    Raises PycError (BAD_ARGUMENT) for samples that are none.
    """

    table = "benchmark_traces"
    identity = ("session_id", "impl_id", "workload_id", "process", "constants")

    session_id: str = ""
    impl_id: str = ""
    workload_id: str = ""
    process: int = 0
    constants: str = WARM
    status: str = Status.OK
    reason: str = ""
    calls: int = 1
    wall: Samples = field(default_factory=samples)
    cpu: Samples = field(default_factory=samples)
    peak_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in ("wall", "cpu"):
            object.__setattr__(self, name, samples(getattr(self, name)))
        both = (self.wall, self.cpu)
        wrong = (
            f"constants {self.constants!r}" if self.constants not in CONSTANTS
            else f"status {self.status!r}" if self.status not in tuple(Status)
            else "samples that are no seconds"
            if not all(np.isfinite(s).all() and (s >= 0).all() for s in both)
            else f"{len(self.cpu)} CPU times of {len(self.wall)} samples"
            if len(self.cpu) not in (0, len(self.wall))
            else "no samples" if self.status == Status.OK and not len(self.wall)
            else f"{self.calls} calls" if self.calls < 1
            else ""
        )  # fmt: skip
        if wrong:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"trace: expected one of {', '.join(Status)} with as many wall as CPU times (or "
                f"no CPU times), got {wrong}",
            )

    def per_call(self, clock: str = WALL) -> Samples:
        """Return seconds of one call in each round, f64[rounds]; empty without this clock."""
        return (self.wall if clock == WALL else self.cpu) / self.calls

    @property
    def figures(self) -> dict[str, Any]:
        """Quantiles of seconds for one call, for queries; None without samples."""
        wall, cpu = self.per_call(), self.per_call(CPU)
        quantiles = [float(q) for q in np.quantile(wall, (0.5, 0.9, 0.95))] if len(wall) else []
        p50, p90, p95 = quantiles or (None, None, None)
        return {
            "n": len(wall),
            "p50": p50,
            "p90": p90,
            "p95": p95,
            "min": float(wall.min()) if len(wall) else None,
            "cpu_p50": float(np.median(cpu)) if len(cpu) else None,
        }


def paired(ours: Trace, theirs: Trace) -> Rounds | None:
    """Return the seconds of a call of both in one process, round by round.

    None for too few rounds, other numbers of them, and times of a clock that is too coarse.
    """
    if len(ours.wall) != len(theirs.wall) or len(ours.wall) < MIN_ROUNDS:
        return None
    both = (ours, theirs)
    if min(t.wall.min() for t in both) <= 0:
        return None
    walls = [t.per_call() for t in both]
    if any(len(t.cpu) == 0 or t.cpu.min() <= 0 for t in both):
        return Rounds(*walls)
    return Rounds(*walls, *(t.per_call(CPU) for t in both))


@dataclass(frozen=True)
class Study(EvidenceRow):
    """A search: for which graph and workloads, where, by which strategy, over which space.

    budget: limits such as ``{"seconds": 600, "evaluations": 128}``. space_hash: of the legal
    configurations. nonce: distinguishes studies of equal settings; empty continues an earlier one.
    """

    table = "studies"
    identity = (
        "graph_id", "normalizer", "workloads", "env_id", "objective", "space_hash", "strategy",
        "seed", "nonce",
    )  # fmt: skip

    graph_id: str
    workloads: tuple[str, ...]
    env_id: str
    objective: str
    space_hash: str
    strategy: str
    seed: int
    budget: Mapping[str, Any] = field(default_factory=dict)
    nonce: str = ""
    normalizer: int = 1


@dataclass(frozen=True)
class Prediction(EvidenceRow):
    """A model's prediction for an implementation before its measurement, with a 90 % interval."""

    table = "predictions"
    identity = ("model", "impl_id", "workload_id", "env_id")

    model: str
    impl_id: str
    workload_id: str
    env_id: str
    seconds: float
    lo: float
    hi: float
    bytes: int | None = None


@dataclass(frozen=True)
class Verdict(EvidenceRow):
    """A comparison of a candidate with an incumbent: candidate seconds / incumbent seconds.

    sessions: those that were compared. rule: the test's name and version. alpha: its error.
    """

    table = "verdicts"
    identity = (
        "candidate", "incumbent", "workload_id", "hardware", "toolchain", "sessions", "rule",
        "alpha",
    )  # fmt: skip

    candidate: str
    incumbent: str
    workload_id: str
    hardware: str
    toolchain: str
    sessions: tuple[str, ...]
    ratio: float
    lo: float
    hi: float
    alpha: float
    rule: str
    answer: str

    @staticmethod
    def of(
        candidate: Implementation,
        incumbent: Implementation,
        workload_id: str,
        place: "Scope | Environments",
        sessions: Sequence[str],
        found: Judgement,
        rule: str,
    ) -> "Verdict":
        """Return a judgement as a row: interval and ratio are those of the clock that decides."""
        at = found.interval
        return Verdict(
            candidate.id, incumbent.id, workload_id, place.hardware, place.toolchain,
            tuple(sorted(sessions)), at.ratio, at.low, at.high, found.alpha, rule,
            str(found.answer),
        )  # fmt: skip

    def __post_init__(self) -> None:
        if self.answer not in tuple(VerdictKind):
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"verdict: expected one of {', '.join(VerdictKind)}, got {self.answer!r}",
            )


@dataclass(frozen=True)
class Baseline(EvidenceRow):
    """Named numbers that later runs are compared with; `version` counts up."""

    table = "baselines"
    identity = ("name", "version", "impl_id", "workload_id", "env_id")

    name: str
    version: int
    impl_id: str
    workload_id: str
    env_id: str
    numbers: Mapping[str, float]
    frozen: str


@dataclass(frozen=True)
class Feedback(EvidenceRow):
    """Times of calls in service, in a window; `histogram` is of the collector's own format."""

    table = "feedback"
    identity = ("impl_id", "cluster", "env_id", "window")

    impl_id: str
    cluster: str
    env_id: str
    window: str
    count: int
    low: Mapping[str, float]
    cpu: float | None = None
    rejected: int = 0
    histogram: bytes = b""


ROWS: tuple[type[EvidenceRow], ...] = (
    Graph, Workload, Implementation, Session, SessionEnd, Trace, Study, Prediction,
    Verdict, Baseline, Feedback,
)  # fmt: skip


class State(StrEnum):
    """The life of a recipe, which the database keeps as transitions.

        candidate -> verified -> measured -> shadow -> promoted -> suspended -> retired

    `quarantined` may follow any other. Lanes decide with a verdict whether the conditions of a step
    are met; the database only refuses steps that are none. Scopes name a toolchain: under another
    one a recipe starts again, as `suspended` if it was in use under the one before.
    """

    NEW = ""
    CANDIDATE = "candidate"
    VERIFIED = "verified"
    MEASURED = "measured"
    SHADOW = "shadow"
    PROMOTED = "promoted"
    SUSPENDED = "suspended"
    RETIRED = "retired"
    QUARANTINED = "quarantined"


STABLE, EXPERIMENTAL = "stable", "experimental"
LANES = (STABLE, EXPERIMENTAL)
# A suspended recipe comes back through measurements; a new toolchain lifts a quarantine by having
# another scope, and suspends there what another toolchain's scope has in use.
FOLLOWERS: Mapping[str, tuple[State, ...]] = {
    State.NEW: (State.CANDIDATE, State.SUSPENDED, State.QUARANTINED),
    State.CANDIDATE: (State.VERIFIED, State.RETIRED, State.QUARANTINED),
    State.VERIFIED: (State.MEASURED, State.RETIRED, State.QUARANTINED),
    State.MEASURED: (State.SHADOW, State.PROMOTED, State.RETIRED, State.QUARANTINED),
    State.SHADOW: (State.PROMOTED, State.SUSPENDED, State.RETIRED, State.QUARANTINED),
    State.PROMOTED: (State.SUSPENDED, State.RETIRED, State.QUARANTINED),
    State.SUSPENDED: (State.MEASURED, State.PROMOTED, State.RETIRED, State.QUARANTINED),
    State.RETIRED: (State.CANDIDATE, State.QUARANTINED),
    State.QUARANTINED: (),
}


@dataclass(frozen=True)
class Scope:
    """The range of a state: program structure, cluster of workloads, hardware and toolchain.

    Empty parts stand for all.
    """

    structure: str = ""
    cluster: str = ""
    hardware: str = ""
    toolchain: str = ""


@dataclass(frozen=True)
class StateStep:
    """A state to come, and why."""

    state: str
    reason: str
    verdict_id: str | None = None


@dataclass(frozen=True)
class RecipeState:
    """The state of a recipe in a scope and lane, and the last transition that made it so."""

    impl_id: str
    scope: Scope
    lane: str
    state: str
    reason: str
    decided_by: str
    at: str
    seq: int
