"""A contract: the clauses that a user may demand, and checks that PyC can meet them.

A `Contract` is data: its clauses travel in the artifact's manifest. A clause that cannot be checked
and clauses that cannot hold together are refused when the contract is made. None is ever dropped in
silence.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, TypeVar, dataclass_transform

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.quantities import duration, size
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.choices.evidence import Evidence
from pyc_mlir.pipelines.target.target import TARGETS

STRICT, ROUNDING = "strict", "rounding"
# What may take a program's place, and whether its results have the same bits.
NO_FALLBACK, OTHER_PLANS, IREE_CODE, REFERENCE = "none", "modes", "iree", "numpy"
FALLBACKS: Mapping[str, bool] = {
    NO_FALLBACK: True,
    OTHER_PLANS: True,
    IREE_CODE: False,
    REFERENCE: False,
}
# Why the memory, and the time, of these have no bound that a compile could check.
_UNBOUNDED: Mapping[str, tuple[str, str]] = {
    IREE_CODE: ("it is loaded beside the program that failed", "it was not measured"),
    REFERENCE: ("numpy allocates as it likes", "its time is not bounded"),
}
# The greatest value of each number above 0; whole ones are counted or are bytes.
_WHOLE: Mapping[str, int] = {"memory_budget_bytes": 2**63 - 1, "max_concurrency": 2**31 - 1}
_SECONDS: Mapping[str, float] = {"max_compile_seconds": 1e9, "latency_goal_seconds": 1e9}


def _bytes(given: int | str | None) -> int | None:
    return size(given) if isinstance(given, str) else given


def _seconds(given: float | str | None) -> float | None:
    return duration(given) if isinstance(given, str) else given


T = TypeVar("T")


def _converted(*, default: Any, converter: Callable[[Any], Any]) -> Any:
    """Declare a field whose values `converter` reads; it raises ValueError with its expectation."""
    return field(default=default, metadata={"converter": converter})


@dataclass_transform(frozen_default=True, field_specifiers=(_converted,))
def _clauses(kind: type[T]) -> type[T]:
    """Make a frozen dataclass; type checkers know the types that its fields' converters take."""
    return dataclass(frozen=True)(kind)


@_clauses
class Contract:
    """The clauses; the default of each is no requirement. Sizes and times may be given as texts
    with a unit: ``64MiB``, ``5ms``.

    memory_budget_bytes: device memory of one call, its results included.
    max_concurrency: how many calls may overlap while the other clauses hold.
    max_compile_seconds: a compile that takes longer is ended. What compiles faster stands in for
        it, or it is refused: under strict determinism and ``fallbacks = none`` at once.
    determinism: ``strict``: equal module, recipe, target and versions give equal artifacts, and
        equal inputs give equal bits, whatever the number of threads.
    max_error: the greatest |difference| from the reference, as a share of the greatest |element| of
        that result, which products may spend on fewer bits; ``rounding`` requires that rounding
        explains every difference, and each value of the clause that rounding and these products do.
    latency_goal_seconds: median seconds of one call.
    latency_binding: a program that misses the goal is refused; else that is reported.
    allowed_targets: names of the targets that may be compiled for; empty allows all.
    detect_faults: products with constant weights carry checksums, which find what a faulty core or
        damaged memory makes of them: a passing fault is repaired within the call, a lasting one
        ends it (FAULT_DETECTED). Refused where no product of the program can carry any.
    fallbacks: what may take the place of a program that fails its comparison, in this order:
        ``modes`` (the artifact's other memory plans), ``iree`` (IREE's code for all of it),
        ``numpy`` (the reference answers); ``none`` refuses every fallback, a compile's too.
    """

    memory_budget_bytes: int | None = _converted(default=None, converter=_bytes)
    max_concurrency: int = 1
    max_compile_seconds: float | None = _converted(default=None, converter=_seconds)
    determinism: str = ""
    max_error: float | str | None = None
    latency_goal_seconds: float | None = _converted(default=None, converter=_seconds)
    latency_binding: bool = False
    allowed_targets: tuple[str, ...] = ()
    detect_faults: bool = False
    fallbacks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise PycError for what no program can keep.

        BAD_ARGUMENT for a value that no clause can have, UNCHECKABLE_CLAUSE, CONTRACT_CONFLICT.
        """
        for clause in fields(self):
            if (converter := clause.metadata.get("converter")) is not None:
                value = getattr(self, clause.name)
                try:
                    object.__setattr__(self, clause.name, converter(value))
                except ValueError as error:
                    raise _bad(clause.name, str(error), value) from None
        for refused in (_bad_values, _uncheckable, _conflicts):
            if (error := next(refused(self), None)) is not None:
                raise error

    @property
    def is_strict(self) -> bool:
        """True if artifacts and results are to be the same, bit by bit."""
        return self.determinism == STRICT

    @property
    def compares(self) -> bool:
        """True if answers are compared with a reference."""
        return self.max_error is not None

    @property
    def bounds_error(self) -> bool:
        """True if a number bounds the error: the user's own, unlike `rounding`."""
        return isinstance(self.max_error, int | float)

    @property
    def approximates(self) -> bool:
        """True if products may be approximate."""
        return self.bounds_error and self.max_error != 0 and not self.detect_faults

    def given(self) -> dict[str, Any]:
        """Return the clauses that differ from their default."""
        values = ((f, getattr(self, f.name)) for f in fields(self))
        return {f.name: value for f, value in values if value != f.default}

    def check(self, target: str | None = None) -> None:
        """Raise PycError (BAD_ARGUMENT) for a target's name that is not allowed."""
        # The plain name of a device stands for one of its targets.
        allowed = {*self.allowed_targets, *(TARGETS[n].name for n in self.allowed_targets)}
        if target is not None and allowed and target not in allowed:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"contract clause `allowed_targets`: expected one of "
                f"{', '.join(self.allowed_targets)}, got target {target!r}",
            )

    @staticmethod
    def of(data: Mapping[str, Any]) -> "Contract":
        """Return the contract of clauses by name, with lists for tuples.

        Raises PycError: UNSUPPORTED_CLAUSE for unknown clauses, BAD_ARGUMENT for impossible ones.
        """
        if not isinstance(data, Mapping):
            raise PycError(
                ReasonCode.BAD_ARGUMENT, f"contract: expected clauses by name, got {data!r:.80}"
            )
        unknown = sorted(set(data) - {f.name for f in fields(Contract)})
        if unknown:
            raise PycError(
                ReasonCode.UNSUPPORTED_CLAUSE,
                f"contract clause `{unknown[0]}`: expected a clause of this version, got an "
                "unknown one; drop the clause, or install a newer PyC"
                f"{did_you_mean(unknown[0], (f.name for f in fields(Contract)))}",
            )
        values: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in data.items()
        }
        return Contract(**values)


