"""`tune`: make a model faster on this machine by measuring the choices of its kernels.

    result = tune("model.onnx", budget="10min", db="sqlite:///pyc.db", effort="patient")

    model -> works and their choices -> study (search, rerank, confirm) -> recipe
          -> the whole program with it and without, in pairs -> `measured`

What was measured stays in the database, whatever ends the study; the same call goes on with it.
Compiles see nothing of it before `pyc-tune export`.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyc_mlir.compilation.compile_options import CompileOptions
from pyc_mlir.compilation.job import Job
from pyc_mlir.compilation.lower import lower
from pyc_mlir.compilation.options import resolve
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.frontends.sources import MlirFile, OnnxFile, Source
from pyc_mlir.lab.evidence.database.exchange import export_wisdom
from pyc_mlir.lab.evidence.database.store import EvidenceStore
from pyc_mlir.lab.evidence.rows import OK, Graph, Study
from pyc_mlir.lab.evidence.states import CANDIDATE, MEASURED, RETIRED, VERIFIED, Scope
from pyc_mlir.lab.sessions.local import LocalMeasurer
from pyc_mlir.lab.sessions.session import MeasuredProgram, Measurer
from pyc_mlir.lab.sessions.subjects import subject_of_work
from pyc_mlir.lab.simulation.simulator import Simulator
from pyc_mlir.lab.tune.studies.driver import drive
from pyc_mlir.lab.tune.studies.estimate import estimated
from pyc_mlir.lab.tune.studies.ledger import Ledger, verdict_of
from pyc_mlir.lab.tune.studies.pools import PROCESSES, pool
from pyc_mlir.lab.tune.studies.program import TunedProgram, program_of, with_known
from pyc_mlir.lab.tune.studies.run import (
    PROGRAM,
    Setting,
    implementation,
    keep_results,
    move,
    results_of,
    run_study,
    verdict_row,
)
from pyc_mlir.lab.tune.studies.study import (
    EFFORTS,
    Asked,
    Effort,
    StudyBudget,
    StudyResult,
    TrialStage,
    WorkResult,
    budget_of,
)
from pyc_mlir.lab.tune.studies.worker import LEASE_SECONDS, TrialJob, here
from pyc_mlir.measure.environment import Environments
from pyc_mlir.runtime.selection.verdict import Judgement, VerdictKind
from pyc_mlir.util.checksum import digest

# Sessions of the whole program.
_SESSIONS = 2
INTERRUPTED = "interrupted"


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
    found = estimated(Simulator.of(lowered, wisdom), seed=seed)
    return replace(result, recipe=found.recipe, estimate=str(found))


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
        options = program.subject.options
        job = TrialJob(
            db, study.id, bench.measurer, partial(work_subject, options), effort.plans,
            bench.place, bench.lease_seconds,
        )  # fmt: skip
        ledger, left = _searched(store, setting, job, bench)
        results = results_of(setting, ledger)
        keep_results(store, setting, results, bench.place)
        recipe = {site: work.best for work in results if work.changed for site in work.sites}
        verdict, state, more = None, "", 0.0
        if recipe and not left:
            try:
                checked, more = _check_program(store, job, program.subject, recipe)
                verdict, state = _judged(store, program.subject, recipe, checked, bench.place)
                if state != MEASURED:
                    why = str(verdict) if verdict else "it failed, or had wrong results"
                    _retire(store, setting, results, bench.place, why)
            except KeyboardInterrupt:
                left = INTERRUPTED
        return StudyResult(
            study.id, study.graph_id, results, recipe, verdict, state, len(ledger.trials),
            ledger.seconds + more, left,
        )  # fmt: skip


def effort_of(name: str) -> Effort:
    """Return an effort by its name. Raises PycError (BAD_ARGUMENT)."""
    if name not in EFFORTS:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"effort: expected one of {', '.join(EFFORTS)}, got {name!r}"
            f"{did_you_mean(name, EFFORTS)}",
        )
    return EFFORTS[name]


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
    first = before.budget["known"]
    works = []
    for work in setting.works:
        uncertainty, tried_first = first[work.graph.graph_id]
        works.append(replace(work, uncertainty=uncertainty, known=tuple(tried_first)))
    setting = replace(setting, works=tuple(works))
    return setting, before


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
) -> tuple[Ledger, float]:
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
        ledger = drive(store, own, lambda ledger: requests, executor, 1)
    return ledger, ledger.seconds


def _judged(
    store: EvidenceStore,
    subject: MeasuredProgram,
    recipe: Mapping[str, str],
    checked: Ledger,
    place: Environments,
) -> tuple[Judgement | None, str]:
    """Return the verdict on the whole program, and the state that the recipe is in.

    A recipe that makes the program slower is retired.
    """
    outcomes = checked.outcomes()
    ours, theirs = (implementation(subject.graph, r) for r in (recipe, {}))
    if any(status != OK for outcome in outcomes for status, _ in outcome.statuses):
        found = [s.state for s in store.states(impl_id=ours.id)]
        return None, found[-1] if found else ""
    verdict = verdict_of([r for outcome in outcomes for r in outcome.rounds[1]])
    if verdict is None:
        return None, ""
    sessions = [outcome.session for outcome in outcomes]
    row = verdict_row(ours, theirs, verdict, sessions, place, subject.workload.id)
    store.add(row)
    slower = verdict.answer is VerdictKind.SLOWER
    steps = (CANDIDATE, VERIFIED, RETIRED if slower else MEASURED)
    scope = Scope(subject.graph.structure_id, "", place.hardware, place.toolchain)
    return verdict, move(store, ours, scope, steps, str(verdict), row.id)


def _retire(
    store: EvidenceStore,
    setting: Setting,
    results: Sequence[WorkResult],
    place: Environments,
    reason: str,
) -> None:
    """Choices that are faster by themselves but no good in the program are not offered."""
    for work, result in zip(setting.works, results, strict=True):
        if result.changed:
            one = implementation(work.graph, {work.pass_name: result.best})
            scope = Scope(work.graph.structure_id, "", place.hardware, place.toolchain)
            move(store, one, scope, (MEASURED, RETIRED), f"the whole program: {reason}")
