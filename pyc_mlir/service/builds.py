"""Builds of a program: loaded, compared with the one in place, and warm before they serve."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyc_mlir.artifact.artifact import Artifact
from pyc_mlir.artifact.signature import Signature
from pyc_mlir.artifact.test_vectors import make_inputs
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.runtime.load import load
from pyc_mlir.runtime.program import Program

FAILED = -1.0
_WARM_CALLS = 2


@dataclass(eq=False)
class Build:
    """A program in place, and its latest calls.

    recent: their seconds, `FAILED` for one that failed. since: when the first of them may have
    begun, on the clock of `perf_counter`. judged_at: the count of calls at which they are judged
    next. slowest: seconds that the p95 of the first window may have, or None.
    distrusted: why its answers are not given out any more. modes_left: plans not tried as fallback.
    """

    number: int
    program: Program
    recent: deque[float]
    judged_at: int
    slowest: float | None = None
    distrusted: str = ""
    by_reference: bool = False
    modes_left: list[str] = field(default_factory=list)
    calls: int = 0
    since: float = 0.0


def loaded(program: Program | Artifact | str | Path) -> Program:
    """Return a program on its default device. Raises PycError as `load` does."""
    if isinstance(program, Program):
        return program
    return Program(program) if isinstance(program, Artifact) else load(program)


def require_same(now: Signature, after: Signature) -> None:
    """Raise PycError (BAD_ARGUMENT) unless calls of both look the same."""

    def form(entries: Sequence[Any]) -> list[tuple[Any, ...]]:
        return [
            (e.name, e.dtype, tuple(d if isinstance(d, int) else None for d in e.shape))
            for e in entries
        ]

    same = form(now.inputs) == form(after.inputs) and form(now.outputs) == form(after.outputs)
    if not same or now.results != after.results:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            where="swap",
            expected=f"a program with the signature of the one in place, {_shown(now)}",
            got=_shown(after),
            remedy="start another service for it",
        )


def _shown(signature: Signature) -> str:
    inputs = ", ".join(f"{e.name}: {e}" for e in signature.inputs)
    return f"({inputs}) -> ({', '.join(map(str, signature.outputs))})"


def warm(program: Program) -> None:
    """Call a program a few times before it serves: on the smallest sizes that it declares."""
    signature = program.signature
    sizes = {name: low for name, (low, _) in signature.ranges.items()}
    if any(name not in sizes for name, _ in signature.undeclared):
        return
    inputs = make_inputs(signature, 0, sizes)
    for _ in range(_WARM_CALLS):
        program(*inputs)
