"""Verification records of an artifact, and the oracle that further checks can ask.

A `Verification` is a small record to be stored beside an artifact: it says that the program's
answers to the artifact's samples were compared, on which CPU and under which runtime. It holds
there only.
`Evidence` lives in the process that compiled: the oracle, what was found out, and what may stand
in.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import numpy as np

from pyc_mlir.artifact.test_vectors import ExpectedResult
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.pipelines.choices.contract_report import ClauseReport

SCHEMA_VERSION = 1


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

    artifact: str
    environment: Mapping[str, str]
    done: int
    of: int
    worst: float
    wrong: str = ""

    @property
    def passed(self) -> bool:
        """Whether all samples agree."""
        return not self.wrong and self.done == self.of

    def fits(self, artifact: str, environment: Mapping[str, str]) -> bool:
        """Whether it speaks of this program, in this environment."""
        return self.artifact == artifact and dict(self.environment) == dict(environment)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"schema": SCHEMA_VERSION, **asdict(self)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Verification":
        """Read what `to_json` wrote. Raises PycError (BAD_ARTIFACT) for anything else."""
        try:
            if data["schema"] != SCHEMA_VERSION:
                raise ValueError(f"schema {data['schema']!r}")
            return Verification(
                str(data["artifact"]),
                {str(name): str(value) for name, value in data["environment"].items()},
                int(data["done"]),
                int(data["of"]),
                float(data["worst"]),
                str(data["wrong"]),
            )
        # An OverflowError is of infinity as a whole number.
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise PycError(
                ReasonCode.BAD_ARTIFACT,
                f"verification: expected one of schema {SCHEMA_VERSION}, got {data!r:.200} "
                f"({type(error).__name__}: {error}); compare again",
            ) from None


class VerificationStore(Protocol):
    """Where verification records of one artifact are kept between processes."""

    def known(self, device: Any) -> Verification | None:
        """The verification of an earlier comparison on such a device."""
        ...

    def keep(self, verification: Verification) -> None:
        """Keep what a comparison found."""
        ...


@dataclass(frozen=True)
class Evidence:
    """What the process that compiled an artifact knows of it besides.

    oracle: the reference for inputs of calls; verification: the record of the samples; clauses:
    reports of other clauses; stand_ins: by the name of a fallback what makes its artifact;
    function: how the function that was traced, run by numpy, compares with the oracle.
    """

    oracle: Oracle | None = None
    verification: Verification | None = None
    clauses: tuple[ClauseReport, ...] = ()
    stand_ins: Mapping[str, Callable[[], Any]] = field(default_factory=dict)
    function: str = ""


def hash_of(vmfb: bytes | memoryview, samples: bytes, max_error: Any) -> str:
    """The identity of a program, its samples and what is asked of them."""
    digest = hashlib.sha256(vmfb)
    digest.update(samples)
    digest.update(repr(max_error).encode())
    return digest.hexdigest()