def _bad_values(contract: Contract) -> Iterator[PycError]:
    for name, most in _WHOLE.items():
        value = getattr(contract, name)
        if value is None and name == "memory_budget_bytes":
            continue
        if type(value) is not int or not 0 < value <= most:
            yield _bad(name, f"a whole number from 1 to {most}", value)
    for name, longest in _SECONDS.items():
        value = getattr(contract, name)
        if value is not None and (not _is_number(value) or not 0 < value <= longest):
            yield _bad(name, f"seconds above 0, at most {longest:g}", value)
    for name in ("latency_binding", "detect_faults"):
        if type(getattr(contract, name)) is not bool:
            yield _bad(name, "True or False", getattr(contract, name))
    if contract.determinism not in ("", STRICT):
        yield _bad("determinism", f"{STRICT!r}", contract.determinism)
    error = contract.max_error
    is_share = isinstance(error, int | float) and _is_number(error) and 0 <= error < 1
    if error not in (None, ROUNDING) and not is_share:
        yield _bad("max_error", f"a number from 0 to below 1, or {ROUNDING!r}", error)
    targets = contract.allowed_targets
    if not _are_texts(targets) or not set(targets) <= TARGETS.keys():
        known = f"a tuple of names among {', '.join(sorted(TARGETS))}"
        yield _bad("allowed_targets", known, targets)
    named = contract.fallbacks
    if not _are_texts(named) or len(set(named)) != len(named) or not set(named) <= FALLBACKS.keys():
        yield _bad("fallbacks", f"some of {', '.join(FALLBACKS)}, each once", contract.fallbacks)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_texts(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(name, str) for name in value)


def _bad(name: str, expected: str, value: object) -> PycError:
    return PycError(
        ReasonCode.BAD_ARGUMENT,
        f"contract clause `{name}`: expected {expected}, got {value!r}",
    )


def _uncheckable(contract: Contract) -> Iterator[PycError]:
    if contract.latency_binding and contract.latency_goal_seconds is None:
        yield uncheckable("latency_binding", "a goal to miss", "no `latency_goal_seconds`")
    if set(contract.fallbacks) - {NO_FALLBACK} and not contract.compares:
        yield uncheckable("fallbacks", "a comparison that calls for one", "no `max_error`")


def uncheckable(name: str, expected: str, got: str) -> PycError:
    """Return the error for a clause that nothing can check."""
    return PycError(
        ReasonCode.UNCHECKABLE_CLAUSE,
        f"contract clause `{name}`: expected {expected}, got {got}, so that nothing would check "
        "it; add what is missing, or drop the clause",
    )


def _conflicts(contract: Contract) -> Iterator[PycError]:
    chain = contract.fallbacks
    if NO_FALLBACK in chain and len(chain) > 1:
        yield conflict(f"fallbacks={NO_FALLBACK!r}", f"{chain[-1]!r} beside it", "it refuses all")
    others = [name for name in chain if not FALLBACKS[name]]
    if contract.is_strict and others:
        yield conflict(
            f"determinism={STRICT!r}", f"fallback {others[0]!r}", "its results have other bits"
        )
    if contract.detect_faults and others:
        yield conflict("detect_faults", f"fallback {others[0]!r}", "it detects none")
    for name, (memory, seconds) in _UNBOUNDED.items():
        if name in chain and contract.memory_budget_bytes is not None:
            yield conflict("memory_budget_bytes", f"fallback {name!r}", memory)
        if name in chain and contract.latency_binding:
            yield conflict("latency_binding", f"fallback {name!r}", seconds)


def conflict(first: str, second: str, why: str) -> PycError:
    """Return the error for two parts of a contract, or of a compile, that cannot hold together."""
    return PycError(
        ReasonCode.CONTRACT_CONFLICT,
        f"contract: expected clauses that can hold together, got {first} and {second} ({why}); "
        "drop one of them",
    )


# The report of a contract; what was measured stands apart, so that the rest is deterministic:
#
#     memory_budget_bytes   proven    1048576: needs 401408 bytes
#     max_error             sampled 2 of 2   0.001: greatest error 0.03 of what is allowed


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
