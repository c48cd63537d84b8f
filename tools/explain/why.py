"""Occurrences of a reason code in a compile or a run, and its meaning."""

from collections.abc import Iterator, Mapping

from pyc_mlir.artifact.compile_log import CompileLog
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.choices.log import Event


def code_named(name: str) -> ReasonCode:
    """Return the reason code of a name, in any case. Raises PycError (BAD_ARGUMENT)."""
    found = ReasonCode.__members__.get(name.upper())
    if found is None:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"--why {name}: expected a reason code, got none of that name; see docs/errors.md"
            f"{did_you_mean(name.upper(), ReasonCode.__members__)}",
        )
    return found


def why(recorded: CompileLog, code: ReasonCode) -> str:
    """Write the code's row of the table, then each place with the words that hold the code."""
    head = f"{code.name}: {code.value.meaning}\n  remedy: {code.value.remedy}\n"
    places = "".join((*_decisions(recorded, code), *_clauses(recorded, code)))
    return head + (places or f"  does not occur in {recorded.name}\n")


def _decisions(recorded: CompileLog, code: ReasonCode) -> Iterator[str]:
    yield from (f"  compile: {text}\n" for text in _measured(recorded.broken, code))
    for decision in (*recorded.decisions, *recorded.events):
        mentions = [str(fact) for fact in decision.facts if code.name in fact.codes]
        if isinstance(decision, Event):
            mentions += _measured(decision.broken, code)
        if mentions:
            where = f" at {decision.site.location}" if decision.site.location else ""
            head = f"{decision.site.key}: {decision.chosen} (by {decision.decided_by}){where}"
            yield "".join((f"  {head}\n", *(f"    {text}\n" for text in mentions)))


def _measured(broken: Mapping[str, Mapping[str, float]], code: ReasonCode) -> list[str]:
    """Return what was measured of the clause that was broken with a code."""
    return [f"{code.name}: {name} {value}" for name, value in broken.get(code.name, {}).items()]


def _clauses(recorded: CompileLog, code: ReasonCode) -> Iterator[str]:
    artifact = recorded.artifact
    for clause in () if artifact is None else artifact.contract_report.clauses:
        if code.name in (clause.code, *(c for e in clause.evidence for c in e.codes)):
            yield f"  contract: {clause}\n"
