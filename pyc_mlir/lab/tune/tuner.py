"""`tune`: make a model faster on this machine by measuring the choices of its kernels.

    result = tune("model.onnx", budget="10min", db="sqlite:///pyc.db", effort="patient")

    model -> works and their choices -> study (search, rerank, confirm) -> recipe
          -> the whole program with it and without, in pairs -> `measured`

Everything is in the database before the next step begins, so a study that was killed at any moment
goes on by the same call. Compiles see nothing of it before `pyc-tune export`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import CompileOptions, resolve
from pyc_mlir.frontends.sources import MlirFile, OnnxFile, Source
from pyc_mlir.lab.evidence.database.exchange import export_wisdom
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import (
    EXPERIMENTAL,
    Graph,
    Implementation,
    Scope,
    State,
    Status,
    Study,
    Verdict,
)
from pyc_mlir.lab.explore.programs import quickest_kernels
from pyc_mlir.lab.sessions.local import LocalMeasurer
from pyc_mlir.lab.sessions.session import MeasuredProgram, Measurer
from pyc_mlir.lab.sessions.subjects import subject_of_program, subject_of_work
from pyc_mlir.lab.simulation.simulator import Estimate, Simulator
from pyc_mlir.lab.tune.search import TunedWork, kernel_works, with_known
from pyc_mlir.lab.tune.study import (
    PROGRAM,
    Asked,
    Effort,
    Ledger,
    Setting,
    StudyBudget,
    StudyResult,
    TrialStage,
    WorkResult,
    budget_of,
    effort_of,
)
from pyc_mlir.lab.tune.workers import (
    LEASE_SECONDS,
    PROCESSES,
    TUNER,
    TrialJob,
    drive,
    here,
    pool,
)
from pyc_mlir.measure.environment import Environments
from pyc_mlir.runtime.selection.verdict import Judgement, VerdictKind, judged
from pyc_mlir.util.checksum import digest
from pyc_mlir.util.units import quantity

# Of the sessions that a verdict names one chose the candidate, the others judged it.
RULE = "chosen, then judged 1"
# Of a time budget: what the search may take; the rest is for ranking again and confirming.
_SEARCH_SHARE = 0.5
# Sessions of the whole program.
_SESSIONS = 2
INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class TunedProgram:
    """A model: as a subject, and the works at which something can be chosen."""

    subject: MeasuredProgram
    works: tuple[TunedWork, ...]


@dataclass(frozen=True)
class Bench:
    """Who measures, and where.

    executor: ``processes``, ``dask://host:port``, or one of the caller's. workers: trials at a
    time; 0 leaves them to `pyc-tune worker`.
    """

    executor: str | Executor = PROCESSES
    workers: int = 1
    measurer: Measurer = field(default_factory=LocalMeasurer)
    place: Environments = field(default_factory=here)
    lease_seconds: float = LEASE_SECONDS


def tune(
    model: Any,
    inputs: Sequence[Any] | None = None,
    *,
    budget: str | float | StudyBudget | None = None,
    db: str,
    effort: str = "patient",
    executor: str | Executor = PROCESSES,
    workers: int = 1,
    dims: Mapping[str, int] | None = None,
    seed: int = 0,
    options: CompileOptions | None = None,
) -> StudyResult:
    """Tune a model; the same arguments go on with the same study.

    model, inputs: as `compile` takes them. budget: ``10min``, ``500`` evaluations, or seconds;
    None: what the effort takes. db: the database's URL. effort: ``estimate`` (nothing is measured),
    ``measure``, ``patient``, ``exhaustive``. executor, workers: as of `Bench`. dims: sizes to
    measure dynamic dimensions at. An interrupt (SIGINT) ends the search; the result says what is
    known.

    Raises PycError: BAD_ARGUMENT, DATABASE_UNUSABLE, NATIVE_CRASH where workers die again and
    again, and what the front ends raise.
    """
    program = program_of(model, inputs, options, dims)
    given = options or CompileOptions()
    notes: dict[str, Any] = {"dims": dict(dims or {}), "ranges": dict(given.dims or {})}
    source = Source.of(model)
    if isinstance(source, OnnxFile | MlirFile):
        notes["model"] = str(source.path.resolve())
    if isinstance(given.target, str):
        notes["target"] = given.target
    how, bench = effort_of(effort), Bench(executor, workers)
    result = tune_program(program, how, budget_of(budget), db, bench, seed, notes)
    if how.strategy:
        return result
    lowered = lower(Job.of(model, inputs, resolve(given)))
    with EvidenceStore.open(db) as store:
        wisdom = export_wisdom(store, bench.place.hardware, bench.place.toolchain)
    found = estimated(Simulator.of(lowered, wisdom))
    return replace(result, recipe=found.recipe, estimate=str(found))


def program_of(
    source: Any,
    inputs: Sequence[Any] | None = None,
    options: CompileOptions | None = None,
    dims: Mapping[str, int] | None = None,
) -> TunedProgram:
    """Read a model. Raises PycError as the front ends do; BAD_ARGUMENT if it is no pyc program."""
    given = options or CompileOptions()
    model = Source.of(source, given.islands, given.function, given.outputs)
    subject = subject_of_program(model, inputs, given, dims)
    works = kernel_works(Job.of(model, inputs, resolve(given)), required=True)
    return TunedProgram(subject, tuple(work for work in works if work.space.size > 1))


def tune_program(
    program: TunedProgram,
    effort: Effort,
    budget: StudyBudget,
    db: str,
    bench: Bench,
    seed: int = 0,
    notes: Mapping[str, Any] | None = None,
) -> StudyResult:
    """Tune what was read. notes: what a resume needs beside budget and effort."""
    with EvidenceStore.open(db) as store:
        lanes = max(1, -(-bench.workers // max(1, len(program.works))))
        works = with_known(store, program.works, bench.place)
        setting = Setting(program.subject.graph, works, effort, budget, seed, lanes)
        setting, study = _begun(store, setting, bench, notes or {})
        job = TrialJob(
            db, study.id, bench.measurer, partial(work_subject, program.subject.options),
            effort.plans, bench.place, bench.lease_seconds,
        )  # fmt: skip
        ledger, left = _searched(store, setting, job, bench)
        results, kept = setting.results(ledger), Kept(store, bench.place)
        kept.confirmed(results)
        recipe = {site: work.best for work in results if work.changed for site in work.work.sites}
        verdict, state, more = None, "", 0.0
        if recipe and not left:
            try:
                checked = _check_program(store, job, program.subject, recipe)
                more = checked.seconds
                verdict, state = kept.program(program.subject, recipe, checked)
                if state != State.MEASURED:
                    kept.retire(results, str(verdict or "it failed, or had wrong results"))
            except KeyboardInterrupt:
                left = INTERRUPTED
        return StudyResult(
            study.id, study.graph_id, results, recipe, verdict, state, len(ledger.trials),
            ledger.seconds + more, left,
        )  # fmt: skip


def work_subject(options: CompileOptions, graph: Graph) -> MeasuredProgram:
    """Return a work as what is measured, made of its text, so that any machine can."""
    return subject_of_work(graph.text, options)


def _begun(
    store: EvidenceStore, setting: Setting, bench: Bench, notes: Mapping[str, Any]
) -> tuple[Setting, Study]:
    """Add the study's rows. One that was begun before keeps what it knew then.

    Else the trials that it made since would change its searches.
    """
    known = {w.graph.graph_id: [w.uncertainty, list(w.known)] for w in setting.works}
    own = {
        "effort": setting.effort.name,
        "seconds": setting.budget.seconds,
        "evaluations": setting.budget.evaluations,
        "lanes": setting.lanes,
        "seed": setting.seed,
        "known": known,
    }
    study = setting.study(bench.place, {**notes, **own})
    before = store.get(Study, study.id)
    if before is None:
        store.add_place(bench.place)
        store.add(setting.graph, *(w.graph for w in setting.works), study)
        return setting, study
    works = []
    for work in setting.works:
        uncertainty, tried_first = before.budget["known"][work.graph.graph_id]
        works.append(replace(work, uncertainty=uncertainty, known=tuple(tried_first)))
    return replace(setting, works=tuple(works)), before


def run_study(
    store: EvidenceStore,
    setting: Setting,
    job: TrialJob,
    executor: Executor,
    workers: int,
    clock: Callable[[], float] = time.monotonic,
) -> Ledger:
    """Measure until the agenda is empty, or the budget's time is spent. Raises as `drive`."""
    spent = sum(t.seconds or 0.0 for t in store.trials(job.study_id)) / max(1, workers)
    begin, seconds = clock() - spent, setting.budget.seconds

    def may_begin(stage: TrialStage) -> bool:
        share = _SEARCH_SHARE if stage is TrialStage.SEARCH else 1.0
        return seconds is None or clock() - begin < share * seconds

    return drive(store, job, setting.agenda(may_begin, workers), executor, workers)


