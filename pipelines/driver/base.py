"""The base of PyC passes: a frozen dataclass whose fields are its options.

`name` is the textual name, the docstring's first line is the help, the fields become
``{option=value}`` with dashes for underscores. `run` mutates the module and returns its
statistics; wherever it has a choice it asks `context.choices`.
"""

from contextlib import AbstractContextManager
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar, Protocol, runtime_checkable

from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.ir.bindings import ir
from pyc_mlir.dialects.opdef import FoldWork
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.choices.choices import Choices
from pyc_mlir.pipelines.choices.policies import DEFAULT_MODE
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.target import TARGETS, Target


@dataclass(frozen=True)
class PassContext:
    """The settings of every pass of one compile; an option of a pass wins over them.

    `choices` answers and keeps the log. `mode` is the preferred mode of the memory planner, None
    where PyC plans no memory. `calibration` is the evidence for the figures of `target`, which are
    its own already; None: they are published. `bounds_error`: no kernel is
    offered that adds other numbers than an op's plain form. `compares`: answers are compared with
    the program as it came in, so that no pass may make them less exact. `kernels` are the families
    that kernels may be taken from; None: all. `co_selected`: the bytes of
    kernels' constants are weighed with everything else, so that kernels with more of them are
    offered in every mode. `own_constants`: no kernel is offered that reads constants in a form
    larger than the model's. `detect_faults`: kernels check themselves where they can. `counts`
    names what every function returns the counts of (kernels/shared/counts.py). `folding` is what
    all passes together may still compute of constants. `verifier`: checks what passes
    rewrite, a debug option.
    """

    choices: Choices = field(default_factory=Choices)
    target: Target = field(default_factory=lambda: Target.named("cpu"))
    mode: str | None = DEFAULT_MODE
    calibration: Calibration | None = None
    bounds_error: bool = False
    compares: bool = False
    kernels: tuple[str, ...] | None = None
    co_selected: bool = False
    own_constants: bool = False
    detect_faults: bool = False
    counts: tuple[str, ...] = ()
    folding: FoldWork = field(default_factory=FoldWork)
    verifier: "Verifier | None" = None

    def takes(self, family: str) -> bool:
        """Return whether kernels of a family may be chosen, where the target has them."""
        return self.kernels is None or family in self.kernels


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
