"""`Options`, the options of a compile: resolved and checked from `CompileOptions`."""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ParamSpec

from pyc_mlir.artifact.compile_log import recipe_at
from pyc_mlir.artifact.manifest import ReplayOptions
from pyc_mlir.artifact.memory import UNPLANNED
from pyc_mlir.artifact.signature import checked_range
from pyc_mlir.compilation.compile_options import ALL_KERNELS, NO_KERNELS, CompileOptions
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import Forms, to_data
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.iree.flags import names_file
from pyc_mlir.measure.environment import current_hashes
from pyc_mlir.pipelines.choices.choices import FirstIsBest, Policy, Recipe, as_policy
from pyc_mlir.pipelines.choices.contract import (
    IREE_CODE,
    OTHER_PLANS,
    STRICT,
    Contract,
    conflict,
)
from pyc_mlir.pipelines.choices.policies import PLANNER_MODES, load_policy, planner_modes
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.pipelines.driver.pipeline_text import AnchorNode, Node, parse_pipeline
from pyc_mlir.pipelines.driver.registry import BUILT_IN, PASSES
from pyc_mlir.pipelines.memory.planner.planner import MODES, mode_named
from pyc_mlir.pipelines.shapes.choose import Demand
from pyc_mlir.pipelines.shapes.plan import AUTO_PLANS, checked_plans
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.target import Target
from pyc_mlir.runtime.device import host_cpu
from pyc_mlir.util.env_overrides import env_overrides
from pyc_mlir.util.logs import COMPILE, warn

HIGH_LEVEL = (
    "pyc-canonicalize{keep-bytes=true},pyc-infer-shapes,pyc-recognize,"
    "pyc-decompose{only=batchnorm},"
    "pyc-canonicalize,pyc-fold-norms,pyc-layout,pyc-chunk,pyc-decompose{only=attention},"
    "pyc-canonicalize,pyc-fuse"
)

# What stands for them in the option `passes`.
_OWN_PASSES = "default"

# The pass at whose sites memory plans are chosen.
PLANS = "plan-memory"
_PATH = re.compile(r"[/\\]")


def _without_path(flag: str) -> str:
    return flag.partition("=")[0] if _PATH.search(flag) else flag


@dataclass(frozen=True)
class Options(ReplayOptions):
    """The options of a compile: `CompileOptions` with names and files resolved."""

    target: Target = field(default_factory=lambda: Target.named("cpu"))
    contract: Contract = field(default_factory=Contract)
    policy: Policy = field(default_factory=FirstIsBest)
    recipe: Recipe | None = None
    dump_phases: Path | None = None
    passes: str = HIGH_LEVEL
    # The evidence for the target's figures, which are its own already; None: they are published.
    calibration: Calibration | None = None
    # Kernels and parts are chosen together under the budget (attempts.py).
    co_selected: bool = False
    # No constant may be larger than the model's (attempts.py).
    own_constants: bool = False
    # The sizes that calls have, for the choice of plans for shapes.
    demand: Demand = field(default_factory=Demand)
    # The program is compared with its references before it is returned (references.py).
    check: bool = False
    # IREE verifies the IR of PyC's own programs after each pass; bytes do not depend on it.
    verify_ir: bool = False

    def __post_init__(self) -> None:
        """Adapt a policy of another class."""
        object.__setattr__(self, "policy", as_policy(self.policy))

    def data(self, forms: Forms, without: Collection[str] = ()) -> dict[str, Any]:
        """Return the options as plain JSON data: the one schema of requests, keys and manifests.

        A worker's request has all of them, a cache key those that bytes depend on and that it does
        not name elsewhere, a manifest those of `ReplayOptions`. forms: of policies and wisdom.
        Raises ValueError for what is no plain data.
        """
        made = to_data(self, "options", forms)
        return {name: value for name, value in made.items() if name not in without}

    @property
    def replayed(self) -> ReplayOptions:
        """The options that a manifest records: artifacts carry no paths."""
        recorded = ReplayOptions(**{f.name: getattr(self, f.name) for f in fields(ReplayOptions)})
        return replace(
            recorded,
            passes="" if self.passes == HIGH_LEVEL else self.passes,
            iree_flags=tuple(map(_without_path, self.iree_flags)),
            ranges=dict(sorted(self.ranges.items())),
        )