def _searched(
    store: EvidenceStore, setting: Setting, job: TrialJob, bench: Bench
) -> tuple[Ledger, str]:
    """Search, rank again, confirm; and why it is not at its end."""
    if not setting.effort.strategy:
        return Ledger(store, job.study_id), "nothing is measured with the effort `estimate`"
    try:
        with pool(bench.executor, max(1, bench.workers)) as executor:
            return run_study(store, setting, job, executor, bench.workers), ""
    except KeyboardInterrupt:
        ledger = Ledger(store, job.study_id)
        ledger.update()
        return ledger, INTERRUPTED


def _check_program(
    store: EvidenceStore, job: TrialJob, subject: MeasuredProgram, recipe: Mapping[str, str]
) -> Ledger:
    """Measure the whole program with and without a recipe, in this process: it has the model."""
    works = store.get(Study, job.study_id)
    assert works is not None
    study = replace(works, objective=PROGRAM, space_hash=digest(recipe), budget={})
    store.add(study)
    own = replace(job, study_id=study.id, subject_of=lambda graph: subject)
    requests = [
        Asked(TrialStage.PROGRAM, study.graph_id, ({}, recipe), n) for n in range(_SESSIONS)
    ]
    with ThreadPoolExecutor(1) as executor:
        return drive(store, own, lambda ledger: requests, executor, 1)


