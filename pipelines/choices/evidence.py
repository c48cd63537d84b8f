"""Evidence: the facts that a decision rests on, as frozen records.

Passes, policies and recipes make them, code reads their fields, `str()` writes the sentence for
people, and logs keep ``{"kind": "plan-bytes", ...}``. A plain text, as a plugin may give, is a
`Note`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from pyc_mlir.dialects.reasons import ReasonCode

_LONGEST = 300


class Evidence:
    """One fact that a decision rests on; its kind is its name, ``plan-bytes`` of `PlanBytes`."""

    kind: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        cls.kind = re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    @property
    def codes(self) -> tuple[str, ...]:
        """The names of the reason codes that it gives."""
        return ()


@dataclass(frozen=True)
class Note(Evidence):
    """A text that only people read."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Reason(Evidence):
    """Why something was refused, left or replaced: the name of a reason code, or "", and a text."""

    code: str
    message: str

    @staticmethod
    def of(code: ReasonCode, message: str) -> "Reason":
        """Return the reason with a message that is cut off where it is long."""
        return Reason(code.name, message[: _LONGEST - len(code.name) - 2])

    @property
    def codes(self) -> tuple[str, ...]:
        """The names of the reason codes that it gives."""
        return (self.code,) if self.code else ()

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.code else self.message


@dataclass(frozen=True)
class Computes(Evidence):
    """The canonical ids of the ops that a group of one kernel computes."""

    ops: tuple[str, ...]

    def __str__(self) -> str:
        return f"computes {' '.join(self.ops)}"


@dataclass(frozen=True)
class NotOffered(Evidence):
    """Alternatives that were legal for the op, and why they were left out."""

    names: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return f"not offered: {', '.join(self.names)}: {self.why}"


@dataclass(frozen=True)
class LargerConstant(Evidence):
    """Constants that an alternative reads in a form larger than the model's, and why it may.

    constants: their ids; nbytes: of all that the alternative reads, own_bytes: of the same in the
    model. saves: predicted seconds over the alternative `over`, whose constants are smaller or
    which is preferred; "" where there is none. worth: seconds that a MiB is worth in this program;
    0 where constants have no price.
    """

    alternative: str
    constants: tuple[str, ...]
    nbytes: int
    own_bytes: int
    saves: float
    over: str
    worth: float

    def __str__(self) -> str:
        larger = f"{self.nbytes} bytes in place of the model's {self.own_bytes}"
        saves = f", {self.saves:.3g} s quicker than `{self.over}`" if self.over else ""
        worth = f"; a MiB is worth {self.worth:.3g} s here" if self.worth else ""
        return f"`{self.alternative}` keeps {', '.join(self.constants)} as {larger}{saves}{worth}"


@dataclass(frozen=True)
class AllowedError(Evidence):
    """The error of an approximate product: allowed, and needed by nine of ten tiles of a sample.

    Both are shares of the result's greatest element, by the bound that kernels check.
    """

    way: str
    allowed: float
    needed: float

    def __str__(self) -> str:
        need = f"nine of ten tiles of a sample need {self.needed:.2g}"
        return f"{self.way} may be off by {self.allowed:.2g} of the greatest element; {need}"


@dataclass(frozen=True)
class WithoutBudget(Evidence):
    """The predicted seconds of a call of the program that no memory budget changed."""

    seconds: float

    def __str__(self) -> str:
        return f"without the budget {self.seconds:.4g} s a call are predicted"


@dataclass(frozen=True)
class PlanBytes(Evidence):
    """The bytes of a memory plan and of IREE's own, as numbers or formulas of dynamic sizes."""

    plan: str
    nbytes: str
    reference: str
    smaller: bool

    def __str__(self) -> str:
        proven = "smaller" if self.smaller else "not proven smaller"
        return f"{self.plan}: {self.nbytes} bytes, {proven} than IREE's {self.reference}"


@dataclass(frozen=True)
class ContentHash(Evidence):
    """The SHA-256 of the file that a compile goes by, and its name if it has one."""

    sha256: str
    name: str = ""

    def __str__(self) -> str:
        return f"{f'`{self.name}`, ' if self.name else ''}sha256:{self.sha256}"


