"""The report of a contract: the status of each clause, with a code and the evidence.

    memory_budget_bytes   proven    1048576: needs 401408 bytes
    max_error             sampled 2 of 2   0.001: greatest error 0.03 of what is allowed

Comes in: clauses as the compile and the runs judge them; goes out: plain data for the manifest,
`Program.stats()` and the tools. What was measured stands apart, so that the rest is deterministic.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from pyc_mlir.pipelines.choices.evidence import Evidence


class Status(Enum):
    """How sure a clause is."""

    PROVEN = "proven"  # follows from the program, for every call
    CHECKED = "checked"  # holds for all that was done so far
    SAMPLED = "sampled"  # holds for n of N
    BROKEN = "broken"  # does not hold
    REFUSED = "refused"  # nothing was made under it


@dataclass(frozen=True)
class ClauseReport:
    """One clause: its name, its requested value, its status, and the evidence.

    code: the name of a reason code, empty where all is well. done, of: for what was sampled.
    measured: numbers that another run may change.
    """

    clause: str
    requested: bool | int | float | str | tuple[str, ...] | None
    status: Status
    evidence: tuple[Evidence, ...] = ()
    code: str = ""
    done: int = 0
    of: int = 0
    measured: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.clause} = {self.state}"

    @property
    def state(self) -> str:
        """The requested value, the status and the evidence."""
        status = self.status.value
        if self.status is Status.SAMPLED:
            status = f"{status} {self.done} of {self.of}"
        requested = (
            ", ".join(self.requested) if isinstance(self.requested, tuple) else self.requested
        )
        facts = [str(e) for e in self.evidence]
        facts += [f"{name} {value:g}" for name, value in self.measured.items()]
        code = f" [{self.code}]" if self.code else ""
        return "; ".join([f"{requested}: {status}{code}", *facts])


@dataclass(frozen=True)
class ContractReport:
    """All clauses that were given, in the contract's order."""

    clauses: tuple[ClauseReport, ...] = ()

    @property
    def holds(self) -> bool:
        """True if no clause is broken or refused."""
        return all(c.status not in (Status.BROKEN, Status.REFUSED) for c in self.clauses)

    def __getitem__(self, clause: str) -> ClauseReport:
        """Return the report of a clause. Raises KeyError for one that was not given."""
        for found in self.clauses:
            if found.clause == clause:
                return found
        raise KeyError(clause)

    def __str__(self) -> str:
        return "".join(f"{clause}\n" for clause in self.clauses)

    def updated(self, changed: Iterable[ClauseReport]) -> "ContractReport":
        """Replace the clauses of the same names by these."""
        by_name = {c.clause: c for c in changed}
        return ContractReport(tuple(by_name.get(c.clause, c) for c in self.clauses))

    def unmeasured(self) -> "ContractReport":
        """Drop the parts that another run may change: for artifacts, which are deterministic."""
        return ContractReport(tuple(replace(c, measured={}) for c in self.clauses))

    @property
    def broken(self) -> dict[str, Mapping[str, float]]:
        """The measurements of broken clauses by reason code, which logs keep apart."""
        return {c.code: c.measured for c in self.clauses if c.status is Status.BROKEN}
