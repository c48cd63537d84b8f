"""`CompileOptions`: how to compile, as users say it; the only place that spells an option.

Each field has its type, its default, its documentation and its flag of `pyc-compile`. `compile`,
`jit` and the command line derive from them. `make_options` turns them into the `Options` that a
compile works with: names and files become targets, policies and figures.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from textwrap import fill
from typing import Any, TypedDict, Unpack

from pyc_mlir.artifact.signature import Ranges
from pyc_mlir.dialects.errors import PycError, ReasonCode
from pyc_mlir.dialects.util.codec import Form, field_types, fits, from_data, to_data, type_name
from pyc_mlir.dialects.util.suggestions import did_you_mean
from pyc_mlir.pipelines.choices.choices import Prefers, Recipe
from pyc_mlir.pipelines.choices.contract import Contract
from pyc_mlir.pipelines.choices.wisdom import Wisdom
from pyc_mlir.pipelines.target.calibration import Calibration
from pyc_mlir.pipelines.target.target import Target

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
    """Declare an option: its default, its text, its flag with the name of the value."""
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
