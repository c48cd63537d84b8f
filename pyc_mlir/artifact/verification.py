"""Verification records of an artifact, and the oracle that further checks can ask.

A `Verification` is a small record to be stored beside an artifact: it says that the program's
answers to the artifact's samples were compared, on which CPU and under which runtime. It holds
there only.
`Checks` lives in the process that compiled: the oracle, what was found out, and what may stand
in.

    checked: 3 of 3 samples agree with the numpy references; greatest error 0.1 of what is allowed
    not checked: over budget (an op takes 205520896 bytes, and may take 67108864)

A `SelfCheck` says so of a compile that compared its own program; `Expectation` is what references
say before the program is there. They stand in the `Checks`, in the log, and beside a cache entry.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.test_vectors import ExpectedResult, Samples
from pyc_mlir.dialects.errors import ReasonCode
from pyc_mlir.pipelines.choices.contract import ClauseReport
from pyc_mlir.pipelines.choices.evidence import Reason
from pyc_mlir.pipelines.choices.log import CACHE, COMPILE, Event
from pyc_mlir.pipelines.choices.log import Event as LogEvent


@runtime_checkable
class Oracle(Protocol):
    """Answers for any inputs of a program."""

    @property
    def name(self) -> str:
        """Who answers."""
        ...

    def expect(self, inputs: Sequence[np.ndarray]) -> list[ExpectedResult]:
        """Results and tolerances. Raises PycError for inputs that the program refuses."""
        ...


@dataclass(frozen=True)
class Verification:
    """How a program's answers compared with its samples.

    artifact: the hash of program and samples (`hash_of`); environment: where (`environment_of`);
    done, of: samples that were compared; worst: the greatest error as a share of what is allowed;
    wrong: what differed, empty if nothing did.
    """

    schema: ClassVar[int] = 1
    artifact: str
    environment: Mapping[str, str]
    done: int
    of: int
    worst: float
    wrong: str = ""

    @property
    def passed(self) -> bool:
        """True if all samples agree."""
        return not self.wrong and self.done == self.of

    def fits(self, artifact: str, environment: Mapping[str, str]) -> bool:
        """Return whether the record speaks of this program, in this environment."""
        return self.artifact == artifact and dict(self.environment) == dict(environment)


class VerificationStore(Protocol):
    """A store of one artifact's verification records, kept between processes."""

    def known(self, device: Any) -> Verification | None:
        """Return the verification of an earlier comparison on such a device."""
        ...

    def keep(self, verification: Verification) -> None:
        """Keep what a comparison found."""
        ...


# The event of a check in a log, and how it ends.
NAME, CHECKED, NOT_CHECKED = "self-check", "checked", "not checked"


class Unchecked(Enum):
    """Why nothing was compared."""

    OFF = "switched off"
    OVER_BUDGET = "over budget"
    NO_REFERENCE = "no reference"
    NO_DEVICE = "no device for the target"
    NO_RECORD = "no record beside the cache entry"


@dataclass(frozen=True)
class Expectation:
    """The references' answers for a program: samples, or why there are none.

    name: who answers. work: what that took, in units of `OpDef.evaluation_work`.
    """

    samples: Samples = field(default_factory=Samples)
    name: str = ""
    work: int = 0
    unchecked: Unchecked | None = None
    why: str = ""