def checked_options(options: Options, environment: Mapping[str, str] = os.environ) -> Options:
    """Return the options. Raises PycError for what this compile cannot do, keep or check.

    BAD_ARGUMENT for unknown modes and families, and for a flag that names a CPU;
    CONTRACT_CONFLICT for fallbacks that other options leave nothing to fall back to, and for strict
    determinism beside a policy that prepares compiles, an IREE flag that names a file, or a
    variable that has other code take part; UNSUPPORTED_CLAUSE for strict determinism off CPUs.
    """
    _check_flags(options.iree_flags)
    _check_modes(options)
    if options.kernels not in (ALL_KERNELS, NO_KERNELS):
        _require_families(families_of(options.kernels))
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
    if contract.is_strict and options.policy.prepares:
        policy = f"the policy `{options.policy.name}`"
        raise conflict(f"determinism={STRICT!r}", policy, "compile by a recipe that it found")
    if contract.is_strict:
        _require_named_parts(options, env_overrides(environment))
    return options


def _require_named_parts(options: Options, overrides: Iterable[str]) -> None:
    """Raise PycError (CONTRACT_CONFLICT) where strictness meets what no log can name."""
    strict = f"determinism={STRICT!r}"
    for flag in (*options.target.flags, *options.iree_flags):
        if names_file(flag):
            name = flag.partition("=")[0]
            raise conflict(strict, f"the IREE flag `{name}`", "what a file holds is in no log")
    for name in _pass_names(parse_pipeline(options.passes).root):
        if name not in BUILT_IN and name in PASSES:
            raise conflict(strict, f"the pass `{name}`", "what a plugin does is in no log")
    for name in overrides:
        raise conflict(strict, f"the variable `{name}`", "what code it has take part is in no log")


def _pass_names(node: Node) -> set[str]:
    if isinstance(node, AnchorNode):
        return set().union(*map(_pass_names, node.children))
    return {node.name}


def passes_of(text: str) -> str:
    """Return the pipeline that the option `passes` asks for; empty is PyC's own.

    Raises PycError (INVALID_PIPELINE).
    """
    if not text:
        return HIGH_LEVEL
    nodes = map(str, parse_pipeline(text).root.children)
    return ",".join(HIGH_LEVEL if node == _OWN_PASSES else node for node in nodes)


_CHECK, _VERIFY_IR = "PYC_CHECK", "PYC_VERIFY_IR"


def is_on(switch: str, default: str, environment: Mapping[str, str]) -> bool:
    """Return what a variable says. Raises PycError (BAD_ARGUMENT) for neither 0 nor 1."""
    value = environment.get(switch) or default
    if value not in ("0", "1"):
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"{switch}: expected 0 (off) or 1 (on), got {value!r}"
        )
    return value == "1"


def _demand(trace: str | Path | None) -> Demand:
    """Read a trace of shapes. Raises PycError: FILE_ACCESS, BAD_ARGUMENT."""
    if trace is None:
        return Demand()
    text = read_file(trace, "a trace of shapes").decode(errors="replace")
    return Demand.of_trace(text, str(trace))


# IREE's flags that change what a program needs of its CPU.
_CPU_FLAGS = "iree-llvmcpu-target-cpu"


