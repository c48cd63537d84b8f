"""How to compile: `Options`, made and checked from what users give."""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyc_mlir.artifact.compile_log import recipe_at
from pyc_mlir.artifact.signature import Ranges, checked_range
from pyc_mlir.compilation.plan_memory import UNPLANNED
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.iree.flags import names_file
from pyc_mlir.pipelines.choices.choices import (
    FirstIsBest,
    Policy,
    Recipe,
)
from pyc_mlir.pipelines.choices.contract import (
    IREE_CODE,
    OTHER_PLANS,
    STRICT,
    Contract,
    conflict,
)
from pyc_mlir.pipelines.choices.policies import load_policy, planner_modes
from pyc_mlir.pipelines.memory.planner.planner import MODES, mode_named
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import host_cpu
from pyc_mlir.util.env_overrides import steering

HIGH_LEVEL = (
    "pyc-canonicalize,pyc-infer-shapes,pyc-decompose{only=batchnorm},pyc-canonicalize,"
    "pyc-chunk,pyc-decompose{only=attention},pyc-canonicalize,pyc-fuse"
)


# For `Options.kernels`: every family that is there, or IREE's own code for everything.
ALL_KERNELS, NO_KERNELS = "all", "iree"


_PATH = re.compile(r"[/\\]")


def _without_path(flag: str) -> str:
    return flag.partition("=")[0] if _PATH.search(flag) else flag


@dataclass(frozen=True)
class Options:
    """How to compile; see `compile` for the meaning of each."""

    target: Target = field(default_factory=lambda: Target.named("cpu"))
    contract: Contract = field(default_factory=Contract)
    policy: Policy = field(default_factory=FirstIsBest)
    recipe: Recipe | None = None
    iree_flags: tuple[str, ...] = ()
    dump_phases: Path | None = None
    # The passes between front end and linalg; none leaves every op alone.
    passes: str = HIGH_LEVEL
    # Modes of PyC's planner whose plans are offered, the preferred one first; none leaves it to
    # IREE.
    planner_modes: tuple[str, ...] = ()
    # Families whose generated kernels are offered, joined by +; ALL_KERNELS or NO_KERNELS.
    kernels: str = "all"
    # The planner mode for which `pyc-chunk` cuts; empty is the preferred one.
    parts_for: str = ""
    # Further modes, each with a plan and an entry of its own, to be switched to at run time.
    also_modes: tuple[str, ...] = ()
    # By dynamic dimension, the smallest and the largest size of it in a call.
    ranges: Ranges = field(default_factory=dict)
    # The evidence for the target's figures, which are its own already; None: they are published.
    calibration: Calibration | None = None

    @property
    def asked(self) -> dict[str, Any]:
        """What a replay needs besides target, contract, calibration and recipe, as JSON data.

        A flag with a path in it keeps only its name: artifacts carry no paths.
        """
        return {
            "planner_modes": list(self.planner_modes),
            "also_modes": list(self.also_modes),
            "kernels": self.kernels,
            "parts_for": self.parts_for,
            "passes": "" if self.passes == HIGH_LEVEL else self.passes,
            "iree_flags": [_without_path(flag) for flag in self.iree_flags],
            "ranges": {name: list(ends) for name, ends in sorted(self.ranges.items())},
        }


def checked_options(options: Options, environment: Mapping[str, str] = os.environ) -> Options:
    """The options. Raises PycError for a contract that this compile cannot keep or check.

    CONTRACT_CONFLICT for fallbacks that other options leave nothing to fall back to, and for strict
    determinism beside an IREE flag that names a file or a variable that has other code take part;
    UNSUPPORTED_CLAUSE for strict determinism off CPUs.
    """
    contract = options.contract
    if OTHER_PLANS in contract.fallbacks and not options.also_modes:
        raise conflict(f"fallback {OTHER_PLANS!r}", "no `also_modes`", "there is no other plan")
    if IREE_CODE in contract.fallbacks and options.kernels == NO_KERNELS:
        raise conflict(f"fallback {IREE_CODE!r}", f"kernels={NO_KERNELS!r}", "they are the same")
    if contract.is_strict and options.target.device != "local":
        raise PycError(
            ReasonCode.UNSUPPORTED_CLAUSE,
            "contract clause `determinism`: expected a CPU target, got "
            f"{options.target.name!r}, where PyC has not shown equal bits; drop the clause",
        )
    if contract.is_strict:
        _require_named_parts(options, steering(environment))
    return options


def _require_named_parts(options: Options, steered: Iterable[str]) -> None:
    """Raise PycError (CONTRACT_CONFLICT) where strictness meets what no log can name."""
    strict = f"determinism={STRICT!r}"
    for flag in (*options.target.flags, *options.iree_flags):
        if names_file(flag):
            name = flag.partition("=")[0]
            raise conflict(strict, f"the IREE flag `{name}`", "what a file holds is in no log")
    for name in steered:
        raise conflict(strict, f"the variable `{name}`", "what code it has take part is in no log")


