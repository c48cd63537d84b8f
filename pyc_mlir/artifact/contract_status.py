"""The status of each clause of a contract, at compile time and after the runs so far.

`compile_report` is deterministic and travels in the manifest. `current_report` adds comparisons,
fallbacks and latencies of this process. `refusal_report` is for the log of a refused compile.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.memory import Account
from pyc_mlir.artifact.verification import Verification
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.measure.prediction import Prediction
from pyc_mlir.pipelines.choices.contract import (
    NO_FALLBACK,
    ClauseReport,
    Contract,
    ContractReport,
    Status,
)
from pyc_mlir.pipelines.choices.evidence import Evidence, Note
from pyc_mlir.util.units import quantity

# Runs of one input that a strict contract compares: one thread, twice, and two threads, twice.
STRICT_RUNS = 4


@dataclass(frozen=True)
class Facts:
    """Facts of a compile: the target, memory and time of a call, number of samples, the oracle.

    measurements: files of measurements that the compile read, such as a calibration or wisdom.
    without_budget: predicted seconds of a call of the program without the memory budget.
    """

    target: str
    account: Account
    samples: int = 0
    oracle: str = ""
    measurements: tuple[str, ...] = ()
    faults: str = ""
    approximate: str = ""
    prediction: Prediction | None = None
    without_budget: float | None = None


@dataclass(frozen=True)
class Counts:
    """Comparisons of this process: the samples' verification record, calls, compared calls.

    taken: what fallbacks were taken, and why.
    """

    verification: Verification | None = None
    calls: int = 0
    compared: int = 0
    taken: tuple[Evidence, ...] = ()


def compile_report(contract: Contract, facts: Facts) -> ContractReport:
    """Return a report for every clause that was given."""
    given = contract.given()
    return ContractReport(
        tuple(_CLAUSES[name](contract, facts) for name in given if name in _CLAUSES)
    )


def _memory(contract: Contract, facts: Facts) -> ClauseReport:
    requested = contract.memory_budget_bytes
    needed = facts.account.total(contract.max_concurrency)
    evidence = "a plan within it was made for every region" if needed is None else ""
    evidence = evidence or f"{needed} bytes: {facts.account.described(contract.max_concurrency)}"
    notes = [evidence]
    if facts.prediction is not None and facts.without_budget is not None:
        notes += [f"{facts.prediction}, {quantity(facts.without_budget, 's')} without the budget"]
    return ClauseReport("memory_budget_bytes", requested, Status.PROVEN, tuple(map(Note, notes)))


def _concurrency(contract: Contract, facts: Facts) -> ClauseReport:
    evidence = "the arenas of so many calls are counted; further calls wait"
    return ClauseReport(
        "max_concurrency", contract.max_concurrency, Status.PROVEN, (Note(evidence),)
    )


def _targets(contract: Contract, facts: Facts) -> ClauseReport:
    evidence = f"compiled for {facts.target}"
    return ClauseReport(
        "allowed_targets", contract.allowed_targets, Status.PROVEN, (Note(evidence),)
    )


def _determinism(contract: Contract, facts: Facts) -> ClauseReport:
    measured = ", ".join(facts.measurements) or "none"
    evidence = (
        Note("searches end by counts of work, not by a clock"),
        Note("what a workgroup computes is fixed in the code; threads only take workgroups"),
        Note(f"measurements used: {measured}"),
    )
    return ClauseReport(
        "determinism", contract.determinism, Status.SAMPLED, evidence, of=STRICT_RUNS
    )


def _error(contract: Contract, facts: Facts) -> ClauseReport:
    notes = [f"compared with {facts.oracle} before the first answer leaves"]
    if facts.approximate:
        notes += [f"{facts.approximate}, and check each tile in each call"]
    return ClauseReport(
        "max_error",
        contract.max_error,
        Status.SAMPLED,
        tuple(map(Note, notes)),
        of=facts.samples,
    )


def _compile_seconds(contract: Contract, facts: Facts) -> ClauseReport:
    evidence = "compiled with the requested options, in a process that is ended at the limit"
    requested = contract.max_compile_seconds
    return ClauseReport("max_compile_seconds", requested, Status.CHECKED, (Note(evidence),))


def _latency(contract: Contract, facts: Facts) -> ClauseReport:
    notes = ["refused when missed" if contract.latency_binding else "reported when missed"]
    notes += [] if facts.prediction is None else [str(facts.prediction)]
    return ClauseReport(
        "latency_goal_seconds",
        contract.latency_goal_seconds,
        Status.SAMPLED,
        tuple(map(Note, notes)),
    )


def _faults(contract: Contract, facts: Facts) -> ClauseReport:
    return ClauseReport(
        "detect_faults", contract.detect_faults, Status.CHECKED, (Note(facts.faults),)
    )


def _fallbacks(contract: Contract, facts: Facts) -> ClauseReport:
    if NO_FALLBACK in contract.fallbacks:
        evidence = "the compile took none, and a failed comparison ends a call"
        return ClauseReport("fallbacks", contract.fallbacks, Status.PROVEN, (Note(evidence),))
    return ClauseReport("fallbacks", contract.fallbacks, Status.CHECKED, (Note("none was needed"),))


_CLAUSES: Mapping[str, Callable[[Contract, Facts], ClauseReport]] = {
    "memory_budget_bytes": _memory,
    "max_concurrency": _concurrency,
    "max_compile_seconds": _compile_seconds,
    "determinism": _determinism,
    "max_error": _error,
    "latency_goal_seconds": _latency,
    "allowed_targets": _targets,
    "detect_faults": _faults,
    "fallbacks": _fallbacks,
}


def refusal_report(contract: Contract, error: PycError) -> ContractReport:
    """Return the report of a compile that ended in an error: nothing was made under any clause."""
    code = error.code.name
    given = contract.given().items()
    return ContractReport(tuple(ClauseReport(n, v, Status.REFUSED, (), code) for n, v in given))


def current_report(
    artifact: Artifact, counts: Counts, recent: Sequence[float] = (), other_runtime: str = ""
) -> ContractReport:
    """Return the report with what this process has found out; `recent` are seconds of calls.

    other_runtime: how the release that the program was compiled for differs from this one.
    """
    report = artifact.contract_report
    if artifact.checks is not None:
        report = report.updated(artifact.checks.clauses)
    changed = []
    for clause in report.clauses:
        if clause.clause == "max_error":
            function = "" if artifact.checks is None else artifact.checks.function
            changed.append(_compared(clause, counts, function))
        elif clause.clause == "fallbacks" and counts.taken:
            changed.append(_taken(clause, counts))
        elif clause.clause == "latency_goal_seconds" and recent:
            changed.append(latency(clause, recent))
        elif clause.clause == "determinism" and other_runtime:
            changed.append(_other_runtime(clause, other_runtime))
    return report.updated(changed)


def _compared(clause: ClauseReport, counts: Counts, function: str = "") -> ClauseReport:
    """Return the clause after the comparisons: samples at load; and calls, once some were compared.

    function: what is known of the function that the program was traced from.
    """
    record = counts.verification
    if function:
        clause = replace(clause, evidence=(*clause.evidence, Note(function)))
    if record is None:
        return clause
    samples = f"{record.done} of {record.of} samples agree"
    done, of = (counts.compared, counts.calls) if counts.compared else (record.done, record.of)
    measured = {"greatest error, as a share of what is allowed": record.worst}
    evidence = (*clause.evidence, Note(samples))
    code = ReasonCode.FALLBACK_TAKEN.name if counts.taken else ""
    return replace(clause, evidence=evidence, code=code, done=done, of=of, measured=measured)


def _other_runtime(clause: ClauseReport, other_runtime: str) -> ClauseReport:
    """Equal bits are promised for equal versions."""
    code = ReasonCode.RUNTIME_DIFFERS.name
    return replace(clause, evidence=(*clause.evidence, Note(other_runtime)), code=code)


def _taken(clause: ClauseReport, counts: Counts) -> ClauseReport:
    return replace(clause, evidence=counts.taken, code=ReasonCode.FALLBACK_TAKEN.name)


def latency(clause: ClauseReport, seconds: Sequence[float]) -> ClauseReport:
    """Return the clause as these calls show it: their median against the goal."""
    median, goal = statistics.median(seconds), clause.requested
    assert isinstance(goal, float | int), "a goal is a number of seconds"
    kept = median <= goal
    return replace(
        clause,
        status=Status.CHECKED if kept else Status.BROKEN,
        code="" if kept else ReasonCode.LATENCY_MISSED.name,
        measured={f"median seconds of {len(seconds)} calls": median},
    )
