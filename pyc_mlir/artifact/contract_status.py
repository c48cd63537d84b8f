"""The status of each clause of a contract, at compile time and after the runs so far.

`promised` is deterministic and travels in the manifest; `so_far` adds what this process knows:
comparisons, fallbacks, latencies; `refused` stands in the log where no program was made.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyc_mlir.artifact.account import Account
from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.verification import Verdict
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract import NO_FALLBACK, Contract
from pyc_mlir.pipelines.choices.contract_report import ClauseReport, ContractReport, Status

# Runs of one input that a strict contract compares: one thread, twice, and two threads, twice.
STRICT_RUNS = 4


@dataclass(frozen=True)
class Facts:
    """What the compile knows: the target, the memory of a call, samples, and who answered them."""

    target: str
    account: Account
    samples: int = 0
    oracle: str = ""
    calibration: str = ""


@dataclass(frozen=True)
class Counts:
    """What was compared here: the samples' verdict, calls, those of them that were compared.

    taken: what fallbacks were taken, and why.
    """

    verdict: Verdict | None = None
    calls: int = 0
    compared: int = 0
    taken: tuple[str, ...] = ()


def promised(contract: Contract, facts: Facts) -> ContractReport:
    """A report for every clause that was given."""
    given = contract.given()
    return ContractReport(tuple(_SAY[name](contract, facts) for name in given if name in _SAY))


def _memory(contract: Contract, facts: Facts) -> ClauseReport:
    asked = contract.memory_budget_bytes
    needed = facts.account.total(contract.max_concurrency)
    told = "a plan within it was made for every region" if needed is None else ""
    several = contract.max_concurrency > 1
    arenas = f", with arenas for {contract.max_concurrency} calls" if several else ""
    told = told or f"{needed} bytes are needed by one call{arenas}"
    return ClauseReport("memory_budget_bytes", asked, Status.PROVEN, (told,))


def _concurrency(contract: Contract, facts: Facts) -> ClauseReport:
    told = "the arenas of so many calls are counted; further calls wait"
    return ClauseReport("max_concurrency", contract.max_concurrency, Status.PROVEN, (told,))


def _targets(contract: Contract, facts: Facts) -> ClauseReport:
    told = f"compiled for {facts.target}"
    return ClauseReport("allowed_targets", contract.allowed_targets, Status.PROVEN, (told,))


def _determinism(contract: Contract, facts: Facts) -> ClauseReport:
    measured = f"the calibration {facts.calibration}" if facts.calibration else "none"
    told = (
        "searches end by counts of work, not by a clock",
        "what a workgroup computes is fixed in the code; threads only take workgroups",
        f"measurements used: {measured}",
    )
    return ClauseReport("determinism", contract.determinism, Status.SAMPLED, told, of=STRICT_RUNS)


def _error(contract: Contract, facts: Facts) -> ClauseReport:
    told = f"compared with {facts.oracle} before the first answer leaves"
    return ClauseReport("max_error", contract.max_error, Status.SAMPLED, (told,), of=facts.samples)


def _compile_seconds(contract: Contract, facts: Facts) -> ClauseReport:
    told = "compiled as asked, in a process that is ended at the limit"
    asked = contract.max_compile_seconds
    return ClauseReport("max_compile_seconds", asked, Status.CHECKED, (told,))


def _latency(contract: Contract, facts: Facts) -> ClauseReport:
    binding = "refused when missed" if contract.latency_binding else "told when missed"
    return ClauseReport(
        "latency_goal_seconds", contract.latency_goal_seconds, Status.SAMPLED, (binding,)
    )


def _fallbacks(contract: Contract, facts: Facts) -> ClauseReport:
    if NO_FALLBACK in contract.fallbacks:
        told = "the compile took none, and a failed comparison ends a call"
        return ClauseReport("fallbacks", contract.fallbacks, Status.PROVEN, (told,))
    return ClauseReport("fallbacks", contract.fallbacks, Status.CHECKED, ("none was needed",))


_SAY: Mapping[str, Callable[[Contract, Facts], ClauseReport]] = {
    "memory_budget_bytes": _memory,
    "max_concurrency": _concurrency,
    "max_compile_seconds": _compile_seconds,
    "determinism": _determinism,
    "max_error": _error,
    "latency_goal_seconds": _latency,
    "allowed_targets": _targets,
    "fallbacks": _fallbacks,
}


def refused(contract: Contract, error: PycError) -> ContractReport:
    """The report of a compile that ended in an error: nothing was made under any clause."""
    code = error.code.name
    given = contract.given().items()
    return ContractReport(tuple(ClauseReport(n, v, Status.REFUSED, (), code) for n, v in given))


def so_far(
    artifact: Artifact, counts: Counts, recent: Sequence[float] = (), other_runtime: str = ""
) -> ContractReport:
    """The report with what this process has found out; `recent` are seconds of calls.

    other_runtime: how the release that the program was compiled for differs from this one.
    """
    report = artifact.promises
    if artifact.evidence is not None:
        report = report.updated(artifact.evidence.clauses)
    told = []
    for clause in report.clauses:
        if clause.clause == "max_error":
            function = "" if artifact.evidence is None else artifact.evidence.function
            told.append(_compared(clause, counts, function))
        elif clause.clause == "fallbacks" and counts.taken:
            told.append(_taken(clause, counts))
        elif clause.clause == "latency_goal_seconds" and recent:
            told.append(latency(clause, recent))
        elif clause.clause == "determinism" and other_runtime:
            told.append(_elsewhere(clause, other_runtime))
    return report.updated(told)


def _compared(clause: ClauseReport, counts: Counts, function: str = "") -> ClauseReport:
    """Samples at load; and calls, once there are any that were compared.

    function: what is known of the function that the program was traced from.
    """
    verdict = counts.verdict
    if function:
        clause = replace(clause, evidence=(*clause.evidence, function))
    if verdict is None:
        return clause
    samples = f"{verdict.done} of {verdict.of} samples agree"
    done, of = (counts.compared, counts.calls) if counts.compared else (verdict.done, verdict.of)
    measured = {"greatest error, as a share of what is allowed": verdict.worst}
    evidence = (*clause.evidence, samples)
    code = ReasonCode.FALLBACK_TAKEN.name if counts.taken else ""
    return replace(clause, evidence=evidence, code=code, done=done, of=of, measured=measured)


def _elsewhere(clause: ClauseReport, other_runtime: str) -> ClauseReport:
    """Equal bits are promised for equal versions."""
    code = ReasonCode.RUNTIME_DIFFERS.name
    return replace(clause, evidence=(*clause.evidence, other_runtime), code=code)


def _taken(clause: ClauseReport, counts: Counts) -> ClauseReport:
    return replace(clause, evidence=counts.taken, code=ReasonCode.FALLBACK_TAKEN.name)


def latency(clause: ClauseReport, seconds: Sequence[float]) -> ClauseReport:
    """The clause as so many calls show it: their median against the goal."""
    median = statistics.median(seconds)
    kept = median <= clause.asked
    return replace(
        clause,
        status=Status.CHECKED if kept else Status.BROKEN,
        code="" if kept else ReasonCode.LATENCY_MISSED.name,
        measured={f"median seconds of {len(seconds)} calls": median},
    )