def resolve(
    given: CompileOptions,
    recorded: ReplayOptions | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Options:
    """Return the options of a compile from what users give.

    recorded: what a manifest says takes the place of what was given; given flags for IREE stay,
    since a manifest has them without their paths.

    Raises PycError for an unknown target, policy, planner mode or kernel family, a refused
    clause, a flag that names another CPU, or a calibration that is damaged or of another CPU, and
    as `checked_options`.
    """
    target, calibration = _resolved_target(given)
    contract = given.contract or Contract()
    contract.check(target.name)
    policy, recipe, folder = _resolved_policy(given), given.recipe, given.dump_phases
    recipe = recipe_at(recipe) if isinstance(recipe, str | Path) else recipe
    modes = planner_modes(policy) if not given.planner_mode else (given.planner_mode,)
    options = Options(
        target=target,
        contract=contract,
        policy=policy,
        dump_phases=None if folder is None else Path(folder),
        calibration=calibration,
        planner_modes=() if modes == (UNPLANNED,) else modes,
        also_modes=tuple(m for m in dict.fromkeys(given.also_modes) if (m,) != modes),
        kernels=given.kernels,
        iree_flags=tuple(given.iree_flags),
        ranges={name: checked_range(name, ends) for name, ends in (given.dims or {}).items()},
        node_names=given.node_names,
        passes=passes_of(given.passes),
        islands=given.islands,
        function=given.function,
        guard_indices=given.guard_indices is not False,
        # A trace alone asks for those that pay.
        plans=checked_plans(given.plans) or (AUTO_PLANS if given.shapes is not None else ""),
        demand=_demand(given.shapes),
        check=is_on(_CHECK, "1", environment) if given.check is None else given.check,
        verify_ir=is_on(_VERIFY_IR, "0", environment),
    )
    if recipe is not None:
        options = with_recipe(options, recipe)
    if recorded is not None:
        options = _as_recorded(options, recorded)
    return checked_options(options, environment)


def _resolved_policy(given: CompileOptions) -> Policy:
    """Return the policy; `fastest` and `explore` with wisdom and the hashes of this machine.

    Raises PycError: BAD_ARGUMENT for wisdom without that policy, BAD_WISDOM, and as `load_policy`.
    """
    policy, wisdom = given.policy, given.wisdom
    named = load_policy(policy) if isinstance(policy, str) else policy
    policy = as_policy(named or FirstIsBest())
    if wisdom is None and not given.require_evidence:
        return policy
    if isinstance(wisdom, str | Path):
        wisdom = Wisdom.load(wisdom)
    if wisdom is not None and not wisdom.rows:
        warn(
            COMPILE,
            ReasonCode.NO_EVIDENCE.name,
            "wisdom: expected rows, got a file without any; all choices are predicted: measure the "
            "program with `pyc-tune`, and export again",
        )
    hardware, toolchain = current_hashes()
    return policy.informed(wisdom or policy.wisdom, hardware, toolchain, given.require_evidence)


def with_recipe(options: Options, recipe: Recipe) -> Options:
    """Return the options with a recipe. Planner modes whose plans it chooses are offered too."""
    named = {c for site, c in recipe.choices.items() if site.startswith(f"{PLANS}:")}
    more = [mode for mode in PLANNER_MODES if mode in named] if options.planner_modes else []
    modes = tuple(dict.fromkeys((*options.planner_modes, *more)))
    also = tuple(mode for mode in options.also_modes if mode not in modes[:1])
    return replace(options, recipe=recipe, planner_modes=modes, also_modes=also)


def _resolved_target(given: CompileOptions) -> tuple[Target, Calibration | None]:
    """Return the target with the figures of its CPU, and the evidence for them."""
    target, calibration = given.target, given.calibration
    target = Target.named(target) if isinstance(target, str) else target
    cpu = host_cpu()
    if target.name == "cpu" and cpu is not None:
        target = target.on(cpu)
    if isinstance(calibration, str | Path):
        calibration = Calibration.load(calibration)
    return (target if calibration is None else target.calibrated(calibration)), calibration


def _as_recorded(options: Options, recorded: ReplayOptions) -> Options:
    """Return the options with those of a manifest."""
    known = {f.name: getattr(recorded, f.name) for f in fields(ReplayOptions)}
    known["passes"] = recorded.passes or HIGH_LEVEL
    known["iree_flags"] = options.iree_flags or recorded.iree_flags
    return replace(options, **known)


P = ParamSpec("P")


def _resolving(make: Callable[P, CompileOptions]) -> Callable[P, Options]:
    """Return a function that resolves what `make` makes from the same arguments."""

    def make_options(*args: P.args, **kwargs: P.kwargs) -> Options:
        return resolve(make(*args, **kwargs))

    return make_options


# The options of a compile from the fields of `CompileOptions`. Raises as both do.
make_options = _resolving(CompileOptions)


def _check_modes(options: Options) -> None:
    """Raise PycError (BAD_ARGUMENT) for modes that are none, or that leave out what is asked."""
    promised = options.contract
    if options.planner_modes:
        for mode in (*options.planner_modes, *options.also_modes):
            mode_named(mode)
    elif options.also_modes:
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


def families_of(kernels: str) -> tuple[str, ...]:
    """Return the kernel families that the option `kernels` names; "all" has no list."""
    return () if kernels == NO_KERNELS else tuple(kernels.split("+"))


def _require_families(names: Sequence[str]) -> None:
    from pyc_mlir.pipelines.kernels.registry import FAMILIES

    unknown = sorted(set(names) - set(FAMILIES))
    if unknown:
        raise PycError(
            ReasonCode.BAD_ARGUMENT,
            f"kernels: expected {ALL_KERNELS!r}, {NO_KERNELS!r} or some of {', '.join(FAMILIES)} "
            f"joined by +, got {unknown}"
            f"{did_you_mean(unknown[0], (ALL_KERNELS, NO_KERNELS, *FAMILIES))}",
        )
