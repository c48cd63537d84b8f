"""The records of a measuring session: its subject, its candidates, how it is done, what came.

    measurer.measure(subject, candidates, plan) -> SessionResult

A session times all candidates of one subject in interleaved rounds, in several fresh processes.
Only within a session are times comparable. What a candidate came to is a status with a reason,
never an exception: one bad candidate does not end the session.

A candidate counts only after its results lie within the tolerances of `dialects/numerics/` around
the numpy references (`Reference`); what enters at IREE is compared with IREE's interpreter vmvx, as
under the contract's `max_error`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.test_vectors import ExpectedResult, compare
from pyc_mlir.artifact.verification import Oracle
from pyc_mlir.compilation.lower import bytecode_of
from pyc_mlir.compilation.options import CompileOptions
from pyc_mlir.compilation.references import ForeignOracle, PycOracle
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir import ids as structure
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.ir.ids import OpIds, structure_of
from pyc_mlir.dialects.ir.interpreter import entry_function
from pyc_mlir.dialects.ir.pyc import new_context
from pyc_mlir.frontends.signatures import signature_of
from pyc_mlir.frontends.sources import Source
from pyc_mlir.iree.foreign import read_entry
from pyc_mlir.lab.evidence.rows import (
    CPU,
    DISTURBED,
    EXPERIMENTAL,
    PROGRAM,
    WALL,
    WORK,
    Graph,
    Implementation,
    Prediction,
    Scope,
    Session,
    SessionEnd,
    State,
    Status,
    Trace,
    Workload,
)
from pyc_mlir.lab.sessions.processes import SessionPlan
from pyc_mlir.lab.simulation.simulator import Estimate
from pyc_mlir.measure.environment import Environments
from pyc_mlir.pipelines.pyc.groups import Members
from pyc_mlir.pipelines.pyc.rewriting import functions_of
from pyc_mlir.pipelines.target import work as works
from pyc_mlir.pipelines.target.work import Work

# Counts up when rounds are done in another way: sessions of two protocols are not joined.
PROTOCOL = 1
# Who is named as having taken a recipe from one state to another.
_BY = "measuring"
# As the model of a prediction: the costs in a compile's log, summed by the simulator.
COST_MODEL = "cost model"
_FAILURES = (Status.WRONG, Status.CRASH)


def graph_of_program(function: ir.Operation) -> Graph:
    """Return the row of a program, whose function is as the user gave it: before any pass."""
    exact = structure_of(function, exact=True)
    graph_id, structure_id = OpIds(function).graph_id, structure_of(function).id
    return Graph(graph_id, PROGRAM, structure_id, exact.text, exact.ops, structure.NORMALIZER)


def graph_of_work(work: Work) -> Graph:
    """Return the row of a kernel group's work."""
    name, text = works.work_id(work), works.work_text(work)
    return Graph(name, WORK, name, text, len(work.nodes), works.NORMALIZER)


@dataclass(frozen=True)
class ModuleWork:
    """A work of a module: its row, the work itself, and how many groups have it."""

    graph: Graph
    work: Work
    count: int


def works_of(module: ir.Module) -> list[ModuleWork]:
    """Return the works of a fused module in the order in which they first stand."""
    counts: Counter[str] = Counter()
    first: dict[str, tuple[Graph, Work]] = {}
    for function in functions_of(module):
        for op in function.regions[0].blocks[0].operations:
            pyc = op.operation.name.startswith("pyc.")
            members = Members.of(op.operation) if pyc else None
            if members is None:
                continue
            work = members.work()
            graph = graph_of_work(work)
            counts[graph.graph_id] += 1
            first.setdefault(graph.graph_id, (graph, work))
    return [ModuleWork(graph, work, counts[name]) for name, (graph, work) in first.items()]


@dataclass(frozen=True)
class Reference:
    """The expected results of one call."""

    expected: tuple[ExpectedResult, ...]

    @property
    def finite_share(self) -> float:
        """The share of elements that are finite and compared."""
        sizes = sum(e.value.size for e in self.expected)
        good = sum(
            int((np.isfinite(np.asarray(e.value, np.float64)) & e.compared).sum())
            for e in self.expected
        )
        return good / sizes if sizes else 1.0

    def problem(self, results: Sequence[bytes]) -> str:
        """Return why the raw bytes of results are wrong; empty where they are within their
        tolerances.
        """
        arrays = []
        for number, (raw, want) in enumerate(zip(results, self.expected, strict=True)):
            if len(raw) != want.value.nbytes:
                return f"result {number}: expected {want.value.nbytes} bytes, got {len(raw)}"
            arrays.append(np.frombuffer(raw, want.value.dtype).reshape(want.value.shape))
        return compare(arrays, self.expected).wrong


@dataclass(frozen=True)
class Described:
    """A program as it came in: its oracle and signature, and its row; no row for foreign ones."""

    oracle: Oracle
    signature: Signature
    graph: Graph | None

    def reference(self, arguments: Sequence[np.ndarray]) -> Reference:
        """Compute the results of a call. Raises PycError (NO_ORACLE, DIMENSION_MISMATCH)."""
        return Reference(tuple(self.oracle.expect(list(arguments))))


