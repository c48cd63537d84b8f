"""The records of a measuring session: its subject, its candidates, how it is done, what came.

    measurer.measure(subject, candidates, plan) -> SessionResult

A session times all candidates of one subject in interleaved rounds, in several fresh processes.
Only within a session are times comparable. What a candidate came to is a status with a reason,
never an exception: one bad candidate does not end the session.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pyc_mlir.compilation.options import CompileOptions
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.lab.evidence.rows import (
    CONSTANTS,
    CPU,
    OK,
    STATUSES,
    WALL,
    WARM,
    Graph,
    Implementation,
    Trace,
    Workload,
)
from pyc_mlir.lab.sessions.reference import Reference
from pyc_mlir.lab.simulation.estimate import Estimate
from pyc_mlir.measure.environment import Environments

# Counts up when rounds are done in another way: sessions of two protocols are not joined.
PROTOCOL = 1


@dataclass(frozen=True)
class MeasuredChoice:
    """A way to compile a subject: {site or pass:work or pass: choice}; empty is PyC's own way.

    label: its name in messages and within a measurement; empty takes the choices.
    origin: who proposed it (``default``, ``tuner``, ``wisdom <hash>``).
    """

    recipe: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    origin: str = ""

    @property
    def name(self) -> str:
        """The label, or what is chosen."""
        return self.label or ", ".join(sorted(set(self.recipe.values()))) or "default"

    def implementation(self, graph: Graph, **facts: Any) -> Implementation:
        """Return the row of this way to compile a graph; facts: what its compile came to."""
        return Implementation(
            graph.graph_id,
            dict(self.recipe),
            knobs=", ".join(sorted(set(self.recipe.values()))),
            origin=self.origin,
            normalizer=graph.normalizer,
            **facts,
        )


@dataclass(frozen=True, eq=False)
class MeasuredProgram:
    """The subject of a measurement: a program, and what it is run on.

    graph, workload: the rows that its times are kept under.
    source: whatever `pyc_mlir.compile` takes; inputs: as `compile` takes them, for functions.
    arguments: the arrays of one call; None makes them from the program's types and the plan's seed.
    options: how all candidates are compiled; passes: in place of the pipeline's own.
    reference: what a call with `arguments` must give; None uses the program's oracle.
    """

    graph: Graph
    workload: Workload
    source: Any = None
    inputs: Sequence[Any] | None = None
    arguments: Sequence[np.ndarray] | None = None
    options: CompileOptions = field(default_factory=CompileOptions)
    passes: str = ""
    reference: Reference | None = None


@dataclass(frozen=True)
class SessionPlan:
    """How a session is done.

    rounds: samples of each candidate in each process. processes: fresh ones, one after the other.
    constants: ``warm`` (as they are after the last call) or ``cold`` (caches are flushed before
    each call). threads: of the program; 1 runs in the caller's thread. warmup: calls before those
    that count. min_seconds: a warm sample is as many calls as last so long. seed: of data and
    orders. timeout_seconds: for the compile, and for each process. quiet: a machine that is loaded
    or throttled refuses the session (MACHINE_BUSY); else the measurement records it.

    Raises PycError (BAD_ARGUMENT) for numbers that are no plan.
    """

    rounds: int = 15
    processes: int = 3
    constants: str = WARM
    threads: int = 1
    warmup: int = 3
    min_seconds: float = 1e-3
    seed: int = 0
    timeout_seconds: float = 120.0
    quiet: bool = False

    def __post_init__(self) -> None:
        least = min(self.rounds, self.processes, self.threads)
        if least < 1 or self.warmup < 0 or self.timeout_seconds <= 0 or self.min_seconds < 0:
            got = f"{self.rounds}, {self.processes}, {self.threads}, {self.timeout_seconds}"
            expected = "one round, process, thread and some seconds at least"
        elif self.constants not in CONSTANTS:
            expected, got = f"constants {' or '.join(CONSTANTS)}", repr(self.constants)
        else:
            return
        raise PycError(ReasonCode.BAD_ARGUMENT, f"measuring plan: expected {expected}, got {got}")


@dataclass(frozen=True, eq=False)
class ChoiceResult:
    """The result of one candidate.

    status: ``ok``, ``wrong`` (results outside their tolerance), ``crash``, ``timeout`` or
    ``refused`` (nothing was compiled); `reason` is the cause. Only ``ok`` has times to decide by.
    processes: the samples of each process, of no session yet. chosen: what the compile chose,
    {site: choice}. artifact_key: SHA-256 of the artifact. predicted: of a call, by the compile's
    own costs; None where nothing was compiled.
    """

    candidate: MeasuredChoice
    status: str = OK
    reason: str = ""
    processes: tuple[Trace, ...] = ()
    compile_seconds: float | None = None
    arena_bytes: int | None = None
    constant_bytes: int | None = None
    artifact_key: str = ""
    chosen: Mapping[str, str] = field(default_factory=dict)
    predicted: Estimate | None = None

    def __post_init__(self) -> None:
        assert self.status in STATUSES, self.status

    @property
    def ok(self) -> bool:
        """True if the times count."""
        return self.status == OK

    def seconds(self, clock: str = "") -> float | None:
        """Return the median over processes of the median call; None without times.

        clock: ``wall`` or ``cpu``; empty is CPU time where there is any.
        """
        for name in (clock,) if clock else (CPU, WALL):
            medians = [np.median(t) for p in self.processes if len(t := p.per_call(name))]
            if medians:
                return float(np.median(medians))
        return None


@dataclass(frozen=True, eq=False)
class SessionResult:
    """One session: what its candidates came to, in the order in which they were given.

    probe_before, probe_after: ratios of a fixed program to itself (`machine.py`). disturbed: why
    the machine was no place to measure, empty where it was: decisions are then ``unclear``.
    """

    subject: MeasuredProgram
    plan: SessionPlan
    place: Environments
    nonce: str
    started: str
    ended: str
    results: tuple[ChoiceResult, ...]
    probe_before: Mapping[str, float] = field(default_factory=dict)
    probe_after: Mapping[str, float] = field(default_factory=dict)
    steal: float = 0.0
    load: float = 0.0
    disturbed: tuple[str, ...] = ()


@runtime_checkable
class Measurer(Protocol):
    """Measures candidates of a subject in one session."""

    def measure(
        self, subject: MeasuredProgram, candidates: Sequence[MeasuredChoice], plan: SessionPlan
    ) -> SessionResult:
        """Time the candidates, whose names differ.

        Raises PycError: BAD_ARGUMENT for no candidates or equal names, MACHINE_BUSY.
        """
        ...


def require_candidates(candidates: Sequence[MeasuredChoice]) -> None:
    """Raise PycError (BAD_ARGUMENT) unless there are candidates with names of their own."""
    names = [c.name for c in candidates]
    if not names or len(set(names)) < len(names):
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"measuring session: expected one candidate or more, each with its own label, got "
            f"{names}",
        )
