"""The status of each clause of a contract, at compile time and after the runs so far.

`compile_report` is deterministic and travels in the manifest. `current_report` adds comparisons,
fallbacks and latencies of this process. `refusal_report` is for the log of a refused compile.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

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
    reports = (_clause(n, v, contract, facts) for n, v in contract.given().items())
    return ContractReport(tuple(r for r in reports if r is not None))


def _clause(name: str, requested: Any, contract: Contract, facts: Facts) -> ClauseReport | None:
    """Return the report of a clause; None for one that only changes how another is judged."""
    status, notes, samples = Status.SAMPLED, list[str](), 0
    match name:
        case "memory_budget_bytes":
            account, calls, time = facts.account, contract.max_concurrency, facts.prediction
            needed, status = account.total(calls), Status.PROVEN
            notes = ["a plan within it was made for every region"]
            if needed is not None:
                notes = [f"{needed} bytes: {account.described(calls)}"]
            if time is not None and facts.without_budget is not None:
                notes += [f"{time}, {quantity(facts.without_budget, 's')} without the budget"]
        case "max_concurrency":
            status = Status.PROVEN
            notes = ["the arenas of so many calls are counted; further calls wait"]
        case "allowed_targets":
            status, notes = Status.PROVEN, [f"compiled for {facts.target}"]
        case "determinism":
            samples = STRICT_RUNS
            notes = [
                "searches end by counts of work, not by a clock",
                "what a workgroup computes is fixed in the code; threads only take workgroups",
                f"measurements used: {', '.join(facts.measurements) or 'none'}",
            ]
        case "max_error":
            samples = facts.samples
            notes = [f"compared with {facts.oracle} before the first answer leaves"]
            if facts.approximate:
                notes += [f"{facts.approximate}, and check each tile in each call"]
        case "max_compile_seconds":
            status = Status.CHECKED
            notes = ["compiled with the requested options, in a process that is ended at the limit"]
        case "latency_goal_seconds":
            notes = ["refused when missed" if contract.latency_binding else "reported when missed"]
            notes += [] if facts.prediction is None else [str(facts.prediction)]
        case "detect_faults":
            status, notes = Status.CHECKED, [facts.faults]
        case "fallbacks" if NO_FALLBACK in contract.fallbacks:
            status = Status.PROVEN
            notes = ["the compile took none, and a failed comparison ends a call"]
        case "fallbacks":
            status, notes = Status.CHECKED, ["none was needed"]
        case _:
            return None
    return ClauseReport(name, requested, status, tuple(map(Note, notes)), of=samples)


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
            code = ReasonCode.FALLBACK_TAKEN.name
            changed.append(replace(clause, evidence=counts.taken, code=code))
        elif clause.clause == "latency_goal_seconds" and recent:
            changed.append(latency(clause, recent))
        elif clause.clause == "determinism" and other_runtime:
            # Equal bits are promised for equal versions.
            evidence, code = (
                (*clause.evidence, Note(other_runtime)),
                ReasonCode.RUNTIME_DIFFERS.name,
            )
            changed.append(replace(clause, evidence=evidence, code=code))
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