def described(source: Any, inputs: Sequence[Any] | None = None) -> Described:
    """Read a program; inputs as `compile` takes them. Raises PycError as the front ends do."""
    source = Source.of(source)
    found = _described(source, inputs)
    if inputs is None or source.takes_inputs or len(inputs) != len(found.signature.inputs):
        return found
    # Shapes refine the dynamic dimensions of what is no function.
    shapes = [tuple(getattr(given, "shape", given)) for given in inputs]
    pairs = zip(found.signature.inputs, shapes, strict=True)
    refined = tuple(replace(a, shape=s) if len(s) == len(a.shape) else a for a, s in pairs)
    return replace(found, signature=replace(found.signature, inputs=refined))


def _described(source: Source, inputs: Sequence[Any] | None) -> Described:
    with new_context() as context, ir.Location.unknown():
        loaded = source.load(inputs, context)
        if loaded.module is None:
            entry = read_entry(loaded.foreign, loaded.name)
            oracle = ForeignOracle(loaded.foreign, entry.name, entry.signature)
            return Described(oracle, entry.signature, None)
        with loaded.module.context:
            function = entry_function(loaded.module)
            name = ir.StringAttr(function.attributes["sym_name"]).value
            oracle = PycOracle(bytecode_of(loaded.module), name)
            return Described(oracle, signature_of(function), graph_of_program(function))


# Measuring needs no database, whose package is optional.
if TYPE_CHECKING:
    from pyc_mlir.lab.evidence.database.store import EvidenceStore


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
    status: str = Status.OK
    reason: str = ""
    processes: tuple[Trace, ...] = ()
    compile_seconds: float | None = None
    arena_bytes: int | None = None
    constant_bytes: int | None = None
    artifact_key: str = ""
    chosen: Mapping[str, str] = field(default_factory=dict)
    predicted: Estimate | None = None

    def __post_init__(self) -> None:
        assert self.status in self.status

    @property
    def ok(self) -> bool:
        """True if the times count."""
        return self.status == Status.OK

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


def session_of(measurement: SessionResult) -> Session:
    """Return the row of the session."""
    plan = measurement.plan
    return Session(
        measurement.place.id,
        measurement.nonce,
        PROTOCOL,
        plan.rounds,
        plan.seed,
        plan.processes,
        measurement.started,
        dict(measurement.probe_before),
    )


def record(store: "EvidenceStore", measurement: SessionResult) -> list[str]:
    """Add a measurement; return the ids of its implementations in the order of the candidates.

    Raises PycError as `EvidenceStore.add`.
    """
    subject, session = measurement.subject, session_of(measurement)
    store.add_place(measurement.place)
    store.add(subject.graph, subject.workload, session)
    names = []
    for result in measurement.results:
        made = result.candidate.implementation(
            subject.graph,
            compile_seconds=result.compile_seconds,
            arena_bytes=result.arena_bytes,
            constant_bytes=result.constant_bytes,
            artifact_key=result.artifact_key,
        )
        store.add(made, *_traces(measurement, session.id, made.id, result))
        names.append(made.id)
        _predict(store, measurement, made.id, result)
        _quarantine(store, measurement, made.id, result)
    probe = {**measurement.probe_after, DISTURBED: float(bool(measurement.disturbed))}
    ended = measurement.ended, probe, measurement.steal, measurement.load
    store.add(SessionEnd(session.id, *ended))
    return names


def _traces(
    measurement: SessionResult, session_id: str, impl_id: str, result: ChoiceResult
) -> Iterator[Trace]:
    """Yield one for each process; one without samples for a candidate that has no times."""
    load, constants = measurement.subject.workload.id, measurement.plan.constants
    if result.status != Status.OK:
        yield Trace(session_id, impl_id, load, 0, constants, result.status, result.reason)
        return
    names = {"session_id": session_id, "impl_id": impl_id, "workload_id": load}
    yield from (replace(t, **names, constants=constants) for t in result.processes)


def _predict(
    store: "EvidenceStore", measurement: SessionResult, impl_id: str, result: ChoiceResult
) -> None:
    """Record the compile's expectation beside what was measured; the first prediction stands."""
    found = result.predicted
    if found is None or not found.seconds:
        return
    load, place = measurement.subject.workload.id, measurement.place.id
    numbers = (found.seconds, found.lo, found.hi, found.bytes)
    row = Prediction(COST_MODEL, impl_id, load, place, *numbers)
    # Another calibration of the same machine may predict another number.
    if store.get(Prediction, row.id) is None:
        store.add(row)


def _quarantine(
    store: "EvidenceStore", measurement: SessionResult, impl_id: str, result: ChoiceResult
) -> None:
    """Quarantine a candidate that computed something else, or ended its process."""
    if result.status not in _FAILURES:
        return
    place, structure = measurement.place, measurement.subject.graph.structure_id
    scope = Scope(structure, hardware=place.hardware, toolchain=place.toolchain)
    known = store.states(impl_id=impl_id, lane=EXPERIMENTAL)
    if any(state.state == State.QUARANTINED and state.scope == scope for state in known):
        return
    why = f"{result.status}: {result.reason}"
    store.transition(impl_id, scope, EXPERIMENTAL, State.QUARANTINED, _BY, why)