def _implementation(graph: Graph, recipe: Mapping[str, str]) -> Implementation:
    """Return the row of a way to compile a graph, as far as its id goes."""
    return Implementation(graph.graph_id, dict(recipe), normalizer=graph.normalizer)


@dataclass(frozen=True)
class Kept:
    """The verdicts and states that a study gives recipes. Written again they change nothing."""

    store: EvidenceStore
    place: Environments

    def confirmed(self, results: Sequence[WorkResult]) -> None:
        """Make the choices of works that were confirmed `measured`.

        What is wrong was quarantined when it was recorded.
        """
        for result in results:
            work = result.work
            if result.changed and result.verdict is not None:
                best, own = {work.pass_name: result.best}, {work.pass_name: work.incumbent}
                ran = (result.workload, result.sessions)
                self._judged(work.graph, best, own, *ran, result.verdict, State.MEASURED)

    def program(
        self, subject: MeasuredProgram, recipe: Mapping[str, str], checked: Ledger
    ) -> tuple[Judgement | None, str]:
        """Return the verdict on the whole program, and the state that the recipe is in.

        A recipe that makes the program slower is retired.
        """
        outcomes = checked.outcomes
        if any(status != Status.OK for outcome in outcomes for status, _ in outcome.statuses):
            ours = _implementation(subject.graph, recipe)
            found = [s.state for s in self.store.states(impl_id=ours.id)]
            return None, found[-1] if found else ""
        verdict = judged([r for outcome in outcomes for r in outcome.rounds[1]])
        if verdict is None:
            return None, ""
        last = State.RETIRED if verdict.answer is VerdictKind.SLOWER else State.MEASURED
        ran = (subject.workload.id, [outcome.session for outcome in outcomes])
        return verdict, self._judged(subject.graph, recipe, {}, *ran, verdict, last)

    def retire(self, results: Sequence[WorkResult], reason: str) -> None:
        """Choices that are faster by themselves but no good in the program are not offered."""
        for result in results:
            work = result.work
            if result.changed:
                one = _implementation(work.graph, {work.pass_name: result.best})
                steps = (State.MEASURED, State.RETIRED)
                self._move(one, work.graph, steps, f"the whole program: {reason}")

    def _judged(
        self,
        graph: Graph,
        recipe: Mapping[str, str],
        incumbent: Mapping[str, str],
        workload: str,
        sessions: Sequence[str],
        found: Judgement,
        last: State,
    ) -> str:
        """Add a verdict, and take the recipe as far as it leads; return the state it is in."""
        ours, theirs = (_implementation(graph, r) for r in (recipe, incumbent))
        row = Verdict.of(ours, theirs, workload, self.place, sessions, found, RULE)
        self.store.add(row)
        steps = (State.CANDIDATE, State.VERIFIED, last)
        return self._move(ours, graph, steps, str(found), row.id)

    def _move(
        self,
        one: Implementation,
        graph: Graph,
        steps: Sequence[State],
        reason: str,
        verdict_id: str | None = None,
    ) -> str:
        """Take a recipe through states that it has not been in; return the state it is in.

        What was moved for this reason before, and what is quarantined, stays where it is.
        """
        scope = Scope(graph.structure_id, "", self.place.hardware, self.place.toolchain)
        there = (scope, EXPERIMENTAL)
        history = [s for s in self.store.history(one.id) if (s.scope, s.lane) == there]
        state = history[-1].state if history else State.NEW
        again = any((s.state, s.reason) == (steps[-1], reason) for s in history)
        if again or state == State.QUARANTINED:
            return state
        left = steps[steps.index(State(state)) + 1 :] if state in steps else steps
        for state in left:
            proof = verdict_id if state == State.MEASURED else None
            self.store.transition(one.id, *there, state, TUNER, reason, proof)
        return state


@dataclass(frozen=True)
class Estimated:
    """The recipe of least predicted seconds, and the estimates without it and with it.

    What is found by evidence and prediction is a candidate: nothing was measured.
    """

    recipe: dict[str, str]
    own: Estimate
    found: Estimate

    def __str__(self) -> str:
        own_time = f"{quantity(self.own.seconds, 's')} with PyC's own choices"
        if not self.recipe:
            return f"estimated: {own_time}, and no quicker ones were found"
        low, high = quantity(self.found.lo, "s"), quantity(self.found.hi, "s")
        return (
            f"estimated: {own_time}, {quantity(self.found.seconds, 's')} ({low} to {high}) with "
            f"other choices at {len(self.recipe)} sites; measure before you use them"
        )


def estimated(simulator: Simulator) -> Estimated:
    """Return the quickest recipe by the simulator: costs of sites add up, so each site's own."""
    recipe = quickest_kernels(simulator)
    for one in simulator.program.kernels:
        new, own = (simulator.price(one, c).seconds for c in (recipe[one.site.key], one.chosen))
        if new >= own:
            del recipe[one.site.key]
    return Estimated(recipe, simulator.estimate(), simulator.estimate(recipe))