# IREE's flags that change what a program needs of its CPU.
_CPU_FLAGS = "iree-llvmcpu-target-cpu"


def make_options(
    target: str | Target = "cpu",
    contract: Contract | None = None,
    policy: Policy | str | None = None,
    recipe: Recipe | str | Path | None = None,
    iree_flags: Sequence[str] = (),
    dump_phases: str | Path | None = None,
    planner_mode: str = "",
    also_modes: Sequence[str] = (),
    kernels: str = ALL_KERNELS,
    calibration: Calibration | str | Path | None = None,
    dims: Ranges | None = None,
) -> Options:
    """Options from what users give.

    Raises PycError for an unknown target, policy, planner mode or kernel family, a refused
    clause, a flag that names another CPU, or a calibration that is damaged or of another CPU.
    """
    _check_kinds(target=target, policy=policy, kernels=kernels, contract=contract)
    _check_flags(iree_flags)
    found = Target.named(target) if isinstance(target, str) else target
    cpu = host_cpu()
    if found.name == "cpu" and cpu is not None:
        found = found.on(cpu)
    measured = Calibration.load(calibration) if isinstance(calibration, str | Path) else calibration
    if measured is not None:
        found = found.calibrated(measured)
    promised = contract or Contract()
    promised.check(found.name)
    asked = load_policy(policy) if isinstance(policy, str) else policy or FirstIsBest()
    modes = planner_modes(asked) if not planner_mode else (planner_mode,)
    also_modes = (also_modes,) if isinstance(also_modes, str) else also_modes
    _check_modes(modes, also_modes, promised)
    if kernels not in (ALL_KERNELS, NO_KERNELS):
        _require_families(kernels.split("+"))
    options = Options(
        found,
        promised,
        asked,
        recipe_at(recipe) if isinstance(recipe, (str, Path)) else recipe,
        tuple(iree_flags),
        None if dump_phases is None else Path(dump_phases),
        planner_modes=() if modes == (UNPLANNED,) else modes,
        kernels=kernels,
        also_modes=tuple(m for m in dict.fromkeys(also_modes) if (m,) != modes),
        calibration=measured,
        ranges={name: checked_range(name, value) for name, value in (dims or {}).items()},
    )
    return checked_options(options)


def _check_modes(modes: Sequence[str], also_modes: Sequence[str], promised: Contract) -> None:
    """Raise PycError (BAD_ARGUMENT) for modes that are none, or that leave out what is asked."""
    if modes != (UNPLANNED,):
        for mode in (*modes, *also_modes):
            mode_named(mode)
    elif also_modes:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"also_modes: expected a planner mode of {sorted(MODES)} beside them, got "
            f"{UNPLANNED!r}, which plans nothing",
        )
    elif promised.memory_budget_bytes is not None:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"contract clause `memory_budget_bytes`: expected a planner mode of {sorted(MODES)}, "
            f"got {UNPLANNED!r}, which plans nothing",
        )


def _check_flags(iree_flags: Sequence[str]) -> None:
    """Raise PycError (BAD_ARGUMENT) for a flag that names a CPU."""
    for flag in iree_flags:
        if str(flag).lstrip("-").startswith(_CPU_FLAGS):
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"iree_flags: expected none that names a CPU, got {flag!r}; a program is refused "
                "where a feature of its target is lacking, so name the CPU by `target`",
            )


def _check_kinds(**given: Any) -> None:
    """Raise PycError (BAD_ARGUMENT) for what is of another kind than an argument takes."""
    kinds: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "target": ("a name or a Target", lambda v: isinstance(v, str | Target)),
        "policy": (
            "a name or an object with `name` and `prefer`",
            lambda v: v is None or isinstance(v, str) or hasattr(v, "prefer"),
        ),
        "kernels": ("names of families joined by +", lambda v: isinstance(v, str)),
        "contract": ("a Contract", lambda v: v is None or isinstance(v, Contract)),
    }
    for name, value in given.items():
        expected, fits = kinds[name]
        if not fits(value):
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"{name}: expected {expected}, got {value!r} of type {type(value).__name__}",
            )


def _require_families(names: Sequence[str]) -> None:
    from pyc_mlir.pipelines.kernels.registry import FAMILIES

    unknown = sorted(set(names) - set(FAMILIES))
    if unknown:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"kernels: expected {ALL_KERNELS!r}, {NO_KERNELS!r} or some of {', '.join(FAMILIES)} "
            f"joined by +, got {unknown}",
        )
