"""What a user may ask PyC to promise, and which of it PyC can keep.

A `Contract` is data: its clauses travel in the artifact's manifest. A clause that was given and
that PyC cannot keep is refused by `check`, with its name; none is ever dropped in silence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pyc_mlir.dialects.errors import PycError, ReasonCode

# Clauses that the compile pipeline keeps; the others are refused when given.
KEPT = frozenset({"allowed_targets", "max_concurrency", "memory_budget_bytes"})
_POSITIVE = (
    "memory_budget_bytes",
    "max_concurrency",
    "max_compile_seconds",
    "latency_goal_seconds",
)


@dataclass(frozen=True)
class Contract:
    """The clauses; the default of each asks for nothing.

    memory_budget_bytes: device memory of one call, its results included.
    max_concurrency: how many calls may overlap while the other clauses hold.
    max_compile_seconds: a compile that takes longer is ended and refused.
    determinism: equal inputs give equal bits.
    max_error: greatest relative error against the numpy reference.
    latency_goal_seconds: median seconds of one call.
    allowed_targets: names of the targets that may be compiled for; empty allows all.
    fallbacks: what may serve a call that the program cannot, in this order.
    """

    memory_budget_bytes: int | None = None
    max_concurrency: int = 1
    max_compile_seconds: float | None = None
    determinism: bool = False
    max_error: float | None = None
    latency_goal_seconds: float | None = None
    allowed_targets: tuple[str, ...] = ()
    fallbacks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise PycError (BAD_ARGUMENT) for a value that no clause can have."""
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise PycError(
                    ReasonCode.BAD_ARGUMENT,
                    f"contract clause `{name}`: expected a number above 0, got {value!r}",
                )
        if type(self.max_concurrency) is not int:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                "contract clause `max_concurrency`: expected a whole number, "
                f"got {self.max_concurrency!r}",
            )
        if self.max_error is not None and self.max_error < 0:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"contract clause `max_error`: expected 0 or more, got {self.max_error!r}",
            )

    def given(self) -> dict[str, Any]:
        """The clauses that differ from their default."""
        return {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if getattr(self, f.name) != f.default
        }

    def check(self, target: str | None = None) -> None:
        """Raise PycError unless PyC can keep every clause given.

        UNSUPPORTED_CLAUSE names the first clause that cannot be kept; BAD_ARGUMENT when `target`
        (a target's name) is not among `allowed_targets`.
        """
        refused = [name for name in self.given() if name not in KEPT]
        if refused:
            raise PycError(
                ReasonCode.UNSUPPORTED_CLAUSE,
                f"contract clause `{refused[0]}`: expected one of {sorted(KEPT)}, "
                f"got {refused[0]}={getattr(self, refused[0])!r}, which PyC cannot promise yet; "
                "drop the clause",
            )
        if target is not None and self.allowed_targets and target not in self.allowed_targets:
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"contract clause `allowed_targets`: expected one of "
                f"{', '.join(self.allowed_targets)}, got target {target!r}",
            )

    def to_json(self) -> dict[str, Any]:
        """Every clause as plain JSON data, in the order of the fields."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Contract":
        """Read what `to_json` wrote. Raises PycError (UNSUPPORTED_CLAUSE) for unknown clauses."""
        unknown = sorted(set(data) - {f.name for f in fields(Contract)})
        if unknown:
            raise PycError(
                ReasonCode.UNSUPPORTED_CLAUSE,
                f"contract clause `{unknown[0]}`: expected a clause of this version, got an "
                "unknown one; drop the clause, or install a newer PyC",
            )
        values: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in data.items()
        }
        return Contract(**values)