@dataclass(frozen=True)
class CarriedOver(Evidence):
    """A choice that a recipe of another program has for the same work."""

    work: str

    def __str__(self) -> str:
        return f"carried over by {self.work}"


@dataclass(frozen=True)
class NotCarried(Evidence):
    """A site that a recipe of another program has no choice for."""

    @property
    def codes(self) -> tuple[str, ...]:
        """The names of the reason codes that it gives."""
        return (ReasonCode.RECIPE_PARTIAL.name,)

    def __str__(self) -> str:
        return f"{ReasonCode.RECIPE_PARTIAL.name}: the recipe has no choice for this site"


@dataclass(frozen=True)
class RivalRow:
    """The measured seconds of another alternative, and whether they are clearly more.

    enough: whether both were measured in as many sessions and processes as a verdict needs.
    """

    choice: str
    seconds: float
    lo: float
    hi: float
    clear: bool
    enough: bool = True

    def __str__(self) -> str:
        few = "" if self.enough else ", of too few processes or sessions"
        verdict = "" if self.clear else f": unclear{few}"
        return f"`{self.choice}` {_interval(self.seconds, self.lo, self.hi)}{verdict}"


@dataclass(frozen=True)
class MeasuredRow(Evidence):
    """The row of wisdom that has the chosen alternative's seconds, and the next one beside it."""

    seconds: float
    lo: float
    hi: float
    clock: str
    sessions: int
    processes: int
    constants: str
    wisdom: str
    rival: RivalRow | None = None

    def __str__(self) -> str:
        rival = "" if self.rival is None else f"; {self.rival}"
        return (
            f"measured {_interval(self.seconds, self.lo, self.hi)} of {self.clock} time in "
            f"{self.sessions} sessions, {self.processes} processes, constants {self.constants} "
            f"[{self.wisdom}]{rival}"
        )


@dataclass(frozen=True)
class NoMeasuredRow(Evidence):
    """A choice by prediction: wisdom has rows of other alternatives, or of other machines only."""

    others: tuple[str, ...] = ()
    foreign: int = 0
    wisdom: str = ""

    @property
    def codes(self) -> tuple[str, ...]:
        """The names of the reason codes that it gives."""
        return (ReasonCode.WISDOM_FOREIGN.name,) if self.foreign and not self.others else ()

    def __str__(self) -> str:
        if self.others:
            return f"predicted: {', '.join(self.others)} measured, not this one [{self.wisdom}]"
        if self.foreign:
            code = ReasonCode.WISDOM_FOREIGN.name
            return f"predicted: {code}: {self.foreign} rows measured elsewhere [{self.wisdom}]"
        return "predicted: no measured row"


@dataclass(frozen=True)
class MeasuredRecipe(Evidence):
    """The recipe by which a program as a whole was measured to be fastest."""

    recipe: str
    wisdom: str

    def __str__(self) -> str:
        return f"by {self.recipe} [{self.wisdom}]"


@dataclass(frozen=True)
class EstimatedSeconds(Evidence):
    """Seconds that the simulator states, and whether they rest on measured rows."""

    seconds: float
    measured: bool
    why: str

    def __str__(self) -> str:
        grounds = "measured" if self.measured else "predicted"
        return f"{grounds} {self.seconds:.4g} s: {self.why}"


@dataclass(frozen=True)
class ExploredStructures(Evidence):
    """How many structures of a program were lowered and compared, and the best one's seconds."""

    structures: int
    seconds: float

    def __str__(self) -> str:
        return f"explored {self.structures} structures: {self.seconds:.4g} s"


_OWN = frozenset(Evidence.__subclasses__())


def as_evidence(given: Iterable[Evidence | str]) -> tuple[Evidence, ...]:
    """Return records; a text, or a record of another package, becomes a `Note`."""
    return tuple(e if isinstance(e, Evidence) and type(e) in _OWN else Note(str(e)) for e in given)


def _interval(seconds: float, lo: float, hi: float) -> str:
    return f"{seconds:.4g} s ({lo:.4g} to {hi:.4g})"
