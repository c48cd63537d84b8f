"""The base of PyC passes: a frozen dataclass whose fields are its options.

`name` is the textual name, the docstring's first line is the help, the fields become
``{option=value}`` with dashes for underscores. `run` mutates the module and returns its
statistics; wherever it has a choice it asks `context.choices`.
"""

from contextlib import AbstractContextManager
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import IntEnum
from typing import Any, ClassVar, Protocol, runtime_checkable

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.opdef import FoldWork
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.choices.choices import Choices
from pyc_mlir.pipelines.choices.policies import DEFAULT_MODE
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.target import TARGETS, Target


@dataclass(frozen=True, kw_only=True)
class KernelRules:
    """The kernels that may be offered.

    families: those that they may be taken from; None: all. bounds_error: none that adds other
    numbers than an op's plain form. own_constants: none that reads constants in a form larger than
    the model's. co_selected: the bytes of kernels' constants are weighed with everything else, so
    that kernels with more of them are offered in every mode. detect_faults: kernels check
    themselves where they can. counts: what every function returns the counts of
    (kernels/counts.py).
    """

    families: tuple[str, ...] | None = None
    bounds_error: bool = False
    own_constants: bool = False
    co_selected: bool = False
    detect_faults: bool = False
    counts: tuple[str, ...] = ()

    def take(self, family: str) -> bool:
        """Return whether kernels of a family may be chosen, where the target has them."""
        return self.families is None or family in self.families


@dataclass(frozen=True, kw_only=True)
class PassContext:
    """The settings of every pass of one compile; an option of a pass wins over them.

    `choices` answers and keeps the log. `mode` is the preferred mode of the memory planner, None
    where PyC plans no memory. `calibration` is the evidence for the figures of `target`, which are
    its own already; None: they are published. `compares`: answers are compared with the program as
    it came in, so that no pass may make them less exact. `folding` is what all passes together may
    still compute of constants. `verifier`: checks what passes rewrite, a debug option.
    """

    choices: Choices = field(default_factory=Choices)
    target: Target = field(default_factory=lambda: Target.named("cpu"))
    calibration: Calibration | None = None
    mode: str | None = DEFAULT_MODE
    compares: bool = False
    kernels: KernelRules = field(default_factory=KernelRules)
    folding: FoldWork = field(default_factory=FoldWork)
    verifier: "Verifier | None" = None


class Verifier(Protocol):
    """A checker of the rewrites of a pass (equivalence/rewrites.py)."""

    def around(self, pass_: "Pass", module: ir.Module) -> AbstractContextManager[None]:
        """Return the context that a pass runs in."""
        ...


@runtime_checkable
class Pass(Protocol):
    """The protocol of PyC passes. All are anchored on ``builtin.module``.

    A pass that rewrites otherwise than by `rewriting.replace` has a class attribute `relation`: the
    equality of modules that it keeps.
    """

    name: ClassVar[str]

    def run(self, module: ir.Module, context: PassContext) -> dict[str, int]:
        """Transform `module` in place and return named counts.

        Where there are counts and all are 0, the pass has found nothing to do: the module is not
        verified again, and the same pass not run again until another one changes something.
        Raises PycError when the module is not acceptable to the pass.
        """
        ...


def option(default: Any, help: str) -> Any:
    """Declare a pass option with its default and the line that `--list-passes` shows."""
    return field(default=default, metadata={"help": help})


def require_target(name: str) -> None:
    """Raise PycError (INVALID_PIPELINE) for an unknown `target`; empty is the compile's."""
    if name not in ("", *TARGETS):
        raise PycError(
            ReasonCode.INVALID_PIPELINE,
            f"`target`: expected one of {', '.join(sorted(TARGETS))}, got {name!r}"
            f"{did_you_mean(name, TARGETS)}",
        )


def options_of(pass_class: type) -> list[tuple[Field, str]]:
    """Return the options of a pass class with their textual names (dashes)."""
    return [(f, f.name.replace("_", "-")) for f in fields(pass_class) if f.default is not MISSING]


# The equalities that a rewrite may keep, from the strongest to the weakest.


class Relation(IntEnum):
    """An equality of two programs; each implies those of greater number.

    BITS: equal bits by the references of the ops, NaN payloads left out. REALS: equal functions of
    real numbers wherever both are defined; every constant is the binary number that it is, and
    conversions between floats are exact. ROUNDED: the same, with each constant read as the simple
    number that it is the rounding of. ERROR: equal within the error that the pass states.
    """

    BITS = 1
    REALS = 2
    ROUNDED = 3
    ERROR = 4

    @property
    def text(self) -> str:
        """The equality in words."""
        return _TEXTS[self]


_TEXTS = {
    Relation.BITS: "equal in every bit",
    Relation.REALS: "equal over the reals",
    Relation.ROUNDED: "equal over the reals, with constants as what they are rounded from",
    Relation.ERROR: "equal within an error",
}
