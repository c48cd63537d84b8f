"""The options of a compile: `CompileOptions`, as users say them, and `Options`, as it takes them.

`CompileOptions` is the only place that spells an option: each field has its type, its default, its
documentation and its flag of `pyc-compile`. `compile`, `jit` and the command line derive from them.
`make_options` turns them into `Options`: names and files become targets, policies and figures.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from textwrap import fill
from typing import Any, ParamSpec, TypedDict, Unpack

from pyc_mlir.artifact.compile_log import recipe_at
from pyc_mlir.artifact.manifest import ReplayOptions
from pyc_mlir.artifact.memory import UNPLANNED
from pyc_mlir.artifact.signature import Ranges, checked_range
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import (
    Form,
    Forms,
    field_types,
    fits,
    from_data,
    to_data,
    type_name,
)
from pyc_mlir.dialects.util.files import read_file
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.iree.flags import names_file
from pyc_mlir.measure.environment import current_hashes
from pyc_mlir.pipelines.choices.choices import (
    FirstIsBest,
    Policy,
    Prefers,
    Recipe,
    as_policy,
)
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

# For `kernels`: every family that is there, or IREE's own code for everything.
ALL_KERNELS, NO_KERNELS = "all", "iree"


@dataclass(frozen=True)
class OptionText:
    """The texts of one option in documentation and command line; without `flag` it has no flag.

    `group` is the headline of `--help` that the flag stands under; `once_each` flags may be given
    several times, one value each.
    """

    text: str
    flag: str = ""
    metavar: str = ""
    group: str = ""
    once_each: bool = False


_TEXT = "option"


def _option(default: Any, text: str, flag: str = "", group: str = "", **more: bool) -> Any:
    name, _, value = flag.partition(" ")
    return field(default=default, metadata={_TEXT: OptionText(text, name, value, group, **more)})


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """The options of a compile; sequences are kept as tuples, one text stands for itself.

    Raises PycError (BAD_ARGUMENT) for a value of another type than its option takes.
    """

    target: str | Target = _option(
        "cpu", "the target: its name (`pyc-compile --list-targets`), or a Target", "--target NAME"
    )
    contract: Contract | None = _option(
        None, "clauses that must be kept; a clause that cannot be kept is refused"
    )
    policy: str | Prefers | None = _option(
        None,
        "the policy that chooses among legal alternatives, or its name; default: heuristic",
        "--policy NAME",
        "decisions",
    )
    planner_mode: str = _option(
        "",
        "how memory is planned: latency_first, balanced or memory_first (used wherever the "
        "plan is smaller than IREE's), or iree for IREE's plan; empty: the policy's "
        "`planner_modes`, else balanced",
        "--planner-mode MODE",
        "decisions",
    )
    also_modes: Sequence[str] = _option(
        (),
        "additional modes whose plans the artifact contains; `Program.use_mode` switches to "
        "them at run time",
        "--also-mode MODE",
        "decisions",
        once_each=True,
    )
    kernels: str = _option(
        ALL_KERNELS,
        "the families of PyC's kernels that may be chosen, joined by +; all; or iree for code "
        "by IREE alone",
        "--kernels FAMILIES",
        "decisions",
    )
    calibration: str | Path | Calibration | None = _option(
        None,
        "measured figures of the target's CPU from `pyc-doctor --calibrate FILE`, which "
        "replace the published ones; log and manifest name them",
        "--calibration FILE",
        "decisions",
    )
    wisdom: str | Path | Wisdom | None = _option(
        None,
        "measurements from `pyc-tune export FILE`, for the policy `fastest`; measurements of "
        "this hardware and toolchain take precedence over predictions; log and cache key "
        "contain the file's hash",
        "--wisdom FILE",
        "decisions",
    )
    require_evidence: bool = _option(
        False,
        "refuse a kernel without a measurement on this hardware by this toolchain",
        "--require-evidence",
        "decisions",
    )
    recipe: str | Path | Recipe | None = _option(
        None,
        "a log or a program whose choices take precedence over the policy's",
        "--recipe LOG",
        "decisions",
    )
    check: bool | None = _option(
        None,
        "compare the program with the numpy references on small samples before it is returned, "
        "within a budget of work counted in operations; default: unless the "
        "variable PYC_CHECK is 0",
        "--check",
    )
    dims: Ranges | None = _option(
        None,
        "the smallest and the largest size of a dynamic dimension; a dimension without a name "
        "is named by its position, x[0]; calls outside of the range are refused, and a memory "
        "budget holds up to the largest sizes",
        "--dim NAME=LOW:HIGH",
        once_each=True,
    )
    plans: str | int = _option(
        "",
        "plans for certain shapes in the same artifact, with the same weights, beside the one "
        "for all shapes: auto for as many as are predicted to pay, a number, or the sizes of "
        "each, such as batch=1;batch=2:8; a call takes the first that covers its shapes",
        "--plans auto|K|SIZES",
    )
    shapes: str | Path | None = _option(
        None,
        "the sizes that calls have, for the choice of plans: CSV with a column for each "
        "dynamic dimension, and perhaps one of counts; default: geometric steps of the "
        "declared ranges",
        "--shapes TRACE.csv",
    )
    node_names: bool = _option(
        False,
        "keep the names of the model's nodes, and lines of Python and MLIR files (without "
        "folders), in the program's decisions, for `pyc-explain`; such a program is not cached",
        "--node-names",
        "decisions",
    )
    islands: bool = _option(
        False,
        "ONNX nodes that PyC cannot import may be lowered by torch-mlir, those of a tested "
        "list of operators; each is a break of the graph, which the import report counts",
        "--islands",
        "decisions",
    )
    function: str = _option(
        "",
        "the entry of an MLIR module; empty: `main`, or the only public function",
        "--function NAME",
    )
    outputs: Sequence[str] = _option(
        (),
        "the values of an ONNX model's graph that are the program's results, in this order, in "
        "place of its own: the nodes behind them are no part of the program",
        "--outputs NAME,...",
        once_each=True,
    )
    guard_indices: bool | None = _option(
        None,
        "calls compare indices in their arguments, such as token ids, with the axes that they "
        "choose from, where the source calls others an error (ONNX, PyTorch); without, they "
        "are clamped; default: yes",
        "--guard-indices",
    )
    passes: str = _option(
        "",
        "the passes on the imported module, as `pyc-opt --pass-pipeline` takes them; `default` "
        "stands for PyC's own, passes of plugins are named too: my-pass,default; such a "
        "program is not cached",
        "--passes PIPELINE",
        "decisions",
    )
    dump_phases: str | Path | None = _option(
        None, "write the IR of each of IREE's phases to this folder", "--dump-phases DIR", "IREE"
    )
    iree_flags: Sequence[str] = _option(
        (),
        "flags passed to IREE, such as --iree-opt-level=O2",
        "--Xiree FLAG",
        "IREE",
        once_each=True,
    )

    def __post_init__(self) -> None:
        for name, kind in field_types(CompileOptions).items():
            value = getattr(self, name)
            if kind == Sequence[str]:
                value = (value,) if isinstance(value, str) else value
                value = tuple(value) if isinstance(value, list | tuple) else value
                object.__setattr__(self, name, value)
            if not fits(kind, value):
                raise PycError(
                    ReasonCode.BAD_ARGUMENT,
                    f"{name}: expected {type_name(kind)}, got {value!r} of type "
                    f"{type(value).__name__}",
                )

    @staticmethod
    def given(options: "CompileOptions | None", overrides: "CompileOverrides") -> "CompileOptions":
        """Return what a function is given: options, and single ones that override them.

        Raises PycError (BAD_ARGUMENT) for options of another type, and as `with_overrides`.
        """
        if not isinstance(options, CompileOptions | None):
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"options: expected CompileOptions or None, got {options!r} of type "
                f"{type(options).__name__}; give single options by name",
            )
        return (options or CompileOptions()).with_overrides(**overrides)

    def with_overrides(self, **overrides: Unpack["CompileOverrides"]) -> "CompileOptions":
        """Return these options with some changed. Raises TypeError for an unknown option."""
        known = texts()
        for name in overrides:
            if name not in known:
                raise TypeError(
                    f"compile options: expected some of {', '.join(known)}, got {name!r}"
                    f"{did_you_mean(name, known)}"
                )
        return replace(self, **overrides)

    def to_data(self) -> dict[str, Any]:
        """Return the options that differ from their defaults, as plain JSON data.

        Raises ValueError for a policy that is an object: only a name says which one it is.
        """
        given = ((f.name, f.default, getattr(self, f.name)) for f in fields(CompileOptions))
        return {name: to_data(v, name, _FORMS) for name, default, v in given if v != default}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> "CompileOptions":
        """Read what `to_data` wrote. Raises ValueError or PycError, with the option first."""
        return from_data(CompileOptions, data, "compile options", _FORMS)


class CompileOverrides(TypedDict, total=False):
    """The options by name, as functions take single ones; a test compares it with the fields."""

    target: str | Target
    contract: Contract | None
    policy: str | Prefers | None
    planner_mode: str
    also_modes: Sequence[str]
    kernels: str
    calibration: str | Path | Calibration | None
    wisdom: str | Path | Wisdom | None
    require_evidence: bool
    recipe: str | Path | Recipe | None
    check: bool | None
    dims: Ranges | None
    plans: str | int
    shapes: str | Path | None
    node_names: bool
    islands: bool
    function: str
    outputs: Sequence[str]
    guard_indices: bool | None
    passes: str
    dump_phases: str | Path | None
    iree_flags: Sequence[str]


def _no_policy(policy: Any) -> Any:
    raise ValueError(f"policy: expected the name of one as plain data, got {policy!r:.80}")


_FORMS = {Prefers: Form(_no_policy, _no_policy)}


def texts() -> dict[str, OptionText]:
    """Return the texts of each option, by name."""
    return {f.name: f.metadata[_TEXT] for f in fields(CompileOptions)}


def documentation(indent: str = "    ") -> str:
    """Return a paragraph for each option, as docstrings have them."""
    rows = ((name, option.text) for name, option in texts().items())
    return "\n".join(
        fill(f"{n}: {text}.", 96, initial_indent=indent, subsequent_indent=indent * 2)
        for n, text in rows
    )


CompileOptions.__doc__ = f"{CompileOptions.__doc__}\n{documentation()}\n"


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
            iree_flags=tuple(
                flag.partition("=")[0] if _PATH.search(flag) else flag for flag in self.iree_flags
            ),
            ranges=dict(sorted(self.ranges.items())),
        )


def checked_options(options: Options, environment: Mapping[str, str] = os.environ) -> Options:
    """Return the options. Raises PycError for what this compile cannot do, keep or check.

    BAD_ARGUMENT for unknown modes and families, and for a flag that names a CPU;
    CONTRACT_CONFLICT for fallbacks that other options leave nothing to fall back to, and for strict
    determinism beside a policy that prepares compiles, an IREE flag that names a file, or a
    variable that has other code take part; UNSUPPORTED_CLAUSE for strict determinism off CPUs.
    """
    for flag in options.iree_flags:
        if str(flag).lstrip("-").startswith(_CPU_FLAGS):
            raise PycError(
                ReasonCode.BAD_ARGUMENT,
                f"iree_flags: expected none that names a CPU, got {flag!r}; a program is refused "
                "where a feature of its target is lacking, so name the CPU by `target`",
            )
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


def is_on(switch: str, default: str, environment: Mapping[str, str]) -> bool:
    """Return what a variable says. Raises PycError (BAD_ARGUMENT) for neither 0 nor 1."""
    value = environment.get(switch) or default
    if value not in ("0", "1"):
        raise PycError(
            ReasonCode.BAD_ARGUMENT, f"{switch}: expected 0 (off) or 1 (on), got {value!r}"
        )
    return value == "1"


def _demand(trace: str | Path | None) -> Demand:
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
        outputs=tuple(given.outputs),
        guard_indices=given.guard_indices is not False,
        # A trace alone asks for those that pay.
        plans=checked_plans(given.plans) or (AUTO_PLANS if given.shapes is not None else ""),
        demand=_demand(given.shapes),
        check=is_on("PYC_CHECK", "1", environment) if given.check is None else given.check,
        verify_ir=is_on("PYC_VERIFY_IR", "0", environment),
    )
    if recipe is not None:
        options = with_recipe(options, recipe)
    if recorded is not None:
        known = {f.name: getattr(recorded, f.name) for f in fields(ReplayOptions)}
        known["passes"] = recorded.passes or HIGH_LEVEL
        known["iree_flags"] = options.iree_flags or recorded.iree_flags
        options = replace(options, **known)
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


P = ParamSpec("P")


def _resolving(make: Callable[P, CompileOptions]) -> Callable[P, Options]:

    def make_options(*args: P.args, **kwargs: P.kwargs) -> Options:
        return resolve(make(*args, **kwargs))

    return make_options


# The options of a compile from the fields of `CompileOptions`. Raises as both do.
make_options = _resolving(CompileOptions)


def _check_modes(options: Options) -> None:
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