@dataclass(frozen=True)
class SelfCheck:
    """How a program compared with its references when it was compiled.

    done: samples that agree; worst: the greatest error as a share of what is allowed; sizes: those
    of dynamic dimensions, for each sample; function: what was found of the traced function itself;
    plans: how many plans for certain shapes agree, of how many; unchecked, why: the reason where
    nothing was compared.
    """

    schema: ClassVar[int] = 2
    name: str = ""
    done: int = 0
    worst: float = 0.0
    sizes: tuple[Mapping[str, int], ...] = ()
    work: int = 0
    function: str = ""
    plans: tuple[int, int] = (0, 0)
    unchecked: Unchecked | None = None
    why: str = ""

    @staticmethod
    def without(unchecked: Unchecked, why: str = "") -> "SelfCheck":
        """Return the outcome where nothing was compared."""
        return SelfCheck(unchecked=unchecked, why=why)

    @property
    def outcome(self) -> str:
        """The outcome in two words at most."""
        return CHECKED if self.unchecked is None else NOT_CHECKED

    @property
    def reason(self) -> str:
        """The subject of the comparison, or why nothing was compared; without what was measured."""
        if self.unchecked is not None:
            return f"{self.unchecked.value}{f' ({self.why})' if self.why else ''}"
        sizes = "; ".join(
            ", ".join(f"{name} = {size}" for name, size in s.items()) for s in self.sizes if s
        )
        at = f" at {sizes}" if sizes else ""
        function = f"; {self.function}" if self.function else ""
        done, count = self.plans
        plans = f"; {done} of {count} plans for shapes agree" if count else ""
        return (
            f"{self.done} of {len(self.sizes)} samples agree with {self.name}{at}{plans}{function}"
        )

    def __str__(self) -> str:
        worst = "" if self.unchecked else f"; greatest error {self.worst:.2g} of what is allowed"
        return f"{self.outcome}: {self.reason}{worst}"

    @property
    def event(self) -> Event:
        """The outcome as a line of a log."""
        measured = {} if self.unchecked else {"worst": self.worst, "work": float(self.work)}
        return Event(
            COMPILE, NAME, self.outcome, reasons=(Reason("", self.reason),), measured=measured
        )


@dataclass(frozen=True)
class Checks:
    """Facts that only the process that compiled an artifact knows.

    oracle: the reference for inputs of calls; verification: the record of the samples; clauses:
    reports of other clauses; stand_ins: by the name of a fallback what makes its artifact;
    function: how the function that was traced, run by numpy, compares with the oracle; expected:
    what the references say for the self-check, until that is done; of_plans: the same of each plan
    for certain shapes, with the plan's signature; check: what came of it.
    """

    oracle: Oracle | None = None
    verification: Verification | None = None
    clauses: tuple[ClauseReport, ...] = ()
    stand_ins: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    function: str = ""
    expected: Expectation | None = None
    of_plans: tuple[tuple[Signature, Expectation], ...] = ()
    check: SelfCheck | None = None


def hash_of(vmfb: bytes | memoryview, samples: bytes, max_error: Any) -> str:
    """Return the identity of a program, its samples and what is asked of them."""
    digest = hashlib.sha256(vmfb)
    digest.update(samples)
    digest.update(repr(max_error).encode())
    return digest.hexdigest()


# A record of the cache's part in a compile: beside the program, never inside its bytes.
#
# The bytes of an artifact are those of its key, whether they were compiled or found. So the record
# is no part of the artifact's own log: it stands in `Program.stats().cache`, and `event` is its
# line in the log that `pyc-compile --log` writes.

# Found on disk; found in this process; compiled and, unless an event says why not, kept; compiled
# without the cache.
HIT, MEMORY, MISS, BYPASS = "hit", "memory", "miss", "bypass"
_SHOWN = 16


@dataclass(frozen=True)
class CacheEvent:
    """Something that kept the cache from answering, or from keeping the answer."""

    code: ReasonCode
    why: str

    def __str__(self) -> str:
        return f"{self.code.name}: {self.why}"


@dataclass(frozen=True)
class CacheRecord:
    """The outcome, the key's SHA-256 in hex (empty without one), and each event with its code.

    `key_seconds` went into making the key, `find_seconds` into finding and reading the entry.
    """

    outcome: str
    key: str = ""
    events: tuple[CacheEvent, ...] = ()
    key_seconds: float = 0.0
    find_seconds: float = 0.0

    @property
    def event(self) -> LogEvent:
        """The record as a line of a log."""
        return LogEvent(
            CACHE,
            self.key[:_SHOWN] or "none",
            self.outcome,
            reasons=tuple(Reason(e.code.name, e.why) for e in self.events),
            measured={"key_seconds": self.key_seconds, "find_seconds": self.find_seconds},
        )
